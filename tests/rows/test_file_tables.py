"""DRAGO on rows in files: the steps and the answers of the same rows in memory."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import drago
from cases import thinned
from drago.files.blocks import SourceChangedError
from drago.files.checkpoint import CheckpointError, load, save
from drago.rows.tables import file_blocks
from drago.rows.tables.file_blocks import deal_out
from drago.solvers.drago.iterations import Iterations
from filed import LOSSES, SETS, STORAGE, D, N, agree, blocks_of, data, make

# Eight blocks, of single rows dealt out in turn as in memory.
BLOCKS = -(-N // 8)
KINDS = {
    "blocks": {"primal": "blocks"},
    "support": {"primal": "support"},
    "lagged": {"tables": "lagged", "start": "paper", "step_size": 0.02},
}


def drago_of(kind, **more):
    settings = {"block_size": BLOCKS, "progressive": False, "finish": "none", **KINDS[kind]}
    return drago.Drago(**settings, **more)


def steps(problem, method, count, **more):
    """So many iterations and no more."""
    with pytest.warns(UserWarning, match="max_iter"):
        return drago.solve(problem, method, tol=1e-14, max_iter=count, **more)


# ------------------------------------------------------------------------------ the blocks


@pytest.mark.parametrize("count", [1, 3, 8, 230])
@pytest.mark.parametrize("ends", [(230,), (1, 100, 230), tuple(range(1, 231))], ids=len)
@pytest.mark.parametrize("longest", [1, 5, 1000])
def test_blocks_hold_every_row_once(count, ends, longest):
    blocks = deal_out(ends, count, longest)
    starts = (0, *ends)
    rows = np.full(ends[-1], -1)
    for k, spans in enumerate(blocks):
        place = 0
        for span in spans:
            assert 0 < span.size <= longest and span.place == place
            assert starts[span.part] + span.first == span.start
            assert span.start + span.size <= ends[span.part]
            assert (rows[span.of_all] == -1).all()
            rows[span.of_all] = k
            place += span.size
    whole = deal_out((ends[-1],), count, longest)
    expected = np.empty_like(rows)
    for k, spans in enumerate(whole):
        for span in spans:
            expected[span.of_all] = k
    np.testing.assert_array_equal(rows, expected)  # whatever the parts
    sizes = np.bincount(rows, minlength=count)
    assert sizes.min() > 0 and sizes.max() <= 2 * sizes.min() + longest


# ------------------------------------------------------------------- as the rows in memory


@pytest.mark.parametrize("loss, name, storage, kind, fit_intercept", thinned(
    LOSSES, SETS, STORAGE, KINDS, [False, True], keep=17))  # fmt: skip
def test_steps_are_those_in_memory(tmp_path, monkeypatch, loss, name, storage, kind, fit_intercept):
    """Every point on the way.

    What differs are the orders of sums over 230 rows, and so the rounding of a step by at most
    some 1e-13 of its size; a few steps do not make much more of it.
    """
    if kind == "lagged" and fit_intercept:
        pytest.skip("the paper's start fits none")
    problem, filed = make(tmp_path, loss, name, storage, 7, fit_intercept=fit_intercept)
    move, points = Iterations._move, []

    def recorded(self, *arguments):
        move(self, *arguments)
        points[-1].append(np.append(self.w, self.b))

    monkeypatch.setattr(Iterations, "_move", recorded)
    for each in (problem, filed):
        points.append([])
        steps(each, drago_of(kind), 12)
    here, there = (np.array(each) for each in points)
    assert here.shape == there.shape and here.shape[0] == 12
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-11 * np.abs(here).max())


# Parts of three or four rows take five times as long: a third of them, with every loss and set.
@pytest.mark.parametrize("loss, name, storage, count, fit_intercept", [
    *thinned(LOSSES, SETS, STORAGE, [1, 2, 7], [False, True], keep=29),
    *thinned(LOSSES, SETS, STORAGE, [64], [False, True], keep=29, every=3),
])  # fmt: skip
def test_a_solve_finds_what_it_finds_in_memory(tmp_path, loss, name, storage, count, fit_intercept):
    problem, filed = make(tmp_path, loss, name, storage, count, fit_intercept=fit_intercept)
    here, there = drago.solve(problem, tol=1e-6), drago.solve(filed, "drago", tol=1e-6)
    agree(here, there, problem, 1e-6)


@pytest.mark.parametrize("loss, name, settings", [
    ("squared", "cvar", {"nu": 0.0}), ("logistic", "chi2 ball", {"nu": 0.0}),
    ("huber", "cvar kl", {"nu": 0.0}), ("squared", "cvar", {"l2_reg": 0.0}),
    ("logistic", "cvar", {"constraint": drago.NonNegative()}),
    ("multinomial", "groups", {"constraint": drago.L2Ball(0.5)}),
], ids=str)  # fmt: skip
def test_settings(tmp_path, loss, name, settings):
    problem, filed = make(tmp_path, loss, name, fit_intercept=True, **settings)
    here, there = drago.solve(problem, tol=1e-5), drago.solve(filed, "drago", tol=1e-5)
    agree(here, there, problem, 1e-5)


@pytest.mark.parametrize("name", ["cvar", "kl ball", "groups"])
def test_a_baseline(tmp_path, name):
    X, y, more = data("squared")
    more["baseline"] = np.random.default_rng(1).uniform(0.0, 1.0, N)
    uncertainty, divergence = SETS[name]
    settings = {"uncertainty": uncertainty, "divergence": divergence, "shift_cost": 0.1}
    problem = drago.DROProblem(X, y, **more, **settings)
    filed = drago.DROProblem(blocks_of(tmp_path, X, y, **more), **settings)
    for kind in ("blocks", "support"):
        here, there = (
            drago.solve(each, drago_of(kind), tol=1e-5) for each in (problem, filed)
        )  # fmt: skip
        agree(here, there, problem, 1e-5)


@pytest.mark.parametrize("loss, name", [
    ("logistic", "cvar"),
    *(pytest.param(loss, name, marks=pytest.mark.slow) for loss, name in [
        ("squared", "chi2 ball"), ("logistic", "cvar kl"), ("multinomial", "extremile"),
        ("huber", "groups"), ("logistic", "kl ball")]),
])  # fmt: skip
def test_equal_objectives_over_parts(tmp_path, loss, name):
    found = []
    for count in (1, 2, 7, 64):
        folder = tmp_path / str(count)
        folder.mkdir()
        _, filed = make(folder, loss, name, count=count, fit_intercept=True, l2_reg=1e-2)
        result = drago.solve(filed, "drago", tol=1e-10)
        assert result.status == "optimal", result.message
        found.append(result.primal)
    np.testing.assert_allclose(found, found[0], rtol=1e-9)


# ---------------------------------------------------------------------- to the last bit


def same(results):
    for other in results[1:]:
        np.testing.assert_array_equal(other.coef, results[0].coef)
        np.testing.assert_array_equal(other.dual_weights, results[0].dual_weights)
        assert other.n_iter == results[0].n_iter


@pytest.mark.parametrize("kind", ["blocks", "support"])
@pytest.mark.parametrize("storage", STORAGE)
def test_threads_and_reading_ahead_change_no_bit(tmp_path, monkeypatch, storage, kind):
    monkeypatch.setattr("drago._threads._WORTH", 1)
    _, filed = make(tmp_path, "logistic", storage=storage, fit_intercept=True)
    method = drago_of(kind)
    results = [steps(filed, method, 10, n_threads=n) for n in (1, 2, 4)]
    features, turn = type(filed.rows.source), iter(range(1 << 30))
    read = features.read

    def slowly(self, start, stop, *more):
        threading.Event().wait(1e-4 * (next(turn) % 3))
        return read(self, start, stop, *more)

    monkeypatch.setattr(features, "read", slowly)
    results.append(steps(filed, method, 10, n_threads=3))
    same(results)


@pytest.mark.parametrize("loss, name", [("squared", "cvar"), ("multinomial", "cvar kl")])
def test_vectors_in_files(tmp_path, loss, name):
    """The steps are the same, up to the rounding of the sums that weights come from."""
    X, y, more = data(loss)
    uncertainty, divergence = SETS[name]
    settings = {"loss": loss, "uncertainty": uncertainty, "divergence": divergence,
                "shift_cost": 0.1, "l2_reg": 1e-2}  # fmt: skip
    results = []
    for limit in (1 << 30, 1):
        blocks = blocks_of(tmp_path, X, y, **more)
        object.__setattr__(blocks, "memory_limit", limit)
        filed = drago.DROProblem(blocks, **settings)
        results.append(steps(filed, drago_of("blocks"), 30))
        assert (filed.rows.memory.spilled > 0) == (limit == 1)
    here, there = results
    np.testing.assert_allclose(here.coef, there.coef, rtol=1e-9)
    np.testing.assert_allclose(here.dual_weights, there.dual_weights, rtol=0, atol=1e-9)


# ----------------------------------------------------------------------- what is read


def tables_of(folder, kind="blocks", limit=1 << 30, n=4000, d=20):
    X, y, _ = data("squared", n=n, d=d)
    order = np.random.default_rng(0).permutation(n)
    blocks = blocks_of(folder, X[order], y[order], 6)
    object.__setattr__(blocks, "memory_limit", limit)
    problem = drago.DROProblem(blocks, uncertainty=drago.CVaR(0.2), shift_cost=0.5)
    tables = problem.rows.tables(problem, kind, 8, 1)
    w, b = np.full((d, 1), 0.1), np.zeros(1)
    tables.fill(problem.evaluate(w, b), "exact")
    return problem, tables, w, b


@pytest.mark.parametrize("limit, again", [(1 << 30, 0), (1, 1)])
def test_an_iteration_reads_its_blocks(tmp_path, limit, again):
    """And block K twice where it cannot be kept."""
    problem, tables, w, b = tables_of(tmp_path, limit=limit)
    source, row = problem.rows.source, problem.rows.source.row_bytes
    before = source.read_so_far
    there, here, slopes = tables.visit(2, 5, False, w, b)
    assert source.read_so_far - before == row * (tables.sizes[2] + tables.sizes[5])
    change = tables.change(2, there, 1.0)
    tables.put(5, here)
    before = source.read_so_far
    tables.reweigh(2, change, 0.5, 1.0)
    assert source.read_so_far == before
    tables.renew(5, slopes, w)
    assert source.read_so_far - before <= again * row * tables.sizes[5]
    before = source.read_so_far
    tables.correction(3, w, b)
    assert 0 < source.read_so_far - before <= row * tables.sizes[3]


def test_rows_without_weight_are_not_read(tmp_path, monkeypatch):
    problem, tables, w, b = tables_of(tmp_path, "support")
    monkeypatch.setattr(tables.blocks, "_gap", 1)
    q = problem.rows.export(tables.q)
    source = problem.rows.source
    before = source.read_so_far
    grad, _ = tables.gradient(w, b)
    assert source.read_so_far - before <= 2 * source.row_bytes * np.count_nonzero(q)
    assert tables.seen == np.count_nonzero(q)
    expected = problem.gradient(problem.evaluate(w, b), tables.q).w
    np.testing.assert_allclose(grad, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_a_refreshment_reads_once(tmp_path):
    problem, tables, w, b = tables_of(tmp_path, n=20_000)
    readings = []
    for step in range(3):
        before = problem.rows.readings
        tables.fill(tables.evaluate(problem, (1.0 + 0.01 * step) * w, b), "exact")
        readings.append(problem.rows.readings - before)
    assert readings[-1] < 1.2


def test_a_file_that_is_gone(tmp_path, monkeypatch):
    _, filed = make(tmp_path)
    path = filed.rows.blocks.columns["X"].path
    visit = file_blocks.FileBlocks.evaluate

    def lost(self, *arguments):
        if os.path.exists(path):
            os.unlink(path)
        return visit(self, *arguments)

    monkeypatch.setattr(file_blocks.FileBlocks, "evaluate", lost)
    for n_threads in (1, 3):
        with pytest.raises(SourceChangedError, match=r"X\.bin is gone"):
            drago.solve(filed, drago_of("blocks"), n_threads=n_threads)


# ------------------------------------------------------------------------- going on


CASES = {
    "blocks": ("squared", "cvar", "blocks", {}),
    "support": ("logistic", "cvar", "support", {}),
    "lagged": ("squared", "cvar", "lagged", {"fit_intercept": False}),
    "kl": ("logistic", "cvar kl", "blocks", {}),
    "kl ball": ("squared", "kl ball", "blocks", {}),
    "chi2 ball": ("huber", "chi2 ball", "support", {}),
    "spectral": ("squared", "extremile", "blocks", {}),
    "groups": ("multinomial", "groups kl", "blocks", {}),
    "mu = 0": ("squared", "cvar", "blocks", {"l2_reg": 0.0}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [1 << 30, 1 << 14])
def test_a_solve_goes_on_to_the_last_bit(tmp_path, monkeypatch, case, limit):
    monkeypatch.setattr("drago.loop.resume._SHARE", np.inf)
    loss, name, kind, settings = CASES[case]
    X, y, more = data(loss)
    uncertainty, divergence = SETS[name]
    settings = {"loss": loss, "uncertainty": uncertainty, "divergence": divergence,
                "shift_cost": 0.1, "l2_reg": 1e-2, "fit_intercept": True, **settings}  # fmt: skip
    blocks = blocks_of(tmp_path, X, y, **more)
    object.__setattr__(blocks, "memory_limit", limit)
    method = drago_of(kind)

    def solved(count, checkpoint=None):
        problem = drago.DROProblem(blocks, **settings)
        return steps(problem, method, count, checkpoint=checkpoint, checkpoint_every=0.0)

    path = tmp_path / "solve"
    whole = solved(24)
    for stop in (9, 17):
        solved(stop, path)
    same([whole, solved(24, path)])
    arrays, state = load(path)
    spoilt = arrays | {"method.loss_table": arrays["method.loss_table"][:-1]}
    for found in tmp_path.glob("solve*"):
        found.unlink()
    save(path, spoilt, state)
    with pytest.raises(CheckpointError, match="loss_table"):
        drago.solve(drago.DROProblem(blocks, **settings), method, checkpoint=path)


SCRIPT = """
    import sys
    import numpy as np
    import drago
    import drago.loop.resume
    from drago.files.blocks import Blocks, Column, Held, Stamp

    drago.loop.resume._SHARE = np.inf
    path, checkpoint, out = sys.argv[1:]
    X = np.fromfile(path).reshape(-1, 6)
    y = X @ np.arange(6.0) + np.random.default_rng(1).standard_t(3, len(X))
    columns = {"X": Column(path, X.dtype, X.shape, 0, Stamp.of(path)), "y": Held(y)}
    blocks = Blocks(*X.shape, columns, (300, 1000, len(X)), digest="ours", memory_limit=1)
    problem = drago.DROProblem(blocks, uncertainty=drago.CVaR(0.2), shift_cost=0.05)
    method = drago.Drago(primal="blocks", block_size=250, finish="none", progressive=False)
    print("begun", flush=True)
    result = drago.solve(problem, method, tol=1e-7, checkpoint=checkpoint or None,
                         checkpoint_every=0.0)
    assert result.status == "optimal", result.message
    np.savez(out, coef=result.coef, q=result.dual_weights, n_iter=result.n_iter)
"""


@pytest.mark.slow
def test_kills_change_no_bit(tmp_path):
    path = str(tmp_path / "X.bin")
    np.random.default_rng(0).normal(size=(2000, 6)).tofile(path)
    rng = np.random.default_rng()

    def child(checkpoint, out):
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), path, checkpoint, str(out)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    whole = child("", tmp_path / "whole.npz")
    assert whole.wait() == 0
    kills, checkpoint = 0, str(tmp_path / "solve")
    while True:
        process = child(checkpoint, tmp_path / "killed.npz")
        process.stdout.readline()
        try:
            assert process.wait(None if kills == 20 else rng.uniform(0.0, 0.6)) == 0
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills > 0
    found, expected = (dict(np.load(tmp_path / name)) for name in ("killed.npz", "whole.npz"))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert found["q"].size > D
