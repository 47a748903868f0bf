"""Every solver on a grid of problems: time and passes to a certified relative gap.

The data: the paper's and scikit-learn's sets, drawn ones with 1e3 to 1e6 rows and 5 to 500
features, well and ill conditioned, and sparse ones. On each come a few of the sets, divergences,
shift costs and values of l2_reg, with an intercept or without, so that over the whole grid each
meets each of the others.

The fast methods solve each problem anew for each tolerance, in turn, and the best of three rounds
counts (of more where they are short, of fewer where they are long); only a certified answer does.
The baselines, where `drago.solve` knows them, solve once to the last tolerance and their
certificates on the way tell when they came below the others. One thread, one process, compilation
left out.

    DRAGO_DATA_DIR=... python benchmarks/bench_solvers.py [--csv FILE] [--resume] [--no-baselines]
    python benchmarks/bench_solvers.py --report [--rule] [--csv FILE]
    python benchmarks/bench_solvers.py --unseen --no-baselines --csv FILE

`--unseen` poses problems on data sets that the rule of auto was not fitted on: the real ones of
`suite.py`, more features than rows, sparse ones like texts, and drawn ones of other shapes.

The first writes the CSV file, a row a problem and method, and draws performance profiles beside
it. `--report` measures nothing: it reads the file and prints who was how fast how often; with
`--rule`, auto is given the times of the method that it takes.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench_drago import DATA, DRAGO, certified, solve  # first: it sets the number of threads
from tables import Table

import drago
from drago.certificate.cost import n_unknowns
from drago.datasets import Dataset, load, make_synthetic
from drago.solvers.choose import choose

TOLERANCES = ("1e-3", "1e-5", "1e-7")

FAST: dict[str, Any] = {
    "lbfgs metric": drago.LBFGS(metric="auto", progressive=True, memory=40),
    "newton": drago.Newton(),
    "drago": DRAGO,
    "lbfgs": drago.LBFGS(metric="euclidean", progressive=False),
    "auto": "auto",
}
BASELINES = ("gd", "agog", "sgd", "lsvrg", "prospect")

# A fast method is run three times, more often while that took less than SHORT seconds in all, no
# more once it took LONG, or SHORT and FAR times what the best one takes.
ROUNDS, MOST_ROUNDS = 3, 10
SHORT, LONG, FAR = 0.3, 3.0, 3.0
# A solve may take --patience times the best one's time, within these limits in seconds.
FAST_LIMITS = (0.5, 60.0)
BASELINE_LIMITS = (0.3, 20.0)
# Unknowns beyond which a single Newton step takes seconds, and minutes soon.
MOST_UNKNOWNS = 1500


# ---------------------------------------------------------------------------------- problems

# Thin and thick tails take turns.
SETS: list[tuple[str, Any, str]] = [
    ("CVaR-0.05", drago.CVaR(0.05), "chi2"),
    ("extremile-2", drago.Extremile(2.0), "chi2"),
    ("CVaR-0.1", drago.CVaR(0.1), "kl"),
    ("chi2-ball-1", drago.Chi2Ball(1.0), "chi2"),
    ("CVaR-0.5", drago.CVaR(0.5), "chi2"),
    ("KL-ball-0.5", drago.KLBall(0.5), "kl"),
    ("CVaR-0.1", drago.CVaR(0.1), "chi2"),
    ("ESRM-1", drago.ESRM(1.0), "chi2"),
    ("CVaR-0.5", drago.CVaR(0.5), "kl"),
    ("extremile-2", drago.Extremile(2.0), "kl"),
    ("CVaR-0.05", drago.CVaR(0.05), "kl"),
]
SHIFT_COSTS = ("1/n", "0.01", "1e-4", "0.1", "1e-3")
L2_REGS = (1e-4, 1.0, 1e-2, 1e-5, 1e-3)
LOSSES = {"regression": "squared", "binary": "logistic", "multiclass": "multinomial"}


@dataclass(frozen=True)
class Source:
    """A data set, made when it is needed, and how many problems are posed on it."""

    name: str
    make: Callable[[], Dataset]
    count: int


@dataclass(frozen=True)
class Case:
    """A problem without its data."""

    data: str
    set: str
    uncertainty: Any
    divergence: str
    shift_cost: str
    l2_reg: float
    intercept: bool

    @property
    def name(self) -> str:
        settings = f"{self.set} {self.divergence} nu={self.shift_cost} mu={self.l2_reg:g}"
        return f"{self.data} {settings}{' intercept' if self.intercept else ''}"

    def pose(self, data: Dataset) -> drago.DROProblem:
        n = data.X.shape[0]
        return drago.DROProblem(
            data.X,
            data.y,
            loss=LOSSES[data.task],
            uncertainty=self.uncertainty,
            divergence=self.divergence,
            shift_cost=1.0 / n if self.shift_cost == "1/n" else float(self.shift_cost),
            l2_reg=self.l2_reg,
            fit_intercept=self.intercept,
        )


def drawn(task: str, n: float, d: int, count: int, condition: float = 1.0, **more: Any) -> Source:
    """A drawn data set, named by what it is."""
    name = f"{task}-{n:.0e}x{d}".replace("e+0", "e")
    name += f"-cond{condition:.0e}".replace("e+0", "e") if condition > 1 else ""
    name += "-sparse" if "density" in more else "-heavy" if "tail_heaviness" in more else ""
    make = partial(make_synthetic, int(n), d, task=task, condition_number=condition, **more)
    return Source(name, make, count)


def sources() -> list[Source]:
    """All data sets, from small to large within each kind."""
    embedded = ("iris", "wine", "diabetes", "breast_cancer", "digits")
    kept = [Source(name, partial(load, name, prepare="paper"), 6) for name in DATA]
    kept += [Source(name, partial(load, name, prepare="paper"), 5) for name in embedded]
    return [
        *kept,
        drawn("regression", 1e3, 5, 3),
        drawn("regression", 1e3, 500, 3, 1e3),
        drawn("binary", 1e4, 20, 4, 1e4),
        drawn("multiclass", 1e4, 100, 4),
        drawn("regression", 1e4, 500, 4, 1e3),
        drawn("binary", 3e4, 500, 3, 1e2),
        drawn("regression", 1e5, 20, 4, 1e3),
        drawn("regression", 1e5, 50, 4, tail_heaviness=0.3),
        drawn("binary", 1e5, 50, 4, 1e3),
        drawn("multiclass", 1e5, 20, 3, 1e2, n_classes=5),
        drawn("regression", 1e5, 200, 4, 1e4),
        drawn("binary", 1e5, 200, 3),
        drawn("regression", 1e6, 20, 4),
        drawn("regression", 1e6, 50, 3, 1e3),
        drawn("binary", 1e6, 50, 3, 1e2),
        drawn("regression", 2e4, 2000, 4, density=0.01),
        drawn("binary", 2e4, 2000, 4, 1e3, density=0.01),
        drawn("regression", 1e5, 10000, 3, 1e2, density=0.005),
        drawn("binary", 1e5, 10000, 3, density=0.005),
    ]


def of_suite(name: str) -> Dataset:
    """One of the real data sets of `suite.py`, its features standardised."""
    import numpy as np
    import suite

    data = suite.load(name)
    X = np.asarray(data.X, dtype=np.float64)
    X = (X - X.mean(0)) / X.std(0)
    task = "binary" if data.task == "classification" else "regression"
    return Dataset(name, task, np.ascontiguousarray(X), np.asarray(data.y, dtype=np.float64))


def unseen() -> list[Source]:
    """Data sets that the rule of auto was not fitted on.

    Others with fewer rows than features stood here once. A rule came from them, so that they could
    not judge it any more.
    """
    import suite

    more = partial(drawn, random_state=1)
    return [
        *(Source(name, partial(of_suite, name), 3) for name in suite.MAKERS),
        more("regression", 2e2, 1500, 3, random_state=2),
        more("binary", 6e2, 2500, 3, 1e3, random_state=2),
        more("multiclass", 3e2, 900, 3, n_classes=5, random_state=2),
        more("regression", 3e3, 30, 3, 1e2),
        more("regression", 2e3, 8, 3, tail_heaviness=0.5),
        more("binary", 5e3, 10, 3),
        more("multiclass", 3e3, 40, 3, n_classes=8),
        more("multiclass", 3e4, 60, 3, 10.0, n_classes=12),
        more("regression", 5e4, 100, 3),
        more("binary", 5e4, 100, 3, 1e2),
        more("regression", 3e5, 30, 3, 1e2),
        more("binary", 3e5, 30, 3),
        more("multiclass", 2e5, 10, 3, n_classes=4),
        more("binary", 3e3, 30000, 3, density=0.005, random_state=2),
        more("multiclass", 2e4, 5000, 3, density=0.005, n_classes=4),
        more("regression", 1e5, 100_000, 3, density=3e-4),
        more("binary", 1e5, 100_000, 3, density=3e-4),
    ]


def grid(kept: list[Source] | None = None) -> list[tuple[Source, list[Case]]]:
    """The problems, by data set; those that the rule was fitted on unless told otherwise.

    The lists of settings are gone through side by side; as their lengths have no common divisor,
    each entry of one meets each of the others.
    """
    found, k = [], 0
    for source in sources() if kept is None else kept:
        cases = []
        for _ in range(source.count):
            name, uncertainty, divergence = SETS[k % len(SETS)]
            cases.append(
                Case(
                    data=source.name,
                    set=name,
                    uncertainty=uncertainty,
                    divergence=divergence,
                    shift_cost=SHIFT_COSTS[k % len(SHIFT_COSTS)],
                    # Moved on by one each time round, to meet all the shift costs.
                    l2_reg=L2_REGS[(k + k // len(SHIFT_COSTS)) % len(L2_REGS)],
                    intercept=k % 3 == 0,
                )
            )
            k += 1
        found.append((source, cases))
    return found


QUICK = ("yacht", "concrete", "power", "wine", "breast_cancer", "regression-1e3x5")


def chosen(options: argparse.Namespace) -> list[tuple[Source, list[Case]]]:
    """The part of the grid that was asked for."""
    found = grid(unseen()) if options.unseen else grid()
    if options.quick:
        found = [(source, cases[:2]) for source, cases in found if source.name in QUICK]
    if options.only:
        found = [(source, [c for c in cases if options.only in c.name]) for source, cases in found]
    return [(source, cases) for source, cases in found if cases]


# ----------------------------------------------------------------------------------- methods


def known(name: str) -> bool:
    """Whether `drago.solve` has a solver of this name."""
    problem = drago.DROProblem([[1.0], [2.0], [-1.0]], [1.0, 0.0, 2.0], shift_cost=0.1)
    try:
        solve(problem, name, 0.1, 1.0)
    except ValueError:
        return False
    return True


def methods(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fast methods and the baselines that were asked for."""
    baselines = [] if options.no_baselines else list(filter(known, BASELINES))
    every = [*FAST, *baselines]
    names = options.methods.split(",") if options.methods else every
    unknown = [name for name in names if name not in every]
    if unknown:
        raise SystemExit(f"--methods: {', '.join(unknown)} not among {', '.join(every)}.")
    fast = {name: solver for name, solver in FAST.items() if name in names}
    return fast, {name: name for name in baselines if name in names}


