"""The dual oracle of a capped simplex, ``0 <= q_i <= cap p_i``, without sorting.

Solved here: ``argmax_q <u, q> - c Omega(q)`` with ``sum q = 1``. One scalar ``tau`` decides::

    chi2:  q_i = p_i clip((u_i - tau) / c, 0, cap)
    KL:    q_i = p_i min(exp((u_i - tau) / c), cap)

CVaR has ``cap = 1 / tail_fraction``, the whole simplex ``cap = inf``. ``tau`` is kept as the pair
``(ref, delta)``, ``tau = ref + delta``: differences to a nearby ``ref`` are exact in floating
point, so the answer stays right where ``c`` is far below the rounding of ``u``.
"""

import math

import numpy as np

from drago.kernels import REDUCE, jit

TINY = float(np.finfo(np.float64).tiny)

# Passes of Newton's method before the robust start (a selection in linear time) is paid for.
PATIENCE = 12
SUBSAMPLE = 2048
# Steps of the search that follows such a start: more than there are halvings of a bracket.
BISECTIONS = 1100
# Rows that a selection looks at first, at least.
SAMPLE = 512


@jit()
def _select(a, w, above, mass):
    """The largest value ``m`` of ``a`` with ``above + w(a >= m) >= mass``; both are overwritten.

    Quickselect by mass with three-way partition: ties are one element.
    """
    lo, hi = 0, a.shape[0]
    while hi - lo > 1:
        x, y, z = a[lo], a[(lo + hi) // 2], a[hi - 1]
        pivot = max(min(x, y), min(max(x, y), z))
        left, i, right = lo, lo, hi  # [lo, left) > pivot, [left, i) == pivot, [right, hi) < pivot
        mass_greater, mass_equal = 0.0, 0.0
        while i < right:
            v = a[i]
            if v > pivot:
                mass_greater += w[i]
                a[i], a[left] = a[left], v
                w[i], w[left] = w[left], w[i]
                left += 1
                i += 1
            elif v < pivot:
                right -= 1
                a[i], a[right] = a[right], v
                w[i], w[right] = w[right], w[i]
            else:
                mass_equal += w[i]
                i += 1
        if above + mass_greater >= mass:
            hi = left
        elif above + mass_greater + mass_equal >= mass or right == hi:
            return pivot
        else:
            above += mass_greater + mass_equal
            lo = right
    return a[lo]


@jit(fastmath=REDUCE)
def _mass_above(u, p, low, high):
    """The mass above `high`, the mass between, and how many rows that is."""
    above, between, size = 0.0, 0.0, 0
    for i in range(u.shape[0]):
        share, value = p[i], u[i]
        above += share if value > high else 0.0
        inside = (value >= low) & (value <= high)
        between += share if inside else 0.0
        size += 1 if inside else 0
    return above, between, size


@jit()
def upper_quantile(u, p, mass):
    """The largest value ``m`` of ``u`` with ``p(u >= m) >= mass``; linear time on average.

    Where there are many rows, the same of some of them for a little more and a little less mass
    is a bracket (Floyd and Rivest 1975), and what lies in it is selected from.
    """
    n = u.shape[0]
    size = max(SAMPLE, int(n ** (2.0 / 3.0)))
    if n > 4 * size:
        stride = n // size
        some, weight = u[::stride].copy(), p[::stride].copy()
        total = weight.sum()
        share = min(mass, 1.0)
        spread = 3.0 * math.sqrt(max(share * (1.0 - share), 1.0 / size) / size)
        low, high = -math.inf, math.inf
        if share + spread < 1.0:
            low = _select(some, weight, 0.0, (share + spread) * total)
        if share - spread > 0.0:
            high = _select(some, weight, 0.0, (share - spread) * total)
        above, between, size = _mass_above(u, p, low, high)
        if above < mass <= above + between:
            a, w = np.empty(size), np.empty(size)
            size = 0
            for i in range(n):
                if (u[i] >= low) & (u[i] <= high):
                    a[size] = u[i]
                    w[size] = p[i]
                    size += 1
            return _select(a, w, above, mass)
    return _select(u.copy(), p.copy(), 0.0, mass)


@jit(error_model="numpy")  # losses that are no numbers give weights that are none
def capped_vertex(u, p, cap, q):
    """``c = 0``: the cap is filled from the largest loss down; ties share in proportion to p."""
    n = u.shape[0]
    threshold = upper_quantile(u, p, 1.0 / cap if cap < math.inf else 0.0)
    # One row may take what is left of the mass: a sum that loses digits would be its error.
    above, lost, tied = 0.0, 0.0, 0.0
    for i in range(n):
        if u[i] > threshold:
            term = p[i] - lost
            total = above + term
            lost = (total - above) - term
            above = total
        elif u[i] == threshold:
            tied += p[i]
    cap = min(cap, 1.0 / above) if above > 0.0 else cap
    level = min(max(1.0 - cap * above, 0.0) / tied, cap) if above > 0.0 else 1.0 / tied
    for i in range(n):
        q[i] = p[i] * cap if u[i] > threshold else (p[i] * level if u[i] == threshold else 0.0)
    return threshold


@jit(fastmath=REDUCE, error_model="numpy")
def _chi2_sums(u, p, ref, delta, top):
    """Masses of the free and of the capped rows, and ``sum p (u - ref)`` of the free ones."""
    free, capped, moment = 0.0, 0.0, 0.0
    for i in range(u.shape[0]):
        share = p[i]  # read for every row: not every processor can skip some in a vector
        d = u[i] - ref
        x = d - delta
        w_free = share if (x > 0.0) & (x < top) else 0.0
        free += w_free
        moment += w_free * d
        capped += share if x >= top else 0.0
    return free, capped, moment


@jit(error_model="numpy")
def _chi2_newton(u, p, c, cap, ref):
    """Newton's method on the piecewise linear ``sum q(tau) - 1`` from ``tau = ref``.

    Done when a pass finds the free and capped rows that the step before assumed: ``tau`` is then
    exact for them. Returns ``ref, delta, done`` and the sums of that pass.
    """
    top = c * cap
    delta, lo, hi = 0.0, -math.inf, math.inf
    last_free, last_capped = -1.0, -1.0
    for _ in range(PATIENCE):
        free, capped, moment = _chi2_sums(u, p, ref, delta, top)
        full = cap * capped if capped > 0.0 else 0.0
        excess = full + (moment - delta * free) / c - 1.0
        if free == last_free and capped == last_capped:
            # Far from all u (an absurd start) the sums have lost their digits.
            return ref, delta, abs(excess) <= 1e-6, free, capped, moment
        if abs(excess) <= 1e-14:
            # A start that is right up to rounding: steps from it would be noise.
            return ref, delta, True, free, capped, moment
        if free <= 0.0:
            break
        last_free, last_capped = free, capped
        if excess > 0.0:
            lo = max(lo, ref + delta)
        else:
            hi = min(hi, ref + delta)
        step = (moment - c * (1.0 - full)) / free
        if not (lo <= ref + step <= hi):
            if not (lo > -math.inf and hi < math.inf):
                break
            step = 0.5 * (lo + hi) - ref
            last_free = -1.0
        shifted = ref + step
        delta = step - (shifted - ref)
        ref = shifted
    return ref, delta, False, 0.0, 0.0, 0.0


@jit(error_model="numpy")
def _chi2_exact(u, p, c, cap):
    """``tau`` by selection, then a bracketed search among the rows that it leaves open.

    With ``m`` the quantile that a vertex would use, ``tau`` lies in ``[m - c cap, m]``: rows
    further than ``c cap`` from ``m`` are settled, and ``u - m`` is exact for the others.
    """
    n = u.shape[0]
    bounded = cap < math.inf
    m = upper_quantile(u, p, 1.0 / cap if bounded else 0.0)
    tied = 0.0
    for i in range(n):
        if u[i] == m:
            tied += p[i]
    width = c * cap if bounded else c / tied
    settled = 0.0
    size = 0
    for i in range(n):
        if u[i] - m >= width and bounded:
            settled += p[i]
        elif u[i] - m > -width:
            size += 1
    d, w = np.empty(size), np.empty(size)
    size = 0
    for i in range(n):
        gap = u[i] - m
        if gap > -width and not (bounded and gap >= width):
            d[size] = gap
            w[size] = p[i]
            size += 1
    lo, hi, delta = -width, 0.0, -width
    last_free, last_capped = -1.0, -1.0
    for _ in range(BISECTIONS):
        free, capped, moment = _chi2_sums(d, w, 0.0, delta, c * cap)
        full = cap * (settled + capped) if bounded else 0.0
        if free == last_free and capped == last_capped:
            break
        excess = full + (moment - delta * free) / c - 1.0
        if excess > 0.0:
            lo = max(lo, delta)
        else:
            hi = min(hi, delta)
        last_free, last_capped = free, capped
        step = (moment - c * (1.0 - full)) / free if free > 0.0 else math.nan
        if step == delta or excess == 0.0:
            break
        if not lo < step < hi:  # not the ends, between which it might go back and forth
            step = 0.5 * (lo + hi)
            last_free = -1.0
            if step == delta:
                break
        delta = step
    return m, delta


@jit(fastmath=REDUCE, error_model="numpy")
def _chi2_write(u, p, inverse, top, cap, ref, delta, free, capped, moment, q):
    """Fill ``q``; the free rows share the mass that the capped ones leave, exactly.

    `inverse` is 1/c, an argument because the compiler would divide each row by c if it knew.
    """
    rest = 1.0 - cap * capped if capped > 0.0 else 1.0
    n = u.shape[0]
    if free <= 0.0:
        for i in range(n):
            q[i] = p[i] * cap if (u[i] - ref) - delta >= top else 0.0
        return
    mean, base = moment / free, rest / free
    total = 0.0
    for i in range(n):
        d = u[i] - ref
        x = d - delta
        value = min(max((d - mean) * inverse + base, 0.0), cap)
        value = 0.0 if x <= 0.0 else value
        value = p[i] * (cap if x >= top else value)
        q[i] = value
        total += value
    # The rounding of the mean, by c, is what the sum lacks: it goes to the free rows alike.
    if abs(total - 1.0) > 2e-13:
        missing = (1.0 - total) / free
        for i in range(n):
            x = (u[i] - ref) - delta
            if (x > 0.0) & (x < top):
                q[i] = min(max(q[i] + p[i] * missing, 0.0), p[i] * cap)


@jit()
def _normalised(p):
    """The weights of some rows, with sum 1."""
    total = 0.0
    for i in range(p.shape[0]):
        total += p[i]
    out = np.empty(p.shape[0])
    for i in range(p.shape[0]):
        out[i] = p[i] / total
    return out


@jit()
def capped_chi2(u, p, c, cap, tau, q):
    """Exact weights with the chi2 divergence; returns ``tau`` for a warm start (NaN: cold)."""
    n = u.shape[0]
    if cap <= 1.0:
        for i in range(n):
            q[i] = p[i]
        return tau
    if c < TINY:  # its inverse is not a number
        return capped_vertex(u, p, cap, q)
    done = False
    ref, delta, free, capped, moment = tau, 0.0, 0.0, 0.0, 0.0
    if math.isnan(tau) and n > 4 * SAMPLE:
        stride = n // max(SAMPLE, min(n // 16, SUBSAMPLE))
        w = _normalised(p[::stride])
        ref, delta = _chi2_exact(u[::stride].copy(), w, c, cap)
        ref += delta
    if not math.isnan(ref):
        ref, delta, done, free, capped, moment = _chi2_newton(u, p, c, cap, ref)
    if not done:
        # A copy: the sample's weights may be written to, and one kind of array compiles once.
        ref, delta = _chi2_exact(u, p.copy(), c, cap)
        free, capped, moment = _chi2_sums(u, p, ref, delta, c * cap)
    _chi2_write(u, p, 1.0 / c, c * cap, cap, ref, delta, free, capped, moment, q)
    return ref + delta


@jit(fastmath=REDUCE, error_model="numpy")
def _kl_sums(e, p, s, cap):
    """``sum p e`` of the rows below the cap at the scale ``s``, and the mass of the others."""
    open_, capped = 0.0, 0.0
    for i in range(e.shape[0]):
        share, value = p[i], e[i]
        below = value * s < cap
        open_ += share * value if below else 0.0
        capped += 0.0 if below else share
    return open_, capped


@jit(fastmath=REDUCE, error_model="numpy")
def _kl_exponentials(u, c, ref, e):
    """``e_i = exp((u_i - ref) / c)``; what would overflow is above the cap at any scale."""
    inverse = 1.0 / c
    for i in range(u.shape[0]):
        exponent = min((u[i] - ref) * inverse, 600.0)
        # Below this the result is denormal, and slow.
        e[i] = math.exp(exponent) if exponent > -700.0 else 0.0


@jit(error_model="numpy")
def _kl_scale(e, p, cap):
    """The scale ``s`` with ``sum p min(s e, cap) = 1``, by Newton's method; 0 when it fails.

    The sum is concave and piecewise linear in ``s``: from the first step on, Newton's method
    rises monotonically to the root and ends on it.
    """
    s, low, high = 1.0, 0.0, math.inf
    last_open, last_capped = -1.0, -1.0
    for _ in range(200):
        open_, capped = _kl_sums(e, p, s, cap)
        rest = 1.0 - cap * capped if capped > 0.0 else 1.0
        settled = open_ == last_open and capped == last_capped
        if settled or abs(rest - open_ * s) <= 1e-15:
            return s
        if open_ * s > rest:
            high = min(high, s)
        else:
            low = max(low, s)
        step = rest / open_ if open_ > 0.0 else math.inf
        if low < step < high:
            last_open, last_capped = open_, capped
        else:  # too many rows at the cap for a Newton step, or rounding
            step = math.sqrt(low * high) if low > 0.0 else 0.125 * high
            last_open = -1.0
        s = step
        if not (1e-200 < s < 1e200):
            return 0.0
    return s


@jit()
def capped_kl(u, p, c, cap, tau, q, log_ratio):
    """Exact weights with the KL divergence; returns ``tau`` for a warm start (NaN: cold).

    ``log_ratio``, where it is not empty, receives ``log(q / p)``, which does not underflow.
    """
    n = u.shape[0]
    if cap <= 1.0:
        for i in range(n):
            q[i] = p[i]
        for i in range(log_ratio.shape[0]):
            log_ratio[i] = 0.0
        return tau
    if c < TINY:  # its inverse is not a number
        return capped_vertex(u, p, cap, q)
    bounded = cap < math.inf
    log_cap = math.log(cap) if bounded else math.inf
    ref = tau
    if math.isnan(ref) and bounded and n > 4 * SUBSAMPLE:
        stride = n // SUBSAMPLE
        w = _normalised(p[::stride])
        v = u[::stride].copy()
        ref = upper_quantile(v, w, 1.0 / cap) - c * log_cap
        e = np.empty(v.shape[0])
        _kl_exponentials(v, c, ref, e)
        s = _kl_scale(e, w, cap)
        ref = ref - c * math.log(s) if s > 0.0 else math.nan
    s = 0.0
    if not math.isnan(ref):
        _kl_exponentials(u, c, ref, q)
        s = _kl_scale(q, p, cap)
    if not (1e-30 < s < 1e30):
        # The rows above this quantile fill the cap at scale 1, so the root lies in (0, 1].
        ref = upper_quantile(u, p, 1.0 / cap) - c * log_cap if bounded else u.max()
        _kl_exponentials(u, c, ref, q)
        s = _kl_scale(q, p, cap)
    if not s > 0.0:
        # Rows far above the others fill the set up to rounding: nothing is left to share out.
        tau = capped_vertex(u, p, cap, q)
        for i in range(log_ratio.shape[0]):
            log_ratio[i] = math.log(q[i] / p[i]) if q[i] > 0.0 else (u[i] - tau) / c
        return tau
    for i in range(n):
        q[i] = p[i] * min(q[i] * s, cap)
    shift = math.log(s)
    for i in range(log_ratio.shape[0]):
        log_ratio[i] = min((u[i] - ref) / c + shift, log_cap)
    return ref - c * shift
