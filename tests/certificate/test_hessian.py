"""The Hessian of P as a metric, against differences of its gradient."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import cases
import drago
from drago.certificate import hessian
from drago.certificate.hessian import hessian_metric
from drago.metric import FLOOR, FULL


@pytest.fixture(autouse=True)
def from_few_rows(request, monkeypatch):
    """However few rows carry weight: the formula is what is looked at here."""
    if "as_it_is" not in request.fixturenames:
        of_any = replace(hessian._RULE, effective=0, effective_of_classes=0)
        monkeypatch.setattr(hessian, "_RULE", of_any)


@pytest.fixture
def as_it_is():
    """Without the above."""


N, D = 60, 4
LOSSES = ("squared", "huber", "logistic")
SETS = {
    "cvar": drago.CVaR(0.3),
    "mean": drago.CVaR(1.0),
    "simplex": drago.Simplex(),
    "extremile": drago.Extremile(2.5),
    "esrm": drago.ESRM(3.0),
    "chi2_ball": drago.Chi2Ball(0.5),
    "kl_ball": drago.KLBall(0.3),
    "grouped": drago.Grouped(drago.CVaR(0.5)),
}
PAIRS = [
    (name, divergence)
    for name, uncertainty in SETS.items()
    for divergence in cases.DIVERGENCES
    if uncertainty.own_divergence in (None, divergence)
]


def draw(loss="logistic", name="cvar", divergence="chi2", nu=20.0, seed=0, **settings):
    """A problem with unequal weights and features off the centre, and a point of no distinction."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D)) @ rng.uniform(0.2, 1.0, (D, D)) + rng.standard_normal(D)
    z = X @ rng.standard_normal(D) + rng.standard_normal(N)
    y = (z > np.median(z)).astype(float) if loss == "logistic" else z
    settings = {
        "loss": drago.Huber(0.7) if loss == "huber" else loss,
        "uncertainty": SETS[name],
        "divergence": divergence,
        "shift_cost": nu,
        "l2_reg": 0.05,
        "sample_weight": rng.uniform(0.3, 3.0, N),
        "groups": np.arange(N) % 5,
        "fit_intercept": True,
    } | settings
    problem = drago.DROProblem(X, y, **settings)
    w = 0.5 * rng.standard_normal((D, 1))
    b = 0.3 * rng.standard_normal(1) * problem.fit_intercept
    return problem, w, b


def differences(problem, w, b, h=1e-5):
    """The Hessian of P, the intercept last, by central differences of its gradient."""
    d = problem.n_features

    def gradient(x):
        ev = problem.evaluate(x[:d, None], x[d:])
        g = problem.gradient(ev, problem.dual_oracle().weights(ev.losses, problem.nu))
        return np.append(g.w[:, 0] + problem.mu * x[:d], g.b)

    x = np.append(w[:, 0], b)
    steps = h * np.eye(d + 1)
    return np.array([(gradient(x + e) - gradient(x - e)) / (2 * h) for e in steps])


def check(problem, w, b, found, rtol=1e-5):
    """Against the Hessian, or what is left of it when the intercept is best at each w."""
    metric, centre = found
    d = problem.n_features
    H = differences(problem, w, b)
    scale = np.abs(H).max()
    np.testing.assert_allclose(H, H.T, atol=rtol * scale)
    expected = H[:d, :d]
    if problem.fit_intercept:
        assert metric.intercept == pytest.approx(H[d, d], rel=rtol)
        np.testing.assert_allclose(centre, H[:d, d] / H[d, d], atol=rtol * scale / H[d, d])
        expected = expected - np.outer(H[:d, d], H[d, :d]) / H[d, d]
    else:
        assert metric.intercept == 1.0
        np.testing.assert_array_equal(centre, 0.0)
    rebuilt = (metric.basis * metric.eigenvalues) @ metric.basis.T
    np.testing.assert_allclose(rebuilt, expected, atol=rtol * scale)
    np.testing.assert_allclose(metric.basis.T @ metric.basis, np.eye(d), atol=1e-12)
    assert (metric.eigenvalues > 0).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
