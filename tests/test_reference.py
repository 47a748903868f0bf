"""The witnesses checked against each other, before anything is checked against them."""

import numpy as np
import pytest
import scipy.optimize

import reference
import twins


def tail_integral(x):
    """S of the density that is 0 below 0.6 and constant above: CVaR at 0.4."""
    return np.maximum(np.asarray(x) - 0.6, 0.0) / 0.4


def linear_integral(x):
    """S of the density s(u) = 1/2 + u."""
    x = np.asarray(x)
    return 0.5 * (x + x**2)


PLAIN = [
    ("cvar", 0.1),
    ("cvar", 0.37),
    ("cvar", 1.0),
    ("simplex",),
    ("extremile", 1.0),
    ("extremile", 2.0),
    ("extremile", 5.5),
    ("esrm", 0.0),
    ("esrm", 3.0),
    ("esrm", 60.0),
    ("spectrum", tail_integral),
    ("spectrum", linear_integral),
]
BALLS = [
    (("chi2_ball", 0.01), "chi2"),
    (("chi2_ball", 1.0), "chi2"),
    (("chi2_ball", 40.0), "chi2"),
    (("kl_ball", 0.01), "kl"),
    (("kl_ball", 0.5), "kl"),
    (("kl_ball", 8.0), "kl"),
]
PAIRS = [(s, d) for s in PLAIN for d in ("chi2", "kl")] + BALLS


def name(value):
    return "-".join(getattr(v, "__name__", str(v)) for v in np.atleast_1d(np.array(value, object)))


def nominals(n, rng):
    yield np.full(n, 1.0 / n)
    if n > 1:
        yield rng.dirichlet(np.full(n, 0.7)) * (1 - 1e-3) + 1e-3 / n


def score_vectors(n, rng):
    yield rng.normal(size=n)
    yield rng.integers(0, 3, size=n).astype(float)


# -------------------------------------------------------------------------------- the inner map


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((9,), id="nine"),
        pytest.param((1, 2, 3, 7, 8, 17), id="few and many", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("set_", "divergence"), PAIRS, ids=name)
def test_worst_case_agrees_with_cvxpy(set_, divergence, sizes):
    rng = np.random.default_rng(1)
    for n in sizes:
        for p in nominals(n, rng):
            for u in score_vectors(n, rng):
                for c in (5.0, 1e-2, 0.0):
                    check_against_cvxpy(set_, u, c, divergence, p)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("set_", "divergence"), PAIRS, ids=name)
def test_grouped_worst_case_agrees_with_cvxpy(set_, divergence):
    rng = np.random.default_rng(2)
    for p in nominals(9, rng):
        labels = np.array(list("bacabccad"))
        for c in (1.0, 1e-2, 0.0):
            check_against_cvxpy(("grouped", set_, labels), rng.normal(size=9), c, divergence, p)


def check_against_cvxpy(set_, u, c, divergence, p):
    q = twins.worst_case(set_, u, c, divergence, p)
    assert twins.feasibility(set_, q, p) < 1e-13
    value, q_cvxpy, status = reference.worst_case_cvxpy(set_, u, c, divergence, p)
    scale = c + np.abs(u).max() + 1e-300
    twin_value = twins.objective(u, c, divergence, p, q)
    assert abs(value - twin_value) < 5e-9 * scale, status
    assert twins.feasibility(set_, q_cvxpy, p) < 1e-7
    if c > 0:
        # strong concavity in |.|_1: half of c |q - q'|_1^2 <= the gap in value (+ infeasibility)
        assert c / 2 * np.abs(q - q_cvxpy).sum() ** 2 < 1e-7 * scale


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize(("set_", "divergence"), PAIRS, ids=name)
def test_worst_case_meets_first_order_conditions(set_, divergence, scale):
    """max over q' in Q of <u - c Omega'(q), q' - q> is zero: no other solver is involved."""
    rng = np.random.default_rng(3)
    for n in (1, 5, 60):
        for p in nominals(n, rng):
            for u in score_vectors(n, rng):
                for c in (10.0, 0.1):
                    q = twins.worst_case_extended(set_, scale * u, scale * c, divergence, p)
                    ratio = q / twins._nominal(p, n)
                    slope = ratio if divergence == "chi2" else 1 + np.log(ratio)
                    v = u - c * slope
                    best = twins.worst_case_extended(set_, v, 0.0, divergence, p)
                    # Some processors have no type longer than float64.
                    rounding = max(1e-14, 8 * n * np.finfo(twins.LONG).eps)
                    assert np.sum(v * (best - q)) < rounding * (c + np.abs(u).max())
                    assert twins.feasibility(set_, q.astype(float), p) < 1e-13


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_cvar_and_simplex_are_spectral_sets(divergence):
    rng = np.random.default_rng(4)
    for n in (1, 2, 9, 50):
        for p in nominals(n, rng):
            for u in score_vectors(n, rng):
                for set_ in (("cvar", 0.01), ("cvar", 0.4), ("cvar", 1.0), ("simplex",)):
                    for c in (3.0, 0.1, 1e-7):
                        q = twins.worst_case(set_, u, c, divergence, p)
                        centred, nominal = twins._long(u) - u.max(), twins._nominal(p, n)
                        pav = twins._spectral(set_, centred, twins.LONG(c), divergence, nominal)
                        np.testing.assert_allclose(q, pav.astype(float), atol=1e-14)


