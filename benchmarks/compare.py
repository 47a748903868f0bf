"""Did anything get slower? Two checkouts, each with its own benchmarks, in turn.

    paper        `bench_drago.py paper`, without emotion, whose baselines take minutes
    conditioned  `bench_drago.py conditioned`, 1e5 rows
    pass         `bench_drago.py pass`, up to 1e6 rows
    grid         `bench_drago.py grid`, two data sets
    dual         `bench_dual.py`, up to 1e6 rows
    solvers      every seventh problem of `bench_solvers.py`, but none of 1e6 rows: auto, Newton
                 steps and DRAGO

The two take turns, a row each (old, new, new, old, ...), so that what the machine does besides is
spread over both. The first run does not count: before kernels were C++, it compiled them. For each
time come the medians, and the geometric mean of new by old over the pairs of runs with its 95%
interval (Student's t for the logarithms). A time is slower if the whole interval lies above 1.1, or
if the new one mostly lacks the certificate that the old one mostly has; then the exit code is 1.

    DRAGO_DATA_DIR=... python benchmarks/compare.py OLD NEW [--runs 7] [--tables TABLE ...]
    python benchmarks/compare.py --report

OLD and NEW are folders. `--resume` goes on where a run was stopped; `--report` measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import inspect
import itertools
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tables import Table

SIDES = ("old", "new")
# Times whose interval lies above it are slower.
LIMIT = 1.1
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Job:
    """A script, its options, what names a row of its CSV file, and the times in it that are ours.

    Among the options, `{csv}` is that file and `{folder}` where it lies.
    """

    script: str
    options: str
    row: str
    times: str


JOBS = {
    "paper": Job(
        "bench_drago",
        "paper --data yacht concrete kin8nm power --csv {folder}",
        row="{data}",
        times="drago_ms first_ms lbfgs_ms",
    ),
    "conditioned": Job(
        "bench_drago",
        # The limit spares us plain L-BFGS with 200 features.
        "conditioned --quick --time-limit 1.5 --csv {folder}",
        row="{n} x {d}, tail {tail}, nu {shift_cost}",
        times="drago_s lbfgs_s metric_s",
    ),
    "pass": Job(
        "bench_drago",
        "pass --quick --csv {folder}",
        row="{primal}, {n} x {d}",
        times="pass_ms first_ns_a_row",
    ),
    "grid": Job(
        "bench_drago",
        "grid --data yacht concrete --time-limit 2 --csv {folder}",
        row="{data}, {set}, {divergence}, l2_reg {l2_reg}, nu {shift_cost}",
        times="drago_time lbfgs_time",
    ),
    "dual": Job(
        "bench_dual",
        "--sizes 10000 100000 1000000 --repeat 3 --csv {csv}",
        row="{set}, {divergence}, {n}",
        times="cold_ns warm_ns",
    ),
    "solvers": Job(
        "bench_solvers",
        "--no-baselines --patience 5 --csv {csv}",
        row="{method}: {problem}",
        times="seconds_1e-3 seconds_1e-5 seconds_1e-7",
    ),
}


def run_script(checkout: str, script: str, *options: str) -> None:
    """Run a script of a checkout, a row a turn; this text is all that its process knows of us."""
    import importlib
    import io
    import sys
    from pathlib import Path

    ask, real = sys.stdin.readline, sys.stdout

    class Turns(io.TextIOBase):
        """Where the script prints: a line at the end of a row, and then it is the other's turn."""

        def write(self, text: str) -> int:
            if text.endswith("\n"):
                print("done", file=real, flush=True)
                if not ask():
                    raise SystemExit("nobody is left to take turns with")
            return len(text)

    ask()
    import drago

    assert Path(drago.__file__).is_relative_to(Path(checkout, "src")), drago.__file__
    sys.path.insert(0, str(Path(checkout, "benchmarks")))
    module = importlib.import_module(script)
    if script == "bench_solvers":
        grid = module.grid()
        names = [case.name for _, cases in grid for case in cases][::7]
        names = [name for name in names if "1e6" not in name]
        module.grid = lambda: [(of, [c for c in cases if c.name in names]) for of, cases in grid]
        # In this order: the time of the first one limits the others.
        module.FAST = {name: module.FAST[name] for name in ("auto", "newton", "drago")}
        module.LONG = 1.0
        module.report = module.plot = lambda *_: None
    if options[0] == "grid":  # it prints a line a data set
        rows = module.rows

        def a_line_each(*settings: object) -> object:
            for row in rows(*settings):
                print("a row")
                yield row

        module.rows = a_line_each
    sys.argv = [script, *options]
    errors, sys.stdout, sys.stderr = sys.stderr, Turns(), Turns()
    try:
        module.main()
    finally:
        sys.stdout, sys.stderr = real, errors


