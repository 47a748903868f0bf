"""The threshold search as one kernel, in Triton; see `drago.oracles.search.launch`."""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl

from drago.oracles.search.parts import (
    before,
    between,
    clip,
    count_wrong,
    halfway,
    inside_ball,
    load,
    meet,
    move,
    newton,
    number,
    numbered,
    pair,
    squares,
    sums,
    total_weight,
    within,
)


@triton.jit
def search(
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
            u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
            wrong += tl.sum(count_wrong(u, p, at, n, UNIFORM), axis=0)
            kept = u > float("-inf")
            above = tl.minimum(above, tl.min(tl.where(kept, u, float("inf")), axis=0))
            below = tl.maximum(below, tl.max(u, axis=0))
        place = sums_ptr + 18 * PROGRAMS + own
        tl.store(place, tl.sum(wrong))
        tl.store(place + PROGRAMS, tl.min(above))
        tl.store(place + 2 * PROGRAMS, tl.max(below))
        meetings += 1
        meet(counter_ptr, meetings * programs)
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
                ratio = clip(apart * inverse, cap)
            elif KIND == 3:
                ratio = tl.where(apart > 0.0, apart * inverse, 0.0)
            else:
                ratio = cap * tl.exp(tl.where(apart < 0.0, apart * inverse, 0.0))
            first = tl.sum(p[None, :] * ratio, axis=1)
            if KIND == 3:
                second = tl.sum(p[None, :] * (ratio * ratio), axis=1)
                first = total_weight(first, first * 0.0, second, cap, price, 3)
            else:
                off = p[None, :] * (ratio - 1.0)
                second = tl.sum(off * off, axis=1)
            tl.store(sample_ptr + tried, first)
            tl.store(sample_ptr + SAMPLE + tried, second)
        meetings += 1
        meet(counter_ptr, meetings * programs)
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
            u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
            if inside:
                wrong += tl.sum(count_wrong(u, p, at, n, UNIFORM), axis=0)
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
            a, b = pair(u, p, s, s_x, inverse, cap, s_lifted, 1.0, KIND, UNIFORM)
            s_first, s_second = s_first + a, s_second + b
            a, b = pair(u, p, t, t_x, inverse, cap, t_lifted, factor, KIND, UNIFORM)
            t_first, t_second = t_first + a, t_second + b
            if KIND == 3:
                s_third += squares(u, p, s, s_x, inverse, UNIFORM)
                t_third += squares(u, p, t, t_x, inverse, UNIFORM)

        # The sums of this program, and those of all. The programs that are still reading the sums
        # of the pass before are the reason for two places.
        s_a, s_b, t_a, t_b, bad = sums(
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
        meet(counter_ptr, meetings * programs)
        lane = tl.arange(0, PROGRAMS)
        place = sums_ptr + odd * (9 * PROGRAMS) + lane
        there = lane < programs
        s_a, s_b, t_a, t_b, bad = sums(
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
                low = numbered(number(low, LOWEST) - 1, LOWEST)
            high = numbered(number(high, LOWEST) + 1, LOWEST)
        done += 1

        # What the sums say.
        for k in tl.static_range(2):
            if k == 0:
                tried, tried_x, a, b, d = s, s_x, s_a, s_b, s_d
            else:
                tried, tried_x, a, b, d = t, t_x, t_a, t_b, t_d
            total = total_weight(a, b, d, cap, price, KIND)
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
                better = before(low, low_x, tried, tried_x, inverse)
                if better | ((low == tried) & (low_a != low_a)):
                    low, low_x, low_a, low_b, low_d = tried, tried_x, a, b, d
            else:
                better = before(tried, tried_x, high, high_x, inverse)
                if better | ((high == tried) & (high_a != high_a)):
                    high, high_x, high_a, high_b, high_d = tried, tried_x, a, b, d
        stuck = (done >= PASSES) | (not finite) | (not before(low, low_x, high, high_x, inverse))
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
            half, half_x = halfway(low, high, LOWEST), zero
            if KIND == 0:
                share = between(low_a + low_b, zero, high_a + high_b, zero, zero, 0)
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
                if not within(half, half_x, low, low_x, high, high_x, inverse):
                    half, half_x = high, high_x + 0.5 * units
                if not within(middle, middle_x, low, low_x, high, high_x, inverse):
                    middle, middle_x = half, half_x
                low_total = total_weight(low_a, low_b, low_d, cap, price, KIND)
                high_total = total_weight(high_a, high_b, high_d, cap, price, KIND)
                s, s_x = newton(high, high_x, high_a, high_b, high_d, c, inverse, cap, price, KIND)
                t, t_x = newton(low, low_x, low_a, low_b, low_d, c, inverse, cap, price, KIND)
                # First Newton's step from the end that is closer; the other is not known at first.
                if (low_total - 1.0 < 1.0 - high_total) | (high_a != high_a):
                    s, s_x, t, t_x = t, t_x, s, s_x
                if not within(s, s_x, low, low_x, high, high_x, inverse):
                    s, s_x = t, t_x
                if not within(s, s_x, low, low_x, high, high_x, inverse):
                    s, s_x = half, half_x
                share = between(low_total, low_b, high_total, high_b, units, KIND)
                guess, guess_x = move(low, low_x - share * units, c, inverse)
                if not within(guess, guess_x, low, low_x, high, high_x, inverse):
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
                if not within(t, t_x, low, low_x, high, high_x, inverse):
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
        elif (price > 0.0) & (found_a / price <= inside_ball(found_a, found_d, cap)):
            shift, level = found_x + (price - found_a) / found_b, 1.0 / price
        else:
            # Around their mean: the variance of rows that are close to each other keeps its digits.
            first = tl.zeros((LANES,), tl.float64)
            second, out = first, first
            for step in range(0, mine):
                turn = tl.where(done % 2 == 1, mine - 1 - step, step)
                at = (own + turn * programs) * (DEPTH * LANES) + tile
                u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
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
            meet(counter_ptr, meetings * programs)
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
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        if KIND == 0:
            ratio = tl.where(u > found, full, tl.where(u == found, level, 0.0))
        elif KIND == 1:
            ratio = clip((u - found) * inverse + shift, cap)
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
