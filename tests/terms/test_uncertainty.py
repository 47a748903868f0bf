"""The uncertainty sets and their oracles, against cvxpy, slow twins and their own algebra."""

import math

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import sklearn.base
from hypothesis import given
from hypothesis import strategies as st

import cases
import drago
import reference
import twins
from drago.terms.divergences import as_divergence
from drago.terms.uncertainty import UserSet, as_uncertainty

GROUPED = [
    ("grouped_cvar", "chi2"),
    ("grouped_cvar", "kl"),
    ("grouped_esrm", "chi2"),
    ("grouped_esrm", "kl"),
    ("grouped_chi2_ball", "chi2"),
    ("grouped_kl_ball", "kl"),
]
PAIRS = cases.PAIRS + GROUPED
NAMES = sorted({name for name, _ in PAIRS})
KL_PAIRS = [name for name, divergence in PAIRS if divergence == "kl"]


def build(name, n):
    """(set, the witnesses' tuple, group of each row or None)."""
    if not name.startswith("grouped_"):
        return (*cases.SETS[name], None)
    inner, described = cases.SETS[name.removeprefix("grouped_")]
    groups = np.arange(n) % 4
    return drago.Grouped(inner), ("grouped", described, groups), groups


def loss_vectors(n, rng):
    """(scale, losses): random and adversarial."""
    x = rng.normal(size=n)
    yield 1.0, x
    yield 1.0, rng.integers(0, 3, size=n).astype(float)
    yield 1.0, np.full(n, 0.7)
    huge = x.copy()
    huge[rng.integers(n)] = 1e3
    yield 1.0, huge
    yield 1e-8, 1e-8 * x
    yield 1e8, 1e8 * x


def spread(u):
    return float(np.ptp(u))


# ------------------------------------------------------------------------------ the exact weights


class Witnesses:
    """Compares weights with the twin and with cvxpy, and counts how often cvxpy was accurate."""

    def __init__(self):
        self.accurate = self.total = 0

    def judge(self, name, divergence, u, c, p):
        uncertainty, described, groups = build(name, u.size)
        q = uncertainty.oracle(p, divergence, groups).weights(u, c)
        centred, scale = u - u.max(), c + spread(u) + 1e-300
        value = twins.objective(centred, c, divergence, p, q)
        assert twins.feasibility(described, q, p) <= 1e-12

        twin = twins.worst_case(described, u, c, divergence, p)
        assert abs(value - twins.objective(centred, c, divergence, p, twin)) <= 1e-12 * scale

        best = reference.worst_case_cvxpy(described, centred, c, divergence, p)
        self.total += 1
        if best.status.split()[0] in ("optimal@1e-12", "optimal@1e-11", "optimal@1e-10"):
            self.accurate += 1
            assert abs(value - best.value) <= 1e-8 * scale


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_weights_agree_with_cvxpy(name, divergence):
    """One size; fewer rows and other losses below."""
    rng = np.random.default_rng(1)
    witnesses = Witnesses()
    for kind, (scale, u) in zip(("random", "uniform"), loss_vectors(17, rng)):
        p = cases.nominal(kind, 17, rng)
        for nu in (10.0, 0.01, 0.0):
            witnesses.judge(name, divergence, u, nu * scale, p)
    # Whether the other solver reaches its accuracy is up to rounding.
    assert witnesses.accurate >= 0.75 * witnesses.total


@pytest.mark.slow
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_weights_agree_with_cvxpy_on_adversarial_losses(name, divergence):
    rng = np.random.default_rng(2)
    witnesses = Witnesses()
    for n in (1, 2, 3, 17):
        for kind in ("uniform", "random"):
            for _ in range(2):
                p = cases.nominal(kind, n, rng)
                for scale, u in loss_vectors(n, rng):
                    for nu in (10.0, 0.01, 0.0):
                        witnesses.judge(name, divergence, u, nu * scale, p)
    assert witnesses.accurate >= 0.9 * witnesses.total


