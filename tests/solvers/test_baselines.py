"""SGD, LSVRG and Prospect: literal transcriptions, the behaviour their papers claim, refusals."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import drago
import literal_baselines as literal
from cases import make, no_worse
from drago.loop.loop import Loop, Stop
from drago.solvers.baselines import _LSVRGRun, _ProspectRun, _SGDRun

LOSSES = ["squared", "huber", "logistic", "multinomial"]
SPECTRAL = {
    "cvar": drago.CVaR(0.4),
    "simplex": drago.Simplex(),
    "extremile": drago.Extremile(2.5),
    "esrm": drago.ESRM(3.0),
}
BALLS = {"chi2_ball": drago.Chi2Ball(0.5), "kl_ball": drago.KLBall(0.3)}


class Epochs(Loop):
    """Stops a method after some epochs; judges nothing."""

    def __init__(self, problem, epochs, seed=3, start=None):
        super().__init__(problem, tol=0.0, random_state=seed, start=start, quiet=True)
        self.epochs = epochs

    def observe(self, iterate):
        self.last = iterate
        if iterate.n_iter >= self.epochs:
            raise Stop


def after(problem, kind, epochs, eta, *settings):
    """The point of a fresh run after some epochs, its loop, and the generator of its draws."""
    loop = Epochs(problem, epochs)
    run = kind(problem, loop, *settings)
    with pytest.raises(Stop):
        run.run(eta)
    return loop.last, np.random.default_rng(3)


def assert_same(problem, last, expected):
    w, b = expected
    np.testing.assert_allclose(last.w, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(last.b, b if problem.fit_intercept else 0.0, rtol=0, atol=1e-10)


def start(problem):
    return np.zeros((problem.n_features, problem.n_outputs)), problem.reference[1]


@pytest.fixture
def calls(monkeypatch):
    """The rows that the transcriptions evaluate, call by call."""
    counts, evaluate = [], literal._Dense.evaluate

    def counted(self, x, rows=None):
        losses, grads = evaluate(self, x, rows)
        counts.append(losses.size)
        return losses, grads

    monkeypatch.setattr(literal._Dense, "evaluate", counted)
    return counts


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SPECTRAL)
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_lsvrg_equals_its_transcription(loss, name, divergence, sparse, calls):
    problem = make(
        loss, sparse=sparse, uncertainty=SPECTRAL[name], divergence=divergence, fit_intercept=True
    )
    last, rng = after(problem, _LSVRGRun, 3, 0.01)
    draws = np.concatenate([rng.integers(0, 37, size=37) for _ in range(3)])
    assert_same(problem, last, literal.lsvrg(problem, *start(problem), draws, 0.01, 37))
    # Three checkpoints and their steps, and the checkpoint at which it was stopped.
    assert sum(calls) == 3 * (37 + 37)
    assert last.n_oracle_calls == sum(calls) + 37 and last.n_passes == 7.0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SPECTRAL)
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_prospect_equals_its_transcription(loss, name, divergence, sparse, calls):
    problem = make(
        loss, sparse=sparse, uncertainty=SPECTRAL[name], divergence=divergence, fit_intercept=True
    )
    last, rng = after(problem, _ProspectRun, 2, 0.01)
    draws = np.concatenate([rng.integers(0, 37, size=37) for _ in range(2)])
    assert_same(problem, last, literal.prospect(problem, *start(problem), draws, 0.01))
    assert last.n_oracle_calls == sum(calls) == 3 * 37 and last.n_passes == 3.0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "name, divergence",
    [(name, kind) for name in SPECTRAL for kind in ("chi2", "kl")]
    + [("chi2_ball", "chi2"), ("kl_ball", "kl")],
)
def test_sgd_equals_its_transcription(loss, name, divergence, sparse, calls):
    uncertainty = (SPECTRAL | BALLS)[name]
    problem = make(
        loss, sparse=sparse, uncertainty=uncertainty, divergence=divergence, fit_intercept=True
    )
    last, rng = after(problem, _SGDRun, 3, 0.05, drago.SGD(batch_size=8))
    batches = []
    for _ in range(3):
        order = rng.permutation(37)
        batches += [order[k : k + 8] for k in range(0, 37, 8)]  # the last one is short
    assert_same(problem, last, literal.sgd(problem, *start(problem), batches, 0.05))
    assert last.n_oracle_calls == sum(calls) == 3 * 37 and last.n_passes == 3.0


@pytest.mark.parametrize("eta", [10.0, 15.0])
def test_sgd_with_a_step_that_erases_the_past(eta):
    """eta mu >= 1: the factor of w is 0 or negative."""
    problem = make(sparse=True, n=20)
    last, rng = after(problem, _SGDRun, 1, eta, drago.SGD(batch_size=5))
    order = rng.permutation(20)
    batches = [order[k : k + 5] for k in range(0, 20, 5)]
    w, _ = literal.sgd(problem, *start(problem), batches, eta)
    np.testing.assert_allclose(last.w, w, rtol=1e-10, atol=1e-10)


def test_float32_and_fortran_order_are_the_same_rows():
    problem = make()
    expected, _ = after(problem, _LSVRGRun, 2, 0.01)
    settings = {"uncertainty": drago.CVaR(0.4), "shift_cost": 0.2, "l2_reg": 0.1}
    fortran = drago.DROProblem(np.asfortranarray(problem.X), problem.y, **settings)
    np.testing.assert_allclose(after(fortran, _LSVRGRun, 2, 0.01)[0].w, expected.w, atol=1e-12)
    single = drago.DROProblem(problem.X.astype(np.float32), problem.y, **settings)
    np.testing.assert_allclose(after(single, _LSVRGRun, 2, 0.01)[0].w, expected.w, atol=1e-6)


def test_a_matrix_of_zeros():
    problem = drago.DROProblem(
        sp.csr_array((9, 3)), np.arange(9.0), uncertainty=drago.CVaR(0.4), shift_cost=0.2
    )
    for name in ("sgd", "lsvrg", "prospect"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert not drago.solve(problem, name, max_iter=3).coef.any()


# ------------------------------------------------------------------- what their papers claim


def relative(problem, coef, optimum):
    return (problem.objective(coef) - optimum.primal) / (problem.reference[0] - optimum.primal)


def floor(problem, optimum, batch_size, epochs):
    """How far the mean of the later iterates stays away, with a step that falls to almost 0."""
    loop = Epochs(problem, epochs)
    run = _SGDRun(problem, loop, drago.SGD(batch_size=batch_size))
    mean, count, run.eta = 0.0, 0, 0.1
    with pytest.raises(Stop):
        while True:
            run.epoch()
            run.eta = max(0.1 / (1.0 + 0.1 * run.n_iter), 3e-3)
            if run.n_iter > epochs // 2:
                mean, count = mean + run.w, count + 1
    return relative(problem, mean / count, optimum)


def test_sgd_has_a_floor_that_falls_with_the_batch():
    problem = make(
        "logistic", n=1024, d=5, seed=1, uncertainty=drago.CVaR(0.1), shift_cost=0.02, l2_reg=0.3
    )
    optimum = drago.solve(problem, tol=1e-12)
    floors = [floor(problem, optimum, batch_size, 300) for batch_size in (16, 64, 256)]
    assert floors[0] > 5 * floors[1] > 25 * floors[2] > 0
    assert floors[1] > 1e-4
    # It is a floor: twice as long does not help.
    assert floor(problem, optimum, 64, 600) > 0.5 * floors[1]
    # One batch of all rows has no bias: that is gradient descent.
    loop = Epochs(problem, 3000)
    with pytest.raises(Stop):
        _SGDRun(problem, loop, drago.SGD(batch_size=1024)).run(0.02)
    assert relative(problem, loop.last.w[:, 0], optimum) < 1e-10


@pytest.mark.parametrize("solver", [drago.LSVRG(step_size=0.02), drago.Prospect(step_size=0.02)])
@pytest.mark.parametrize("name", ["cvar", "extremile", "esrm"])
def test_linear_convergence_for_large_shift_costs(solver, name):
    """Over nine orders of magnitude, ten epochs lower the gap to a third or less."""
    problem = make(n=200, uncertainty=SPECTRAL[name], shift_cost=1.0)
    optimum = drago.solve(problem, tol=1e-13)
    gaps = []

    class Watch(Epochs):
        def observe(self, iterate):
            gaps.append(relative(self.problem, iterate.w[:, 0], optimum))
            super().observe(iterate)

    loop = Watch(problem, 60)
    with pytest.raises(Stop):
        solver.run(problem, loop)
    gaps = np.array(gaps)
    assert gaps.min() < 1e-9
    above = np.flatnonzero(gaps > 1e-9)
    assert (gaps[above + 10] < 0.3 * gaps[above]).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_methods_with_a_linear_rate_meet(loss):
    """At the same certified optimum, to 1e-8."""
    problem = make(loss, n=120, shift_cost=0.5)
    values = {}
    for name in ("lbfgs", "newton", "drago", "lsvrg", "prospect", "gd", "agog"):
        result = drago.solve(problem, name, tol=1e-8)
        assert result.status == "optimal" and result.rel_gap <= 1e-8 and result.solver == name
        values[name] = result.primal
    scale = problem.reference[0] - min(values.values())
    assert max(values.values()) - min(values.values()) <= 1e-8 * scale


def test_auto_steps_recover_from_divergence():
    """Features of very different rows: the first step is far too long."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 3))
    X[:3] *= 60.0
    problem = drago.DROProblem(
        X, X @ [1.0, 2.0, 3.0] + rng.standard_normal(100), uncertainty=drago.CVaR(0.5),
        shift_cost=1.0, l2_reg=1.0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("lsvrg", "prospect"):
            result = drago.solve(problem, name, tol=1e-3, max_iter=3000)
            assert result.rel_gap <= 1e-3


def test_a_step_that_diverges_returns_the_best_point():
    problem = make()
    for settings in (drago.SGD, drago.LSVRG, drago.Prospect):
        with pytest.warns(match="further progress|diverged"):
            result = drago.solve(problem, settings(step_size=1e3))
        assert result.status == "stalled" and np.isfinite(result.coef).all()
        assert no_worse(result, problem.reference[0])


def test_the_same_seed_gives_the_same_answer():
    problem = make(n=300)
    for name in ("sgd", "lsvrg", "prospect"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one, same, other = (
                drago.solve(problem, name, tol=0, max_iter=5, random_state=seed)
                for seed in (1, 1, 2)
            )
        assert np.array_equal(one.coef, same.coef)
        assert not np.array_equal(one.coef, other.coef)


@pytest.mark.parametrize("solver", ["sgd", "lsvrg", "prospect"])
def test_the_clock_is_looked_at_within_an_epoch(solver, monkeypatch):
    """Between calls of compiled code, whose work is bounded."""
    monkeypatch.setattr("drago.solvers.baselines._WORK", 1)
    passes, observe = [], Loop.observe
    monkeypatch.setattr(
        Loop, "observe", lambda self, at: (passes.append(at.n_passes), observe(self, at))
    )
    with pytest.warns(match="max_iter"):
        drago.solve(make(n=200), solver, tol=1e-12, max_iter=2)
    assert sum(each % 1 > 0 for each in passes) >= 3


def test_time_limit_holds_within_an_epoch():
    """Each of Prospect's steps costs n."""
    problem = make(n=20_000, uncertainty=drago.Extremile(2.0))
    with pytest.warns(match="time_limit"):
        result = drago.solve(problem, "prospect", tol=1e-9, time_limit=0.3)
    assert result.status == "time_limit" and result.n_iter == 0


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "solver, settings, message",
    [
        ("lsvrg", {"uncertainty": drago.Chi2Ball(1.0)}, "spectral sets"),
        ("prospect", {"uncertainty": drago.KLBall(1.0)}, "spectral sets"),
        ("lsvrg", {"shift_cost": 0.0}, "shift_cost > 0"),
        ("prospect", {"l2_reg": 0.0}, "l2_reg > 0"),
        ("sgd", {"sample_weight": np.arange(1.0, 38.0)}, "equal weight"),
        ("prospect", {"sample_weight": np.arange(1.0, 38.0)}, "equal weight"),
        ("sgd", {"constraint": drago.NonNegative()}, "no constraint"),
        ("lsvrg", {"constraint": drago.L2Ball(1.0)}, "no constraint"),
        (
            "sgd",
            {"uncertainty": drago.Grouped(drago.CVaR(0.5)), "groups": np.arange(37) % 3},
            "Grouped",
        ),
    ],
)
def test_refuses_in_one_sentence(solver, settings, message):
    with pytest.raises(ValueError, match=f"solver '{solver}' .*{message}"):
        drago.solve(make(**settings), solver)


def test_refuses_a_users_loss():
    problem = drago.DROProblem(
        np.eye(3), np.ones(3), loss=lambda y, raw: ((raw - y) ** 2, 2 * (raw - y))
    )
    for solver in ("sgd", "lsvrg", "prospect"):
        with pytest.raises(ValueError, match="built-in losses"):
            drago.solve(problem, solver)


@pytest.mark.parametrize("settings", [drago.SGD, drago.LSVRG, drago.Prospect])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="step_size"):
        settings(step_size=-1.0)
    with pytest.raises(ValueError, match="step_size"):
        settings(step_size="theory")
    with pytest.raises(ValueError, match="batch_size"):
        drago.SGD(batch_size=0)


def test_lsvrg_takes_sample_weights():
    problem = make(sample_weight=np.arange(1.0, 38.0), shift_cost=1.0)
    result = drago.solve(problem, "lsvrg", tol=1e-8)
    assert result.status == "optimal"
