"""The dual kernels against slow twins, on well-scaled and on adversarial numbers."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cases
import drago
import twins
from drago import kernels

NONE = np.empty(0)
INF = np.inf
EPS = np.finfo(float).eps
SIZES = (1, 2, 3, 10, 257, 3000)
# Cold starts look at a strided subsample from this many rows on.
MANY = 4 * kernels.SUBSAMPLE + 500
CAPS = (1.0, 1.0001, 2.5, 100.0, 1e6, INF)
ABSURD_STARTS = (np.nan, 0.0, 1e300, -1e300, INF, -INF)


def capped(divergence, u, p, c, cap, tau=np.nan, keep_log=False):
    """(q, tau, log(q/p) or an empty array)."""
    q = np.full(u.size, np.nan)
    if divergence == "chi2":
        return q, kernels.capped_chi2(u, p, c, cap, tau, q), NONE
    log_ratio = np.full(u.size, np.nan) if keep_log else NONE
    return q, kernels.capped_kl(u, p, c, cap, tau, q, log_ratio), log_ratio


def ball(divergence, u, p, c, radius, start=np.nan, keep_log=False):
    """(q, c + lambda, the next start, log(q/p) or an empty array)."""
    q = np.full(u.size, np.nan)
    if divergence == "chi2":
        return q, *kernels.chi2_ball(u, p, c, radius, start, q), NONE
    log_ratio = np.full(u.size, np.nan) if keep_log else NONE
    return q, *kernels.kl_ball(u, p, c, radius, start, q, log_ratio), log_ratio


def spectral(divergence, u, p, sigma, c, keep_log=False):
    """(q, log(q/p) or an empty array, first row of each pool); u, p, sigma by increasing u."""
    ratio = np.full(u.size, np.nan)
    first = np.full(u.size + 1, -1, dtype=np.int64)
    log_ratio = np.full(u.size, np.nan) if keep_log else NONE
    work = np.empty((2, u.size))
    if c == 0:
        count = kernels.spectral_vertex(u, p, sigma, ratio, first)
    elif divergence == "chi2":
        count = kernels.spectral_chi2(u, p, sigma, c, ratio, *work, first)
    else:
        count = kernels.spectral_kl(u, p, sigma, c, ratio, work[0], log_ratio, first)
    return p * ratio, log_ratio, first[:count]


def described(cap):
    return ("simplex",) if cap == INF else ("cvar", 1.0 / cap)


def optimality_gap(set_, u, c, divergence, p, q, log_ratio=NONE):
    """max over q' in Q of <u - c Omega'(q), q' - q>, relative to c + spread of u.

    It bounds how much the objective can still rise, and is 0 at the maximiser alone.
    """
    p = twins._nominal(p, u.size)
    q = twins._long(q)
    mirror = q / p if divergence == "chi2" else twins._long(log_ratio)
    centred = twins._long(u) - u.max()
    v = centred - (c * mirror if c > 0 else 0)
    best = twins.worst_case_extended(set_, v, 0.0, divergence, p)
    # a row that underflowed to 0 may have any slope
    return float(np.sum(v * (best - q)) / (c - centred.min() + 1e-300))


def nominals(n, rng):
    for kind in ("uniform", "random"):
        yield cases.nominal(kind, n, rng)


# --------------------------------------------------------------------------------- the quantile


def slow_upper_quantile(u, p, mass):
    """The largest value m of u with p(u >= m) >= mass, the smallest value if there is none."""
    for m in sorted(set(u), reverse=True):
        if p[u >= m].sum() >= mass:
            return m
    return u.min()


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 6)), min_size=1, max_size=40),
    st.integers(0, 260),
)
def test_upper_quantile(rows, mass):
    """Whole numbers, so that every sum is exact."""
    u, p = np.array(rows, dtype=float).T.copy()
    before = u.copy(), p.copy()
    assert kernels.upper_quantile(u, p, float(mass)) == slow_upper_quantile(u, p, mass)
    np.testing.assert_array_equal(u, before[0])
    np.testing.assert_array_equal(p, before[1])


SHAPES = ["random", "sorted", "reversed", "organ pipe", "constant", "misleading"]


@pytest.mark.parametrize("shape", SHAPES)
def test_upper_quantile_of_many_rows(shape):
    rng = np.random.default_rng(1)
    u = np.sort(rng.normal(size=5001))
    misleading = np.where(np.arange(5001) % (5001 // kernels.SAMPLE) == 0, 9.0, u)
    u = {
        "random": rng.permutation(u),
        "sorted": u,
        "reversed": u[::-1].copy(),
        "organ pipe": np.concatenate([u[::2], u[1::2][::-1]]),
        "constant": np.full(5001, 2.0),
        "misleading": misleading,  # the rows that are looked at first are not like the others
    }[shape]
    p = rng.integers(1, 9, size=u.size).astype(float)
    order = np.argsort(-u, kind="stable")
    reached = np.cumsum(p[order])
    for share in (0.0, 1e-9, 0.001, 0.1, 0.5, 0.9999, 1.0):
        mass = np.floor(share * p.sum())
        expected = u[order[np.argmax(reached >= mass)]]
        assert kernels.upper_quantile(u, p, mass) == expected
        # By a power of two all sums stay exact; the masses are then those of weights.
        assert kernels.upper_quantile(u, p / 2.0**15, mass / 2.0**15) == expected


# ----------------------------------------------------------------------------- capped simplices


@pytest.mark.parametrize("cap", CAPS)
def test_capped_vertex(cap):
    rng = np.random.default_rng(2)
    for n in SIZES:
        for p in nominals(n, rng):
            for u in (rng.normal(size=n), rng.integers(0, 4, size=n).astype(float), np.ones(n)):
                q = np.full(n, np.nan)
                threshold = kernels.capped_vertex(u, p, cap, q)
                twin = twins.worst_case(described(cap), u, 0.0, "chi2", p)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12)
                assert (q[u < threshold] == 0).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_capped_from_a_cold_start(divergence, cap):
    rng = np.random.default_rng(3)
    for n in SIZES:
        for p in nominals(n, rng):
            for u in (rng.normal(size=n), rng.integers(0, 4, size=n).astype(float), np.ones(n)):
                for c in (30.0, 1.0, 0.03):
                    q, _, log_ratio = capped(divergence, u, p, c, cap, keep_log=True)
                    twin = twins.worst_case(described(cap), u, c, divergence, p)
                    np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12)
                    if divergence == "kl":
                        seen = q > 1e-250
                        logs = np.log(q[seen] / p[seen])
                        np.testing.assert_allclose(log_ratio[seen], logs, rtol=1e-11, atol=1e-12)
                        assert np.isfinite(log_ratio).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("n", [1, 2, 40, 3000, MANY])
@pytest.mark.parametrize("cap", [1.0, 2.5, 100.0, INF])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_capped_from_any_start(divergence, cap, n):
    """The right threshold, wrong ones and absurd ones: the answer is the same."""
    rng = np.random.default_rng(4)
    u = rng.normal(size=n)
    p = cases.nominal("random", n, rng)
    for c in (1.0, 0.03):
        twin = twins.worst_case(described(cap), u, c, divergence, p)
        _, tau, _ = capped(divergence, u, p, c, cap)
        near = [] if np.isnan(tau) else [tau, tau + 1e-6, tau + 0.5, tau - 0.5, tau + 40, tau - 40]
        for start in (*near, *ABSURD_STARTS):
            q, again, _ = capped(divergence, u, p, c, cap, start)
            np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12, err_msg=f"start {start}")
            if cap > 1.0:
                assert again == pytest.approx(tau, rel=1e-9, abs=1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cap", [1.5, 20.0, 1000.0, INF])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_capped_where_the_subsample_misleads(divergence, cap):
    """Rows at the stride of the subsample are unlike all others."""
    rng = np.random.default_rng(5)
    stride = MANY // kernels.SUBSAMPLE
    for p in nominals(MANY, rng):
        for shift in (0.0, -50.0, 50.0, 1e6):
            u = rng.normal(size=MANY)
            u[::stride] += shift
            for c in (1.0, 0.01):
                q, _, _ = capped(divergence, u, p, c, cap)
                twin = twins.worst_case(described(cap), u, c, divergence, p)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12)


def test_capped_on_round_numbers():
    """Where steps of the search land on its ends exactly, it must not go back and forth."""
    rng = np.random.default_rng(0)
    for _ in range(1500):
        n = int(rng.integers(2, 9))
        u, p = np.round(3.0 * rng.standard_normal(n)), rng.integers(1, 8, n).astype(float)
        p /= p.sum()
        c, tail = float(rng.choice([0.1, 0.25, 0.5, 1.0, 2.0, 4.0])), rng.choice([0.1, 0.25, 0.5])
        cap = 1.0 / tail if p.min() < tail else np.inf
        q = capped("chi2", u, p, c, cap)[0]
        expected = twins.worst_case(described(cap), u, c, "chi2", p)
        np.testing.assert_allclose(q, expected, rtol=0, atol=1e-13)


def test_capped_kl_logarithms_do_not_underflow():
    u = np.array([0.0, -1e4, -1e6, 1.0])
    p = np.array([0.1, 0.2, 0.3, 0.4])
    for cap in (2.0, INF):
        q, tau, log_ratio = capped("kl", u, p, 1.0, cap, keep_log=True)
        assert q[1] == q[2] == 0.0
        expected = np.minimum(u - tau, np.log(cap))
        np.testing.assert_allclose(log_ratio, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_cost_below_the_rounding_of_the_losses(divergence):
    """c is far below the spacing of floating point numbers around u; from any threshold."""
    u = 1e8 + np.array([0.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    p = np.array([0.1, 0.2, 0.1, 0.3, 0.2, 0.1])
    for cap in (1.2, 1.0 / 0.7, 4.0, INF):
        for c in (1e-12, 1e-9, 1e-6, 0.1):
            twin = twins.worst_case(described(cap), u, c, divergence, p)
            tau = capped(divergence, u, p, c, cap)[1]
            near = 1e8 + np.arange(-1.0, 3.5, 0.25)
            for start in (np.nan, tau, *near, *(near + 1e-7)):
                q, _, _ = capped(divergence, u, p, c, cap, start)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12, err_msg=f"{start}")


def test_a_tail_of_whole_rows():
    """The capped rows hold all the mass: a threshold between them and the others is right."""
    rng = np.random.default_rng(1)
    for n, cap in ((8, 4.0), (244, 4.0 / 3.0), (400, 10.0)):
        u, p = rng.permutation(np.arange(float(n))), np.full(n, 1.0 / n)
        tail = round(n / cap)
        for start in (np.nan, n - tail - 0.7, n - tail - 0.5, n - tail - 0.3, 0.1, -5.0, n + 5.0):
            q, tau, _ = capped("chi2", u, p, 1e-3, cap, start)
            above = u >= n - tail
            # Each is one product, of which cap and 1 / n are rounded.
            np.testing.assert_allclose(q[above], cap / n, rtol=3 * EPS)
            # What their sum, of up to n roundings, lacks of 1 is left to the rows below.
            assert q[~above].min() >= 0.0 and q[~above].sum() <= n * EPS
            assert n - tail - 1.0 - n * EPS <= tau <= n - tail


# ---------------------------------------------------------------------------------- spectral sets


SPECTRA = [("extremile", 1.0), ("extremile", 2.5), ("esrm", 1e-3), ("esrm", 4.0)]


@pytest.mark.parametrize("set_", [*SPECTRA, ("extremile", 40.0), ("esrm", 60.0)], ids=str)
def test_spectral_masses(set_):
    rng = np.random.default_rng(6)
    for n in SIZES:
        for p in nominals(n, rng):
            upper = np.cumsum(p)
            upper /= upper[-1]
            family = 1 if set_[0] == "extremile" else 2
            sigma = kernels.spectral_masses(family, set_[1], upper, p)
            twin = twins.spectral_masses(set_, p[::-1])[::-1].astype(float)
            np.testing.assert_allclose(sigma, twin, rtol=0, atol=1e-13)
            assert abs(sigma.sum() - 1) < 1e-12


def test_small_spectral_masses_keep_their_digits():
    """Against the density times the length of a short interval."""
    p = np.full(10**6, 1e-6)
    upper = np.arange(1, 10**6 + 1) / 1e6
    rows = np.array([99_999, 499_999, 999_999])
    middle = upper[rows] - 0.5e-6
    extremile = kernels.spectral_masses(1, 2.5, upper, p)[rows]
    np.testing.assert_allclose(extremile, 2.5 * middle**1.5 * 1e-6, rtol=1e-9)
    esrm = kernels.spectral_masses(2, 4.0, upper, p)[rows]
    density = 4 * np.exp(-4 * (1 - middle)) / -np.expm1(-4)
    np.testing.assert_allclose(esrm, density * 1e-6, rtol=1e-9)


def spectral_case(set_, u, p, c, divergence, keep_log=False):
    """Kernel and twin on sorted rows."""
    order = np.argsort(u, kind="stable")
    u, p = u[order], p[order]
    sigma = twins.spectral_masses(set_, p[::-1])[::-1].astype(float)
    q, log_ratio, first = spectral(divergence, u, p, sigma, c, keep_log)
    return u, p, sigma, q, log_ratio, first


@pytest.mark.thinned(2)
@pytest.mark.parametrize("set_", [*SPECTRA, ("spectrum", cases.kink)], ids=lambda s: s[0])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_spectral(divergence, set_):
    rng = np.random.default_rng(7)
    for n in (1, 2, 3, 10, 257):  # for many rows the twin would be slow: see below
        for p in nominals(n, rng):
            for u in (rng.normal(size=n), rng.integers(0, 4, size=n).astype(float), np.ones(n)):
                for c in (30.0, 0.5, 0.01, 0.0):
                    args = spectral_case(set_, u, p, c, divergence, keep_log=c > 0)
                    by_u, by_p, sigma, q, log_ratio, first = args
                    twin = twins.worst_case(set_, by_u, c, divergence, by_p)
                    np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12)
                    # pools partition the rows and keep their mass
                    assert first[0] == 0 and (np.diff(first) > 0).all() and first[-1] < n
                    held = np.add.reduceat(q, first)
                    np.testing.assert_allclose(held, np.add.reduceat(sigma, first), atol=1e-12)
                    if divergence == "kl" and c > 0:
                        assert np.isfinite(log_ratio).all()
                        seen = q > 1e-250
                        logs = np.log(q[seen] / by_p[seen])
                        np.testing.assert_allclose(log_ratio[seen], logs, rtol=1e-11, atol=1e-11)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("set_", [("extremile", 2.5), ("spectrum", cases.kink)], ids=lambda s: s[0])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_spectral_of_many_rows(divergence, set_):
    """Against first-order conditions, where the twin would be slow."""
    rng = np.random.default_rng(8)
    for p in nominals(20_000, rng):
        u = rng.normal(size=p.size)
        u, p, _, q, log_ratio, _ = spectral_case(set_, u, p, 0.3, divergence, keep_log=True)
        assert twins.feasibility(set_, q, p) <= 1e-12
        assert optimality_gap(set_, u, 0.3, divergence, p, q, log_ratio) <= 1e-12


# ----------------------------------------------------------------------------------------- balls


@pytest.mark.thinned(2)
@pytest.mark.parametrize("radius", [0.0, 1e-6, 0.1, 2.0, 50.0])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_ball_from_a_cold_start(divergence, radius):
    rng = np.random.default_rng(9)
    set_ = (f"{divergence}_ball", radius)
    for n in SIZES[:-1]:  # for many rows, see below
        for p in nominals(n, rng):
            for u in (rng.normal(size=n), rng.integers(0, 4, size=n).astype(float), np.ones(n)):
                for c in (30.0, 1.0, 0.03, 0.0):
                    q, effective, _, log_ratio = ball(divergence, u, p, c, radius, keep_log=c > 0)
                    twin = twins.worst_case(set_, u, c, divergence, p)
                    np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12)
                    assert effective >= c * (1 - 1e-12)
                    if divergence == "kl" and c > 0:
                        seen = q > 1e-250
                        logs = np.log(q[seen] / p[seen])
                        np.testing.assert_allclose(log_ratio[seen], logs, rtol=1e-11, atol=1e-12)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("radius", [1e-6, 0.1, 2.0])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_ball_from_any_start(divergence, radius):
    rng = np.random.default_rng(10)
    for n in (1, 2, 40, 700):
        u = rng.normal(size=n)
        p = cases.nominal("random", n, rng)
        for c in (1.0, 0.03, 0.0):
            twin = twins.worst_case((f"{divergence}_ball", radius), u, c, divergence, p)
            _, _, right, _ = ball(divergence, u, p, c, radius)
            near = [] if np.isnan(right) else [right, 0.5 * right, 2 * right, right + 1, right - 1]
            for start in (*near, *ABSURD_STARTS, 1e-300):
                q, _, _, _ = ball(divergence, u, p, c, radius, start)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12, err_msg=f"start {start}")


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_ball_returns_cost_plus_multiplier(divergence):
    """q is the simplex's answer at c + lambda, and lambda > 0 on the boundary only."""
    rng = np.random.default_rng(11)
    p = cases.nominal("random", 30, rng)
    u = rng.normal(size=30)
    for radius in (1e-4, 0.1, 1.0):
        for c in (10.0, 0.1, 0.0):
            q, effective, _, _ = ball(divergence, u, p, c, radius)
            twin = twins.worst_case(("simplex",), u, effective, divergence, p)
            np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)
            spent = twins.divergence_value(divergence, q, p)
            if effective > c * (1 + 1e-9):
                assert spent == pytest.approx(radius, rel=1e-9)
            else:
                assert spent <= radius * (1 + 1e-9)


