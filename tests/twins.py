"""Slow, obvious NumPy twins of the numerical kernels.

Everything here is written to be read, not to be fast: sorts, plain loops, closed forms, and
extended precision (``numpy.longdouble``) wherever it is free.  Nothing is imported from the
package under test.

Uncertainty sets are plain tuples::

    ("cvar", t)  ("simplex",)  ("extremile", r)  ("esrm", g)  ("spectrum", integral)
    ("chi2_ball", radius)  ("kl_ball", radius)  ("grouped", inner, labels)

where ``integral`` is S(x) = int_0^x s, vectorised, convex, S(0) = 0, S(1) = 1.
"""

import numpy as np

LONG = np.longdouble
SPECTRAL = ("extremile", "esrm", "spectrum")


# ------------------------------------------------------------------------------------- inputs


def _long(x):
    return np.asarray(x, dtype=LONG)


def _nominal(p, n):
    """p in extended precision, uniform if None, summing to one beyond double precision."""
    p = np.full(n, LONG(1) / n) if p is None else _long(p)
    return p / p.sum()


def group_masses(labels, p):
    """(index of each row's group, P) with P_g = sum of p over the group."""
    _, index = np.unique(np.asarray(labels), return_inverse=True)
    mass = np.zeros(index.max() + 1, dtype=LONG)
    np.add.at(mass, index, _long(p))
    return index, mass


# ------------------------------------------------------------------------------ the dual oracle


def worst_case(set_, u, c, divergence, p=None):
    """argmax over q in Q of <u, q> - c * Omega(q), as float64.

    Omega(q) = 1/2 sum q_i^2 / p_i for "chi2", sum q_i log(q_i / p_i) for "kl".  c = 0 gives the
    limit of c -> 0: equal u share in proportion to p.
    """
    return worst_case_extended(set_, u, c, divergence, p).astype(float)


def worst_case_extended(set_, u, c, divergence, p=None):
    """`worst_case` in extended precision (tiny KL weights do not underflow)."""
    u = _long(u)
    p = _nominal(p, u.size)
    c = LONG(c)
    kind = set_[0]
    if divergence not in ("chi2", "kl"):
        raise ValueError(f"unknown divergence {divergence!r}")
    with np.errstate(under="ignore", over="ignore"):
        if kind == "grouped":
            return _grouped(set_, u, c, divergence, p)
        u = u - u.max()
        if kind == "chi2_ball" and divergence == "chi2":
            return _chi2_ball(u, c, p, LONG(set_[1]))
        if kind == "kl_ball" and divergence == "kl":
            return _kl_ball(u, c, p, LONG(set_[1]))
        if kind in ("chi2_ball", "kl_ball"):
            raise ValueError("a ball is used with its own divergence only")
        if c == 0:
            return _vertex(set_, u, p)
        if kind in ("cvar", "simplex"):
            cap = LONG(1) / LONG(set_[1]) if kind == "cvar" else LONG(np.inf)
            return (_capped_chi2 if divergence == "chi2" else _capped_kl)(u, c, p, cap)
        return _spectral(set_, u, c, divergence, p)


def _grouped(set_, u, c, divergence, p):
    """q_i = p_i r_g / P_g, r the inner map at nominal P and p-weighted means of u."""
    _, inner, labels = set_
    index, mass = group_masses(labels, p)
    mean = np.zeros_like(mass)
    np.add.at(mean, index, p * (u - u.max()))
    r = worst_case_extended(inner, mean / mass, c, divergence, mass)
    return p * (r / mass)[index]


