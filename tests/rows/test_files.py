"""Rows in files: the answers of the same rows in memory, whatever the parts and the threads."""

import os
import threading

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from cases import thinned
from drago.files.blocks import Blocks, Held, SourceChangedError
from drago.rows import file_part
from drago.rows.files import FileRows
from filed import LOSSES, SETS, STORAGE, D, N, agree, blocks_of, data, make, written


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("loss", LOSSES)
def test_weights_and_gradients(tmp_path, loss, name, count):
    problem, filed = make(tmp_path, loss, name, count=count, fit_intercept=True)
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(D, problem.n_outputs)), rng.normal(size=problem.n_outputs)
    here, there = problem.dual_oracle(), filed.dual_oracle()
    for _ in range(3):  # cold, and from where the last search ended
        ours, theirs = problem.visit(w, b, here), filed.visit(w, b, there)
        q = ours.q
        np.testing.assert_allclose(filed.rows.export(theirs.q), q, rtol=0, atol=1e-11 * q.max())
        assert filed.violation(theirs.q) <= 1e-12
        for found, expected in zip(theirs.gradient, ours.gradient):
            size = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * size)
        value = problem.primal(w, ours.evaluation.losses, q)
        assert filed.primal(w, theirs.evaluation.losses, theirs.q) == pytest.approx(
            value, rel=1e-12
        )
        w = 1.001 * w


@pytest.mark.parametrize("loss, name, storage, count, fit_intercept", thinned(
    LOSSES, SETS, STORAGE, [1, 2, 7, 64], [False, True], keep=29))  # fmt: skip
def test_a_solve_finds_what_it_finds_in_memory(tmp_path, loss, name, storage, count, fit_intercept):
    problem, filed = make(tmp_path, loss, name, storage, count, fit_intercept=fit_intercept)
    here, there = drago.solve(problem, tol=1e-6), drago.solve(filed, tol=1e-6)
    agree(here, there, problem, 1e-6)