def test_chi2_ball_by_sorting():
    """The safeguard gives the same support as the iteration."""
    rng = np.random.default_rng(12)
    for n in (2, 10, 300):
        for p in nominals(n, rng):
            for radius in (0.01, 0.3, 3.0):
                u = rng.normal(size=n)
                *mean, cut = kernels.chi2_ball_sorted(u, p, radius)
                q = p * np.maximum(u - sum(mean) + cut, 0)
                if q.sum() > 0:
                    twin = twins.worst_case(("chi2_ball", radius), u, 0.0, "chi2", p)
                    np.testing.assert_allclose(q / q.sum(), twin, rtol=0, atol=1e-11)


@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_ball_of_almost_tied_losses(divergence):
    """The losses' mean is not a floating point number near them."""
    p = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    for offset in (1.0, 1e4, 1e8):
        unit = np.spacing(offset)
        u = offset + unit * np.array([0.0, 1.0, 3.0, 4.0, 8.0])
        exact = np.array([0.0, 1.0, 3.0, 4.0, 8.0])
        for radius in (1e-3, 0.3, 2.0):
            for c in (0.0, 0.01, 1.0):
                q, _, _, _ = ball(divergence, u, p, c * unit, radius)
                twin = twins.worst_case((f"{divergence}_ball", radius), exact, c, divergence, p)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-10)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("radius", [0.1, 5.0])
