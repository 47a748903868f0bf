"""A vector of the rows in ascending order, in bounded memory.

Its numbers are cut into ranges that hold no more rows than there is memory for. A range at a time
is gathered from all rows, which are read from end to end, and sorted. Where the cuts are is counted
first, in the order of the floating-point numbers themselves, so that no distribution of them, and
no number of ties, is too skewed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from drago import kernels
from drago.oracles.rounds.rows import Part, few

# Counts of a round, in bits of their number.
_BITS = 16
# Rows of a range at least, and atoms at a time.
_LEAST, _ATOMS = 32, 1 << 14
EMPTY = np.empty(0)


class Range(NamedTuple):
    """The numbers from `low` to `high`, both included, and how many rows they belong to."""

    low: float
    high: float
    size: int


def ranges_of(parts: Sequence[Part], memory: int) -> list[Range]:
    """Ascending ranges of all numbers, each of which can be sorted in so many bytes.

    More rows than that are in one range only if all of them have the same number. None where one of
    them is no number, or infinite.
    """
    ends = [float(end) for u, _ in parts for end in (u.min(), u.max())]
    if not all(map(math.isfinite, ends)):
        return []
    low, high = min(ends), max(ends)
    whole = Range(low, high, sum(u.size for u, _ in parts))
    most = max(_LEAST, memory // (8 * _width(parts)))
    return [whole] if whole.size <= most else list(_cut(parts, whole, most))


def _cut(parts: Sequence[Part], whole: Range, most: int) -> Iterator[Range]:
    """Neighbours among equal shares of the places between two numbers, joined up to `most` rows."""
    start, stop = kernels.place_of(whole.low), kernels.place_of(whole.high)
    if start == stop:
        yield whole
        return
    shift = max(0, (stop - start).bit_length() - _BITS)
    counts = np.zeros(((stop - start) >> shift) + 1, dtype=np.int64)
    for u, _ in parts:
        kernels.count_places(u, whole.low, whole.high, shift, counts)

    def joined(first: int, last: int, size: int) -> Range:
        end = min(start + ((last + 1) << shift) - 1, stop)
        end = -2 if end == -1 else end  # whose number is that of 0
        return Range(kernels.value_at(start + (first << shift)), kernels.value_at(end), size)

    first = last = size = 0
    for place in np.flatnonzero(counts):
        k, count = int(place), int(counts[place])
        if size and size + count > most:
            yield joined(first, last, size)
            size = 0
        if count > most:
            yield from _cut(parts, joined(k, k, count), most)
            continue
        first, last, size = k if size == 0 else first, k, size + count
    if size:
        yield joined(first, last, size)


def atoms(
    parts: Sequence[Part], ranges: Sequence[Range]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Distinct numbers, ascending, and the mass of each; some at a time, in arrays used again.

    Masses are numbers of rows where these weigh the same.
    """
    width = _width(parts)
    values, masses = np.empty(_ATOMS), np.empty(_ATOMS)
    room = max((each.size for each in ranges if each.low < each.high), default=0)
    buffer = np.empty(width * (room + 1))
    for low, high, size in ranges:
        if low == high:
            yield np.array([low]), np.array([_mass_at(parts, low, size)])
            continue
        count = 0
        for u, p in parts:
            count = kernels.gather_range(u, EMPTY if p is None else p, low, high, buffer, count)
        found = buffer[: width * count]
        if width == 1:
            found.sort()
        else:
            kernels.sort_pairs(found)
        row = 0
        while row < count:
            row, some = kernels.next_atoms(found, width == 2, row, values, masses)
            yield values[:some], masses[:some]


def _width(parts: Sequence[Part]) -> int:
    """Numbers that a row takes in a sort: its own, and its weight where that differs."""
    return 1 if parts[0][1] is None else 2


def _mass_at(parts: Sequence[Part], value: float, size: int) -> float:
    """The mass of the rows with this very number."""
    if parts[0][1] is None:
        return float(size)
    return sum(float(p[u == value].sum()) for u, p in few(parts) if p is not None)
