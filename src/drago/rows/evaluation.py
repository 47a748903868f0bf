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
    """What one visit to the data at ``(w, b)`` yields."""

    w: Matrix
    b: Vector
    raw: Any
    losses: Any
    dlosses: Any


class Gradient(NamedTuple):
    """``X' (q s)`` and ``q' s``, the gradient of ``sum_i q_i l_i`` in w and b."""

    w: Matrix
    b: Vector


class Visit(NamedTuple):
    """The losses at a point, the weights of an oracle for them, and the gradient with these."""

    evaluation: Evaluation
    q: Any
    gradient: Gradient
