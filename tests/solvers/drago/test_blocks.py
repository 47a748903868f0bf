"""Blocks of rows: their order, their products, and threads that change nothing."""

import itertools
import threading

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from cases import thinned
from drago.metric import make_metric
from drago.rows.tables import array_blocks as module
from drago.rows.tables.array_blocks import ArrayBlocks
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import LaggedSteps
from drago.solvers.drago.variants import LaggedIterations, SupportIterations


def Blocks(problem, count, n_threads=1):
    return ArrayBlocks(problem.rows, problem.loss, problem.n_outputs, count, n_threads)


STORAGES = {
    "dense": np.asarray,
    "fortran": np.asfortranarray,
    "float32": lambda X: X.astype(np.float32),
    "csr": sp.csr_array,
    "csr32": lambda X: sp.csr_array(X.astype(np.float32)),
}


@pytest.fixture(params=["copied", "in place", "in parts"])
def cut(request, monkeypatch):
    """Small data as they are, as if they were large, and cut into parts."""
    if request.param != "copied":
        monkeypatch.setattr(module, "SMALL", 0)
    if request.param == "in parts":
        monkeypatch.setattr(module, "_PART", 64)
        monkeypatch.setattr(module, "_CHUNK", 64)
    return request.param


def problem_of(storage="dense", n=203, d=5, loss="multinomial", **kwargs):
    rng = np.random.default_rng(3)
    # Numbers that float32 holds exactly, so that all storages hold the same.
    X = rng.standard_normal((n, d)).astype(np.float32).astype(float)
    X[np.abs(X) < 0.5] = 0.0
    z = X @ rng.standard_normal(d) + rng.standard_normal(n)
    y = np.digitize(z, [-0.7, 0.7]) if loss == "multinomial" else z
    kwargs = {"shift_cost": 0.05, "uncertainty": drago.CVaR(0.3), **kwargs}
    return X, drago.DROProblem(STORAGES[storage](X), y, loss=loss, **kwargs)


# ------------------------------------------------------------------------------------- the order


@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_gather_and_scatter_are_inverse(n):
    rng = np.random.default_rng(0)
    _, problem = problem_of(n=n, loss="squared")
    for count in range(1, n + 1):
        blocks = Blocks(problem, count)
        for array in (rng.standard_normal(n), rng.standard_normal((n, 3)), np.arange(n)):
            kept = array.copy()
            gathered = blocks.gather(array)
            assert gathered.dtype == array.dtype
            assert (blocks.scatter(gathered) == kept).all() and (array == kept).all()
            assert (blocks.gather(blocks.scatter(array)) == kept).all()
            for k, rows in enumerate(blocks.slices):
                assert (gathered[rows] == array[k::count]).all()


@pytest.mark.parametrize("count", [1, 4, 5, 24])
def test_the_slices_are_a_partition_into_blocks_of_equal_size(count):
    _, problem = problem_of(n=24)
    slices = Blocks(problem, count).slices
    assert len(slices) == count and slices[0].start == 0 and slices[-1].stop == 24
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))
    sizes = [rows.stop - rows.start for rows in slices]
    assert max(sizes) - min(sizes) <= 1


# ---------------------------------------------------------------------------------- the products


