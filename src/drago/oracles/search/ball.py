"""The weights of KL balls as one kernel, in Triton; see `drago.oracles.search.launch`.

``q_i ~ p_i exp(theta x_i)`` with ``x`` the losses from the largest one, in units of their spread.
The divergence rises with ``theta``; it may be as large as the radius, and ``theta`` as large as the
price of the divergence says. A pass over the rows gives the divergence, and how fast it grows, at
two values of ``theta``: Newton's step for its logarithm from the better end of the bracket, and the
root of a cubic through both ends; where that is slow, the middle of the bracket. So a few passes
are usual, after three that find the extremes, the mean and the variance.
"""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl

from drago.oracles.search.parts import between, count_wrong, load, meet


@triton.jit
def _more(e, lifted):
    """``exp(e) - 1 - e``, a small one by its series; `lifted` is ``exp(e)``."""
    near = tl.abs(e) < 0.5
    z = tl.where(near, e, 0.0)
    series = 1.0 + z * (1.0 / 16.0)
    for k in tl.static_range(15, 2, -1):
        series = 1.0 + z * (1.0 / k) * series
    return tl.where(near, 0.5 * z * z * series, lifted - 1.0 - e)


@triton.jit
def _terms(u, p, theta, ref, shift, inverse, near, UNIFORM: tl.constexpr):
    """What rows add to the sums of ``p E``, ``p E r`` and ``p E r^2``, ``E = exp(theta r)``.

    Where `near`, ``r`` is measured from the mean, and the first two sums have ``E - 1 - theta r``
    and ``E - 1`` for ``E``: a small divergence keeps its digits.
    """
    there = u > float("-inf")
    r = tl.where(there, (u - ref) * inverse - shift, 0.0)
    e = theta * r
    lifted = tl.exp(e)
    first, second = lifted, lifted
    if near:
        first = _more(e, lifted)
        second = first + e
    share = tl.where(there, 1.0, 0.0)
    if not UNIFORM:
        share = tl.where(there, p, 0.0)
    first, second, third = share * first, share * second * r, share * lifted * r * r
    return tl.sum(first, axis=0), tl.sum(second, axis=0), tl.sum(third, axis=0)


@triton.jit
def _divergence(theta, first, second, third, near):
    """The divergence, its derivative in ``log(theta)`` and its rounding; sums are over the mass."""
    total = first
    if near:
        total = 1.0 + first
    mean = second / total
    log = tl.log(total)
    if near:
        # With the digits of the sum that 1 has taken.
        log = log + (first - (total - 1.0)) / total
    slope = theta * theta * (third / total - mean * mean)
    return theta * mean - log, slope, 4e-16 * (tl.abs(theta * mean) + tl.abs(log))


@triton.jit
def _newton(theta, divergence, slope, radius):
    """Where the divergence is the radius if it is a power of ``theta``; NaN if nowhere."""
    slope = tl.where((slope > 0.0) & (divergence > 0.0), slope, float("nan"))
    return theta * tl.exp(tl.log(radius / divergence) * (divergence / slope))