@pytest.mark.parametrize(("set_", "divergence"), PAIRS, ids=name)
def test_weight_k_is_k_copies(set_, divergence):
    rng = np.random.default_rng(5)
    copies = np.array([1, 3, 2, 1, 4])
    p = copies / copies.sum()
    u = rng.normal(size=5)
    for c in (1.0, 1e-2, 0.0):
        q = twins.worst_case(set_, u, c, divergence, p)
        each = twins.worst_case(set_, np.repeat(u, copies), c, divergence)
        np.testing.assert_allclose(np.repeat(q / copies, copies), each, atol=1e-14)


@pytest.mark.parametrize(("set_", "divergence"), PAIRS, ids=name)
def test_vanishing_cost_tends_to_zero_cost(set_, divergence):
    rng = np.random.default_rng(6)
    u = np.array([0.0, 1.0, 2.0, 2.0, -1.0])
    p = rng.dirichlet(np.ones(5))
    limit = twins.worst_case(set_, u, 0.0, divergence, p)
    near = twins.worst_case(set_, u, 1e-12, divergence, p)
    np.testing.assert_allclose(near, limit, atol=1e-10)


@pytest.mark.parametrize(("set_", "divergence"), PAIRS, ids=name)
def test_proximal_step_is_optimal(set_, divergence):
    """First-order conditions of <v, q> - nu D(q||p) - s Bregman_D(q, q_prev)."""
    rng = np.random.default_rng(7)
    p = rng.dirichlet(np.ones(12))
    v, nu, s = rng.normal(size=12), 0.3, 2.0
    q_prev = twins.worst_case(set_, rng.normal(size=12), 0.5, divergence, p)
    q = twins.proximal_step(set_, v, nu, s, q_prev, divergence, p)
    assert twins.feasibility(set_, q, p) < 1e-13

    def slope(x):
        return x / p if divergence == "chi2" else 1 + np.log(x / p)

    grad = v - nu * slope(q) - s * (slope(q) - slope(q_prev))
    best = twins.worst_case(set_, grad, 0.0, divergence, p)
    assert grad @ (best - q) < 1e-12


def test_feasibility_sees_violations():
    p = np.array([0.5, 0.25, 0.25])
    q = np.array([0.2, 0.4, 0.4])
    assert twins.feasibility(("cvar", 0.8), q, p) == pytest.approx(0.4 - 0.25 / 0.8)
    assert twins.feasibility(("extremile", 1.5), q, p) == pytest.approx(0.8 - 1 + 0.5**1.5)
    assert twins.feasibility(("chi2_ball", 0.01), q, p) == pytest.approx(0.18 - 0.01)
    assert twins.feasibility(("grouped", ("simplex",), [0, 0, 1]), q, p) == pytest.approx(0.2)
    assert twins.feasibility(("simplex",), [0.5, 0.6, -0.1], p) == pytest.approx(0.1)
    assert twins.feasibility(("simplex",), [0.5, 0.6, 0.1], p) == pytest.approx(0.2)


