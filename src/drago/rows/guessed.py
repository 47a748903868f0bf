"""What is left of a gradient after a visit with guessed weights, and which rows it needs.

The same as ``gradient_after`` in ``kernels/visits.hpp``, for rows whose X is not there any more:
``sum q_i s_i x_i = a first + b second + sum rest_i s_i x_i`` with the sums of the visit. It says
which rows have a rest, so that no others are read again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# The kinds of a guess.
_CHI2, _KL = 1, 2
# Rows at a time: temporaries stay in the cache.
_FEW = 1 << 15
# As in the kernel: rows that are enough to tell how weights are combined, the most that combined
# weights may sum to, and units in the last place that rounding may leave.
_ENOUGH, _HEAVIEST, _ROUNDINGS = 256, 8.0, 64 * np.finfo(float).eps


class Rest(NamedTuple):
    """``a first + b second``, the rows that have a rest, and their ``rest_i s_i``."""

    a: float
    b: float
    rows: npt.NDArray[np.int64]
    values: Vector


def rest_after(
    guess: Any, masses: tuple[float, float], p: Vector, q: Vector, losses: Vector, slopes: Vector
) -> Rest:
    """What weights `q` leave of a visit with a guess, which found these masses."""
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = _combined(guess, masses, p, q, losses)
        index, values = [], []
        for start in range(0, q.size, _FEW):
            some = slice(start, start + _FEW)
            first, second = _weights(guess, p[some], losses[some])
            rest = q[some].copy()
            rest -= a * first if a != 0.0 else 0.0
            rest -= b * second if b != 0.0 else 0.0
            here = np.flatnonzero(np.abs(rest) > _ROUNDINGS * (q[some] + p[some]))
            found = rest[here] * slopes[some][here]
            there = np.flatnonzero(found)
            index.append(start + here[there])
            values.append(found[there])
    return Rest(a, b, np.concatenate(index), np.concatenate(values))


def nearest(guess: Any, losses: Vector, count: int) -> npt.NDArray[np.int64]:
    """Rows whose weights are the first to be another combination where the guess is not right.

    Those nearest to the thresholds at which a weight reaches 0 or the cap, in ascending order.
    """
    if guess.kind == _CHI2:
        edges = [guess.tau, guess.tau + guess.nu * guess.cap]
    else:
        edges = [guess.tau + guess.nu * float(np.log(guess.cap))]
    away = [np.abs(losses - edge) for edge in edges if np.isfinite(edge)]
    if not away or count == 0:
        return np.empty(0, dtype=np.int64)
    distance = np.minimum.reduce(away)
    if count >= losses.size:
        return np.arange(losses.size)
    return np.sort(np.argpartition(distance, count)[:count])


def _weights(guess: Any, p: Vector, losses: Vector) -> tuple[Vector, Vector]:
    x = (losses - guess.tau) * (1.0 / guess.nu)
    if guess.kind == _CHI2:
        free = (x > 0.0) & (x < guess.cap)
        return p * np.minimum(np.maximum(x, 0.0), guess.cap), p * free
    ratio = np.exp(np.minimum(x, 709.0))
    below = ratio < guess.cap
    return np.where(below, p * ratio, 0.0), np.where(below, 0.0, p * guess.cap)


def _combined(
    guess: Any, masses: tuple[float, float], p: Vector, q: Vector, losses: Vector
) -> tuple[float, float]:
    """How the weights follow from the guessed ones: from rows that are free in both."""
    is_chi2 = guess.kind == _CHI2
    over, under, count, start = 0.0, 0.0, 0, 0
    while start < q.size and count < _ENOUGH:
        some = slice(start, start + _FEW)
        first, second = _weights(guess, p[some], losses[some])
        both = (q[some] > 0.0) & (q[some] < p[some] * guess.cap)
        both &= (second if is_chi2 else first) > 0.0
        over += float((q[some] - first if is_chi2 else q[some])[both].sum())
        under += float((p[some] if is_chi2 else first)[both].sum())
        count, start = count + int(np.count_nonzero(both)), start + _FEW
    a, b = 1.0, 0.0 if is_chi2 else 1.0
    if under > 0.0:
        a, b = (a, over / under) if is_chi2 else (over / under, b)
    return (a, b) if a * masses[0] + abs(b) * masses[1] <= _HEAVIEST else (0.0, 0.0)
