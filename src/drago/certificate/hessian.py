"""A Newton step on ``P``: as the weights respond to the losses, its Hessian is explicit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago.certificate.bounds import class_unknowns
from drago.certificate.cost import curvature_cost, has_curvature_bound
from drago.metric import FLOOR, FULL, Metric, is_box, subsample
from drago.problem import DROProblem, Evaluation
from drago.rows.base import Gradient, RowVector
from drago.terms.uncertainty import DualOracle

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


def newton_step(
    problem: DROProblem,
    ev: Evaluation,
    q: RowVector,
    g: Gradient,
    oracle: DualOracle,
    damping: float = 0.0,
) -> tuple[Matrix, Vector, RowVector] | None:
    """A Newton step on P from its generalised Hessian: steps of w, b and of the raw prediction.

    The Hessian is ``sum_i q_i l_i'' + mu + Z' (dq/dl) Z`` with ``Z`` the gradients of the losses.
    Damped, it gets two diagonals on top, each times `damping`: its own, and the largest that the
    curvature of the loss allows. A box holds the coordinates that are pushed to its sides; in a
    ball the step is the best one for the quadratic model. None where the weights' response is not
    known.
    """
    box = problem.constraint.bounds(ev.w.shape)
    H = hessian(problem, ev, q, oracle)
    if H is None:
        return None
    d, k = problem.n_features, problem.n_outputs
    m = d + int(problem.fit_intercept)
    free = np.ones(m, dtype=bool)
    if problem.loss.has_class_hessian:
        free = class_unknowns(problem)
    slope = g.w + problem.mu * ev.w
    r = np.concatenate([slope, g.b[None, :]]) if problem.fit_intercept else slope
    if box is not None:
        held = np.zeros((k, m), dtype=bool)
        held[:, :d] = (((ev.w <= box[0]) & (slope > 0)) | ((ev.w >= box[1]) & (slope < 0))).T
        free &= ~held.reshape(-1)
    step = np.zeros(k * m)
    reduced = H[np.ix_(free, free)]
    # Where the rows of weight have no curvature along an intercept, a little must do; with damping,
    # what curvature they could have.
    little = np.zeros((k, m))
    little[:, d:] = (1e-12 + damping) * problem.loss.curvature
    if damping > 0:
        little[:, :d] = damping * problem.loss.curvature * problem.rows.weighted_squares(q)
    extra = (1e-13 + damping) * np.diag(reduced) + little.reshape(-1)[free]
    reduced[np.diag_indices(reduced.shape[0])] += extra
    flat = r.T.reshape(-1)[free]
    try:
        if box is None:
            at = np.zeros((k, m))
            at[:, :d] = ev.w.T
            is_coef = np.zeros((k, m), dtype=bool)
            is_coef[:, :d] = True
            radius = problem.constraint.radius
            assert radius is not None
            inside = is_coef.reshape(-1)[free]
            step[free] = _step_in_ball(reduced, flat, at.reshape(-1)[free], inside, radius)
        else:
            step[free] = -np.linalg.solve(reduced, flat)
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(step).all():
        return None
    by_feature = step.reshape(k, m).T
    dw = np.ascontiguousarray(by_feature[:d])
    db = by_feature[d] if problem.fit_intercept else np.zeros(k)
    return dw, db, problem.rows.predict(dw, db)


# Trials of the multiplier of a ball, and how near to the sphere is on it.
_SECULAR = 60
_ON_SPHERE = 1e-12


def _step_in_ball(
    H: Matrix, r: Vector, at: Vector, is_coef: npt.NDArray[np.bool_], radius: float
) -> Vector:
    """``argmin over s of <r, s> + s'Hs/2`` with ``||w + s||`` at most `radius`, w = `at`.

    ``s = -(H + t E)^-1 (r + t w)`` with E the identity on the coefficients. As t grows from 0, the
    norm falls to the radius; its inverse is concave in t, so that Newton's method comes from below.

    Parameters
    ----------
    is_coef : array of bool
        Which unknowns the ball is about; `at` is 0 elsewhere.
    """
    E, t = is_coef.astype(np.float64), 0.0
    for _ in range(_SECULAR):
        shifted = H + np.diag(t * E)
        step = -np.linalg.solve(shifted, r + t * at)
        there = np.where(is_coef, at + step, 0.0)
        norm = float(np.linalg.norm(there))
        if norm <= radius * (1.0 + _ON_SPHERE):
            break
        fall = float(there @ np.linalg.solve(shifted, there))
        t += (norm / radius - 1.0) * norm * norm / fall
    return np.asarray(step, dtype=np.float64)


def hessian(problem: DROProblem, ev: Evaluation, q: RowVector, oracle: DualOracle) -> Matrix | None:
    """The generalised Hessian of P, class-major: ``sum_i q_i l_i'' + mu + Z' (dq/dl) Z``."""
    if problem.nu == 0:
        return None
    _, response = oracle.response(ev.losses, problem.nu, q)
    if response is None:
        return None
    d, k = problem.n_features, problem.n_outputs
    m = d + int(problem.fit_intercept)
    H = problem.rows.hessian(problem.loss, ev, q, response, problem.fit_intercept)
    if H is None:
        return None
    ridge = np.zeros((k, m))
    ridge[:, :d] = problem.mu
    H[np.diag_indices(k * m)] += ridge.reshape(-1)
    return H


