"""How long `drago.audit` takes: drawn classes, four groups, the default settings.

    python benchmarks/bench_audit.py [--rows 5000] [--columns 30]

A small audit before it is not counted: it imports. The last line says what there was time for.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import drago


def draw(n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, two classes with an interaction, and groups that mean nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=n) > 0).astype(int)
    return X, y, rng.integers(0, 4, n)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--columns", type=int, default=30)
    options = parser.parse_args()
    drago.audit(*draw(500, 5), n_repeats=1, verbose=0)
    data = draw(options.rows, options.columns)
    began = time.perf_counter()
    found = drago.audit(*data)
    print(f"{options.rows} x {options.columns}: {time.perf_counter() - began:.1f} s")
    print(*found.notes or ["judged on one pass over the rows"], sep="\n")


if __name__ == "__main__":
    main()
