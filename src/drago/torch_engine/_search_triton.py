"""The threshold search of `drago.torch_engine._search` as one CUDA kernel, written in Triton.

All programs of a launch are on the device at the same time and meet after each pass: a pass leaves
the sums of each program in memory, and after the meeting every program adds all of them in the same
order and takes the same decision. So there is one launch, it stops as soon as the threshold is
found, no value is seen by the host, and equal input gives equal bits.
"""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

VERTEX, CHI2, KL, BALL = 0, 1, 2, 3
# The tile of a program: rows in the registers of a thread by rows in a row of threads. Two programs
# on a multiprocessor hide each other's waiting; the limit on registers makes room for both.
_DEPTH, _LANES, _WARPS, _RESIDENT, _REGISTERS = 4, 512, 8, 2, 128
# The sample that the search starts from: for few programs and for many, and its table of trials.
_FEW, _MANY, _TABLE = 128, 1024, 4096
# After so many passes, which nothing but rounding can take, the best threshold so far is taken.
_PASSES = 300
# What a sum of weights may differ from 1 by: its own rounding.
_CLOSE = 4e-15
# In a bracket of so many units of ``c`` the sum of the weights is a flight of steps, at the rows.
_STEEP = 1e4
_LOWEST = -(2**63)


# ------------------------------------------------------------------------------------- small parts


