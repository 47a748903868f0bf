"""Losses, derivatives, and the slopes that the certificate of an intercept rests on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import drago
import twins
from drago._threads import limited
from drago.terms import sums
from drago.terms.losses import UserLoss, as_loss

SINGLE = {
    "squared": (drago.Squared(), "squared"),
    "huber": (drago.Huber(0.7), ("huber", 0.7)),
    "huber_wide": (drago.Huber(50.0), ("huber", 50.0)),
    "logistic": (drago.Logistic(), "logistic"),
}
# Each example takes long to draw.
each_loss = pytest.mark.parametrize(
    "name", ["squared", "huber", pytest.param("huber_wide", marks=pytest.mark.slow), "logistic"]
)
EXTREMES = [0.0, 1e3, -1e3, 700.0, -700.0, 40.0, -40.0, 1e-12, 1e-300]
raw_values = st.floats(-1e3, 1e3) | st.sampled_from(EXTREMES)
EPS = np.finfo(float).eps
# What a value of two libraries' exp and log1p may differ by, of which each is within 4 units in
# the last place of the truth.
LIBRARIES = 16 * EPS


def targets(name, rng, n):
    return rng.integers(0, 2, n).astype(float) if name == "logistic" else 3 * rng.normal(size=n)


@st.composite
def single_rows(draw, name, n=8):
    raw = draw(arrays(np.float64, (n, 1), elements=raw_values))
    if name == "logistic":
        y = draw(arrays(np.float64, n, elements=st.sampled_from([0.0, 1.0])))
    else:
        y = draw(arrays(np.float64, n, elements=raw_values))
    return y, raw


@st.composite
def class_rows(draw, n=6, k=4):
    raw = draw(arrays(np.float64, (n, k), elements=raw_values))
    return draw(arrays(np.int64, n, elements=st.integers(0, k - 1))), raw


@st.composite
def masses(draw, n):
    """Weights that sum to one, some of them zero."""
    q = draw(arrays(np.float64, n, elements=st.floats(0, 1) | st.sampled_from([0.0, 1e-9])))
    q[draw(st.integers(0, n - 1))] += 0.5
    return q / q.sum()


# ------------------------------------------------------------------------ values, derivatives


@each_loss
@given(data=st.data())
def test_single_output_against_the_twins(name, data):
    loss, twin = SINGLE[name]
    y, raw = data.draw(single_rows(name))
    values, slopes = loss.evaluate(y, raw)
    assert values.shape == (8,)
    assert slopes.shape == (8, 1)
    np.testing.assert_allclose(values, twins.losses(twin, y, raw), rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(slopes, twins.dlosses(twin, y, raw), rtol=1e-12, atol=1e-300)


@given(class_rows())
def test_multinomial_against_the_twins(rows):
    y, raw = rows
    values, slopes = drago.Multinomial().evaluate(y, raw)
    np.testing.assert_allclose(values, twins.losses("multinomial", y, raw), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(
        slopes, twins.dlosses("multinomial", y, raw), rtol=1e-12, atol=1e-300
    )
    # Four quotients, the sum that they have below, and the sum here.
    np.testing.assert_allclose(slopes.sum(axis=1), 0, atol=10 * EPS)
    assert (values >= 0).all()


def test_losses_at_the_ends():
    """Far out, a loss is its asymptote, and near 0 it keeps its digits."""
    y, raw = np.array([1.0, 0, 1, 0]), np.array([[700.0], [700.0], [-1000.0], [-1000.0]])
    values, slopes = drago.Logistic().evaluate(y, raw)
    np.testing.assert_allclose(values, [np.exp(-700.0), 700.0, 1000.0, 0.0], rtol=LIBRARIES)
    np.testing.assert_allclose(slopes[:, 0], [-np.exp(-700.0), 1.0, -1.0, 0.0], rtol=LIBRARIES)
    raw = np.array([[700.0, 0.0, -1000.0], [0.0, 1000.0, 0.0]])
    values, slopes = drago.Multinomial().evaluate(np.array([0, 2]), raw)
    np.testing.assert_allclose(values, [np.exp(-700.0), 1000.0], rtol=LIBRARIES)
    np.testing.assert_allclose(slopes[0], [-np.exp(-700.0), np.exp(-700.0), 0.0], rtol=LIBRARIES)
    np.testing.assert_allclose(slopes[1], [0.0, 1.0, -1.0])


def test_two_class_multinomial_is_logistic():
    rng = np.random.default_rng(0)
    z = 30 * rng.normal(size=(50, 1))
    y = rng.integers(0, 2, 50)
    ours, slopes = drago.Multinomial().evaluate(y, np.hstack([np.zeros_like(z), z]))
    values, slope = drago.Logistic().evaluate(y.astype(float), z)
    np.testing.assert_allclose(ours, values, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(slopes[:, 1:], slope, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("name", SINGLE)
def test_derivatives_are_those_of_the_values(name):
    loss, _ = SINGLE[name]
    rng = np.random.default_rng(1)
    y, raw = targets(name, rng, 200), 4 * rng.normal(size=(200, 1))
    h = 1e-6
    up, down = loss.evaluate(y, raw + h)[0], loss.evaluate(y, raw - h)[0]
    np.testing.assert_allclose(
        loss.evaluate(y, raw)[1][:, 0], (up - down) / (2 * h), rtol=1e-7, atol=1e-8
    )


def test_multinomial_derivatives_are_those_of_the_values():
    rng = np.random.default_rng(2)
    y, raw, loss, h = (
        rng.integers(0, 4, 60),
        3 * rng.normal(size=(60, 4)),
        drago.Multinomial(),
        1e-6,
    )
    slopes = loss.evaluate(y, raw)[1]
    for c in range(4):
        step = h * np.eye(4)[c]
        up, down = loss.evaluate(y, raw + step)[0], loss.evaluate(y, raw - step)[0]
        np.testing.assert_allclose(slopes[:, c], (up - down) / (2 * h), atol=1e-8)


@pytest.mark.parametrize("name", SINGLE)
def test_second_derivatives_are_those_of_the_first(name):
    loss, _ = SINGLE[name]
    rng = np.random.default_rng(3)
    y, raw = targets(name, rng, 300), 4 * rng.normal(size=(300, 1))
    if name.startswith("huber"):  # away from the kink of the derivative
        far = np.abs(np.abs(raw[:, 0] - y) - loss.delta) > 1e-3
        y, raw = y[far], raw[far]
    h = 1e-5
    slope = (loss.evaluate(y, raw + h)[1] - loss.evaluate(y, raw - h)[1])[:, 0] / (2 * h)
    second = loss.second(y, raw)
    np.testing.assert_allclose(second, slope, rtol=1e-7, atol=1e-9)
    assert (second >= 0).all()
    assert (second <= loss.curvature).all()


@pytest.mark.parametrize("name", SINGLE)
def test_many_rows_by_threads(name):
    """From so many rows on the work is shared: the same bits, and those of few rows."""
    loss, rng, n = SINGLE[name][0], np.random.default_rng(4), 150_001
    y, raw, q = targets(name, rng, n), 4 * rng.normal(size=(n, 1)), rng.random(n)
    expected = *loss.evaluate(y, raw), loss.second(y, raw)
    for n_threads in (2, 3):
        with limited(n_threads):
            found = *loss.evaluate(y, raw), loss.second(y, raw)
            np.testing.assert_array_equal(loss._weighted_second(y, raw, q), q * found[2])
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(one, other)
    few = slice(70_000, 70_100)
    some = *loss.evaluate(y[few], raw[few]), loss.second(y[few], raw[few])
    for one, other in zip(some, expected):  # vectors of the processor begin elsewhere
        np.testing.assert_allclose(one, other[few], rtol=LIBRARIES, atol=1e-300)
    with pytest.raises(ValueError, match="shapes"):
        loss._weighted_second(y, raw, q[1:])


@pytest.mark.parametrize("n", [1, 9, 200_001])
def test_masses_of_two_classes(n, monkeypatch):
    rng = np.random.default_rng(n)
    y, p = rng.integers(0, 2, n).astype(float), rng.random(n)
    y[rng.random(n) < 0.1] = 0.5
    expected = p[y == 0].sum(), p[y == 1].sum(), np.count_nonzero(y == 0.5)
    found = sums.binary_masses(y, p)
    np.testing.assert_allclose(found, expected, rtol=n * EPS)  # as many roundings, at most
    with limited(3):
        assert sums.binary_masses(y, p) == found
    monkeypatch.setattr(sums, "kernels", NoKernels())
    np.testing.assert_allclose(sums.binary_masses(y, p), found, rtol=n * EPS)


class NoKernels:
    def __getattr__(self, name):
        raise ImportError(name)


def test_second_derivatives_do_not_overflow():
    raw = np.array([[1e3], [-1e3], [700.0], [0.0]])
    second = drago.Logistic().second(np.array([0.0, 1, 1, 0]), raw)
    np.testing.assert_allclose(second, [0.0, 0.0, np.exp(-700.0), 0.25], rtol=LIBRARIES)


@each_loss
@given(data=st.data())
def test_constants_bound_the_slopes(name, data):
    """|l'(z) - l'(z')| <= curvature |z - z'| and |l'| <= lipschitz."""
    loss, _ = SINGLE[name]
    y, raw = data.draw(single_rows(name))
    other = data.draw(arrays(np.float64, (8, 1), elements=raw_values))
    here, there = loss.evaluate(y, raw)[1], loss.evaluate(y, other)[1]
    assert (np.abs(here) <= loss.lipschitz * (1 + 1e-15)).all()
    assert (np.abs(here - there) <= loss.curvature * np.abs(raw - other) * (1 + 1e-9) + 1e-12).all()


@given(class_rows(), arrays(np.float64, (6, 4), elements=raw_values))
def test_multinomial_constants_bound_the_slopes(rows, other):
    y, raw = rows
    loss = drago.Multinomial()
    here, there = loss.evaluate(y, raw)[1], loss.evaluate(y, other)[1]
    # The slopes have 10 roundings (above), their norm half of 4 squares and sums.
    assert (np.linalg.norm(here, axis=1) <= loss.lipschitz * (1 + 12 * EPS)).all()
    moved = np.linalg.norm(raw - other, axis=1)
    assert (np.linalg.norm(here - there, axis=1) <= loss.curvature * moved + 1e-12).all()


def test_constants_are_attained():
    assert drago.Logistic().second(np.ones(1), np.zeros((1, 1)))[0] == drago.Logistic.curvature
    pi = np.array([0.5, 0.5, 0.0])
    hessian = np.diag(pi) - np.outer(pi, pi)
    assert np.linalg.eigvalsh(hessian).max() == pytest.approx(drago.Multinomial.curvature)
    slopes = drago.Multinomial().evaluate(np.array([1]), np.array([[800.0, 0.0]]))[1]
    assert np.linalg.norm(slopes) == pytest.approx(drago.Multinomial.lipschitz)
    assert drago.Huber(0.7).lipschitz == 0.7


@given(arrays(np.float64, (5, 3), elements=raw_values))
def test_probabilities_are_a_softmax(raw):
    pi = drago.Multinomial().probabilities(raw)
    np.testing.assert_allclose(pi.sum(axis=1), 1, rtol=1e-14)
    slopes = drago.Multinomial().evaluate(np.zeros(5, dtype=np.int64), raw)[1]
    np.testing.assert_allclose(pi[:, 1:], slopes[:, 1:], rtol=1e-13, atol=1e-300)


# -------------------------------------------------------------------------- balanced slopes


def entropy(x):
    """x log x, 0 at 0."""
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0)), 0.0)


