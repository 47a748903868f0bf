"""Spectral sets on rows in parts: sorted range by range, the weights are those of one sort."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drago
from cases import kink
from drago import kernels
from drago._threads import limited
from drago.files.blocks import Blocks, Held
from drago.oracles.rounds.ranges import atoms, ranges_of
from drago.oracles.rounds.spectral import excess
from drago.rows.memory import ArrayRows
from drago.rows.part import cut
from drago.rows.parts import PartedRows
from drago.terms.divergences import as_divergence
from source_checks import Sliced


def mixture(x):
    """Integral of the spectrum of a quarter of the mean and of two superquantiles."""
    x = np.asarray(x)
    thin, wide = np.maximum(x - 0.9, 0.0) / 0.1, np.maximum(x - 0.5, 0.0) / 0.5
    return 0.25 * x + 0.5 * wide + 0.25 * thin


SETS = {
    "mild": drago.ESRM(0.4),
    "steep": drago.ESRM(30.0),
    "mean": drago.ESRM(0.0),
    "extremile": drago.Extremile(2.5),
    "kink": drago.Spectrum(integral=kink),
    "mixture": drago.Spectrum(integral=mixture),
    "density": drago.Spectrum(density=lambda u: 3.0 * u**2),
}
DIVERGENCES = ("chi2", "kl")
KINDS = ("apart", "ties", "classes", "far", "tiny")
ALL = pytest.mark.parametrize("name", SETS)
BOTH = pytest.mark.parametrize("divergence", DIVERGENCES)


class Tight(PartedRows):
    """Rows in parts that say how much of them may be sorted at once."""

    sorting = 1 << 62


def vector(kind, n, rng):
    if kind == "ties":
        return np.round(rng.normal(size=n), 1)
    if kind == "classes":  # as at w = 0
        return rng.integers(0, 2, n) * 0.7
    if kind == "far":
        return rng.choice([-1.0, 0.0, -0.0, 1.0], n) * np.exp(20.0 * rng.normal(size=n))
    return rng.normal(size=n) * (5e-324 if kind == "tiny" else 1.0)


def nominal(is_uniform, n, rng):
    p = np.ones(n) if is_uniform else rng.exponential(size=n) ** 2 + 1e-5
    return p / p.sum()


def parted(p, n_ranges=1, ends=()):
    n = p.size
    rows = Tight(cut(ArrayRows(np.zeros((n, 1)), np.zeros(n), p), [e for e in ends if 0 < e < n]))
    rows.is_uniform = bool(p.min() == p.max())
    rows.sorting = (8 if rows.is_uniform else 16) * max(n // n_ranges, 1)
    return rows


# -------------------------------------------------------------------------------- the ranges


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_uniform", [True, False])
def test_ranges_hold_all_rows_and_few_each(kind, is_uniform):
    rng = np.random.default_rng(1)
    n, most = 5000, 100
    u, p = vector(kind, n, rng), nominal(is_uniform, n, rng)
    pairs = [(u[a:b], None if is_uniform else p[a:b]) for a, b in ((0, 3), (3, 2000), (2000, n))]
    ranges = ranges_of(pairs, most * (8 if is_uniform else 16))
    assert sum(each.size for each in ranges) == n
    for low, high, size in ranges:
        assert np.count_nonzero((u >= low) & (u <= high)) == size
        assert size <= most or low == high
    assert all(a.high < b.low for a, b in pairwise(ranges))
    assert len(ranges) <= 4 * n / most + 2 * np.unique(u).size
    found = [(values.copy(), masses.copy()) for values, masses in atoms(pairs, ranges)]
    values, masses = (np.concatenate(each) for each in zip(*found))
    expected, place = np.unique(u, return_inverse=True)
    np.testing.assert_array_equal(values, expected)
    weights = np.ones(n) if is_uniform else p
    np.testing.assert_allclose(masses, np.bincount(place, weights), rtol=1e-13)


def test_a_range_that_ends_below_0_does_not_hold_0():
    """The place below that of 0 is that of -0, which is the same number."""
    u = np.concatenate([np.arange(-64, 0) * 5e-324, np.zeros(80)])
    for memory in (8 * 32, 8 * 40, 8 * 64):
        ranges = ranges_of([(u, None)], memory)
        found = [np.count_nonzero((u >= low) & (u <= high)) for low, high, _ in ranges]
        assert found == [size for _, _, size in ranges] and sum(found) == u.size


@pytest.mark.parametrize("place", [0, 70, 199])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_losses_that_are_no_numbers_have_no_weights(place, bad):
    rng = np.random.default_rng(0)
    u = rng.normal(size=200)
    u[place] = bad
    rows = parted(np.full(200, 1.0 / 200), 4, (50, 120))
    oracle = rows.oracle(drago.ESRM(0.4), as_divergence("chi2"))
    q, mirror = oracle.with_mirror(rows.imported(u), 0.1)
    assert all(np.isnan(part).all() for part in (*q.parts, *mirror.parts))
    assert excess(drago.ESRM(0.4), rows.pairs(rows.imported(u)), rows.sorting) == np.inf


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=50))
def test_places_are_in_the_order_of_the_numbers(numbers):
    numbers = sorted(numbers)
    places = [kernels.place_of(x) for x in numbers]
    assert places == sorted(places)
    assert [kernels.value_at(place) for place in places] == numbers
    assert kernels.place_of(-0.0) == kernels.place_of(0.0) == 0


# ------------------------------------------------------------------------------- the weights


def agree(uncertainty, divergence, u, p, c, rows):
    """The weights of the rows in parts with those of an oracle that sorts all of them."""
    q, mirror = uncertainty.oracle(p, divergence).with_mirror(u, c)
    oracle, here = rows.oracle(uncertainty, as_divergence(divergence)), rows.imported(u)
    found, coordinate = map(rows.export, oracle.with_mirror(here, c))
    # Where a spectrum jumps, the sum of the masses below decides, up to its rounding.
    np.testing.assert_allclose(found, q, rtol=0, atol=1e-12 * q.max() + 1e-13)
    np.testing.assert_array_equal(rows.export(oracle.weights(here, c)), found)
    assert rows.violation(uncertainty, rows.imported(found)) <= 1e-13
    if divergence == "chi2":
        np.testing.assert_allclose(coordinate, found / p, rtol=1e-12)
    else:  # it goes on where a weight is too small for a number
        seen = found > 1e-300
        expected = np.log(found[seen] / p[seen])
        np.testing.assert_allclose(coordinate[seen], expected, atol=1e-9, rtol=1e-9)
        sure = q > 1e-12 * q.max()
        np.testing.assert_allclose(coordinate[sure], mirror[sure], atol=1e-2, rtol=1e-3)


@given(
    st.sampled_from(sorted(SETS)), st.sampled_from(DIVERGENCES), st.sampled_from(KINDS),
    st.integers(1, 400), st.booleans(), st.sampled_from([0.0, 1e-12, 1e-3, 0.1, 10.0, 1e6]),
    st.integers(1, 20), st.lists(st.integers(1, 399), max_size=6), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_weights(name, divergence, kind, n, is_uniform, c, n_ranges, ends, seed):
    rng = np.random.default_rng(seed)
    u, p = vector(kind, n, rng), nominal(is_uniform, n, rng)
    rows = parted(p, n_ranges, sorted(set(ends)))
    with np.errstate(under="ignore"):
        agree(SETS[name], divergence, u, p, c, rows)


@ALL
@BOTH
@pytest.mark.parametrize("c", [0.0, 1e-3, 1.0])
def test_weights_of_more_rows_than_pools_are_found_at_once(name, divergence, c):
    """Chunks, pools of thousands of rows, pools over several ranges."""
    rng = np.random.default_rng(3)
    n = 60_000
    u, p = 0.5 * rng.normal(size=n) ** 2, nominal(False, n, rng)
    agree(SETS[name], divergence, u, p, c, parted(p, 7, (100, 41_000)))


@ALL
@BOTH
def test_threads_order_and_parts_of_the_rows_do_not_matter(name, divergence, monkeypatch):
    """Threads to the last bit, the rest up to the rounding of sums; equal weights have none."""
    rng = np.random.default_rng(5)
    n, uncertainty = 40_000, SETS[name]
    u, order = vector("ties", n, rng) + vector("far", n, rng), rng.permutation(n)
    for is_uniform in (True, False):
        p = nominal(is_uniform, n, rng)

        def weigh(u, p, *settings):
            rows = parted(p, *settings)
            oracle = rows.oracle(uncertainty, as_divergence(divergence))
            return rows.export(oracle.weights(rows.imported(u), 0.1))

        expected = weigh(u, p)
        monkeypatch.setattr("drago._threads._WORTH", 1)
        with limited(3):
            np.testing.assert_array_equal(weigh(u, p), expected)
        close = {"rtol": 0, "atol": 1e-12 * expected.max() + 1e-13}
        found = weigh(u[order], p[order], 1, (1, 777, 20_000))
        np.testing.assert_allclose(found, expected[order], **close)
        if is_uniform:
            np.testing.assert_array_equal(found, expected[order])
        np.testing.assert_allclose(weigh(u, p, 5, (20_000,)), expected, **close)


@ALL
def test_excess(name):
    rng = np.random.default_rng(6)
    n, uncertainty = 300, SETS[name]
    for is_uniform in (True, False):
        p = nominal(is_uniform, n, rng)
        for u in (rng.exponential(size=n), np.ones(n), rng.integers(1, 4, n).astype(float)):
            q = p * u / (p @ u)
            ratio = q / p
            pairs = [(ratio[:70], p[:70]), (ratio[70:], p[70:])]
            expected = max(uncertainty._excess(q, p, None), 0.0)
            assert excess(uncertainty, pairs, 1000) == pytest.approx(expected, abs=1e-13)


# -------------------------------------------------------------------------- rows beyond memory

N, D, LIMIT = 300, 4, 2000


def filed(count, limit=LIMIT, n=N, loss="squared", is_uniform=False, groups=None, **settings):
    """A problem on arrays, and the same on parts of rows whose losses may not all be sorted."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(n, D)) * np.geomspace(1.0, 3.0, D)
    y = X @ np.linspace(-1.0, 1.0, D) + rng.standard_t(4, size=n)
    y = (y > 0.3).astype(float) if loss == "logistic" else y
    more = {} if is_uniform else {"sample_weight": rng.uniform(0.5, 2.0, n)}
    more |= {} if groups is None else {"groups": groups}
    ends = tuple(int(e) for e in np.linspace(0, n, count + 1)[1:])
    columns = {name: Held(array) for name, array in {"X": X, "y": y, **more}.items()}
    blocks = Blocks(n, D, columns, ends, memory_limit=limit)
    settings = {"loss": loss, "shift_cost": 0.05, "l2_reg": 1e-2, "fit_intercept": True, **settings}
    return drago.DROProblem(X, y, **more, **settings), drago.DROProblem(blocks, **settings)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