@triton.jit
def _meet(counter, goal):
    """Wait until `goal` programs have been here; what they stored before is seen after."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acquire") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def _add(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _sums(v0, v1, v2, v3, v4, FUSED: tl.constexpr):
    """Five sums; as one reduction the threads wait for each other once."""
    if FUSED:
        return tl.reduce((v0, v1, v2, v3, v4), 0, _add)
    return tl.sum(v0), tl.sum(v1), tl.sum(v2), tl.sum(v3), tl.sum(v4)


@triton.jit
def _number(x, LOWEST: tl.constexpr):
    """The place of a float among all floats."""
    bits = x.to(tl.int64, bitcast=True)
    return tl.where(bits >= 0, bits, LOWEST - bits)


@triton.jit
def _numbered(k, LOWEST: tl.constexpr):
    return tl.where(k >= 0, k, LOWEST - k).to(tl.float64, bitcast=True)


@triton.jit
def _halfway(a, b, LOWEST: tl.constexpr):
    """As many floats below as above, between `a` and `b`."""
    i, j = _number(a, LOWEST), _number(b, LOWEST)
    return _numbered((i >> 1) + (j >> 1) + (i & j & 1), LOWEST)


@triton.jit
def _before(a, ax, b, bx, inverse):
    """Whether the threshold ``a - c ax`` lies below ``b - c bx``."""
    return (b - a) * inverse + (ax - bx) > 0.0


@triton.jit
def _within(t, x, low, low_x, high, high_x, inverse):
    return _before(low, low_x, t, x, inverse) & _before(t, x, high, high_x, inverse)


@triton.jit
def _moved(ref, x, c, inverse):
    """``ref - c x`` as a float and what it lacks, in units of ``-c``."""
    moved = ref - c * x
    return moved, x - (ref - moved) * inverse


@triton.jit
def _load(u_ptr, p_ptr, at, n, UNIFORM: tl.constexpr):
    """Losses, minus infinity for rows that take no part, and weights."""
    there = at < n
    u = tl.load(u_ptr + at, mask=there, other=float("-inf"))
    p = u
    if not UNIFORM:
        p = tl.load(p_ptr + at, mask=there, other=0.0)
        u = tl.where(p > 0.0, u, float("-inf"))
    return u, p


@triton.jit
def _wrong(u, p, at, n, UNIFORM: tl.constexpr):
    """0 for each row, NaN for one that takes part and is not finite."""
    if UNIFORM:
        return tl.where(at < n, u, 0.0) * 0.0
    return tl.where(p > 0.0, u, 0.0) * 0.0


@triton.jit
def _clip(r, cap):
    return tl.where(r < cap, tl.where(r > 0.0, r, 0.0), cap)


@triton.jit
def _pair(u, p, ref, x, inverse, cap, lifted, factor, KIND: tl.constexpr, UNIFORM: tl.constexpr):
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
            first, second = _clip(r, cap), (r >= 0.0) & (r < cap)
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
def _squares(u, p, ref, x, inverse, UNIFORM: tl.constexpr):
    # Closer, in units of the spread, is tied: the square would vanish.
    r = (u - ref) * inverse + x
    r = tl.where(r > 1e-150, r, 0.0)
    if UNIFORM:
        return tl.sum(r * r, axis=0)
    return tl.sum(p * (r * r), axis=0)


@triton.jit
def _inside(a, d, radius):
    """Of a ball: 1 on the boundary, more within; `d` is the sum of ``p r^2``."""
    return (1.0 + 2.0 * radius) * a * (a / d)


@triton.jit
def _total(a, b, d, cap, price, KIND: tl.constexpr):
    """What is 1 at the threshold and falls: the sum of the weights."""
    if KIND == 1:
        return a
    if KIND == 3:
        # Without a price its quotient is infinite, and so is no bound.
        return tl.where(a > 0.0, tl.minimum(_inside(a, d, cap), a / price), 0.0)
    return a + b


@triton.jit
def _newton(ref, x, a, b, d, c, inverse, cap, price, KIND: tl.constexpr):
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
    return _moved(ref, x + step, c, inverse)


@triton.jit
def _between(low_total, low_slope, high_total, high_slope, width, KIND: tl.constexpr):
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


# --------------------------------------------------------------------------------------- the search


@triton.jit
def _search(
    u_ptr,
    p_ptr,
    q_ptr,
    c_ptr,
    memory_ptr,
    sums_ptr,
    sample_ptr,
    counter_ptr,
    n,
    price: tl.float64,
    cap: tl.float64,
    KIND: tl.constexpr,
    UNIFORM: tl.constexpr,
    PRICED: tl.constexpr,
    REMEMBERS: tl.constexpr,
    FREE: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SAMPLE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PASSES: tl.constexpr,
    CLOSE: tl.constexpr,
    STEEP: tl.constexpr,
    LOWEST: tl.constexpr,
    FUSED: tl.constexpr,
):
    own = tl.program_id(0)
    programs = tl.num_programs(0)
    zero = tl.zeros((), tl.float64)
    nan, infinity = zero + float("nan"), zero + float("inf")
    cap = zero + cap
    c = zero + price
    if PRICED:
        c = tl.load(c_ptr)
    if KIND == 0:
        c = zero + 1.0
    # Below this the reciprocal overflows.
    c = tl.where(c < 1e-300, zero + 1e-300, c)
    inverse = 1.0 / c
    log_cap = tl.log(cap)
    unit = 1.0 / (zero + n)
    meetings = 0
    tile = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tiles = (n + DEPTH * LANES - 1) // (DEPTH * LANES)
    mine = (tiles - own + programs - 1) // programs
    finite = zero == 0.0
    price, bottom, top = zero, zero, zero
    if KIND == 3:
        # A ball has the spread as its unit.
        price = c
        if FREE:
            price = zero
        wrong = tl.zeros((LANES,), tl.float64)
        above, below = wrong + float("inf"), wrong - float("inf")
        for step in range(0, mine):
            at = (own + step * programs) * (DEPTH * LANES) + tile
            u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
            wrong += tl.sum(_wrong(u, p, at, n, UNIFORM), axis=0)
            kept = u > float("-inf")
            above = tl.minimum(above, tl.min(tl.where(kept, u, float("inf")), axis=0))
            below = tl.maximum(below, tl.max(u, axis=0))
        place = sums_ptr + 18 * PROGRAMS + own
        tl.store(place, tl.sum(wrong))
        tl.store(place + PROGRAMS, tl.min(above))
        tl.store(place + 2 * PROGRAMS, tl.max(below))
        meetings += 1
        _meet(counter_ptr, meetings * programs)
        place = sums_ptr + 18 * PROGRAMS + tl.arange(0, PROGRAMS)
        there = tl.arange(0, PROGRAMS) < programs
        finite = tl.sum(tl.load(place, mask=there, other=0.0)) == 0.0
        bottom = tl.min(tl.load(place + PROGRAMS, mask=there, other=float("inf")))
        top = tl.max(tl.load(place + 2 * PROGRAMS, mask=there, other=float("-inf")))
        c = tl.maximum(top - bottom, price)
        c = tl.where(c > 1e-300, c, 1.0)
        inverse = 1.0 / c
        price = price * inverse

    # ---- two thresholds to start with: next to the old one, or on both sides of a sample's
    s, t = zero, zero
    old, scale = nan, nan
    if REMEMBERS:
        old, scale = tl.load(memory_ptr), tl.load(memory_ptr + 1)
    warm = (tl.abs(old) < infinity) & (tl.abs(scale) < infinity)
    if warm:
        s, t = old, old + 0.5 * scale
    else:
        chosen = tl.arange(0, SAMPLE).to(tl.int64) * n // SAMPLE
        u = tl.load(u_ptr + chosen)
        p = tl.zeros((SAMPLE,), tl.float64) + 1.0
        if not UNIFORM:
            p = tl.load(p_ptr + chosen)
        live = (p > 0.0) & (tl.abs(u) < infinity)
        u = tl.where(live, u, float("-inf"))
        p = tl.where(live, p, 0.0)
        p = p / tl.sum(p)
        for start in range(own * AT_ONCE, SAMPLE, programs * AT_ONCE):
            tried = start + tl.arange(0, AT_ONCE)
            apart = u[None, :] - tl.load(u_ptr + tried.to(tl.int64) * n // SAMPLE)[:, None]
            if KIND == 0:
                ratio = tl.where(apart >= 0.0, cap, zero)
            elif KIND == 1:
                ratio = _clip(apart * inverse, cap)
            elif KIND == 3:
                ratio = tl.where(apart > 0.0, apart * inverse, 0.0)
            else:
                ratio = cap * tl.exp(tl.where(apart < 0.0, apart * inverse, 0.0))
            first = tl.sum(p[None, :] * ratio, axis=1)
            if KIND == 3:
                second = tl.sum(p[None, :] * (ratio * ratio), axis=1)
                first = _total(first, first * 0.0, second, cap, price, 3)
            else:
                off = p[None, :] * (ratio - 1.0)
                second = tl.sum(off * off, axis=1)
            tl.store(sample_ptr + tried, first)
            tl.store(sample_ptr + SAMPLE + tried, second)
        meetings += 1
        _meet(counter_ptr, meetings * programs)
        total = tl.load(sample_ptr + tl.arange(0, SAMPLE))
        spread = tl.load(sample_ptr + SAMPLE + tl.arange(0, SAMPLE))
        least, most = tl.min(tl.where(live, u, infinity)), tl.max(u)
        if KIND == 1:
            least = least - c
        if KIND == 2:
            most = most + c * log_cap
        root = tl.max(tl.where(live & (total >= 1.0), u, float("-inf")))
        error = tl.sqrt(tl.max(tl.where(u == root, spread, 0.0)))
        if KIND == 0:
            error = 2.0 * error
        s = tl.max(tl.where(live & (total >= 1.0 + error), u, least))
        t = tl.min(tl.where(live & (total < 1.0 - error), u, most))
        if KIND == 3:
            s, t = top, tl.where(root > float("-inf"), root, least - c)
        s = tl.where(tl.abs(s) < infinity, s, 0.0)
        t = tl.where(tl.abs(t) < infinity, t, 0.0)
        scale = 0.5 * tl.abs(t - s)
    s_x, t_x = zero, zero

    # ---- passes until it is found; it lies between `low`, where the weights sum to 1 or more, and
    # ---- `high`
    low, low_x, low_a, low_b, low_d = -infinity, zero, nan, nan, zero
    high, high_x, high_a, high_b, high_d = infinity, zero, nan, nan, zero
    found, found_x, found_a, found_b, found_d = nan, zero, nan, nan, zero
    width = infinity
    slow, done = 0, 0
    looking = zero == 0.0
    while looking:
        odd = done % 2
        inside = (done == 0) | (slow > 0) | (width * inverse > STEEP) | (KIND == 0)
        near = tl.abs(s - t) <= 4.0 * c
        near = near & (tl.maximum(tl.abs(s_x), tl.abs(t_x)) <= 4.0)
        factor = zero + 1.0
        if KIND == 2:  # noqa: SIM102
            if near:
                factor = tl.exp((s - t) * inverse + (t_x - s_x))
        nothing = tl.zeros((LANES,), tl.float64)
        s_first, t_first, s_second, t_second = nothing, nothing, nothing, nothing
        s_third, t_third = nothing, nothing
        if UNIFORM:
            if (KIND == 0) | (KIND == 2):
                s_first, t_first = s_first.to(tl.int32), t_first.to(tl.int32)
            if KIND != 2:
                s_second, t_second = s_second.to(tl.int32), t_second.to(tl.int32)
        wrong = nothing
        above, below = nothing + float("inf"), nothing - float("inf")
        for step in range(0, mine):
            # There and back: what was read last is still in the cache.
            turn = tl.where(odd == 1, mine - 1 - step, step)
            at = (own + turn * programs) * (DEPTH * LANES) + tile
            u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
            if inside:
                wrong += tl.sum(_wrong(u, p, at, n, UNIFORM), axis=0)
                kept = (u >= low) & (u > float("-inf"))
                above = tl.minimum(above, tl.min(tl.where(kept, u, float("inf")), axis=0))
                kept = u < high
                below = tl.maximum(below, tl.max(tl.where(kept, u, float("-inf")), axis=0))
            s_lifted, t_lifted = u, u
            if KIND == 2:
                r = (u - s) * inverse + s_x
                if near:
                    # One exponential for both.
                    s_lifted = tl.exp(tl.where(r < 600.0, r, 600.0))
                    t_lifted = s_lifted
                else:
                    s_lifted = tl.exp(tl.where(r < 0.0, r, 0.0))
                    r = (u - t) * inverse + t_x
                    t_lifted = tl.exp(tl.where(r < 0.0, r, 0.0))
            a, b = _pair(u, p, s, s_x, inverse, cap, s_lifted, 1.0, KIND, UNIFORM)
            s_first, s_second = s_first + a, s_second + b
            a, b = _pair(u, p, t, t_x, inverse, cap, t_lifted, factor, KIND, UNIFORM)
            t_first, t_second = t_first + a, t_second + b
            if KIND == 3:
                s_third += _squares(u, p, s, s_x, inverse, UNIFORM)
                t_third += _squares(u, p, t, t_x, inverse, UNIFORM)

        # The sums of this program, and those of all. The programs that are still reading the sums
        # of the pass before are the reason for two places.
        s_a, s_b, t_a, t_b, bad = _sums(
            s_first.to(tl.float64),
            s_second.to(tl.float64),
            t_first.to(tl.float64),
            t_second.to(tl.float64),
            wrong,
            FUSED,
        )
        place = sums_ptr + odd * (9 * PROGRAMS) + own
        tl.store(place, s_a)
        tl.store(place + PROGRAMS, s_b)
        tl.store(place + 2 * PROGRAMS, t_a)
        tl.store(place + 3 * PROGRAMS, t_b)
        tl.store(place + 4 * PROGRAMS, bad)
        if inside:
            tl.store(place + 5 * PROGRAMS, tl.min(above))
            tl.store(place + 6 * PROGRAMS, tl.max(below))
        if KIND == 3:
            tl.store(place + 7 * PROGRAMS, tl.sum(s_third))
            tl.store(place + 8 * PROGRAMS, tl.sum(t_third))
        meetings += 1
        _meet(counter_ptr, meetings * programs)
        lane = tl.arange(0, PROGRAMS)
        place = sums_ptr + odd * (9 * PROGRAMS) + lane
        there = lane < programs
        s_a, s_b, t_a, t_b, bad = _sums(
            tl.load(place, mask=there, other=0.0),
            tl.load(place + PROGRAMS, mask=there, other=0.0),
            tl.load(place + 2 * PROGRAMS, mask=there, other=0.0),
            tl.load(place + 3 * PROGRAMS, mask=there, other=0.0),
            tl.load(place + 4 * PROGRAMS, mask=there, other=0.0),
            FUSED,
        )
        lowest, highest = nan, nan
        if inside:
            lowest = tl.min(tl.load(place + 5 * PROGRAMS, mask=there, other=float("inf")))
            highest = tl.max(tl.load(place + 6 * PROGRAMS, mask=there, other=float("-inf")))
        s_d, t_d = zero, zero
        if KIND == 3:
            s_d = tl.sum(tl.load(place + 7 * PROGRAMS, mask=there, other=0.0))
            t_d = tl.sum(tl.load(place + 8 * PROGRAMS, mask=there, other=0.0))
        if UNIFORM:
            s_d, t_d = s_d * unit, t_d * unit
            s_a, s_b, t_a, t_b = s_a * unit, s_b * unit, t_a * unit, t_b * unit
        if (KIND == 0) | (KIND == 2):
            s_a, s_b, t_a, t_b = cap * s_a, cap * s_b, cap * t_a, cap * t_b
        if done == 0:
            finite = bad == 0.0
            low, high = lowest, highest
            if KIND == 1:
                low = low - 2.0 * c
            if KIND == 2:
                high = high + 2.0 * c * log_cap
            if KIND == 3:
                low = low - c * tl.maximum(2.0 * price, 1.0 / tl.sqrt(2.0 * cap))
            if KIND != 0:
                low = _numbered(_number(low, LOWEST) - 1, LOWEST)
            high = _numbered(_number(high, LOWEST) + 1, LOWEST)
        done += 1

        # What the sums say.
        for k in tl.static_range(2):
            if k == 0:
                tried, tried_x, a, b, d = s, s_x, s_a, s_b, s_d
            else:
                tried, tried_x, a, b, d = t, t_x, t_a, t_b, t_d
            total = _total(a, b, d, cap, price, KIND)
            up = total >= 1.0
            # The step that is left to make is nothing, or nothing but rounding.
            lacks = tl.abs(1.0 - total)
            if KIND == 0:
                hit = up & (a < 1.0)
            elif KIND == 3:
                # All weight on the largest loss may be in the ball.
                alone = (a == 0.0) & (b > 0.0) & ((1.0 + 2.0 * cap) * b >= 1.0)
                hit = (lacks <= CLOSE) | (alone & (price < 1e-150))
            else:
                hit = (lacks <= CLOSE) | (lacks <= 1e-14 * b)
            if hit:
                found, found_x, found_a, found_b, found_d = tried, tried_x, a, b, d
                looking = looking & (not hit)
            if up:
                better = _before(low, low_x, tried, tried_x, inverse)
                if better | ((low == tried) & (low_a != low_a)):
                    low, low_x, low_a, low_b, low_d = tried, tried_x, a, b, d
            else:
                better = _before(tried, tried_x, high, high_x, inverse)
                if better | ((high == tried) & (high_a != high_a)):
                    high, high_x, high_a, high_b, high_d = tried, tried_x, a, b, d
        stuck = (done >= PASSES) | (not finite) | (not _before(low, low_x, high, high_x, inverse))
        if KIND == 0:
            # No row between the ends: what is left to decide is rounding.
            stuck = stuck | (lowest > highest)
        if looking & stuck:
            # The best so far. Rounding of the weights `p` may leave nothing else.
            if high_a == high_a:
                found, found_x = high, high_x
                found_a, found_b, found_d = high_a, high_b, high_d
            else:
                found, found_x = low, low_x
                found_a, found_b, found_d = low_a, low_b, low_d
            looking = looking & (not stuck)

        # The next two thresholds.
        if looking:
            slow = tl.where(high - low > 0.25 * width, slow + 1, 0)
            width = high - low
            middle, middle_x = 0.5 * low + 0.5 * high, zero
            half, half_x = _halfway(low, high, LOWEST), zero
            if KIND == 0:
                share = _between(low_a + low_b, zero, high_a + high_b, zero, zero, 0)
                guess = low + share * width
                if not ((low < guess) & (guess < high)):
                    guess = middle
                s, t = guess - 0.0625 * width, guess + 0.0625 * width
                if lowest == highest:
                    s, t = lowest, half
                elif done % 3 == 0:
                    s, t = guess, half
                elif slow > 0:
                    s, t = lowest, highest
                # The lower end may itself be the threshold.
                if not ((low <= s) & (s < high)):
                    s = low
                if not ((low < t) & (t < high)):
                    t = half
            else:
                units = width * inverse + low_x - high_x
                # Between neighbouring floats.
                if not _within(half, half_x, low, low_x, high, high_x, inverse):
                    half, half_x = high, high_x + 0.5 * units
                if not _within(middle, middle_x, low, low_x, high, high_x, inverse):
                    middle, middle_x = half, half_x
                low_total = _total(low_a, low_b, low_d, cap, price, KIND)
                high_total = _total(high_a, high_b, high_d, cap, price, KIND)
                s, s_x = _newton(high, high_x, high_a, high_b, high_d, c, inverse, cap, price, KIND)
                t, t_x = _newton(low, low_x, low_a, low_b, low_d, c, inverse, cap, price, KIND)
                # First Newton's step from the end that is closer; the other is not known at first.
                if (low_total - 1.0 < 1.0 - high_total) | (high_a != high_a):
                    s, s_x, t, t_x = t, t_x, s, s_x
                if not _within(s, s_x, low, low_x, high, high_x, inverse):
                    s, s_x = t, t_x
                if not _within(s, s_x, low, low_x, high, high_x, inverse):
                    s, s_x = half, half_x
                share = _between(low_total, low_b, high_total, high_b, units, KIND)
                guess, guess_x = _moved(low, low_x - share * units, c, inverse)
                if not _within(guess, guess_x, low, low_x, high, high_x, inverse):
                    guess, guess_x = middle, middle_x
                if slow % 3 != 1:
                    t, t_x = guess, guess_x
                if slow % 3 == 2:
                    t, t_x = half, half_x
                if (slow > 0) & (slow % 3 == 0):
                    t, t_x = middle, middle_x
                # Among steps, the highest row at which there is one.
                if ((lowest == highest) | (done % 2 == 1)) & (low < highest) & (highest < high):
                    t, t_x = highest, zero
                # No more than 64 times.
                if done % 4 == 0:
                    t, t_x = half, half_x
                if not _within(t, t_x, low, low_x, high, high_x, inverse):
                    t, t_x = middle, middle_x

    # ---- the weights
    full, level, shift = cap, zero, found_x
    if KIND == 0:
        full = cap / tl.maximum(found_a, 1.0)
        level = tl.where(found_b > 0.0, cap * tl.maximum(1.0 - found_a, 0.0) / found_b, 0.0)
    if KIND == 1:
        shift = found_x + tl.where(found_b > 0.0, (1.0 - found_a) / found_b, 0.0)
    if KIND == 2:
        rest = tl.maximum(1.0 - found_a, 0.0)
        level = tl.where(found_b > 0.0, rest / found_b, 0.0)
    alone = (found_a == 0.0) & (price < 1e-150)
    if KIND == 3:
        mean = found_a / found_b
        if alone:
            level = 1.0 / found_b
        elif (price > 0.0) & (found_a / price <= _inside(found_a, found_d, cap)):
            shift, level = found_x + (price - found_a) / found_b, 1.0 / price
        else:
            # Around their mean: the variance of rows that are close to each other keeps its digits.
            first = tl.zeros((LANES,), tl.float64)
            second, out = first, first
            for step in range(0, mine):
                turn = tl.where(done % 2 == 1, mine - 1 - step, step)
                at = (own + turn * programs) * (DEPTH * LANES) + tile
                u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
                r = (u - found) * inverse + found_x
                kept = r > -1e-150
                r = tl.where(kept, r - mean, 0.0)
                share = r
                rest = tl.where(kept | (at >= n), 0.0, 1.0 + r)
                if not UNIFORM:
                    share = p * r
                    rest = tl.where(kept, 0.0, p)
                first += tl.sum(share, axis=0)
                second += tl.sum(share * r, axis=0)
                out += tl.sum(rest, axis=0)
            place = sums_ptr + 18 * PROGRAMS + own
            tl.store(place, tl.sum(first))
            tl.store(place + PROGRAMS, tl.sum(second))
            tl.store(place + 2 * PROGRAMS, tl.sum(out))
            meetings += 1
            _meet(counter_ptr, meetings * programs)
            place = sums_ptr + 18 * PROGRAMS + tl.arange(0, PROGRAMS)
            there = tl.arange(0, PROGRAMS) < programs
            apart = tl.sum(tl.load(place, mask=there, other=0.0))
            variance = tl.sum(tl.load(place + PROGRAMS, mask=there, other=0.0))
            outside = tl.sum(tl.load(place + 2 * PROGRAMS, mask=there, other=0.0))
            if UNIFORM:
                apart, variance, outside = apart * unit, variance * unit, outside * unit
            apart = apart / found_b
            variance = variance / found_b - apart * apart
            room = 2.0 * cap * found_b - outside
            level = 1.0 / found_a
            if (variance > 0.0) & (room > 0.0):
                cut = tl.sqrt(variance / room)
                shift = found_x - (mean + apart) + cut
                level = 1.0 / (found_b * cut)
    found = tl.where(finite, found, nan)
    for step in range(0, mine):
        turn = tl.where(done % 2 == 1, mine - 1 - step, step)
        at = (own + turn * programs) * (DEPTH * LANES) + tile
        u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
        if KIND == 0:
            ratio = tl.where(u > found, full, tl.where(u == found, level, 0.0))
        elif KIND == 1:
            ratio = _clip((u - found) * inverse + shift, cap)
        elif KIND == 3:
            r = (u - found) * inverse + shift
            ratio = level * tl.where(r > 0.0, r, 0.0)
            if alone:
                ratio = tl.where(r > -1e-150, level, 0.0)
        else:
            r = (u - found) * inverse + shift
            lifted = tl.exp(tl.where(r < 0.0, r, 0.0)) * tl.where(r > 0.0, 1.0, level)
            ratio = cap * tl.where(lifted < 1.0, lifted, 1.0)
        if UNIFORM:
            q = unit * ratio
        else:
            q = tl.where(p > 0.0, p * ratio, 0.0)
        tl.store(q_ptr + at, tl.where(finite, q, nan), mask=at < n)
    if REMEMBERS:  # noqa: SIM102
        if own == 0:
            if (KIND == 1) | (KIND == 3):
                found = found - c * shift
            tl.store(memory_ptr, found)
            tl.store(memory_ptr + 1, tl.where(warm, found - old, scale))
            tl.store(memory_ptr + 2, zero + done)


# --------------------------------------------------------------------------------- without a search


@triton.jit
def _top(
    u_ptr,
    p_ptr,
    q_ptr,
    c_ptr,
    sums_ptr,
    counter_ptr,
    n,
    price: tl.float64,
    VERTEX: tl.constexpr,
    UNIFORM: tl.constexpr,
    PRICED: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Without a cap: ``q ~ p exp(u / c)``, and for ``c = 0`` what is tied at the top."""
    own = tl.program_id(0)
    programs = tl.num_programs(0)
    zero = tl.zeros((), tl.float64)
    c = zero + price
    if PRICED:
        c = tl.load(c_ptr)
    inverse = 1.0 / tl.where(c < 1e-300, zero + 1e-300, c)
    tile = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tiles = (n + DEPTH * LANES - 1) // (DEPTH * LANES)
    mine = (tiles - own + programs - 1) // programs
    lane = tl.arange(0, PROGRAMS)
    there = lane < programs

    wrong = tl.zeros((LANES,), tl.float64)
    highest = wrong - float("inf")
    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
        wrong += tl.sum(_wrong(u, p, at, n, UNIFORM), axis=0)
        highest = tl.maximum(highest, tl.max(u, axis=0))
    tl.store(sums_ptr + own, tl.sum(wrong))
    tl.store(sums_ptr + PROGRAMS + own, tl.max(highest))
    _meet(counter_ptr, programs)
    finite = tl.sum(tl.load(sums_ptr + lane, mask=there, other=0.0)) == 0.0
    top = tl.max(tl.load(sums_ptr + PROGRAMS + lane, mask=there, other=float("-inf")))

    share = tl.zeros((LANES,), tl.float64)
    for step in range(0, mine):
        at = (own + (mine - 1 - step) * programs) * (DEPTH * LANES) + tile
        u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
        if VERTEX:
            lifted = tl.where(u == top, 1.0 + zero, zero)
        else:
            lifted = tl.exp((u - top) * inverse)
        if not UNIFORM:
            lifted = p * lifted
        share += tl.sum(lifted, axis=0)
    tl.store(sums_ptr + 2 * PROGRAMS + own, tl.sum(share))
    _meet(counter_ptr, 2 * programs)
    total = tl.sum(tl.load(sums_ptr + 2 * PROGRAMS + lane, mask=there, other=0.0))
    total = tl.where(finite, 1.0 / total, float("nan"))

    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = _load(u_ptr, p_ptr, at, n, UNIFORM)
        if VERTEX:
            lifted = tl.where(u == top, 1.0 + zero, zero)
        else:
            lifted = tl.exp((u - top) * inverse)
        if not UNIFORM:
            lifted = p * lifted
        # NaN, where it is, also for rows at 0.
        tl.store(q_ptr + at, tl.where(lifted > 0.0, lifted, 0.0) * total, mask=at < n)