def _capped_chi2(u, c, p, cap):
    """q_i = p_i clip((u_i - tau)/c, 0, cap), sum q = 1.

    f(tau) = sum_i p_i clip((u_i - tau)/c, 0, cap) is nonincreasing and f(tau*) = 1, hence
    q_i = 0 where f(u_i) >= 1 and q_i = p_i cap where f(u_i - c cap) <= 1.  What is left is free,
    and q_F = p_F ((u_F - mean_F u)/c + R/p(F)) with R the mass left to it.
    """
    if cap <= 1:
        return p.copy()
    order = np.argsort(u, kind="stable")

    def mass_at(i, shift):
        x = (u - u[i]) / c + shift
        return np.sum(p * np.minimum(np.maximum(x, 0), cap))

    n_zero = _first_true(u.size, lambda k: mass_at(order[k], 0) < 1)
    n_below = u.size
    if np.isfinite(cap):
        n_below = _first_true(u.size, lambda k: mass_at(order[k], cap) <= 1)
    q = np.zeros_like(p)
    free, capped = order[n_zero:n_below], order[n_below:]
    q[capped] = p[capped] * cap
    if free.size:
        left = 1 - q[capped].sum()
        pf, uf = p[free], u[free]
        q[free] = pf * (_deviations(uf, pf) / c + left / pf.sum())
    return np.minimum(np.maximum(q, 0), p * cap)


def _capped_kl(u, c, p, cap):
    """q_i = p_i min(exp((u_i - tau)/c), cap), sum q = 1.

    i is at its cap iff f(u_i - c log cap) = sum_j p_j cap min(exp((u_j - u_i)/c), 1) <= 1; the
    others share the mass left in proportion to p exp(u/c).
    """
    if cap <= 1:
        return p.copy()
    order = np.argsort(u, kind="stable")
    n_below = u.size
    if np.isfinite(cap):

        def mass_at(i):
            return np.sum(p * cap * np.exp(np.minimum((u - u[i]) / c, 0)))

        n_below = _first_true(u.size, lambda k: mass_at(order[k]) <= 1)
    q = np.zeros_like(p)
    free, capped = order[:n_below], order[n_below:]
    q[capped] = p[capped] * cap
    if free.size:
        left = np.maximum(1 - q[capped].sum(), 0)
        e = p[free] * np.exp((u[free] - u[free].max()) / c)
        q[free] = left * e / e.sum()
    return np.minimum(q, p * cap)


def _deviations(u, p):
    """u minus its p-weighted mean, centred again until the weighted sum is at rounding level."""
    dev = u - u[np.argmax(p)]
    for _ in range(3):
        dev = dev - np.sum(p * dev) / p.sum()
    return dev


def _first_true(n, test):
    """Smallest k in 0..n-1 with test(k), n if there is none; test is monotone in k."""
    lo, hi = 0, n
    while lo < hi:
        mid = (lo + hi) // 2
        if test(mid):
            hi = mid
        else:
            lo = mid + 1
    return lo


# ------------------------------------------------------------------------------- spectral sets


def G(set_, x):
    """G(x) = int_{1-x}^1 s, the largest mass a set of nominal mass x may carry."""
    kind = set_[0]
    x = _long(x)
    with np.errstate(divide="ignore", under="ignore"):
        if kind == "cvar":
            return np.minimum(x / LONG(set_[1]), 1)
        if kind == "simplex":
            return np.where(x > 0, LONG(1), LONG(0))
        if kind == "extremile":
            return -np.expm1(LONG(set_[1]) * np.log1p(-np.minimum(x, 1)))
        if kind == "esrm":
            g = LONG(set_[1])
            return x if g == 0 else np.expm1(-g * x) / np.expm1(-g)
        if kind == "spectrum":
            return 1 - _long(set_[1](np.asarray(np.maximum(1 - x, 0), dtype=float)))
    raise ValueError(f"no spectrum for {set_!r}")


def spectral_masses(set_, p_descending):
    """sigma_i = G(p_1 + .. + p_i) - G(p_1 + .. + p_{i-1}), worst row first."""
    p = _long(p_descending)
    top = np.concatenate([[LONG(0)], np.cumsum(p)])
    bottom = np.concatenate([np.cumsum(p[::-1])[::-1], [LONG(0)]])
    top[-1] = bottom[0] = 1
    kind = set_[0]
    with np.errstate(under="ignore"):
        if kind == "extremile":
            tail = bottom ** LONG(set_[1])
            sigma = tail[:-1] - tail[1:]
        elif kind == "esrm" and set_[1] != 0:
            g = LONG(set_[1])
            sigma = np.exp(-g * top[:-1]) * np.expm1(-g * p) / np.expm1(-g)
        elif kind == "spectrum":
            tail = _long(set_[1](bottom.astype(float)))
            sigma = tail[:-1] - tail[1:]
        else:
            sigma = np.diff(G(set_, top))
    return np.maximum(sigma, 0)


