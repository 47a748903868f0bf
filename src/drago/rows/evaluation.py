"""What a visit to the rows yields."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class NonFiniteLossError(ArithmeticError, ValueError):
    """A loss or its derivative came out as NaN or infinite."""


class Evaluation(NamedTuple):
    """What one visit to the data at ``(w, b)`` yields.

    Of rows that were not read, because they provably have no weight, the losses and slopes are
    bounds: theirs are not greater.
    """

    w: Matrix
    b: Vector
    raw: Any
    losses: Any
    dlosses: Any
    share: float = 1.0
    """The share of the rows that were read."""

    @property
    def is_whole(self) -> bool:
        """Whether all rows were read."""
        return self.share == 1.0


class Gradient(NamedTuple):
    """``X' (q s)`` and ``q' s``, the gradient of ``sum_i q_i l_i`` in w and b."""

    w: Matrix
    b: Vector


class Visit(NamedTuple):
    """The losses at a point, the weights of an oracle for them, and the gradient with these."""

    evaluation: Evaluation
    q: Any
    gradient: Gradient