@BOTH
@ALL
def test_solves(name, divergence, count, loss):
    """By the judge of the rows in memory."""
    settings = {"uncertainty": SETS[name], "divergence": divergence, "loss": loss}
    here, there = filed(count, **settings)
    assert there.rows.limit < 64 * N
    found = drago.solve(there, tol=1e-8)
    assert found.status == "optimal", found.message
    judged = drago.certify(here, found.coef, found.intercept, found.dual_weights)
    assert judged.rel_gap <= 1e-8
    assert judged.primal == pytest.approx(found.primal, rel=1e-12)


@BOTH
def test_the_parts_do_not_matter(divergence):
    values = []
    for count in (1, 7, 64):
        _, there = filed(count, uncertainty="esrm", divergence=divergence)
        found = drago.solve(there, tol=1e-10)
        assert found.status == "optimal", found.message
        values.append(found.primal)
    np.testing.assert_allclose(values, values[0], rtol=1e-9)


def test_no_price_and_tiny_ones():
    for nu in (0.0, 1e-9):
        here, there = filed(7, uncertainty="extremile", shift_cost=nu)
        found = drago.solve(there, tol=1e-3, max_iter=2000)
        judged = drago.certify(here, found.coef, found.intercept, found.dual_weights)
        assert judged.primal == pytest.approx(found.primal, rel=1e-12)
        assert judged.dual >= found.dual - 1e-6 * abs(found.dual)