@pytest.mark.parametrize("divergence", cases.DIVERGENCES)
def test_ball_of_many_rows(divergence, radius):
    rng = np.random.default_rng(13)
    set_ = (f"{divergence}_ball", radius)
    for p in nominals(20_000, rng):
        u = rng.normal(size=p.size)
        q, _, _, _ = ball(divergence, u, p, 0.01, radius)
        assert twins.feasibility(set_, q, p) <= 1e-12
        if divergence == "kl":
            twin = twins.worst_case(set_, u, 0.01, "kl", p)
            np.testing.assert_allclose(q, twin, rtol=0, atol=1e-12)
        else:  # on the boundary, q/p is linear in u where it is positive
            tau_free = np.polyfit(u[q > 0], (q / p)[q > 0], 1)
            fitted = np.maximum(np.polyval(tau_free, u), 0)
            np.testing.assert_allclose(q / p, fitted, rtol=1e-9, atol=1e-9)
            assert twins.divergence_value("chi2", q, p) == pytest.approx(radius, rel=1e-11)


# ---------------------------------------------------------------------------- adversarial numbers


FLOATS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, -1e-300, 1e8, 1e150, -1e150, 1.0 + 2**-52]),
    st.floats(-1e150, 1e150, allow_subnormal=False),
    st.floats(-10, 10, allow_subnormal=False),
    st.integers(-3, 3).map(float),
)