@pytest.mark.parametrize("settings", [
    {"nu": 0.0}, {"constraint": drago.NonNegative()}, {"constraint": drago.L2Ball(0.5)},
    {"l2_reg": 0.0}, {"nu": "auto"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["cvar", "chi2 ball", "groups"])
def test_settings(tmp_path, name, settings):
    problem, filed = make(tmp_path, "logistic", name, fit_intercept=True, **settings)
    assert filed.nu == pytest.approx(problem.nu, rel=1e-12)
    here, there = drago.solve(problem, tol=1e-5), drago.solve(filed, tol=1e-5)
    agree(here, there, problem, 1e-5)


@pytest.mark.parametrize("name", ["cvar", "kl ball", "groups"])
def test_a_baseline(tmp_path, name):
    X, y, more = data("squared")
    more["baseline"] = np.random.default_rng(1).uniform(0.0, 1.0, N)
    uncertainty, divergence = SETS[name]
    settings = {"uncertainty": uncertainty, "divergence": divergence, "shift_cost": 0.1}
    problem = drago.DROProblem(X, y, **more, **settings)
    filed = drago.DROProblem(blocks_of(tmp_path, X, y, **more), **settings)
    here, there = drago.solve(problem, tol=1e-6), drago.solve(filed, tol=1e-6)
    agree(here, there, problem, 1e-6)
    plain = {key: value for key, value in more.items() if key != "baseline"}
    other = drago.DROProblem(
        blocks_of(tmp_path, X, y, **plain), baseline=more["baseline"], **settings
    )
    assert other.objective(there.coef) == pytest.approx(there.primal, rel=1e-12)
    assert other.shift_cost == problem.shift_cost


def test_equal_objectives_over_parts(tmp_path):
    """At a tight tolerance, whatever the number of parts."""
    found = []
    for count in (1, 2, 7, 64):
        folder = tmp_path / str(count)
        folder.mkdir()
        _, filed = make(folder, "logistic", count=count, fit_intercept=True, l2_reg=1e-2)
        found.append(drago.solve(filed, tol=1e-10).primal)
    np.testing.assert_allclose(found, found[0], rtol=1e-9)


@pytest.mark.parametrize("storage", STORAGE)
def test_threads_and_reading_ahead_change_no_bit(tmp_path, monkeypatch, storage):
    monkeypatch.setattr("drago.rows.array_visits._AT_ONCE", 1 << 6)
    _, filed = make(tmp_path, "logistic", storage=storage, fit_intercept=True)
    results = [drago.solve(filed, tol=1e-6, n_threads=n) for n in (1, 2, 4)]

    read = file_part.Features.read

    def slowly(self, start, stop, buffers=None):
        threading.Event().wait(1e-3)
        return read(self, start, stop, buffers)

    monkeypatch.setattr(file_part.Features, "read", slowly)
    results.append(drago.solve(filed, tol=1e-6))
    for other in results[1:]:
        np.testing.assert_array_equal(other.coef, results[0].coef)
        np.testing.assert_array_equal(other.dual_weights, results[0].dual_weights)
        assert other.n_passes == results[0].n_passes


# --------------------------------------------------------------------- what a visit reads


def large(folder, name="cvar", n=20_000, d=20, **more):
    X, y, _ = data("squared", n=n, d=d)
    order = np.random.default_rng(0).permutation(n)
    uncertainty, divergence = SETS[name]
    settings = {"uncertainty": uncertainty, "divergence": divergence, "shift_cost": 0.5}
    blocks = blocks_of(folder, X[order], y[order], 6)
    return drago.DROProblem(blocks, **settings), drago.DROProblem(X[order], y[order], **settings)


@pytest.mark.parametrize("name", ["cvar", "cvar kl", "simplex", "simplex kl", "mean"])
def test_a_visit_reads_the_features_once(tmp_path, monkeypatch, name):
    monkeypatch.setattr(file_part, "_GAP", 0)
    filed, problem = large(tmp_path, name)
    filed.rows._witnesses  # noqa: B018
    oracle, witness = filed.dual_oracle(), problem.dual_oracle()
    w, b = np.full((20, 1), 0.3), np.zeros(1)
    for k in range(3):
        before = filed.rows.readings
        found, expected = filed.visit(w, b, oracle), problem.visit(w, b, witness)
        assert before + 1 <= filed.rows.readings <= before + 1.1
        size = np.abs(expected.gradient.w).max()
        np.testing.assert_allclose(found.gradient.w, expected.gradient.w, rtol=0, atol=1e-11 * size)
        w = w + 0.02 * (k + 1)


def test_the_trivial_model_is_not_read_for_its_losses(tmp_path):
    filed, _ = large(tmp_path)
    filed.reference  # noqa: B018
    assert filed.rows.readings == 0
    filed.visit(np.zeros((20, 1)), np.zeros(1), filed.dual_oracle())
    assert filed.rows.readings == 1


def test_few_readings_for_a_solve(tmp_path, monkeypatch):
    monkeypatch.setattr(file_part, "_GAP", 1 << 10)
    filed, problem = large(tmp_path, n=60_000)
    here, there = drago.solve(problem, tol=1e-4), drago.solve(filed, tol=1e-4)
    agree(here, there, problem, 1e-4)
    assert "started from" in there.message and "rows in parts" in there.message
    assert filed.rows.readings <= 8


def test_a_sample_is_the_same_rows_whatever_the_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(file_part, "_GAP", 200)
    monkeypatch.setattr(file_part, "_AT_ONCE", 400)
    for storage in STORAGE:
        for count in (1, 7):
            problem, filed = make(tmp_path, storage=storage, count=count)
            for index in (np.arange(0, N, 3), np.array([0, 100, 101, N - 1]), np.array([7])):
                here, there = problem.rows.take(index), filed.rows.take(index)
                for a, b in zip(here.content(), there.content()):
                    if a is not None:
                        a, b = (x.toarray() if sp.issparse(x) else x for x in (a, b))
                        np.testing.assert_allclose(a, b, rtol=1e-15)
            part = filed.rows.parts[-1]
            index = np.array([3, 0, 2])[: min(3, part.n_samples)] % part.n_samples
            whole = problem.rows.X[N - part.n_samples :]
            found = part.picked(index)
            found, expected = (x.toarray() if sp.issparse(x) else x for x in (found, whole[index]))
            np.testing.assert_array_equal(found, expected)


def test_rows_are_worked_on_a_few_at_a_time(tmp_path, monkeypatch):
    """The curvature of many rows, and Newton's method, in small pieces."""
    monkeypatch.setattr(file_part, "_PIECE", 64)
    for loss in LOSSES:
        for name in ("cvar", "groups", "kl ball"):
            problem, filed = make(tmp_path, loss, name, fit_intercept=True)
            here = drago.solve(problem, "newton", tol=1e-7)
            there = drago.solve(filed, "newton", tol=1e-7)
            agree(here, there, problem, 1e-7)


# ------------------------------------------------------------------------ vectors and memory


def test_vectors_in_files_change_nothing(tmp_path, monkeypatch):
    for name in ("cvar", "extremile", "groups"):
        _, filed = make(tmp_path, "logistic", name, fit_intercept=True)
        expected = drago.solve(filed, tol=1e-6)
        assert filed.rows.memory.spilled == 0
        with monkeypatch.context() as patch:
            patch.setattr("drago.rows.room._FILE", 1 << 16)
            _, tight = make(tmp_path, "logistic", name, fit_intercept=True)
            tight.rows.memory.limit = 0
            found = drago.solve(tight, tol=1e-6)
        assert tight.rows.memory.spilled > 0
        np.testing.assert_array_equal(found.coef, expected.coef)
        np.testing.assert_array_equal(found.dual_weights, expected.dual_weights)


def test_a_sort_beyond_the_limit_is_refused(tmp_path):
    X, y, _ = data("squared")
    given = blocks_of(tmp_path, X, y)
    small = Blocks(*X.shape, given.columns, given.ends, memory_limit=1000)
    with pytest.raises(MemoryError, match="needs a sort of all losses"):
        drago.DROProblem(small, uncertainty="extremile", shift_cost=0.1).reference  # noqa: B018
    problem = drago.DROProblem(small, uncertainty="cvar", shift_cost=0.1)
    assert drago.solve(problem).status == "optimal"


def test_nominal_weights_that_are_equal_are_not_stored(tmp_path):
    X, y, _ = data("squared")
    rows = FileRows(blocks_of(tmp_path, X, y), drago.Squared())
    assert rows.is_uniform
    assert len({part.p.base.ctypes.data for part in rows.parts}) == 1


# ------------------------------------------------------------------------------ what goes wrong


def test_what_is_not_offered_is_refused_by_name(tmp_path):
    _, filed = make(tmp_path)
    for solver in ("sgd", "lsvrg", "prospect"):
        with pytest.raises(ValueError, match=f"solver '{solver}' needs"):
            drago.solve(filed, solver)
    with pytest.raises(AttributeError, match="no X as one array"):
        filed.X  # noqa: B018


def test_what_belongs_to_the_rows_is_in_the_source(tmp_path):
    X, y, _ = data("squared")
    given = blocks_of(tmp_path, X, y)
    for name in ("y", "sample_weight", "groups"):
        with pytest.raises(ValueError, match=f"but {name}= was given"):
            drago.DROProblem(given, **{name: y})
    with pytest.raises(ValueError, match="y is missing"):
        drago.DROProblem(X)


def test_weights_of_nothing_are_refused(tmp_path):
    X, y, _ = data("squared")
    weights = np.ones(N)
    weights[3] = 0.0
    with pytest.raises(ValueError, match="sample_weight must be positive on all rows"):
        drago.DROProblem(blocks_of(tmp_path, X, y, sample_weight=weights))


def test_labels_are_checked_over_all_parts(tmp_path):
    X, y, _ = data("multinomial")
    filed = drago.DROProblem(blocks_of(tmp_path, X, y, 64), loss="multinomial")
    assert filed.n_outputs == 3
    with pytest.raises(ValueError, match="must hold 0 and 1 for the logistic loss"):
        drago.DROProblem(blocks_of(tmp_path, X, y), loss="logistic")
    with pytest.raises(ValueError, match="at least two classes"):
        drago.DROProblem(blocks_of(tmp_path, X, np.ones(N)), loss="logistic")


@pytest.mark.parametrize("storage", ["float32", "csr"])
def test_check_sums_of_parts_in_pieces(tmp_path, monkeypatch, storage):
    monkeypatch.setattr(file_part, "_VISITED", 64)
    X, y, _ = data("squared", storage)
    filed = drago.DROProblem(blocks_of(tmp_path, X, y, 3), shift_cost=0.1)
    w, b = np.ones((D, 1)), np.zeros(1)
    filed.evaluate(w, b)
    name = "X" if storage == "float32" else "indices"
    path = filed.rows.blocks.columns[name].path
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x00\x00\x00\x00")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    filed.evaluate(w, b)  # a part is looked at once
    with pytest.raises(SourceChangedError, match=f"{name}.bin is damaged: part 2 has another"):
        drago.DROProblem(filed.rows.blocks, shift_cost=0.1).evaluate(w, b)


@pytest.mark.parametrize("damage, message", [
    ("gone", "X.bin is gone"), ("short", "X.bin was changed"), ("other", "X.bin was changed"),
    ("rotten", "X.bin is damaged: part"),
])  # fmt: skip
def test_a_file_that_changes_is_named(tmp_path, damage, message):
    X, y, _ = data("squared")
    filed = drago.DROProblem(blocks_of(tmp_path, X, y), shift_cost=0.1)
    path = filed.rows.blocks.columns["X"].path
    found = os.stat(path)
    if damage == "gone":
        os.remove(path)
    elif damage == "short":
        os.truncate(path, 100)
    else:
        with open(path, "r+b") as file:
            file.seek(-11, os.SEEK_END)
            file.write(b"z")
        later = 1 if damage == "other" else 0
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + later))
    before = threading.active_count()
    with pytest.raises(SourceChangedError, match=message):
        drago.solve(filed)
    assert threading.active_count() == before


def test_an_interrupt_between_two_parts(tmp_path, monkeypatch):
    """The best model so far is the answer, and no thread is left."""
    import signal

    _, filed = make(tmp_path, "logistic", fit_intercept=True)
    seen = []
    read = file_part.Features.read

    def interrupted(self, start, stop, buffers=None):
        seen.append(start)
        if len(seen) == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return read(self, start, stop, buffers)

    monkeypatch.setattr(file_part.Features, "read", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        result = drago.solve(filed, tol=1e-12)
    assert result.status == "interrupted"
    assert np.isfinite(result.primal)


def test_arrays_beside_files(tmp_path):
    X, y, more = data("squared")
    columns = {"X": written(tmp_path, "X", X), "y": Held(y)}
    columns["sample_weight"] = Held(more["sample_weight"])
    filed = drago.DROProblem(Blocks(N, D, columns, (100, N)), shift_cost=0.1)
    problem = drago.DROProblem(X, y, sample_weight=more["sample_weight"], shift_cost=0.1)
    agree(drago.solve(problem), drago.solve(filed), problem, 1e-4)