# ----------------------------------------------------------------------------------- measure

# Of a time: the run (0 does not count), old or new, its commit, the table, its row and column, and
# the value, infinite without a certificate.
FIELDS = ("run", "side", "commit", "table", "row", "time", "value")
Measured = list[dict[str, str]]


def read(path: Path) -> Measured:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, measured: Measured) -> None:
    """Write the file as a whole or not at all."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(measured)
    os.replace(new, path)


def times_in(table: str, rows: Iterable[dict[str, str]]) -> Measured:
    """Our times in the CSV file of a table."""
    found, job = [], JOBS[table]
    for row in rows:
        for column in (column for column in job.times.split() if column in row):
            status = column.replace("seconds", "status").replace("_time", "_status")
            certified = status == column or row.get(status, "optimal") == "optimal"
            value = row[column] if certified and row[column][:3] != "not" else "inf"
            name = job.row.format_map(row)
            found.append({"table": table, "row": name, "time": column, "value": value})
    return found


def make_table(table: str, checkouts: dict[str, Path], caches: Path) -> dict[str, Measured]:
    """Make a table in both checkouts, which take turns in this order, and read their times."""
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    program = f"import sys\n{inspect.getsource(run_script)}\nrun_script(*sys.argv[1:])"
    job, running, found = JOBS[table], {}, {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        for side, checkout in checkouts.items():
            folder = Path(name, side)
            folder.mkdir()
            csv_file = folder / f"{table}.csv"
            options = [text.format(folder=folder, csv=csv_file) for text in job.options.split()]
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(checkout), job.script, *options],
                cwd=checkout,
                env=os.environ
                | dict.fromkeys(threads, "1")
                | {"PYTHONPATH": str(checkout / "src"), "NUMBA_CACHE_DIR": str(caches / side)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(open(folder / "errors", "w")),
                text=True,
            )
            running[side] = stack.enter_context(process)
        take_turns(list(running.values()))
        for side, process in running.items():
            if process.wait():
                errors = Path(name, side, "errors").read_text()
                raise SystemExit(f"{errors[-3000:]}\n{table} failed in {checkouts[side]}.")
            found[side] = times_in(table, read(Path(name, side, f"{table}.csv")))
    return found


def take_turns(running: list[subprocess.Popen[str]]) -> None:
    """Let each process make a row, and again in reverse order, until all are at their end."""
    while running:
        for process in list(running):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            if not process.stdout.readline():
                running.remove(process)
        running.reverse()


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, marked if something in it was changed since."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def measure(options: argparse.Namespace, path: Path) -> None:
    """Make all tables in both checkouts, again and again, and add their times to the CSV file."""
    checkouts = {side: getattr(options, side).resolve() for side in SIDES}
    for checkout in checkouts.values():
        kernels = checkout / "src" / "drago" / "kernels"
        if list(kernels.glob("*.cpp")) and not list(kernels.glob("_*.so")):
            raise SystemExit(
                f"the kernels of {checkout} are not built: run `pip install --editable {checkout}` "
                "(which checkout this environment imports does not matter here)."
            )
    commits = {side: commit_of(checkout) for side, checkout in checkouts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = read(path) if options.resume and path.exists() else []
    caches = path.with_suffix(".kernels")
    if not measured:
        shutil.rmtree(caches, ignore_errors=True)
    if any(row["commit"] != commits[row["side"]] for row in measured):
        raise SystemExit(f"--resume: {path} has times of other commits than {commits}.")
    done = {(row["run"], row["table"]) for row in measured}
    jobs = itertools.product(map(str, range(options.runs + 1)), options.tables)
    left = [job for job in jobs if job not in done]
    latest: dict[str, float] = {}
    for k, (run, table) in enumerate(left, 1):
        began = time.perf_counter()
        # Who is first in a run is second in the next.
        order = SIDES if int(run) % 2 else SIDES[::-1]
        found = make_table(table, {side: checkouts[side] for side in order}, caches)
        for side, rows in found.items():
            measured += [{"run": run, "side": side, "commit": commits[side]} | row for row in rows]
        write(path, measured)
        latest[table] = time.perf_counter() - began
        usual = statistics.mean(latest.values())
        rest = sum(latest.get(name, usual) for _, name in left[k:]) / 60
        what = f"{k}/{len(left)} {table}, run {run}: {latest[table]:.0f} s"
        print(f"{what}; about {rest:.0f} min left", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------ report


@dataclass(frozen=True)
class Comparison:
    """Medians, and the geometric mean of new by old over the pairs, with its interval."""

    old: float
    new: float
    pairs: int
    ratio: float
    low: float
    high: float

    @property
    def is_slower(self) -> bool:
        return self.low > LIMIT or self.old < self.new == math.inf


def compare(old: dict[str, float], new: dict[str, float]) -> Comparison:
    """Two times, by run; the runs in which both are finite are the pairs."""
    from scipy.stats import t

    medians = statistics.median(old.values()), statistics.median(new.values())
    both = [(old[run], new[run]) for run in old if run in new]
    logs = [math.log(b / a) for a, b in both if max(a, b) < math.inf]
    mean = statistics.mean(logs) if logs else math.nan
    if len(logs) < 2:
        return Comparison(*medians, len(logs), math.exp(mean), 0.0, math.inf)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = error * float(t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1))
    ratios = (math.exp(mean + x) for x in (0.0, -reach, reach))
    return Comparison(*medians, len(logs), *ratios)


def report(measured: Measured, tables: list[str]) -> bool:
    """Print what was measured; whether anything got slower."""
    counted = [row for row in measured if row["run"] != "0" and row["table"] in tables]
    times: dict[tuple[str, str, str], dict[str, dict[str, float]]] = {}
    for row in counted:
        both = times.setdefault((row["table"], row["row"], row["time"]), {"old": {}, "new": {}})
        both[row["side"]][row["run"]] = float(row["value"])
    for side in SIDES:
        print(f"{side}:", *{row["commit"] for row in counted if row["side"] == side})
    shared = {key: compare(**both) for key, both in times.items() if all(both.values())}
    columns = {"table": "11s", "time": "14s", "old": "9.4g", "new": "9.4g", "pairs": "5d"}
    columns |= dict.fromkeys(("ratio", "low", "high"), "6.3f") | {"mark": "6s", "row": "40s"}
    lines = Table(columns)
    for (table, name, column), one in shared.items():
        if min(one.old, one.new) < math.inf:
            mark = "slower" if one.is_slower else ""
            lines.add({"table": table, "row": name, "time": column, "mark": mark} | vars(one))
    for key in (key for key in times if key not in shared):
        print(f"only in {'old' if times[key]['old'] else 'new'}:", *key)
    print("\nby table: geometric mean of all ratios, and how many times are slower\n")
    summary = Table({"table": "11s", "times": "5d", "ratio": "6.3f", "slower": "6d"})
    for table in dict.fromkeys(key[0] for key in shared):
        ones = [one for key, one in shared.items() if key[0] == table and one.pairs]
        ratio = statistics.geometric_mean(one.ratio for one in ones) if ones else None
        slower = sum(one.is_slower for key, one in shared.items() if key[0] == table)
        summary.add({"table": table, "times": len(ones), "ratio": ratio, "slower": slower})
    return any(one.is_slower for one in shared.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", nargs="?", type=Path, metavar="OLD")
    parser.add_argument("new", nargs="?", type=Path, metavar="NEW")
    parser.add_argument("--runs", type=int, default=7, help="of each, that count; 7 unless told")
    parser.add_argument("--tables", nargs="+", choices=JOBS, default=list(JOBS), metavar="TABLE")
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/results/compare.csv"))
    parser.add_argument("--resume", action="store_true", help="only what the CSV file lacks")
    parser.add_argument("--report", action="store_true", help="read the CSV file, measure nothing")
    options = parser.parse_args()
    if not options.report:
        if options.new is None:
            parser.error("two checkouts to measure, or --report")
        measure(options, options.csv.resolve())
    return int(report(read(options.csv), options.tables))


if __name__ == "__main__":
    sys.exit(main())
