"""Solvers and the judge on rows that they cannot see: three parts, and vectors that refuse."""

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from cases import SETS_OF_STORES as SETS
from cases import thinned
from drago.files.checkpoint import CheckpointError
from drago.metric import make_metric
from drago.rows.base import RowStore
from drago.rows.part import Part, cut
from drago.rows.parts import PartedRows, PartVector
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import LaggedSteps, Steps
from drago.solvers.drago.variants import LaggedIterations, SupportIterations

N, D = 180, 4
ENDS = (50, 121)
KINDS = {kind.kind: kind for kind in (Iterations, SupportIterations, LaggedIterations)}
LOSSES = ["squared", "huber", "logistic", "multinomial"]


class Hidden(PartVector):
    """A vector of the rows that is read by its store alone."""


class HiddenRows(PartedRows):
    """Rows in three parts; counts what leaves them."""

    vector = Hidden

    def __init__(self, parts):
        super().__init__(parts)
        self.exports = 0

    def export(self, values):
        self.exports += 1
        return super().export(values)


def cauchy(y, raw):
    """A user's loss: convex near y, which is where it is used, and smooth."""
    r = raw - y
    return np.sqrt(1.0 + r * r) - 1.0, r / np.sqrt(1.0 + r * r)


def data(loss, storage=np.asarray):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(N, D)) * [1.0, 0.3, 2.0, 1.0]
    y = X @ [1.0, -2.0, 0.5, 0.0] + rng.standard_t(3, size=N)
    if loss == "logistic":
        y = (y > 0.5).astype(float)
    elif loss == "multinomial":
        y = np.digitize(y, [-1.0, 1.0])
    return storage(X), y, rng


def make(loss="squared", name="cvar", storage=np.asarray, nu=0.05, ends=ENDS, **settings):
    """A problem on arrays, and the same with its rows hidden."""
    uncertainty, divergence = SETS[name]
    X, y, rng = data(loss, storage)
    problem = drago.DROProblem(
        X, y, loss=loss, uncertainty=uncertainty, divergence=divergence, shift_cost=nu,
        groups=rng.integers(0, 9, N), sample_weight=rng.uniform(0.5, 2.0, N), **settings,
    )  # fmt: skip
    return problem, problem._replace(rows=HiddenRows(cut(problem.rows, ends)))


def agree(here, there, problem, tol):
    """Two certified answers lie within their gaps of the same optimum, and of each other."""
    assert there.status == here.status == "optimal", (here.message, there.message)
    room = 2.0 * tol * abs(problem.reference[0])
    assert there.primal == pytest.approx(here.primal, abs=room)
    assert there.dual_weights.shape == (N,)
    assert problem.violation(there.dual_weights) <= 1e-9


# ------------------------------------------------------------------------- what they cannot do


def test_a_hidden_vector_stays_hidden():
    _, hidden = make()
    ev = hidden.evaluate(np.zeros((D, 1)), np.zeros(1))
    for vector in (hidden.p, hidden.y, ev.raw, ev.losses, ev.dlosses):
        for look in (np.asarray, list, len, float, bool, lambda v: v[0], lambda v: v[:3]):
            with pytest.raises(TypeError, match="opaque"):
                look(vector)
        for sums in (lambda v: v + 1.0, lambda v: 2.0 * v, lambda v: v @ v):
            with pytest.raises(TypeError):
                sums(vector)


def test_there_is_no_x():
    with pytest.raises(AttributeError, match="no X as one array"):
        make()[1].X  # noqa: B018


def test_operations_say_what_they_do_with_parts():
    kinds = {
        name: operation.kind
        for name, operation in (vars(RowStore) | vars(Part)).items()
        if hasattr(operation, "kind")
    }
    assert set(kinds.values()) == {"map", "sum", "greatest", "choose"}
    assert len(kinds) > 40
    missing = [name for name in kinds if getattr(PartedRows, name) is getattr(Part, name)]
    assert missing == []


# ---------------------------------------------------------------------------- the operations


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_weights_and_what_they_are_worth(loss, name):
    problem, hidden = make(loss, name, fit_intercept=True)
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(D, problem.n_outputs)), rng.normal(size=problem.n_outputs)
    here, there = problem.evaluate(w, b), hidden.evaluate(w, b)
    q = problem.dual_oracle().weights(here.losses, problem.nu)
    found = hidden.dual_oracle().weights(there.losses, hidden.nu)
    # Sums of 180 rows in another order: a few hundred roundings.
    np.testing.assert_allclose(hidden.rows.export(found), q, rtol=0, atol=1e-12 * q.max())
    assert hidden.violation(found) <= 1e-12
    assert hidden.primal(w, there.losses, found) == pytest.approx(
        problem.primal(w, here.losses, q), rel=1e-12
    )
    for each, expected in zip(hidden.gradient(there, found), problem.gradient(here, q)):
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    assert hidden.kappa_q == pytest.approx(problem.kappa_q, rel=1e-12)
    assert hidden.q_max == pytest.approx(problem.q_max, rel=1e-12)
    assert hidden.reference[0] == pytest.approx(problem.reference[0], rel=1e-9)
    assert hidden.smoothness == pytest.approx(problem.smoothness, rel=1e-14)
    # Weights outside of the set are as far outside: all on a few rows, less than nothing on one.
    wrong = np.zeros(N)
    wrong[:3] = 0.5, 0.6, -0.1
    assert hidden.violation(hidden.rows.enter("q", wrong)) == pytest.approx(
        problem.violation(wrong), rel=1e-9
    )


