"""When a solve seems done, and when it is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import cases
from drago.certificate.certificate import uncertified
from drago.loop.best import Best
from drago.loop.goal import Goal, measure
from drago.loop.protocol import Iterate


def at(problem, **known):
    return Iterate(*problem.origin, 1, 1.0, 1, **known)


def best(problem, **known):
    """The trivial model, with something known of it."""
    return Best(replace(uncertified(problem, problem.reference[0]), **known), *problem.origin)


@pytest.fixture
def convex():
    return cases.make("squared")


def test_the_gap_is_what_has_to_be_small(convex):
    value = convex.reference[0]
    goal, found = Goal(convex, 1e-2), best(convex)
    assert not goal.is_certified(found) and not goal.is_stationary(found)
    for gap, expected in ((0.1 * value, False), (1e-4 * value, True)):
        # Relative to what the trivial model leaves to gain: a point far below it is needed.
        lower = replace(found.point[0], primal=0.5 * value, dual=0.5 * value - gap, gap=gap)
        assert goal.is_certified(Best(lower, *convex.origin)) == expected
    assert measure(found.point[0], 3.0) == 3.0


def test_the_slope_is_where_there_is_no_gap(convex):
    """For losses that are not declared convex: of a model that torch differentiates, say."""
    slope = 3.0
    goal = Goal(SimpleNamespace(is_convex=False, reference_slope=slope), 1e-3)
    assert not goal.is_stationary(best(convex, stationarity=1.1e-3 * slope))
    flat = best(convex, stationarity=0.9e-3 * slope)
    assert goal.is_stationary(flat) and not goal.is_certified(flat)
    assert measure(flat.point[0], np.inf) == (0.9e-3 * slope) ** 2
    assert goal.estimate_wanted(None, flat) == (1e-3 * slope) ** 2
    assert goal.seems_reached(at(convex, gap_estimate=0.4 * (1e-3 * slope) ** 2), flat)
    assert not goal.seems_reached(at(convex, gap_estimate=0.6 * (1e-3 * slope) ** 2), flat)


def test_it_seems_reached_a_little_below_the_tolerance(convex):
    """The method's estimate counts beside the best objective known or estimated."""
    value, goal, found = convex.reference[0], Goal(convex, 1e-2), best(convex)
    gain = 0.5 * value
    for share, expected in ((0.69, True), (0.8, False)):
        # gap / (P_0 - P + gap) = share * tol
        gap = share * 1e-2 * gain / (1.0 - share * 1e-2)
        here = at(convex, gap_estimate=gap, primal_estimate=value - gain)
        assert goal.seems_reached(here, found) == expected
    assert not goal.seems_reached(at(convex), found)


def test_certificates_teach_how_far_estimates_are_off(convex):
    value, goal, found = convex.reference[0], Goal(convex, 1e-2), best(convex)
    here = at(convex, gap_estimate=1e-3 * value, primal_estimate=0.5 * value)
    wanted = goal.estimate_wanted(here, found)
    assert wanted == pytest.approx(1e-2 * 0.5 * value)
    assert goal.seems_reached(here, found)
    goal.learn(replace(found.point[0], gap=1e-1 * value), here)
    assert goal.factor == pytest.approx(100.0)
    assert goal.estimate_wanted(here, found) == pytest.approx(wanted / 100.0)
    assert not goal.seems_reached(here, found)


def test_what_a_look_foresaw_teaches_as_much(convex):
    value, goal, found = convex.reference[0], Goal(convex, 1e-2), best(convex)
    here = at(convex, gap_estimate=1e-3 * value, primal_estimate=0.5 * value)
    loose = replace(found.point[0], gap=0.5 * value)
    goal.learn(replace(loose, foreseen=1e-2 * value), here)
    assert goal.factor == pytest.approx(10.0)
    goal.learn(replace(loose, foreseen=value), here)
    assert goal.factor == pytest.approx(500.0)


@pytest.mark.parametrize(("gap", "estimate"), [(np.inf, 1.0), (1.0, np.inf), (1.0, 0.0)])
def test_nothing_is_learnt_from_what_is_not_known(convex, gap, estimate):
    goal, found = Goal(convex, 1e-2), best(convex)
    goal.learn(replace(found.point[0], gap=gap), at(convex, gap_estimate=estimate))
    assert goal.factor == 1.0
