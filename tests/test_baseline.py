"""A baseline is subtracted from the losses: everywhere, and nothing else changes."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from cases import make
from drago.files.checkpoint import CheckpointError
from drago.rows.part import cut
from drago.rows.parts import PartedRows

LOSSES = ["squared", "huber", "logistic", "multinomial"]
SETS = {
    "cvar": {"uncertainty": drago.CVaR(0.3)},
    "cvar kl": {"uncertainty": drago.CVaR(0.3), "divergence": "kl"},
    "extremile": {"uncertainty": drago.Extremile(2.0)},
    "kl ball": {"uncertainty": drago.KLBall(0.5)},
    "groups": {"uncertainty": drago.Grouped(drago.CVaR(0.5)), "groups": np.arange(60) % 5},
}
N = 60


def attainable(n=N, seed=0):
    """Something like the losses of another model: on some rows more than those of the answer."""
    return np.random.default_rng(seed).exponential(size=n) ** 2


def pair(loss, name="cvar", **settings):
    """The same problem without and with a baseline."""
    both = [
        make(loss, n=N, **SETS[name], **settings, baseline=baseline)
        for baseline in (None, attainable())
    ]
    return both[0], both[1]


def same_answer(here, there, problem, tol):
    """Two certified answers lie within their gaps of the same optimum."""
    assert here.status == there.status == "optimal"
    assert there.primal == pytest.approx(here.primal, abs=2.0 * tol * problem.scale)


# ----------------------------------------------------------------------------- what it means


@pytest.mark.parametrize("loss", LOSSES)
def test_the_losses_are_those_less_the_baseline(loss):
    plain, excess = pair(loss, fit_intercept=True)
    rng = np.random.default_rng(1)
    shape = (3, 4) if loss == "multinomial" else (4,)
    coef, b = rng.normal(size=shape), rng.normal(size=3 if loss == "multinomial" else ())
    np.testing.assert_array_equal(excess.losses(coef, b), plain.losses(coef, b) - attainable())
    q = excess.worst_case_weights(excess.losses(coef, b))
    np.testing.assert_array_equal(q, plain.worst_case_weights(plain.losses(coef, b) - attainable()))
    # Sums of 60 terms.
    expected = q @ excess.losses(coef, b) - excess.nu * excess.distance(q)
    expected += 0.5 * excess.mu * np.sum(coef**2)
    assert excess.objective(coef, b) == pytest.approx(expected, abs=1e-13 * excess.scale)


def test_an_objective_may_be_negative():
    problem = make("logistic", n=N, baseline=attainable() + 3.0, fit_intercept=True)
    result = drago.solve(problem, tol=1e-8)
    assert result.status == "optimal"
    assert problem.reference[0] < 0 and result.primal < problem.reference[0]
    assert 0 <= result.rel_gap <= 1e-8


@pytest.mark.parametrize("zero", [0, 0.0, np.zeros(N), np.zeros((N, 1), dtype=int)], ids=str)
@pytest.mark.parametrize("solver", ["auto", "drago"])
def test_nothing_subtracted_changes_no_bit(zero, solver):
    plain = drago.solve(make("logistic", n=N, fit_intercept=True), solver)
    result = drago.solve(make("logistic", n=N, fit_intercept=True, baseline=zero), solver)
    np.testing.assert_array_equal(result.coef, plain.coef)
    np.testing.assert_array_equal(result.dual_weights, plain.dual_weights)
    assert (result.primal, result.gap, result.n_iter) == (plain.primal, plain.gap, plain.n_iter)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("constant", [1.0, -0.3, 20.0])
def test_a_constant_moves_the_objective_and_nothing_else(loss, constant):
    settings = {"n": N, "fit_intercept": True}
    plain = drago.solve(make(loss, **settings, baseline=attainable()), tol=1e-9)
    moved = drago.solve(make(loss, **settings, baseline=attainable() + constant), tol=1e-9)
    assert moved.status == plain.status == "optimal"
    span = max(abs(plain.primal), constant, 1.0)
    assert moved.primal + constant == pytest.approx(plain.primal, abs=1e-8 * span)
    # (mu/2) |difference|^2 is at most the sum of the gaps, and l2_reg is 0.1.
    away = np.sqrt(2.0 * (plain.gap + moved.gap + 1e-15 * span) / 0.1)
    assert np.linalg.norm(moved.coef - plain.coef) <= 2.0 * away + 1e-12


def test_a_constant_alone_is_no_baseline_but_for_the_objective():
    plain = drago.solve(make(n=N), tol=1e-8)
    moved = drago.solve(make(n=N, baseline=2.5), tol=1e-8)
    assert moved.primal + 2.5 == pytest.approx(plain.primal, abs=1e-7)


def test_the_shift_cost_is_in_units_of_plain_losses():
    plain, excess = pair("multinomial", shift_cost="auto", fit_intercept=True)
    assert excess.nu == plain.nu > 0


def test_the_gradient_of_squared_losses_is_bounded_on_the_level_set():
    _, problem = pair("squared", shift_cost=0.1)
    result = drago.solve(problem, tol=1e-8)
    w, b = problem.to_internal(result.coef)
    slopes = np.abs(problem.evaluate(w, b).dlosses[:, 0]) * problem.row_norms
    assert slopes.max() <= problem.lipschitz < np.inf


# ------------------------------------------------------------------------------- who honours it


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", [
    "auto", "newton", drago.Drago(), drago.Drago(primal="blocks", block_size=7),
    drago.Drago(primal="support", block_size=20), "gd",
], ids=str)  # fmt: skip
@pytest.mark.thinned(3)
def test_solvers_agree(solver, loss, name):
    _, problem = pair(loss, name, fit_intercept=True)
    tol = 1e-4 if solver == "gd" else 1e-7
    same_answer(drago.solve(problem, "lbfgs", tol=1e-8), drago.solve(problem, solver, tol=tol),
                problem, tol)  # fmt: skip


@pytest.mark.parametrize("solver", ["sgd", "lsvrg", "prospect", "agog"])
@pytest.mark.parametrize("sparse", [False, True])
def test_methods_on_single_rows(solver, sparse):
    problem = make("logistic", n=N, baseline=attainable(), sparse=sparse)
    tol = 0.2 if solver == "sgd" else 1e-3
    same_answer(drago.solve(problem, "lbfgs", tol=1e-8), drago.solve(problem, solver, tol=tol),
                problem, tol)  # fmt: skip


def test_sgd_without_a_set_is_least_squares():
    """Whatever is subtracted: the mean of the losses has the same minimum."""
    mean = {"uncertainty": drago.CVaR(1.0), "n": N}
    method = drago.SGD(step_size=0.01)
    with pytest.warns(UserWarning, match="max_iter"):
        plain, excess = (
            drago.solve(make(**mean, baseline=baseline), method, tol=0.0, max_iter=20)
            for baseline in (None, attainable())
        )
    np.testing.assert_allclose(excess.coef, plain.coef, rtol=1e-12)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("solver", ["auto", "drago", "newton"])
def test_rows_in_parts(name, solver):
    problem = pair("logistic", name, fit_intercept=True)[1]
    parted = problem._replace(rows=PartedRows(cut(problem.rows, (17, 40))))
    same_answer(drago.solve(problem, tol=1e-7), drago.solve(parted, solver, tol=1e-7),
                problem, 1e-7)  # fmt: skip
    plain = parted.rows.with_baseline(None)
    assert plain.baseline is None and parted.rows.baseline is not None
    few = parted.take(np.array([3, 20, 50]))
    np.testing.assert_array_equal(few.baseline, attainable()[[3, 20, 50]])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", ["auto", "drago"])
@pytest.mark.thinned(3)
def test_tensors(loss, name, solver):
    torch = pytest.importorskip("torch")
    problem = pair(loss, name, fit_intercept=True)[1]
    expected = drago.solve(problem, tol=1e-7)
    moved = problem.moved("cpu")
    same_answer(expected, drago.solve(moved, solver, tol=1e-7), problem, 1e-7)
    given = make(loss, n=N, fit_intercept=True)
    direct = drago.DROProblem(
        torch.from_numpy(given.X.copy()), given.y, loss=loss, shift_cost=0.2, l2_reg=0.1,
        fit_intercept=True, baseline=torch.from_numpy(attainable()), **SETS[name],
    )  # fmt: skip
    found = drago.solve(direct, solver, tol=1e-7)
    assert found.primal == pytest.approx(expected.primal, abs=2e-7 * problem.scale)


@pytest.mark.parametrize("storage", [np.float64, np.float32, sp.csr_array])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_many_rows(storage, loss):
    """Blocks, their compiled visits and the lists of rows whose weights can change."""
    rng = np.random.default_rng(3)
    n, d = 70_000, 9
    X = rng.normal(size=(n, d))
    z = X @ rng.normal(size=d) + rng.standard_t(4, size=n)
    y = z if loss == "squared" else (z > 0).astype(float)
    problem = drago.DROProblem(
        storage(X), y, loss=loss, uncertainty=drago.CVaR(0.1), shift_cost=0.05,
        l2_reg=1e-2, baseline=attainable(n),
    )  # fmt: skip
    expected = drago.solve(problem, "lbfgs", tol=1e-6)
    for method in (drago.Drago(block_size=n // 10), drago.Drago(primal="blocks")):
        same_answer(expected, drago.solve(problem, method, tol=1e-5), problem, 1e-5)


def test_rows_without_weight_are_dropped_with_their_baseline():
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 3, size=N)
    problem = make(n=N, baseline=attainable(), sample_weight=weight)
    np.testing.assert_array_equal(problem.baseline, attainable()[weight > 0])
    index = np.repeat(np.arange(N), weight)
    whole = make(n=N)
    copies = drago.DROProblem(
        whole.X[index], whole.y[index], shift_cost=0.2, l2_reg=0.1,
        uncertainty=drago.CVaR(0.4), baseline=attainable()[index],
    )  # fmt: skip
    same_answer(drago.solve(copies, tol=1e-8), drago.solve(problem, tol=1e-8), problem, 1e-8)


# ------------------------------------------------------------------------------------- at the door


@pytest.mark.parametrize("wrong, words", [
    (np.zeros(N - 1) + 1, r"baseline must have one entry per row, shape \(60,\)"),
    (np.full(N, np.nan), "baseline contains 60 NaN"),
    (np.inf, r"baseline must be a number in \(-inf, inf\)"),
    ("low", "baseline must be"),
    (np.array(["a"] * N), "baseline must hold numbers"),
])  # fmt: skip
def test_what_is_no_baseline_is_refused(wrong, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make(n=N, baseline=wrong)


def test_a_problem_does_not_change():
    problem = make(n=N, baseline=attainable())
    with pytest.raises(ValueError, match="read-only"):
        problem.baseline[0] = 0.0
    again = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(again.baseline, problem.baseline)


def test_a_checkpoint_belongs_to_one_baseline(tmp_path):
    path = tmp_path / "state"
    first, second = (make(n=N, baseline=attainable(seed=seed)) for seed in (0, 1))
    method = drago.Drago(finish="none")
    with pytest.warns(UserWarning, match="max_iter"):
        drago.solve(first, method, tol=0.0, max_iter=4, checkpoint=path, checkpoint_every=0.0)
        drago.solve(first, method, tol=0.0, max_iter=8, checkpoint=path)
    with pytest.raises(CheckpointError, match="another problem"):
        drago.solve(second, method, checkpoint=path)
