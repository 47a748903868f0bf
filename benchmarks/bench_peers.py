"""drago next to other packages, a table a question; one thread, one process, compilation left out.

    mean  a certified robust fit against scikit-learn's fit of the mean loss, equally accurate
    dro   CVaR and chi2 fits against the package `dro`, judged by its own objective

What is compared is run in turn in one process, and the best of three runs counts (of more where
they are short, of fewer where they are long). drago's times include the checks of the data, as the
others' do, and the certificates. `make bench-peers` makes an environment with `dro` in it.

    python benchmarks/bench_peers.py TABLE [TABLE ...] [--csv FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import os
import sys
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from bench_drago import MOST_ROUNDS, certified, in_turn, solve  # noqa: E402
from tables import Table, Tables, make_tables, parser_of  # noqa: E402

import drago  # noqa: E402
from drago.datasets import make_synthetic  # noqa: E402

SOLVERS: dict[str, Any] = {
    "auto": "auto",
    "lbfgs": drago.LBFGS(),
    "metric": drago.LBFGS(metric="auto", progressive=True),
    "newton": drago.Newton(),
    "drago": drago.Drago(n_threads=1),
}
Clock = Callable[[], float]
TASKS = {"squared": "regression", "logistic": "binary"}
TOL = 1e-6


@dataclass(frozen=True)
class Fit:
    """What a run gave: its time, the model, and drago's result or the iterations of another."""

    seconds: float
    coef: Any
    intercept: float
    result: Any = None


def drago_fit(
    make: Callable[[], drago.DROProblem], solver: Any, time_limit: float, clock: Clock
) -> Fit:
    """A problem of its own for each run: a problem keeps what it has once computed."""
    began = clock()
    result = solve(make(), solver, TOL, time_limit)
    seconds = clock() - began
    # What is not certified is no result, however fast.
    return Fit(seconds if certified(result) else np.inf, result.coef, result.intercept, result)


def race(
    other: Callable[[], Fit], make: Callable[[], drago.DROProblem], options: argparse.Namespace
) -> dict[str, Fit]:
    """Another's fit and those of the solvers, in turn."""
    few = make().take(np.arange(200))
    for name in options.solvers:  # what is compiled for them is left out
        solve(few, SOLVERS[name], TOL, 5.0)
    runs = {"other": other}
    for name in options.solvers:
        runs[name] = lambda name=name: drago_fit(
            make, SOLVERS[name], options.time_limit or 60.0, options.clock
        )
    return in_turn(runs, lambda fit: fit.seconds, most=2 if options.quick else MOST_ROUNDS)


def seconds_of(fit: Fit) -> float | str:
    return fit.seconds if certified(fit.result) else f"not: {fit.result.time:.3g}"


def make_data(n: int, d: int, loss: str, condition: float = 1.0) -> Any:
    """Few wrong labels: with more than the tail holds, the trivial model is the most robust."""
    noise = 1.0 if loss == "squared" else 0.1
    return make_synthetic(
        n, d, task=TASKS[loss], condition_number=condition, noise=noise, random_state=0
    )


# -------------------------------------------------------------------------------------- mean


class Mean:
    """scikit-learn's fit of ``mean loss + (l2_reg / 2) ||w||^2``, to a given accuracy.

    Its accuracy is that of drago, ``(P(w) - P*) / (P_0 - P*)``, for its own objective. Ridge is
    exact; of LogisticRegression's tolerances the loosest that is accurate enough is taken.
    """

    def __init__(self, data: Any, loss: str, l2_reg: float, options: argparse.Namespace) -> None:
        self.X, self.y, self.loss, self.l2_reg = data.X, data.y, loss, l2_reg
        self.fit_intercept, self.clock = options.intercept, options.clock
        self.tol = 0.0
        problem = drago.DROProblem(
            data.X,
            data.y,
            loss=loss,
            uncertainty=drago.CVaR(1.0),
            shift_cost=0.0,
            l2_reg=l2_reg,
            fit_intercept=options.intercept,
        )
        self.objective = problem.objective
        self.reference = problem.reference[0]
        best = self._fit("newton-cholesky", 1e-10) if loss == "logistic" else self.fit()
        self.best = self.objective(best.coef, best.intercept)

    def fit(self) -> Fit:
        return self._fit("lbfgs", self.tol)

    def _fit(self, solver: str, tol: float) -> Fit:
        from sklearn.linear_model import LogisticRegression, Ridge

        n = self.X.shape[0]
        if self.loss == "squared":
            model = Ridge(alpha=n * self.l2_reg, fit_intercept=self.fit_intercept)
        else:
            model = LogisticRegression(
                C=1.0 / (n * self.l2_reg),
                tol=tol,
                solver=solver,
                max_iter=10_000,
                fit_intercept=self.fit_intercept,
            )
        began = self.clock()
        model.fit(self.X, self.y)
        seconds = self.clock() - began
        n_iter = None if model.n_iter_ is None else int(model.n_iter_[0])
        return Fit(seconds, model.coef_.reshape(-1), float(np.sum(model.intercept_)), n_iter)

    def error(self, fit: Fit) -> float:
        excess = self.objective(fit.coef, fit.intercept) - self.best
        return max(excess, 0.0) / (self.reference - self.best)

    def choose_tol(self, accuracy: float) -> None:
        """The loosest of a quarter decade's steps that is accurate enough."""
        if self.loss == "squared":
            return
        low, high = 0, 32  # 10^(-low/4) is too loose, 10^(-high/4) is not
        while high - low > 1:
            middle = (low + high) // 2
            enough = self.error(self._fit("lbfgs", 10.0 ** (-middle / 4))) <= accuracy
            low, high = (low, middle) if enough else (middle, high)
        self.tol = 10.0 ** (-high / 4)


