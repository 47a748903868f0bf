"""Uncertainty sets: which reweightings ``q`` of the rows the model has to withstand.

All sets are closed and convex, contain the nominal weights ``p`` and lie in the simplex. They are
given by a level, never by an array of length n, so they survive a change of the data (clones,
cross-validation). Their parameters are read and changed by `get_params` and `set_params`, as
scikit-learn expects.

A user's own set is any object with two methods::

    worst_case(u, c, divergence, p)   # argmax over q in Q of <u, q> - c Omega(q)
    q_max(p)                          # the largest weight that a row can get
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_nominal, check_number, check_option, check_vector, shown
from drago.divergences import Divergence, as_divergence
from drago.oracles import (
    BallOracle,
    CappedOracle,
    DualOracle,
    GroupedOracle,
    SpectralOracle,
    group_sums,
)

Vector = npt.NDArray[np.float64]


class UncertaintySet:
    """Base of the sets: parameters, oracle and bounds."""

    own_divergence: str | None = None
    """The one divergence that a ball works with; None where both do."""

    @classmethod
    def _names(cls) -> list[str]:
        return list(inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; with `deep`, an inner set's as ``inner__name``."""
        params: dict[str, Any] = {name: getattr(self, name) for name in self._names()}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, UncertaintySet):
                    inner = value.get_params()
                    params.update({f"{name}__{key}": item for key, item in inner.items()})
        return params

    def set_params(self, **params: Any) -> UncertaintySet:
        """Change parameters by name and return the set."""
        before = dict(self.__dict__)
        try:
            for key, value in params.items():
                name, _, rest = key.partition("__")
                if name not in self._names():
                    raise ValueError(
                        f"{type(self).__name__} has no parameter {name!r}; it has {self._names()}."
                    )
                inner = getattr(self, name)
                if rest and not hasattr(inner, "set_params"):
                    raise ValueError(
                        f"{key} cannot be set because {name}={inner!r} is not a set with "
                        f"parameters; give {name} as an object, such as CVaR({rest}=...)."
                    )
                if rest:
                    inner.set_params(**{rest: value})
                else:
                    setattr(self, name, value)
            self._check()
        except (TypeError, ValueError):
            self.__dict__.update(before)
            raise
        return self

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self.get_params(False) == other.get_params(False)

    __hash__ = None  # type: ignore[assignment]

    def _check(self) -> None:
        """Raise if a parameter is out of range."""

    def worst_case(
        self, u: npt.ArrayLike, c: float, divergence: Divergence | str, p: npt.ArrayLike
    ) -> Vector:
        """The weights ``argmax over q in Q of <u, q> - c Omega(q)``.

        Parameters
        ----------
        u : array of shape (n,)
            Losses, or the shifted vector of a proximal step.
        c : float
            Price of moving away from `p`; 0 gives a vertex of the set, where equal losses share
            in proportion to `p`.
        divergence : {"chi2", "kl"} or Divergence
        p : array of shape (n,)
            Nominal weights, positive with sum 1.

        Returns
        -------
        q : array of shape (n,)
        """
        p = check_nominal(p)
        u = check_vector("u", u, p.size)
        return self.oracle(p, divergence).weights(u, check_number("c", c, low=0))

    def oracle(
        self,
        p: Vector,
        divergence: Divergence | str = "auto",
        groups: npt.NDArray[np.int64] | None = None,
    ) -> DualOracle:
        """The oracle for the nominal weights `p`."""
        self._check()
        return self._oracle(p, self.match(divergence), groups)

    def match(self, divergence: Divergence | str) -> Divergence:
        """The divergence to use with this set, or a refusal."""
        found = as_divergence(divergence, self.own_divergence or "chi2")
        if self.own_divergence not in (None, found.name):
            raise ValueError(
                f"{type(self).__name__} works with its own divergence, {self.own_divergence!r}, "
                f"but divergence={found.name!r} was given; leave divergence='auto'."
            )
        return found

    def _oracle(
        self, p: Vector, divergence: Divergence, groups: npt.NDArray[np.int64] | None
    ) -> DualOracle:
        raise NotImplementedError  # pragma: no cover

    def max_ratios(self, p: Vector, groups: npt.NDArray[np.int64] | None = None) -> Vector:
        """For each row, the largest ``q_i / p_i`` over the set."""
        raise NotImplementedError  # pragma: no cover

    def q_max(self, p: Vector, groups: npt.NDArray[np.int64] | None = None) -> float:
        """The largest weight that a row can get."""
        return float((p * self.max_ratios(p, groups)).max())

    def kappa_q(self, p: Vector, groups: npt.NDArray[np.int64] | None = None) -> float:
        """The largest ``q_i / p_i``."""
        return float(self.max_ratios(p, groups).max())

    def violation(self, q: Vector, p: Vector, groups: npt.NDArray[np.int64] | None = None) -> float:
        """How far `q` is from the set: the largest violated constraint, 0 inside."""
        return max(0.0, abs(float(q.sum()) - 1.0), -float(q.min()), self._excess(q, p, groups))

    def _excess(self, q: Vector, p: Vector, groups: npt.NDArray[np.int64] | None) -> float:
        raise NotImplementedError  # pragma: no cover


