"""The kernels of `drago.oracles.pool_launch`."""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _by_cost(difference, inverse, FREE: tl.constexpr):
    """A difference of losses, by ``c``; a vertex is the limit."""
    if FREE:
        return tl.where(difference > 0.0, 1e100, tl.where(difference < 0.0, -1e100, 0.0))
    scaled = difference * inverse
    scaled = tl.where(scaled > 1e100, 1e100, scaled)
    return tl.where(scaled < -1e100, -1e100, scaled)


@triton.jit
def _inverse(c_ptr, price, PRICED: tl.constexpr):
    c = tl.zeros((), tl.float64) + price
    if PRICED:
        c = tl.load(c_ptr)
    # Below this the reciprocal overflows.
    return 1.0 / tl.where(c < 1e-300, 1e-300, c)


@triton.jit
def _value(at, there, border, base, level, inverse, FREE: tl.constexpr):
    """``v / c`` of rows, from the border."""
    apart = tl.load(base + at, mask=there, other=0.0) - border
    return _by_cost(apart, inverse, FREE) + tl.load(level + at, mask=there, other=0.0)


@triton.jit
def _place(
    lo, hi, v, there, depth, border, base, level, inverse, FREE: tl.constexpr, OVER: tl.constexpr
):
    """The first row of those from `lo` to `hi` that is not below `v`; with `OVER`, that is above.

    It takes `depth` halvings.
    """
    nothing = tl.zeros_like(v).to(tl.int32)
    lo, hi = lo + nothing, hi + nothing
    for _ in range(depth):
        middle = (lo + hi) >> 1
        left = there & (lo < hi)
        its = _value(middle, left, border, base, level, inverse, FREE)
        if OVER:
            before = its <= v
        else:
            before = its < v
        hi = tl.where(left & ~before, middle, hi)
        lo = tl.where(left & before, middle + 1, lo)
    return lo