@pytest.mark.thinned(2)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("intercept", [False, True])
def test_products_with_a_block(storage, count, intercept, cut):
    X, problem = problem_of(storage, fit_intercept=intercept)
    blocks = Blocks(problem, count)
    assert (len(blocks._parts[0]) > 2) == (cut == "in parts")
    rng = np.random.default_rng(1)
    w, b = rng.standard_normal((5, 3)), intercept * rng.standard_normal(3)
    ev = problem.evaluate(w, b)
    for k, rows in enumerate(blocks.slices):
        size = rows.stop - rows.start
        losses, slopes = np.empty(size), np.empty((size, 3))
        blocks.evaluate(k, w, b, losses, slopes)
        np.testing.assert_allclose(losses, ev.losses[k::count], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(slopes, ev.dlosses[k::count], rtol=1e-12, atol=1e-14)
        weights = rng.standard_normal((size, 3))
        found = blocks.accumulate(k, weights)
        np.testing.assert_allclose(found, X[k::count].T @ weights, rtol=0, atol=1e-12)
        kept = found.copy()
        blocks.accumulate(k, 2.0 * weights)
        assert (found == kept).all()  # a new array each time


@pytest.mark.thinned(2)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("support", ["all", "some", "one", "tiny"])
def test_the_gradient_of_the_rows_with_weight(storage, support, cut):
    X, problem = problem_of(storage, fit_intercept=True)
    count, n = 4, 203
    blocks = Blocks(problem, count)
    rng = np.random.default_rng(2)
    q = rng.exponential(size=n)
    q[{"all": slice(0, 0), "some": slice(0, n, 2), "one": slice(0, n - 1)}.get(support, 0)] = 0.0
    q /= q.sum()
    if support == "tiny":  # not worth a visit, and not missed
        q[::3] = 1e-18
    w, b = rng.standard_normal((5, 3)), rng.standard_normal(3)
    ev = problem.evaluate(w, b)
    expected = X.T @ (q[:, None] * ev.dlosses), q @ ev.dlosses
    gathered = blocks.gather(ev.dlosses)
    for known in ({}, {1: gathered[blocks.slices[1]], 3: gathered[blocks.slices[3]]}):
        grad, grad_b, size = blocks.gradient(blocks.gather(q), w, b, known)
        np.testing.assert_allclose(grad, expected[0], rtol=0, atol=1e-13)
        np.testing.assert_allclose(grad_b, expected[1], rtol=0, atol=1e-13)
        copied = cut == "copied" and storage in ("dense", "fortran", "float32")
        unknown = n - sum(slopes.shape[0] for slopes in known.values())
        assert size == (unknown if copied else np.count_nonzero(q > 1e-12 / n))


def test_features_are_not_copied_where_they_are_large(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    _, problem = problem_of("dense")
    blocks = Blocks(problem, 4)
    assert not blocks._rows
    assert all(np.shares_memory(blocks._block(k, 0, 50), problem.X) for k in range(4))


@pytest.mark.parametrize("n, count", [(64, 2), (203, 3), (1000, 7), (1003, 1)])
def test_groups_of_rows_are_dealt_out(monkeypatch, n, count):
    """Groups of 4 neighbours, the last one smaller: products, orders and rows agree with X."""
    for name, value in (("SMALL", 0), ("_GROUP", 4), ("_PLENTY", 2), ("_PART", 64)):
        monkeypatch.setattr(module, name, value)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 5)), rng.standard_normal(n)
    problem = drago.DROProblem(X, y, shift_cost=0.1)
    blocks = Blocks(problem, count)
    assert blocks._group == 4
    order = blocks.gather(np.arange(n))
    assert (np.sort(order) == np.arange(n)).all() and (blocks.scatter(order) == np.arange(n)).all()
    sizes = [rows.stop - rows.start for rows in blocks.slices]
    assert sum(sizes) == n and max(sizes) - min(sizes) <= 4
    w, b = rng.standard_normal((5, 1)), np.zeros(1)
    for k, rows in enumerate(blocks.slices):
        mine = order[rows]
        assert (blocks._row_of(k, np.arange(mine.size)) == mine).all()
        losses, slopes = np.empty(mine.size), np.empty((mine.size, 1))
        blocks.evaluate(k, w, b, losses, slopes)
        np.testing.assert_allclose(slopes[:, 0], X[mine] @ w[:, 0] - y[mine], rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            blocks.accumulate(k, slopes), X[mine].T @ slopes, rtol=0, atol=1e-11
        )
    q = rng.random(n) * (rng.random(n) < 0.3)
    found, _, size = blocks.gradient(blocks.gather(q), w, b, {})
    expected = X.T @ (q * (X @ w[:, 0] - y))
    np.testing.assert_allclose(found[:, 0], expected, rtol=0, atol=1e-11)
    assert size == np.count_nonzero(q)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize(("n", "d", "count"), [(40003, 3, 2), (5001, 40, 3), (1026, 1, 4)])
