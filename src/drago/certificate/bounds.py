"""Upper bounds on ``L(w, q) - min over w' in W of L(w', q)`` at fixed weights ``q``.

``L(w, q) = sum_i q_i l_i(w) - nu D(q || p) + (mu/2) ||w||^2``. Two families:

*tangent*    each loss is bounded below by its tangent at w. Needs convexity alone; loose by about
             L/mu when mu is small.
*curvature*  some rows S are bounded below by their own curvature instead, the others by tangents.
             Exact for the squared loss when S is all rows. For losses whose third derivative is
             at most M times the second (logistic, multinomial: M = 1), self-concordance gives the
             bound ``(z + (1 - z) log(1 - z)) / kappa^2`` where ``z = lambda kappa < 1``. Here
             ``lambda^2 = r' H^-1 r`` with the gradient ``r`` and the Hessian ``H`` of the rows S
             plus mu, and ``kappa`` is M times the largest change of a raw prediction in S per unit
             of H-norm.

A bound whose condition does not hold is returned as infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from drago.problem import DROProblem, Evaluation
from drago.rows.base import Gradient, RowVector

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Times that rows are left out of a curvature bound, because they do it more harm than good.
_TURNS = 5
_CLASS_TURNS = 3
# The change of a loss's curvature, as an exponent, that a row may contribute.
_LITTLE = 0.25


# -------------------------------------------------------------------------------- tangent bounds


def tangent_bound(
    problem: DROProblem, ev: Evaluation, q: RowVector, g: Gradient, radius: float | None = None
) -> float:
    """The bound from tangents; with an intercept, from slopes whose weighted sum is exactly 0.

    With `radius`, over the ball ``||w'|| <= radius`` alone, for mu = 0 and no constraint.
    """
    free = problem.mu == 0 and radius is None and problem.constraint.is_everything
    if free and g.w.any():
        return np.inf  # a slope that nothing holds
    if not problem.fit_intercept:
        return _linear_gap(problem, ev.w, g.w, radius)
    balanced = problem.rows.balance(problem.loss, ev.raw, q, problem.n_outputs)
    if balanced is None:
        balanced = _two_tangents(problem, ev, q)
    if balanced is None:
        return np.inf
    alpha, young = balanced
    slopes = problem.rows.gradient(alpha, q).w
    return young + _linear_gap(problem, ev.w, slopes, radius)


def _linear_gap(problem: DROProblem, w: Matrix, g: Matrix, radius: float | None = None) -> float:
    """``g'w + (mu/2)||w||^2 - min over w' in W of the same``, as a sum without cancellation."""
    mu = problem.mu
    if radius is not None:
        return max(float(np.vdot(g, w)) + radius * float(np.linalg.norm(g)), 0.0)
    if mu == 0:
        gap = float(np.vdot(g, w)) + problem.constraint.support(-g)
        return max(gap, 0.0)
    if problem.constraint.is_everything:
        slope = g + mu * w
        return 0.5 * float(np.vdot(slope, slope)) / mu
    best = problem.constraint.project(-g / mu)
    step = w - best
    return max(float(np.vdot(g, step) + 0.5 * mu * np.vdot(step, w + best)), 0.0)


def _two_tangents(
    problem: DROProblem, ev: Evaluation, q: RowVector
) -> tuple[RowVector, float] | None:
    """Slopes of zero sum for a loss of unknown conjugate: a mixture of two tangents.

    Tangents at two intercepts with slope sums of opposite sign are mixed until the sum is 0; a
    mixture of minorants is a minorant.
    """
    rows, n = problem.rows, problem.n_samples
    if problem.n_outputs != 1:
        return None

    def at(shift: float) -> tuple[RowVector, RowVector, float]:
        losses, slopes = rows.apply(problem.loss, rows.shift(ev.raw, np.array([shift])))
        return losses, slopes, float(rows.slope_sums(q, slopes)[0][0])

    here = at(0.0)
    if here[2] == 0.0:
        return here[1], 0.0
    total, square = rows.moments(ev.raw)
    size = np.sqrt(square / n)
    scale = float(np.sqrt(max(square / n - (total / n) ** 2, 0.0)) + 1e-3 * size) + 1e-12
    step, near, near_shift = -np.sign(here[2]) * 1e-9 * scale, here, 0.0
    for _ in range(60):
        there = at(near_shift + step)
        if there[2] * here[2] <= 0.0:
            break
        near, near_shift, step = there, near_shift + step, 4.0 * step
    else:
        return None
    share = near[2] / (near[2] - there[2])  # of the far tangent
    far_shift = near_shift + step
    alpha = rows.add(rows.add(near[1], near[1], -share), there[1], share)
    young = 0.0
    for weight, (losses, slopes, _), shift in (
        (1.0 - share, near, near_shift),
        (share, there, far_shift),
    ):
        # Bregman divergence of the loss between here and the place of the tangent.
        young += weight * rows.tangent_excess(q, here[0], losses, slopes, shift)
    return alpha, young


# ------------------------------------------------------------------------------ curvature bounds


def curvature_bound(
    problem: DROProblem, ev: Evaluation, q: RowVector, g: Gradient, n_rows: int
) -> float:
    """The bound from the curvature of the `n_rows` rows of the greatest weight."""
    if n_rows == 0:
        return np.inf
    if problem.loss.has_class_hessian:
        return _class_bound(problem, ev, q, g, n_rows)
    return _single_output_bound(problem, ev, q, g, n_rows)


def _self_concordant(lambda_: float, kappa: float) -> float:
    """``(z + (1 - z) log(1 - z)) / kappa^2`` for ``z = lambda kappa``, accurate for small z."""
    z = lambda_ * kappa
    if not z < 1.0:
        return np.inf
    if z < 0.1:
        k = np.arange(2, 22)
        return float(lambda_**2 * (z ** (k - 2) / (k * (k - 1))).sum())
    return float((z + (1.0 - z) * np.log1p(-z)) / kappa**2)


def _single_output_bound(
    problem: DROProblem, ev: Evaluation, q: RowVector, g: Gradient, size: int
) -> float:
    loss, rows, d = problem.loss, problem.rows, problem.n_features
    weight = rows.curvature(loss, ev.raw, q)
    chosen = rows.heaviest(weight, size)
    slope = g.w[:, 0] + problem.mu * ev.w[:, 0]
    gram = rows.gram(chosen, weight, problem.fit_intercept)
    guess = np.diag(gram)[:d] + problem.mu
    slope, extra, cost = problem.constraint.absorb(ev.w[:, 0], slope, np.maximum(guess, 1e-300))
    r = np.append(slope, g.b) if problem.fit_intercept else slope
    ridge = np.zeros(r.size)
    ridge[:d] = problem.mu + extra
    best, left = np.inf, rows.size(chosen)
    for turn in range(_TURNS):
        if turn > 0:
            gram = rows.gram(chosen, weight, problem.fit_intercept)
        factor = rows.factor(gram + np.diag(ridge))
        if not factor.safe:
            break
        lambda_ = factor.norm(r)
        if loss.is_quadratic:
            return cost + 0.5 * lambda_**2
        if loss.is_bent:
            there = factor.solve(r)
            step = Gradient(there[:d, None], there[d:] if problem.fit_intercept else np.zeros(1))
            chosen = rows.unbent(chosen, ev.raw, step, loss.quadratic_within)
            before, left = left, rows.size(chosen)
            if left == before:
                return cost + 0.5 * lambda_**2
            continue
        root = loss.concordance * factor.root
        kappa = rows.leverage_bound(chosen, root, problem.fit_intercept)
        if kappa * lambda_ <= _LITTLE:
            return min(best, cost + _self_concordant(lambda_, kappa))
        leverage = rows.leverages(chosen, root, problem.fit_intercept)
        kappa = max(rows.greatest(leverage), 0.0)
        best = min(best, cost + _self_concordant(lambda_, kappa))
        # Rows of little weight and great leverage do more harm in kappa than good in H.
        if kappa * lambda_ <= _LITTLE:
            break
        chosen = rows.narrow(chosen, leverage, _LITTLE / lambda_)
    return best


def newton_like_step(
    problem: DROProblem, ev: Evaluation, q: RowVector, n_rows: int
) -> Callable[[Gradient, Matrix], tuple[Matrix, Vector]]:
    """Steps toward the minimum of ``L(., q)`` from the curvature of the heaviest rows.

    The Hessian is that of `n_rows` rows, scaled up to the weight of all; with several outputs the
    upper bound ``curvature X' diag(q) X``, the same for each.
    """
    rows, d = problem.rows, problem.n_features
    weight = rows.curvature(problem.loss, ev.raw, q)
    chosen = rows.heaviest(weight, n_rows)
    scale = rows.total(weight) / max(rows.total(weight, chosen), 1e-300)
    H = scale * rows.gram(chosen, weight, problem.fit_intercept)
    H[np.arange(d), np.arange(d)] += problem.mu
    H[np.diag_indices_from(H)] += 1e-12 * max(float(np.trace(H)), 1e-300) / H.shape[0]
    factor = rows.factor(H)

    def step(g: Gradient, w: Matrix) -> tuple[Matrix, Vector]:
        r = g.w + problem.mu * w
        if problem.fit_intercept:
            r = np.vstack([r, g.b])
        found = factor.solve(r) if factor.safe else np.linalg.solve(H, r).astype(np.float64)
        return found[:d], found[d] if problem.fit_intercept else np.zeros(w.shape[1])

    return step


def class_unknowns(problem: DROProblem) -> npt.NDArray[np.bool_]:
    """Unknowns of the class-major Newton system.

    Adding the same vector to all classes changes no loss. So the intercept of the last class is
    held, and where nothing else ties that class down (mu = 0, no constraint), so is all of it.
    """
    m = problem.n_features + int(problem.fit_intercept)
    free = np.ones(problem.n_outputs * m, dtype=bool)
    if problem.mu == 0 and problem.constraint.is_everything:
        free[-m:] = False
    elif problem.fit_intercept:
        free[-1] = False
    return free


def _class_bound(
    problem: DROProblem, ev: Evaluation, q: RowVector, g: Gradient, size: int
) -> float:
    """The bound for a loss whose Hessian is ``diag(pi) - pi pi'``."""
    loss, rows, intercept = problem.loss, problem.rows, problem.fit_intercept
    k, d = problem.n_outputs, problem.n_features
    m = d + int(intercept)
    chosen = rows.heaviest(q, size)
    guess = rows.class_diagonal(loss, chosen, ev.raw, q, intercept) + problem.mu
    slope, extra, cost = problem.constraint.absorb(
        ev.w, g.w + problem.mu * ev.w, np.maximum(guess, 1e-300)
    )
    r = np.concatenate([slope, g.b[None, :]]) if intercept else slope
    free = class_unknowns(problem)
    ridge = np.zeros((k, m))
    ridge[:, :d] = problem.mu + extra
    best = np.inf
    for _ in range(_CLASS_TURNS):
        H = rows.class_hessian(loss, chosen, ev.raw, q, intercept) + np.diag(ridge.reshape(-1))
        factor = rows.factor(H[np.ix_(free, free)])
        if not factor.safe:
            break
        lambda_ = factor.norm(r.T.reshape(-1)[free])
        flat = np.zeros((k * m, k * m))
        flat[np.ix_(free, free)] = factor.inverse
        leverage = rows.class_leverages(chosen, flat.reshape(k, m, k, m), intercept)
        kappa = max(rows.greatest(leverage), 0.0)
        best = min(best, cost + _self_concordant(lambda_, kappa))
        if kappa * lambda_ <= _LITTLE:
            break
        chosen = rows.narrow(chosen, leverage, _LITTLE / lambda_)
    return best