@dataclass(frozen=True)
class Outcome:
    """What came of a solve; the status may be a reason why there was none."""

    status: str
    seconds: float | None = None
    passes: float | None = None
    message: str = ""

    @property
    def time(self) -> float:
        """Seconds to the certificate, infinite without one."""
        return self.seconds if self.status == "optimal" and self.seconds is not None else math.inf


def attempt(problem: drago.DROProblem, solver: Any, tol: str, limit: float) -> Outcome:
    if isinstance(solver, drago.Newton) and n_unknowns(problem) > MOST_UNKNOWNS:
        return Outcome(f"skipped: a step would factorise {n_unknowns(problem)} unknowns")
    try:
        result = solve(problem, solver, float(tol), limit)
    except ValueError as error:
        return Outcome(f"skipped: {error}")
    except ArithmeticError as error:
        return Outcome(f"error: {error}")
    message = result.message if solver == "auto" else ""
    return Outcome(str(result.status), result.time, result.n_passes, message)


def best_time(found: Iterable[Outcome]) -> float:
    return min((outcome.time for outcome in found), default=math.inf)


def allowed(best: float, patience: float, limits: tuple[float, float]) -> float:
    """Seconds that a solve may take, given the best one's."""
    return min(max(limits[0], patience * best), limits[1])


