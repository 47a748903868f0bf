"""
A fit on a cluster
==================

Rows that no single machine has to hold: each block is made on a worker, and stays there. The same
two lines as in memory fit a model of the mean and one of the worst tenth of the rows, on a cluster
of two processes of this machine; `distributed.Client("scheduler-address:8786")` in place of the
local cluster is all that another one takes.

The picture shows the mean loss of the worst share of the rows, for shares from 1 in 1000 to all of
them. The losses are computed on the workers; what comes here are their sorted means.

    python examples/plot_dask.py [--folder DIR] [--small]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from dask import delayed
from distributed import Client, LocalCluster

from drago import CVaR, DRORegressor


def block(k: int, n: int) -> np.ndarray:
    """Rows of two kinds: for one in ten the second feature acts the other way round."""
    rng = np.random.default_rng(k)
    X = rng.normal(size=(n, 6))
    sign = np.where(rng.random(n) < 0.1, -1.0, 1.0)
    y = X[:, 0] + sign * X[:, 1] + 0.5 * rng.standard_t(4, n)
    return np.column_stack([X, y])


def collections(n_blocks: int, n: int) -> tuple[Any, Any]:
    """X and y as Dask arrays."""
    rows = [da.from_delayed(delayed(block)(k, n), (n, 7), float) for k in range(n_blocks)]
    table = da.concatenate(rows)
    return table[:, :6], table[:, 6]


def main(folder: str = ".", small: bool = False) -> Path:
    """Draw the picture and return where it was written."""
    figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=not small, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        X, y = collections(*(4, 500) if small else (16, 50_000))
        for name, share in (("mean", 1.0), ("worst tenth", 0.1)):
            model = DRORegressor(CVaR(share), shift_cost=0.05).fit(X, y)
            losses = np.sort(model.losses(X, y).compute())[::-1]
            worst = np.cumsum(losses) / np.arange(1, losses.size + 1)
            shares = np.arange(1, losses.size + 1) / losses.size
            some = shares >= 1e-3
            ax.loglog(shares[some], worst[some], label=f"fitted to the {name}")
    ax.set_xlabel("share of the rows, the worst first")
    ax.set_ylabel("their mean loss")
    ax.legend()
    path = Path(folder) / "plot_dask.png"
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--folder", default=".")
    parser.add_argument("--small", action="store_true")
    print(main(**vars(parser.parse_args())))
