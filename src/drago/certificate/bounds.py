"""Upper bounds on ``L(w, q) - min over w' in W of L(w', q)`` at fixed weights ``q``.

``L(w, q) = sum_i q_i l_i(w) - nu D(q || p) + (mu/2) ||w||^2``. Two families:

*tangent*    each loss is bounded below by its tangent at w. Needs convexity alone; loose by about
             L/mu when mu is small.
*curvature*  some rows S are bounded below by their own curvature instead, the others by tangents.
             Exact for the squared loss when S is all rows. For losses whose third derivative is
             at most M times the second (logistic, multinomial: 1), self-concordance gives, with
             ``r`` the gradient, ``H`` the Hessian of the rows S plus mu, ``lambda^2 = r' H^-1 r``
             and ``kappa`` M times the largest change of a raw prediction in S per unit of H-norm,
             ``(z + (1 - z) log(1 - z)) / kappa^2``, ``z = lambda kappa < 1``.

A bound whose condition does not hold is returned as infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago.problem import DROProblem, Evaluation
from drago.terms.constraints import Everything
from drago.terms.losses import Huber, Multinomial, Squared

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Order beyond which a dense factorisation is not attempted.
MAX_ORDER = 2000
# Entries of a matrix of rows that are worked on at a time.
_GATHERED = 1 << 18


class Gradient(NamedTuple):
    """``X' (q s)`` and ``q' s``, the gradient of ``sum_i q_i l_i`` in w and b."""

    w: Matrix
    b: Vector


def gradient(problem: DROProblem, ev: Evaluation, q: Vector) -> Gradient:
    """The gradient at fixed weights; one pass."""
    return Gradient(*problem.gradient(ev, q))


# -------------------------------------------------------------------------------- tangent bounds


def tangent_bound(
    problem: DROProblem, ev: Evaluation, q: Vector, g: Gradient, radius: float | None = None
) -> float:
    """The bound from tangents; with an intercept, from slopes whose weighted sum is exactly 0.

    With `radius`, over the ball ``||w'|| <= radius`` alone, for mu = 0 and no constraint.
    """
    free = problem.mu == 0 and radius is None and isinstance(problem.constraint, Everything)
    if free and g.w.any():
        return np.inf  # a slope that nothing holds
    if not problem.fit_intercept:
        return _linear_gap(problem, ev.w, g.w, radius)
    balanced = problem.loss.balance(problem.y, ev.raw, q)
    if balanced is None:
        balanced = _two_tangents(problem, ev, q)
    if balanced is None:
        return np.inf
    alpha, young = balanced
    slopes = problem.weighted_rows(q[:, None] * alpha)
    return float(q @ young) + _linear_gap(problem, ev.w, slopes, radius)


def _linear_gap(problem: DROProblem, w: Matrix, g: Matrix, radius: float | None = None) -> float:
    """``g'w + (mu/2)||w||^2 - min over w' in W of the same``, as a sum without cancellation."""
    mu = problem.mu
    if radius is not None:
        return max(float(np.vdot(g, w)) + radius * float(np.linalg.norm(g)), 0.0)
    if mu == 0:
        gap = float(np.vdot(g, w)) + problem.constraint.support(-g)
        return max(gap, 0.0)
    if isinstance(problem.constraint, Everything):
        slope = g + mu * w
        return 0.5 * float(np.vdot(slope, slope)) / mu
    best = problem.constraint.project(-g / mu)
    step = w - best
    return max(float(np.vdot(g, step) + 0.5 * mu * np.vdot(step, w + best)), 0.0)


def _two_tangents(problem: DROProblem, ev: Evaluation, q: Vector) -> tuple[Matrix, Vector] | None:
    """Slopes of zero sum for a loss of unknown conjugate: a mixture of two tangents.

    Tangents at two intercepts with slope sums of opposite sign are mixed until the sum is 0; a
    mixture of minorants is a minorant.
    """
    if ev.raw.shape[1] != 1:
        return None

    def at(shift: float) -> tuple[Vector, Matrix, float]:
        losses, slopes = problem.loss.evaluate(problem.y, ev.raw + shift)
        return losses, slopes, float(np.dot(q, slopes[:, 0]))

    here = at(0.0)
    if here[2] == 0.0:
        return here[1], np.zeros_like(q)
    scale = float(np.std(ev.raw)) + 1e-3 * float(np.abs(ev.raw).max()) + 1e-12
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
    alpha = (1.0 - share) * near[1] + share * there[1]
    young = np.zeros_like(q)
    for weight, (losses, slopes, _), shift in (
        (1.0 - share, near, near_shift),
        (share, there, far_shift),
    ):
        # Bregman divergence of the loss between here and the place of the tangent.
        young += weight * np.maximum(here[0] - losses + slopes[:, 0] * shift, 0.0)
    return alpha, young


# ------------------------------------------------------------------------------ curvature bounds


def has_curvature_bound(problem: DROProblem) -> bool:
    """Whether a curvature bound is known for the problem's loss."""
    loss = problem.loss
    known = isinstance(loss, Huber) or math.isfinite(loss.concordance)
    return isinstance(loss, Multinomial) or (known and problem.n_outputs == 1)