# ----------------------------------------------------------------------------------------- launches


def _most_programs(device: torch.device) -> int:
    """As many as can be on the device at the same time."""
    if device.type != "cuda":  # the interpreter runs one after another
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count * _RESIDENT


def _room(size: int, device: torch.device) -> Tensor:
    """Numbers that the programs of a launch share; their counter starts at 0."""
    return torch.zeros(size, dtype=torch.float64, device=device)


def _arguments(u: Tensor, p: Tensor | None, c: float | Tensor, q: Tensor) -> dict[str, Any]:
    priced = isinstance(c, Tensor)
    return {
        "u_ptr": u,
        "p_ptr": u if p is None else p,
        "q_ptr": q,
        "c_ptr": c if priced else u,
        "price": 1.0 if priced else float(c),
        "n": u.shape[0],
        "UNIFORM": p is None,
        "PRICED": priced,
        "DEPTH": _DEPTH,
        "LANES": _LANES,
        "num_warps": _WARPS,
        "maxnreg": _REGISTERS,
        "launch_cooperative_grid": True,
    }


def search(
    kind: int,
    u: Tensor,
    p: Tensor | None,
    c: float | Tensor,
    bound: float,
    q: Tensor,
    memory: Tensor | None,
) -> None:
    """Write the weights into `q`; see `drago.torch_engine._search.weights`."""
    with torch.cuda.device_of(u) if u.is_cuda else contextlib.nullcontext():
        _launch(kind, u, p, c, bound, q, memory)