class CVaR(UncertaintySet):
    """The mean loss of the worst share of the rows: ``0 <= q_i <= p_i / tail_fraction``.

    Parameters
    ----------
    tail_fraction : float in (0, 1]
        The share of the data, by weight, that must be served: 1 is the mean, toward 0 the maximum.
    """

    def __init__(self, tail_fraction: float = 0.1) -> None:
        self.tail_fraction = tail_fraction
        self._check()

    def _check(self) -> None:
        check_number("tail_fraction", self.tail_fraction, low=0, high=1, open_low=True)

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return CappedOracle(self, divergence, p, 1.0 / self.tail_fraction)

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        return np.minimum(1.0 / self.tail_fraction, 1.0 / p)

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        return float((q - p / self.tail_fraction).max())


class Simplex(UncertaintySet):
    """All reweightings: the single worst row, softened by the divergence alone."""

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return CappedOracle(self, divergence, p)

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        return 1.0 / p

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        return 0.0


class SpectralSet(UncertaintySet):
    """Base of the sets given by a spectrum, a nondecreasing density s on [0, 1].

    ``Q = {q : q(A) <= G(p(A)) for every set A of rows, q(all) = 1}``, ``G(x) = int_{1-x}^1 s``:
    the loss at the quantile u of the losses' distribution gets the weight s(u).
    """

    def masses(self, p: Vector) -> Vector:
        """The spectrum's mass of consecutive intervals of lengths `p`, from 0 upward."""
        raise NotImplementedError  # pragma: no cover

    def tail(self, x: Vector) -> Vector:
        """``G(x) = int_{1-x}^1 s``."""
        raise NotImplementedError  # pragma: no cover

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return SpectralOracle(self, divergence, p)

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        return self.tail(p) / p

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        # G is concave, so the worst sets A are those of the largest q/p.
        order = np.argsort(-q / p, kind="stable")
        return float((np.cumsum(q[order]) - self.tail(np.cumsum(p[order]))).max())


def _upper_ends(p: Vector) -> Vector:
    """Cumulative sums of `p`, the last one exactly 1."""
    upper = np.cumsum(p)
    return np.minimum(upper / upper[-1], 1.0)


def _normalised(masses: Vector) -> Vector:
    """What rounding of a million upper ends leaves is shared out."""
    return masses / masses.sum()


class Extremile(SpectralSet):
    """The expected maximum of `n_draws` independent draws from the losses: s(u) = r u^(r-1).

    Parameters
    ----------
    n_draws : float >= 1
        1 is the mean; need not be an integer.
    """

    def __init__(self, n_draws: float = 2.0) -> None:
        self.n_draws = n_draws
        self._check()

    def _check(self) -> None:
        check_number("n_draws", self.n_draws, low=1)

    def masses(self, p: Vector) -> Vector:
        from drago.kernels.dual_spectral import spectral_masses

        return _normalised(spectral_masses(1, float(self.n_draws), _upper_ends(p), p))

    def tail(self, x: Vector) -> Vector:
        with np.errstate(divide="ignore"):
            return -np.expm1(float(self.n_draws) * np.log1p(-np.minimum(x, 1.0)))