def order(problem: DROProblem) -> int:
    """Number of unknowns, the intercepts included."""
    return (problem.n_features + int(problem.fit_intercept)) * problem.n_outputs


def _pass_cost(problem: DROProblem) -> float:
    """Multiplications of matrix algebra that take as long as one pass over the data."""
    return 16.0 * max(problem.n_entries, problem.n_samples) * problem.n_outputs


def curvature_cost(problem: DROProblem, n_rows: float) -> float:
    """What a factorised Hessian of so many rows costs, in passes."""
    m = float(order(problem))
    return (n_rows * m**2 + 2.0 * m**3) / _pass_cost(problem)


def affordable_rows(problem: DROProblem, passes: float) -> int:
    """How many rows a curvature bound may use for that many passes; 0 if too few to be of use."""
    if not has_curvature_bound(problem) or order(problem) > MAX_ORDER:
        return 0
    m = float(order(problem))
    rows = min((passes * _pass_cost(problem) - 2.0 * m**3) / m**2, float(problem.n_samples))
    return int(rows) if rows >= min(problem.n_samples, 20 * m) else 0


def curvature_bound(
    problem: DROProblem, ev: Evaluation, q: Vector, g: Gradient, n_rows: int
) -> float:
    """The bound from the curvature of the `n_rows` rows of the greatest weight."""
    if n_rows == 0:
        return np.inf
    if isinstance(problem.loss, Multinomial):
        return _multinomial_bound(problem, ev, q, g, n_rows)
    return _single_output_bound(problem, ev, q, g, n_rows)