def test_kappa_q_meets_the_formulas():
    rng = np.random.default_rng(8)
    for p in nominals(6, rng):
        expected = {
            ("cvar", 0.3): max(min(1 / 0.3, 1 / x) for x in p),
            ("simplex",): 1 / p.min(),
            ("extremile", 2.5): max((1 - (1 - x) ** 2.5) / x for x in p),
            ("chi2_ball", 0.4): max(min(1, x + np.sqrt(0.8 * x * (1 - x))) / x for x in p),
        }
        for set_, value in expected.items():
            assert twins.kappa_q(set_, p) == pytest.approx(value, rel=1e-13)
        assert twins.kappa_q(("grouped", ("cvar", 0.5), [0, 0, 0, 1, 1, 1]), p) <= 2
        largest = twins.kappa_q(("kl_ball", 0.2), p)
        q = largest * p.min()
        spent = q * np.log(q / p.min()) + (1 - q) * np.log((1 - q) / (1 - p.min()))
        assert spent == pytest.approx(0.2, rel=1e-12) or spent < 0.2


@pytest.mark.parametrize("loss", ["squared", ("huber", 0.7), "logistic", "multinomial"])
def test_loss_derivatives_by_differences(loss):
    rng = np.random.default_rng(9)
    n = 40
    if loss == "multinomial":
        y, raw = rng.integers(0, 4, n), 3 * rng.normal(size=(n, 4))
    else:
        y, raw = rng.integers(0, 2, n), 3 * rng.normal(size=n)
    for j in range(raw.shape[1] if raw.ndim == 2 else 1):
        step = np.zeros_like(raw)
        step[(slice(None), j) if raw.ndim == 2 else slice(None)] = 1e-6
        slope = (twins.losses(loss, y, raw + step) - twins.losses(loss, y, raw - step)) / 2e-6
        exact = twins.dlosses(loss, y, raw)
        np.testing.assert_allclose(slope, exact[:, j] if raw.ndim == 2 else exact, atol=1e-8)
    assert np.all(np.isfinite(twins.losses(loss, y, 1e3 * raw)))


# ---------------------------------------------------------------------------- the whole problem


def make_data(loss, n, rng, d=3):
    X = rng.normal(size=(n, d))
    signal = X @ np.linspace(1, -1, d) + rng.standard_t(3, size=n)
    if loss == "logistic":
        return X, (signal > 0).astype(int)
    if loss == "multinomial":
        return X, np.digitize(signal, [-0.7, 0.7])
    return X, signal


LOSSES = ["squared", ("huber", 0.5), "logistic", "multinomial"]
SOLVED = [
    (("cvar", 0.3), "chi2"),
    (("cvar", 0.3), "kl"),
    (("simplex",), "chi2"),
    (("simplex",), "kl"),
    (("extremile", 2.0), "chi2"),
    (("esrm", 2.0), "kl"),
    (("chi2_ball", 0.5), "chi2"),
    (("kl_ball", 0.3), "kl"),
    (("grouped", ("cvar", 0.5), np.arange(12) % 4), "chi2"),
    (("grouped", ("kl_ball", 0.3), np.arange(12) % 4), "kl"),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES, ids=name)
@pytest.mark.parametrize(("set_", "divergence"), SOLVED, ids=name)
def test_solution_is_certified(loss, set_, divergence):
    """P(w) - P* <= |grad P(w)|^2 / (2 mu), with the worst-case weights at w from the twins."""
    rng = np.random.default_rng(10)
    X, y = make_data(loss, 12, rng)
    mu, nu = 0.1, 0.2
    for p in nominals(12, rng):
        best = reference.solve_problem_detailed(X, y, loss, set_, divergence, nu, mu, p)
        raw = X @ best.w.T
        q = twins.worst_case(set_, twins.losses(loss, y, raw), nu, divergence, p)
        grad = (twins.dlosses(loss, y, raw).T * q) @ X + mu * best.w
        assert np.sum(grad**2) / (2 * mu) < 1e-9 * best.value
        assert abs(best.solved - best.primal) < 2e-8 * best.value
        assert twins.feasibility(set_, best.q, p) < 1e-6
        np.testing.assert_allclose(best.q, q, atol=1e-4)