@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_weights_agree_with_the_twin(name, divergence):
    """The weights themselves, where they are well determined."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 17, 60):
        uncertainty, described, groups = build(name, n)
        for kind in ("uniform", "random"):
            p = cases.nominal(kind, n, rng)
            for scale, u in loss_vectors(n, rng):
                for nu in (10.0, 0.1):
                    c = nu * scale
                    q = uncertainty.oracle(p, divergence, groups).weights(u, c)
                    twin = twins.worst_case(described, u, c, divergence, p)
                    np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("name", "divergence"), cases.PAIRS)
def test_public_worst_case_is_the_oracle(name, divergence):
    rng = np.random.default_rng(4)
    p = cases.nominal("random", 9, rng)
    u = rng.normal(size=9)
    uncertainty = cases.SETS[name][0]
    expected = uncertainty.oracle(p, divergence).weights(u, 0.3)
    by_object = uncertainty.worst_case(list(u), 0.3, as_divergence(divergence), list(p))
    np.testing.assert_array_equal(uncertainty.worst_case(u, 0.3, divergence, p), expected)
    np.testing.assert_array_equal(by_object, expected)


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
@pytest.mark.parametrize("tiny", [1e-4, 1e-6, 1e-8])
def test_tiny_nominal_weights_keep_the_sum(tiny, divergence):
    """A row of tiny p may take any ratio: u spreads widely against c inside the free set."""
    p = np.array([tiny, 1.0 - tiny])
    u = np.array([0.4, 0.0])
    for uncertainty, described in ((drago.Simplex(), ("simplex",)), (drago.CVaR(1e-9), None)):
        described = described or ("cvar", 1e-9)
        for c in (0.5 * tiny, tiny, 10 * tiny):
            q = uncertainty.oracle(p, divergence).weights(u, c)
            assert twins.feasibility(described, q, p) <= 1e-12
            twin = twins.worst_case(described, u, c, divergence, p)
            np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["chi2", "kl"])
@pytest.mark.parametrize("radius", [1e-4, 1e-8, 1e-12])
def test_a_tiny_ball_moves_the_weights_accurately(name, radius):
    """q - p is as small as sqrt(radius), and still has eight digits."""
    rng = np.random.default_rng(5)
    ball = drago.Chi2Ball(radius) if name == "chi2" else drago.KLBall(radius)
    for kind in ("uniform", "random"):
        for n in (2, 6, 40):
            p = cases.nominal(kind, n, rng)
            u = rng.normal(size=n)
            for c in (0.0, 0.1):
                moved = ball.oracle(p).weights(u, c) - p
                twin = twins.worst_case((f"{name}_ball", radius), u, c, name, p) - p
                np.testing.assert_allclose(moved, twin, rtol=0, atol=1e-8 * np.abs(twin).max())


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
@pytest.mark.parametrize("level", [1e-12, 1e-100, 1e-250, 1e-310])
def test_cvar_of_a_vanishing_tail_is_the_simplex(level, divergence):
    rng = np.random.default_rng(6)
    for n in (1, 2, 11):
        p = cases.nominal("random", n, rng)
        u = rng.normal(size=n)
        for c in (1.0, 1e-2, 0.0):
            thin = drago.CVaR(level).oracle(p, divergence).weights(u, c)
            whole = drago.Simplex().oracle(p, divergence).weights(u, c)
            np.testing.assert_allclose(thin, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_equal_losses_leave_the_nominal_weights(name, divergence):
    rng = np.random.default_rng(7)
    for n in (1, 2, 5, 40):
        uncertainty, _, groups = build(name, n)
        p = cases.nominal("random", n, rng)
        for c in (1.0, 0.0):
            q = uncertainty.oracle(p, divergence, groups).weights(np.full(n, 0.7), c)
            np.testing.assert_allclose(q, p, rtol=0, atol=1e-14)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_the_weights_of_many_rows_sum_to_one(name, divergence):
    rng = np.random.default_rng(26)
    n = 200_000
    uncertainty, _, groups = build(name, n)
    for kind in ("uniform", "random"):
        p = cases.nominal(kind, n, rng)
        q = uncertainty.oracle(p, divergence, groups).weights(rng.normal(size=n), 0.1)
        assert abs(math.fsum(q) - 1) <= 1e-12
        assert q.min() >= 0.0


# -------------------------------------------------------------------------------- proximal steps


@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_proximal_steps_agree_with_the_twin(name, divergence):
    rng = np.random.default_rng(8)
    kind_of = as_divergence(divergence)
    for n in (1, 3, 17):
        uncertainty, described, groups = build(name, n)
        for kind in ("uniform", "random"):
            p = cases.nominal(kind, n, rng)
            oracle = uncertainty.oracle(p, divergence, groups)
            previous = oracle.weights(rng.normal(size=n), 0.7)
            mirror = kind_of.mirror(previous, p)
            for nu, s in ((1.0, 0.5), (0.05, 3.0), (0.0, 0.4), (0.3, 0.0)):
                v = rng.normal(size=n)
                q, after = oracle.step(v, nu, s, mirror)
                twin = twins.proximal_step(described, v, nu, s, previous, divergence, p)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)
                np.testing.assert_allclose(after, kind_of.mirror(q, p), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_proximal_steps_do_not_change_their_arguments(divergence):
    p = np.full(4, 0.25)
    v, mirror = np.arange(4.0), np.zeros(4)
    for s in (0.0, 1.0):
        drago.CVaR(0.5).oracle(p, divergence).step(v, 0.1, s, mirror)
    np.testing.assert_array_equal(v, np.arange(4.0))
    np.testing.assert_array_equal(mirror, np.zeros(4))


@pytest.mark.parametrize("name", KL_PAIRS)
def test_many_kl_steps_keep_the_mirror_finite(name):
    """Weights underflow, their logarithms do not."""
    rng = np.random.default_rng(9)
    n = 12
    uncertainty, described, groups = build(name, n)
    p = cases.nominal("uniform", n, rng)
    oracle = uncertainty.oracle(p, "kl", groups)
    mirror = np.zeros(n)
    low = 1.0
    for _ in range(200):
        q, mirror = oracle.step(50.0 * rng.normal(size=n) + 300.0 * np.arange(n), 0.0, 2.0, mirror)
        assert np.isfinite(q).all()
        assert np.isfinite(mirror).all()
        assert twins.feasibility(described, q, p) <= 1e-12
        positive = q > 1e-290
        np.testing.assert_allclose(mirror[positive], np.log(q[positive] / p[positive]), atol=1e-9)
        low = min(low, q.min())
    if name in ("simplex", "cvar", "spectrum"):
        assert low == 0.0


def test_kl_steps_without_a_cap_add_up():
    """With nu = 0 the mirror is the running sum of v/s, but for a constant."""
    rng = np.random.default_rng(10)
    n = 7
    oracle = drago.Simplex().oracle(np.full(n, 1 / n), "kl")
    mirror, total = np.zeros(n), np.zeros(n)
    for _ in range(200):
        v = 100.0 * rng.normal(size=n)
        total += v / 2.0
        q, mirror = oracle.step(v, 0.0, 2.0, mirror)
    np.testing.assert_allclose(mirror - mirror.max(), total - total.max(), rtol=1e-10, atol=1e-8)
    assert q.min() == 0.0


# ------------------------------------------------------------------------------------ properties


@st.composite
def problems(draw, zero_cost=True):
    """(name, divergence, u, copies, c): u in eighths, so that ties and shifts are exact."""
    name, divergence = draw(st.sampled_from(PAIRS))
    n = draw(st.integers(1, 12))
    u = np.array(draw(st.lists(st.integers(-80, 80), min_size=n, max_size=n))) / 8.0
    copies = np.array(draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)))
    costs = [0.01, 0.5, 20.0]
    # near-ties of group means are decided by rounding
    if zero_cost and not name.startswith("grouped"):
        costs.append(0.0)
    return name, divergence, u, copies, draw(st.sampled_from(costs))


def solve(name, divergence, u, copies, c, groups=None):
    uncertainty, _, own = build(name, u.size)
    groups = own if groups is None else groups
    return uncertainty.oracle(copies / copies.sum(), divergence, groups).weights(u, c)


@given(problems(), st.randoms(use_true_random=False))
def test_weights_follow_a_permutation(problem, random):
    name, divergence, u, copies, c = problem
    order = list(range(u.size))
    random.shuffle(order)
    groups = build(name, u.size)[2]
    moved = solve(
        name, divergence, u[order], copies[order], c, None if groups is None else groups[order]
    )
    expected = solve(name, divergence, u, copies, c)[order]
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-11)


@given(problems())
def test_weight_k_is_k_copies(problem):
    name, divergence, u, copies, c = problem
    groups = build(name, u.size)[2]
    groups = None if groups is None else np.repeat(groups, copies)
    ones = np.ones(copies.sum())
    each = solve(name, divergence, np.repeat(u, copies), ones, c, groups)
    summed = np.bincount(np.repeat(np.arange(u.size), copies), weights=each)
    np.testing.assert_allclose(summed, solve(name, divergence, u, copies, c), rtol=0, atol=1e-11)


@given(problems())
def test_ratios_rise_with_the_losses(problem):
    name, divergence, u, copies, c = problem
    p = copies / copies.sum()
    ratio = solve(name, divergence, u, copies, c) / p
    groups = build(name, u.size)[2]
    if groups is not None:
        u = (np.bincount(groups, weights=p * u) / np.bincount(groups, weights=p))[groups]
    order = np.lexsort((ratio, u))
    assert np.diff(ratio[order]).min(initial=0.0) >= -1e-11 * ratio.max()


@given(problems(), st.sampled_from([1024.0, -(2.0**20), 1e8]))
def test_a_constant_on_all_losses_changes_nothing(problem, constant):
    name, divergence, u, copies, c = problem
    shifted = solve(name, divergence, u + constant, copies, c)
    np.testing.assert_allclose(shifted, solve(name, divergence, u, copies, c), rtol=0, atol=1e-11)


@given(problems(), st.sampled_from([-200, -60, -27, -3, 5, 27, 60, 200]))
def test_scaling_losses_and_cost_together_changes_nothing(problem, power):
    name, divergence, u, copies, c = problem
    scale = 2.0**power
    scaled = solve(name, divergence, scale * u, copies, scale * c)
    np.testing.assert_allclose(scaled, solve(name, divergence, u, copies, c), rtol=0, atol=1e-11)


@given(problems(zero_cost=False))
def test_a_huge_cost_gives_the_nominal_weights(problem):
    name, divergence, u, copies, _ = problem
    q = solve(name, divergence, u, copies, 1e12)
    np.testing.assert_allclose(q, copies / copies.sum(), rtol=0, atol=1e-10)


@given(problems())
def test_cvar_of_everything_is_the_mean(problem):
    _, _, u, copies, c = problem
    for divergence in cases.DIVERGENCES:
        q = solve("cvar_mean", divergence, u, copies, c)
        np.testing.assert_allclose(q, copies / copies.sum(), rtol=0, atol=1e-15)


@given(problems())
def test_thin_tails_reach_the_maximum(problem):
    _, _, u, copies, _ = problem
    p = copies / copies.sum()
    for divergence in cases.DIVERGENCES:
        for uncertainty in (drago.Simplex(), drago.CVaR(1e-6)):
            q = uncertainty.worst_case(u, 0.0, divergence, p)
            assert abs(q @ u - u.max()) <= 1e-13 * (1 + np.abs(u).max())
            assert (q[u < u.max()] == 0).all()


@given(st.sampled_from(PAIRS), st.data())
def test_a_warm_oracle_equals_a_cold_one(pair, data):
    name, divergence = pair
    n = data.draw(st.integers(1, 12))
    seed = data.draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    uncertainty, _, groups = build(name, n)
    p = cases.nominal(data.draw(st.sampled_from(["uniform", "random"])), n, rng)
    warm = uncertainty.oracle(p, divergence, groups)
    c = data.draw(st.sampled_from([0.05, 1.0, 30.0]))
    for _ in range(5):
        jump = data.draw(st.sampled_from([0.0, 0.0, 1.0, -100.0, 1e4]))
        stretch = data.draw(st.sampled_from([1.0, 0.01, 50.0]))
        u = stretch * rng.normal(size=n) + jump
        cost = c if data.draw(st.booleans()) else 2.0 * c
        q = warm.weights(u, cost)
        cold = uncertainty.oracle(p, divergence, groups).weights(u, cost)
        np.testing.assert_allclose(q, cold, rtol=0, atol=1e-11)


def test_a_warm_oracle_follows_rising_losses():
    """Losses that jump up between two calls leave the last threshold far below all of them."""
    p = np.full(5, 0.2)
    u = np.arange(5.0)
    for divergence in cases.DIVERGENCES:
        oracle = drago.CVaR(0.3).oracle(p, divergence)
        first = oracle.weights(u, 1.0)
        np.testing.assert_allclose(oracle.weights(u + 10.0, 1.0), first, rtol=0, atol=1e-12)
        np.testing.assert_allclose(oracle.weights(u - 10.0, 1.0), first, rtol=0, atol=1e-12)


# ----------------------------------------------------------------------------- published scales


PUBLISHED = {
    "paper": (lambda nu, n: nu / 2, lambda nu, n: nu / n),
    "fast-dro": (lambda nu, n: nu * n / 2, lambda nu, n: nu),
    "drlearn": (lambda nu, n: nu * n, lambda nu, n: 2 * nu),
    "sqwash": (lambda nu, n: nu / (2 * n), lambda nu, n: nu / n**2),
}


@pytest.mark.parametrize("tail_fraction", [0.3, None])
@pytest.mark.parametrize("source", PUBLISHED)
def test_published_scales_convert_to_shift_cost(source, tail_fraction):
    """max <l, q> - coefficient ||q - 1/n||^2 in the scale of each published code."""
    coefficient, shift_cost = PUBLISHED[source]
    rng = np.random.default_rng(11)
    n = 12
    losses = rng.exponential(size=n)
    uncertainty = drago.Simplex() if tail_fraction is None else drago.CVaR(tail_fraction)
    for ours in (0.3, 2.0):
        nu = ours / shift_cost(1.0, n)
        assert shift_cost(nu, n) == pytest.approx(ours)
        q = cp.Variable(n, nonneg=True)
        constraints = [cp.sum(q) == 1]
        if tail_fraction is not None:
            constraints.append(q <= 1 / (n * tail_fraction))
        penalty = coefficient(nu, n) * cp.sum_squares(q - 1 / n)
        problem = cp.Problem(cp.Maximize(losses @ q - penalty), constraints)
        assert reference._solve(problem).startswith("optimal@1e-1")
        p = np.full(n, 1 / n)
        mine = uncertainty.worst_case(losses, shift_cost(nu, n), "chi2", p)
        np.testing.assert_allclose(mine, q.value, rtol=0, atol=1e-7)
        value = losses @ mine - shift_cost(nu, n) * drago.Chi2().value(mine, p)
        assert value == pytest.approx(problem.value, rel=1e-9)


def test_the_papers_chi2_ball_has_radius_one():
    """The set 1/2 ||q - 1/n||^2 <= 1/n, with the paper's penalty."""
    rng = np.random.default_rng(12)
    n, nu = 10, 0.05
    losses = rng.exponential(size=n)
    q = cp.Variable(n, nonneg=True)
    constraints = [cp.sum(q) == 1, cp.sum_squares(q - 1 / n) / 2 <= 1 / n]
    gain = losses @ q - nu / 2 * cp.sum_squares(q - 1 / n)
    assert reference._solve(cp.Problem(cp.Maximize(gain), constraints)).startswith("optimal@1e-1")
    mine = drago.Chi2Ball(1.0).worst_case(losses, nu / n, "chi2", np.full(n, 1 / n))
    np.testing.assert_allclose(mine, q.value, rtol=0, atol=1e-6)
    assert drago.Chi2().value(mine, np.full(n, 1 / n)) == pytest.approx(1.0, rel=1e-12)


