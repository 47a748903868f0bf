"""The Newton method against cvxpy, and on thin tails."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import drago
import reference
from cases import LEVEL, kink, no_worse
from drago.loop.loop import Loop
from drago.solvers.newton import Newton, _CompiledStage, _NewtonRun, _Stage

LOSSES = {
    "squared": "squared",
    "huber": ("huber", 0.7),
    "logistic": "logistic",
    "multinomial": "multinomial",
}
SETS = {
    "cvar": (drago.CVaR(0.3), ("cvar", 0.3)),
    "simplex": (drago.Simplex(), ("simplex",)),
    "extremile": (drago.Extremile(2.5), ("extremile", 2.5)),
    "esrm": (drago.ESRM(3.0), ("esrm", 3.0)),
    "spectrum": (drago.Spectrum(integral=kink), ("spectrum", kink)),
    "chi2_ball": (drago.Chi2Ball(0.5), ("chi2_ball", 0.5)),
    "kl_ball": (drago.KLBall(0.3), ("kl_ball", 0.3)),
    "grouped": (drago.Grouped(drago.CVaR(0.5)), ("grouped", ("cvar", 0.5))),
}
CONSTRAINTS = [
    (None, None),
    (drago.Box(-0.4, 0.3), ("box", -0.4, 0.3)),
    (drago.NonNegative(), ("nonnegative",)),
]


def target(loss, z):
    if loss == "logistic":
        return (z > np.median(z)).astype(float)
    if loss == "multinomial":
        return np.argsort(np.argsort(z)) * 3 // len(z)
    return z


def data(loss="squared", n=400, d=8, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, target(loss, X @ rng.standard_normal(d) + rng.standard_normal(n))


def solve(problem, tol):
    result = drago.solve(problem, Newton(), tol=tol)
    assert result.status == "optimal" and result.rel_gap <= tol and result.solver == "newton"
    return result


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SETS)
def test_certified_and_equal_to_cvxpy(loss, name):
    """Both divergences, an intercept, sample weights and constraints, in turn."""
    index = 3 * list(LOSSES).index(loss) + 2 * list(SETS).index(name)
    uncertainty, set_ = SETS[name]
    rng = np.random.default_rng(index)
    X = rng.standard_normal((9, 3)) * np.array([1.0, 0.5, 2.0])
    y = target(loss, X @ rng.standard_normal(3) + rng.standard_normal(9))
    groups = np.array(list("abcabcaab")) if name == "grouped" else None
    set_ = (*set_, groups) if name == "grouped" else set_
    weight = rng.exponential(size=9) + 0.05 if index % 4 < 2 else None
    W, W_tuple = CONSTRAINTS[index % 3]
    intercept = index % 5 < 3
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=uncertainty,
        divergence=uncertainty.own_divergence or ("chi2", "kl")[index % 2],
        shift_cost=0.1,
        l2_reg=0.05,
        sample_weight=weight,
        groups=groups,
        fit_intercept=intercept,
        constraint=W,
    )
    optimum, _, _ = reference.solve_problem(
        X, y, LOSSES[loss], set_, problem.divergence.name, 0.1, 0.05, problem.p, intercept, W_tuple
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = drago.solve(problem, Newton(), tol=1e-10)
    scale = max(1.0, abs(optimum))
    assert result.gap <= 1e-8 * scale  # where there is little to gain, rel_gap ends at rounding
    assert abs(result.primal - optimum) <= 1e-7 * scale
    assert problem.constraint.contains(problem.to_internal(result.coef)[0])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@pytest.mark.parametrize("intercept", [False, True])
def test_thin_tails(loss, divergence, intercept):
    X, y = data(loss)
    problem = drago.DROProblem(
        X,
        y,
        loss=loss,
        uncertainty=drago.CVaR(0.1),
        divergence=divergence,
        shift_cost=1e-4,
        fit_intercept=intercept,
    )
    result = solve(problem, 1e-8)
    assert drago.certify(problem, result.coef, result.intercept).rel_gap <= 1e-7


@pytest.mark.parametrize("storage", [np.float32, sp.csr_array, sp.csc_array])
def test_every_storage_of_the_features(storage):
    X, y = data()
    X = X.astype(np.float32).astype(float)
    given = X.astype(np.float32) if storage is np.float32 else storage(X)
    plain, other = (solve(drago.DROProblem(Z, y, shift_cost=0.01), 1e-10) for Z in (X, given))
    assert other.coef == pytest.approx(plain.coef, abs=1e-6)
    assert other.primal == pytest.approx(plain.primal, rel=1e-9)


@pytest.mark.parametrize(("mu", "nu"), [(0.0, 0.1), (0.01, 0.0), (0.0, 0.0)])
def test_without_a_regularisation_or_a_shift_cost(mu, nu):
    X, y = data()
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.3), shift_cost=nu, l2_reg=mu)
    result = solve(problem, 1e-4)
    best = drago.solve(problem, "lbfgs", tol=1e-5)
    assert abs(result.primal - best.primal) <= 1.1e-4 * (problem.reference[0] - best.primal)


@pytest.mark.parametrize(
    ("loss", "tail"),
    [("squared", 0.05), ("squared", 0.3), ("huber", 0.1), ("logistic", 0.4), ("multinomial", 0.5)],
)
@pytest.mark.parametrize("intercept", [False, True])
def test_kinks_take_few_steps(loss, tail, intercept):
    """Without a shift cost the objective has a kink wherever a row enters the tail."""
    X, y = data(loss, n=1000)
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=drago.CVaR(tail),
        shift_cost=0.0,
        l2_reg=1e-3,
        fit_intercept=intercept,
    )
    result = solve(problem, 1e-9)
    assert result.primal < 0.99 * problem.reference[0]
    assert result.n_iter <= 40
    assert drago.certify(problem, result.coef, result.intercept, result.dual_weights).rel_gap <= (
        1e-9
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("name", ["cvar", "simplex", "extremile", "chi2_ball", "kl_ball"])
def test_without_a_shift_cost_equal_to_cvxpy(loss, name):
    uncertainty, set_ = SETS[name]
    rng = np.random.default_rng(len(loss) + len(name))
    X = rng.standard_normal((12, 3))
    y = target(loss, X @ rng.standard_normal(3) + rng.standard_normal(12))
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=uncertainty,
        shift_cost=0.0,
        l2_reg=0.05,
    )
    optimum, _, _ = reference.solve_problem(
        X, y, LOSSES[loss], set_, problem.divergence.name, 0.0, 0.05, problem.p, False, None
    )
    result = solve(problem, 1e-8)
    assert abs(result.primal - optimum) <= 1e-6 * max(1.0, abs(optimum))


# ------------------------------------------------------------------------------ compiled steps


def stages(problem, c, seed):
    """A stage in Python and the same one compiled, near weights of the set, from a random point."""
    rng = np.random.default_rng(seed)
    found = []
    for kind in (_Stage, _CompiledStage):
        loop = Loop(problem, 1e-12)
        loop.ledger.open(loop.judge.reference())
        run = _NewtonRun(problem, loop)
        rng = np.random.default_rng(seed)
        w, b = 0.3 * rng.standard_normal((problem.n_features, 1)), np.zeros(1)
        if problem.fit_intercept:
            b[0] = 0.3 * rng.standard_normal()
        run.ev = problem.evaluate(w, b)
        near = run.exact.weights(rng.standard_normal(problem.n_samples), 0.5)
        run.mirror = problem.divergence.mirror(near, problem.p)
        run.base = problem.distance(near) - float(run.mirror @ near)
        found.append((run, kind(run, c)))
    return found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.1), drago.CVaR(0.6), drago.Simplex()])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("c", "nu"), [(1.0, 0.0), (0.03, 1e-3), (0.0, 0.1)])
def test_compiled_steps_are_those_of_python(loss, uncertainty, intercept, c, nu):
    X, y = data(loss, n=700, d=6)
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=uncertainty,
        shift_cost=nu,
        l2_reg=1e-2,
        fit_intercept=intercept,
        sample_weight=np.random.default_rng(1).exponential(size=700) + 0.1,
    )
    (python, slow), (compiled, fast) = stages(problem, c, seed=3)
    for _ in range(4):
        one, other = slow.advance(1), fast.advance(1)
        assert one.steps == other.steps and one.is_over == other.is_over
        for ours, theirs in zip(
            (compiled.ev.w, compiled.ev.b, compiled.ev.raw, compiled.ev.losses, compiled.q),
            (python.ev.w, python.ev.b, python.ev.raw, python.ev.losses, python.q),
        ):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * abs(theirs).max())
        assert other.value == pytest.approx(one.value, rel=1e-10, abs=1e-12)
        assert other.level == pytest.approx(one.level, rel=1e-10, abs=1e-12)
        assert other.promise == pytest.approx(one.promise, rel=1e-5, abs=1e-12)
        if one.is_over:
            break
    for ours, theirs in zip(fast.mirror(), slow.mirror()):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-7)


def test_the_stage_is_a_proximal_step():
    """``P_c(w) = max over q of L(w, q) - c Bregman(q, q0)``, from its definition."""
    X, y = data(n=50, d=3)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.3), shift_cost=0.01)
    for kind in range(2):
        run, stage = stages(problem, 0.2, seed=1)[kind]
        move = stage.advance(1)
        q0, q, p = run.mirror * problem.p, run.q, problem.p
        bregman = 0.5 * float(((q - q0) ** 2 / p).sum())
        level = problem.primal(run.ev.w, run.ev.losses, q)
        assert move.level == pytest.approx(level, rel=1e-12)
        assert move.value == pytest.approx(level - 0.2 * bregman, rel=1e-12)
        rng = np.random.default_rng(0)
        for _ in range(50):  # no other weights of the set do better
            other = run.exact.weights(rng.standard_normal(50), 0.1)
            value = problem.primal(run.ev.w, run.ev.losses, other)
            assert value - 0.1 * float(((other - q0) ** 2 / p).sum()) <= move.value + 1e-12


def test_which_problems_have_compiled_steps():
    X, y = data(n=60)
    for kwargs, expected in (
        ({}, True),
        ({"uncertainty": drago.Simplex()}, True),
        ({"uncertainty": drago.CVaR(1.0)}, False),
        ({"uncertainty": drago.Extremile(2.0)}, False),
        ({"divergence": "kl"}, False),
        ({"constraint": drago.NonNegative()}, False),
    ):
        problem = drago.DROProblem(X, y, shift_cost=0.1, **kwargs)
        assert _CompiledStage.is_for(problem) == expected
    for Z in (X.astype(np.float32), sp.csr_array(X), np.asfortranarray(X)):
        problem = drago.DROProblem(Z, y, shift_cost=0.1)
        assert not _CompiledStage.is_for(problem)


def test_small_data_are_certified_once():
    problem = drago.DROProblem(*data(), uncertainty=drago.CVaR(0.1), shift_cost=1e-4)
    assert len(solve(problem, 1e-6).history.n_iter) <= 2


@pytest.mark.parametrize("most", [1, 3, 9])
def test_compiled_steps_keep_to_the_number_allowed(most):
    problem = drago.DROProblem(*data(), uncertainty=drago.CVaR(0.1), shift_cost=0.0)
    with pytest.warns(ConvergenceWarning, match=f"max_iter={most} reached"):
        result = drago.solve(problem, Newton(), tol=1e-12, max_iter=most)
    assert result.n_iter == most


def test_a_good_start_is_made_use_of():
    problem = drago.DROProblem(*data(n=2000), uncertainty=drago.CVaR(0.1), shift_cost=0.0)
    cold = solve(problem, 1e-8)
    near = drago.solve(problem, Newton(), tol=1e-8, warm_start=cold)
    assert near.status == "optimal" and near.n_iter < cold.n_iter


def test_separable_classes_without_a_regularisation_come_to_an_end():
    """The losses fall to 0, and the coefficients grow, without end."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    problem = drago.DROProblem(
        X,
        (X[:, 0] > 0).astype(float),
        loss="logistic",
        uncertainty=drago.CVaR(0.1),
        shift_cost=0.0,
        l2_reg=0.0,
        fit_intercept=True,
    )
    with pytest.warns(ConvergenceWarning, match="no further progress"):
        result = drago.solve(problem, Newton(), tol=1e-6)
    assert result.primal < 1e-6 and np.isfinite(result.coef).all()


