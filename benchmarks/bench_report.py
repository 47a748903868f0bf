"""How long a report on many rows takes, and how large it is.

    python benchmarks/bench_report.py [--rows 1000000]

Rows with 20 features and 8 groups are drawn; a model is fitted to them, and a report made of them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import drago


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    n = parser.parse_args().rows
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 20))
    groups = rng.integers(0, 8, n)
    y = X @ rng.normal(size=20) * np.where(groups == 7, 0.5, 1.0) + rng.standard_t(4, size=n)
    names = np.array([f"group {k}" for k in range(8)])[groups]
    model, spent, used = timed(lambda: drago.DRORegressor("worst_group").fit(X, y, groups=names))
    print(f"fit of {n} rows: {spent:.1f} s by the clock, {used:.1f} s of processors")
    page, spent, used = timed(lambda: drago.html_report(model, X, y, groups=names))
    print(f"report on {n} rows: {spent:.1f} s by the clock, {used:.1f} s of processors")
    print(f"size: {len(page.encode()) / 1000:.0f} kB")


def timed(work):
    """What it returns, and the seconds of the clock and of processors."""
    clock, used = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - clock, time.process_time() - used


if __name__ == "__main__":
    main()
