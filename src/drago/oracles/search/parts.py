"""Small parts of the kernels of `drago.oracles.search`, in Triton."""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meet(counter, goal):
    """Wait until `goal` programs have been here; what they stored before is seen after."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acquire") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def add(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def sums(v0, v1, v2, v3, v4, FUSED: tl.constexpr):
    """Five sums; as one reduction the threads wait for each other once."""
    if FUSED:
        return tl.reduce((v0, v1, v2, v3, v4), 0, add)
    return tl.sum(v0), tl.sum(v1), tl.sum(v2), tl.sum(v3), tl.sum(v4)


@triton.jit
def number(x, LOWEST: tl.constexpr):
    """The place of a float among all floats."""
    bits = x.to(tl.int64, bitcast=True)
    return tl.where(bits >= 0, bits, LOWEST - bits)


@triton.jit
def numbered(k, LOWEST: tl.constexpr):
    return tl.where(k >= 0, k, LOWEST - k).to(tl.float64, bitcast=True)


@triton.jit
def halfway(a, b, LOWEST: tl.constexpr):
    """As many floats below as above, between `a` and `b`."""
    i, j = number(a, LOWEST), number(b, LOWEST)
    return numbered((i >> 1) + (j >> 1) + (i & j & 1), LOWEST)


@triton.jit
def before(a, ax, b, bx, inverse):
    """Whether the threshold ``a - c ax`` lies below ``b - c bx``."""
    return (b - a) * inverse + (ax - bx) > 0.0


@triton.jit
def within(t, x, low, low_x, high, high_x, inverse):
    return before(low, low_x, t, x, inverse) & before(t, x, high, high_x, inverse)


@triton.jit
def move(ref, x, c, inverse):
    """``ref - c x`` as a float and what it lacks, in units of ``-c``."""
    moved = ref - c * x
    return moved, x - (ref - moved) * inverse


@triton.jit
def load(u_ptr, p_ptr, at, n, UNIFORM: tl.constexpr):
    """Losses, minus infinity for rows that take no part, and weights."""
    there = at < n
    u = tl.load(u_ptr + at, mask=there, other=float("-inf"))
    p = u
    if not UNIFORM:
        p = tl.load(p_ptr + at, mask=there, other=0.0)
        u = tl.where(p > 0.0, u, float("-inf"))
    return u, p


@triton.jit
def count_wrong(u, p, at, n, UNIFORM: tl.constexpr):
    """0 for each row, NaN for one that takes part and is not finite."""
    if UNIFORM:
        return tl.where(at < n, u, 0.0) * 0.0
    return tl.where(p > 0.0, u, 0.0) * 0.0


@triton.jit
def clip(r, cap):
    return tl.where(r < cap, tl.where(r > 0.0, r, 0.0), cap)


@triton.jit
def pair(u, p, ref, x, inverse, cap, lifted, factor, KIND: tl.constexpr, UNIFORM: tl.constexpr):
    """What the rows add to the two sums of a threshold.

    Chi2: the weights, and the mass of the rows between the bounds. KL: the mass at the cap, and the
    weights of the others over the cap. Vertex: the mass above, and the mass at the threshold. Ball:
    the sum of ``p r``, and the mass of the rows above.
    """
    if KIND == 0:
        first, second = u > ref, u == ref
    else:
        r = (u - ref) * inverse + x
        if KIND == 1:
            first, second = clip(r, cap), (r >= 0.0) & (r < cap)
        elif KIND == 3:
            first, second = tl.where(r > 1e-150, r, 0.0), r > -1e-150
        else:
            first, second = r > 0.0, tl.where(r > 0.0, 0.0, lifted * factor)
    if UNIFORM:
        if (KIND == 0) | (KIND == 2):
            first = first.to(tl.int32)
        if KIND != 2:
            second = second.to(tl.int32)
    else:
        if (KIND == 1) | (KIND == 3):
            first = p * first
        else:
            first = tl.where(first, p, 0.0)
        if KIND == 2:
            second = p * second
        else:
            second = tl.where(second, p, 0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def squares(u, p, ref, x, inverse, UNIFORM: tl.constexpr):
    # Closer, in units of the spread, is tied: the square would vanish.
    r = (u - ref) * inverse + x
    r = tl.where(r > 1e-150, r, 0.0)
    if UNIFORM:
        return tl.sum(r * r, axis=0)
    return tl.sum(p * (r * r), axis=0)


@triton.jit
def inside_ball(a, d, radius):
    """Of a ball: 1 on the boundary, more within; `d` is the sum of ``p r^2``."""
    return (1.0 + 2.0 * radius) * a * (a / d)


@triton.jit
def total_weight(a, b, d, cap, price, KIND: tl.constexpr):
    """What is 1 at the threshold and falls: the sum of the weights."""
    if KIND == 1:
        return a
    if KIND == 3:
        # Without a price its quotient is infinite, and so is no bound.
        return tl.where(a > 0.0, tl.minimum(inside_ball(a, d, cap), a / price), 0.0)
    return a + b


@triton.jit
def newton(ref, x, a, b, d, c, inverse, cap, price, KIND: tl.constexpr):
    """Where the weights sum to 1 if no row reaches or leaves a bound; NaN if nowhere."""
    if KIND == 1:
        step = (1.0 - a) / b
    elif KIND == 3:
        mean = a / b
        room = (1.0 + 2.0 * cap) * b - 1.0
        variance = d / b - mean * mean
        variance = tl.where(variance > 0.0, variance, 0.0)
        step = tl.sqrt(variance / tl.where(room > 0.0, room, float("nan"))) - mean
        step = tl.where((price > 0.0) & (step < (price - a) / b), (price - a) / b, step)
    else:
        step = tl.log(tl.where(a < 1.0, 1.0 - a, float("nan")) / b)
    return move(ref, x + step, c, inverse)


@triton.jit
def between(low_total, low_slope, high_total, high_slope, width, KIND: tl.constexpr):
    """The share of the way from `low` to `high` at which the weights should sum to 1.

    From the sums and slopes at both ends, by a cubic polynomial in the sum; where that fails, from
    the sums alone.
    """
    if KIND == 2:
        low_slope, high_slope = low_slope / low_total, high_slope / high_total
        low_total, high_total = tl.log(low_total), tl.log(high_total)
    else:
        low_total, high_total = low_total - 1.0, high_total - 1.0
    drop = low_total - high_total
    z = low_total / drop
    share = z
    if (KIND == 1) | (KIND == 2):
        g, h = drop / (low_slope * width), drop / (high_slope * width)
        share = z * z * (3.0 - 2.0 * z) + z * (1.0 - z) * (g * (1.0 - z) - h * z)
        share = tl.where((share > 0.0) & (share < 1.0), share, z)
    return share