@pytest.mark.parametrize("storage", [np.asarray, sp.csr_array, np.float32])
@pytest.mark.parametrize("loss", LOSSES)
def test_storage(loss, storage):
    problem, hidden = make(loss, storage=storage, fit_intercept=True)
    result = drago.solve(problem, "lbfgs", tol=1e-6)
    agree(result, drago.solve(hidden, "lbfgs", tol=1e-6), problem, 1e-6)


def test_a_selection_is_the_heaviest():
    _, hidden = make()
    weight = np.random.default_rng(1).exponential(size=N) ** 3
    secret = hidden.rows.enter("weight", weight)
    for size in (1, 7, 40, 150, N, 2 * N):
        chosen = hidden.rows.heaviest(secret, size)
        count = hidden.rows.size(chosen)
        assert 0.9 * min(size, N) - 1 <= count <= size
        most = np.sort(weight)[::-1][:count].sum()
        assert hidden.rows.total(secret, chosen) >= (0.99 if size > 1 else 0.4) * most
    even = hidden.rows.heaviest(hidden.rows.enter("weight", np.ones(N)), 40)
    assert 37 <= hidden.rows.size(even) <= 40


# ------------------------------------------------------------------------ solvers, and the judge


@pytest.mark.parametrize(
    "solver, loss, name, fit_intercept",
    thinned(["auto", "drago", "lbfgs", "newton"], LOSSES, SETS, [False, True], keep=7),
)
def test_they_find_what_they_find_on_arrays(solver, loss, name, fit_intercept):
    problem, hidden = make(loss, name, fit_intercept=fit_intercept)
    here = drago.solve(problem, solver, tol=1e-6)
    there = drago.solve(hidden, solver, tol=1e-6)
    assert hidden.rows.exports == 1  # the weights of the result
    agree(here, there, problem, 1e-6)
    ours = drago.certify(problem, there.coef, there.intercept, there.dual_weights)
    theirs = drago.certify(hidden, there.coef, there.intercept, there.dual_weights)
    assert hidden.rows.exports == 2
    assert theirs.primal == pytest.approx(ours.primal, rel=1e-12)
    # Both look for good weights by steps whose lengths hang on rounding near the optimum.
    assert max(ours.rel_gap, theirs.rel_gap) <= 1e-6


@pytest.mark.parametrize("solver, name", [
    ("gd", "cvar"), ("gd", "kl ball"), ("gd", "groups"),
    ("agog", "cvar"), ("agog", "extremile"), ("agog", "groups"),
])  # fmt: skip
def test_first_order_methods(solver, name):
    settings = {"l2_reg": 0.5, "nu": 1.0}
    problem, hidden = make("logistic", name, **settings)
    here = drago.solve(problem, solver, tol=1e-4)
    agree(here, drago.solve(hidden, solver, tol=1e-4), problem, 1e-4)


@pytest.mark.parametrize(
    "kind, loss, name, count", thinned(KINDS, ["squared", "multinomial"], SETS, [1, 4], keep=5)
)
def test_the_iterations_are_those_on_arrays(kind, loss, name, count):
    """Where parts end at multiples of the number of blocks, these are the same rows."""
    intercept = kind != "lagged"
    problem, hidden = make(loss, name, ends=(60, 120), fit_intercept=intercept)
    mean = problem.rows.centre() if intercept else None
    metric = make_metric(problem, "full", mean)
    found = []
    for each in (problem, hidden):
        zero = each.evaluate(np.zeros((D, each.n_outputs)), np.zeros(each.n_outputs))
        tables = each.rows.tables(each, kind, count, 1)
        q = "nominal" if kind == "lagged" else "exact"
        it = KINDS[kind](each, tables, metric, mean, zero, q)
        it.steps = LaggedSteps(0.02) if kind == "lagged" else Steps(0.02, 0.02, True)
        for some in np.random.default_rng(0).integers(0, count, size=(5, 8, 2)).tolist():
            it.round(some, kind == "support")
        found.append(it)
    here, there = found
    size = np.abs(here.w).max()
    # Some forty steps, each of sums of 180 rows in another order.
    assert size > 1e-3
    np.testing.assert_allclose(there.w, here.w, rtol=0, atol=1e-9 * size)
    np.testing.assert_allclose(there.b, here.b, rtol=0, atol=1e-9 * size)
    q = here.weights()
    np.testing.assert_allclose(hidden.rows.export(there.weights()), q, rtol=0, atol=1e-9 * q.max())
    np.testing.assert_allclose(there.estimates(), here.estimates(), rtol=1e-6, atol=1e-9)
    assert (there.t, there.n_calls, there.visits) == (here.t, here.n_calls, here.visits)