class _Factor:
    """Cholesky factor of a matrix scaled to unit diagonal, with what its rounding may cost.

    Attributes
    ----------
    safe : bool
        Whether solutions have correct digits to spare; a bound from others would not be one.
    inflation : float
        Factor >= 1 by which ``r' H^-1 r`` may be short.
    """

    def __init__(self, H: Matrix) -> None:
        diagonal = np.diag(H)
        self.safe, self.inflation = False, np.inf
        if not (np.isfinite(H).all() and (diagonal > 0).all()):
            return
        self.scale = 1.0 / np.sqrt(diagonal)
        scaled = H * self.scale[:, None] * self.scale
        try:
            self.lower = np.linalg.cholesky(scaled).astype(np.float64, copy=False)
        except np.linalg.LinAlgError:
            return
        from scipy.linalg.lapack import dpocon

        size = float(np.abs(scaled).sum(axis=0).max())
        reciprocal = float(dpocon(self.lower, size, uplo="L")[0])
        if reciprocal > 0:
            self.inflation = 1.0 + 1e2 * H.shape[0] * np.finfo(float).eps / reciprocal
            self.safe = self.inflation < 10.0

    def half(self, b: Matrix) -> Matrix:
        """``G b`` with ``G' G = H^-1``."""
        from scipy.linalg import solve_triangular

        scaled = b * (self.scale if b.ndim == 1 else self.scale[:, None])
        return solve_triangular(self.lower, scaled, lower=True, check_finite=False)

    def solve(self, b: Vector) -> Vector:
        """``H^-1 b``."""
        from scipy.linalg import solve_triangular

        return self.scale * solve_triangular(
            self.lower, self.half(b), lower=True, trans="T", check_finite=False
        )

    def leverages(self, F: Matrix) -> Vector:
        """``sqrt(f' H^-1 f)`` for the rows of F, never short; a few rows at a time."""
        root = self.half(np.eye(self.scale.size)).T
        out, step = np.empty(len(F)), max(1, _GATHERED // self.scale.size)
        for k in range(0, len(F), step):
            part = F[k : k + step] @ root
            out[k : k + step] = np.einsum("ij,ij->i", part, part)
        return np.sqrt(self.inflation * out)

    def norm(self, r: Vector) -> float:
        """``sqrt(r' H^-1 r)``, never short."""
        return float(np.linalg.norm(self.half(r)) * np.sqrt(self.inflation))


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
    problem: DROProblem, ev: Evaluation, q: Vector, g: Gradient, size: int
) -> float:
    loss, d = problem.loss, problem.n_features
    weight = q * loss.second(problem.y, ev.raw)
    index = problem.heaviest(weight, size)
    slope = g.w[:, 0] + problem.mu * ev.w[:, 0]
    gram = problem.gram(index, weight)
    guess = np.diag(gram)[:d] + problem.mu
    slope, extra, cost = problem.constraint.absorb(ev.w[:, 0], slope, np.maximum(guess, 1e-300))
    r = np.append(slope, g.b) if problem.fit_intercept else slope
    ridge = np.zeros(r.size)
    ridge[:d] = problem.mu + extra
    best = np.inf
    if isinstance(loss, Squared):
        factor = _Factor(gram + np.diag(ridge))
        return cost + 0.5 * factor.norm(r) ** 2 if factor.safe else np.inf
    F, weight = problem.features(index), problem.pick(weight, index)
    residual = problem.pick(ev.raw[:, 0], index) - problem.pick(problem.y, index)
    for turn in range(5):
        if turn > 0:
            gram = (F * weight[:, None]).T @ F
        factor = _Factor(gram + np.diag(ridge))
        if not factor.safe:
            break
        lambda_ = factor.norm(r)
        if isinstance(loss, Huber):
            keep = np.abs(residual - F @ factor.solve(r)) <= loss.delta
            if keep.all():
                return cost + 0.5 * lambda_**2
        else:
            leverage = loss.concordance * factor.leverages(F)
            best = min(best, cost + _self_concordant(lambda_, float(leverage.max(initial=0.0))))
            # Rows of little weight and great leverage do more harm in kappa than good in H.
            keep = leverage * lambda_ <= 0.25
            if keep.all():
                break
        F, weight, residual = F[keep], weight[keep], residual[keep]
    return best


def newton_like_step(
    problem: DROProblem, ev: Evaluation, q: Vector, n_rows: int
) -> Callable[[Gradient, Matrix], tuple[Matrix, Vector]]:
    """Steps toward the minimum of ``L(., q)`` from the curvature of the heaviest rows.

    The Hessian is that of `n_rows` rows, scaled up to the weight of all; with several outputs the
    upper bound ``curvature X' diag(q) X``, the same for each.
    """
    if problem.n_outputs == 1:
        weight = q * problem.loss.second(problem.y, ev.raw)
    else:
        weight = problem.loss.curvature * q
    index = problem.heaviest(weight, n_rows)
    scale = float(weight.sum()) / max(float(weight[index].sum()), 1e-300)
    H = scale * problem.gram(index, weight)
    d = problem.n_features
    H[np.arange(d), np.arange(d)] += problem.mu
    H[np.diag_indices_from(H)] += 1e-12 * max(float(np.trace(H)), 1e-300) / H.shape[0]

    def step(g: Gradient, w: Matrix) -> tuple[Matrix, Vector]:
        r = g.w + problem.mu * w
        if problem.fit_intercept:
            r = np.vstack([r, g.b])
        found = np.linalg.solve(H, r).astype(np.float64, copy=False)
        return found[:d], found[d] if problem.fit_intercept else np.zeros(w.shape[1])

    return step