def _vertex(set_, u, p):
    """c = 0: tie groups from the worst down, each taking its increment of G, shared by p."""
    order = np.argsort(-u, kind="stable")
    sigma = spectral_masses(set_, p[order])
    q = np.zeros_like(p)
    start = 0
    while start < u.size:
        stop = start
        while stop < u.size and u[order[stop]] == u[order[start]]:
            stop += 1
        tie = order[start:stop]
        q[tie] = sigma[start:stop].sum() * p[tie] / p[tie].sum()
        start = stop
    return q


def _spectral(set_, u, c, divergence, p):
    """Sort by u and pool adjacent violators.

    max_Q <u,q> - c Omega(q) = min over v of sum_i sigma_i v_i + (c Omega)^*(u - v), v in the order
    of u.  A pool with nominal mass P and spectral mass s has
      chi2:  v = mean u - c s/P,                     q_i = p_i ((u_i - mean u)/c + s/P)
      KL:    v = c (log sum p exp(u/c) - log s),     q_i = s p_i exp(u_i/c) / sum p exp(u/c).
    """
    order = np.argsort(-u, kind="stable")
    sigma = spectral_masses(set_, p[order])
    us, ps = u[order], p[order]

    def level(start, stop):
        """The pool's value v."""
        a, b, s = us[start:stop], ps[start:stop], sigma[start:stop].sum()
        if divergence == "chi2":
            mean = a[0] + np.sum(b * (a - a[0])) / b.sum()
            return mean - c * s / b.sum()
        lse = a[0] / c + np.log(np.sum(b * np.exp((a - a[0]) / c)))
        return c * (lse - np.log(s)) if s > 0 else LONG(np.inf)

    pools = []
    for i in range(u.size):
        start = i
        v = level(start, i + 1)
        while pools and pools[-1][2] < v:
            start = pools.pop()[0]
            v = level(start, i + 1)
        pools.append((start, i + 1, v))
    q = np.empty_like(p)
    for start, stop, _ in pools:
        a, b, s = us[start:stop], ps[start:stop], sigma[start:stop].sum()
        if divergence == "chi2":
            pool = b * (_deviations(a, b) / c + s / b.sum())
        else:
            e = b * np.exp((a - a[0]) / c)
            pool = s * e / e.sum()
        q[order[start:stop]] = np.maximum(pool, 0)
    return q


# --------------------------------------------------------------------------- divergence balls


def _chi2_ball(u, c, p, radius):
    """q_i = p_i max((u_i - tau)/kappa, 0), kappa = c + lambda, D(q||p) = radius if lambda > 0.

    Along kappa, tau and D fall together, so row j is in the support iff D at tau = u_j exceeds
    the radius; on a support F, D = 1/2 (1/p(F) - 1 + p(F) var_F u / kappa^2).
    """
    if radius <= 0:
        return p.copy()
    if c > 0:
        q = _capped_chi2(u, c, p, LONG(np.inf))
        if divergence_extended("chi2", q, p) <= radius:
            return q
    top = u == u.max()
    if (1 / p[top].sum() - 1) / 2 <= radius:
        return np.where(top, p / p[top].sum(), 0)

    def outside(j):
        excess = np.maximum(u - u[j], 0)
        first = np.sum(p * excess)
        return np.sum(p * (excess / first) ** 2) <= 2 * radius + 1

    support = np.array([top[j] or not outside(j) for j in range(u.size)])
    pf, uf = p[support], u[support]
    mass = pf.sum()
    dev = _deviations(uf, pf)
    kappa = np.sqrt(np.sum(pf * dev**2) / (2 * radius - p[~support].sum() / mass))
    q = np.zeros_like(p)
    q[support] = np.maximum(pf * (dev / kappa + 1 / mass), 0)
    return q


