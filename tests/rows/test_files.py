"""Rows in files: the answers of the same rows in memory, whatever the parts and the threads."""

import contextlib
import dataclasses
import os
import threading

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from cases import thinned
from drago._threads import limited
from drago.files.blocks import Blocks, Column, Held, SourceChangedError
from drago.rows import features, file_part, file_visits
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


def test_indices_of_int64(tmp_path):
    """No kernel reads them by itself."""
    X, y, more = data("logistic", "csr")
    long = X.copy()
    long.indices, long.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    settings = {"loss": "logistic", "shift_cost": 0.05, "fit_intercept": True}
    problem = drago.DROProblem(X, y, **more, **settings)
    filed = drago.DROProblem(blocks_of(tmp_path, long, y, **more), **settings)
    assert not filed.rows.source.is_filed
    here, there = drago.solve(problem, tol=1e-6), drago.solve(filed, tol=1e-6)
    agree(here, there, problem, 1e-6)


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
    monkeypatch.setattr("drago._threads._WORTH", 1)
    monkeypatch.setattr("drago.rows.array_visits._AT_ONCE", 1 << 6)
    _, filed = make(tmp_path, "logistic", storage=storage, fit_intercept=True)
    results = [drago.solve(filed, tol=1e-6, n_threads=n) for n in (1, 2, 4)]

    opened = Column.opened

    def slowly(self):
        threading.Event().wait(1e-3)
        return opened(self)

    monkeypatch.setattr(Column, "opened", slowly)
    results.append(drago.solve(filed, tol=1e-6))
    for other in results[1:]:
        np.testing.assert_array_equal(other.coef, results[0].coef)
        np.testing.assert_array_equal(other.dual_weights, results[0].dual_weights)
        assert other.n_passes == results[0].n_passes


@pytest.mark.parametrize("storage", STORAGE)
def test_windows_parts_and_threads_change_no_bit_of_a_visit(tmp_path, monkeypatch, storage):
    """Rows that many windows are read for, with some that are kept and some that are read again."""
    monkeypatch.setattr("drago.rows.array_visits._AT_ONCE", 1 << 14)
    monkeypatch.setattr(file_visits, "_STEP", 1 << 20)
    n, d = 40_000, 30
    X, y, _ = data("squared", storage, n, d)
    order = np.random.default_rng(0).permutation(n)
    X, y = X[order], y[order]
    settings = {"uncertainty": drago.CVaR(0.1), "shift_cost": 0.5, "fit_intercept": True}
    blocks, problem = blocks_of(tmp_path, X, y, 3), drago.DROProblem(X, y, **settings)
    assert len(drago.DROProblem(blocks, **settings).rows._steps) > 5
    found = []
    for n_threads in (1, 2, 5):
        filed = drago.DROProblem(blocks, **settings)
        oracle, witness = filed.dual_oracle(), problem.dual_oracle()
        w, b, seen = np.full((d, 1), 0.3), np.ones(1), []
        for k in range(3):
            with limited(n_threads):
                ours = filed.visit(w, b, oracle)
            theirs = problem.visit(w, b, witness)
            for a, c in zip(ours.gradient, theirs.gradient):
                np.testing.assert_allclose(a, c, rtol=0, atol=1e-11 * np.abs(c).max())
            np.testing.assert_allclose(
                filed.rows.export(ours.evaluation.losses), theirs.evaluation.losses, rtol=1e-11
            )
            seen += [*ours.gradient, filed.rows.export(ours.q)]
            w = w + 0.02 * (k + 1)
        found.append(seen)
    for other in found[1:]:
        for a, c in zip(other, found[0]):
            np.testing.assert_array_equal(a, c)


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
    monkeypatch.setattr(features, "GAP", 0)
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
    assert (
        0 < filed.rows.readings <= 1
    )  # for the gradient, which rows without weight add nothing to


def test_few_readings_for_a_solve(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "GAP", 1 << 10)
    filed, problem = large(tmp_path, n=60_000)
    here, there = drago.solve(problem, tol=1e-4), drago.solve(filed, tol=1e-4)
    agree(here, there, problem, 1e-4)
    assert "started from" in there.message and "rows in parts" in there.message
    assert filed.rows.readings <= 8


def test_a_sample_is_the_same_rows_whatever_the_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "GAP", 200)
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


@pytest.mark.parametrize("name", SETS)
def test_vectors_that_do_not_fit_are_weighed_in_rounds(tmp_path, name):
    """Weights and answers are those of vectors that fit, which are searched as in memory."""
    problem, filed = make(tmp_path, "logistic", name, fit_intercept=True)
    settings = {"loss": "logistic", "uncertainty": SETS[name][0], "divergence": SETS[name][1]}
    blocks = dataclasses.replace(filed.rows.blocks, memory_limit=20_000)
    tight = drago.DROProblem(blocks, shift_cost=0.05, fit_intercept=True, **settings)
    assert filed.rows.are_whole and not tight.rows.are_whole
    w, b = np.full((D, 1), 0.2), np.zeros(1)
    here, there = filed.dual_oracle(), tight.dual_oracle()
    for _ in range(3):
        losses = filed.rows.export(filed.evaluate(w, b).losses)
        found = [rows.export(oracle.weights(rows.imported(losses), 0.05))
                 for rows, oracle in ((filed.rows, here), (tight.rows, there))]  # fmt: skip
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-11 * found[0].max())
        assert set(here.memory) == set(there.memory)  # a solve is resumed under another limit
        w = 1.01 * w
    agree(drago.solve(problem, tol=1e-6), drago.solve(tight, tol=1e-6), problem, 1e-6)


