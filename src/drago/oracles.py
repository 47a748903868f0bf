"""The dual oracle of a set, bound to one divergence and one nominal distribution ``p``.

Every dual step, exact or proximal, is one map::

    argmax over q in Q of  <u, q> - c Omega(q)

An oracle remembers where its last search ended and starts the next one there; that is its only
state, so each solver makes its own with ``problem.dual_oracle()``. What it cannot remember is the
answer itself: the result depends on the start by rounding errors alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.divergences import Divergence

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

_EMPTY: Vector = np.empty(0)
# Relative distance to a bound below which a weight counts as lying on it.
_ON_BOUND = 1e-12
# Spreads of losses that a ball's oracle takes as they are.
_SCALE = (1e-100, 1e100)


@dataclass(frozen=True)
class Response:
    """The derivative of the oracle's weights ``q`` with respect to ``u``.

    On each pool, ``dq_i = rate_i (du_i - m - z_i t)`` where ``m`` is the rate-weighted mean of
    ``du`` over the pool and ``t`` its rate-weighted coefficient on ``direction`` z (divergence
    balls only). Rows outside every pool have ``pool = -1`` and do not move.

    Parameters
    ----------
    rate, pool : arrays of shape (n_atoms,)
    direction : array of shape (n_atoms,) or None
    aggregate : sparse matrix of shape (n_atoms, n_rows) or None
        Grouped sets: atoms are groups, ``u_atoms = aggregate @ u_rows``.
    """

    rate: Vector
    pool: npt.NDArray[np.int64]
    direction: Vector | None = None
    aggregate: Any = None

    def curvature(self, Z: Matrix) -> Matrix:
        """``Z' (dq/du) Z`` for the rows ``Z``, a positive semidefinite matrix."""
        if self.aggregate is not None:
            Z = self.aggregate @ Z
        moving = self.pool >= 0
        Z, rate = Z[moving], self.rate[moving]
        labels, pool = np.unique(self.pool[moving], return_inverse=True)
        if labels.size == 0:
            return np.zeros((Z.shape[1], Z.shape[1]))
        scaled = Z * rate[:, None]
        order = np.argsort(pool, kind="stable")
        starts = np.searchsorted(pool[order], np.arange(labels.size))
        sums = np.add.reduceat(scaled[order], starts, axis=0)
        mass = np.bincount(pool, weights=rate, minlength=labels.size)
        safe = np.where(mass > 0, mass, 1.0)
        out = Z.T @ scaled - sums.T @ (sums / safe[:, None])
        if self.direction is not None:
            z = self.direction[moving]
            norm = np.dot(rate, z * z)
            if norm > 0:
                along = scaled.T @ z
                out -= np.outer(along, along / norm)
        return out


class DualOracle:
    """Base of the bound oracles; also the adapter of a user's own set.

    Parameters
    ----------
    uncertainty : object with ``worst_case(u, c, divergence, p)``
    divergence : Divergence
    p : array of shape (n,)
        Positive, with sum 1.
    """

    def __init__(self, uncertainty: Any, divergence: Divergence, p: Vector) -> None:
        self.uncertainty = uncertainty
        self.divergence = divergence
        self.p = p

    def weights(self, u: Vector, c: float) -> Vector:
        """``argmax over q in Q of <u, q> - c Omega(q)``."""
        return self._solve(np.ascontiguousarray(u, dtype=np.float64), float(c), False)[0]

    def step(self, v: Vector, nu: float, s: float, mirror: Vector) -> tuple[Vector, Vector]:
        """Proximal step from the weights whose mirror coordinate is `mirror`.

        ``argmax over q in Q of <v, q> - nu D(q || p) - s Bregman_D(q, q_prev)``

        Returns
        -------
        q, mirror : arrays of shape (n,)
            The weights and their own mirror coordinate, ``q/p`` or ``log(q/p)``; the latter stays
            finite where a weight underflows.
        """
        u = v + s * mirror if s > 0 else np.array(v, dtype=np.float64)
        return self._solve(np.ascontiguousarray(u), float(nu + s), True)

    def response(self, u: Vector, c: float) -> tuple[Vector, Response | None]:
        """The weights and their derivative; None where it is not known or does not exist."""
        return self.weights(u, c), None

    def _solve(self, u: Vector, c: float, keep_mirror: bool) -> tuple[Vector, Vector]:
        q = np.asarray(self.uncertainty.worst_case(u, c, self.divergence, self.p), dtype=np.float64)
        if q.shape != u.shape or not np.isfinite(q).all():
            wrong = "NaN or infinity" if q.shape == u.shape else f"an array of shape {q.shape}"
            raise ValueError(
                f"{type(self.uncertainty).__name__}.worst_case must return {u.size} finite "
                f"weights, but returned {wrong}."
            )
        return q, self.divergence.mirror(q, self.p) if keep_mirror else _EMPTY

    def _mirror_buffer(self, n: int, keep_mirror: bool) -> Vector:
        return np.empty(n) if keep_mirror and self.divergence.name == "kl" else _EMPTY

    def _finish(self, q: Vector, log_ratio: Vector, keep_mirror: bool) -> tuple[Vector, Vector]:
        if keep_mirror and log_ratio.size == 0:
            return q, self.divergence.mirror(q, self.p)
        return q, log_ratio

    def _rate(self, q: Vector, c: float) -> Vector:
        return (self.p if self.divergence.name == "chi2" else q) / c