def conjugate(name, loss, y, alpha):
    """l*(alpha), infinite outside its domain (up to rounding)."""
    if name == "multinomial":
        pi = alpha + np.eye(alpha.shape[1])[y]
        assert pi.min() >= -1e-12
        np.testing.assert_allclose(pi.sum(axis=1), 1, atol=1e-12)
        return entropy(pi).sum(axis=1)
    a = alpha[:, 0]
    if name == "squared":
        return 0.5 * a**2 + a * y
    if name.startswith("huber"):
        assert (np.abs(a) <= loss.delta * (1 + 1e-15)).all()
        return 0.5 * a**2 + a * y
    size = np.where(y > 0.5, -a, a)
    assert size.min() >= 0
    assert size.max() <= 1
    return entropy(size) + entropy(1.0 - size)


def check_balance(name, loss, y, raw, q):
    alpha, young = loss.balance(y, raw, q)
    assert alpha.shape == raw.shape
    assert young.shape == y.shape
    assert np.isfinite(alpha).all()
    assert np.isfinite(young).all()
    size = max(1.0, float(np.abs(q @ np.abs(alpha)).max()))
    np.testing.assert_allclose(q @ alpha, 0, atol=1e-12 * size)
    assert (young >= 0).all()
    values = loss.evaluate(y, raw)[0]
    product = (alpha * raw).sum(axis=1)
    parts = conjugate(name, loss, y, alpha)
    # A raw prediction common to all classes drops out of the product, but not of its rounding.
    scale = 1 + np.abs(values) + np.abs(parts) + np.abs(alpha * raw).sum(axis=1)
    scale += np.abs(raw).max(axis=1)
    assert (np.abs(values + parts - product - young) <= 1e-12 * scale).all()
    return alpha, young