@st.composite
def adversaries(draw):
    """(u, p, c): any spread of losses, any cost against that spread."""
    n = draw(st.integers(1, 9))
    u = np.array(draw(st.lists(FLOATS, min_size=n, max_size=n)))
    weights = np.array(draw(st.lists(st.integers(1, 12), min_size=n, max_size=n)))
    spread = np.ptp(u)
    relative = draw(st.sampled_from([1e3, 1.0, 0.1, 1e-3, 1e-6, 1e-9, 1e-13, 0.0]))
    c = relative * (spread if spread > 1e-290 else 1.0)
    return u, weights / weights.sum(), c


def judge(set_, u, p, c, divergence, q, log_ratio):
    assert np.isfinite(q).all()
    assert twins.feasibility(set_, q, p) <= 1e-12
    if divergence == "kl" and c > 0:
        assert np.isfinite(log_ratio).all()
        # where a weight underflowed, its slope is in its logarithm
        assert optimality_gap(set_, u, c, divergence, p, q, log_ratio) <= 1e-10
    else:
        assert optimality_gap(set_, u, c, divergence, p, q) <= 1e-10
    twin = twins.worst_case_extended(set_, u, c, divergence, p)
    centred, scale = twins._long(u) - u.max(), c + np.ptp(u) + 1e-300
    short = twins.objective(centred, c, divergence, p, twin)
    short -= twins.objective(centred, c, divergence, p, q)
    assert short <= 1e-12 * scale


