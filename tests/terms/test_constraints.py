"""The sets W: projection, support function, and what their multipliers may absorb."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import drago
from drago.terms.constraints import Everything, as_constraint

D = 4
LOW = np.array([-1.0, 0.0, -np.inf, -0.5])
HIGH = np.array([2.0, 0.0, 1.0, np.inf])
SETS = {
    "everything": Everything(),
    "box": drago.Box(-0.5, 1.5),
    "box_by_feature": drago.Box(LOW, HIGH),
    "box_one_sided": drago.Box(high=0.25),
    "box_away_from_zero": drago.Box(0.5, 2.0),
    "nonnegative": drago.NonNegative(),
    "ball": drago.L2Ball(1.3),
}
SHAPES = [(D,), (D, 1), (D, 3)]

all_sets = pytest.mark.parametrize("name", SETS)
all_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
two_shapes = pytest.mark.parametrize("shape", [(D,), (D, 3)], ids=str)

entries = st.floats(-5, 5) | st.sampled_from([0.0, 1e-12, -1e3, 1e3])


def vectors(shape):
    return arrays(np.float64, shape, elements=entries)


def samples(constraint, shape, rng, count=300):
    """Points of W, many of them on its boundary."""
    sizes = rng.choice([0.3, 3.0], size=count)
    return [constraint.project(size * rng.normal(size=shape)) for size in sizes]


# -------------------------------------------------------------------------------- projection


@pytest.mark.thinned(2)
@all_sets
@two_shapes
@settings(max_examples=25)
@given(data=st.data())
def test_projection_lies_inside_and_stays(name, shape, data):
    constraint = SETS[name]
    w = data.draw(vectors(shape))
    point = constraint.project(w)
    assert point.shape == w.shape
    assert constraint.contains(point)
    np.testing.assert_allclose(constraint.project(point), point, rtol=1e-15)
    if constraint.contains(w):
        np.testing.assert_allclose(point, w, rtol=1e-8, atol=1e-8)


@pytest.mark.thinned(2)
@all_sets
@all_shapes
def test_projection_is_the_nearest_point(name, shape):
    """<w - Pw, v - Pw> <= 0 for every v of W."""
    constraint, rng = SETS[name], np.random.default_rng(0)
    others = samples(constraint, shape, rng)
    for _ in range(20):
        w = 3 * rng.normal(size=shape)
        point = constraint.project(w)
        assert max(np.vdot(w - point, v - point) for v in others) <= 1e-12


@pytest.mark.parametrize("name", ["box_by_feature", "ball", "nonnegative"])
def test_projection_against_a_solver(name):
    constraint, rng = SETS[name], np.random.default_rng(1)
    for shape in ((D, 1), (D, 3)):
        w = 3 * rng.normal(size=shape)
        v = cp.Variable(shape)
        if name == "ball":
            inside = [cp.norm(cp.vec(v, order="C")) <= 1.3]
        elif name == "nonnegative":
            inside = [v >= 0]
        else:
            finite = np.isfinite(LOW), np.isfinite(HIGH)
            inside = [
                v[finite[0]] >= np.repeat(LOW[finite[0]][:, None], shape[1], axis=1),
                v[finite[1]] <= np.repeat(HIGH[finite[1]][:, None], shape[1], axis=1),
            ]
        cp.Problem(cp.Minimize(cp.sum_squares(v - w)), inside).solve(solver="CLARABEL")
        np.testing.assert_allclose(constraint.project(w), v.value, atol=1e-6)


def test_projection_leaves_its_argument_alone():
    w = np.array([9.0, -9.0, 9.0, -9.0])
    for constraint in SETS.values():
        constraint.project(w)
        assert w.tolist() == [9.0, -9.0, 9.0, -9.0]


def test_projection_onto_a_ball_of_a_huge_point():
    np.testing.assert_allclose(drago.L2Ball(2.0).project(np.array([3e150, 4e150])), [1.2, 1.6])
    np.testing.assert_array_equal(drago.L2Ball(2.0).project(np.zeros(3)), 0)


@all_sets
def test_contains(name):
    constraint = SETS[name]
    rng = np.random.default_rng(2)
    for w in samples(constraint, (D, 2), rng, 50):
        assert constraint.contains(w)
    if name != "everything":
        assert not constraint.contains(np.full((D, 2), -7.0)) or name == "box_one_sided"
        assert not constraint.contains(np.full((D, 2), 7.0)) or name == "nonnegative"


# -------------------------------------------------------------------------- support function


@pytest.mark.thinned(2)
@all_sets
@all_shapes
def test_support_is_above_every_point_and_attained(name, shape):
    constraint, rng = SETS[name], np.random.default_rng(3)
    others = samples(constraint, shape, rng)
    for _ in range(20):
        direction = rng.normal(size=shape)
        value = constraint.support(direction)
        assert value >= max(np.vdot(direction, v) for v in others) - 1e-12
        # the projection of a far point along the direction comes as close as one likes
        far = constraint.project(1e15 * direction)
        reached = np.vdot(direction, far)
        if np.isfinite(value):
            np.testing.assert_allclose(reached, value, rtol=1e-7, atol=1e-7)
        else:
            assert value == np.inf
            assert reached > 1e6


def test_support_in_closed_form():
    direction = np.array([1.0, -2.0, 0.0, 3.0])
    assert drago.Box(-0.5, 1.5).support(direction) == 1.5 + 1.0 + 4.5
    assert drago.L2Ball(2.0).support(direction) == pytest.approx(2 * np.sqrt(14))
    assert drago.NonNegative().support(-np.abs(direction)) == 0.0
    assert drago.NonNegative().support(direction) == np.inf
    assert Everything().support(np.zeros(3)) == 0.0
    assert Everything().support(direction) == np.inf


def test_support_of_a_zero_entry_toward_an_infinite_bound():
    """0 times an infinite bound is 0."""
    assert drago.NonNegative().support(np.array([0.0, -1.0])) == 0.0
    assert drago.Box(LOW, HIGH).support(np.array([1.0, 5.0, 0.0, 0.0])) == 2.0


# ------------------------------------------------------------------------------------ absorb


@pytest.mark.thinned(2)
@all_sets
@two_shapes
@settings(max_examples=25)
@given(data=st.data())
def test_what_is_absorbed_stays_a_lower_bound(name, shape, data):
    """<g, w'-w> >= <rest, w'-w> + (extra/2)||w'-w||^2 - cost for all w, w' of W."""
    constraint = SETS[name]
    w = constraint.project(data.draw(vectors(shape)))
    other = constraint.project(data.draw(vectors(shape)))
    gradient = data.draw(vectors(shape))
    h = data.draw(arrays(np.float64, shape, elements=st.floats(1e-3, 1e3)))
    rest, extra, cost = constraint.absorb(w, gradient, h)
    assert extra >= 0
    assert cost >= 0
    assert np.isfinite(rest).all()
    step = other - w
    left = np.vdot(gradient, step)
    right = np.vdot(rest, step) + 0.5 * extra * np.vdot(step, step) - cost
    size = 1 + np.abs(gradient * step).sum() + np.abs(rest * step).sum() + cost
    size += extra * np.vdot(step, step)
    assert left >= right - 1e-12 * size


@all_shapes
def test_a_gradient_that_pushes_into_a_bound_is_absorbed_whole(shape):
    w, gradient, h = np.zeros(shape), np.ones(shape), np.ones(shape)
    rest, extra, cost = drago.NonNegative().absorb(w, gradient, h)
    np.testing.assert_array_equal(rest, 0)
    assert (extra, cost) == (0.0, 0.0)


def test_a_radial_gradient_on_the_sphere_is_absorbed_whole():
    w = np.array([0.6, 0.8])
    rest, extra, cost = drago.L2Ball(1.0).absorb(w, -5.0 * w, np.ones(2))
    np.testing.assert_allclose(rest, 0, atol=1e-15)
    assert extra == pytest.approx(5.0)
    assert cost == pytest.approx(0.0, abs=1e-15)


def test_nothing_is_absorbed_without_a_constraint():
    gradient = np.array([1.0, -2.0])
    rest, extra, cost = Everything().absorb(np.zeros(2), gradient, np.ones(2))
    np.testing.assert_array_equal(rest, gradient)
    assert (extra, cost) == (0.0, 0.0)


def test_absorb_of_a_zero_slope_far_from_an_infinite_bound():
    """A feature that is 0 throughout has slope 0, and infinite room: no warning, no NaN."""
    rest, _, cost = drago.NonNegative().absorb(np.zeros(2), np.array([0.0, 1.0]), np.ones(2))
    assert rest.tolist() == [0.0, 0.0]
    assert cost == 0.0


# ------------------------------------------------------------------- bounds, shapes, problems


def test_bounds():
    low, high = drago.Box(LOW, HIGH).bounds((D, 3))
    np.testing.assert_array_equal(low, np.repeat(LOW[:, None], 3, axis=1))
    np.testing.assert_array_equal(high, np.repeat(HIGH[:, None], 3, axis=1))
    low, high = drago.NonNegative().bounds((2,))
    assert low.tolist() == [0.0, 0.0]
    assert high.tolist() == [np.inf, np.inf]
    low, high = Everything().bounds((2, 2))
    assert (low == -np.inf).all()
    assert (high == np.inf).all()
    assert drago.L2Ball(1.0).bounds((2, 2)) is None


def test_box_of_another_number_of_features():
    with pytest.raises(ValueError, match="5 features"):
        drago.Box(LOW, HIGH).bounds((5, 1))


def test_box_is_not_confused_by_as_many_outputs_as_features():
    """A bound per feature goes down the rows of (n_features, n_outputs)."""
    w = drago.Box(LOW, HIGH).project(np.full((D, D), 100.0))
    np.testing.assert_array_equal(w, np.repeat(np.minimum(HIGH, 100.0)[:, None], D, axis=1))


def test_box_reaches_the_public_coefficients_by_feature():
    """Two features, two classes: bounds of features, whatever the public shape."""
    X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.2], [-1.0, -1.0]])
    problem = drago.DROProblem(
        X,
        np.array([0, 1, 1, 0]),
        loss="multinomial",
        shift_cost=0.1,
        constraint=drago.Box(np.array([-1.0, 0.0]), np.array([1.0, 0.0])),
    )
    coef = drago.solve(problem, tol=1e-6).coef
    assert (np.abs(coef[:, 0]) <= 1).all()
    np.testing.assert_array_equal(coef[:, 1], 0)
    assert np.abs(coef[:, 0]).max() > 0.01


def test_bounds_are_those_of_the_time_of_making():
    """Changing one's own array later does not move the box."""
    low, high = np.zeros(2), np.ones(2)
    box = drago.Box(low, high)
    low[:], high[:] = -5.0, 5.0
    assert box.project(np.array([-3.0, 3.0])).tolist() == [0.0, 1.0]


def test_solve_with_a_feature_that_is_zero_throughout():
    X = np.array([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.5, 0.0]])
    problem = drago.DROProblem(
        X, np.array([1.0, 2.5, 0.3, -1.0]), shift_cost=0.1, constraint=drago.NonNegative()
    )
    result = drago.solve(problem, tol=1e-8)
    assert result.coef[1] == 0.0
    assert result.coef[0] > 0


def test_constraints_as_given():
    assert isinstance(as_constraint(None), Everything)
    ball = drago.L2Ball(3)
    assert as_constraint(ball) is ball
    assert repr(ball) == "L2Ball(radius=3)"
    assert repr(drago.NonNegative()) == "NonNegative()"
    assert repr(drago.Box(0, 1)) == "Box(low=0.0, high=1.0)"
    assert repr(Everything()) == "Everything()"