@pytest.mark.parametrize("intercept", [False, True])
def test_the_mean_without_a_shift_cost(intercept):
    """No weight can move, so nothing has to be held."""
    problem = drago.DROProblem(
        *data(), uncertainty=drago.CVaR(1.0), shift_cost=0.0, fit_intercept=intercept
    )
    assert solve(problem, 1e-10).n_iter <= 3


@pytest.mark.parametrize("l2_reg", [0.0, 1e-6])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_without_curvature(l2_reg, sparse):
    """All rows of weight lie in the linear part of the loss: steps are damped by what could be."""
    X, y = np.full((5, 1), 1e3), np.array([1.0, 2.0, -3.0, 30.0, 36.0])
    problem = drago.DROProblem(
        sp.csr_array(X) if sparse else X,
        y,
        loss="huber",
        uncertainty=drago.CVaR(0.1),
        shift_cost=0.0,
        l2_reg=l2_reg,
    )
    assert solve(problem, 1e-6).primal == pytest.approx(19.0, rel=1e-6)


def test_the_weights_of_the_result_certify_it():
    """Without a shift cost they are not the exact ones at the point."""
    for seed in range(20):
        problem = drago.DROProblem(
            *data(n=60, d=4, seed=seed), uncertainty=drago.CVaR(0.9), shift_cost=0.0, l2_reg=1e-2
        )
        result = drago.solve(problem, Newton(), tol=1e-6)
        found = drago.certify(problem, result.dual_coef, result.dual_intercept, result.dual_weights)
        assert found.dual >= result.dual - 1e-13 * abs(result.dual)


