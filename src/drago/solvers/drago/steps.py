"""The sequences of DRAGO: how much each proximal term weighs at iteration t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from drago.loop.protocol import Diverged

# a_{t-1}/a_t; the weights of the proximal terms: last point, each older point, dual weights.
Weights = tuple[float, float, float, float]
StepRule = Callable[[int, int, float], Weights]
# Curvatures that `SecantSteps` keeps in mind, by how much a step may be longer than the last, and
# what steps of one length are cut from.
REMEMBERED = 4
GROWTH = 2.0
_PLAIN = 0.4
# What can still be squared.
_LARGEST = 1e154


@lru_cache(maxsize=8)
def _stationary(alpha: float, dual_alpha: float, m: int, nu: float) -> Weights:
    """The weights of `Steps` that run as if from long ago: the same at every iteration."""
    c = _history(alpha, m)
    return 1.0 / (1.0 + min(alpha, dual_alpha)), 1.0 / alpha - (m - 1) * c, c, nu / dual_alpha


@dataclass(frozen=True)
class Steps:
    """The sequences a_t, A_t, c_t of Algorithm 1.

    Parameters
    ----------
    alpha, dual_alpha : float
        ``a_t / a_{t-1} = 1 + alpha`` in the primal and in the dual proximal terms; one number in
        the paper.
    stationary : bool
        Whether the sequences run as if from long ago, ``A_{t-1}/a_t = 1/alpha``; the paper starts
        from ``A_0 = 0``.
    """

    alpha: float
    dual_alpha: float
    stationary: bool

    def __call__(self, t: int, m: int, nu: float) -> Weights:
        if self.stationary:
            return _stationary(self.alpha, self.dual_alpha, m, nu)
        if t == 1:
            return 0.0, 0.0, 0.0, 0.0
        alpha, dual_alpha = self.alpha, self.dual_alpha
        c = _history(alpha, m)
        primal = -np.expm1((1 - t) * np.log1p(alpha)) / alpha
        dual = -np.expm1((1 - t) * np.log1p(dual_alpha)) / dual_alpha
        return 1.0 / (1.0 + min(alpha, dual_alpha)), primal - (m - 1) * c, c, dual * nu

    def shorter(self, factor: float) -> Steps:
        """The same with shorter steps."""
        return Steps(factor * self.alpha, factor * self.dual_alpha, self.stationary)


@dataclass
class SecantSteps:
    """Steps as long as the curvature met so far allows, where iterations are free of noise.

    With a single block and the exact primal gradient, the change of the gradient along the last
    step shows the curvature that the step has met, in units of the metric, what the weights add to
    it by following the losses included. The next ``alpha`` is `boldness` by the largest of the last
    few of these, and at most twice as long as the last one.

    Parameters
    ----------
    alpha : float
        The step size of the next iteration, as in `Steps`.
    largest, boldness : float
    curvatures : list of float
        Those of the last steps.
    """

    alpha: float
    largest: float
    boldness: float
    curvatures: list[float] = field(default_factory=list)

    def __call__(self, t: int, m: int, nu: float) -> Weights:
        return Steps(self.alpha, self.alpha, True)(t, m, nu)

    def learn(self, curvature: float) -> None:
        """A curvature that was met."""
        if not np.isfinite(curvature):
            return
        self.curvatures = [*self.curvatures, curvature][-REMEMBERED:]
        worst = max(self.curvatures)
        if worst > 0:
            self.alpha = min(self.boldness / worst, self.largest, GROWTH * self.alpha)

    def shorter(self, factor: float) -> Steps:
        """Shorter steps of one length: where these did no good, the curvature says too little."""
        alpha = factor * min(self.alpha, _PLAIN)
        return Steps(alpha, alpha, True)


class UnregularisedSteps:
    """The sequences of the paper's appendix, for mu = 0 or nu = 0.

    ``a_t = min{ near/smooth, (1 + 1/M) a_{t-1}, sqrt(dual min(near, far))/(M lipschitz) }`` where
    ``near = C mu + 1``, ``far = c mu + 1``, ``dual = A nu + nu_1`` are the weights of the proximal
    terms, ``c_t = a_t / (5 (M-1))`` and ``C = A - (M-1) c``, which the telescoping sums need.
    ``nu_1 = (M lipschitz/smooth)^2`` makes the first and the last bound equal at the start. The
    paper's constants are ``smooth = 12 e kappa_Q L`` and ``lipschitz = 32 G``. All of them, the
    strong convexity `mu` of the regularisation too, are in the unit of the metric.
    """

    def __init__(self, m: int, mu: float, smooth: float, lipschitz: float) -> None:
        self.mu, self.smooth, self.lipschitz = mu, smooth, lipschitz
        ratio = m * lipschitz / smooth
        self.nu_1 = ratio**2 if ratio < _LARGEST else np.inf
        self.a = self.total = self.c = 0.0

    def __call__(self, t: int, m: int, nu: float) -> Weights:
        before = self.a
        near = 1.0 + (self.total - (m - 1) * self.c) * self.mu
        far = 1.0 + self.c * self.mu
        dual = self.nu_1 + self.total * nu
        least = near if m == 1 else min(near, far)
        a = min(near / self.smooth, np.sqrt(dual * least) / (m * self.lipschitz))
        if t > 1:
            a = min(a, (1.0 + 1.0 / m) * before)
        if not a > 0.0:
            raise Diverged("the constants of the losses in the metric leave no step to take")
        self.a, self.total, self.c = a, self.total + a, a / (5.0 * max(m - 1, 1))
        return before / a, near / a, 0.0 if m == 1 else far / a, dual / a


@dataclass(frozen=True)
class LaggedSteps:
    """The sequences of Algorithm 2."""

    alpha: float

    def __call__(self, t: int, m: int, nu: float) -> Weights:
        alpha = self.alpha
        c = _history(alpha, m)
        beta = -np.expm1((1 - t) * np.log1p(alpha)) / (alpha * (1.0 + alpha))
        return 1.0 / (1.0 + alpha), beta - (m - 1) * c, c, beta * nu


def _history(alpha: float, m: int) -> float:
    """``c_{t-1}/a_t``, the weight of each older point."""
    return 0.0 if m == 1 else 1.0 / (16.0 * alpha * (1.0 + alpha) * (m - 1) ** 2)