@each_loss
@given(data=st.data())
def test_balance(name, data):
    loss, _ = SINGLE[name]
    y, raw = data.draw(single_rows(name))
    check_balance(name, loss, y, raw, data.draw(masses(8)))


@given(class_rows(), masses(6))
def test_balance_multinomial(rows, q):
    """Classes without weight are among the examples: six rows, four classes, zeros in q."""
    y, raw = rows
    check_balance("multinomial", drago.Multinomial(), y, raw, q)


def test_balance_of_multinomial_where_a_class_is_ruled_out_everywhere():
    """A probability that underflows on every row, for a class that has weight."""
    raw = np.array([[0.0, -1000.0], [0.0, -1000.0]])
    alpha, _ = check_balance(
        "multinomial", drago.Multinomial(), np.array([0, 1]), raw, np.array([0.5, 0.5])
    )
    np.testing.assert_allclose(alpha, [[-0.5, 0.5], [0.5, -0.5]])


@pytest.mark.parametrize("label", [0, 1])
def test_balance_of_one_class_is_zero(label):
    """All the weight on one class: no slope but 0 balances, and the Young term is the loss."""
    rng = np.random.default_rng(4)
    raw, q = rng.normal(size=(7, 1)), np.full(7, 1 / 7)
    y = np.full(7, float(label))
    alpha, young = check_balance("logistic", drago.Logistic(), y, raw, q)
    np.testing.assert_array_equal(alpha, 0)
    np.testing.assert_allclose(young, drago.Logistic().evaluate(y, raw)[0], rtol=1e-14)
    raw = rng.normal(size=(7, 3))
    y = np.full(7, label)
    alpha, young = check_balance("multinomial", drago.Multinomial(), y, raw, q)
    np.testing.assert_allclose(alpha, 0, atol=10 * EPS)  # probabilities less one another
    np.testing.assert_allclose(young, drago.Multinomial().evaluate(y, raw)[0], rtol=1e-13)