class CappedOracle(DualOracle):
    """``0 <= q_i <= cap p_i``: CVaR and, with ``cap = inf``, the simplex."""

    def __init__(
        self, uncertainty: Any, divergence: Divergence, p: Vector, cap: float = np.inf
    ) -> None:
        super().__init__(uncertainty, divergence, p)
        # A cap that no weight can reach is none.
        self.cap = float(cap) if cap * p.min() < 1.0 else np.inf
        self._tau = np.nan
        self._c = np.nan

    def _solve(self, u: Vector, c: float, keep_mirror: bool) -> tuple[Vector, Vector]:
        from drago.kernels.dual_capped import capped_chi2, capped_kl

        q = np.empty(u.shape[0])
        # The threshold is worth remembering only on the same problem scale.
        tau = self._tau if c == self._c else np.nan
        log_ratio = _EMPTY
        if self.divergence.name == "chi2":
            tau = capped_chi2(u, self.p, c, self.cap, tau, q)
        else:
            log_ratio = self._mirror_buffer(u.shape[0], keep_mirror and c > 0)
            tau = capped_kl(u, self.p, c, self.cap, tau, q, log_ratio)
        self._tau, self._c = tau, c
        return self._finish(q, log_ratio, keep_mirror)

    def response(self, u: Vector, c: float) -> tuple[Vector, Response | None]:
        q = self.weights(u, c)
        if c == 0 or self.cap <= 1:
            return q, None
        free = (q > 0) & (q < self.cap * self.p * (1 - _ON_BOUND))
        return q, Response(self._rate(q, c), np.where(free, 0, -1))


class SpectralOracle(DualOracle):
    """``q(A) <= G(p(A))``: the sets given by a spectrum."""

    def __init__(self, uncertainty: Any, divergence: Divergence, p: Vector) -> None:
        super().__init__(uncertainty, divergence, p)
        self._uniform = bool(p.min() == p.max())
        self._sigma = uncertainty.masses(p) if self._uniform else None

    def _solve(self, u: Vector, c: float, keep_mirror: bool) -> tuple[Vector, Vector]:
        q, log_ratio, _, _ = self._pools(u, c, keep_mirror)
        return self._finish(q, log_ratio, keep_mirror)

    def _pools(self, u: Vector, c: float, keep_mirror: bool) -> tuple[Vector, Vector, Any, Any]:
        """The weights, their mirror, the order of ``u`` and the first place of each pool in it."""
        from drago.kernels.dual_spectral import spectral_chi2, spectral_kl, spectral_vertex

        n = u.shape[0]
        order = np.argsort(u)
        sorted_u = u[order]
        p, sigma = self.p, self._sigma
        if sigma is None:
            p = p[order]
            sigma = self.uncertainty.masses(p)
        ratio, first = np.empty(n), np.empty(n + 1, dtype=np.int64)
        log_ratio = _EMPTY
        if c == 0:
            count = spectral_vertex(sorted_u, p, sigma, ratio, first)
        elif self.divergence.name == "chi2":
            count = spectral_chi2(sorted_u, p, sigma, c, ratio, first)
        else:
            sorted_log = self._mirror_buffer(n, keep_mirror)
            count = spectral_kl(sorted_u, p, sigma, c, ratio, sorted_log, first)
            if sorted_log.size:
                log_ratio = np.empty(n)
                log_ratio[order] = sorted_log
        q = np.empty(n)
        ratio *= p
        q[order] = ratio
        return q, log_ratio, order, first[:count]

    def response(self, u: Vector, c: float) -> tuple[Vector, Response | None]:
        u = np.ascontiguousarray(u, dtype=np.float64)
        q, _, order, first = self._pools(u, float(c), False)
        if c == 0:
            return q, None
        starts = np.zeros(u.shape[0], dtype=np.int64)
        starts[first] = 1
        pool = np.empty_like(starts)
        pool[order] = np.cumsum(starts) - 1
        return q, Response(self._rate(q, c), pool)