# --------------------------------------------------------------------------------- their bounds


@pytest.mark.parametrize("name", NAMES)
def test_max_ratios_are_what_the_set_allows(name):
    """For each row, the oracle of its unit vector at c = 0, by the twin."""
    rng = np.random.default_rng(14)
    for n in (1, 2, 9, 30):
        uncertainty, described, groups = build(name, n)
        inner = described[1] if groups is not None else described
        divergence = "kl" if inner[0] == "kl_ball" else "chi2"
        for kind in ("uniform", "random"):
            p = cases.nominal(kind, n, rng)
            brute = np.array(
                [
                    twins.worst_case(described, e, 0.0, divergence, p)[i] / p[i]
                    for i, e in enumerate(np.eye(n))
                ]
            )
            if groups is not None:  # rows of one group have one mean
                brute = np.array([brute[groups == g].max() for g in groups])
            ratios = uncertainty.max_ratios(p, groups)
            np.testing.assert_allclose(ratios, brute, rtol=1e-8)
            assert uncertainty.kappa_q(p, groups) == pytest.approx(brute.max(), rel=1e-8)
            assert uncertainty.q_max(p, groups) == pytest.approx((p * brute).max(), rel=1e-8)
            kappa = twins.kappa_q(described, p, n)
            assert uncertainty.kappa_q(p, groups) == pytest.approx(kappa, rel=1e-8)


