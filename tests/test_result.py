"""What a solver returns: columns of the history, the short form of a result, the statuses."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

import drago
from drago.result import History, Record, SolverResult, Status

COLUMNS = [field.name for field in fields(Record)]


def record(k):
    return Record(
        n_iter=k, n_passes=1.5 * k, n_oracle_calls=10 * k, time=0.2 * k, solver_time=0.1 * k,
        primal=1.0 / (k + 1), dual=0.0, gap=1.0 / (k + 1), rel_gap=0.5 / (k + 1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def result():
    X, y = np.eye(4), np.array([1.0, 2.0, 3.0, 9.0])
    return drago.solve(drago.DROProblem(X, y, shift_cost=0.5, l2_reg=0.1), "lbfgs")


# ------------------------------------------------------------------------- what a screen shows


def test_nothing_that_is_returned_fills_more_than_a_screen():
    """With many rows and as many groups; arrays are for those who ask for them."""
    n = 20_000
    X, y = np.ones((n, 1)), np.arange(n) / n
    problem = drago.DROProblem(X, y, shift_cost=1.0)
    certificate = drago.certify(problem, [0.5])
    result = drago.solve(problem, tol=1e-2)
    model = drago.DRORegressor().fit(X[:9], y[:9])
    report = model.worst_case_report(X, y, groups=np.arange(n), n_rows=5)
    path = drago.robust_path(X[:9], y[:9], l2_regs=np.geomspace(1e-3, 1, 50))
    data = drago.datasets.make_synthetic(n, 1)
    history = History(tuple(record(k) for k in range(5000)))
    box = drago.Box(np.zeros(n), np.ones(n))
    spectrum = drago.Spectrum(density=np.ones_like)
    for thing in (
        *(certificate, result, result.history, history, report, path, data, problem, box, model),
        *(spectrum, problem.uncertainty, problem.loss, problem.divergence, problem.dual_oracle()),
    ):
        for text in (repr(thing), str(thing)):
            assert len(text) <= 2000 and text.count("\n") <= 40, text[:200]
        assert repr(thing).count("\n") <= 1
    assert repr(certificate).startswith("Certificate(primal=")
    assert f"rel_gap={certificate.rel_gap:.2g}, bound={certificate.bound!r}" in repr(certificate)
    assert repr(history) == "History(5000 certificates, the last of rel_gap=0.0001)"
    assert repr(History()) == "History(0 certificates)"
    assert "and 19985 more groups" in str(report).splitlines()


# ------------------------------------------------------------------------------------ history


def test_columns_of_a_history_are_arrays_in_order():
    history = History(tuple(record(k) for k in range(3)))
    assert len(history) == 3
    for name in COLUMNS:
        column = getattr(history, name)
        assert isinstance(column, np.ndarray) and column.shape == (3,)
        assert column.tolist() == [getattr(one, name) for one in history.records]
    assert history.n_iter.dtype.kind == "i" and history.rel_gap.dtype == np.float64


def test_an_empty_history_has_empty_columns():
    history = History()
    assert len(history) == 0
    assert all(getattr(history, name).shape == (0,) for name in COLUMNS)


@pytest.mark.parametrize("name", ["loss", "relgap", "__array_interface__", "_repr_png_"])
def test_an_unknown_column_is_refused_with_the_known_ones(name):
    with pytest.raises(AttributeError, match=r"columns \['n_iter', .*'rel_gap'\]"):
        getattr(History((record(0),)), name)
    assert not hasattr(History(), name)


def test_a_column_is_a_copy():
    history = History((record(0), record(1)))
    history.gap[:] = -1.0
    assert (history.gap > 0).all()


def test_a_history_survives_copying_and_pickling():
    history = History((record(0), record(1)))
    for other in (copy.copy(history), copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert other == history and other.primal.tolist() == history.primal.tolist()


def test_history_and_record_are_frozen():
    with pytest.raises(FrozenInstanceError):
        History().records = (record(0),)
    with pytest.raises(FrozenInstanceError):
        record(0).gap = 0.0


# ------------------------------------------------------------------------------------- result


def test_the_short_form_says_what_matters(result):
    text = repr(result)
    assert text.startswith("SolverResult(optimal, primal=")
    for part in (
        f"primal={result.primal:.8g}",
        f"rel_gap={result.rel_gap:.2g}",
        f"n_passes={result.n_passes:g}",
        f"time={result.time:.3g} s",
        "solver='lbfgs'",
    ):
        assert part in text
    assert "array" not in text and "\n" not in text and len(text) < 150


def test_the_short_form_of_numbers_that_are_not_finite(result):
    text = repr(replace(result, rel_gap=np.inf, status=Status.INTERRUPTED))
    assert "SolverResult(interrupted" in text and "rel_gap=inf" in text


def test_a_result_is_frozen(result):
    with pytest.raises(FrozenInstanceError):
        result.coef = np.zeros(4)


def test_a_result_survives_pickling(result):
    other = pickle.loads(pickle.dumps(result))
    assert other.status == "optimal" and isinstance(other.status, Status)
    assert other.coef.tobytes() == result.coef.tobytes()
    assert other.history == result.history and repr(other) == repr(result)


def test_types_of_the_fields(result):
    assert isinstance(result, SolverResult) and isinstance(result, drago.SolverResult)
    for name in ("primal", "dual", "gap", "rel_gap", "n_passes", "time", "solver_time"):
        assert type(getattr(result, name)) is float, name
    assert type(result.n_iter) is int and type(result.n_oracle_calls) is int
    assert isinstance(result.message, str) and isinstance(result.bound, str)
    assert result.solver == "lbfgs" and isinstance(result.history, History)


# ------------------------------------------------------------------------------------- status


def test_a_status_is_its_word(result):
    assert result.status == "optimal" and result.status is Status.OPTIMAL
    assert {str(status) for status in Status} == {
        "optimal", "stationary", "max_iter", "time_limit", "interrupted", "stopped", "stalled",
    }  # fmt: skip
    for status in Status:
        assert f"{status}" == status.value and Status(status.value) is status
    assert drago.Status is Status