def _kl_ball(u, c, p, radius):
    """q_i ~ p_i exp(u_i/kappa), kappa = c + lambda, D(q||p) = radius if lambda > 0; bisection."""
    if radius <= 0:
        return p.copy()
    top = u == u.max()
    if c == 0 and -np.log(p[top].sum()) <= radius:
        return np.where(top, p / p[top].sum(), 0)
    if np.all(top):
        return p.copy()

    def tilt(kappa):
        """z = log(q/p) for q ~ p exp(u/kappa), to full relative accuracy for large kappa too."""
        d = u - np.sum(p * u)
        if np.max(np.abs(d)) < kappa:
            d = d / kappa
            return d - np.log1p(np.sum(p * np.expm1(d)))
        d = u / kappa
        return d - np.log(np.sum(p * np.exp(d)))

    def spent(kappa):
        """D = sum p (x log x - x + 1), x = exp(z): a sum of nonnegative terms."""
        z = tilt(kappa)
        return np.sum(p * (z * np.exp(z) - np.expm1(z)))

    if c > 0 and spent(c) <= radius:
        kappa = c
    else:
        spread = -u.min()
        lo = hi = spread
        while spent(hi) > radius:
            hi = hi * 2
        for _ in range(4000):
            if lo < hi and spent(lo) > radius:
                break
            lo = lo / 2
        lo, hi = np.log(lo), np.log(hi)
        for _ in range(120):
            mid = (lo + hi) / 2
            if mid in (lo, hi):
                break
            if spent(np.exp(mid)) > radius:
                lo = mid
            else:
                hi = mid
        kappa = np.exp(hi)
    q = p * np.exp(tilt(kappa))
    return q / q.sum()


# --------------------------------------------------------------- objective, divergence, checks


def omega(divergence, q, p):
    """Omega(q) = 1/2 sum q_i^2/p_i (chi2) or sum q_i log(q_i/p_i) (KL)."""
    q, p = _long(q), _long(p)
    if divergence == "chi2":
        return float(np.sum(q**2 / p) / 2)
    return float(divergence_extended("kl", q, p))


def objective(u, c, divergence, p, q):
    """<u, q> - c * Omega(q)."""
    u, q = _long(u), _long(q)
    p = _nominal(p, u.size)
    return float(np.sum(u * q) - LONG(c) * LONG(omega(divergence, q, p)))


def divergence_value(divergence, q, p=None):
    """D(q||p): 1/2 sum (q_i - p_i)^2/p_i (chi2) or sum q_i log(q_i/p_i) (KL)."""
    return float(divergence_extended(divergence, _long(q), _nominal(p, np.size(q))))


def divergence_extended(divergence, q, p):
    if divergence == "chi2":
        return np.sum((q - p) ** 2 / p) / 2
    positive = q > 0
    return np.sum(q[positive] * np.log(q[positive] / p[positive]))


def feasibility(set_, q, p=None):
    """Largest violation of the constraints that define Q (0 for a feasible q).

    Spectral sets: with rows sorted by q/p, worst first, it is enough that every prefix A has
    q(A) <= G(p(A)), since G is concave.
    """
    q = _long(q)
    p = _nominal(p, q.size)
    kind = set_[0]
    worst = max(abs(q.sum() - 1), -q.min(), LONG(0))
    if kind == "cvar":
        worst = max(worst, np.max(q - p / LONG(set_[1])))
    elif kind in SPECTRAL:
        order = np.argsort(-(q / p), kind="stable")
        mass = np.minimum(np.cumsum(p[order]), 1)
        worst = max(worst, np.max(np.cumsum(q[order]) - G(set_, mass)))
    elif kind in ("chi2_ball", "kl_ball"):
        worst = max(worst, divergence_extended(kind[:-5], q, p) - LONG(set_[1]))
    elif kind == "grouped":
        index, mass = group_masses(set_[2], p)
        r = np.zeros_like(mass)
        np.add.at(r, index, q)
        worst = max(worst, np.max(np.abs(q - p * (r / mass)[index])))
        worst = max(worst, feasibility(set_[1], r, mass))
    elif kind != "simplex":
        raise ValueError(f"unknown set {set_!r}")
    return float(worst)


