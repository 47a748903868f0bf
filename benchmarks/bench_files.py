"""Rows in files: the speed of a visit, of a solve, and the memory of both.

    python benchmarks/bench_files.py visit solve memory --folder /var/tmp --csv FOLDER

visit    a visit to all rows (losses, weights and gradient) beside ``cat FILE > /dev/null`` and
         plain reads of the same file into one buffer, in turn; medians, warm page cache where the
         file fits it. `speed` is the time of `cat` over that of the visit; `cpu` the seconds of
         processors that each of the two took, by which they can be compared on a busy machine
solve    a certified solve with the rows in files and in memory, in turn
memory   a solve in a process of its own under RLIMIT_DATA, of which RssAnon + RssShmem is sampled;
         `readings` are the bytes of features that were read, by all of them

The files are made here, in float32; removed unless --folder is given, and used again then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from tables import Table, folder_for, make_tables, medians_in_turn, parser_of

import drago
from drago.files.blocks import Blocks, Column, Stamp

PART = 128 << 20
SAMPLED = 0.02


def make_blocks(folder: str, n: int, d: int, limit: int | None) -> Blocks:
    """Rows of a regression with heavy tails; made where they are not there yet."""
    paths = {name: os.path.join(folder, f"{name}_{n}_{d}.bin") for name in ("X", "y")}
    step = max(1, PART // (4 * d))
    ends = (*range(step, n, step), n)
    if not all(map(os.path.exists, paths.values())):
        truth = np.random.default_rng(1).standard_normal(d).astype(np.float32) / np.sqrt(d)
        with open(paths["X"], "wb") as X_file, open(paths["y"], "wb") as y_file:
            for k, (a, b) in enumerate(zip((0, *ends), ends)):
                rng = np.random.default_rng([2, k])
                X = rng.standard_normal((b - a, d), dtype=np.float32)
                y = (X @ truth).astype(np.float64) + rng.standard_t(4, b - a)
                X.tofile(X_file)
                y.tofile(y_file)
    kinds = {"X": (np.float32, (n, d)), "y": (np.float64, (n,))}
    columns = {
        name: Column(paths[name], np.dtype(dtype), shape, 0, Stamp.of(paths[name]))
        for name, (dtype, shape) in kinds.items()
    }
    return Blocks(n, d, columns, ends, memory_limit=limit)


def problem_of(X: Any, y: Any = None) -> drago.DROProblem:
    return drago.DROProblem(X, y, uncertainty=drago.CVaR(0.1), shift_cost=0.05, l2_reg=1e-3)


def shapes(options: argparse.Namespace) -> list[tuple[int, int]]:
    if options.rows is not None:
        return [(options.rows, options.features)]
    return (
        [(200_000, 100), (2_000_000, 10)] if options.quick else [(4_000_000, 100), (20_000_000, 10)]
    )


# ------------------------------------------------------------------------------------- visit


def plain_reads(path: str) -> None:
    """The whole file into one buffer, again and again."""
    buffer = memoryview(bytearray(PART))
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def visit(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A visit to all rows beside plain readings of their file."""
    table = Table(
        {"rows": "9d", "features": "8d", "GB": "6.2f"}
        | dict.fromkeys(("cat_s", "reads_s", "visit_s", "evaluate_s"), "10.3f")
        | {"cat_cpu": "7.2f", "visit_cpu": "9.2f", "speed": "6.2f"}
    )
    for n, d in shapes(options):
        blocks = make_blocks(options.folder, n, d, options.limit)
        problem = problem_of(blocks)
        spent: dict[str, list[float]] = {"cat": [], "visit": []}
        path = blocks.columns["X"].path  # type: ignore[union-attr]
        oracle, b = problem.dual_oracle(), np.zeros(1)
        rng = np.random.default_rng(3)
        w = rng.standard_normal((d, 1)) / np.sqrt(d)
        points = [w, w + 0.01 * rng.standard_normal((d, 1)) / np.sqrt(d)]
        problem.visit(w, b, oracle)

        def go(points: Any = points, problem: Any = problem, oracle: Any = oracle) -> None:
            points.reverse()
            problem.visit(points[0], np.zeros(1), oracle)

        def counted(name: str, work: Any, spent: Any = spent) -> None:
            before = processors()
            work()
            spent[name].append(processors() - before)

        def cat(path: str = path) -> None:
            subprocess.run(f"cat {path} > /dev/null", shell=True, check=True)

        what = {
            "cat": lambda counted=counted, cat=cat: counted("cat", cat),
            "reads": lambda path=path: plain_reads(path),
            "visit": lambda counted=counted, go=go: counted("visit", go),
            "evaluate": lambda problem=problem, w=w, b=b: problem.evaluate(w, b),
        }
        found = medians_in_turn(what, options.runs)
        table.add(
            {"rows": n, "features": d, "GB": 4e-9 * n * d, "speed": found["cat"] / found["visit"]}
            | {f"{key}_s": value for key, value in found.items()}
            | {f"{key}_cpu": float(np.median(each)) for key, each in spent.items()}
        )
    return table.rows


