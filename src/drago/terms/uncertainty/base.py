"""What every uncertainty set and every dual oracle has in common."""

from __future__ import annotations

import inspect
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import (
    check_groups,
    check_nominal,
    check_number,
    check_option,
    check_vector,
    shown,
)
from drago.terms.divergences import TINY, Divergence, as_divergence

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

EMPTY: Vector = np.empty(0)
# The sets by their short names; a user's own are wrapped by the one with this name.
_BY_NAME: dict[str, type[UncertaintySet]] = {}
USERS = "a user's own"


def price(c: float) -> float:
    """`c`, or 0 where its inverse is not a number: so small a price buys a vertex of the set."""
    return c if c >= TINY else 0.0


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
    pool: Labels
    direction: Vector | None = None
    aggregate: Any = None

    @property
    def is_one_pool(self) -> bool:
        """Whether all rows that move are in the pool 0, and are rows, not groups."""
        return self.aggregate is None and int(self.pool.max(initial=0)) == 0

    def restricted(self, index: Labels) -> Response:
        """The same for some of the rows; for groups it is about all of them."""
        if self.aggregate is not None:
            return self
        direction = None if self.direction is None else self.direction[index]
        return Response(self.rate[index], self.pool[index], direction)

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
        Positive, with sum 1. For some oracles also one entry, that of every row; see `n_rows`.
    """

    family: int | None = None
    """What compiled code knows the set by; None where it does not."""
    spectrum: Vector = EMPTY
    """The masses of a spectrum, for the family that has one."""
    _remembered: tuple[str, ...] = ()

    def __init__(self, uncertainty: Any, divergence: Divergence, p: Vector) -> None:
        self.uncertainty = uncertainty
        self.divergence = divergence
        self.p = p
        self.n_rows = p.size
        """Whoever gives one entry for all rows, to an oracle that takes it, says how many."""

    @property
    def parameter(self) -> float:
        """The number that goes with the family."""
        return 0.0

    def guess(self, c: float) -> tuple[int, float, float]:
        """What can be said of weights before the losses are known: a kind, a threshold and the cap.

        The kinds are those of ``kernels/visits.hpp``; 0 is for no guess, and NaN for a threshold
        that is not known yet.
        """
        return 0, np.nan, np.inf

    def look_near(self, c: float, tau: float) -> None:
        """Have the next search begin at this threshold, where there is one; not at NaN."""

    def weights(self, u: Vector, c: float) -> Vector:
        """``argmax over q in Q of <u, q> - c Omega(q)``."""
        q = np.empty(self.n_rows)
        self.solve_into(np.ascontiguousarray(u, dtype=np.float64), float(c), q)
        return q

    def with_mirror(self, u: Vector, c: float) -> tuple[Vector, Vector]:
        """`weights`, and their mirror coordinate."""
        q, mirror = np.empty(self.n_rows), np.empty(self.n_rows)
        self.solve_into(np.ascontiguousarray(u, dtype=np.float64), float(c), q, mirror)
        return q, mirror

    def step(self, v: Vector, nu: float, s: float, mirror: Vector) -> tuple[Vector, Vector]:
        """Proximal step from the weights whose mirror coordinate is `mirror`.

        ``argmax over q in Q of <v, q> - nu D(q || p) - s Bregman_D(q, q_prev)``

        Returns
        -------
        q, mirror : arrays of shape (n,)
            The weights and their own mirror coordinate, ``q/p`` or ``log(q/p)``; the latter stays
            finite where a weight underflows.
        """
        self._require_rows(np.asarray(v), np.asarray(mirror))
        u = v + s * mirror if s > 0 else np.array(v, dtype=np.float64)
        q, after = np.empty_like(u), np.empty_like(u)
        self.solve_into(np.ascontiguousarray(u), float(nu + s), q, after)
        return q, after

    def solve_into(self, u: Vector, c: float, q: Vector, mirror: Vector = EMPTY) -> None:
        """`weights`, written to `q`; and their mirror coordinate, where it is not empty."""
        self._require_rows(u, q, mirror if mirror.size else q)
        self._fill(u, price(c), q, mirror)

    def _fill(self, u: Vector, c: float, q: Vector, mirror: Vector) -> None:
        """`solve_into` for vectors whose lengths were compared."""
        found = np.asarray(self.uncertainty.worst_case(u, c, self.divergence, self.p), np.float64)
        if found.shape != u.shape or not np.isfinite(found).all():
            good = found.shape == u.shape
            wrong = "NaN or infinity" if good else f"an array of shape {found.shape}"
            raise ValueError(
                f"{type(self.uncertainty).__name__}.worst_case must return {u.size} finite "
                f"weights, but returned {wrong}."
            )
        q[:] = found
        self._mirror(q, mirror)

    def response(
        self, u: Vector, c: float, q: Vector | None = None
    ) -> tuple[Vector, Response | None]:
        """The weights and their derivative; None where it is not known or does not exist.

        Weights `q` that are known already save the search where the derivative needs no more.
        """
        u = np.ascontiguousarray(u, dtype=np.float64)
        self._require_rows(u, u if q is None else q)
        return self._respond(u, price(float(c)), q)

    def _respond(self, u: Vector, c: float, q: Vector | None) -> tuple[Vector, Response | None]:
        """`response` for vectors whose lengths were compared."""
        return self.weights(u, c) if q is None else q, None

    @property
    def memory(self) -> dict[str, float]:
        """What the next search starts from; with it a solve can be resumed to the last bit."""
        return {name: float(getattr(self, name)) for name in self._remembered}

    @memory.setter
    def memory(self, values: dict[str, float]) -> None:
        for name in self._remembered:
            setattr(self, name, float(values[name]))

    def _require_rows(self, *vectors: Vector) -> None:
        """An error where a vector is not as long as there are rows: kernels would read beyond."""
        shape = (self.n_rows,)
        for vector in vectors:
            if vector.shape != shape:
                raise ValueError(
                    f"vectors must have one entry per row, shape {shape}, but one of shape "
                    f"{vector.shape} was given."
                )

    def _mirror(self, q: Vector, mirror: Vector) -> None:
        if mirror.size:
            self.divergence._mirror(q, self.p, out=mirror)

    def _rate(self, q: Vector, c: float) -> Vector:
        """How fast each free weight grows with its loss."""
        return np.broadcast_to(self.divergence._rate(q, self.p), q.shape) / c


class UncertaintySet:
    """Base of the sets: parameters, oracle and bounds."""

    short_name: str = ""
    """What a set is called in place of an object."""

    own_divergence: str | None = None
    """The one divergence that a ball works with; None where both do."""
    is_users = False
    """Whether a user's own code takes part in the oracle."""
    is_capped = False
    """Whether it is ``0 <= q <= cap p`` and no more: a `CVaR` or the simplex."""
    is_spectral = False
    """Whether it is given by a spectrum."""
    needs_groups = False
    """Whether it is about groups of rows."""
    tail_share: float | None = None
    """Of a `CVaR`: the least share of the rows, by nominal weight, that can carry all weight."""
    can_check = True
    """Whether `violation` can tell weights of the set from others."""

    def auto_cost(self, has_baseline: bool) -> float:
        """What the shift cost "auto" is, in units of the constant model's mean loss."""
        return 0.1

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_of_problem"):
            raise AttributeError(
                f"this {type(self).__name__} belongs to a problem, which does not change: "
                "make a new problem with another set."
            )
        super().__setattr__(name, value)

    def __init_subclass__(cls) -> None:
        if "short_name" in cls.__dict__:
            _BY_NAME[cls.short_name] = cls

    def lock(self) -> None:
        """Check, and refuse all changes from now on."""
        self._check()
        for value in list(self.__dict__.values()):
            if isinstance(value, UncertaintySet):
                value.lock()
        self.__dict__["_of_problem"] = True

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
                if rest and isinstance(inner, str):
                    inner = as_uncertainty(inner)
                    setattr(self, name, inner)
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

    @property
    def ungrouped(self) -> UncertaintySet:
        """The set itself; of sets over groups, the one that their masses lie in."""
        return self

    @property
    def label(self) -> str:
        """The set in a legend: "CVaR(0.1)"; "mean" where it leaves no choice."""
        if self.tail_share == 1:
            return "mean"
        values = self.get_params(deep=False).values()
        inside = ", ".join(f"{value:g}" for value in values if isinstance(value, numbers.Real))
        return f"{type(self).__name__}({inside})" if inside else type(self).__name__

    @property
    def kind(self) -> str:
        """What decides which compiled code the oracle runs."""
        return type(self).__name__

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
        oracle = self.oracle(p, divergence)
        u = check_vector("u", u, oracle.n_rows)
        return oracle.weights(u, check_number("c", c, low=0))

    def oracle(
        self,
        p: npt.ArrayLike,
        divergence: Divergence | str = "auto",
        groups: Any = None,
    ) -> DualOracle:
        """The oracle for the nominal weights `p`."""
        if "_of_problem" not in self.__dict__:
            self._check()
        nominal, labels = _rows(p, groups)
        return self._oracle(nominal, self.match(divergence), labels)

    def match(self, divergence: Divergence | str) -> Divergence:
        """The divergence to use with this set, or a refusal."""
        found = as_divergence(divergence, self.own_divergence or "chi2")
        if self.own_divergence not in (None, found.name):
            raise ValueError(
                f"{type(self).__name__} works with its own divergence, {self.own_divergence!r}, "
                f"but divergence={found.name!r} was given; leave divergence='auto'."
            )
        return found

    def _oracle(self, p: Vector, divergence: Divergence, groups: Labels | None) -> DualOracle:
        raise NotImplementedError  # pragma: no cover

    def max_ratios(self, p: npt.ArrayLike, groups: Any = None) -> Vector:
        """For each row, the largest ``q_i / p_i`` over the set."""
        return self._max_ratios(*_rows(p, groups))

    def q_max(self, p: npt.ArrayLike, groups: Any = None) -> float:
        """The largest weight that a row can get."""
        return self._q_max(*_rows(p, groups))

    def kappa_q(self, p: npt.ArrayLike, groups: Any = None) -> float:
        """The largest ``q_i / p_i``."""
        return float(self.max_ratios(p, groups).max())

    def violation(self, q: npt.ArrayLike, p: npt.ArrayLike, groups: Any = None) -> float:
        """How far `q` is from the set, in mass: the most that a constraint is violated by.

        Bounds on single rows count together: a million tiny excesses are not tiny.
        """
        nominal, labels = _rows(p, groups)
        return self._violation(check_vector("q", q, nominal.size), nominal, labels)

    # What solvers call: the vectors of a problem were checked at its door.

    def _max_ratios(self, p: Vector, groups: Labels | None) -> Vector:
        raise NotImplementedError  # pragma: no cover

    def _q_max(self, p: Vector, groups: Labels | None) -> float:
        return float((p * self._max_ratios(p, groups)).max())

    def _violation(self, q: Vector, p: Vector, groups: Labels | None) -> float:
        lacking = 0.0 if q.min() >= 0.0 else -float(np.minimum(q, 0.0).sum())
        return max(0.0, abs(float(q.sum()) - 1.0), lacking, self._excess(q, p, groups))

    def _excess(self, q: Vector, p: Vector, groups: Labels | None) -> float:
        raise NotImplementedError  # pragma: no cover