@pytest.mark.parametrize("loss", LOSSES)
def test_metric_is_the_hessian(loss, name, divergence, fit_intercept):
    """With a large shift cost, where every row has a weight, and a moderate one."""
    for seed, nu in enumerate((20.0, 2.0)):
        problem, w, b = draw(loss, name, divergence, nu, seed, fit_intercept=fit_intercept)
        check(problem, w, b, hessian_metric(problem, w, b, error=0.0))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_weights_respond(loss):
    """Their part of the Hessian is no matter of rounding, or the test above would be empty."""
    problem, w, b = draw(loss, nu=2.0)
    fixed = problem._replace(nu=1e9)
    here, there = (differences(each, w, b) for each in (problem, fixed))
    assert np.linalg.norm(here - there) > 0.1 * np.linalg.norm(there)


def test_the_intercept_does_not_interfere():
    """Moving w and the intercept by -centre'dw together leaves the slope along b as it is."""
    problem, w, b = draw("logistic", nu=2.0, seed=3)
    _, centre = hessian_metric(problem, w, b, error=0.0)
    dw = 1e-5 * np.random.default_rng(4).standard_normal((D, 1))

    def along_intercept(sign, together):
        step = sign * dw
        ev = problem.evaluate(w + step, b - together * centre @ step)
        q = problem.dual_oracle().weights(ev.losses, problem.nu)
        return problem.gradient(ev, q).b[0]

    alone, both = (along_intercept(1, k) - along_intercept(-1, k) for k in (0.0, 1.0))
    assert abs(both) <= 1e-4 * abs(alone)


@pytest.mark.parametrize("storage", [sp.csr_array, np.asfortranarray, np.float32])
def test_every_storage_gives_the_same_metric(storage):
    problem, w, b = draw("logistic", nu=2.0)
    X = problem.X.astype(np.float32).astype(np.float64)
    expected, centre = hessian_metric(problem._replace(X=X), w, b, error=0.0)
    found, other = hessian_metric(problem._replace(X=storage(X)), w, b, error=0.0)
    np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues, rtol=1e-10)
    np.testing.assert_allclose(other, centre, rtol=1e-10)
    assert found.intercept == pytest.approx(expected.intercept, rel=1e-12)


def spread(problem, w, b):
    """The divergence of the exact weights, from its definition."""
    q = problem.worst_case_weights(problem.losses(*problem.to_public(w, b)))
    p = problem.p
    if problem.divergence.name == "kl":
        kept = q > 0
        return float(np.sum(q[kept] * np.log(q[kept] / p[kept])))
    return float(0.5 * np.sum((q - p) ** 2 / p))


@pytest.mark.parametrize("error", [1e-3, 0.1])
@pytest.mark.parametrize(("name", "divergence"), [("cvar", "chi2"), ("extremile", "kl")])
@pytest.mark.parametrize(("loss", "nu", "times"), [("logistic", 0.05, 100), ("squared", 2.0, 300)])
def test_an_error_raises_the_shift_cost(name, divergence, error, loss, nu, times):
    """By so much that P changes by this many times the error."""
    problem, w, b = draw(loss, name, divergence, nu, seed=5)
    found = hessian_metric(problem, w, b, error)
    raised = problem._replace(nu=problem.nu + times * error / spread(problem, w, b))
    expected = hessian_metric(raised, w, b, error=0.0)
    np.testing.assert_allclose(found[0].eigenvalues, expected[0].eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-8, atol=1e-12)
    assert found[0].intercept == pytest.approx(expected[0].intercept, rel=1e-9)
    check(raised, w, b, found)
    plain = hessian_metric(problem, w, b, error=0.0)
    assert not np.allclose(found[0].eigenvalues, plain[0].eigenvalues, rtol=1e-2)


def test_an_error_where_the_weights_are_the_nominal_ones():
    """They have no divergence to divide by."""
    problem, w, b = draw("logistic", "mean", "chi2", 1.0)
    assert spread(problem, w, b) == pytest.approx(0.0, abs=1e-20)
    check(problem, w, b, hessian_metric(problem, w, b, 1e-3))


