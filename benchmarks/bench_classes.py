"""Many classes: `auto` and DRAGO against scipy's L-BFGS-B, a careful user's own few lines.

The baseline computes ``X @ W``, the softmax and ``X' (q s)`` with NumPy, takes the weights from
drago's oracle, and runs with memory 10 and 40, of which the faster counts. It has no certificate:
its iterations are certified beforehand (`drago.certify`), and its time is that of the first so many
iterations which lead to a point certified to 1e-5. The times of `drago.solve` are all of it, with
its certificates. All take turns in one process with one thread, and medians of the processor's time
count; every run has a problem of its own, so that nothing is remembered.

    held_out   data sets that the rule of `auto` was not fitted on
    tuning     those that it was fitted on
    products   ``X @ W`` and ``X' S`` by our tiles and by BLAS: medians of turns, in milliseconds

The first two have no data set in common, and no seed (`class_problems.py`).

    DRAGO_DATA_DIR=... python benchmarks/bench_classes.py held_out [--csv FOLDER] [--quick]
        [--only TEXT] [--solvers auto drago ...]

The real data come with scikit-learn, in $DRAGO_DATA_DIR, or with ``pip install drago[suite]``.
"""

from __future__ import annotations

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from class_problems import HELD_OUT, TUNING, Case, Source, cases  # noqa: E402
from scipy.optimize import minimize  # noqa: E402
from tables import Table, Tables, make_tables, medians_in_turn, parser_of  # noqa: E402

import drago  # noqa: E402
from drago import kernels  # noqa: E402
from drago.certificate.certify import judge  # noqa: E402

TOL = 1e-5
MEMORIES = (10, 40)
# Each is run three times, more often while that took less than SHORT seconds, not again after LONG.
ROUNDS, MOST_ROUNDS = 3, 15
SHORT, LONG = 0.5, 8.0
MOST_ITERATIONS = 20_000
# Newton steps with which a certificate of the baseline may look for better weights.
PREDICTIONS = 25
# Rows, features and classes of products.
SHAPES = (
    *((50_000, 20, 8), (20_000, 200, 20), (8000, 100, 30), (4000, 1000, 20)),
    *((2000, 5000, 5), (2000, 5000, 20), (2000, 5000, 40), (1000, 20_000, 20)),
)
# A solver may take so many times as long as the baseline, and so many seconds at least.
PATIENCE, LEAST_LIMIT = 8.0, 2.0


# ---------------------------------------------------------------------------------- baseline