def test_predictions_that_overflow_are_no_progress():
    from drago.kernels import newton_value

    n = 200
    y, p, shift = np.zeros(n), np.full(n, 1.0 / n), np.zeros(n)
    p.flags.writeable = False
    losses, slopes, q, u = (np.empty(n) for _ in range(4))
    raw = np.zeros(n)
    raw[:50] = 1e200
    value, level, _ = newton_value(
        y, np.empty(0), 0, 0.0, p, 10.0, 1.0, 0.5, shift, 0.0, np.zeros(2), raw, np.nan, losses,
        slopes, q, u,
    )  # fmt: skip
    assert value == np.inf and level == np.inf


def test_the_answer_does_not_depend_on_the_seed_and_is_the_same_again():
    problem = drago.DROProblem(*data(), uncertainty=drago.CVaR(0.1), shift_cost=1e-3)
    first, again = (drago.solve(problem, Newton(), random_state=seed) for seed in (0, 1))
    assert (first.coef == again.coef).all() and first.n_passes == again.n_passes


def test_the_objective_never_rises():
    problem = drago.DROProblem(*data(), uncertainty=drago.CVaR(0.1), shift_cost=1e-4)
    result = solve(problem, 1e-8)
    primal = result.history.primal
    assert (np.diff(primal) <= LEVEL * np.abs(primal[1:])).all()
    assert (np.diff(result.history.n_passes) >= 0).all()
    assert (np.diff(result.history.n_iter) >= 0).all()
    assert result.primal < problem.reference[0]