def short_names() -> list[str]:
    """The names that stand for sets, "cvar" first."""
    return sorted(set(_BY_NAME) - {USERS}, key=lambda name: (name != "cvar", name))


def as_uncertainty(uncertainty: Any) -> UncertaintySet:
    """A set from an object, a short name or a user's own object."""
    names = short_names()
    if isinstance(uncertainty, str):
        return _BY_NAME[check_option("uncertainty", uncertainty, names)]()
    if isinstance(uncertainty, UncertaintySet):
        return uncertainty
    missing = [name for name in ("worst_case", "q_max") if not hasattr(uncertainty, name)]
    if isinstance(uncertainty, type) or missing:
        raise TypeError(
            "uncertainty must be a set such as CVaR(0.1), one of "
            f"{', '.join(map(repr, names))}, or an object with worst_case(u, c, divergence, p) "
            f"and q_max(p), but {shown(uncertainty)} was given."
        )
    return _BY_NAME[USERS](uncertainty)  # type: ignore[call-arg]


def _rows(p: npt.ArrayLike, groups: Any) -> tuple[Vector, Labels | None]:
    """Nominal weights and, where there are some, the groups of as many rows."""
    nominal = check_nominal(p)
    return nominal, None if groups is None else check_groups(groups, nominal.size)
