"""Gradient descent and AG-OG: transcriptions, constraints, kinks, refusals."""

import warnings

import numpy as np
import pytest

import drago
import literal_baselines as literal
from cases import make
from drago.loop.loop import Loop, Stop
from drago.solvers.full_batch import _AGOGRun, _DescentRun


class Silent(Loop):
    def __init__(self, problem):
        super().__init__(problem, tol=0.0, quiet=True)

    def observe(self, iterate):
        self.last = iterate


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "multinomial"])
@pytest.mark.parametrize("constraint", [None, drago.L2Ball(0.3), drago.Box(-0.1, 0.2)])
def test_a_descent_step_is_a_projected_gradient_step(loss, constraint):
    problem = make(loss, constraint=constraint, fit_intercept=True)
    run = _DescentRun(problem, Silent(problem))
    start = run.here.evaluation
    moved = run._moved(run._moved(run.here, 0.1), 0.1).evaluation
    w, b = literal.gradient_descent(problem, start.w, start.b, 0.1, 2)
    np.testing.assert_allclose(moved.w, w, atol=1e-12)
    np.testing.assert_allclose(moved.b, b, atol=1e-12)


@pytest.mark.parametrize(
    "uncertainty", [drago.CVaR(0.4), drago.Extremile(2.0), drago.Chi2Ball(0.5), drago.KLBall(0.3)]
)
@pytest.mark.parametrize("constraint", [None, drago.L2Ball(0.3), drago.NonNegative()])
def test_descent_is_certified(uncertainty, constraint):
    problem = make(uncertainty=uncertainty, constraint=constraint, fit_intercept=True)
    result = drago.solve(problem, "gd", tol=1e-7)
    assert result.status == "optimal" and result.rel_gap <= 1e-7


def test_descent_lowers_the_objective_at_each_iteration():
    problem = make(n=100, l2_reg=1e-3)
    values = []

    class Watch(Silent):
        def observe(self, iterate):
            values.append(self.problem.objective(iterate.w[:, 0]))
            if iterate.n_iter == 30:
                raise Stop

    with pytest.raises(Stop):
        drago.GradientDescent().run(problem, Watch(problem))
    assert (np.diff(values[:15]) < 0).all()  # later ones differ by rounding


@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.4), drago.Extremile(2.0)])
def test_subgradient_method_without_a_shift_cost(uncertainty):
    problem = make(uncertainty=uncertainty, shift_cost=0.0)
    optimum = drago.solve(problem, tol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = drago.solve(problem, "gd", tol=1e-9, max_iter=3000)
    assert optimum.primal <= result.primal + 1e-12
    share = (result.primal - optimum.primal) / (problem.reference[0] - optimum.primal)
    assert share < 1e-3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize(
    "uncertainty", [drago.CVaR(0.4), drago.Extremile(2.0), drago.Chi2Ball(0.5)]
)
@pytest.mark.parametrize("constraint", [None, drago.L2Ball(0.3)])
def test_agog_equals_its_transcription(loss, uncertainty, constraint):
    problem = make(loss, uncertainty=uncertainty, constraint=constraint, l2_reg=1.0, shift_cost=2.0)
    run = _AGOGRun(problem, Silent(problem))
    run.lipschitz = lipschitz = 30.0  # above what it will measure
    ev = problem.evaluate(*run.loop.start)
    here = run._field(ev.w, run.exact.weights(ev.losses, problem.nu))
    begun = run.n_calls
    here = run._epoch(run._epoch(here))
    assert run.lipschitz == lipschitz
    steps = run.n_iter // 2
    assert run.n_calls - begun == 2 * (steps + 1)
    c = np.sqrt(3 + np.sqrt(3))
    eta = [(k + 2) / (2 + c * lipschitz * (k + 2)) for k in range(steps)]
    w, _, q = literal.agog(problem, ev.w, ev.b, eta, 2 * steps, steps)
    np.testing.assert_allclose(here.w, w, atol=1e-10)
    np.testing.assert_allclose(here.q, q, atol=1e-10)


@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.4), drago.ESRM(1.0), drago.Chi2Ball(0.5)])
def test_agog_converges_linearly(uncertainty):
    problem = make(n=100, uncertainty=uncertainty, shift_cost=0.5, l2_reg=0.5)
    result = drago.solve(problem, "agog", tol=1e-9)
    assert result.status == "optimal"
    gaps, times = result.history.rel_gap, result.history.n_iter
    seen = np.isfinite(gaps) & (gaps > 0) & (gaps < 0.5)
    assert np.corrcoef(times[seen], np.log(gaps[seen]))[0, 1] < -0.9


@pytest.mark.parametrize(
    "settings",
    [
        {"divergence": "kl"},
        {"l2_reg": 0.0},
        {"shift_cost": 0.0},
        {"fit_intercept": True},
    ],
)
def test_agog_refuses(settings):
    with pytest.raises(ValueError, match="solver 'agog'"):
        drago.solve(make(**settings), "agog")
