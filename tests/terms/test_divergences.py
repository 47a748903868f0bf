"""Divergences: values, scale, accuracy near the nominal weights, and the mirror coordinate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import drago
import twins
from drago.terms.divergences import as_divergence

BOTH = {"chi2": drago.Chi2(), "kl": drago.KL()}
LONG = np.longdouble

both = pytest.mark.parametrize("name", BOTH)


@st.composite
def pair(draw, n=6, low_q=0.0, low_p=1e-6):
    """(q, p), each with sum 1, from entries in [low, 1]."""
    p = draw(arrays(np.float64, n, elements=st.floats(low_p, 1)))
    q = draw(arrays(np.float64, n, elements=st.floats(low_q, 1)))
    q[draw(st.integers(0, n - 1))] += 0.1
    return q / q.sum(), p / p.sum()


@both
@given(data=st.data())
def test_value_against_the_twin(name, data):
    q, p = data.draw(pair())
    value = BOTH[name].value(q, p)
    assert value >= 0
    np.testing.assert_allclose(value, twins.divergence_value(name, q, p), rtol=1e-11, atol=1e-14)


@both
def test_zero_at_the_nominal_weights(name):
    p = np.random.default_rng(0).dirichlet(np.ones(50))
    assert BOTH[name].value(p, p) == 0.0


@both
@pytest.mark.parametrize("copies", [2, 3, 10])
def test_copies_of_the_rows_change_nothing(name, copies):
    rng = np.random.default_rng(1)
    q, p = rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(9))
    q[2] = 0.0
    q /= q.sum()
    split = BOTH[name].value(np.repeat(q, copies) / copies, np.repeat(p, copies) / copies)
    np.testing.assert_allclose(split, BOTH[name].value(q, p), rtol=1e-13)


def test_both_agree_to_second_order():
    """chi2 / KL = 1 + O(size of the move)."""
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(12))
    move = rng.normal(size=12)
    move = p * (move - p @ move)
    for size in (1e-1, 1e-2, 1e-3, 1e-4):
        q = p + size * move
        ratio = BOTH["chi2"].value(q, p) / BOTH["kl"].value(q, p)
        assert abs(ratio - 1) < 3 * size


@both
@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_accuracy_close_to_the_nominal_weights(name, size):
    """Series in extended precision at the very floats that were given; D is about size^2."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(30)) + 1e-4
    p /= p.sum()
    move = rng.normal(size=30)
    q = p + size * p * (move - p @ move)
    d = (q.astype(LONG) - p.astype(LONG)) / p.astype(LONG)
    if name == "chi2":
        exact = np.sum(p * d**2) / 2
    else:  # (1 + d) log(1 + d) - d = d^2/2 - d^3/6 + d^4/12 - d^5/20 + ...
        exact = np.sum(p * d**2 * (LONG(1) / 2 - d / 6 + d**2 / 12 - d**3 / 20 + d**4 / 30))
    np.testing.assert_allclose(BOTH[name].value(q, p), float(exact), rtol=3e-16 / size + 1e-12)


def test_zero_weights_are_finite():
    q, p = np.array([0.0, 0.25, 0.75]), np.array([0.5, 0.25, 0.25])
    assert drago.Chi2().value(q, p) == pytest.approx(0.5 * (0.5 + 0 + 1.0))
    assert drago.KL().value(q, p) == pytest.approx(0.75 * np.log(3))
    vertex = np.array([0.0, 0.0, 1.0])
    assert drago.Chi2().value(vertex, p) == pytest.approx(0.5 * (1 / 0.25 - 1))
    assert drago.KL().value(vertex, p) == pytest.approx(np.log(4))


@both
@given(data=st.data())
def test_mirror_is_the_gradient_of_omega(name, data):
    """Along directions of sum zero, where the free constant does not show."""
    q, p = data.draw(pair(low_q=1e-2, low_p=1e-2))
    mirror = BOTH[name].mirror(q, p)
    expected = q / p if name == "chi2" else np.log(q / p)
    np.testing.assert_allclose(mirror - mirror[0], expected - expected[0], rtol=1e-12, atol=1e-12)
    h = 1e-6 * q.min()
    for i in range(1, q.size):
        step = np.zeros(q.size, dtype=LONG)
        step[i], step[0] = h, -h
        up = _omega(name, q.astype(LONG) + step, p)
        down = _omega(name, q.astype(LONG) - step, p)
        slope = float((up - down) / (2 * LONG(h)))
        size = 1 + abs(mirror[i]) + abs(mirror[0])
        assert abs(slope - (mirror[i] - mirror[0])) < 1e-5 * size