@pytest.mark.parametrize("settings", [
    {}, {"primal": "blocks"}, {"primal": "support", "block_size": 40},
    {"tables": "lagged", "start": "paper", "step_size": 0.02, "block_size": 45},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["cvar", "cvar kl", "groups", "extremile"])
def test_a_solve_goes_on_where_it_was_stopped(settings, name, tmp_path):
    """Bit for bit: the same point, the same weights, the same counts."""
    intercept = settings.get("start") != "paper"
    _, hidden = make("logistic", name, fit_intercept=intercept)
    method = drago.Drago(finish="none", **settings)
    path = tmp_path / "half.drago"
    with pytest.warns(UserWarning, match="max_iter"):
        whole = drago.solve(hidden, method, tol=0.0, max_iter=40)
        before = hidden.rows.exports
        drago.solve(hidden, method, tol=0.0, max_iter=16, checkpoint=path, checkpoint_every=0.0)
        assert hidden.rows.exports > before + 1  # tables, and the best weights
        result = drago.solve(hidden, method, tol=0.0, max_iter=40, checkpoint=path)
    np.testing.assert_array_equal(result.coef, whole.coef)
    np.testing.assert_array_equal(result.dual_weights, whole.dual_weights)
    assert (result.n_iter, result.n_passes) == (whole.n_iter, whole.n_passes)
    other = make("logistic", name, fit_intercept=intercept, l2_reg=0.3)[1]
    with pytest.raises(CheckpointError, match="another problem"):
        drago.solve(other, method, checkpoint=path)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_loss_of_ones_own_runs_on_each_part(fit_intercept):
    seen = []

    def counted(y, raw):
        seen.append(y.size)
        return cauchy(y, raw)

    problem, hidden = make(counted, fit_intercept=fit_intercept, l2_reg=0.1)
    here = drago.solve(problem, tol=1e-4)
    seen.clear()
    agree(here, drago.solve(hidden, tol=1e-4), problem, 1e-4)
    assert set(seen) == {50, 71, 59}


def test_a_loss_that_fails_says_in_which_part():
    top = data("squared")[1].max()

    def broken(y, raw):
        losses, slopes = cauchy(y, raw)
        return np.where((y == top) & (raw != 0.0), np.nan, losses), slopes

    problem, hidden = make(broken)
    part = int(np.searchsorted(ENDS, np.argmax(problem.y), side="right"))
    with pytest.raises(drago.problem.NonFiniteLossError, match=f"in part {part} of 3, the loss"):
        hidden.objective(np.ones(D))


def test_without_a_shift_cost_and_in_constraints():
    for settings in ({"nu": 0.0}, {"constraint": drago.NonNegative()}, {"l2_reg": 0.0}):
        problem, hidden = make("squared", "cvar", **settings)
        here = drago.solve(problem, tol=1e-5)
        agree(here, drago.solve(hidden, tol=1e-5), problem, 1e-5)


def test_warm_starts():
    problem, hidden = make("logistic", fit_intercept=True)
    here = drago.solve(problem, "lbfgs", tol=1e-9)
    there = drago.solve(hidden, "lbfgs", tol=1e-6, warm_start=here)
    agree(here, there, problem, 1e-6)
    assert there.n_iter <= 2


def test_public_functions_give_arrays():
    problem, hidden = make("logistic", fit_intercept=True)
    coef = np.ones(D)
    losses = hidden.losses(coef, 0.5)
    np.testing.assert_allclose(losses, problem.losses(coef, 0.5), rtol=1e-13)
    weights = hidden.worst_case_weights(losses)
    np.testing.assert_allclose(weights, problem.worst_case_weights(losses), rtol=0, atol=1e-14)
    assert hidden.rows.exports == 2
    assert hidden.objective(coef, 0.5) == pytest.approx(problem.objective(coef, 0.5), rel=1e-12)
    assert hidden.rows.exports == 2


# ----------------------------------------------------------------------- what needs more than that


@pytest.mark.parametrize("solver, what", [
    ("sgd", "visit single rows"), ("lsvrg", "visit single rows"), ("prospect", "visit single rows"),
])  # fmt: skip
def test_methods_that_need_more_say_so(solver, what):
    _, hidden = make()
    with pytest.raises(ValueError, match=f"solver '{solver}' needs to {what}, which"):
        drago.solve(hidden, solver)


def test_sets_of_ones_own_need_whole_vectors():
    class Own:
        def worst_case(self, u, c, divergence, p):
            return p

        def q_max(self, p):
            return p.max()

    X, y, _ = data("squared")
    problem = drago.DROProblem(X, y, uncertainty=Own(), shift_cost=0.1)
    hidden = problem._replace(rows=HiddenRows(cut(problem.rows, ENDS)))
    with pytest.raises(ValueError, match="takes whole vectors of the rows, which rows in parts"):
        drago.solve(hidden)
