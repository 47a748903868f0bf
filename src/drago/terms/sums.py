"""Sums over the rows of one output: of two classes, and of slopes by their sign."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import vector_threads

Vector = npt.NDArray[np.float64]


def binary_masses(y: Vector, weights: Vector) -> tuple[float, float, float]:
    """The sums of weights over the labels 0 and 1, and how many labels are neither."""
    try:
        return kernels.binary_masses(y, weights, vector_threads(y.size))
    except ImportError:  # on their way to where no kernels are needed
        is_zero, is_one = y == 0.0, y == 1.0
        n_others = y.size - np.count_nonzero(is_zero | is_one)
        return float(weights[is_zero].sum()), float(weights[is_one].sum()), float(n_others)


def signed_sums(slopes: Vector, q: Vector) -> Vector:
    """The weighted sums of the positive and of the negative slopes."""
    up = np.dot(q, np.maximum(slopes, 0.0))
    return np.array([up, np.dot(q, np.maximum(-slopes, 0.0))])


def shrink_heavier(slopes: Vector, sums: Vector) -> tuple[Vector, Vector]:
    """Scale the slopes of the sign with more q-mass until the weighted sum is 0."""
    up, down = float(sums[0]), float(sums[1])
    scale = np.ones_like(slopes)
    if up > down:
        scale[slopes > 0] = down / up
    elif down > up:
        scale[slopes < 0] = up / down
    return slopes * scale, scale