def processors() -> float:
    """Seconds of processors that this process and its children have taken."""
    times = os.times()
    return sum(times[:4])


# ------------------------------------------------------------------------------------- solve


def solve(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Certified solves with the rows in files and in memory."""
    table = Table(
        {"rows": "9d", "features": "8d", "tol": "7.0e"}
        | dict.fromkeys(("memory_s", "files_s"), "8.2f")
        | {"ratio": "6.2f", "readings": "8.2f", "difference": "10.1e"}
    )
    for n, d in shapes(options):
        blocks = make_blocks(options.folder, n, d, options.limit)
        X, y = (blocks.columns[name].read(0, n) for name in "Xy")
        results: dict[str, Any] = {}

        def go(name: str, make: Any, results: Any = results) -> None:
            problem = make()
            results[name] = drago.solve(problem, tol=options.tol)
            results[f"{name} rows"] = problem.rows
            assert results[name].status == "optimal", results[name].message

        what = {
            "memory": lambda X=X, y=y, go=go: go("memory", lambda: problem_of(X, y)),
            "files": lambda blocks=blocks, go=go: go("files", lambda: problem_of(blocks)),
        }
        found = medians_in_turn(what, options.runs)
        here, there = results["memory"].primal, results["files"].primal
        table.add(
            {
                "rows": n,
                "features": d,
                "tol": options.tol,
                "ratio": found["files"] / found["memory"],
            }
            | {f"{key}_s": value for key, value in found.items()}
            | {"readings": results["files rows"].readings, "difference": abs(here - there) / here}
        )
    return table.rows


# ------------------------------------------------------------------------------------ memory


def child(options: argparse.Namespace) -> None:
    """One solve, told in a line of JSON."""
    if options.hard_limit:
        resource.setrlimit(resource.RLIMIT_DATA, (options.hard_limit, options.hard_limit))
    blocks = make_blocks(options.folder, options.rows, options.features, options.limit)
    began = time.perf_counter()
    problem = problem_of(blocks)
    result = drago.solve(problem, tol=options.tol)
    rows: Any = problem.rows
    told = {
        "status": str(result.status),
        "rel_gap": result.rel_gap,
        "seconds": time.perf_counter() - began,
        "readings": rows.readings,
        "spilled_GB": rows.memory.spilled * 1e-9,
    }
    print(json.dumps(told))


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Peaks of memory of a process that solves, under a limit."""
    table = Table(
        {"rows": "9d", "features": "8d", "GB": "6.2f", "limit_GB": "8.2f", "hard_GB": "7.2f"}
        | {"peak_GB": "7.2f", "spilled_GB": "10.2f", "seconds": "7.1f", "readings": "8.2f"}
        | {"rel_gap": "8.1e", "status": "8s"}
    )
    limit = options.limit or 2 << 30
    for n, d in shapes(options):
        make_blocks(options.folder, n, d, limit)
        command = [sys.executable, __file__, "memory", "--child", "--folder", options.folder]
        command += ["--rows", str(n), "--features", str(d), "--limit", str(limit)]
        command += ["--hard-limit", str(options.hard_limit), "--tol", str(options.tol)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(SAMPLED)
        assert process.stdout is not None
        told = process.stdout.read()
        found = json.loads(told) if process.returncode == 0 else {"status": "failed"}
        table.add(
            {"rows": n, "features": d, "GB": 4e-9 * n * d, "limit_GB": limit * 1e-9}
            | {"hard_GB": options.hard_limit * 1e-9, "peak_GB": peak * 1e-9, **found}
        )
    return table.rows


def resident(pid: int) -> int:
    """RssAnon + RssShmem of a process, in bytes."""
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return 0
    names = ("RssAnon", "RssShmem")
    return sum(1024 * int(lines[name].split()[0]) for name in names if name in lines)


TABLES = {"visit": visit, "solve": solve, "memory": memory}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--folder", help="where the files are made; kept where it is given")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3, help="of each, for the median")
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--limit", type=int, help="memory_limit in bytes")
    parser.add_argument("--hard-limit", type=int, default=3 << 30, help="RLIMIT_DATA; 0 for none")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    with folder_for(options):
        make_tables(TABLES, options)


if __name__ == "__main__":
    main()