def mean(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Robust fits to a certified 1e-6 against scikit-learn's fit of the mean to 1e-6.

    d = 50, l2_reg 1e-4 for both. Iterations and error are scikit-learn's, passes drago's, with
    those of its certificates.
    """
    columns = {"n": "7d", "cond": "5g", "loss": "8s", "tail": "4.1f", "shift_cost": "6g"}
    columns |= {"sklearn_s": "7.3f", "iter": "4d", "error": "7.0e"}
    for solver in options.solvers:
        columns |= {f"{solver}_s": "8.3f", f"{solver}_passes": "6.1f"}
    table = Table(columns | {"fastest": "8s", "by_sklearn": "5.2f"})
    sizes = (4000,) if options.quick else options.sizes or (10**5, 10**6)
    for n, condition, loss in itertools.product(sizes, (1.0, 1e3), TASKS):
        data = make_data(n, 50, loss, condition)
        peer = Mean(data, loss, 1e-4, options)
        peer.choose_tol(TOL)
        for tail, shift_cost in itertools.product((0.1, 0.5), (0.05, 1e-3)):

            def make(
                data: Any = data, loss: str = loss, tail: float = tail, cost: float = shift_cost
            ) -> drago.DROProblem:
                return drago.DROProblem(
                    data.X,
                    data.y,
                    loss=loss,
                    uncertainty=drago.CVaR(tail),
                    shift_cost=cost,
                    l2_reg=1e-4,
                    fit_intercept=options.intercept,
                )

            fits = race(peer.fit, make, options)
            theirs = fits.pop("other")
            row: dict[str, Any] = {
                "n": n,
                "cond": condition,
                "loss": loss,
                "tail": tail,
                "shift_cost": shift_cost,
                "sklearn_s": theirs.seconds,
                "iter": theirs.result,
                "error": peer.error(theirs),
                "sklearn_tol": peer.tol or None,
            }
            for solver, fit in fits.items():
                row[f"{solver}_s"] = seconds_of(fit)
                row[f"{solver}_passes"] = fit.result.n_passes
            row["fastest"] = min(fits, key=lambda solver: fits[solver].seconds)
            row["by_sklearn"] = fits[row["fastest"]].seconds / theirs.seconds
            table.add(row)
    return table.rows


# --------------------------------------------------------------------------------------- dro


def linear_model(module: str, name: str) -> Any:
    """A class of dro's linear models, from their own files alone.

    `import dro` imports neural networks and trees too, and with them torch and xgboost.
    """
    if "dro" not in sys.modules:
        found = importlib.util.find_spec("dro")
        if found is None or not found.submodule_search_locations:
            sys.exit("dro is not installed here: make bench-peers")
        folder = found.submodule_search_locations[0]
        for package, path in (("dro", folder), ("dro.linear_model", f"{folder}/linear_model")):
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [path]
    return getattr(importlib.import_module(f"dro.linear_model.{module}"), name)


def cvar(losses: Any, alpha: float) -> float:
    """``min over eta of eta + mean (losses - eta)_+ / alpha``: the mean of the worst share."""
    worst = np.sort(losses)[::-1]
    size = alpha * worst.size
    whole = min(int(size), worst.size - 1)
    return float((worst[:whole].sum() + (size - whole) * worst[whole]) / size)


def chi2(losses: Any, eps: float) -> float:
    """``min over eta of eta + sqrt(1 + eps) sqrt(mean (losses - eta)_+^2)``, by bisection."""

    def above(eta: float) -> Any:
        return np.maximum(losses - eta, 0.0)

    def value(eta: float) -> float:
        return float(eta + np.sqrt((1.0 + eps) * np.mean(above(eta) ** 2)))

    def rises(eta: float) -> bool:
        part = above(eta)
        return bool(np.sqrt(1.0 + eps) * part.mean() <= np.sqrt(np.mean(part**2)))

    low, high = float(losses.min()), float(losses.max())
    while rises(low):
        low -= high - low
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rises(middle) else (middle, high)
    return min(value(low), value(high))


class Peer:
    """One of dro's models and the same problem for drago.

    ======  ===========================================  ===========================
    dro                                                  drago
    ======  ===========================================  ===========================
    ols     ``(y - x'w - b)^2``                          "squared" is half of it
    alpha   the share of the worst rows                  ``CVaR(alpha)``
    eps     ``n sum (q_i - 1/n)^2 <= eps``               ``Chi2Ball(eps / 2)``
    ======  ===========================================  ===========================

    It has no penalties, so shift_cost = l2_reg = 0, an intercept, and labels -1 and 1.
    """

    def __init__(self, data: Any, loss: str, kind: str, level: float, clock: Clock) -> None:
        self.X, self.y, self.loss, self.kind, self.level = data.X, data.y, loss, kind, level
        self.clock = clock
        self.signs = 2.0 * data.y - 1.0 if loss == "logistic" else data.y

    def objective(self, fit: Fit) -> float:
        """dro's objective, the judge of both."""
        raw = self.X @ fit.coef + fit.intercept
        if self.loss == "squared":
            losses = (self.signs - raw) ** 2
        else:
            losses = np.logaddexp(0.0, -self.signs * raw)
        return (cvar if self.kind == "CVaR" else chi2)(losses, self.level)

    def fit(self) -> Fit:
        module, name, setting = {
            "CVaR": ("cvar_dro", "CVaRDRO", "alpha"),
            "chi2": ("chi2_dro", "Chi2DRO", "eps"),
        }[self.kind]
        model_type = "ols" if self.loss == "squared" else "logistic"
        model = linear_model(module, name)(self.X.shape[1], model_type)
        model.update({setting: self.level})
        began = self.clock()
        try:
            model.fit(self.X, self.signs)
        except Exception:  # of a class of its own: its solver failed
            return Fit(np.inf, None, 0.0, f"failed: {self.clock() - began:.3g}")
        seconds = self.clock() - began
        return Fit(seconds, model.theta, float(model.b), model.robust_obj)

    def problem(self) -> drago.DROProblem:
        return drago.DROProblem(
            self.X,
            self.y,
            loss=self.loss,
            uncertainty=drago.CVaR(self.level)
            if self.kind == "CVaR"
            else drago.Chi2Ball(0.5 * self.level),
            shift_cost=0.0,
            l2_reg=0.0,
            fit_intercept=True,
        )


def dro(options: argparse.Namespace) -> list[dict[str, Any]]:
    """CVaR 0.1 and the chi2 ball eps = 1, d = 20, to drago's certified 1e-6.

    "fastest" is of the solvers that reach dro's objective to 1e-6, "beyond" how far above it they
    end; dro's own report of its objective is in the CSV file.
    """
    columns = {"n": "6d", "set": "4s", "loss": "8s", "dro_s": "8.3f", "dro_objective": "13.9f"}
    columns |= {f"{solver}_s": "8.4f" for solver in options.solvers}
    columns |= {"fastest": "8s", "objective": "13.9f", "beyond": "8.0e", "dro/drago": "7.1f"}
    table = Table(columns)
    sizes = (300, 1000) if options.quick else options.sizes or (1000, 10_000, 40_000)
    # What CVXPY and its solver load at their first fit is left out.
    for loss, kind in itertools.product(TASKS, ("CVaR", "chi2")):
        Peer(make_data(200, 3, loss), loss, kind, 0.5, options.clock).fit()
    for n, loss, (kind, level) in itertools.product(sizes, TASKS, (("CVaR", 0.1), ("chi2", 1.0))):
        peer = Peer(make_data(n, 20, loss), loss, kind, level, options.clock)
        fits = race(peer.fit, peer.problem, options)
        theirs = fits.pop("other")
        failed = theirs.coef is None
        goal = np.inf if failed else peer.objective(theirs)
        row: dict[str, Any] = {
            "n": n,
            "set": kind,
            "loss": loss,
            "dro_s": theirs.result if failed else theirs.seconds,
            "dro_objective": None if failed else goal,
            "dro_reports": None if failed else theirs.result,
        }
        found = {name: peer.objective(fit) for name, fit in fits.items()}
        for name, fit in fits.items():
            row[f"{name}_s"] = seconds_of(fit)
            row[f"{name}_objective"] = found[name]
            row[f"{name}_passes"] = fit.result.n_passes
        # The fastest of those that reach dro's value, or where none does, of all.
        best = min(fits, key=lambda name: (found[name] > (1.0 + TOL) * goal, fits[name].seconds))
        row |= {
            "fastest": best,
            "objective": found[best],
            "beyond": None if failed else found[best] / goal - 1.0,
            "dro/drago": None if failed else theirs.seconds / fits[best].seconds,
        }
        table.add(row)
    return table.rows


# -------------------------------------------------------------------------------------- main

TABLES: Tables = {
    "mean": mean,
    "dro": dro,
}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument(
        "--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS), metavar="NAME"
    )
    parser.add_argument("--intercept", action="store_true", help="of mean: fit one, both of them")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="other numbers of rows")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    parser.add_argument(
        "--cpu", action="store_true", help="processor time, where others keep the machine busy"
    )
    options = parser.parse_args()
    options.clock = time.process_time if options.cpu else time.perf_counter
    warnings.simplefilter("ignore")
    make_tables(TABLES, options)


if __name__ == "__main__":
    sys.exit(main())