@dataclass(frozen=True)
class _MetricRule:
    """When a Hessian makes a good metric, and from how many rows."""

    least_rows: int = 2000
    """It is taken from at least so many rows."""
    rows_per_feature: int = 600
    """It is taken from at least so many rows for each feature,"""
    cheap: float = 4.0
    """and on arrays from all of them if that costs at most so many passes over these: they are a
    small part of the rows that the metric is for."""
    effective: int = 60
    """Rows that the weights are worth, ``1 / sum q^2``, for each feature: fewer are noise."""
    effective_of_classes: int = 15
    """The same for logistic losses: they have curvature here and none there, so that even a noisy
    picture of it helps."""
    raised: float = 300.0
    """By how much the shift cost is raised, in units of what an error of P allows."""
    raised_of_classes: float = 100.0
    """The same for losses of classes, whose own curvature changes along the way."""


_RULE = _MetricRule()


def hessian_metric(
    problem: DROProblem, w: Matrix, b: Vector, error: float, known: Evaluation | None = None
) -> tuple[Metric, Vector] | None:
    """The generalised Hessian at a point that is optimal up to `error`, as a metric.

    What is `known` of the point need not be computed again.

    The shift cost is raised, because the kinks of P between here and the optimum are not where
    these rows see them. Returned with the centre of the features: measured from there, the
    intercept does not interfere with the coefficients. None where there is more than one output,
    too many features, or too few rows of weight.
    """
    usable = problem.n_outputs == 1 and problem.n_features <= FULL and has_curvature_bound(problem)
    if not usable or is_box(problem) or problem.uncertainty.is_users:
        return None
    weighty = problem.n_samples * (problem.uncertainty.tail_share or 1.0)
    if not problem.rows.is_on_host or curvature_cost(problem, weighty) > _RULE.cheap:
        size = max(_RULE.least_rows, _RULE.rows_per_feature * problem.n_features)
        problem, known = problem.take(subsample(problem, size)), None
    ev = known if known is not None and known.is_whole else problem.evaluate(w, b)
    oracle = problem.dual_oracle()
    spread = problem.distance(oracle.weights(ev.losses, problem.nu))
    of_classes = problem.loss.is_classification
    units = _RULE.raised_of_classes if of_classes else _RULE.raised
    raised = problem._replace(nu=problem.nu + units * error / max(spread, 1e-6))
    q = oracle.weights(ev.losses, raised.nu)
    needed = _RULE.effective_of_classes if of_classes else _RULE.effective
    if 1.0 / problem.rows.dot(q, q) < needed * problem.n_features:
        return None
    H = hessian(raised, ev, q, oracle)
    if H is None:
        return None
    d, centre, along = problem.n_features, np.zeros(problem.n_features), 1.0
    if problem.fit_intercept:
        along = float(H[d, d])
        if not along > 0:
            return None
        centre = H[:d, d] / along
        H = H[:d, :d] - np.outer(centre, H[:d, d])
    eigenvalues, basis = np.linalg.eigh(H)
    floor = FLOOR * max(float(eigenvalues.max()), 1e-300)
    return Metric(np.maximum(eigenvalues, floor), basis, along), centre