class ESRM(SpectralSet):
    """The exponential spectral risk measure: s(u) = g exp(-g (1 - u)) / (1 - exp(-g)).

    Parameters
    ----------
    risk_aversion : float >= 0
        The g of the formula; 0 is the mean.
    """

    def __init__(self, risk_aversion: float = 1.0) -> None:
        self.risk_aversion = risk_aversion
        self._check()

    def _check(self) -> None:
        check_number("risk_aversion", self.risk_aversion, low=0)

    def masses(self, p: Vector) -> Vector:
        from drago.kernels.dual_spectral import spectral_masses

        if self.risk_aversion == 0:
            return p / p.sum()
        return _normalised(spectral_masses(2, float(self.risk_aversion), _upper_ends(p), p))

    def tail(self, x: Vector) -> Vector:
        g = float(self.risk_aversion)
        return np.minimum(x, 1.0) if g == 0 else np.expm1(-g * np.minimum(x, 1.0)) / np.expm1(-g)


def _read(name: str, values: Any) -> Vector:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must return numbers, but returned {shown(values)}.") from error


class Spectrum(SpectralSet):
    """A spectral set from a function of one's own.

    Parameters
    ----------
    density : callable, optional
        s(u), vectorised: nonnegative, nondecreasing, with integral 1. It is integrated
        numerically (4096 panels of 8 Gauss points; a jump inside a panel costs accuracy there)
        and rescaled to the integral 1.
    integral : callable, optional
        ``S(u) = int_0^u s``, vectorised: convex, from 0 to 1. Exact; give this where it is known.
    """

    _PANELS = 4096

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
                raise ValueError(f"density must have the integral 1, but has {total:g}.")
        if steps.min() < -1e-12 or np.diff(steps).min() < -1e-9 * steps.max():
            raise ValueError(
                "a spectrum must be nonnegative and nondecreasing (larger losses never weigh less)."
            )

    def _gauss(self, low: Vector, width: Vector) -> Vector:
        assert self.density is not None
        nodes, weights = np.polynomial.legendre.leggauss(8)
        points = low[..., None] + width[..., None] * (0.5 * (nodes + 1.0))
        return 0.5 * width * (np.asarray(self.density(points)) @ weights)

    def _panel_sums(self) -> Vector:
        low = np.arange(self._PANELS) / self._PANELS
        return self._gauss(low, np.full(self._PANELS, 1.0 / self._PANELS))

    def _integral(self, x: Vector) -> Vector:
        if self.integral is not None:
            return np.asarray(self.integral(x), dtype=np.float64)
        sums = np.concatenate([[0.0], np.cumsum(self._panel_sums())])
        panel = np.minimum((x * self._PANELS).astype(np.int64), self._PANELS - 1)
        low = panel / self._PANELS
        return (sums[panel] + self._gauss(low, x - low)) / sums[-1]

    def masses(self, p: Vector) -> Vector:
        values = self._integral(_upper_ends(p))
        values[-1] = 1.0
        return _normalised(np.maximum(np.diff(values, prepend=0.0), 0.0))

    def tail(self, x: Vector) -> Vector:
        return 1.0 - self._integral(1.0 - np.minimum(x, 1.0))


class Chi2Ball(UncertaintySet):
    """All ``q`` with ``1/2 sum_i (q_i - p_i)^2 / p_i <= radius``.

    Parameters
    ----------
    radius : float >= 0
    """

    own_divergence = "chi2"

    def __init__(self, radius: float = 1.0) -> None:
        self.radius = radius
        self._check()

    def _check(self) -> None:
        check_number("radius", self.radius, low=0)

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return BallOracle(self, divergence, p, self.radius)

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        return np.minimum(p + np.sqrt(2.0 * self.radius * p * np.maximum(1.0 - p, 0.0)), 1.0) / p

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        return as_divergence("chi2").value(q, p) - self.radius