@settings(max_examples=150)
@given(
    adversaries(),
    st.sampled_from([1.0, 1.0 + 2**-52, 1.3, 4.0, 1e4, INF]),
    st.sampled_from(cases.DIVERGENCES),
    st.sampled_from([*ABSURD_STARTS, 1.0, -7.5]),
)
def test_capped_on_adversarial_numbers(adversary, cap, divergence, start):
    u, p, c = adversary
    q, _, log_ratio = capped(divergence, u, p, c, cap, start, keep_log=c > 0)
    judge(described(cap), u, p, c, divergence, q, log_ratio)


@settings(max_examples=150)
@given(
    adversaries(),
    st.sampled_from([*SPECTRA, ("extremile", 30.0), ("spectrum", cases.kink)]),
    st.sampled_from(cases.DIVERGENCES),
)
def test_spectral_on_adversarial_numbers(adversary, set_, divergence):
    u, p, c = adversary
    u, p, _, q, log_ratio, _ = spectral_case(set_, u, p, c, divergence, keep_log=c > 0)
    judge(set_, u, p, c, divergence, q, log_ratio)


@settings(max_examples=150)
@given(
    adversaries(),
    st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    st.sampled_from(cases.DIVERGENCES),
    st.sampled_from([*ABSURD_STARTS, 1.0, -7.5]),
)
def test_ball_on_adversarial_numbers(adversary, radius, divergence, start):
    u, p, c = adversary
    assume(np.ptp(u) == 0 or np.ptp(u) > 1e-140)  # for less, see test_extreme_scales
    q, effective, _, log_ratio = ball(divergence, u, p, c, radius, start, keep_log=c > 0)
    assert np.isfinite(q).all()
    assert twins.feasibility((f"{divergence}_ball", radius), q, p) <= 1e-12 * (1 + radius)
    assert not np.isnan(effective)
    set_ = (f"{divergence}_ball", radius)
    twin = twins.worst_case_extended(set_, u, c, divergence, p)
    centred, scale = twins._long(u) - u.max(), c + np.ptp(u) + 1e-300
    short = twins.objective(centred, c, divergence, p, twin)
    short -= twins.objective(centred, c, divergence, p, q)
    assert short <= 1e-12 * scale
    if divergence == "kl" and c > 0:
        assert np.isfinite(log_ratio).all()