def test_threads_and_memory_of_vectors_change_no_bit(monkeypatch):
    _, problem = filed(7, n=3000, limit=20_000, uncertainty="esrm", is_uniform=True)
    expected = drago.solve(problem, tol=1e-8)
    monkeypatch.setattr("drago._threads._LARGE", 1)
    monkeypatch.setattr("drago._threads._available", lambda: 3)
    monkeypatch.setattr("drago.rows.room._FILE", 1 << 16)
    _, other = filed(7, n=3000, limit=20_000, uncertainty="esrm", is_uniform=True)
    other.rows.memory.limit = 0
    found = drago.solve(other, tol=1e-8)
    assert other.rows.memory.spilled > 0
    np.testing.assert_array_equal(found.coef, expected.coef)
    np.testing.assert_array_equal(found.dual_weights, expected.dual_weights)


def test_the_estimators_default(tmp_path):
    rng = np.random.default_rng(12)
    n, limit = 3000, 50_000
    X = rng.normal(size=(n, D))
    y = X @ np.ones(D) + rng.standard_t(3, size=n)
    source = drago.from_arrays(Sliced(X), y, memory_limit=limit, cache_dir=tmp_path)
    assert 64 * n > 3 * limit
    here, there = (drago.DRORegressor(tol=1e-7).fit(*given) for given in ((X, y), (source,)))
    assert there.result_.status == "optimal"
    assert there.result_.primal == pytest.approx(here.result_.primal, rel=1e-6)
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-3)


@pytest.mark.parametrize("inner", ["cvar", "extremile", "esrm"])
def test_groups_need_their_sums_alone(inner):
    groups = np.arange(N) % 7
    here, there = filed(7, uncertainty=drago.Grouped(inner), groups=groups)
    found = drago.solve(there, tol=1e-8)
    judged = drago.certify(here, found.coef, found.intercept, found.dual_weights)
    assert judged.rel_gap <= 1e-8


def test_a_set_of_ones_own_is_refused_by_name():
    class Own:
        """The nominal weights alone."""

        q_max = 1.0

        def worst_case(self, u, c, divergence, p):
            return p

    with pytest.raises(ValueError, match="is a set of your own"):
        drago.solve(filed(3, uncertainty=Own())[1])


def test_responses_are_given_where_there_is_memory():
    """Newton's method on rows in files needs them; beyond memory the judge does without."""
    for limit, is_known in ((1 << 30, True), (LIMIT, False)):
        _, problem = filed(3, limit, uncertainty="extremile")
        ev = problem.evaluate(np.ones((D, 1)), np.zeros(1))
        q, response = problem.dual_oracle().response(ev.losses, problem.nu)
        assert (response is not None) == is_known
        assert problem.violation(q) <= 1e-13
