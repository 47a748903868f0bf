"""The dual oracles against sorting: one run, one thread.

For each set and n, prints the time of one exact dual step, cold (no memory of an earlier call) and
warm (after a call with slightly different losses, as in a solver), in nanoseconds per element, and
as a ratio to sorting the same vector: `numpy.sort(kind="stable")` divided by the warm oracle, and
the warm oracle divided by `numpy.argsort`.

With `--ranges`, prints what spectral sets cost on rows in parts whose losses are sorted range by
range, beside the oracle that sorts all of them, in processor time.

    python benchmarks/bench_dual.py [--sizes 10000 1000000 ...] [--repeat 5] [--csv FILE] [--ranges]
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
from drago.rows.memory import ArrayRows  # noqa: E402
from drago.rows.part import cut  # noqa: E402
from drago.rows.parts import PartedRows  # noqa: E402
from drago.terms.divergences import as_divergence  # noqa: E402

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


class SortedRows(PartedRows):
    """Rows in two parts, of which so many bytes are sorted at once."""

    sorting = 1 << 62


def measure_ranges(
    name: str, uncertainty: Any, divergence: str, n: int, repeat: int, weights: str
) -> dict[str, str | float]:
    """One sort of all losses, and 1, 4 and 16 ranges of them, in turn; medians."""
    rng = np.random.default_rng(0)
    losses = 0.5 * rng.standard_normal(n) ** 2
    p = np.full(n, 1.0 / n)
    if weights == "own":
        p = rng.uniform(0.5, 2.0, n)
        p /= p.sum()
    rows = SortedRows(cut(ArrayRows(np.zeros((n, 1)), np.zeros(n), p), [n // 2]))
    rows.is_uniform = weights == "equal"
    oracle, whole = (
        rows.oracle(uncertainty, as_divergence(divergence)),
        uncertainty.oracle(p, divergence),
    )
    u, times = rows.imported(losses), {key: list[float]() for key in ("whole", 1, 4, 16)}
    for _ in range(repeat + 1):
        for key, found in times.items():
            if key != "whole":
                rows.sorting = (8 if rows.is_uniform else 16) * (n // int(key) + 1)
            began = time.process_time()
            whole.weights(losses, SHIFT_COST) if key == "whole" else oracle.weights(u, SHIFT_COST)
            found.append(1e9 * (time.process_time() - began) / n)
    # The first is cold.
    medians = {f"{key}_ns": float(np.median(found[1:])) for key, found in times.items()}
    return {"set": name, "divergence": divergence, "weights": weights, "n": n, **medians}


def table_of_ranges(options: argparse.Namespace) -> list[dict[str, str | float]]:
    columns = "".join(f"{key:>8}" for key in ("whole", "1", "4", "16"))
    print(f"{'set':12} {'div':5} {'weights':8} {'n':>9}{columns}  (ns per element, by ranges)")
    spectral = [case for case in CASES if case[1].is_spectral]
    table = []
    for n, case, weights in itertools.product(options.sizes, spectral, ("equal", "own")):
        row = measure_ranges(*case, n, options.repeat, weights)
        table.append(row)
        numbers = "".join(f"{row[f'{key}_ns']:8.1f}" for key in ("whole", 1, 4, 16))
        print(
            f"{row['set']:12} {row['divergence']:5} {weights:8} {n:9d}{numbers}",
            flush=True,
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--csv")
    parser.add_argument("--ranges", action="store_true")
    options = parser.parse_args()
    if options.ranges:
        write_csv(options.csv, table_of_ranges(options))
        return
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
