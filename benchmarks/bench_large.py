"""A million rows: what a visit to the rows costs, and what a second thread gives.

    python benchmarks/bench_large.py visit threads --csv FOLDER

visit    losses and gradient (`problem.visit`) by loss, set and storage, beside ``X.sum()`` and the
         two products ``X @ w`` and ``X.T @ r``, on one thread; the point moves a little between
         visits, as it does on the way of a solve. `pass` is the reading of X alone, without the
         search for the weights and the rows whose weight was not as it was guessed
threads  solves certified to 1e-6 with two threads and with one, and what a second thread gives in
         the same run to one reading of X within a visit, and to ``X @ w`` by BLAS

In each row all are measured in turn; times are medians. Fits beside those of other packages are
those of `bench_peers.py`.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

if __name__ == "__main__":  # before BLAS is loaded
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")

import numpy as np
import scipy.sparse as sp
from tables import Table, make_tables, medians_in_turn, parser_of
from threadpoolctl import threadpool_limits

import drago
from drago._threads import limited

L2_REG = 1e-3
TOL = 1e-6
SETS = {
    "CVaR 0.1": drago.CVaR(0.1),
    "CVaR 0.5": drago.CVaR(0.5),
    "CVaR 0.1, KL": drago.CVaR(0.1),
    "Simplex, KL": drago.Simplex(),
    "Extremile 2": drago.Extremile(2.0),
    "chi2 ball": drago.Chi2Ball(0.5),
}
STORAGES: dict[str, Callable[[Any], Any]] = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "CSR, a tenth": lambda X: sp.csr_array(X * (np.random.default_rng(1).random(X.shape) < 0.1)),
}
LOSSES = ("squared", "huber", "logistic")
NAMES = {"loss": "8s", "condition": "9.0f", "tail": "4.1f", "shift_cost": "10.3f"}


def data(n: int, d: int, condition: float, loss: str) -> tuple[Any, Any]:
    """Features of falling size, and a target with heavy tails or of two classes."""
    rng = np.random.default_rng(0)
    size = np.logspace(0.0, -0.5 * np.log10(condition), d)
    X = rng.standard_normal((n, d))
    z = X @ (rng.standard_normal(d) / np.sqrt(d))
    X *= size
    if loss == "logistic":
        return X, (rng.random(n) < 1.0 / (1.0 + np.exp(-2.0 * z))).astype(float)
    return X, z + rng.standard_t(4, n)


# ------------------------------------------------------------------------------------- visit


def visiting(problem: drago.DROProblem, w: Any, step: Any) -> Callable[[], Any]:
    """Visits to one point after the other, by an oracle that remembers the last."""
    oracle, b, points = problem.dual_oracle(), np.zeros(1), [w, w + step]
    problem.visit(w, b, oracle)

    def visit() -> None:
        points.reverse()
        problem.visit(points[0], b, oracle)

    return visit


def passing(problem: drago.DROProblem, w: Any) -> Callable[[], Any]:
    """The reading of X within a visit, with the guess that an oracle has for the point."""
    rows: Any = problem.rows
    oracle, b = problem.dual_oracle(), np.zeros(1)
    problem.visit(w, b, oracle)
    guess = rows._guess(problem.loss, w, b, oracle, problem.nu)
    return lambda: rows._read(problem.loss, w, b, guess)


def visit(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Losses and gradient beside a sum over X and two products; one thread."""
    table = Table(
        {"loss": "8s", "set": "12s", "storage": "12s"}
        | dict.fromkeys(("visit_ms", "pass_ms", "sum_ms", "products_ms"), "11.1f")
        | dict.fromkeys(("pass_by_sum", "pass_by_products"), "11.2f")
    )
    n, d = options.rows, 50
    combinations = [("squared", name, "float64") for name in SETS]
    combinations += [(loss, "CVaR 0.1", "float64") for loss in LOSSES[1:]]
    combinations += [("squared", "CVaR 0.1", storage) for storage in list(STORAGES)[1:]]
    for loss, name, storage in combinations:
        X, y = data(n, d, 1.0, loss)
        X = STORAGES[storage](X)
        rng = np.random.default_rng(2)
        w, r = rng.standard_normal(d) / np.sqrt(d), rng.standard_normal(n)
        problem = drago.DROProblem(
            X,
            y,
            loss=loss,
            uncertainty=SETS[name],
            divergence="kl" if "KL" in name else "auto",
            shift_cost=0.05,
            l2_reg=L2_REG,
        )
        step = 0.01 * rng.standard_normal(d)[:, None] / np.sqrt(d)
        w32, r32 = w.astype(X.dtype), r.astype(X.dtype)
        what = {
            "visit": visiting(problem, w[:, None], step),
            "pass": passing(problem, w[:, None]),
            "sum": lambda X=X: X.sum(),
            "products": lambda X=X, w=w32, r=r32: (X @ w, X.T @ r),
        }
        with threadpool_limits(1), limited(1):
            found = medians_in_turn(what, options.runs)
        table.add(
            {
                "loss": loss,
                "set": name,
                "storage": storage,
                **{f"{key}_ms": 1e3 * value for key, value in found.items()},
                "pass_by_sum": found["pass"] / found["sum"],
                "pass_by_products": found["pass"] / found["products"],
            }
        )
    return table.rows


# ----------------------------------------------------------------------------------- threads


def problems(n: int, quick: bool) -> Iterator[tuple[dict[str, Any], Callable[[], Any], Any]]:
    """What names a problem, who poses it, and its features."""
    for loss, condition in itertools.product(("squared", "logistic"), (1.0, 1e3)):
        X, y = data(n, 50, condition, loss)
        for tail, shift_cost in itertools.product((0.1, 0.5), (0.05, 1e-3)):
            if quick and shift_cost < 0.05:
                continue
            pose = partial(
                drago.DROProblem,
                X,
                y,
                loss=loss,
                uncertainty=drago.CVaR(tail),
                shift_cost=shift_cost,
                l2_reg=L2_REG,
            )
            name = {"loss": loss, "condition": condition, "tail": tail}
            yield name | {"shift_cost": shift_cost}, pose, X


def threads(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Solves with two threads and with one, and what a second core gives to a pass and to BLAS."""
    columns = dict.fromkeys(("one_ms", "two_ms"), "6.0f")
    gains = ("pass_gain", "product_gain")
    table = Table(NAMES | columns | {"gain": "5.2f"} | dict.fromkeys(gains, "12.2f"))
    for name, pose, X in problems(options.rows, options.quick):
        w = np.ones(X.shape[1])
        read = passing(pose(), w[:, None])

        def solve(k: int, pose: Any = pose) -> None:
            result = drago.solve(pose(), tol=TOL, n_threads=k)
            assert result.status == "optimal"

        def product(k: int, X: Any = X, w: Any = w) -> None:
            with threadpool_limits(k):
                X @ w

        def reading(k: int, read: Any = read) -> None:
            with limited(k):
                read()

        # The product last: its thread keeps a core busy for a while, which here nobody misses.
        what = {
            f"{key} {k}": partial(run, k)
            for key, run in (("solve", solve), ("pass", reading), ("product", product))
            for k in (1, 2)
        }
        one, two, *others = medians_in_turn(what, options.runs).values()
        row = {"one_ms": 1e3 * one, "two_ms": 1e3 * two, "gain": one / two}
        table.add(name | row | dict(zip(gains, np.divide(others[::2], others[1::2]), strict=True)))
    return table.rows


TABLES = {"visit": visit, "threads": threads}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=7, help="of each, for the median")
    make_tables(TABLES, parser.parse_args())


if __name__ == "__main__":
    main()