def test_limits_are_kept():
    problem = drago.DROProblem(*data(), uncertainty=drago.CVaR(0.1), shift_cost=1e-4)
    with pytest.warns(ConvergenceWarning, match="max_iter=3 reached"):
        result = drago.solve(problem, Newton(), tol=1e-10, max_iter=3)
    assert result.n_iter == 3 and no_worse(result, problem.reference[0])


def test_what_the_method_is_not_for_is_refused_in_one_sentence():
    X, y = data(n=20)

    def squared(y, raw):
        return 0.5 * (raw - y) ** 2, raw - y

    class Mine:
        def worst_case(self, u, c, divergence, p):
            return p

        def q_max(self, p):
            return float(p.max())

    for kwargs in ({"loss": squared}, {"uncertainty": Mine()}):
        problem = drago.DROProblem(X, y, shift_cost=0.1, **kwargs)
        with pytest.raises(ValueError, match=r"^solver 'newton' takes built-in .*\.$"):
            drago.solve(problem, Newton())
        assert not Newton.is_affordable(problem)


def test_affordable_where_the_hessian_is_small():
    rng = np.random.default_rng(0)
    for d in (5, 2000):
        X = rng.standard_normal((300, d))
        problem = drago.DROProblem(X, X[:, 0], shift_cost=0.1)
        assert Newton.is_affordable(problem) == (d == 5)


def test_trivial_data():
    X = np.ones((5, 2))
    for y in (np.zeros(5), np.ones(5)):
        problem = drago.DROProblem(X, y, shift_cost=0.1, fit_intercept=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = drago.solve(problem, Newton())
        assert np.isfinite(result.coef).all() and no_worse(result, problem.reference[0])