def test_kappa_q_by_formula():
    rng = np.random.default_rng(15)
    p = cases.nominal("random", 25, rng)
    assert drago.CVaR(0.1).kappa_q(p) == pytest.approx(10.0)
    assert drago.CVaR(0.9).max_ratios(np.array([0.95, 0.05]))[0] == pytest.approx(1 / 0.95)
    assert drago.Simplex().kappa_q(p) == pytest.approx(1 / p.min())
    extremile = (1 - (1 - p) ** 3.5) / p
    np.testing.assert_allclose(drago.Extremile(3.5).max_ratios(p), extremile, rtol=1e-9)
    assert drago.Extremile(3.5).kappa_q(p) <= 3.5
    esrm = (1 - np.exp(-4 * p)) / (1 - np.exp(-4)) / p
    np.testing.assert_allclose(drago.ESRM(4.0).max_ratios(p), esrm, rtol=1e-9)
    assert drago.ESRM(4.0).kappa_q(p) <= 4 / (1 - np.exp(-4))
    np.testing.assert_allclose(drago.ESRM(0.0).max_ratios(p), 1.0, rtol=1e-12)
    ball = np.minimum(1, p + np.sqrt(2 * 0.7 * p * (1 - p))) / p
    np.testing.assert_allclose(drago.Chi2Ball(0.7).max_ratios(p), ball, rtol=1e-12)


