"""Spectral sets: weights by the rank of the loss, given by a density on [0, 1]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from drago import kernels
from drago._validation import check_number, shown
from drago.terms.divergences import Divergence
from drago.terms.uncertainty.base import EMPTY, DualOracle, Response, UncertaintySet, Vector


class SpectralSet(UncertaintySet):
    """Base of the sets given by a spectrum, a nondecreasing density s on [0, 1].

    ``Q = {q : q(A) <= G(p(A)) for every set A of rows, q(all) = 1}``, ``G(x) = int_{1-x}^1 s``:
    the loss at the quantile u of the losses' distribution gets the weight s(u).
    """

    is_spectral = True

    def masses(self, p: Vector) -> Vector:
        """The spectrum's mass of consecutive intervals of lengths `p`, from 0 upward."""
        found = self._between(_ends(p), p)
        # What a million roundings left of the sum 1 is shared out.
        return found / found.sum()

    def _between(self, ends: Vector, p: Vector) -> Vector:
        """The spectrum's mass between neighbours among `ends`, whose distances are `p`."""
        raise NotImplementedError  # pragma: no cover

    def tail(self, x: Vector) -> Vector:
        """``G(x) = int_{1-x}^1 s``."""
        raise NotImplementedError  # pragma: no cover

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return SpectralOracle(self, divergence, p)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        return self.tail(p) / p

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        # G is concave, so the worst sets A are those of the largest q/p.
        order = np.argsort(-q / p, kind="stable")
        return float((np.cumsum(q[order]) - self.tail(_ends(p[order])[1:])).max())


class Extremile(SpectralSet):
    """The expected largest of `n_draws` losses, drawn at random: ``s(u) = r u^(r-1)``.

    All rows keep some weight, and a row counts the more the larger its loss is.

    Parameters
    ----------
    n_draws : float >= 1
        The r of the formula; 1 is the mean. It need not be an integer.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=drago.Extremile(2),
    ...                            shift_cost=0.0)
    >>> problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0]))
    array([0.0625, 0.1875, 0.3125, 0.4375])
    """

    short_name = "extremile"

    def __init__(self, n_draws: float = 2.0) -> None:
        self.n_draws = n_draws
        self._check()

    def _check(self) -> None:
        check_number("n_draws", self.n_draws, low=1)

    def _between(self, ends: Vector, p: Vector) -> Vector:
        return kernels.spectral_masses(1, float(self.n_draws), ends[1:], p)

    def tail(self, x: Vector) -> Vector:
        with np.errstate(divide="ignore"):
            return -np.expm1(float(self.n_draws) * np.log1p(-np.minimum(x, 1.0)))


class ESRM(SpectralSet):
    """The exponential spectral risk: ``s(u) = g exp(-g (1 - u)) / (1 - exp(-g))``.

    All rows keep some weight, and a row counts the more the larger its loss is. ``s(u)`` is how
    many times the row counts whose loss is larger than a share u of all losses.

    Parameters
    ----------
    risk_aversion : float >= 0
        The g of the formula; 0 is the mean.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=drago.ESRM(0.4),
    ...                            shift_cost=0.0)
    >>> problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0])).round(3)
    array([0.214, 0.236, 0.261, 0.289])
    """

    short_name = "esrm"

    def __init__(self, risk_aversion: float = 1.0) -> None:
        self.risk_aversion = risk_aversion
        self._check()

    def _check(self) -> None:
        check_number("risk_aversion", self.risk_aversion, low=0)

    def _between(self, ends: Vector, p: Vector) -> Vector:
        if self.risk_aversion == 0:
            return p
        return kernels.spectral_masses(2, float(self.risk_aversion), ends[1:], p)

    def tail(self, x: Vector) -> Vector:
        g = float(self.risk_aversion)
        return np.minimum(x, 1.0) if g == 0 else np.expm1(-g * np.minimum(x, 1.0)) / np.expm1(-g)