def in_turn(
    problem: drago.DROProblem, solvers: dict[str, Any], tol: str, patience: float
) -> dict[str, Outcome]:
    """The fastest of a few solves by each method; one without a certificate is not repeated."""
    best: dict[str, Outcome] = {}
    spent = dict.fromkeys(solvers, 0.0)
    left = list(solvers)

    def is_worth_more(name: str, enough: float) -> bool:
        far = best[name].time > FAR * best_time(best.values())
        return spent[name] < (SHORT if far else enough) and best[name].time < math.inf

    for rounds in range(1, MOST_ROUNDS + 1):
        for name in left:
            limit = allowed(best_time(best.values()), patience, FAST_LIMITS)
            began = time.perf_counter()
            outcome = attempt(problem, solvers[name], tol, limit)
            spent[name] += time.perf_counter() - began
            if name not in best or outcome.time < best[name].time:
                best[name] = outcome
        enough = LONG if rounds < ROUNDS else SHORT
        left = [name for name in left if is_worth_more(name, enough)]
        left = left[1:] + left[:1]  # to follow another one does not matter then
    return best


def run_fast(
    problem: drago.DROProblem, solvers: dict[str, Any], patience: float
) -> dict[str, dict[str, Outcome]]:
    """Outcomes by method and tolerance; who failed is not asked for more."""
    found: dict[str, dict[str, Outcome]] = {name: {} for name in solvers}
    left = dict(solvers)
    for tol in TOLERANCES:
        for name, outcome in in_turn(problem, left, tol, patience).items():
            found[name][tol] = outcome
            if outcome.time == math.inf:
                del left[name]
                skipped = outcome.status.startswith("skipped")
                rest = outcome.status if skipped else f"{outcome.status} at {tol}"
                for tighter in TOLERANCES[TOLERANCES.index(tol) + 1 :]:
                    found[name][tighter] = Outcome(rest)
    return found