class BallOracle(DualOracle):
    """``D(q || p) <= radius`` with the ball's own divergence."""

    def __init__(self, uncertainty: Any, divergence: Divergence, p: Vector, radius: float) -> None:
        super().__init__(uncertainty, divergence, p)
        self.radius = float(radius)
        self._start = np.nan
        self._effective = np.nan

    def _solve(self, u: Vector, c: float, keep_mirror: bool) -> tuple[Vector, Vector]:
        from drago.kernels.dual_balls import chi2_ball, kl_ball

        spread = float(u.max() - u.min())
        if not _SCALE[0] < spread < _SCALE[1] and spread > 0:
            # Squares of the losses would leave the range of floating point.
            u, c = (u - u.max()) / spread, min(c / spread, _SCALE[1])
        q = np.empty(u.shape[0])
        log_ratio = _EMPTY
        if self.divergence.name == "chi2":
            out = chi2_ball(u, self.p, c, self.radius, self._start, q)
        else:
            log_ratio = self._mirror_buffer(u.shape[0], keep_mirror)
            out = kl_ball(u, self.p, c, self.radius, self._start, q, log_ratio)
            if c == 0 and out[0] == 0:  # a vertex has no finite mirror coordinate
                log_ratio = _EMPTY
        self._effective, self._start = out
        return self._finish(q, log_ratio, keep_mirror)

    def response(self, u: Vector, c: float) -> tuple[Vector, Response | None]:
        q = self.weights(u, c)
        effective = self._effective
        if not 0 < effective < np.inf:
            return q, None
        rate = self._rate(q, effective)
        free = q > 0
        direction = None
        if effective > c * (1 + 1e-12):
            mean = np.dot(rate[free], u[free]) / rate[free].sum()
            direction = u - mean
        return q, Response(rate, np.where(free, 0, -1), direction)


def group_sums(groups: npt.NDArray[np.int64], weights: Vector) -> Vector:
    """The sum of the weights of each group."""
    return np.bincount(groups, weights=weights).astype(np.float64, copy=False)


class GroupedOracle(DualOracle):
    """``q_i = p_i r_g / P_g`` with ``r`` in an inner set over the groups."""

    def __init__(
        self,
        uncertainty: Any,
        divergence: Divergence,
        p: Vector,
        groups: npt.NDArray[np.int64],
        inner: Any,
    ) -> None:
        super().__init__(uncertainty, divergence, p)
        self.groups = groups
        self.mass = group_sums(groups, p)
        self.inner: DualOracle = inner.oracle(self.mass / self.mass.sum(), divergence)

    def _means(self, u: Vector) -> Vector:
        # From the maximum, so that equal losses give equal means and a constant changes nothing.
        return group_sums(self.groups, self.p * (u - u.max())) / self.mass

    def _solve(self, u: Vector, c: float, keep_mirror: bool) -> tuple[Vector, Vector]:
        r, mirror = self.inner._solve(self._means(u), c, keep_mirror)
        q = self.p * (r / self.mass)[self.groups]
        return q, mirror[self.groups] if keep_mirror else _EMPTY

    def response(self, u: Vector, c: float) -> tuple[Vector, Response | None]:
        from scipy.sparse import csr_array

        r, inner = self.inner.response(self._means(u), c)
        q = self.p * (r / self.mass)[self.groups]
        if inner is None:
            return q, None
        n = self.p.size
        share = self.p / self.mass[self.groups]
        aggregate = csr_array((share, (self.groups, np.arange(n))), shape=(self.mass.size, n))
        return q, Response(inner.rate, inner.pool, inner.direction, aggregate)
