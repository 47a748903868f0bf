"""Many classes: room for a point, and the minimum for fixed weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
    at_once: int = 4
    """Iterations after which it is looked at whether there is use in more."""
    least: int = 16
    """And after which their pace can be told,"""
    faster: float = 2.0
    """which may become so many times as fast as pairs are gathered."""
    enough: float = 0.9
    """They end where what was gained and what is left are this share of what may be gained."""
    full: float = 0.5
    """The directions of the features are found where that takes this share of the products with
    the features in as many iterations as there are pairs, or less."""


_RULE = _DescentRule()


def both_ways(directions: Matrix | None) -> tuple[Matrix, Matrix]:
    """A basis and its transpose, as kernels take them; empty for the standard one."""
    if directions is None:
        return NO_MATRIX, NO_MATRIX
    return np.ascontiguousarray(directions), np.ascontiguousarray(directions.T)


def new_point(n: int, k: int) -> tuple[Vector, Matrix, Vector]:
    """Room for losses, slopes and weights."""
    return np.empty(n), np.empty((n, k)), np.empty(n)


def class_minimum(
    X: Matrix,
    y: Labels,
    p: Vector,
    mu: float,
    start: tuple[Matrix, Vector],
    intercept: bool,
    wanted: float,
    room: float,
    most: int,
    is_patient: bool = True,
) -> tuple[Matrix, Vector, int]:
    """Near the minimum of ``sum_i p_i l_i + (mu/2) ||w||^2``, from a start; and the iterations.

    Parameters
    ----------
    wanted : float
        What ``||gradient||^2 / (2 mu)`` is to fall to.
    room : float
        Where the objective falls by more than that there is no use in the minimum; and none in more
        steps where they would not lead there.
    most : int
        Iterations at most.
    is_patient : bool
        Otherwise it is given up as soon as their pace tells that there would have to be more.
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
    size = theta.size
    here, there = new_point(n, k), new_point(n, k)
    pairs = np.empty((_RULE.memory, size)), np.empty((_RULE.memory, size))
    more = np.empty(size), *pairs

    def weights(losses: Vector, nu: float, to: Vector) -> None:
        to[:] = p

    settings = (False, intercept, 0.0, 1.0, mu, mean, squares, *basis)
    given = (X, y, np.empty(0), p, *settings, theta, np.empty(size))
    steps = (False, False, weights, None)

    def call(count: int, following: int, *goal: object) -> tuple[Any, ...]:
        nonlocal here, there
        args = (*given, *here, *there, *more, count, following, *goal, *steps)
        found: tuple[Any, ...] = kernels.class_descend(*args)
        if found[9]:
            here, there = there, here
        return found

    found = call(0, 0, 0.0, np.nan, True, 0, 0.0, 0.0, 0.0)
    start_value = value = found[2]
    start_rest = rest = found[4]
    done = state = count = following = 0
    while state == 0 and done < most and start_value - value <= room:
        if start_value - value + rest <= _RULE.enough * room < math.inf:
            break
        if done >= _RULE.least and not is_patient:
            fallen = math.log(max(start_rest / max(rest, 1e-300), 1.0 + 1e-9))
            left = _RULE.faster * (most - done)
            if done * math.log(max(rest / max(wanted, 1e-300), 1.0)) > left * fallen:
                break
        # Its share of what was gained over a reference that lies 1 above the start.
        at_once = min(_RULE.at_once, most - done)
        goal = (value, np.nan, False, at_once, start_value + 1.0, 0.0, wanted)
        found = call(count, following, *goal)
        done, value, rest, (count, following, state) = done + found[0], *found[2:5:2], found[6:9]
    w = theta[: d * k].reshape(d, k)
    return w, theta[d * k :] - mean @ w if intercept else np.zeros(k), int(done)