@triton.jit
def _stretch(
    start,
    end,
    edge,
    there,
    border,
    gap,
    u,
    h0,
    h1,
    t0,
    t1,
    inverse,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """``v / c`` of the rows from `start` on the left of the edge to `end` on its right.

    From the largest of them, and from the border.
    """
    low, high = there & (start < edge), there & (end > edge)
    low0, low1 = tl.load(t0 + start, mask=low, other=0.0), tl.load(t1 + start, mask=low, other=0.0)
    high0 = tl.load(h0 + end - 1, mask=high, other=0.0)
    high1 = tl.load(h1 + end - 1, mask=high, other=0.0)
    top = _by_cost(tl.load(u + end - 1, mask=high, other=0.0) - border, inverse, FREE)
    top = tl.where(high, top, -gap)
    if LINEAR:
        whole = (low1 - gap * low0 + high1) / (low0 + high0)
        out = whole - top
    else:
        out = tl.log(low1 * tl.exp(-(gap + top)) + high1) - tl.log(low0 + high0)
        whole = out + top
    return out, whole


@triton.jit
def _find(
    left,
    edge,
    stop,
    there,
    depth,
    u,
    base,
    level,
    first,
    last,
    h0,
    h1,
    t0,
    t1,
    inverse,
    WAYS: tl.constexpr,
    LEFT: tl.constexpr,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """Where the new pool of the rows from `left` to `stop` starts, or without `LEFT` ends.

    All are columns, by pairs of blocks; `WAYS` rows of a pair are tried at the same time.
    """
    border = tl.load(u + edge, mask=there, other=0.0)
    gap = _by_cost(border - tl.load(u + edge - 1, mask=there, other=0.0), inverse, FREE)
    way = tl.arange(0, WAYS)[None, :].to(tl.int64)
    if LEFT:
        lo, hi = tl.where(there, left, 0), tl.where(there, edge, 0)
    else:
        lo, hi = tl.where(there, edge, 0), tl.where(there, stop, 0)
    while tl.max(tl.max(hi - lo, axis=1), axis=0) > 0:
        at = lo + ((hi - lo) * (way + 1) // (WAYS + 1)).to(tl.int32)
        asked = lo < hi
        asked = asked & (way >= 0)
        v = _value(at, asked, border, base, level, inverse, FREE)
        if LEFT:
            end = _place(edge, stop, v, asked, depth, border, base, level, inverse, FREE, False)
            start = tl.load(last + at, mask=asked, other=0)
            some = end > edge
        else:
            start = _place(left, edge, v, asked, depth, border, base, level, inverse, FREE, True)
            end = tl.load(first + at, mask=asked, other=0)
            some = start < edge
        _, other = _stretch(
            start, end, edge, asked, border, gap, u, h0, h1, t0, t1, inverse, LINEAR, FREE
        )
        # In spite of rounding the answer lies where a row takes part and the one before does not:
        # never within a pool.
        if LEFT:
            joins = asked & some & (other < v)
            found = tl.min(tl.where(joins, at, hi), axis=1, keep_dims=True)
            lo = tl.max(tl.where(asked & (at < found), at + 1, lo), axis=1, keep_dims=True)
            hi = found
        else:
            joins = asked & some & (other > v)
            found = tl.max(tl.where(joins, at + 1, lo), axis=1, keep_dims=True)
            hi = tl.min(tl.where(asked & (at >= found), at, hi), axis=1, keep_dims=True)
            lo = found
    return lo


@triton.jit
def _new(
    start, end, edge, there, u, h0, h1, t0, t1, inverse, LINEAR: tl.constexpr, FREE: tl.constexpr
):
    """``v / c`` of a new pool, from its largest row."""
    border = tl.load(u + edge, mask=there, other=0.0)
    gap = _by_cost(border - tl.load(u + edge - 1, mask=there, other=0.0), inverse, FREE)
    out, _ = _stretch(
        start, end, edge, there, border, gap, u, h0, h1, t0, t1, inverse, LINEAR, FREE
    )
    return out


@triton.jit
def _update(
    row,
    there,
    left,
    edge,
    stop,
    start,
    end,
    new,
    known,
    u,
    base,
    level,
    first,
    last,
    h0,
    h1,
    t0,
    t1,
    inverse,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """What rows of joined blocks know: of their pools, and the sums of the whole block.

    What lies between `left` and `known` is the same for rows of a pair, and may be given once.
    """
    member = there & (row >= start) & (row < end)
    largest = tl.load(u + end - 1, mask=known & (end > 0), other=0.0)
    tl.store(base + row, largest, mask=member)
    tl.store(level + row, new, mask=member)
    tl.store(first + row, start, mask=member)
    tl.store(last + row, end, mask=member)

    # No term loses digits to another of the other sign.
    low, high = there & (row < edge), there & (row >= edge)
    before = tl.load(u + edge - 1, mask=known, other=0.0)
    total0, total1 = (
        tl.load(t0 + edge, mask=known, other=0.0),
        tl.load(t1 + edge, mask=known, other=0.0),
    )
    own0, own1 = tl.load(t0 + row, mask=low, other=0.0), tl.load(t1 + row, mask=low, other=0.0)
    behind = tl.load(u + stop - 1, mask=known, other=0.0) - before
    behind = _by_cost(behind, inverse, FREE)
    if LINEAR:
        moved = own1 - behind * own0
    else:
        moved = own1 * tl.exp(-behind)
    tl.store(t0 + row, total0 + own0, mask=low)
    tl.store(t1 + row, total1 + moved, mask=low)

    total0 = tl.load(h0 + edge - 1, mask=known, other=0.0)
    total1 = tl.load(h1 + edge - 1, mask=known, other=0.0)
    own0, own1 = tl.load(h0 + row, mask=high, other=0.0), tl.load(h1 + row, mask=high, other=0.0)
    if LINEAR:
        ahead = tl.load(u + edge, mask=known, other=0.0) - tl.load(u + left, mask=known, other=0.0)
        moved = total1 + own1 + _by_cost(ahead, inverse, FREE) * own0
    else:
        apart = tl.load(u + row, mask=high, other=0.0) - before
        moved = total1 * tl.exp(-_by_cost(apart, inverse, FREE)) + own1
    tl.store(h0 + row, total0 + own0, mask=high)
    tl.store(h1 + row, moved, mask=high)


@triton.jit(do_not_specialize=["n", "begin", "finish"])
def blocks(
    u,
    p,
    sigma,
    base,
    level,
    first,
    last,
    h0,
    h1,
    t0,
    t1,
    starts,
    ends,
    levels,
    c_ptr,
    n,
    begin,
    finish,
    price: tl.float64,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
    ALONE: tl.constexpr,
    PRICED: tl.constexpr,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """Join all blocks of ``2^begin`` rows within `BLOCK` rows, up to ``2^finish`` rows.

    With `ALONE`, from rows of which nothing is known yet.
    """
    PAIRS: tl.constexpr = BLOCK // (2 * WAYS)
    inverse = _inverse(c_ptr, price, PRICED)
    origin = tl.program_id(0) * BLOCK
    row = origin + tl.arange(0, BLOCK)
    inside = row < n
    if ALONE:
        weight = tl.load(p + row, mask=inside, other=0.0)
        mass = tl.load(sigma + row, mask=inside, other=0.0)
        live = weight > 0.0
        if LINEAR:
            own = -mass / tl.where(live, weight, 1.0)
            row0, row1 = weight, -mass
        else:
            own = tl.log(weight) - tl.log(mass)
            row0, row1 = mass, weight
        tl.store(level + row, tl.where(live, own, float("inf")), mask=inside)
        tl.store(base + row, tl.load(u + row, mask=inside, other=0.0), mask=inside)
        tl.store(first + row, row, mask=inside)
        tl.store(last + row, row + 1, mask=inside)
        tl.store(h0 + row, row0, mask=inside)
        tl.store(t0 + row, row0, mask=inside)
        tl.store(h1 + row, row1, mask=inside)
        tl.store(t1 + row, row1, mask=inside)
        tl.debug_barrier()
    pair = tl.arange(0, PAIRS)[:, None]
    place = tl.program_id(0) * PAIRS + pair
    for k in range(begin, finish):
        size = 1 << k
        left = origin + pair * (2 * size)
        edge = left + size
        stop = tl.minimum(edge + size, n)
        there = (pair * (2 * size) < BLOCK) & (edge < n)
        start = _find(
            left, edge, stop, there, k + 1, u, base, level, first, last, h0, h1, t0, t1,
            inverse, WAYS, True, LINEAR, FREE,
        )  # fmt: skip
        end = _find(
            left, edge, stop, there, k + 1, u, base, level, first, last, h0, h1, t0, t1,
            inverse, WAYS, False, LINEAR, FREE,
        )  # fmt: skip
        new = _new(start, end, edge, there, u, h0, h1, t0, t1, inverse, LINEAR, FREE)
        tl.store(starts + place, start, mask=there)
        tl.store(ends + place, end, mask=there)
        tl.store(levels + place, new, mask=there)
        tl.debug_barrier()
        own_pair = (row - origin) // (2 * size)
        left = origin + own_pair * (2 * size)
        edge = left + size
        stop = tl.minimum(edge + size, n)
        there = inside & (edge < n)
        place_of_row = tl.program_id(0) * PAIRS + own_pair
        start = tl.load(starts + place_of_row, mask=there, other=0)
        end = tl.load(ends + place_of_row, mask=there, other=0)
        new = tl.load(levels + place_of_row, mask=there, other=0.0)
        _update(
            row, there, left, edge, stop, start, end, new, there, u, base, level, first, last,
            h0, h1, t0, t1, inverse, LINEAR, FREE,
        )  # fmt: skip
        tl.debug_barrier()


@triton.jit(do_not_specialize=["n", "k"])
def find(
    u,
    base,
    level,
    first,
    last,
    h0,
    h1,
    t0,
    t1,
    starts,
    ends,
    c_ptr,
    n,
    k,
    price: tl.float64,
    WAYS: tl.constexpr,
    PRICED: tl.constexpr,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """Both ends of the new pool of each pair of blocks of ``2^k`` rows."""
    inverse = _inverse(c_ptr, price, PRICED)
    size = 1 << k
    pair = tl.program_id(0) + tl.zeros((1, 1), tl.int32)
    left = pair * (2 * size)
    edge = left + size
    stop = tl.minimum(edge + size, n)
    there = edge < n
    if tl.program_id(1) == 0:
        start = _find(
            left, edge, stop, there, k + 1, u, base, level, first, last, h0, h1, t0, t1,
            inverse, WAYS, True, LINEAR, FREE,
        )  # fmt: skip
        tl.store(starts + pair, start, mask=there)
    else:
        end = _find(
            left, edge, stop, there, k + 1, u, base, level, first, last, h0, h1, t0, t1,
            inverse, WAYS, False, LINEAR, FREE,
        )  # fmt: skip
        tl.store(ends + pair, end, mask=there)


@triton.jit(do_not_specialize=["n", "k", "pairs"])
def settle(
    u,
    h0,
    h1,
    t0,
    t1,
    starts,
    ends,
    levels,
    c_ptr,
    n,
    k,
    pairs,
    price: tl.float64,
    TILE: tl.constexpr,
    PRICED: tl.constexpr,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """The level of the new pool of each pair, before the sums change."""
    inverse = _inverse(c_ptr, price, PRICED)
    pair = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = pair < pairs
    edge = tl.where(there, pair, 0) * (2 << k) + (1 << k)
    start = tl.load(starts + pair, mask=there, other=0)
    end = tl.load(ends + pair, mask=there, other=0)
    new = _new(start, end, edge, there, u, h0, h1, t0, t1, inverse, LINEAR, FREE)
    tl.store(levels + pair, new, mask=there)


@triton.jit(do_not_specialize=["n", "k"])
def update(
    u,
    base,
    level,
    first,
    last,
    h0,
    h1,
    t0,
    t1,
    starts,
    ends,
    levels,
    c_ptr,
    n,
    k,
    price: tl.float64,
    TILE: tl.constexpr,
    PRICED: tl.constexpr,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """Join the blocks of ``2^k`` rows; a program has rows of one block."""
    inverse = _inverse(c_ptr, price, PRICED)
    size = 1 << k
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    pair = tl.program_id(0) * TILE // (2 * size)
    left = pair * (2 * size)
    edge = left + size
    stop = tl.minimum(edge + size, n)
    if edge < n:
        start, end, new = tl.load(starts + pair), tl.load(ends + pair), tl.load(levels + pair)
        _update(
            row, row < n, left, edge, stop, start, end, new, edge < n, u, base, level, first, last,
            h0, h1, t0, t1, inverse, LINEAR, FREE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n"])
def write(
    u,
    p,
    order,
    base,
    level,
    q,
    c_ptr,
    n,
    price: tl.float64,
    TILE: tl.constexpr,
    PRICED: tl.constexpr,
    LINEAR: tl.constexpr,
    FREE: tl.constexpr,
):
    """The weights, where the rows were before they were sorted."""
    inverse = _inverse(c_ptr, price, PRICED)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = row < n
    weight = tl.load(p + row, mask=there, other=0.0)
    apart = tl.load(u + row, mask=there, other=0.0) - tl.load(base + row, mask=there, other=0.0)
    lift = _by_cost(apart, inverse, FREE) - tl.load(level + row, mask=there, other=0.0)
    if LINEAR:
        ratio = tl.where(lift > 0.0, lift, 0.0)
    else:
        ratio = tl.exp(lift)
    place = tl.load(order + row, mask=there, other=0)
    tl.store(q + place, tl.where(weight > 0.0, weight * ratio, 0.0), mask=there)
