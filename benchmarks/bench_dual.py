"""The dual oracles against sorting: one run, one thread.

For each set and n, prints the time of one exact dual step, cold (no memory of an earlier call) and
warm (after a call with slightly different losses, as in a solver), in nanoseconds per element, and
as a ratio to sorting the same vector: `numpy.sort(kind="stable")` divided by the warm oracle, and
the warm oracle divided by `numpy.argsort`.

    python benchmarks/bench_dual.py [--sizes 10000 1000000 ...] [--repeat 5] [--csv FILE]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from tables import write_csv  # noqa: E402

import drago  # noqa: E402

CASES = [
    ("CVaR 0.1", drago.CVaR(0.1), "chi2"),
    ("CVaR 0.1", drago.CVaR(0.1), "kl"),
    ("extremile 2", drago.Extremile(2.0), "chi2"),
    ("extremile 2", drago.Extremile(2.0), "kl"),
    ("ESRM 1", drago.ESRM(1.0), "chi2"),
    ("chi2 ball 1", drago.Chi2Ball(1.0), "chi2"),
    ("KL ball 0.5", drago.KLBall(0.5), "kl"),
]
SHIFT_COST = 0.05


def best(function: Callable[[], Any], repeat: int, prepare: Callable[[], Any]) -> float:
    """The shortest time of `function`, each time after `prepare`."""
    times = []
    for _ in range(repeat):
        prepare()
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(
    name: str, uncertainty: Any, divergence: str, n: int, repeat: int
) -> dict[str, str | float]:
    rng = np.random.default_rng(0)
    losses = 0.5 * rng.standard_normal(n) ** 2
    before = losses * (1.0 + 0.01 * rng.standard_normal(n))
    p = np.full(n, 1.0 / n)
    oracle = uncertainty.oracle(p, divergence)
    fresh = [uncertainty.oracle(p, divergence) for _ in range(repeat)]

    def other() -> None:
        oracle.weights(before, SHIFT_COST)

    # All four see the same caches, just used on other losses; and sorting is timed next to each
    # oracle, for a shared machine is not the same for long.
    sort = best(lambda: np.sort(losses, kind="stable"), repeat, other)
    argsort = best(lambda: np.argsort(losses), repeat, other)
    cold = best(lambda: fresh.pop().weights(losses, SHIFT_COST), repeat, other)
    warm = best(lambda: oracle.weights(losses, SHIFT_COST), repeat, other)
    return {
        "set": name,
        "divergence": divergence,
        "n": n,
        "cold_ns": 1e9 * cold / n,
        "warm_ns": 1e9 * warm / n,
        "sort_ns": 1e9 * sort / n,
        "argsort_ns": 1e9 * argsort / n,
        "sort_by_warm": sort / warm,
        "warm_by_argsort": warm / argsort,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--csv")
    options = parser.parse_args()
    head = f"{'set':12} {'div':5} {'n':>9} {'cold':>8} {'warm':>8} {'sort':>8} {'argsort':>8}"
    print(f"{head}  (ns per element) | sort/warm  warm/argsort")
    table = []
    for n, (name, uncertainty, divergence) in itertools.product(options.sizes, CASES):
        row = measure(name, uncertainty, divergence, n, options.repeat)
        table.append(row)
        print(
            f"{row['set']:12} {row['divergence']:5} {row['n']:9d} {row['cold_ns']:8.1f} "
            f"{row['warm_ns']:8.1f} {row['sort_ns']:8.1f} {row['argsort_ns']:8.1f}"
            f"                   | {row['sort_by_warm']:9.1f}  {row['warm_by_argsort']:12.2f}",
            flush=True,
        )
    write_csv(options.csv, table)


if __name__ == "__main__":
    sys.exit(main())