class Spectrum(SpectralSet):
    """A spectral risk of your own: how many times a row counts, by the rank of its loss.

    Parameters
    ----------
    density : callable, optional
        s(u), vectorised: nonnegative, nondecreasing, with integral 1. It is replaced by its means
        over 65,536 panels of [0, 1], rescaled to the integral 1.
    integral : callable, optional
        ``S(u) = int_0^u s``, vectorised: convex, from 0 to 1. Exact; give this where it is known.

    Examples
    --------
    >>> import numpy as np, drago
    >>> uncertainty = drago.Spectrum(integral=lambda u: u**2)  # the same as Extremile(2)
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=uncertainty,
    ...                            shift_cost=0.0)
    >>> problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0]))
    array([0.0625, 0.1875, 0.3125, 0.4375])
    """

    _PANELS = 1 << 16

    def __init__(
        self,
        density: Callable[[Any], Any] | None = None,
        integral: Callable[[Any], Any] | None = None,
    ) -> None:
        self.density = density
        self.integral = integral
        self._check()

    def _check(self) -> None:
        if (self.density is None) == (self.integral is None):
            raise ValueError("Spectrum takes either density or integral, and exactly one of them.")
        given = self.density if self.density is not None else self.integral
        if not callable(given):
            raise TypeError(f"Spectrum takes a function, but {shown(given)} was given.")
        grid = np.linspace(0.0, 1.0, 257)
        if self.integral is not None:
            values = _read("integral", self.integral(grid))
            if values.shape != grid.shape or not np.isfinite(values).all():
                raise ValueError("integral must be vectorised and finite on [0, 1].")
            if abs(values[0]) > 1e-12 or abs(values[-1] - 1.0) > 1e-12:
                raise ValueError(
                    "integral must run from 0 to 1 on [0, 1], but runs "
                    f"from {values[0]:g} to {values[-1]:g}."
                )
            steps = np.diff(values)
        else:
            assert self.density is not None
            inside = 0.5 * (grid[1:] + grid[:-1])
            steps = _read("density", self.density(inside))
            if steps.shape != inside.shape or not np.isfinite(steps).all():
                raise ValueError("density must be vectorised and finite inside (0, 1).")
            total = self._panel_sums().sum()
            if abs(total - 1.0) > 1e-2:
                raise ValueError(
                    f"density must have the integral 1, but numerically has {total:g}; "
                    "with steep jumps, give integral= instead."
                )
        if steps.min() < -1e-12 or np.diff(steps).min() < -1e-9 * steps.max():
            raise ValueError(
                "a spectrum must be nonnegative and nondecreasing (larger losses never weigh less)."
            )

    def _panel_sums(self) -> Vector:
        """The integral of the density over each panel, by Gauss points; the last one is kept."""
        assert self.density is not None
        if self.__dict__.get("_of_density") is not self.density:
            nodes, weights = np.polynomial.legendre.leggauss(4)
            low = np.arange(self._PANELS)[:, None] / self._PANELS
            values = np.asarray(self.density(low + 0.5 * (nodes + 1.0) / self._PANELS))
            self.__dict__["_of_density"] = self.density
            self.__dict__["_of_sums"] = values @ weights * (0.5 / self._PANELS)
        return self.__dict__["_of_sums"]

    def _integral(self, x: Vector) -> Vector:
        if self.integral is not None:
            return np.asarray(self.integral(x), dtype=np.float64)
        # Linear inside a panel: convex, as an integral of a nondecreasing density has to be.
        sums = np.concatenate([[0.0], np.cumsum(self._panel_sums())])
        return np.interp(x, np.linspace(0.0, 1.0, self._PANELS + 1), sums / sums[-1])

    def _between(self, ends: Vector, p: Vector) -> Vector:
        values = self._integral(ends)
        # Exact at the ends, which a function of one's own need not be.
        values[ends == 0.0], values[ends == 1.0] = 0.0, 1.0
        return _rising(np.maximum(np.diff(values), 0.0), p)

    def tail(self, x: Vector) -> Vector:
        return 1.0 - self._integral(1.0 - np.minimum(x, 1.0))


