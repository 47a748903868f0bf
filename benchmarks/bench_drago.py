"""DRAGO with every default over the grid of the paper's data: is anything left to tune?

Solves each data set x l2_reg x shift_cost x set to a certified 1e-5 with `solver="drago"` and,
beside it, with `solver="lbfgs"`, and prints a line a data set: how many were certified, the median
and the largest number of passes, and the ratio of the two solvers' times.

    DRAGO_DATA_DIR=... python benchmarks/bench_drago.py [--sets NAME ...] [--csv FILE]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from tables import write_csv  # noqa: E402

import drago  # noqa: E402
from drago.datasets import load  # noqa: E402

DATA = ["yacht", "energy", "concrete", "kin8nm", "power", "acsincome1k", "emotion"]
SETS = [
    ("CVaR 0.75", drago.CVaR(0.75), ("chi2", "kl")),
    ("CVaR 0.1", drago.CVaR(0.1), ("chi2", "kl")),
    ("extremile 2", drago.Extremile(2.0), ("chi2", "kl")),
    ("ESRM 1", drago.ESRM(1.0), ("chi2", "kl")),
    ("chi2 ball 1", drago.Chi2Ball(1.0), ("chi2",)),
    ("KL ball 0.5", drago.KLBall(0.5), ("kl",)),
]


def rows(data: str, tol: float, time_limit: float) -> Iterator[dict[str, Any]]:
    prepared = load(data, prepare="paper")
    loss = "multinomial" if prepared.task == "multiclass" else "squared"
    n = prepared.y.size
    grid = itertools.product((1.0, 1e-2, 1e-4), (1.0 / n, 1e-3, 0.1), SETS)
    for l2_reg, shift_cost, (name, uncertainty, divergences) in grid:
        for divergence in divergences:
            problem = drago.DROProblem(
                prepared.X,
                prepared.y,
                loss=loss,
                uncertainty=uncertainty,
                divergence=divergence,
                shift_cost=shift_cost,
                l2_reg=l2_reg,
            )
            row: dict[str, Any] = {
                "data": data,
                "l2_reg": l2_reg,
                "shift_cost": shift_cost,
                "set": name,
                "divergence": divergence,
            }
            for solver in ("drago", "lbfgs"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = drago.solve(problem, solver, tol=tol, time_limit=time_limit)
                row[f"{solver}_status"] = str(result.status)
                row[f"{solver}_rel_gap"] = result.rel_gap
                row[f"{solver}_passes"] = result.n_passes
                row[f"{solver}_time"] = result.time
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=DATA)
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--time-limit", type=float, default=3.0)
    parser.add_argument("--csv")
    options = parser.parse_args()
    print(
        f"{'data':12} {'certified':>12} {'passes: median':>15} {'largest':>8} {'time by lbfgs':>14}"
    )
    table: list[dict[str, Any]] = []
    for data in options.sets:
        found = list(rows(data, options.tol, options.time_limit))
        table += found
        passes = np.array([row["drago_passes"] for row in found])
        ratio = np.median([row["drago_time"] / row["lbfgs_time"] for row in found])
        certified = sum(row["drago_status"] == "optimal" for row in found)
        print(
            f"{data:12} {certified:6d} of {len(found):2d} {np.median(passes):15.0f} "
            f"{passes.max():8.0f} {ratio:14.1f}",
            flush=True,
        )
    write_csv(options.csv, table)


if __name__ == "__main__":
    sys.exit(main())