@triton.jit
def kl_ball(
    u_ptr,
    p_ptr,
    q_ptr,
    c_ptr,
    memory_ptr,
    sums_ptr,
    counter_ptr,
    n,
    price: tl.float64,
    radius: tl.float64,
    UNIFORM: tl.constexpr,
    PRICED: tl.constexpr,
    REMEMBERS: tl.constexpr,
    FREE: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    PASSES: tl.constexpr,
):
    own = tl.program_id(0)
    programs = tl.num_programs(0)
    zero = tl.zeros((), tl.float64)
    nan = zero + float("nan")
    radius = zero + radius
    c = zero + price
    if PRICED:
        c = tl.load(c_ptr)
    meetings = 0
    tile = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tiles = (n + DEPTH * LANES - 1) // (DEPTH * LANES)
    mine = (tiles - own + programs - 1) // programs
    lane = tl.arange(0, PROGRAMS)
    there = lane < programs
    nothing = tl.zeros((LANES,), tl.float64)

    # ---- the extremes
    wrong, least, most = nothing, nothing + float("inf"), nothing - float("inf")
    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        wrong += tl.sum(count_wrong(u, p, at, n, UNIFORM), axis=0)
        least = tl.minimum(least, tl.min(tl.where(u > float("-inf"), u, float("inf")), axis=0))
        most = tl.maximum(most, tl.max(u, axis=0))
    place = sums_ptr + 18 * PROGRAMS
    tl.store(place + own, tl.sum(wrong))
    tl.store(place + PROGRAMS + own, tl.min(least))
    tl.store(place + 2 * PROGRAMS + own, tl.max(most))
    meetings += 1
    meet(counter_ptr, meetings * programs)
    finite = tl.sum(tl.load(place + lane, mask=there, other=0.0)) == 0.0
    bottom = tl.min(tl.load(place + PROGRAMS + lane, mask=there, other=float("inf")))
    top = tl.max(tl.load(place + 2 * PROGRAMS + lane, mask=there, other=float("-inf")))
    spread = tl.where(top > bottom, top - bottom, 1.0)
    inverse = 1.0 / tl.where(spread < 1e-300, zero + 1e-300, spread)

    # ---- the mean, what is tied at the top, and how far the next is below
    gaps, tied, sums, masses = nothing + float("inf"), nothing, nothing, nothing
    for step in range(0, mine):
        at = (own + (mine - 1 - step) * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        taken = u > float("-inf")
        x = tl.where(taken, (u - top) * inverse, 0.0)
        share = tl.where(taken, 1.0, 0.0)
        if not UNIFORM:
            share = tl.where(taken, p, 0.0)
        gaps = tl.minimum(gaps, tl.min(tl.where(x < 0.0, -x, float("inf")), axis=0))
        tied += tl.sum(tl.where(u == top, share, 0.0), axis=0)
        sums += tl.sum(share * x, axis=0)
        masses += tl.sum(share, axis=0)
    place = sums_ptr + 12 * PROGRAMS
    tl.store(place + own, tl.min(gaps))
    tl.store(place + PROGRAMS + own, tl.sum(tied))
    tl.store(place + 2 * PROGRAMS + own, tl.sum(sums))
    tl.store(place + 3 * PROGRAMS + own, tl.sum(masses))
    meetings += 1
    meet(counter_ptr, meetings * programs)
    gap = tl.min(tl.load(place + lane, mask=there, other=float("inf")))
    heaviest = tl.sum(tl.load(place + PROGRAMS + lane, mask=there, other=0.0))
    mean = tl.sum(tl.load(place + 2 * PROGRAMS + lane, mask=there, other=0.0))
    mass = tl.sum(tl.load(place + 3 * PROGRAMS + lane, mask=there, other=0.0))
    over = 1.0 / mass
    mean, heaviest = mean * over, heaviest * over
    centre = top + mean * spread

    # ---- the variance, and the mean once more from nearby, where differences are exact
    sums, squares = nothing, nothing
    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        x = tl.where(u > float("-inf"), (u - centre) * inverse, 0.0)
        share = x
        if not UNIFORM:
            share = tl.where(u > float("-inf"), p * x, 0.0)
        sums += tl.sum(share, axis=0)
        squares += tl.sum(share * x, axis=0)
    place = sums_ptr + 16 * PROGRAMS
    tl.store(place + own, tl.sum(sums))
    tl.store(place + PROGRAMS + own, tl.sum(squares))
    meetings += 1
    meet(counter_ptr, meetings * programs)
    shift = tl.sum(tl.load(place + lane, mask=there, other=0.0)) * over
    variance = tl.sum(tl.load(place + PROGRAMS + lane, mask=there, other=0.0)) * over
    variance = variance - shift * shift
    # The largest row, from the mean.
    reach = (top - centre) * inverse - shift

    # ---- the bracket: the divergence is at most theta^2 / 8, for the spread is 1; it is complete
    # ---- where the second largest loss has vanished
    high = tl.minimum(800.0 / tl.where(gap < 1.0, gap, 1.0), zero + 1e298)
    if not FREE:
        high = tl.minimum(high, spread / c)
    low = tl.minimum(high, 2.0 * tl.sqrt(radius))
    low_d, low_b, high_d, high_b = nan, nan, nan, nan
    s, t = tl.sqrt(2.0 * radius / variance), high
    old = nan
    if REMEMBERS:
        old = tl.load(memory_ptr)
        s = tl.where(old > 0.0, spread / old, s)
    middle = tl.sqrt(low) * tl.sqrt(high)
    s = tl.where((low < s) & (s < high), s, middle)
    theta, width = high, nan
    slow, done = 0, 0
    looking = finite
    fits = zero > 0.0
    if FREE:
        fits = -tl.log(heaviest) <= radius
        looking = looking & (not fits)
    while looking:
        odd = done % 2
        s_near, t_near = s * reach < 30.0, t * reach < 30.0
        s_ref, s_shift = tl.where(s_near, centre, top), tl.where(s_near, shift, 0.0)
        t_ref, t_shift = tl.where(t_near, centre, top), tl.where(t_near, shift, 0.0)
        s_first, s_second, s_third = nothing, nothing, nothing
        t_first, t_second, t_third = nothing, nothing, nothing
        for step in range(0, mine):
            # There and back: what was read last is still in the cache.
            turn = tl.where(odd == 0, mine - 1 - step, step)
            at = (own + turn * programs) * (DEPTH * LANES) + tile
            u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
            a, b, d = _terms(u, p, s, s_ref, s_shift, inverse, s_near, UNIFORM)
            s_first, s_second, s_third = s_first + a, s_second + b, s_third + d
            a, b, d = _terms(u, p, t, t_ref, t_shift, inverse, t_near, UNIFORM)
            t_first, t_second, t_third = t_first + a, t_second + b, t_third + d
        # The programs that are still reading the sums of the pass before are the reason for two
        # places.
        place = sums_ptr + odd * (6 * PROGRAMS)
        tl.store(place + own, tl.sum(s_first))
        tl.store(place + PROGRAMS + own, tl.sum(s_second))
        tl.store(place + 2 * PROGRAMS + own, tl.sum(s_third))
        tl.store(place + 3 * PROGRAMS + own, tl.sum(t_first))
        tl.store(place + 4 * PROGRAMS + own, tl.sum(t_second))
        tl.store(place + 5 * PROGRAMS + own, tl.sum(t_third))
        meetings += 1
        meet(counter_ptr, meetings * programs)
        hit = zero > 0.0
        for k in tl.static_range(2):
            a = tl.sum(tl.load(place + (3 * k) * PROGRAMS + lane, mask=there, other=0.0)) * over
            b = tl.sum(tl.load(place + (3 * k + 1) * PROGRAMS + lane, mask=there, other=0.0)) * over
            d = tl.sum(tl.load(place + (3 * k + 2) * PROGRAMS + lane, mask=there, other=0.0)) * over
            if k == 0:
                tried, near = s, s_near
            else:
                tried, near = t, t_near
            divergence, slope, rounding = _divergence(tried, a, b, d, near)
            onward = _newton(tried, divergence, slope, radius)
            below = divergence <= radius
            # The last step makes the error of the one before a square.
            close = (tl.abs(onward - tried) <= 1e-9 * tried) & (low <= onward) & (onward <= high)
            if close:
                theta = onward
            elif tl.abs(divergence - radius) <= rounding:
                theta = tried
            close = close | (tl.abs(divergence - radius) <= rounding)
            if below & (tried >= high):
                # The price allows no more.
                theta = high
                close = below
            hit = hit | close
            if below:
                if (tried > low) | (low_d != low_d):
                    low, low_d, low_b = tried, divergence, slope
            else:
                if (tried < high) | (high_d != high_d):
                    high, high_d, high_b = tried, divergence, slope
        done += 1
        stuck = (done >= PASSES) | (not (high > low * (1.0 + 4e-16)))
        if stuck & (not hit):
            theta = low
        looking = looking & (not (hit | stuck))

        # The next two.
        if looking:
            units = tl.log(high / low)
            slow = tl.where(units > 0.25 * width, slow + 1, 0)
            width = units
            middle = tl.sqrt(low) * tl.sqrt(high)
            s = _newton(low, low_d, low_b, radius)
            other = _newton(high, high_d, high_b, radius)
            if (not (low_d * high_d > radius * radius)) & (high_d == high_d):
                s, other = other, s
            if not ((low < s) & (s < high)):
                s = other
            if not ((low < s) & (s < high)):
                s = middle
            share = between(
                radius / low_d,
                (low_b / low_d) * (radius / low_d),
                radius / high_d,
                (high_b / high_d) * (radius / high_d),
                units,
                2,
            )
            t = low * tl.exp(share * units)
            if (slow > 0) | (not ((low < t) & (t < high))):
                t = middle

    # ---- the weights
    sums = nothing
    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        if fits:
            lifted = tl.where(u == top, 1.0 + zero, zero)
        else:
            lifted = tl.exp(theta * ((u - top) * inverse))
        if not UNIFORM:
            lifted = tl.where(p > 0.0, p * lifted, 0.0)
        sums += tl.sum(lifted, axis=0)
    place = sums_ptr + 12 * PROGRAMS
    tl.store(place + own, tl.sum(sums))
    meetings += 1
    meet(counter_ptr, meetings * programs)
    total = tl.sum(tl.load(place + lane, mask=there, other=0.0))
    total = tl.where(finite, 1.0 / total, nan)
    for step in range(0, mine):
        at = (own + (mine - 1 - step) * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        if fits:
            lifted = tl.where(u == top, 1.0 + zero, zero)
        else:
            lifted = tl.exp(theta * ((u - top) * inverse))
        if not UNIFORM:
            lifted = tl.where(p > 0.0, p * lifted, 0.0)
        # NaN, where it is, also for rows at 0.
        tl.store(q_ptr + at, tl.where(lifted > 0.0, lifted, 0.0) * total, mask=at < n)
    if REMEMBERS:  # noqa: SIM102
        if own == 0:
            found = tl.where(finite, spread / theta, nan)
            tl.store(memory_ptr, found)
            tl.store(memory_ptr + 1, found - old)
            tl.store(memory_ptr + 2, zero + done)