@pytest.mark.parametrize(
    "name", ["cvar", "cvar kl", "simplex", "simplex kl", "chi2 ball", "kl ball"]
)
def test_whole_vectors_have_mirrors_and_responses(tmp_path, name):
    problem, filed = make(tmp_path, "squared", name)
    ev, theirs = (each.evaluate(np.ones((D, 1)), np.zeros(1)) for each in (problem, filed))
    here, there = problem.dual_oracle(), filed.dual_oracle()
    q, mirror = there.with_mirror(theirs.losses, 0.05)
    expected = here.with_mirror(ev.losses, 0.05)
    for found, exact in zip((q, mirror), expected):
        size = np.abs(exact).max()
        np.testing.assert_allclose(filed.rows.export(found), exact, rtol=0, atol=1e-11 * size)
    assert there.guess(0.05) == pytest.approx(here.guess(0.05), rel=1e-12, nan_ok=True)
    hessian = [each.rows.hessian(each.loss, at, q, oracle.response(at.losses, 0.05)[1], False)
               for each, at, q, oracle in ((problem, ev, expected[0], here),
                                           (filed, theirs, q, there))]  # fmt: skip
    np.testing.assert_allclose(*hessian, rtol=0, atol=1e-10 * np.abs(hessian[0]).max())


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
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_check_sums_of_parts_in_pieces(tmp_path, monkeypatch, loss, storage):
    """Steps, their parts and windows begin in the middle of a word of 64 bits."""
    monkeypatch.setattr(file_visits, "_STEP", 700)
    monkeypatch.setattr("drago.rows.array_visits._AT_ONCE", 1 << 6)
    monkeypatch.setattr(file_part, "_VISITED", 64)
    X, y, _ = data(loss, storage)
    filed = drago.DROProblem(blocks_of(tmp_path, X, y, 3), loss=loss, shift_cost=0.1)
    w, b = np.ones((D, filed.n_outputs)), np.zeros(filed.n_outputs)
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
        drago.DROProblem(filed.rows.blocks, loss=loss, shift_cost=0.1).evaluate(w, b)


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


@pytest.mark.parametrize("damage, message", [
    ("cut", "X.bin ends at byte 4000, where 5200 bytes more are expected"),
    ("changed", "X.bin was changed since"), ("gone", "X.bin is gone"),
    ("unreadable", "X.bin cannot be read any more"),
])  # fmt: skip
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_file_that_changes_while_it_is_read_is_named(
    tmp_path, monkeypatch, damage, message, n_threads
):
    """After the first part of a pass, while the file is open or before it is opened again."""
    monkeypatch.setattr("drago._threads._WORTH", 1)
    monkeypatch.setattr("drago.rows.array_visits._AT_ONCE", 1 << 6)
    X, y, _ = data("squared")
    filed = drago.DROProblem(blocks_of(tmp_path, X, y), shift_cost=0.1)
    w, b, seen = np.ones((D, 1)), np.zeros(1), []
    before = filed.evaluate(w, b).losses
    path, opened = filed.rows.blocks.columns["X"].path, Column.opened

    @contextlib.contextmanager
    def damaged(self):
        seen.append(self.path)
        if len(seen) == 4 and damage == "gone":
            os.remove(path)
        with opened(self) as file:
            if len(seen) == 4 and damage in ("cut", "changed"):
                os.truncate(path, 4000 if damage == "cut" else 9190)
            if len(seen) == 4 and damage == "unreadable":
                file = os.open(tmp_path, os.O_RDONLY)  # a folder
            yield file

    monkeypatch.setattr(Column, "opened", damaged)
    with limited(n_threads), pytest.raises(SourceChangedError, match=message):
        filed.visit(w, b, filed.dual_oracle())
    assert len(seen) == 4
    if damage == "unreadable":  # and nothing is left of it where the file is well
        monkeypatch.undo()
        for here, there in zip(before.parts, filed.evaluate(w, b).losses.parts):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("name, value", [("indices", D), ("indices", -1), ("indptr", 1 << 40),
                                         ("indptr", -1)])  # fmt: skip
def test_damaged_places_of_sparse_rows_are_not_followed(tmp_path, name, value):
    X, y, _ = data("squared", "csr")
    given = blocks_of(tmp_path, X, y)
    column = given.columns[name]
    found = os.stat(column.path)
    with open(column.path, "r+b") as file:
        file.seek(60 * column.dtype.itemsize)
        file.write(np.array(value, column.dtype).tobytes())
    os.utime(column.path, ns=(found.st_atime_ns, found.st_mtime_ns))
    filed = drago.DROProblem(given, shift_cost=0.1)
    with pytest.raises(SourceChangedError, match=f"{name}.bin is damaged"):
        filed.evaluate(np.ones((D, 1)), np.zeros(1))


def test_an_interrupt_between_two_parts(tmp_path, monkeypatch):
    """The best model so far is the answer, and no thread is left."""
    import signal

    _, filed = make(tmp_path, "logistic", fit_intercept=True)
    seen = []
    opened = Column.opened

    def interrupted(self):
        seen.append(self.path)
        if len(seen) == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return opened(self)

    monkeypatch.setattr(Column, "opened", interrupted)
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