def _launch(
    kind: int,
    u: Tensor,
    p: Tensor | None,
    c: float | Tensor,
    bound: float,
    q: Tensor,
    memory: Tensor | None,
) -> None:
    most = _most_programs(u.device)
    programs = min(most, triton.cdiv(u.shape[0], _DEPTH * _LANES))
    padded = max(2, triton.next_power_of_2(most))
    sample = _MANY if programs >= 32 else _FEW
    room = _room(21 * padded + 2 * sample + 1, u.device)
    settings = _arguments(u, p, c, q)
    if math.isinf(bound) and kind in (VERTEX, KL):
        _top[(programs,)](
            sums_ptr=room,
            counter_ptr=room[-1:].view(torch.int32),
            VERTEX=kind == VERTEX,
            PROGRAMS=padded,
            **settings,
        )
        return
    _search[(programs,)](
        memory_ptr=u if memory is None else memory,
        sums_ptr=room,
        sample_ptr=room[21 * padded :],
        counter_ptr=room[-1:].view(torch.int32),
        cap=bound,
        KIND=kind,
        REMEMBERS=memory is not None,
        FREE=kind == BALL and not isinstance(c, Tensor) and c == 0,
        PROGRAMS=padded,
        SAMPLE=sample,
        AT_ONCE=_TABLE // sample,
        PASSES=_PASSES,
        CLOSE=_CLOSE,
        STEEP=_STEEP,
        LOWEST=_LOWEST,
        FUSED=u.is_cuda,
        **settings,
    )