def test_no_shift_cost():
    """P has no Hessian; with an error there is one to be had."""
    problem, w, b = draw("logistic", nu=0.0)
    assert hessian_metric(problem, w, b, error=0.0) is None
    found = hessian_metric(problem, w, b, error=0.1)
    check(problem._replace(nu=10.0 / spread(problem, w, b)), w, b, found)


def test_directions_that_no_row_sees_have_a_curvature():
    problem, w, b = draw("squared", l2_reg=0.0)
    X = problem.X.copy()
    X[:, 2] = X[:, 1]
    metric, _ = hessian_metric(problem._replace(X=X), w, b, error=0.0)
    assert metric.eigenvalues[0] == pytest.approx(FLOOR * metric.eigenvalues[-1], rel=1e-6)
    assert metric.eigenvalues[1] > 100 * metric.eigenvalues[0]


def test_no_curvature_along_the_intercept():
    """All residuals beyond the bend of Huber's loss, and weights that do not respond."""
    problem, w, b = draw("huber", "mean", fit_intercept=True)
    far = problem._replace(y=problem.y + 1e3)
    assert hessian_metric(far, w, b, error=0.0) is None
    far, b = far._replace(fit_intercept=False), np.zeros(1)
    check(far, w, b, hessian_metric(far, w, b, error=0.0))


def test_many_rows_are_represented_by_some():
    """Evenly spaced ones: with copies of one block, the same metric as from the block."""
    problem, w, b = draw("logistic", nu=2.0, sample_weight=None)
    copies = 50  # 3000 rows, of which 2400 are looked at
    assert N * copies > 600 * D
    many = drago.DROProblem(
        np.repeat(problem.X, copies, axis=0),
        np.repeat(problem.y, copies),
        loss="logistic",
        uncertainty=drago.CVaR(0.3),
        shift_cost=2.0,
        l2_reg=0.05,
        fit_intercept=True,
    )
    few, centre = hessian_metric(problem, w, b, error=0.0)
    found, other = hessian_metric(many, w, b, error=0.0)
    np.testing.assert_allclose(found.eigenvalues, few.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(other, centre, atol=1e-9)


# ----------------------------------------------------------------------------- where there is none


def test_none_for_several_outputs():
    problem = cases.make("multinomial")
    assert hessian_metric(problem, np.zeros((4, 3)), np.zeros(3), error=0.0) is None


@pytest.mark.parametrize(
    "constraint", [drago.Box(-1.0, 1.0), drago.Box(-np.inf, 1.0), drago.NonNegative()], ids=repr
)
def test_none_for_a_box(constraint):
    problem, w, b = draw(constraint=constraint)
    assert hessian_metric(problem, w, b, error=0.0) is None


def test_none_for_too_many_features():
    rng = np.random.default_rng(6)
    for d in (FULL, FULL + 1):
        problem = drago.DROProblem(rng.standard_normal((5, d)), np.arange(5.0), shift_cost=1.0)
        found = hessian_metric(problem, np.zeros((d, 1)), np.zeros(1), error=0.0)
        assert (found is None) == (d > FULL)


def quadratic(y, raw):
    return 0.5 * (raw - y) ** 2, raw - y


def test_none_for_a_loss_of_ones_own():
    problem, w, b = draw(loss=quadratic)
    assert hessian_metric(problem, w, b, error=0.0) is None


class Own:
    """CVaR as a set of one's own."""

    def worst_case(self, u, c, divergence, p):
        return drago.CVaR(0.3).worst_case(u, c, divergence, p)

    def q_max(self, p):
        return drago.CVaR(0.3).q_max(p)


def test_none_for_a_set_of_ones_own():
    problem, w, b = draw(uncertainty=Own())
    assert hessian_metric(problem, w, b, error=0.0) is None


@pytest.mark.parametrize(("loss", "rows"), [("squared", 60), ("logistic", 15)])
def test_none_where_few_rows_carry_weight(loss, rows, as_it_is):
    """With CVaR(0.5) and a tiny shift cost about half of them do."""
    for n in (rows, 4 * rows * D):
        problem = cases.make(loss, n=n, d=D, uncertainty=drago.CVaR(0.5), shift_cost=1e-6)
        found = hessian_metric(problem, np.zeros((D, 1)), np.zeros(1), error=0.0)
        assert (found is None) == (n == rows)
