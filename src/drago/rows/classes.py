"""Many classes: room for a point, and the minimum for fixed weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago import kernels

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

NO_MATRIX = np.empty((0, 0))


@dataclass(frozen=True)
class _DescentRule:
    """How the minimum for fixed weights is looked for."""

    floor: float = 1e-3
    """The least curvature of a direction of the features, as a share of the greatest."""
    memory: int = 40
    """Pairs of steps and changes of the gradient that are kept."""
    full: float = 0.5
    """The directions of the features are found where that takes this share of the products with
    the features in as many iterations as there are pairs, or less."""


_RULE = _DescentRule()


def both_ways(directions: Matrix | None) -> tuple[Matrix, Matrix]:
    """A basis and its transpose, as kernels take them; empty for the standard one."""
    if directions is None:
        return NO_MATRIX, NO_MATRIX
    return np.ascontiguousarray(directions), np.ascontiguousarray(directions.T)


def new_point(n: int, k: int) -> tuple[Matrix, Vector, Matrix, Vector]:
    """Room for raw predictions, losses, slopes and weights."""
    return np.empty((n, k)), np.empty(n), np.empty((n, k)), np.empty(n)


def class_minimum(
    X: Matrix,
    y: Labels,
    p: Vector,
    curvature: float,
    mu: float,
    start: tuple[Matrix, Vector],
    intercept: bool,
    wanted: float,
    most: int,
) -> tuple[Matrix, Vector, int]:
    """Near the minimum of ``sum_i p_i l_i + (mu/2) ||w||^2``, from a start; and the iterations.

    Parameters
    ----------
    curvature : float
        About that of the weighted losses in the raw predictions.
    wanted : float
        What ``||gradient||^2 / (2 mu)`` is to fall to.
    most : int
        Iterations at most.
    """
    n, d = X.shape
    w, b = start
    k = w.shape[1]
    mean = p @ X if intercept else np.zeros(d)
    if float(d) ** 3 <= _RULE.full * _RULE.memory * float(n * d * k):
        gram = (X * p[:, None]).T @ X - np.outer(mean, mean)
        squares, directions = np.linalg.eigh(gram)
        basis = both_ways(directions)
    else:
        squares, basis = p @ X**2 - mean**2, both_ways(None)
    squares = np.maximum(squares, _RULE.floor * max(float(squares.max()), 1e-300))
    theta = w.reshape(-1).copy()
    if intercept:
        theta = np.append(theta, b + mean @ w)
    size, pairs = theta.size, _RULE.memory
    room = (theta, np.empty(size), *new_point(n, k), *new_point(n, k), np.empty((n, k)))
    pairs_room = np.empty(size), np.empty((pairs, size)), np.empty((pairs, size))

    def weights(losses: Vector, nu: float, to: Vector) -> None:
        to[:] = p

    settings = (False, intercept, 0.0, 1.0, mu, mean, curvature * squares + mu, *basis, curvature)
    given = (X, y, np.empty(0), p, *settings, *room, *pairs_room, 0, 0)
    steps = (False, False, weights, None)
    value = kernels.class_descend(*given, 0.0, np.nan, True, 0, 0.0, 0.0, 0.0, *steps)[2]
    # Its share of what was gained over a reference that lies 1 above the start.
    goal = (value, np.nan, False, most, value + 1.0, 0.0, wanted)
    done = kernels.class_descend(*given, *goal, *steps)[0]
    w = theta[: d * k].reshape(d, k)
    return w, theta[d * k :] - mean @ w if intercept else np.zeros(k), int(done)