def run_baseline(problem: drago.DROProblem, solver: Any, limit: float) -> dict[str, Outcome]:
    """Outcomes by tolerance, read off one solve."""
    try:
        result = solve(problem, solver, float(TOLERANCES[-1]), limit)
    except ValueError as error:
        return dict.fromkeys(TOLERANCES, Outcome(f"skipped: {error}"))
    except ArithmeticError as error:
        return dict.fromkeys(TOLERANCES, Outcome(f"error: {error}"))
    found = {tol: Outcome(str(result.status), result.time, result.n_passes) for tol in TOLERANCES}
    if certified(result):  # by the last certificate, if not by one on the way
        found = {tol: Outcome("optimal", result.time, result.n_passes) for tol in TOLERANCES}
    for record in reversed(result.history.records):
        for tol in TOLERANCES:
            if record.rel_gap <= float(tol):
                found[tol] = Outcome("optimal", record.time, record.n_passes)
    return found


# --------------------------------------------------------------------------------------- CSV

Rows = dict[tuple[str, str], dict[str, str]]


def read(path: Path) -> Rows:
    """The rows of a CSV file by problem and method; of several the last."""
    with path.open(newline="") as file:
        return {(row["problem"], row["method"]): row for row in csv.DictReader(file)}


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a CSV file; all of a problem at once, so that none is left half done."""
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)


def row_of(
    case: Case, problem: drago.DROProblem, method: str, found: dict[str, Outcome]
) -> dict[str, Any]:
    n, d = problem.n_samples, problem.n_features
    row: dict[str, Any] = {
        "problem": case.name,
        "data": case.data,
        "n": n,
        "d": d,
        "outputs": problem.n_outputs,
        "nnz_share": round(problem.X.nnz / (n * d), 6) if problem.is_sparse else 1.0,
        "loss": problem.loss.name,
        "set": case.set,
        "divergence": problem.divergence.name,
        "shift_cost": problem.shift_cost,
        "l2_reg": problem.l2_reg,
        "intercept": int(problem.fit_intercept),
        "method": method,
    }
    for tol, outcome in found.items():
        row[f"seconds_{tol}"] = outcome.seconds
        row[f"passes_{tol}"] = outcome.passes
        row[f"status_{tol}"] = outcome.status
    row["message"] = next((o.message for o in reversed(found.values()) if o.message), "")
    return row


def seconds(row: dict[str, str] | None, tol: str) -> float:
    """The time of a row to a certificate, infinite without one."""
    if row is None or row[f"status_{tol}"] != "optimal":
        return math.inf
    return float(row[f"seconds_{tol}"])


# ----------------------------------------------------------------------------------- measure


def measure(options: argparse.Namespace) -> None:
    """Solve what was chosen, with what was chosen, and add it to the CSV file."""
    path = Path(options.csv)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        path.unlink(missing_ok=True)
    done = read(path) if path.exists() else {}
    fast, baselines = methods(options)
    parts = chosen(options)
    began, count, k = time.perf_counter(), sum(len(cases) for _, cases in parts), 0
    for source, cases in parts:
        wanted = {*fast, *baselines}
        if all((case.name, name) in done for case in cases for name in wanted):
            k += len(cases)
            continue
        data = source.make()
        for case in cases:
            k += 1
            rows = list(rows_of(case, data, fast, baselines, done, options.patience))
            if rows:
                append(path, rows)
                times = ", ".join(f"{row['method']} {shown(row)}" for row in rows)
                elapsed = time.perf_counter() - began
                print(f"{elapsed:7.1f} s {k:3d}/{count} {case.name}: {times}", file=sys.stderr)
        del data


def rows_of(
    case: Case,
    data: Dataset,
    fast: dict[str, Any],
    baselines: dict[str, Any],
    done: Rows,
    patience: float,
) -> Iterator[dict[str, Any]]:
    """Rows of the methods that are not done yet."""
    fast = {name: solver for name, solver in fast.items() if (case.name, name) not in done}
    baselines = {
        name: solver for name, solver in baselines.items() if (case.name, name) not in done
    }
    problem, last = case.pose(data), TOLERANCES[-1]
    found = run_fast(problem, fast, patience)
    best = best_time(outcomes[last] for outcomes in found.values())
    best = min(best, *(seconds(done.get((case.name, name)), last) for name in FAST))
    for name, solver in baselines.items():
        found[name] = run_baseline(problem, solver, allowed(best, patience, BASELINE_LIMITS))
    for name, outcomes in found.items():
        yield row_of(case, problem, name, outcomes)


def shown(row: dict[str, Any]) -> str:
    status, taken = row["status_1e-5"], row["seconds_1e-5"]
    return f"{taken:.3g}" if status == "optimal" else status.split(":")[0]


# ------------------------------------------------------------------------------------ report


@dataclass(frozen=True)
class Ratios:
    """Times as multiples of the best one's, auto not counting as one of the best.

    Attributes
    ----------
    problems, methods : list of str
    values : dict
        For each method the ratios, problem by problem, infinite where it failed.
    winners : dict
        For each problem the best method, None where all failed.
    """

    problems: list[str]
    methods: list[str]
    values: dict[str, list[float]]
    winners: dict[str, str | None]


def ratios(rows: Rows, tol: str) -> Ratios:
    problems = list(dict.fromkeys(problem for problem, _ in rows))
    names = [name for name in [*FAST, *BASELINES] if any(name == method for _, method in rows)]
    rivals = [name for name in names if name != "auto"] or names
    values: dict[str, list[float]] = {name: [] for name in names}
    winners: dict[str, str | None] = {}
    for problem in problems:
        times = {name: seconds(rows.get((problem, name)), tol) for name in names}
        winner = min(rivals, key=times.__getitem__)
        best = times[winner]
        winners[problem] = winner if best < math.inf else None
        for name in names:
            failed = times[name] == math.inf
            values[name].append(math.inf if failed else times[name] / best)
    return Ratios(problems, names, values, winners)


def as_chosen(rows: Rows, problems: list[tuple[Source, list[Case]]]) -> Rows:
    """The rows with those of auto replaced by the rows of the method that it takes today.

    A rule can be judged so without measuring again, and without the noise between two runs of the
    same method. What is left out is the time of the choice itself.
    """
    out = {key: row for key, row in rows.items() if key[1] != "auto"}
    for source, cases in problems:
        cases = [case for case in cases if any(case.name == problem for problem, _ in rows)]
        data = source.make() if cases else None
        for case in cases:
            taken, _, why = choose(case.pose(data))
            name = taken.name
            if name == "lbfgs" and taken.metric != "euclidean":
                name = "lbfgs metric"
            out[case.name, "auto"] = rows[case.name, name] | {"method": "auto", "message": why}
    return out


def report(rows: Rows) -> None:
    """Print what a CSV file says."""
    for tol in TOLERANCES:
        print_shares(rows, tol)
    if any(method == "auto" for _, method in rows):
        for tol in TOLERANCES:
            print_auto(rows, tol)
    print_uncertified(rows)


def print_shares(rows: Rows, tol: str) -> None:
    found = ratios(rows, tol)
    print(f"\nto a certified {tol}, {len(found.problems)} problems: shares within so many times")
    print("the best time (auto aside), and how many were not certified or not tried\n")
    table = Table(
        {"method": "12s", "fastest": "7.0%"}
        | {f"{factor}x": "6.0%" for factor in (1.25, 2, 10)}
        | {"failed": "6d", "skipped": "7d"}
    )
    for name in found.methods:
        values = found.values[name]
        own = [row for (_, method), row in rows.items() if method == name]
        statuses = [row[f"status_{tol}"] for row in own]
        skipped = sum(status.startswith("skipped") for status in statuses)
        row: dict[str, Any] = {"method": name, "fastest": share(values, 1.0)}
        row |= {f"{factor}x": share(values, factor) for factor in (1.25, 2, 10)}
        optimal = sum(status == "optimal" for status in statuses)
        table.add(row | {"failed": len(statuses) - optimal - skipped, "skipped": skipped})


def share(values: list[float], factor: float) -> float:
    return sum(value <= factor for value in values) / len(values)


def print_auto(rows: Rows, tol: str) -> None:
    found = ratios(rows, tol)
    every = list(zip(found.values["auto"], found.problems))
    # Where no method has a certificate there is nothing to choose well.
    pairs = [(value, name) for value, name in every if found.winners[name] or value < math.inf]
    values = [value for value, _ in pairs]
    print(f"\nauto to {tol}: {share(values, 1.25):.0%} of {len(values)} problems within 1.25 times")
    print(f"the best of the others; worst ratio {max(values):.2f}; certified by none:", end=" ")
    print(f"{len(every) - len(pairs)}; above 1.25:\n")
    table = Table({"ratio": "6.2f", "auto_ms": "9.2f", "best": "12s", "problem": "40s"})
    for value, problem in sorted(pairs, reverse=True):
        if value > 1.25:
            row = rows[problem, "auto"]
            taken = 1e3 * seconds(row, tol) if value < math.inf else row[f"status_{tol}"]
            best = found.winners[problem]
            table.add({"ratio": value, "auto_ms": taken, "best": best, "problem": problem})


def print_uncertified(rows: Rows) -> None:
    """Each solve by a fast method that ended without a certificate."""
    print("\nnot certified by fast methods:\n")
    table = Table(
        {"method": "12s", "tol": "4s", "status": "10s", "seconds": "7s", "problem": "40s"}
    )
    for (problem, method), row in rows.items():
        bad = [tol for tol in TOLERANCES if row[f"status_{tol}"] != "optimal"]
        if method in FAST and bad and not row[f"status_{bad[0]}"].startswith("skipped"):
            status, taken = row[f"status_{bad[0]}"].split(":")[0], row[f"seconds_{bad[0]}"]
            row = {"method": method, "tol": bad[0], "status": status, "problem": problem}
            table.add(row | {"seconds": f"{float(taken):.2f}" if taken else "-"})


# -------------------------------------------------------------------------------------- plot

# Okabe and Ito's colours; the baselines are dashed, auto is black and thick.
STYLES: dict[str, dict[str, Any]] = {
    "auto": {"color": "#000000", "lw": 3.5, "zorder": 1.5},
    "lbfgs metric": {"color": "#0072B2"},
    "newton": {"color": "#D55E00"},
    "drago": {"color": "#009E73"},
    "lbfgs": {"color": "#CC79A7"},
    "gd": {"color": "#E69F00", "ls": "--"},
    "agog": {"color": "#56B4E9", "ls": "--"},
    "sgd": {"color": "#666666", "ls": "--"},
    "lsvrg": {"color": "#D55E00", "ls": "--"},
    "prospect": {"color": "#009E73", "ls": "--"},
}
LARGEST = 100.0


def plot(rows: Rows, path: Path) -> None:
    """Performance profiles (Dolan and More, 2002), a panel a tolerance."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(TOLERANCES), figsize=(13, 4.6), sharey=True, layout="constrained"
    )
    for axis, tol in zip(axes, TOLERANCES):
        found = ratios(rows, tol)
        for name in found.methods:
            x, y = profile(found.values[name])
            axis.step(x, y, where="post", label=name, **{"lw": 1.8} | STYLES[name])
        axis.set_xscale("log")
        axis.set_xlim(1.0, LARGEST)
        axis.set_ylim(0.0, 1.02)
        axis.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axis.minorticks_off()
        axis.grid(color="0.9")
        axis.set_title(f"certified relative gap {tol}")
        axis.set_xlabel("time / that of the best method (auto aside)")
    axes[0].set_ylabel(f"share of {len(found.problems)} problems solved")
    axes[0].yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=11
    )
    figure.savefig(path, dpi=150)