def proximal_step(set_, v, nu, s, q_prev, divergence, p=None):
    """argmax over q in Q of <v, q> - nu D(q||p) - s Bregman_D(q, q_prev).

    The oracle with c = nu + s and u = v + s q_prev/p (chi2) or v + s log(q_prev/p) (KL, for
    which q_prev > 0).
    """
    v, q_prev = _long(v), _long(q_prev)
    p = _nominal(p, v.size)
    s = LONG(s)
    ratio = q_prev / p
    u = v if s == 0 else v + s * (ratio if divergence == "chi2" else np.log(ratio))
    return worst_case(set_, u, LONG(nu) + s, divergence, p)


def kappa_q(set_, p=None, n=None):
    """max over q in Q and i of q_i/p_i, by asking the oracle for each unit vector at c = 0."""
    p = _nominal(p, n)
    inner = set_
    while inner[0] == "grouped":
        inner = inner[1]
    divergence = "kl" if inner[0] == "kl_ball" else "chi2"
    best = LONG(0)
    for i in range(p.size):
        u = np.zeros(p.size)
        u[i] = 1.0
        best = max(best, worst_case_extended(set_, u, 0.0, divergence, p)[i] / p[i])
    return float(best)


# -------------------------------------------------------------------------------------- losses


def _loss_name(loss):
    return loss if isinstance(loss, str) else loss[0]


def losses(loss, y, raw):
    """Loss of each row at raw predictions: (n,), or (n, k) for "multinomial".

    "squared" 1/2 r^2; ("huber", delta) 1/2 r^2 or delta (|r| - delta/2); "logistic" (y in {0, 1})
    log(1 + exp(-(2y - 1) z)); "multinomial" (y in 0..k-1) log sum exp z - z_y.
    """
    raw, y = np.asarray(raw, dtype=float), np.asarray(y)
    name = _loss_name(loss)
    if name == "multinomial":
        top = raw.max(axis=1)
        lse = np.log(np.sum(np.exp(raw - top[:, None]), axis=1))
        return lse + (top - raw[np.arange(len(y)), y.astype(int)])
    raw = raw.reshape(len(y))
    if name == "logistic":
        return np.logaddexp(0.0, -(2.0 * y - 1.0) * raw)
    r = raw - y
    if name == "squared":
        return 0.5 * r**2
    if name == "huber":
        delta = loss[1]
        a = np.abs(r)
        return np.where(a <= delta, 0.5 * r**2, delta * (a - 0.5 * delta))
    raise ValueError(f"unknown loss {loss!r}")


def dlosses(loss, y, raw):
    """Derivative of `losses` in the raw prediction, in the shape of raw."""
    raw, y = np.asarray(raw, dtype=float), np.asarray(y)
    name = _loss_name(loss)
    if name == "multinomial":
        e = np.exp(raw - raw.max(axis=1, keepdims=True))
        out = e / e.sum(axis=1, keepdims=True)
        rows, label = np.arange(len(y)), y.astype(int)
        # p_y - 1 = -(sum of the others), without cancellation
        out[rows, label] = 0.0
        out[rows, label] = -out.sum(axis=1)
        return out
    shape, raw = raw.shape, raw.reshape(len(y))
    if name == "logistic":
        sign = 2.0 * y - 1.0
        out = -sign * np.exp(-np.logaddexp(0.0, sign * raw))
    elif name == "squared":
        out = raw - y
    elif name == "huber":
        out = np.clip(raw - y, -loss[1], loss[1])
    else:
        raise ValueError(f"unknown loss {loss!r}")
    return out.reshape(shape)