def test_balance_of_a_class_that_only_weightless_rows_have():
    rng = np.random.default_rng(5)
    y = np.array([0, 1, 0, 1, 2, 2])
    raw, q = rng.normal(size=(6, 3)), np.array([0.3, 0.2, 0.4, 0.1, 0.0, 0.0])
    alpha, _ = check_balance("multinomial", drago.Multinomial(), y, raw, q)
    np.testing.assert_array_equal(alpha[:4, 2], 0)
    two = drago.Multinomial().balance(y[:4], raw[:4, :2], q[:4])[0]
    np.testing.assert_allclose(alpha[:4, :2], two, rtol=1e-13)


@pytest.mark.parametrize("name", [*SINGLE, "multinomial"])
def test_balance_changes_nothing_at_the_best_intercept(name):
    """There the derivatives balance already: alpha are the derivatives, the Young terms 0."""
    rng = np.random.default_rng(6)
    n = 40
    q = rng.dirichlet(np.ones(n))
    if name == "multinomial":
        loss, y, k = drago.Multinomial(), np.arange(n) % 3, 3
    else:
        loss, k = SINGLE[name][0], 1
        y = targets(name, rng, n)
    raw, b = rng.normal(size=(n, k)), np.zeros(k)
    for _ in range(20000):
        slope = q @ loss.evaluate(y, raw + b)[1]
        if np.abs(slope).max() < 1e-15:
            break
        b = b - slope / loss.curvature
    assert np.abs(slope).max() < 1e-13
    alpha, young = check_balance(name, loss, y, raw + b, q)
    np.testing.assert_allclose(alpha, loss.evaluate(y, raw + b)[1], atol=1e-9)
    np.testing.assert_allclose(young, 0, atol=1e-12)