class Baseline:
    """``P`` and its gradient by NumPy; the unknowns are W, and the intercepts behind it."""

    def __init__(self, problem: drago.DROProblem) -> None:
        self.problem, self.oracle = problem, problem.dual_oracle()
        self.X, self.y, self.rows = problem.X, problem.y, np.arange(problem.n_samples)
        self.shape = (problem.n_features, problem.n_outputs)

    def unpack(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        size = self.shape[0] * self.shape[1]
        return x[:size].reshape(self.shape), x[size:] if self.problem.fit_intercept else 0.0

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        problem = self.problem
        w, b = self.unpack(x)
        raw = self.X @ w
        if problem.fit_intercept:
            raw += b
        raw -= raw.max(axis=1, keepdims=True)
        of_label = raw[self.rows, self.y]
        np.exp(raw, out=raw)
        total = raw.sum(axis=1)
        losses = np.log(total) - of_label
        q = self.oracle.weights(losses, problem.nu)
        value = q @ losses - problem.nu * problem.distance(q) + 0.5 * problem.mu * np.vdot(w, w)
        raw *= (q / total)[:, None]
        raw[self.rows, self.y] -= q
        slope = (self.X.T @ raw + problem.mu * w).reshape(-1)
        if problem.fit_intercept:
            slope = np.append(slope, raw.sum(axis=0))
        return float(value), slope

    @property
    def start(self) -> np.ndarray:
        return np.zeros(self.shape[1] * (self.shape[0] + int(self.problem.fit_intercept)))

    def run(self, memory: int, most: int, callback: Any = None) -> np.ndarray:
        """The point after at most so many iterations."""
        options = {"maxcor": memory, "maxiter": most, "maxfun": 10**9, "ftol": 0.0, "gtol": 0.0}
        found = minimize(
            self, self.start, jac=True, method="L-BFGS-B", callback=callback, options=options
        )
        return np.asarray(found.x)

    def is_certified(self, x: np.ndarray) -> bool:
        problem = self.problem
        w, b = problem.to_internal(*[np.asarray(each).T for each in self.unpack(x)])
        # As `drago.certify`, which goes on to the best certificate that it finds.
        found = judge(problem, problem.evaluate(w, b), target=TOL, predictions=PREDICTIONS)
        return found.rel_gap <= TOL


def iterations_needed(problem: drago.DROProblem, memory: int) -> int | None:
    """How many iterations of the baseline lead to a certified point; None where none do.

    No point is certified whose objective is too far above the optimum; so none of these is tried.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimum = drago.solve(problem, tol=0.01 * TOL, time_limit=30.0)
    reference = problem.reference[0]
    enough = optimum.primal + TOL * (reference - optimum.dual)
    baseline, seen = Baseline(problem), []
    looked, bound, stride = 0, None, 1

    def look(x: np.ndarray) -> None:
        nonlocal looked, bound, stride
        seen.append(x.copy())
        if len(seen) < looked + stride:
            return
        w, b = baseline.unpack(x)
        if problem.objective(w.T, b) > enough:
            looked = len(seen)
        elif baseline.is_certified(x):
            bound = len(seen)
            raise StopIteration
        else:
            looked, stride = len(seen), 2 * stride

    baseline.run(memory, MOST_ITERATIONS, look)
    if bound is None:
        if len(seen) == looked or not baseline.is_certified(seen[-1]):
            return None
        bound = len(seen)
    while bound - looked > 1:
        middle = (bound + looked) // 2
        if baseline.is_certified(seen[middle - 1]):
            bound = middle
        else:
            looked = middle
    return bound


# -------------------------------------------------------------------------------- the tables


def timed_in_turn(case: Case, runs: dict[str, Callable[[Any], bool]]) -> dict[str, float]:
    """Medians of the seconds of runs that take turns; infinite for one that fails."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for rounds in range(MOST_ROUNDS):
        for name, run in runs.items():
            spent = sum(times[name])
            if spent > (LONG if rounds < ROUNDS else SHORT):
                continue
            problem = case.pose()
            began = time.process_time()
            done = run(problem)
            times[name].append(time.process_time() - began if done else math.inf)
    return {name: statistics.median(found) for name, found in times.items()}


def chosen(message: str) -> str:
    """The solver that a message names."""
    return message.split("(Solver: ")[-1].split(",")[0].removeprefix("auto took ")


def compare(sources: dict[str, Source], options: argparse.Namespace) -> list[dict[str, Any]]:
    solvers = options.solvers
    table = Table(
        {"problem": "58s", "rows": "8d", "d": "4d", "classes": "7d", "scipy_ms": "9.1f"}
        | {f"{name}_ms": "9.1f" for name in solvers}
        | dict.fromkeys(solvers, "6.2f")
        | {"took": "16s"}
    )
    for case in cases(sources, options.quick, options.only):
        needed = {memory: iterations_needed(case.pose(), memory) for memory in MEMORIES}
        runs: dict[str, Callable[[Any], bool]] = {}

        def baseline(problem: Any, memory: int, most: int) -> bool:
            Baseline(problem).run(memory, most)
            return True

        for memory, most in needed.items():
            if most is not None:
                runs[f"scipy {memory}"] = partial(baseline, memory=memory, most=most)
        began = time.perf_counter()
        for run in runs.values():
            run(case.pose())
        limit = max(PATIENCE * (time.perf_counter() - began), LEAST_LIMIT)
        took: dict[str, Any] = {}

        def solve(problem: Any, name: str, limit: float = limit, took: Any = took) -> bool:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = drago.solve(problem, name, tol=TOL, time_limit=limit)
            took[name] = result
            return result.status == "optimal"

        for name in solvers:
            runs[name] = partial(solve, name=name)
            runs[name](case.pose())  # the first pays for imports
        times = timed_in_turn(case, runs)
        best = min((times[each] for each in times if each.startswith("scipy")), default=math.inf)
        result = took[solvers[0]]
        row = {
            "problem": case.name,
            "rows": case.X.shape[0],
            "d": case.X.shape[1],
            "classes": int(case.y.max()) + 1,
            "scipy_ms": 1e3 * best,
            **{f"{name}_ms": 1e3 * times[name] for name in solvers},
            **{name: best / times[name] for name in solvers},
            "took": f"{chosen(result.message)} {result.n_iter}",
            **{f"scipy_{memory}_iterations": needed[memory] for memory in MEMORIES},
            **{f"scipy_{m}_ms": 1e3 * times.get(f"scipy {m}", math.inf) for m in MEMORIES},
        }
        table.add(row)
    for name in solvers:
        found = [row[name] for row in table.rows if math.isfinite(row[name])]
        print(
            f"{name}: {len(found)} problems, least {min(found):.2f}, "
            f"median {statistics.median(found):.2f}, "
            f"below 0.95 on {sum(each < 0.95 for each in found)}"
        )
    return table.rows


def held_out(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Times scipy's speed on problems that the rule was not fitted on."""
    return compare(HELD_OUT, options)


def tuning(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Times scipy's speed on problems that the rule was fitted on."""
    return compare(TUNING, options)


def products(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Products with X, by tiles and by BLAS."""
    ways = ("predict", "predict_blas", "gradient", "gradient_blas")
    table = Table(
        {"rows": "6d", "d": "6d", "classes": "7d"} | {f"{way}_ms": "8.2f" for way in ways}
    )
    for n, d, k in SHAPES[: 3 if options.quick else None]:
        rng = np.random.default_rng(0)
        X, w, slopes = (rng.standard_normal(shape) for shape in ((n, d), (d, k), (n, k)))
        b, q, raw, out, sums = (
            np.zeros(k),
            np.ones(n),
            np.empty((n, k)),
            np.empty((d, k)),
            np.empty(k),
        )
        runs = (
            partial(kernels.narrow_predict, X, w, b, raw),
            partial(np.matmul, X, w),
            partial(kernels.narrow_gradient, X, q, slopes, out, sums),
            partial(np.matmul, X.T, slopes),
        )
        found = medians_in_turn(dict(zip(ways, runs, strict=True)), MOST_ROUNDS)
        row = {f"{way}_ms": 1e3 * seconds for way, seconds in found.items()}
        table.add({"rows": n, "d": d, "classes": k} | row)
    return table.rows


TABLES: Tables = {"held_out": held_out, "tuning": tuning, "products": products}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--solvers", nargs="+", default=["auto", "drago"])
    make_tables(TABLES, parser.parse_args())


if __name__ == "__main__":
    main()