def test_compiled_visits(loss, dtype, share, n, d, count, monkeypatch):
    """Groups of up to 256 rows, whole and not, of which all, some or none have weight."""
    monkeypatch.setattr(module, "SMALL", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)).astype(dtype)
    y = rng.standard_normal(n)
    y = (y > 0).astype(float) if loss == "logistic" else y
    problem = drago.DROProblem(X, y, loss=loss, shift_cost=0.1, fit_intercept=True)
    blocks = Blocks(problem, count)
    assert blocks._is_compiled and blocks._group == {2: 256, 3: 16, 4: 4}[count]
    order, X = blocks.gather(np.arange(n)), X.astype(float)
    w, b = rng.standard_normal((d, 1)), np.array([0.3])
    losses, slopes = (blocks.gather(a) for a in problem.loss.evaluate(problem.y, X @ w + b))
    q = rng.random(n) * (rng.random(n) < share)
    product = rng.standard_normal((n, 1)) * (rng.random((n, 1)) < share)
    total, total_b = np.zeros((d, 1)), np.zeros(1)
    for k, rows in enumerate(blocks.slices):
        here = X[order[rows]]
        room = np.empty(here.shape[0]), np.empty((here.shape[0], 1))
        found = blocks.correction(k, w, b, q[rows], product[rows], *room)
        change = q[rows, None] * slopes[rows] - product[rows]
        np.testing.assert_allclose(found[0], here.T @ change, rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(found[1], change.sum(axis=0), rtol=1e-12, atol=1e-10)
        blocks.evaluate(k, w, b, *room)
        np.testing.assert_allclose(room[0], losses[rows], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(room[1], slopes[rows], rtol=1e-12, atol=1e-13)
        summed = blocks.accumulate(k, change)
        np.testing.assert_allclose(summed, here.T @ change, rtol=1e-12, atol=1e-10)
        total += here.T @ (q[rows, None] * slopes[rows])
        total_b += q[rows] @ slopes[rows]
    found = blocks.gradient(q, w, b, {})
    np.testing.assert_allclose(found[0], total, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found[1], total_b, rtol=1e-12, atol=1e-9)
    assert found[2] == np.count_nonzero(q)


def test_visits_that_are_not_compiled(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2000, 3)), rng.standard_normal(2000)

    def is_compiled(X, y=y, count=2, **kwargs):
        return Blocks(drago.DROProblem(X, y, shift_cost=0.1, **kwargs), count)._is_compiled

    assert is_compiled(X)
    assert not is_compiled(np.asfortranarray(X)) and not is_compiled(sp.csr_array(X))
    assert not is_compiled(X, count=100)
    assert not is_compiled(X, np.arange(2000) % 3, loss="multinomial")
    assert not is_compiled(X, loss=lambda y, raw: (0.5 * (raw - y) ** 2, raw - y))
    monkeypatch.undo()
    assert not is_compiled(X)


# ------------------------------------------------------------------------------------ the threads


@pytest.mark.parametrize(
    "storage, kind, loss",
    thinned(
        ["dense", "float32", "csr", "csr32"],
        [Iterations, SupportIterations, LaggedIterations],
        ["squared", "multinomial"],
        keep=3,
    ),
)
def test_threads_do_not_change_a_bit(storage, kind, loss, monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module, "_PART", 256)
    monkeypatch.setattr(module, "_CHUNK", 64)
    lagged = kind is LaggedIterations  # which knows no intercept
    _, problem = problem_of(storage, 1200, 6, loss, fit_intercept=not lagged)
    mean = None if lagged else problem.rows.centre()
    start = problem.evaluate(np.zeros((6, problem.n_outputs)), np.zeros(problem.n_outputs))
    draws = np.random.default_rng(0).integers(0, 3, size=(12, 2)).tolist()
    found = []
    for n_threads in (1, 2, 3):
        tables = problem.rows.tables(problem, kind.kind, 3, n_threads)
        assert (tables.blocks._pool is None) == (n_threads == 1)
        q = "nominal" if lagged else "exact"
        it = kind(problem, tables, make_metric(problem, "full", mean), mean, start, q)
        if lagged:
            it.steps = LaggedSteps(0.05)
        for i, j in draws:
            it.step(i, j)
        tables.close()
        found.append((it.w, it.b, tables.q, tables.loss_table, it._aggregate))
    assert np.abs(found[0][0]).max() > 1e-3
    for other in found[1:]:
        for one, two in zip(found[0], other):
            assert (one == two).all()


def test_a_solve_is_the_same_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module, "_PART", 256)
    monkeypatch.setattr(module, "_CHUNK", 64)
    monkeypatch.setattr("drago.rows.base.RowStore.small", 0)
    for storage in ("dense", "csr"):
        _, problem = problem_of(storage, 2000, 6)
        one, two, three = (
            drago.solve(problem, drago.Drago(n_threads=count), tol=1e-6) for count in (1, 2, 3)
        )
        for other in (two, three):
            assert (one.coef == other.coef).all() and one.primal == other.primal
            assert (one.dual_weights == other.dual_weights).all()
            assert one.n_iter == other.n_iter and one.n_passes == other.n_passes


def test_threads_end_with_the_solve(monkeypatch):
    monkeypatch.setattr(module, "_PART", 256)
    before = threading.active_count()
    _, problem = problem_of("dense", 2000, 6)
    drago.solve(problem, drago.Drago(n_threads=3), tol=1e-6)
    assert threading.active_count() == before


def test_threads_only_where_there_is_work_and_never_for_a_users_loss(monkeypatch):
    _, problem = problem_of("dense")
    assert Blocks(problem, 4, 3)._pool is None and Blocks(problem, 4, None)._pool is None
    monkeypatch.setattr(module, "_PART", 64)
    pool = Blocks(problem, 4, 3)._pool
    assert pool is not None and pool._max_workers == 3

    def squared(y, raw):
        return 0.5 * (raw - y) ** 2, raw - y

    _, mine = problem_of("dense", loss="squared")
    mine = drago.DROProblem(mine.X, mine.y, loss=squared, shift_cost=0.1)
    assert Blocks(mine, 4, 3)._pool is None