@pytest.mark.parametrize("name", ["squared", "huber"])
def test_balance_of_a_target_far_from_zero(name):
    """y + 1e6 with raw + 1e6 has the same slopes."""
    rng = np.random.default_rng(7)
    loss = SINGLE[name][0]
    y, raw, q = rng.normal(size=20), rng.normal(size=(20, 1)), rng.dirichlet(np.ones(20))
    near = loss.balance(y, raw, q)
    far = loss.balance(y + 1e6, raw + 1e6, q)
    np.testing.assert_allclose(far[0], near[0], atol=1e-8)
    np.testing.assert_allclose(far[1], near[1], atol=1e-8)


# ------------------------------------------------------------------------------ the objects


def test_losses_by_name():
    for name, kind in (
        ("squared", drago.Squared),
        ("huber", drago.Huber),
        ("logistic", drago.Logistic),
        ("multinomial", drago.Multinomial),
    ):
        assert type(as_loss(name)) is kind
        assert as_loss(name).name == name
    assert as_loss("huber").delta == 1.0
    given_loss = drago.Huber(2.0)
    assert as_loss(given_loss) is given_loss
    assert repr(given_loss) == "Huber(delta=2)"
    assert repr(drago.Squared()) == "Squared()"


def test_user_loss_tells_what_it_knows():
    def quadratic(y, z):
        return 0.5 * (z - y) ** 2, z - y

    loss = as_loss(quadratic)
    assert isinstance(loss, UserLoss)
    assert loss.name == "quadratic"
    assert loss.curvature == loss.lipschitz == np.inf
    assert loss.n_outputs(np.zeros(3)) == 1
    assert loss.balance(np.zeros(3), np.zeros((3, 1)), np.full(3, 1 / 3)) is None
    quadratic.curvature, quadratic.lipschitz, quadratic.n_outputs = 1.0, 7.0, 2
    known = as_loss(quadratic)
    assert (known.curvature, known.lipschitz, known.n_outputs(np.zeros(3))) == (1.0, 7.0, 2)


def test_user_loss_as_an_object_with_a_call():
    class Absolute:
        def __call__(self, y, z):
            return np.abs(z - y), np.sign(z - y)

    loss = as_loss(Absolute())
    assert loss.name == "Absolute"
    values, slopes = loss.evaluate(np.zeros(2), np.array([[1.0], [-3.0]]))
    assert values.tolist() == [1.0, 3.0]
    assert slopes.tolist() == [[1.0], [-1.0]]