CONSTRAINTS = [None, ("l2_ball", 0.4), ("box", -0.3, 0.25), ("nonnegative",)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=name)
@pytest.mark.parametrize("loss", ["squared", ("huber", 0.5), "logistic"], ids=name)
@pytest.mark.parametrize("nu", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_no_search_finds_less(loss, constraint, nu):
    """A direct search from the optimum, inside the constraint, finds nothing lower."""
    rng = np.random.default_rng(11)
    X, y = make_data(loss, 10, rng, d=2)
    p = rng.dirichlet(np.ones(10))
    mu = 0.05
    for set_, divergence in ((("cvar", 0.4), "chi2"), (("esrm", 2.0), "kl")):
        args = (X, y, loss, set_, divergence, nu, mu, p)
        best, w, b = reference.solve_problem(*args, fit_intercept=True, constraint=constraint)
        assert reference.primal_value(*args, w, b) == pytest.approx(best, abs=1e-7)

        def value(z, args=args):
            coef = reference._project(z[None, :2], constraint)[0]
            return reference.primal_value(*args, coef, z[2])

        start = np.append(w, b)
        for _ in range(60):
            z = start + 10.0 ** rng.uniform(-7, 0) * rng.normal(size=3)
            assert value(z) > best - 1e-8
        options = {"maxfev": 60, "initial_simplex": start + 1e-3 * np.eye(4, 3)}
        found = scipy.optimize.minimize(value, start, method="Nelder-Mead", options=options)
        assert found.fun > best - 1e-8


def test_plain_cases_by_hand():
    """t = 1 is the mean: ridge in closed form; the simplex at nu = 0 is the largest loss."""
    rng = np.random.default_rng(12)
    X, y = make_data("squared", 15, rng)
    p = rng.dirichlet(np.ones(15))
    ridge = np.linalg.solve((X.T * p) @ X + 0.1 * np.eye(3), (X.T * p) @ y)
    value, w, _ = reference.solve_problem(X, y, "squared", ("cvar", 1.0), "chi2", 0.3, 0.1, p)
    np.testing.assert_allclose(w, ridge, atol=1e-6)
    mean = 0.5 * p @ (X @ ridge - y) ** 2 + 0.05 * ridge @ ridge
    assert value == pytest.approx(mean, rel=1e-10)

    value, _, b = reference.solve_problem(
        0 * X, y, "squared", ("simplex",), "kl", 0.0, 1.0, p, fit_intercept=True
    )
    assert b == pytest.approx((y.max() + y.min()) / 2, abs=1e-6)
    assert value == pytest.approx(np.ptp(y) ** 2 / 8, rel=1e-8)


@pytest.mark.parametrize(("nu", "divergence"), [(0.0, "chi2"), (0.1, "chi2"), (0.1, "kl")])
def test_spectral_models_agree(monkeypatch, nu, divergence):
    """All subsets, cutting planes and the permutahedron give one optimum."""
    rng = np.random.default_rng(13)
    X, y = make_data("squared", 8, rng)
    for p in nominals(8, rng):
        args = (X, y, "squared", ("extremile", 3.0), divergence, nu, 0.1, p)
        value, w, _ = reference.solve_problem(*args)
        with monkeypatch.context() as patch:
            patch.setattr(reference, "MAX_SUBSETS", 3)
            other, v, _ = reference.solve_problem(*args)
        assert other == pytest.approx(value, rel=1e-8)
        np.testing.assert_allclose(v, w, atol=1e-4)


def test_multinomial_intercept_and_larger_problems():
    rng = np.random.default_rng(14)
    for n, set_ in ((30, ("extremile", 2.0)), (30, ("cvar", 0.2)), (24, ("kl_ball", 0.5))):
        X, y = make_data("multinomial", n, rng)
        p = rng.dirichlet(np.ones(n))
        divergence = "kl" if set_[0] == "kl_ball" else "chi2"
        args = (X, y, "multinomial", set_, divergence, 0.1, 0.05, p)
        value, w, b = reference.solve_problem(*args, fit_intercept=True)
        assert w.shape == (3, 3)
        assert b.shape == (3,)
        assert value <= reference.solve_problem(*args)[0] + 1e-9
        for _ in range(40):
            size = 10.0 ** rng.uniform(-6, 0)
            near = (w + size * rng.normal(size=w.shape), b + size * rng.normal(size=3))
            assert reference.primal_value(*args, *near) > value - 1e-9