@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0, 7.0, 200.0])
def test_kappa_q_of_the_uniform_chi2_ball(radius):
    """min(n, 1 + sqrt(2 radius (n - 1))): grows with n, unlike sqrt(1 + radius)."""
    for n in (1, 2, 10, 100):
        p = np.full(n, 1 / n)
        expected = min(n, 1 + np.sqrt(2 * radius * (n - 1)))
        assert drago.Chi2Ball(radius).kappa_q(p) == pytest.approx(expected, rel=1e-12)


def test_kl_ball_bound_is_the_scalar_root():
    def spent(x, a, radius):
        return a * x * np.log(x) + (1 - a * x) * np.log((1 - a * x) / (1 - a)) - radius

    p = np.array([0.5, 0.3, 0.15, 0.05])
    ratios = drago.KLBall(0.4).max_ratios(p)
    for a, ratio in zip(p, ratios):
        root = scipy.optimize.brentq(spent, 1.0, (1 - 1e-15) / a, args=(a, 0.4), xtol=1e-14)
        assert ratio == pytest.approx(root, rel=1e-10)
    np.testing.assert_allclose(drago.KLBall(0.0).max_ratios(p), 1.0, atol=1e-7)
    np.testing.assert_allclose(drago.KLBall(50.0).max_ratios(p), 1 / p, rtol=1e-14)


# ------------------------------------------------------------------------------------- spectra


SPECTRA = {
    "extremile": (drago.Extremile(2.5), lambda u: 2.5 * u**1.5, lambda u: u**2.5),
    "extremile integer": (drago.Extremile(3), lambda u: 3 * u**2, lambda u: u**3),
    "esrm": (
        drago.ESRM(4.0),
        lambda u: 4 * np.exp(-4 * (1 - u)) / -np.expm1(-4),
        lambda u: np.expm1(4 * u) / np.expm1(4),
    ),
    "mean": (drago.ESRM(0.0), lambda u: np.ones_like(u), lambda u: u),
    "tiny esrm": (drago.ESRM(1e-12), lambda u: np.ones_like(u), lambda u: u),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
@pytest.mark.parametrize("family", SPECTRA)
def test_density_integral_and_family_agree(family, divergence):
    named, density, integral = SPECTRA[family]
    rng = np.random.default_rng(16)
    for n in (1, 2, 30):
        for kind in ("uniform", "random"):
            p = cases.nominal(kind, n, rng)
            u = rng.normal(size=n)
            for c in (0.5, 0.0):
                q = named.worst_case(u, c, divergence, p)
                for other in (drago.Spectrum(density=density), drago.Spectrum(integral=integral)):
                    same = other.worst_case(u, c, divergence, p)
                    np.testing.assert_allclose(same, q, rtol=0, atol=1e-8)
                    assert other.violation(q, p) <= 1e-8


def test_a_density_with_a_jump_is_consistent_with_itself():
    """Weights and check rest on the same integral, also where the density jumps in a panel."""
    jump = drago.Spectrum(density=lambda u: (u > 0.9) / 0.1)
    p = np.full(200, 1 / 200)
    for divergence in cases.DIVERGENCES:
        q = jump.worst_case(np.random.default_rng(0).normal(size=200), 0.01, divergence, p)
        assert jump.violation(q, p) <= 1e-12
        assert q.max() <= 10 * p[0] * 1.01


def test_a_million_tiny_excesses_are_not_tiny():
    p = np.full(10**6, 1e-6)
    q = p + np.where(np.arange(10**6) % 2, 1e-12, -1e-12)
    assert drago.CVaR(1.0).violation(q, p) > 1e-7


def test_cvar_is_a_spectral_set():
    rng = np.random.default_rng(17)
    jump = drago.Spectrum(integral=lambda u: np.maximum(u - 0.7, 0.0) / 0.3)
    for divergence in cases.DIVERGENCES:
        for kind in ("uniform", "random"):
            p = cases.nominal(kind, 25, rng)
            u = rng.normal(size=25)
            for c in (2.0, 0.05, 0.0):
                q = drago.CVaR(0.3).worst_case(u, c, divergence, p)
                other = jump.worst_case(u, c, divergence, p)
                np.testing.assert_allclose(other, q, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "exactly one"),
        ({"density": np.sqrt, "integral": np.sqrt}, ValueError, "exactly one"),
        ({"density": 2.0}, TypeError, "function"),
        ({"integral": "u"}, TypeError, "function"),
        ({"density": lambda u: 2 - 2 * u}, ValueError, "nondecreasing"),
        ({"density": lambda u: 4 * u - 1}, ValueError, "nonnegative"),
        ({"density": lambda u: 4 * u}, ValueError, "integral 1"),
        ({"density": lambda u: u * np.nan}, ValueError, "finite"),
        ({"density": lambda u: 1.0}, ValueError, "vectorised"),
        ({"integral": lambda u: u / 2}, ValueError, "from 0 to 1"),
        ({"integral": lambda u: 0.5 + u / 2}, ValueError, "from 0 to 1"),
        ({"integral": lambda u: np.sqrt(u)}, ValueError, "nondecreasing"),
        ({"integral": lambda u: 2 * u**2 - u}, ValueError, "nonnegative"),
        ({"integral": lambda u: u * np.nan}, ValueError, "finite"),
        ({"integral": lambda u: 1.0}, ValueError, "vectorised"),
    ],
)
def test_bad_spectra_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        drago.Spectrum(**arguments)


