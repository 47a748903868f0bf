"""Rows on a Dask cluster on this machine: what a solve costs beside the same rows in memory.

    python benchmarks/bench_cluster.py cost methods driver constants --rows 4000000 --features 50

cost       a certified solve on two single-threaded workers, and in memory with two threads, in
           turn: seconds of both, rounds, what the rounds may cost at 20 ms each, the rounds of an
           iteration (certificates and set-up apart), and the bytes that came to the driver in a
           pass, as a share of X; and the seconds of processors, by which they compare on a machine
           that others use meanwhile
passes     every loss and set, by threads of this process that run the tasks of a cluster, and in
           memory: iterations, passes over X and seconds of processors, of a first solve (with the
           search for the trivial model) and of another one; rounds of both, and rounds of an
           iteration (certificates and set-up apart)
methods    L-BFGS in a metric and DRAGO on the cluster: seconds, passes and rounds
driver     the memory of the driver after a solve, for a quarter of the rows and for all of them,
           in processes of their own
constants  what `cluster_model.py` takes: seconds of a pass and of a vector per row, a worker's and
           the scheduler's time of a task, the latency of a round; for 1, 2 and 4 workers

Rows are made on the workers, in blocks of 64 MiB. Times are medians; on a machine that others use
meanwhile only those that were taken in turn compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from typing import Any

import numpy as np

import drago
from drago.loop.loop import Loop

BLOCK = 64 << 20
LATENCY = 0.02


def block(k: int, n: int, d: int, loss: str) -> np.ndarray:
    """The rows of a block, the target last."""
    rng = np.random.default_rng([2, k])
    truth = np.random.default_rng(1).standard_normal(d) / np.sqrt(d)
    X = rng.standard_normal((n, d)) * (1.0 + np.arange(d) / d)
    score = X @ truth
    y = score + rng.standard_t(4, n)
    if loss == "logistic":
        y = (score + rng.logistic(size=n) > 0).astype(float)
    elif loss == "multinomial":
        y = np.digitize(score + rng.logistic(size=n), [-1.0, 1.0]).astype(float)
    return np.column_stack([X, y])


def features(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows[:, :-1])


def target(rows: np.ndarray) -> np.ndarray:
    return rows[:, -1].copy()


def collections(n: int, d: int, loss: str) -> tuple[Any, Any]:
    """X and y, made where they are needed."""
    import dask.array as da
    from dask import delayed

    size = BLOCK // (8 * (d + 1))
    sizes = [min(size, n - a) for a in range(0, n, size)]
    rows = [delayed(block)(k, count, d, loss) for k, count in enumerate(sizes)]
    X = [da.from_delayed(delayed(features)(b), (m, d), float) for b, m in zip(rows, sizes)]
    y = [da.from_delayed(delayed(target)(b), (m,), float) for b, m in zip(rows, sizes)]
    return da.concatenate(X), da.concatenate(y)


def in_memory(n: int, d: int, loss: str) -> tuple[np.ndarray, np.ndarray]:
    size = BLOCK // (8 * (d + 1))
    X, y = np.empty((n, d)), np.empty(n)
    for k, a in enumerate(range(0, n, size)):
        found = block(k, min(size, n - a), d, loss)
        X[a : a + size], y[a : a + size] = found[:, :-1], found[:, -1]
    return X, y


def terms(loss: str) -> dict[str, Any]:
    return {
        "loss": loss,
        "uncertainty": drago.CVaR(0.1),
        "shift_cost": 0.05,
        "l2_reg": 1e-3,
        "fit_intercept": True,
    }


def sets() -> dict[str, dict[str, Any]]:
    """Sets and divergences, by a name."""
    return {
        "CVaR": {"uncertainty": drago.CVaR(0.1)},
        "CVaR, KL": {"uncertainty": drago.CVaR(0.1), "divergence": "kl"},
        "mean": {"uncertainty": drago.CVaR(1.0)},
        "simplex": {"uncertainty": drago.Simplex(), "shift_cost": 1.0},
        "simplex, KL": {"uncertainty": drago.Simplex(), "shift_cost": 1.0, "divergence": "kl"},
        "chi2 ball": {"uncertainty": drago.Chi2Ball(1.0)},
        "KL ball": {"uncertainty": drago.KLBall(0.5)},
        "ESRM": {"uncertainty": drago.ESRM(1.0)},
        "ESRM, KL": {"uncertainty": drago.ESRM(1.0), "divergence": "kl"},
    }


def passes(given: argparse.Namespace) -> None:
    n, d = given.rows, given.features
    print("loss, set: iterations, passes, seconds of processors in memory (first, next) | the same")
    print("by tasks, and rounds (first, next), rounds an iteration", flush=True)
    for loss in given.losses.split(","):
        X, y = collections(n, d, loss)
        here = in_memory(n, d, loss)
        for name, more in sets().items():
            if given.sets and name not in given.sets.split(";"):
                continue
            settings = terms(loss) | more
            told = []
            for problem in (
                drago.DROProblem(*here, **settings),
                drago.DROProblem(X, y, **settings),
            ):
                found = []
                for _ in range(2):
                    used = time.process_time()
                    with counted(problem.rows) as rounds:
                        result = drago.solve(problem, tol=given.tol, n_threads=2)
                    found.append((result, time.process_time() - used))
                (first, cold), (second, warm) = found
                line = f"{second.n_iter:3d} {second.n_passes:5.1f} {cold:6.2f} {warm:6.2f}"
                if told:
                    each = rounds["rounds"] / max(second.n_iter, 1)
                    line += f" {first.n_rounds:4d} {second.n_rounds:3d} {each:4.1f}"
                told.append(line)
                assert second.status == "optimal", (loss, name, second.message)
            print(f"{loss + ', ' + name:24s} {told[0]} | {told[1]}", flush=True)


@contextmanager
def cluster_of(n_workers: int) -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def counted(rows: Any) -> Any:
    """Rounds of iterations: those that are not between two looks of the loop."""
    found, last, observe = {"rounds": 0}, [0], Loop.observe

    def watching(self: Any, iterate: Any) -> None:
        if not self.quiet:
            found["rounds"] += rows.n_rounds - last[0] if iterate.n_iter else 0
        try:
            observe(self, iterate)
        finally:
            if not self.quiet:
                last[0] = rows.n_rounds

    Loop.observe = watching  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Loop.observe = observe  # type: ignore[method-assign]


def processors(client: Any) -> float:
    """Seconds of processors that the driver, the scheduler in it and the workers have used."""
    return time.process_time() + sum(client.run(time.process_time).values())


def cost(given: argparse.Namespace) -> None:
    n, d = given.rows, given.features
    for loss in given.losses.split(","):
        with cluster_of(2) as client:
            remote = drago.DROProblem(*collections(n, d, loss), **terms(loss))
            memory = drago.DROProblem(*in_memory(n, d, loss), **terms(loss))
            times: dict[str, list[float]] = {"memory": [], "cluster": []}
            cpu: dict[str, list[float]] = {"memory": [], "cluster": []}
            for _ in range(given.repeats + 1):
                began, used = time.perf_counter(), time.process_time()
                here = drago.solve(memory, tol=given.tol, n_threads=2)
                times["memory"].append(time.perf_counter() - began)
                cpu["memory"].append(time.process_time() - used)
                before = remote.rows.engine.received
                with counted(remote.rows) as rounds:
                    began, used = time.perf_counter(), processors(client)
                    there = drago.solve(remote, tol=given.tol)
                    times["cluster"].append(time.perf_counter() - began)
                    cpu["cluster"].append(processors(client) - used)
                received = remote.rows.engine.received - before
            first, second = (statistics.median(each[1:]) for each in times.values())
            allowed = 1.5 * first + LATENCY * there.n_rounds
            gap = drago.certify(memory, there.coef, there.intercept).rel_gap
            print(
                f"{loss}: {n} x {d}, tol {given.tol:g}: in memory {first:.2f} s "
                f"({here.n_iter} iterations, {here.n_passes:.1f} passes), two workers "
                f"{second:.2f} s ({there.n_iter} iterations, {there.n_passes:.1f} passes, "
                f"{there.n_rounds} rounds); allowed {allowed:.2f} s; certified in memory "
                f"{gap:.1e}; {rounds['rounds'] / max(there.n_iter, 1):.1f} rounds an iteration; "
                f"to the driver {received / 1e6:.1f} MB, "
                f"{100 * received / there.n_passes / (8 * n * d):.3f}% of X a pass",
                flush=True,
            )
            for name, values in times.items():
                print(f"   {name}: s", *(f"{value:.2f}" for value in values), end="; of processors")
                print("", *(f"{value:.2f}" for value in cpu[name]), "(the first apart)", flush=True)


def methods(given: argparse.Namespace) -> None:
    """When DRAGO pays on a cluster: seconds and rounds of both methods, in turn."""
    n, d = given.rows, given.features
    for loss in given.losses.split(","):
        with cluster_of(2):
            problem = drago.DROProblem(*collections(n, d, loss), **terms(loss))
            for method in (drago.LBFGS(metric="auto", progressive=True), drago.Drago()):
                began = time.perf_counter()
                result = drago.solve(problem, method, tol=given.tol)
                print(
                    f"{loss}: {n} x {d}, {result.solver}: {time.perf_counter() - began:.2f} s, "
                    f"{result.n_iter} iterations, {result.n_passes:.1f} passes, "
                    f"{result.n_rounds} rounds, {result.status}",
                    flush=True,
                )


def driver(given: argparse.Namespace) -> None:
    for n in (given.rows // 4, given.rows):
        told = subprocess.run(
            [sys.executable, __file__, "one", "--rows", str(n), "--features", str(given.features)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        print(f"driver: {n} x {given.features}:", told.strip().splitlines()[-1], flush=True)


def peak() -> float:
    """KiB of memory that this process has had at most; what it was started from does not count."""
    with open("/proc/self/status") as file:
        return float(next(line for line in file if line.startswith("VmHWM")).split()[1])


def one(given: argparse.Namespace) -> None:
    with cluster_of(2):
        problem = drago.DROProblem(
            *collections(given.rows, given.features, "squared"), **terms("squared")
        )
        before = peak()
        drago.solve(problem, tol=1e-4)
        after = peak()
        print(f"{before / 1024:.0f} MiB before the solve, {after / 1024:.0f} MiB at its peak")


def constants(given: argparse.Namespace) -> None:
    """Per row and worker: a pass, and a pass over vectors; per task and per round."""
    from drago.rows.cluster.open import RULE

    n, d = given.rows // 4, given.features
    for n_workers in (1, 2, 4):
        with cluster_of(n_workers):
            problem = drago.DROProblem(*collections(n, d, "squared"), **terms("squared"))
            rows = problem.rows
            w, b = np.random.default_rng(0).normal(size=(d, 1)), np.zeros(1)
            found: dict[str, list[float]] = {"round": [], "vector": [], "pass": []}
            for k in range(8):
                began = time.perf_counter()
                rows._each("count", (rows.p, float(k)), {})
                found["vector"].append(time.perf_counter() - began)
                began = time.perf_counter()
                rows.evaluate(problem.loss, w + k, b)
                found["pass"].append(time.perf_counter() - began)
                began = time.perf_counter()
                rows.told(nothing, rows.p, k)
                found["round"].append(time.perf_counter() - began)
            latency, vector, whole = (statistics.median(each[1:]) for each in found.values())
            print(
                json.dumps(
                    {
                        "workers": n_workers,
                        "rows": n,
                        "features": d,
                        "tasks": len(rows.layout.bundles),
                        "latency": round(latency, 4),
                        "pass_per_entry": max(whole - latency, 0.0) * n_workers / (n * d),
                        "vector_per_row": max(vector - latency, 0.0) * n_workers / n,
                        "parts": RULE.parts,
                    }
                ),
                flush=True,
            )


def nothing(part: Any, p: Any, k: int) -> int:
    return k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", nargs="+", choices=("cost", "passes", "driver", "methods", "constants", "one")
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--losses", default="squared,logistic")
    parser.add_argument("--sets", default="", help="of `passes`, by name, between semicolons")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for what in given.what:
        globals()[what](given)


if __name__ == "__main__":
    main()