def profile(values: list[float]) -> tuple[list[float], list[float]]:
    """Where the share of ratios below steps up, from 1 on, and the share there."""
    finite = sorted(max(value, 1.0) for value in values if value <= LARGEST)
    x = [1.0, *finite, LARGEST]
    return x, [share(values, at) for at in x]


# -------------------------------------------------------------------------------------- main


def import_all() -> None:
    """Solve something small by each method: what they import first is none of their time."""
    import numpy as np

    problem = drago.DROProblem(np.eye(8), np.arange(8.0), uncertainty=drago.CVaR(0.5))
    for method in (*FAST.values(), *BASELINES):
        drago.solve(problem, method, tol=1e-2, max_iter=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", metavar="FILE", default="benchmarks/results/solvers.csv")
    parser.add_argument("--plot", metavar="FILE", help="of the profiles; else beside the CSV file")
    parser.add_argument("--report", action="store_true", help="read the CSV file, measure nothing")
    parser.add_argument(
        "--rule", action="store_true", help="auto by the times of the method that it takes"
    )
    parser.add_argument("--resume", action="store_true", help="only what the CSV file lacks")
    parser.add_argument("--methods", metavar="A,B", help="only these")
    parser.add_argument("--only", metavar="TEXT", help="problems whose name contains it")
    parser.add_argument("--quick", action="store_true", help="a dozen small problems")
    parser.add_argument(
        "--unseen", action="store_true", help="data sets that the rule was not fitted on"
    )
    parser.add_argument(
        "--patience", type=float, default=20.0, help="times the best time that a solve may take"
    )
    parser.add_argument("--no-baselines", action="store_true", help="the fast methods alone")
    options = parser.parse_args()
    if not options.report:
        import_all()
        measure(options)
    rows = read(Path(options.csv))
    if options.rule:
        rows = as_chosen(rows, chosen(options))
    report(rows)
    if options.plot or not options.report:
        plot(rows, Path(options.plot or Path(options.csv).with_suffix(".png")))


if __name__ == "__main__":
    sys.exit(main())
