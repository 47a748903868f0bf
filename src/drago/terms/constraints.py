"""The set W that the coefficients are confined to (never the intercept).

Coefficients come as an array of any shape; a set treats it as one long vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_number, numeric, shown

Array = npt.NDArray[np.float64]


class Constraint:
    """Base of the sets W, with the answers of all of space."""

    has_bounds = False
    """Whether W is known to be a box, all of space included: `bounds` are not None."""
    is_everything = False
    """Whether there is no constraint."""
    radius: float | None = None
    """The radius where W is a ball around 0, otherwise None."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def project(self, w: Array) -> Array:
        """The nearest point of W."""
        return w

    def support(self, direction: Array) -> float:
        """``max over w in W of <direction, w>``, possibly infinite."""
        return 0.0 if not direction.any() else np.inf

    def bounds(self, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Lower and upper bounds where W is a box (all of space included), otherwise None."""
        return np.broadcast_to(-np.inf, shape), np.broadcast_to(np.inf, shape)

    def absorb(self, w: Array, gradient: Array, h: Array) -> tuple[Array, float, float]:
        """Let the multipliers of W take their part of a gradient at `w`.

        For every ``w'`` in W, ``<gradient, w' - w> >= <rest, w' - w> + (extra/2) ||w' - w||^2 -
        cost`` holds with the returned values, so that a bound computed for ``rest`` and the
        additional regularisation ``extra`` over all of space, plus ``cost``, holds over W.

        Parameters
        ----------
        w, gradient : arrays of the same shape
        h : array of that shape
            A guess of the curvature along each coordinate; decides what to absorb, not whether
            the result is right.

        Returns
        -------
        rest : array
        extra : float
        cost : float
        """
        return gradient, 0.0, 0.0

    def contains(self, w: Array) -> bool:
        """Whether `w` lies in W, up to rounding."""
        return bool(np.abs(self.project(w) - w).max(initial=0.0) <= 1e-9 * (1 + np.abs(w).max()))


class Everything(Constraint):
    """All of space: no constraint."""

    has_bounds = is_everything = True

    def contains(self, w: Array) -> bool:
        return True


class Box(Constraint):
    """``low <= w <= high``, entry by entry.

    Parameters
    ----------
    low, high : float or array of shape (n_features,)

    Examples
    --------
    >>> import numpy as np, drago
    >>> drago.Box(0.0, [1.0, 2.0]).project(np.array([-1.0, 5.0]))
    array([0., 2.])
    """

    has_bounds = True

    def __init__(self, low: Any = -np.inf, high: Any = np.inf) -> None:
        self.low = np.array(numeric("low", low), dtype=np.float64)
        self.high = np.array(numeric("high", high), dtype=np.float64)
        if np.isnan(self.low).any() or np.isnan(self.high).any():
            raise ValueError("low and high must not be NaN.")
        if (self.low == np.inf).any() or (self.high == -np.inf).any():
            raise ValueError("low must be below inf and high above -inf, or the box is empty.")
        try:
            crossed = (self.low > self.high).any()
        except ValueError as error:
            raise ValueError(
                f"low and high must have matching shapes, but have {self.low.shape} "
                f"and {self.high.shape}."
            ) from error
        if crossed:
            raise ValueError(
                f"low must not exceed high, but low={shown(low)} and high={shown(high)}."
            )

    def __repr__(self) -> str:
        return f"Box(low={shown(self.low.tolist())}, high={shown(self.high.tolist())})"

    def _wide(self, bound: Array, shape: tuple[int, ...]) -> Array:
        # Coefficients are (n_features,) or (n_features, n_outputs).
        bound = bound[:, None] if bound.ndim == 1 and len(shape) == 2 else bound
        try:
            return np.broadcast_to(bound, shape)
        except ValueError as error:
            raise ValueError(
                f"the bounds of Box have shape {self.low.shape} and {self.high.shape}, but there "
                f"are {shape[0]} features."
            ) from error

    def bounds(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        return self._wide(self.low, shape), self._wide(self.high, shape)

    def project(self, w: Array) -> Array:
        low, high = self.bounds(w.shape)
        return np.clip(w, low, high)

    def support(self, direction: Array) -> float:
        low, high = self.bounds(direction.shape)
        end = np.where(direction > 0, high, low)
        with np.errstate(invalid="ignore"):
            return float(np.where(direction == 0, 0.0, direction * end).sum())

    def absorb(self, w: Array, gradient: Array, h: Array) -> tuple[Array, float, float]:
        low, high = self.bounds(w.shape)
        room = np.where(gradient > 0, w - low, high - w)  # distance to the bound it pushes to
        with np.errstate(invalid="ignore"):
            price = np.where(gradient == 0, 0.0, np.abs(gradient) * np.maximum(room, 0.0))
        take = price < 0.5 * gradient * gradient / h
        return np.where(take, 0.0, gradient), 0.0, float(price[take].sum())


class NonNegative(Box):
    """``w >= 0``.

    Examples
    --------
    >>> import numpy as np, drago
    >>> X, y = np.eye(2), np.array([1.0, -1.0])
    >>> model = drago.DRORegressor(constraint=drago.NonNegative(), fit_intercept=False)
    >>> float(model.fit(X, y).coef_[1])
    0.0
    """

    def __init__(self) -> None:
        super().__init__(0.0, np.inf)

    def __repr__(self) -> str:
        return "NonNegative()"


class L2Ball(Constraint):
    """``||w||_2 <= radius`` (the Frobenius norm for several outputs).

    Parameters
    ----------
    radius : float > 0

    Examples
    --------
    >>> import numpy as np, drago
    >>> drago.L2Ball(1.0).project(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """

    radius: float

    def __init__(self, radius: float) -> None:
        self.radius = check_number("radius", radius, low=0, open_low=True)

    def __repr__(self) -> str:
        return f"L2Ball(radius={self.radius:g})"

    def bounds(self, shape: tuple[int, ...]) -> None:
        return None

    def project(self, w: Array) -> Array:
        norm = float(np.linalg.norm(w))
        return w if norm <= self.radius else w * (self.radius / norm)

    def support(self, direction: Array) -> float:
        return self.radius * float(np.linalg.norm(direction))

    def absorb(self, w: Array, gradient: Array, h: Array) -> tuple[Array, float, float]:
        # <gradient, w'-w> = <gradient + m w, w'-w> + (m/2)||w'-w||^2 - (m/2)(||w'||^2 - ||w||^2)
        square = float(np.vdot(w, w))
        if square == 0.0:
            return gradient, 0.0, 0.0
        multiplier = max(0.0, -float(np.vdot(gradient, w)) / square)
        cost = 0.5 * multiplier * max(self.radius**2 - square, 0.0)
        if cost >= float((0.5 * gradient * gradient / h).sum()):
            return gradient, 0.0, 0.0
        return gradient + multiplier * w, multiplier, cost


def as_constraint(constraint: Any) -> Constraint:
    """A constraint from an object; None is all of space."""
    if constraint is None:
        return Everything()
    if isinstance(constraint, Constraint):
        return constraint
    raise TypeError(
        "constraint must be None, L2Ball(radius), Box(low, high) or NonNegative(), "
        f"but {shown(constraint)} was given."
    )