BALLS = {"chi2": drago.Chi2Ball, "kl": drago.KLBall}


@pytest.mark.parametrize("scale", [1e-250, 1e-170, 1e-100, 1e100, 1e150])
def test_extreme_scales(scale):
    """Squares of such losses leave the range of floating point numbers, or nearly."""
    rng = np.random.default_rng(14)
    p = cases.nominal("random", 7, rng)
    u = rng.normal(size=7)
    for divergence in cases.DIVERGENCES:
        for c in (1.0, 0.01, 0.0):
            for cap in (2.0, INF):
                twin = twins.worst_case(described(cap), u, c, divergence, p)
                q, _, _ = capped(divergence, scale * u, p, scale * c, cap)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)
            for radius in (1e-8, 0.3):
                twin = twins.worst_case((f"{divergence}_ball", radius), u, c, divergence, p)
                q = BALLS[divergence](radius).oracle(p).weights(scale * u, scale * c)
                np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)
            tiny = BALLS[divergence](1e-12).oracle(p)
            assert np.isfinite(tiny.weights(scale * u, scale * c)).all()
            set_ = ("extremile", 3.0)
            by_u, by_p, _, q, _, _ = spectral_case(set_, scale * u, p, scale * c, divergence)
            twin = twins.worst_case(set_, by_u, scale * c, divergence, by_p)
            np.testing.assert_allclose(q, twin, rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", [1254, 1576, 1854])
def test_kl_when_the_rows_above_fill_the_set_up_to_rounding(n):
    """Their masses add up to a little more than the set allows: no scale of the others is right."""
    p, u = np.full(n, 1.0 / n), 1e12 * np.arange(n)
    uncertainty = drago.CVaR(0.5)
    q, mirror = np.empty(n), np.empty(n)
    uncertainty.oracle(p, "kl").solve_into(u, 1e-3, q, mirror)
    assert uncertainty.violation(q, p) <= 1e-12
    np.testing.assert_allclose(q[u > np.median(u)], 2.0 / n)
    assert np.isfinite(mirror).all() and (np.diff(mirror) >= 0).all()


@pytest.mark.parametrize("n", [1, 7, 8192, 8193, 200_003])
def test_how_far_weights_are_outside(n):
    """Whatever the length: short vectors are not given to the kernel."""
    rng = np.random.default_rng(n)
    p, q = rng.uniform(0.5, 1.5, n) / n, rng.normal(1.0, 2.0, n) / n
    below, above = np.maximum(-q, 0.0).sum(), np.maximum(q - 2.0 * p, 0.0).sum()
    expected = q.sum(), below, above
    found = kernels.outside(q, p, 2.0)
    size = n * EPS * np.abs(q).sum()  # as many roundings as there are terms, at most
    np.testing.assert_allclose(found, expected, rtol=0, atol=size)
    assert found == kernels.outside(q, p, 2.0, 3)
    assert kernels.outside(q, p, INF)[2] == 0.0
    p /= p.sum()
    for set_, over in ((drago.CVaR(0.5), np.maximum(q - 2.0 * p, 0.0).sum()), (drago.Simplex(), 0)):
        exact = max(abs(q.sum() - 1.0), below, over)
        assert set_.violation(q, p) == pytest.approx(exact, rel=0, abs=2 * size)
    with pytest.raises(ValueError, match="one for each row"):
        kernels.outside(q, p[1:], 2.0)


@pytest.mark.parametrize("n", [2, 57, 4096, 300_001])
@pytest.mark.parametrize("c", [0.0, 1e-9, 1e-3, 0.3, 50.0])
@pytest.mark.parametrize("cap", [1.0, 2.5, 40.0, INF])
def test_one_nominal_weight_for_all_rows(n, c, cap):
    """It stands for a vector of it, with ties, absurd starts and all that follows."""
    rng = np.random.default_rng(n)
    p = np.full(n, 1.0 / n)
    for u in (rng.standard_normal(n) ** 2, np.round(rng.standard_normal(n)), np.full(n, 3.0)):
        for start in (np.nan, 1.3, 1e300, -INF) if n < 300_001 else (np.nan, 1.3):
            whole = capped("chi2", u, p, c, cap, start)
            q, tau, _ = capped("chi2", u, p[:1], c, cap, start)
            # Sums of as many terms, whose products may be rounded or not.
            np.testing.assert_allclose(q, whole[0], rtol=0, atol=1e-9 / n)
            assert q.sum() == pytest.approx(1.0, abs=2 * n * EPS)
            assert tau == pytest.approx(whole[1], rel=1e-9, abs=1e-9, nan_ok=True)
            for n_threads in (1, 3):
                found = kernels.outside(q, p[:1], cap, n_threads)
                np.testing.assert_allclose(found, kernels.outside(q, p, cap), atol=2 * n * EPS)
                value, exact = (kernels.chi2_value(u, q, x, c, n_threads) for x in (p[:1], p))
                assert value == pytest.approx(exact, rel=1e-12, abs=1e-12)
    for search, kind in ((capped, "kl"), (ball, "chi2"), (ball, "kl")):
        with pytest.raises(ValueError, match="one entry for each row"):
            search(kind, u, p[:1], c, cap)
    for call in (lambda x: kernels.chi2_value(u, q, x, c), lambda x: capped("chi2", u, x, c, cap)):
        if n > 2:
            with pytest.raises(ValueError, match="one for each row"):
                call(p[:2])


@pytest.mark.parametrize("start", [np.nan, 1.3])
def test_threads_change_no_bit(start):
    """From so many rows on, sums are those of parts whose sizes do not depend on the threads."""
    n = 300_001
    rng = np.random.default_rng(5)
    u, p = rng.standard_normal(n) ** 2, rng.uniform(0.5, 1.5, n)
    p /= p.sum()
    calls = {
        "capped_chi2": (0.1, 5.0, start),
        "capped_kl": (0.1, 5.0, start, NONE),
        "capped_vertex": (5.0,),
        "chi2_ball": (0.1, 0.5, start),
        "kl_ball": (0.1, 0.5, start, NONE),
    }
    for name, given_ in calls.items():
        logs = [given_[-1]] if given_[-1] is NONE else []
        numbers = given_[:-1] if logs else given_
        found = []
        for n_threads in (1, 2, 5):
            q = np.empty(n)
            more = getattr(kernels, name)(u, p, *numbers, q, *logs, n_threads)
            cost = kernels.chi2_divergence(q, p, n_threads)
            value = kernels.chi2_value(u, q, p, 0.3, n_threads)
            found.append((q.tobytes(), more, cost, value))
        assert found[0] == found[1] == found[2], name
        # The sum of as many products, in another order.
        exact = 0.5 * np.sum((q - p) ** 2 / p)
        assert found[0][2] == pytest.approx(exact, rel=1e-12)
        assert found[0][3] == pytest.approx(q @ u - 0.3 * exact, rel=1e-12)