# ----------------------------------------------------------------------------------- violation


@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_violation_is_zero_on_the_oracles_weights(name, divergence):
    rng = np.random.default_rng(18)
    for n in (1, 2, 17, 300):
        uncertainty, _, groups = build(name, n)
        for kind in ("uniform", "random"):
            p = cases.nominal(kind, n, rng)
            oracle = uncertainty.oracle(p, divergence, groups)
            for c in (1.0, 0.01, 0.0):
                q = oracle.weights(rng.normal(size=n), c)
                assert 0.0 <= uncertainty.violation(q, p, groups) <= 1e-12
            assert uncertainty.violation(p, p, groups) <= 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_violation_sees_planted_weights(name):
    rng = np.random.default_rng(19)
    n = 200
    uncertainty, described, groups = build(name, n)
    for kind in ("uniform", "random"):
        p = cases.nominal(kind, n, rng)
        wrong_sum, negative = 1.001 * p, p.copy()
        negative[0] -= 0.01 + p[0]
        negative[1] += 0.01 + p[0]
        concentrated = np.zeros(n)
        concentrated[int(p.argmin())] = 1.0
        planted = [wrong_sum, negative]
        if name != "simplex":
            planted.append(concentrated)
        for q in planted:
            seen = uncertainty.violation(q, p, groups)
            assert seen > 5e-4
            if q is not negative or "kl" not in name:  # the twin's logarithm skips q < 0
                assert seen >= twins.feasibility(described, q, p) - 2e-3
        q = rng.dirichlet(np.ones(n))
        witness = twins.feasibility(described, q, p)
        # Ours adds up what single rows exceed, the twin takes the largest.
        seen = uncertainty.violation(q, p, groups)
        assert witness * (1 - 1e-9) - 1e-12 <= seen <= n * witness + 1e-12


def test_violation_sees_mass_moved_inside_a_group():
    groups = np.array([0, 0, 1, 1])
    p = np.full(4, 0.25)
    q = np.array([0.3, 0.2, 0.25, 0.25])
    assert drago.Grouped(drago.CVaR(0.5)).violation(q, p, groups) == pytest.approx(0.1)


# ------------------------------------------------------------------- parameters, names, refusals


LEVELS = [
    drago.CVaR(0.25),
    drago.Extremile(3.5),
    drago.ESRM(2.0),
    drago.Chi2Ball(0.5),
    drago.KLBall(0.2),
    drago.Simplex(),
    drago.Grouped(drago.CVaR(0.4)),
    drago.Grouped("esrm"),
]


@pytest.mark.parametrize("uncertainty", LEVELS, ids=repr)
def test_sets_are_plain_values(uncertainty):
    assert eval(repr(uncertainty), vars(drago) | {c: getattr(drago, c) for c in drago.__all__}) == (
        uncertainty
    )
    copy = type(uncertainty)(**uncertainty.get_params(deep=False))
    assert copy == uncertainty
    cloned = sklearn.base.clone(uncertainty)
    assert cloned == uncertainty
    assert cloned is not uncertainty
    assert uncertainty != drago.CVaR(0.77)
    assert uncertainty != "cvar"
    assert uncertainty.set_params(**uncertainty.get_params(deep=False)) is uncertainty
    with pytest.raises(TypeError):
        hash(uncertainty)


def test_clone_of_a_spectrum_keeps_its_function():
    spectrum = drago.Spectrum(integral=cases.kink)
    assert sklearn.base.clone(spectrum) == spectrum
    assert spectrum != drago.Spectrum(density=lambda u: 2 * u)


def test_parameters_are_changed_by_name():
    uncertainty = drago.CVaR(0.25)
    assert uncertainty.get_params() == {"tail_fraction": 0.25}
    assert uncertainty.set_params(tail_fraction=0.5) == drago.CVaR(0.5)
    with pytest.raises(ValueError, match=r"CVaR has no parameter 'alpha'.*tail_fraction"):
        uncertainty.set_params(alpha=0.1)
    with pytest.raises(ValueError, match="tail_fraction"):
        uncertainty.set_params(tail_fraction=-1.0)


def test_nested_parameters_reach_the_inner_set():
    inner = drago.CVaR(0.4)
    grouped = drago.Grouped(inner)
    assert grouped.get_params() == {"inner": inner, "inner__tail_fraction": 0.4}
    assert grouped.get_params(deep=False) == {"inner": inner}
    grouped.set_params(inner__tail_fraction=0.7)
    assert grouped == drago.Grouped(drago.CVaR(0.7))
    cloned = sklearn.base.clone(grouped)
    cloned.set_params(inner__tail_fraction=0.1)
    assert grouped.inner.tail_fraction == 0.7
    with pytest.raises(ValueError, match="tail_fraction"):
        grouped.set_params(inner__tail_fraction=2.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cvar", drago.CVaR(0.1)),
        ("extremile", drago.Extremile(2)),
        ("esrm", drago.ESRM(1)),
        ("chi2_ball", drago.Chi2Ball(1)),
        ("kl_ball", drago.KLBall(0.5)),
        ("simplex", drago.Simplex()),
    ],
)
def test_short_names_have_the_documented_defaults(name, expected):
    assert as_uncertainty(name) == expected