def _omega(name, q, p):
    p = p.astype(LONG)
    return np.sum(q**2 / p) / 2 if name == "chi2" else np.sum(q * np.log(q / p))


@both
@given(data=st.data())
def test_divergence_is_the_bregman_distance_of_omega(name, data):
    """D(q||p) = Omega(q) - Omega(p) - <mirror(p), q - p>."""
    q, p = data.draw(pair())
    bregman = twins.omega(name, q, p) - twins.omega(name, p, p)
    bregman -= BOTH[name].mirror(p, p) @ (q - p)
    value = BOTH[name].value(q, p)
    np.testing.assert_allclose(value, bregman, rtol=1e-9, atol=1e-12)


def test_mirror_of_a_zero_weight():
    q, p = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    assert drago.Chi2().mirror(q, p).tolist() == [0.0, 2.0]
    assert drago.KL().mirror(q, p).tolist() == [-np.inf, np.log(2.0)]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda q, n: 0.5 * np.sum((q - 1 / n) ** 2), lambda n: 1 / n),
        (lambda q, n: 0.5 * n * np.sum((q - 1 / n) ** 2), lambda n: 1.0),
        (lambda q, n: n * np.sum((q - 1 / n) ** 2), lambda n: 2.0),
        (lambda q, n: np.sum((q - 1 / n) ** 2) / (2 * n), lambda n: 1 / n**2),
    ],
    ids=["paper", "fast-dro", "drlearn", "sqwash"],
)
@pytest.mark.parametrize("n", [3, 40])
def test_scales_of_other_codes(theirs, ours, n):
    """Their chi2 penalty for nu' = 1 is ours with this shift_cost."""
    q, p = np.random.default_rng(n).dirichlet(np.ones(n)), np.full(n, 1 / n)
    np.testing.assert_allclose(ours(n) * drago.Chi2().value(q, p), theirs(q, n), rtol=1e-12)


def test_divergences_by_name():
    assert as_divergence("chi2") == drago.Chi2()
    assert as_divergence("kl") == drago.KL()
    assert as_divergence("auto") == drago.Chi2()
    assert as_divergence("auto", "kl") == drago.KL()
    given_divergence = drago.KL()
    assert as_divergence(given_divergence) is given_divergence
    assert drago.Chi2() != drago.KL()
    assert len({drago.Chi2(), drago.Chi2(), drago.KL()}) == 2
    assert repr(drago.KL()) == "KL()"


def test_long_vectors_as_short_ones():
    """Beyond some thousand rows it is summed in parts, or compiled."""
    rng = np.random.default_rng(0)
    p, q = (x / x.sum() for x in rng.exponential(size=(2, 30_000)))
    q[rng.random(30_000) < 0.5] = 0.0
    q /= q.sum()
    for name, expected in (
        ("chi2", 0.5 * ((q - p) ** 2 / p).sum()),
        ("kl", (q[q > 0] * np.log(q[q > 0] / p[q > 0])).sum()),
    ):
        assert as_divergence(name).value(q, p) == pytest.approx(expected, rel=1e-12)
        assert as_divergence(name).value(p, p) == pytest.approx(0.0, abs=1e-15)


# ------------------------------------------------------------------------- what each says of itself


@both
@given(data=st.data())
def test_largest_is_an_upper_bound(name, data):
    q, p = data.draw(pair())
    kappa = max(float((q / p).max()), 1.0)
    assert BOTH[name].value(q, p) <= BOTH[name]._largest(kappa) * (1 + 1e-9) + 1e-12


@both
@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
def test_largest_is_attained(name, share):
    """All of the weight on this share of the rows."""
    p = np.full(100, 0.01)
    q = np.where(np.arange(100) < round(100 * share), 0.01 / share, 0.0)
    np.testing.assert_allclose(BOTH[name].value(q, p), BOTH[name]._largest(1 / share), rtol=1e-12)


@both
def test_rates_are_derivatives_of_the_weights_in_the_mirror_coordinate(name):
    rng, size = np.random.default_rng(8), 1e-6
    q, p = rng.dirichlet(np.ones(9)) + 0.01, rng.dirichlet(np.ones(9)) + 0.01
    ahead, behind = (BOTH[name]._mirror(q * (1 + s), p) for s in (size, -size))
    rate = BOTH[name]._rate(q, p)
    np.testing.assert_allclose(2 * size * q / (ahead - behind), rate, rtol=1e-6)


@both
def test_steep_is_an_infinite_slope_at_zero(name):
    slope = BOTH[name]._mirror(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert np.isinf(slope[0]) == BOTH[name].is_steep