def _ends(p: Vector) -> Vector:
    """0 and the cumulative sums of `p`, the last one exactly 1."""
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"p must be a vector with an entry per row, but has shape {p.shape}.")
    if p.min() == p.max():  # a sum of equal numbers drifts
        return np.arange(p.size + 1) / p.size
    ends = np.zeros(p.size + 1)
    np.cumsum(p, out=ends[1:])
    return np.minimum(ends / ends[-1], 1.0)


def _rising(masses: Vector, p: Vector) -> Vector:
    """Masses whose ratio to `p` does not fall, as it must be of a spectrum.

    Differences of an integral have rounding errors that are large for small `p`, and rows of the
    largest ratios gather them: neighbours out of order share their mass.
    """
    live = p > 0.0
    if not live.all():  # rows without weight have no mass
        found = np.zeros(p.size)
        found[live] = _rising(masses[live], p[live])
        return found
    n, falls = masses.size, masses[1:] * p[:-1] < masses[:-1] * p[1:]
    if not falls.any():
        return masses
    p, masses, (ratio, one, two) = p[::-1].copy(), masses[::-1].copy(), np.empty((3, n))
    kernels.spectral_chi2(np.zeros(n), p, masses, 1.0, ratio, one, two, np.empty(n + 1, np.int64))
    return (ratio * p)[::-1].copy()


def _read(name: str, values: Any) -> Vector:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must return numbers, but returned {shown(values)}.") from error


class SpectralOracle(DualOracle):
    """``q(A) <= G(p(A))``: the sets given by a spectrum."""

    family = 2

    def __init__(self, uncertainty: Any, divergence: Divergence, p: Vector) -> None:
        super().__init__(uncertainty, divergence, p)
        self._uniform = bool(p.min() == p.max())
        self._sigma = uncertainty.masses(p) if self._uniform else None
        self._work: list[Vector] = []

    @property
    def spectrum(self) -> Vector:  # type: ignore[override]
        return self.uncertainty.masses(self.p)

    def _fill(self, u: Vector, c: float, q: Vector, mirror: Vector) -> None:
        self._pools(u, c, q, mirror)

    def _pools(self, u: Vector, c: float, q: Vector, mirror: Vector) -> tuple[Any, Any]:
        """Fill the weights and their mirror; the order of ``u``, the first place of each pool."""
        n = u.shape[0]
        if not self._work:  # kept: fresh memory costs more than the sweep
            self._work = [np.empty(n) for _ in range(4)]
            self._first = np.empty(n + 1, dtype=np.int64)
        (sorted_u, ratio, one, two), first = self._work, self._first
        order = np.argsort(u)
        np.take(u, order, out=sorted_u, mode="clip")
        p, sigma = self.p, self._sigma
        if sigma is None:
            p = p[order]
            sigma = self.uncertainty.masses(p)
        has_log = False
        if c == 0:
            count = kernels.spectral_vertex(sorted_u, p, sigma, ratio, first)
        elif self.divergence.is_chi2:
            count = kernels.spectral_chi2(sorted_u, p, sigma, c, ratio, one, two, first)
        else:
            has_log = mirror.size > 0
            sorted_log = two if has_log else EMPTY
            count = kernels.spectral_kl(sorted_u, p, sigma, c, ratio, one, sorted_log, first)
            if has_log:
                mirror[order] = sorted_log
        kernels.scatter(ratio, p, order, q)
        if not has_log:
            self._mirror(q, mirror)
        return order, first[:count]

    def _respond(self, u: Vector, c: float, q: Vector | None) -> tuple[Vector, Response | None]:
        q = np.empty_like(u)
        order, first = self._pools(u, c, q, EMPTY)
        if c == 0:
            return q, None
        starts = np.zeros(u.shape[0], dtype=np.int64)
        starts[first] = 1
        pool = np.empty_like(starts)
        pool[order] = np.cumsum(starts) - 1
        return q, Response(self._rate(q, c), pool)
