"""Rows in files for the tests of several rooms: the same rows in memory and in files."""

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from cases import SETS_OF_STORES
from drago.files.blocks import Blocks, Column, Stamp, checksum

N, D = 230, 5
LOSSES = ["squared", "huber", "logistic", "multinomial"]
SETS = {"mean": (drago.CVaR(1.0), "chi2"), **SETS_OF_STORES}
STORAGE = {"float64": np.float64, "float32": np.float32, "csr": sp.csr_array}


def data(loss, storage="float64", n=N, d=D):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, d)) * np.geomspace(1.0, 3.0, d)
    y = X @ np.linspace(-2.0, 2.0, d) + rng.standard_t(3, size=n)
    if loss == "logistic":
        y = (y > 0.5).astype(float)
    elif loss == "multinomial":
        y = np.digitize(y, [-1.0, 1.0])
    if storage == "csr":
        X = X * (rng.uniform(size=X.shape) < 0.5)
    order = np.argsort(y, kind="stable")  # parts of one class
    more = {"sample_weight": rng.uniform(0.5, 2.0, n), "groups": rng.integers(0, 9, n)}
    return STORAGE[storage](X[order]), y[order], more


def written(folder, name, array):
    path = str(folder / f"{name}.bin")
    np.ascontiguousarray(array).tofile(path)
    return Column(path, array.dtype, array.shape, 0, Stamp.of(path))


def ends_of(n, count):
    """Ragged parts, the first of them of one row."""
    if count == 1:
        return (n,)
    inner = np.sort(np.random.default_rng(count).choice(np.arange(2, n), count - 2, replace=False))
    return (1, *map(int, inner), n)


def blocks_of(folder, X, y, count=7, **more):
    """The same rows in files, with check sums."""
    arrays = {"y": y, **more}
    ends = ends_of(X.shape[0], count)
    edges = list(zip((0, *ends), ends))
    if isinstance(X, np.ndarray):
        arrays["X"] = X
        sums = {"X": tuple(checksum(X[a:b]) for a, b in edges)}
    else:
        arrays |= {"data": X.data, "indices": X.indices, "indptr": X.indptr.astype(np.int64)}
        at = [(X.indptr[a], X.indptr[b]) for a, b in edges]
        sums = {name: tuple(checksum(arrays[name][a:b]) for a, b in at)
                for name in ("data", "indices")}  # fmt: skip
    columns = {name: written(folder, name, array) for name, array in arrays.items()}
    return Blocks(*X.shape, columns, ends, sums)


def make(folder, loss="squared", name="cvar", storage="float64", count=7, nu=0.05, **settings):
    """A problem on arrays, and the same on files."""
    uncertainty, divergence = SETS[name]
    X, y, more = data(loss, storage)
    settings = {"loss": loss, "uncertainty": uncertainty, "divergence": divergence,
                "shift_cost": nu, **settings}  # fmt: skip
    here = drago.DROProblem(X, y, **more, **settings)
    there = drago.DROProblem(blocks_of(folder, X, y, count, **more), **settings)
    return here, there


def agree(here, there, problem, tol):
    """By the judge of the rows in memory, on the answer from files."""
    assert there.status == here.status == "optimal", (here.message, there.message)
    ours = drago.certify(problem, there.coef, there.intercept, there.dual_weights)
    # A solve may stop by a bound that it found at another point.
    gap, room = ours.primal - here.dual, tol * (problem.reference[0] - ours.primal)
    assert ours.rel_gap <= tol or gap <= room
    assert ours.primal == pytest.approx(there.primal, rel=1e-9)
    assert there.dual_weights.shape == (problem.n_samples,)