def multinomial_hessian(problem: DROProblem, F: Any, weight: Any, pi: Any) -> Matrix:
    """``sum_i weight_i (diag(pi_i) - pi_i pi_i') (x) x_i x_i'``, class-major.

    `F`, `weight` and `pi` are what the problem's vectors are; the result is an array.
    """
    k, m = pi.shape[1], F.shape[1]
    H = np.empty((k, m, k, m))
    for a in range(k):
        of_class = weight * pi[:, a]
        parts = [
            (F * (of_class * ((1.0 if a == c else 0.0) - pi[:, c]))[:, None]).T @ F
            for c in range(a, k)
        ]
        for c, part in zip(range(a, k), problem.to_host(problem.xp.stack(parts))):
            H[a, :, c, :], H[c, :, a, :] = part, part.T
    return H.reshape(k * m, k * m)


def _class_leverages(problem: DROProblem, F: Any, inverse: Matrix) -> Vector:
    """The largest ``(e_a - e_c)' M (e_a - e_c)`` over pairs of classes, ``M`` of each row.

    ``M_ac = f' inverse_ac f`` for the blocks of `inverse` (k x m x k x m).
    """
    k, found = inverse.shape[0], None
    blocks = problem.from_host(np.ascontiguousarray(inverse.transpose(0, 2, 1, 3)))
    own = [((F @ blocks[a, a]) * F).sum(1) for a in range(k)]
    for a in range(k):
        for c in range(a + 1, k):
            pair = own[a] + own[c] - 2.0 * ((F @ blocks[a, c]) * F).sum(1)
            found = pair if found is None else problem.xp.maximum(found, pair)
    return np.maximum(problem.to_host(found), 0.0)


def multinomial_unknowns(problem: DROProblem) -> npt.NDArray[np.bool_]:
    """Unknowns of the class-major Newton system.

    Adding the same to all classes changes no loss: the last intercept is fixed, and where nothing
    else ties the last class down (mu = 0, no constraint) all of it.
    """
    m = problem.n_features + int(problem.fit_intercept)
    free = np.ones(problem.n_outputs * m, dtype=bool)
    if problem.mu == 0 and isinstance(problem.constraint, Everything):
        free[-m:] = False
    elif problem.fit_intercept:
        free[-1] = False
    return free


def _multinomial_bound(
    problem: DROProblem, ev: Evaluation, q: Vector, g: Gradient, size: int
) -> float:
    assert isinstance(problem.loss, Multinomial)
    k, d = problem.n_outputs, problem.n_features
    m = d + int(problem.fit_intercept)
    index = problem.heaviest(q, size)
    F, weight = problem.own_features(index), q[index]
    pi = problem.loss.probabilities(ev.raw[index])
    guess = problem.to_host((F[:, :d] ** 2).T @ (weight[:, None] * pi * (1 - pi))) + problem.mu
    slope, extra, cost = problem.constraint.absorb(
        ev.w, g.w + problem.mu * ev.w, np.maximum(guess, 1e-300)
    )
    r = np.concatenate([slope, g.b[None, :]]) if problem.fit_intercept else slope
    free = multinomial_unknowns(problem)
    ridge = np.zeros((k, m))
    ridge[:, :d] = problem.mu + extra
    best = np.inf
    for _ in range(3):
        H = multinomial_hessian(problem, F, weight, pi) + np.diag(ridge.reshape(-1))
        factor = _Factor(H[np.ix_(free, free)])
        if not factor.safe:
            break
        lambda_ = factor.norm(r.T.reshape(-1)[free])
        flat = np.zeros((k * m, k * m))
        root = factor.half(np.eye(int(free.sum())))
        flat[np.ix_(free, free)] = factor.inflation * (root.T @ root)
        leverage = np.sqrt(_class_leverages(problem, F, flat.reshape(k, m, k, m)))
        best = min(best, cost + _self_concordant(lambda_, float(leverage.max(initial=0.0))))
        keep = leverage * lambda_ <= 0.25
        if keep.all():
            break
        kept = problem.from_host(keep)
        F, weight, pi = F[kept], weight[kept], pi[kept]
    return best