def test_sets_pass_through_and_other_things_are_refused():
    uncertainty = drago.CVaR(0.2)
    assert as_uncertainty(uncertainty) is uncertainty
    with pytest.raises(ValueError, match=r"uncertainty must be one of 'cvar'.*'cvr'"):
        as_uncertainty("cvr")
    for wrong in (3.0, None, drago.CVaR, object()):
        with pytest.raises(TypeError, match="uncertainty must be a set such as"):
            as_uncertainty(wrong)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (drago.CVaR, "tail_fraction"),
        (drago.Extremile, "n_draws"),
        (drago.ESRM, "risk_aversion"),
        (drago.Chi2Ball, "radius"),
        (drago.KLBall, "radius"),
    ],
)
def test_wrong_levels_name_the_parameter(make, name):
    for value in (-0.5, np.nan, np.inf):
        with pytest.raises(ValueError, match=rf"^{name} must be a number in .* was given\.$"):
            make(value)
    for value in ("0.5", None, True, [0.5]):
        with pytest.raises(TypeError, match=rf"^{name} must be a number in .* was given\.$"):
            make(value)
    make(np.float32(1.0))
    make(1)


def test_levels_at_and_beyond_their_ends():
    for make, value in ((drago.CVaR, 0.0), (drago.CVaR, 1.0001), (drago.Extremile, 0.999)):
        with pytest.raises(ValueError, match=f"{value:g} was given"):
            make(value)
    rng = np.random.default_rng(20)
    p = cases.nominal("random", 6, rng)
    u = rng.normal(size=6)
    rounding = 12 * np.finfo(float).eps  # of two sums to 1 of six numbers
    for trivial in (drago.CVaR(1.0), drago.Extremile(1.0), drago.ESRM(0.0), drago.Chi2Ball(0.0)):
        np.testing.assert_allclose(trivial.worst_case(u, 0.0, "auto", p), p, atol=rounding)
    for c in (0.0, 1.0):
        np.testing.assert_allclose(drago.KLBall(0.0).worst_case(u, c, "kl", p), p, atol=rounding)


@pytest.mark.parametrize(
    ("ball", "other"), [(drago.Chi2Ball(), "kl"), (drago.KLBall(), "chi2")], ids=repr
)
def test_a_ball_refuses_the_other_divergence(ball, other):
    p = np.full(4, 0.25)
    for uncertainty in (ball, drago.Grouped(ball)):
        for given_as in (other, as_divergence(other)):
            with pytest.raises(ValueError) as refusal:
                uncertainty.oracle(p, given_as, np.arange(4))
            message = str(refusal.value)
            assert message.endswith(".") and ". " not in message
            for part in (type(ball).__name__, repr(other), repr(ball.own_divergence), "auto"):
                assert part in message
        assert uncertainty.match("auto").name == ball.own_divergence
        assert uncertainty.match(ball.own_divergence).name == ball.own_divergence


def test_other_sets_default_to_chi2_and_take_both():
    for uncertainty in (drago.CVaR(), drago.Simplex(), drago.ESRM(), drago.Grouped("cvar")):
        assert uncertainty.match("auto") == drago.Chi2()
        assert uncertainty.match("kl") == drago.KL()
        with pytest.raises(ValueError, match=r"divergence must be one of .*'wasserstein'"):
            uncertainty.match("wasserstein")


def test_worst_case_checks_what_it_is_given():
    uncertainty, p = drago.CVaR(0.5), np.full(3, 1 / 3)
    for u in ([1.0, 2.0], [1.0, np.nan, 2.0], [[1.0, 2.0, 3.0]]):
        with pytest.raises(ValueError, match=r"u (must have one entry per row|contains)"):
            uncertainty.worst_case(u, 1.0, "chi2", p)
    for bad in ([0.5, 0.5, 0.5], [1.0, 0.0, 0.0], [2.0, -0.5, -0.5], [], [np.nan, 0.5, 0.5]):
        with pytest.raises(ValueError, match="p must be a vector of positive probabilities"):
            uncertainty.worst_case(np.ones(3), 1.0, "chi2", bad)
    for c in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="c must be a number"):
            uncertainty.worst_case(np.ones(3), c, "chi2", p)


def test_grouped_asks_for_groups_and_refuses_itself():
    grouped = drago.Grouped(drago.CVaR(0.5))
    p = np.full(3, 1 / 3)
    for call in (
        lambda: grouped.oracle(p, "chi2"),
        lambda: grouped.max_ratios(p),
        lambda: grouped.violation(p, p),
        lambda: grouped.worst_case(np.ones(3), 1.0, "chi2", p),
    ):
        with pytest.raises(ValueError, match="groups="):
            call()
    with pytest.raises(ValueError, match="ungrouped inner set"):
        drago.Grouped(drago.Grouped("cvar"))
    with pytest.raises(ValueError, match="uncertainty must be one of"):
        drago.Grouped("cvr")


# ------------------------------------------------------------------------------ a user's own set


class MyCVaR:
    """CVaR as a user would write it: bisection on the threshold."""

    def __init__(self, tail_fraction):
        self.tail_fraction = tail_fraction

    def worst_case(self, u, c, divergence, p):
        cap = 1 / self.tail_fraction

        def weights(tau):
            x = (u - tau) / c
            if divergence.name == "kl":
                x = np.exp(np.minimum(x, 600))
            return p * np.clip(x, 0, cap)

        low, high = u.min() - 100 * c, u.max() + 100 * c
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if weights(middle).sum() > 1 else (low, middle)
        return weights(low)

    def q_max(self, p):
        return min(1.0, p.max() / self.tail_fraction)


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_a_users_cvar_equals_the_built_in(divergence):
    rng = np.random.default_rng(21)
    mine, built_in = as_uncertainty(MyCVaR(0.3)), drago.CVaR(0.3)
    assert isinstance(mine, UserSet)
    n = 20
    groups = np.arange(n) % 4
    for kind in ("uniform", "random"):
        p = cases.nominal(kind, n, rng)
        u = rng.normal(size=n)
        for c in (0.1, 1.0):
            expected = built_in.oracle(p, divergence).weights(u, c)
            oracle = mine.oracle(p, divergence)
            np.testing.assert_allclose(oracle.weights(u, c), expected, rtol=0, atol=1e-12)
            q, response = oracle.response(u, c)
            assert response is None
            np.testing.assert_allclose(q, expected, rtol=0, atol=1e-12)
            mirror = as_divergence(divergence).mirror(expected, p)
            step = oracle.step(u, c, 0.5, mirror)
            for one, other in zip(step, built_in.oracle(p, divergence).step(u, c, 0.5, mirror)):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
            grouped = drago.Grouped(MyCVaR(0.3)).oracle(p, divergence, groups).weights(u, c)
            same = drago.Grouped(built_in).oracle(p, divergence, groups).weights(u, c)
            np.testing.assert_allclose(grouped, same, rtol=0, atol=1e-12)
        assert mine.q_max(p) == pytest.approx(built_in.q_max(p))
        assert mine.kappa_q(p) >= built_in.kappa_q(p) * (1 - 1e-12)
        assert mine.violation(expected, p) <= 1e-12