class KLBall(UncertaintySet):
    """All ``q`` with ``sum_i q_i log(q_i / p_i) <= radius``.

    Parameters
    ----------
    radius : float >= 0
    """

    own_divergence = "kl"

    def __init__(self, radius: float = 0.5) -> None:
        self.radius = radius
        self._check()

    def _check(self) -> None:
        check_number("radius", self.radius, low=0)

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return BallOracle(self, divergence, p, self.radius)

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        # The largest x of a row of mass a solves
        # a x log x + (1 - a x) log((1 - a x) / (1 - a)) = radius.
        mass, back = np.unique(p, return_inverse=True)
        low, high = np.ones_like(mass), 1.0 / mass
        for _ in range(200):
            x = 0.5 * (low + high)
            rest = np.maximum(1.0 - mass * x, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                other = np.where(rest > 0, rest * np.log(rest / (1.0 - mass)), 0.0)
            inside = mass * x * np.log(x) + other <= self.radius
            low, high = np.where(inside, x, low), np.where(inside, high, x)
        return np.where(-np.log(mass) <= self.radius, 1.0 / mass, high)[back]

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        return as_divergence("kl").value(q, p) - self.radius


class Grouped(UncertaintySet):
    """Mass moves between groups of rows only: ``q_i = p_i r_g / P_g``, ``r`` in an inner set.

    ``P_g`` is the nominal mass of group g. The labels of the rows are data, not a parameter: give
    them as ``groups=`` to `DROProblem` or to ``fit``.

    Parameters
    ----------
    inner : UncertaintySet or str
        The set for the groups' masses.
    """

    def __init__(self, inner: UncertaintySet | str = "cvar") -> None:
        self.inner = inner
        self._check()

    def _check(self) -> None:
        if isinstance(self._inner, Grouped):
            raise ValueError("Grouped takes an ungrouped inner set, but another Grouped was given.")

    @property
    def _inner(self) -> Any:
        return as_uncertainty(self.inner)

    def match(self, divergence: Divergence | str) -> Divergence:
        inner = self._inner
        return inner.match(divergence) if hasattr(inner, "match") else as_divergence(divergence)

    def _labels(self, p: Vector, groups: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
        if groups is None:
            raise ValueError(
                "Grouped needs to know the group of each row: give groups= to DROProblem or to fit."
            )
        return groups

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return GroupedOracle(self, divergence, p, self._labels(p, groups), _bindable(self._inner))

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        labels = self._labels(p, groups)
        return _bindable(self._inner).max_ratios(group_sums(labels, p))[labels]

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        labels = self._labels(p, groups)
        mass, r = group_sums(labels, p), group_sums(labels, q)
        spread = float(np.abs(q - p * (r / mass)[labels]).max())
        return max(spread, _bindable(self._inner).violation(r, mass))


class UserSet(UncertaintySet):
    """Adapter that gives a user's own set the face of the built-in ones."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return DualOracle(self.given, divergence, p)

    def max_ratios(self, p: Vector, groups: Any = None) -> Vector:
        return np.minimum(float(self.given.q_max(p)), 1.0) / p

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        # Only the set itself could tell; weights come from its own worst_case.
        return float(q.max()) - float(self.given.q_max(p))


_BY_NAME: dict[str, type[UncertaintySet]] = {
    "cvar": CVaR,
    "extremile": Extremile,
    "esrm": ESRM,
    "chi2_ball": Chi2Ball,
    "kl_ball": KLBall,
    "simplex": Simplex,
}


def _bindable(uncertainty: Any) -> UncertaintySet:
    return uncertainty if isinstance(uncertainty, UncertaintySet) else UserSet(uncertainty)


def as_uncertainty(uncertainty: Any) -> UncertaintySet:
    """A set from an object, a short name or a user's own object."""
    if isinstance(uncertainty, str):
        return _BY_NAME[check_option("uncertainty", uncertainty, _BY_NAME)]()
    if isinstance(uncertainty, UncertaintySet):
        return uncertainty
    missing = [name for name in ("worst_case", "q_max") if not hasattr(uncertainty, name)]
    if isinstance(uncertainty, type) or missing:
        raise TypeError(
            "uncertainty must be a set such as CVaR(0.1), one of "
            f"{', '.join(map(repr, _BY_NAME))}, or an object with worst_case(u, c, divergence, p) "
            f"and q_max(p), but {shown(uncertainty)} was given."
        )
    return UserSet(uncertainty)