@pytest.mark.parametrize(
    "answer",
    [
        lambda u: u[:-1],
        lambda u: u[:, None],
        lambda u: np.full(u.size, np.nan),
        lambda u: np.where(u > 0, np.inf, 0.0),
        lambda u: None,
    ],
    ids=["short", "column", "nan", "inf", "none"],
)
def test_a_bad_user_set_is_named(answer):
    class Careless:
        def worst_case(self, u, c, divergence, p):
            return answer(u)

        def q_max(self, p):
            return 1.0

    oracle = as_uncertainty(Careless()).oracle(np.full(3, 1 / 3), "chi2")
    with pytest.raises(ValueError, match=r"Careless\.worst_case must return 3 finite weights"):
        oracle.weights(np.array([1.0, 2.0, 3.0]), 1.0)


# ------------------------------------------------------------------------- the oracle's derivative


def jacobian(oracle, u, c, step=1e-5):
    """dq/du by central differences."""
    columns = []
    for e in np.eye(u.size):
        ahead, behind = oracle.weights(u + step * e, c), oracle.weights(u - step * e, c)
        columns.append((ahead - behind) / (2 * step))
    return np.array(columns).T


@pytest.mark.parametrize("kind", ["uniform", "random"])
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_response_is_the_derivative_of_the_weights(name, divergence, kind):
    rng = np.random.default_rng(22)
    n = 13
    uncertainty, _, groups = build(name, n)
    p = cases.nominal(kind, n, rng)
    p = 0.5 * p + 0.5 / n
    Z = rng.normal(size=(n, 4))
    ball = "ball" in name
    for c in (3.0, 0.6, 0.3, *([0.0] if ball else [])):
        u = rng.normal(size=n)
        oracle = uncertainty.oracle(p, divergence, groups)
        q, response = oracle.response(u, c)
        np.testing.assert_allclose(q, oracle.weights(u, c), rtol=0, atol=1e-14)
        J = jacobian(oracle, u, c)
        if response is None:  # the set is a point, or the answer a vertex: nothing moves
            assert name == "cvar_mean" or (ball and c == 0.0)
            np.testing.assert_allclose(J, 0.0, atol=1e-8)
            continue
        scale = max(1.0, np.abs(J).max())
        np.testing.assert_allclose(response.curvature(np.eye(n)), J, rtol=0, atol=1e-7 * scale)
        np.testing.assert_allclose(response.curvature(Z), Z.T @ J @ Z, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("ball", [drago.Chi2Ball, drago.KLBall])
def test_response_of_a_ball_knows_whether_it_is_active(ball):
    rng = np.random.default_rng(23)
    p = cases.nominal("random", 10, rng)
    u = rng.normal(size=10)
    active = ball(0.01).oracle(p).response(u, 0.1)[1]
    inactive = ball(1e3).oracle(p).response(u, 0.1)[1]
    assert active.direction is not None
    assert inactive.direction is None


@pytest.mark.parametrize("name", [name for name in NAMES if "ball" not in name])
def test_no_response_at_a_vertex(name):
    rng = np.random.default_rng(24)
    uncertainty, described, groups = build(name, 8)
    u = rng.normal(size=8)
    p = np.full(8, 1 / 8)
    q, response = uncertainty.oracle(p, "chi2", groups).response(u, 0.0)
    assert response is None
    np.testing.assert_allclose(q, twins.worst_case(described, u, 0.0, "chi2", p), atol=1e-13)


def test_response_is_positive_semidefinite_and_blind_to_constants():
    rng = np.random.default_rng(25)
    for name, divergence in PAIRS:
        uncertainty, _, groups = build(name, 13)
        p = cases.nominal("random", 13, rng)
        _, response = uncertainty.oracle(p, divergence, groups).response(rng.normal(size=13), 0.5)
        if response is not None:
            J = response.curvature(np.eye(13))
            np.testing.assert_allclose(J, J.T, atol=1e-13)
            np.testing.assert_allclose(J @ np.ones(13), 0.0, atol=1e-13)
            assert np.linalg.eigvalsh(J).min() >= -1e-13


@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_codes_are_those_of_the_kernels(name, divergence):
    from drago import kernels

    set_, _, groups = build(name, 12)
    oracle = set_.oracle(np.full(12, 1 / 12), divergence, groups)
    assert oracle.divergence.code == {"chi2": kernels.CHI2, "kl": kernels.KL}[divergence]
    assert set_.ungrouped is (set_ if groups is None else set_.inner)
    family = kernels.CAPPED if set_.is_capped else kernels.BALL
    if set_.is_spectral:
        family = kernels.SPECTRAL
    assert oracle.family == (family if groups is None else None)
