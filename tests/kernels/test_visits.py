"""One reading of X against plain NumPy, and the same bits whatever the number of threads."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import EPS
from drago import kernels
from drago.terms.divergences import as_divergence
from drago.terms.losses import as_loss
from drago.terms.uncertainty import CVaR, Simplex

KINDS = {1: "chi2", 2: "kl"}
STORAGES = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "csr": lambda X: sp.csr_array(X),
    "csr, float32": lambda X: sp.csr_array(X.astype(np.float32)),
    "csr, long": lambda X: long_indices(sp.csr_array(X)),
}
LOSSES = {"squared": as_loss("squared"), "huber": as_loss("huber"), "logistic": as_loss("logistic")}


def long_indices(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def arrays_of(X):
    return (X,) if isinstance(X, np.ndarray) else (X.data, X.indices, X.indptr)


def data(n, d, seed, loss="squared"):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)
    y = rng.standard_normal(n)
    y = (y > 0).astype(float) if loss == "logistic" else y
    p = rng.uniform(0.2, 2.0, n)
    return X, y, p / p.sum(), rng.standard_normal(d), rng.standard_normal(n)


def visit(X, y, p, w, b, loss, baseline, guess, n_parts=1, n_threads=1, unit=None, reach=None):
    """The kernel's vectors, and what it counts."""
    unit, reach = (np.empty(0) if each is None else each for each in (unit, reach))
    n, d = X.shape
    kind, tau, nu, cap = guess
    raw, losses, slopes, first, second = (np.full(k, np.nan) for k in (n, n, n, d + 1, d + 1))
    tally = kernels.visit(
        *arrays_of(X), n_parts, n_threads, w, b, loss.code, loss.parameter, y, p, baseline,
        kind, tau, nu, cap, raw, losses, slopes, unit, reach, first, second,
    )  # fmt: skip
    return raw, losses, slopes, first, second, *tally


def gradient(X, p, q, seen, guess, n_parts=1, n_threads=1):
    out = np.full(X.shape[1] + 1, np.nan)
    _, losses, slopes, first, second, _, *masses = seen
    kernels.gradient_after(
        *arrays_of(X),
        n_parts,
        n_threads,
        p,
        q,
        losses,
        slopes,
        *guess,
        *masses,
        first,
        second,
        out,
    )
    return out


def weights_at(kind, tau, nu, cap, losses, p):
    """The two parts of the guessed weights, in plain words."""
    x = (losses - tau) / nu
    with np.errstate(over="ignore"):
        ratio = np.clip(x, 0.0, cap) if kind == 1 else np.minimum(np.exp(x), cap)
    inside = ((x > 0) & (x < cap)) if kind == 1 else (np.exp(np.minimum(x, 700.0)) < cap)
    if kind == 1:
        return p * ratio, p * inside
    return p * ratio * inside, p * ratio * ~inside


def close(found, exact, size, roundings):
    """Sums in another order: so many roundings of the largest term's sum."""
    np.testing.assert_allclose(found, exact, rtol=0, atol=roundings * EPS * size)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_visit_against_numpy(storage, loss, kind):
    for seed, (n, d) in enumerate([(1, 1), (3, 2), (64, 5), (131, 50), (700, 7)]):
        X, y, p, w, baseline = data(n, d, seed, loss)
        baseline = baseline if seed % 2 else np.empty(0)
        stored = STORAGES[storage](X)
        X = stored.astype(np.float64) if n > 0 else X
        exact = X @ w + 0.3
        losses, slopes = LOSSES[loss].evaluate(y, exact[:, None])
        losses = losses - baseline if baseline.size else losses
        guess = (kind, float(np.quantile(losses, 0.6)), 0.2, 3.0)
        if kind > 0 and sp.issparse(stored):  # short rows are not guessed at
            with pytest.raises(ValueError, match="not guessed at"):
                visit(stored, y, p, w, 0.3, LOSSES[loss], baseline, guess)
            continue
        seen = visit(stored, y, p, w, 0.3, LOSSES[loss], baseline, guess)
        size = np.abs(X).max() * np.abs(w).sum() + 1.0
        # d products and their sum; a loss is as sensitive as its slope, at most as this size.
        close(seen[0], exact, size, 4 * d)
        close(seen[1], losses, size * (size + 4.0), 8 * d)
        close(seen[2], slopes[:, 0], size, 8 * d)
        assert seen[5] == 0
        if kind == 0:
            continue
        parts = weights_at(*guess, seen[1], p)
        ones = np.column_stack([np.asarray(X.todense()) if sp.issparse(X) else X, np.ones(n)])
        for found, part in zip(seen[3:5], parts):
            terms = np.abs(part * seen[2]) @ np.abs(ones)
            # Rows on the edge of being free may be on either side: there are none here.
            close(found, (part * seen[2]) @ ones, terms.max() + EPS, 8 * n)
        for mass, part in zip(seen[6:], parts):
            assert mass == pytest.approx(part.sum(), rel=8 * n * EPS)


@pytest.mark.parametrize("divergence", KINDS.values())
@pytest.mark.parametrize("n", [3, 900, 5000])
def test_a_gradient_where_all_rows_weigh_the_same(divergence, n):
    """One nominal weight stands for a vector of it, whatever the parts and the threads."""
    X, y, _, w, _ = data(n, 6, 5)
    p, loss = np.full(n, 1.0 / n), LOSSES["squared"]
    for nu in (1.0, 1e-4):
        oracle = CVaR(0.3)._oracle(p, as_divergence(divergence), None)
        losses = visit(X, y, p, w, 0.0, loss, np.empty(0), (0, 0.0, 1.0, np.inf))[1]
        q = oracle.weights(losses, nu)
        kind, tau, cap = oracle.guess(nu)
        for guess in ((kind, tau, nu, cap), (kind, tau + 0.3 * nu, nu, cap), (0, 0.0, 1.0, np.inf)):
            for n_parts in {1, min(n, 40)}:
                seen = visit(X, y, p, w, 0.0, loss, np.empty(0), guess, n_parts)
                size = np.abs(q * seen[2]) @ np.abs(np.column_stack([X, np.ones(n)]))
                exact = gradient(X, p, q, seen, guess, n_parts)
                one = gradient(X, p[:1], q, seen, guess, n_parts)
                np.testing.assert_allclose(one, exact, rtol=0, atol=200 * EPS * size.max())
                again = gradient(X, p[:1], q, seen, guess, n_parts, 3)
                np.testing.assert_array_equal(one, again)
    with pytest.raises(ValueError, match="one for each row"):
        gradient(X, p[:2], q, seen, guess)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("divergence", KINDS.values())
@pytest.mark.parametrize("uncertainty", [CVaR(0.1), CVaR(0.5), CVaR(1.0), Simplex()])
def test_a_gradient_after_any_guess(storage, divergence, uncertainty):
    """Guesses that are right, near and absurd: the gradient is that of the exact weights."""
    X, y, p, w, _ = data(900, 6, 3)
    stored, loss = STORAGES[storage](X), LOSSES["squared"]
    X = np.column_stack([stored.astype(np.float64).toarray() if sp.issparse(stored) else
                         stored.astype(np.float64), np.ones(900)])  # fmt: skip
    for nu in (1.0, 1e-2, 1e-5):
        oracle = uncertainty._oracle(p, as_divergence(divergence), None)
        losses = visit(stored, y, p, w, 0.0, loss, np.empty(0), (0, 0.0, 1.0, np.inf))[1]
        q = oracle.weights(losses, nu)
        kind, tau, cap = oracle.guess(nu)
        assert kind == (1 if uncertainty.tail_share == 1.0 or divergence == "chi2" else 2)
        for off in (0.0, 0.3 * nu, -0.3 * nu, 2.0 * nu, 1e3, -1.0, -1e3, -1e300):
            guess = (0 if sp.issparse(stored) else kind, tau + off, nu, cap)
            seen = visit(stored, y, p, w, 0.0, loss, np.empty(0), guess)
            found = gradient(stored, p, q, seen, guess)
            exact = (q * seen[2]) @ X
            size = np.abs(q * seen[2]) @ np.abs(X)
            # What is left out: 64 roundings of a weight and of p, times the mass of the guess.
            slack = 8.0 * size.max() + np.abs(p * seen[2]) @ np.abs(X)
            np.testing.assert_allclose(found, exact, rtol=0, atol=100 * EPS * slack.max())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 400), st.integers(1, 9), st.floats(-3, 3))
def test_no_guess_at_all(seed, n, d, tau):
    """Without a guess, or with one where nothing is free, all rows with a weight are read."""
    X, y, p, w, q = data(n, d, seed)
    q = np.maximum(q, 0.0)
    seen = visit(X, y, p, w, tau, LOSSES["huber"], np.empty(0), (0, tau, 1.0, np.inf))
    exact = (q * seen[2]) @ np.column_stack([X, np.ones(n)])
    size = np.abs(q * seen[2]) @ np.abs(np.column_stack([X, np.ones(n)]))
    close(gradient(X, p, q, seen, (0, tau, 1.0, np.inf)), exact, size.max() + EPS, 8 * n)
    high = (1, np.inf, 1.0, 2.0)
    seen = visit(X, y, p, w, tau, LOSSES["huber"], np.empty(0), high)
    assert seen[6:] == (0.0, 0.0)
    close(gradient(X, p, q, seen, high), exact, size.max() + EPS, 8 * n)


@pytest.mark.parametrize("storage", STORAGES)
def test_threads_change_no_bit(storage):
    X, y, p, w, _ = data(5000, 9, 0)
    stored = STORAGES[storage](X)
    guess = (0 if sp.issparse(stored) else 1, 0.4, 0.1, 4.0)
    q = p * (np.arange(5000) % 3)
    alone = None
    for n_threads in (1, 2, 3, 40):
        seen = visit(stored, y, p, w, 0.1, LOSSES["squared"], np.empty(0), guess, 13, n_threads)
        found = [*seen[:5], gradient(stored, p, q, seen, guess, 13, n_threads)]
        alone = found if alone is None else alone
        for a, b in zip(alone, found):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_losses_that_are_not_finite_are_counted(bad):
    X, y, p, w, _ = data(300, 4, 1)
    X[[3, 77, 299], [0, 2, 3]] = bad
    seen = visit(X, y, p, w, 0.0, LOSSES["squared"], np.empty(0), (1, 0.4, 0.1, 4.0), 3)
    assert seen[5] == 3


@pytest.mark.parametrize("dtype, out", [("f8", "f8"), ("f4", "f4"), ("f4", "f8")])
def test_gathered_rows(dtype, out):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 3)).astype(dtype)
    index = rng.integers(0, 6000, 5000)
    for factors in (np.empty(0), rng.random(5000)):
        for n_threads in (1, 3):
            found = np.empty((5000, 3), out)
            squares = kernels.gather_rows(X, index, factors, n_threads, found)
            exact = X[index] * (factors[:, None] if factors.size else 1.0)
            np.testing.assert_array_equal(found, exact.astype(out))
            # As many roundings as there are entries, at most; of products in the type of X, one.
            exact = (exact.astype(float) ** 2).sum()
            assert squares == pytest.approx(exact, rel=15_002 * float(np.finfo(dtype).eps))
    for bad in (np.nan, np.inf, -np.inf):
        X[4321, 1] = bad
        some = np.array([5, 4321, 77])
        assert not np.isfinite(kernels.gather_rows(X, some, np.empty(0), 1, np.empty((3, 3), out)))
        assert np.isfinite(kernels.gather_rows(X, some[::2].copy(), np.empty(0), 1, found[:2]))


@pytest.mark.parametrize("storage", STORAGES)
def test_how_far_rows_reach(storage):
    """A visit that also measures rows, or all of X, finds the same as one that does not."""
    for n, d in [(1, 1), (5, 3), (64, 16), (131, 50), (700, 7)]:
        X, y, p, w, _ = data(n, d, n)
        stored, unit = STORAGES[storage](X), np.random.default_rng(n).uniform(0.1, 9.0, d)
        X = stored.astype(np.float64).toarray() if sp.issparse(stored) else stored.astype(float)
        guess = (0 if sp.issparse(stored) else 1, 0.4, 0.1, 4.0)
        given = (stored, y, p, w, 0.3, LOSSES["squared"], np.empty(0), guess)
        for n_threads in (1, 3):
            reach = np.full(n, np.nan)
            if sp.issparse(stored):
                with pytest.raises(ValueError, match="not measured"):
                    visit(*given, 3, n_threads, unit, reach)
            else:
                seen = visit(*given, 3, n_threads, unit, reach)
                for found, plain in zip(seen, visit(*given, 3, n_threads)):
                    np.testing.assert_array_equal(found, plain)
                # Each entry is rounded when it is scaled and squared, and then d of them are added.
                exact = np.linalg.norm(unit * X, axis=1)
                np.testing.assert_allclose(reach, exact, rtol=(d + 4) * EPS)
            norm = np.full(1, np.nan)
            seen = visit(*given, 3, n_threads, None, norm)
            for found, plain in zip(seen, visit(*given, 3, n_threads)):
                np.testing.assert_array_equal(found, plain)
            # Sums of n d squares in any order, of which the last is a root.
            np.testing.assert_allclose(norm, np.linalg.norm(X), rtol=(n * d + 4) * EPS)


@pytest.mark.parametrize("storage", STORAGES)
def test_products_with_all_rows(storage):
    """``X w + b`` and ``X' c``: the same bits by any number of threads, rows without c not read."""
    for n, d in [(1, 1), (5, 3), (64, 16), (131, 50), (700, 7), (130, 1400)]:
        X, _, _, w, c = data(n, d, n)
        stored = STORAGES[storage](X)
        exact = stored.astype(np.float64)
        exact = exact.toarray() if sp.issparse(stored) else exact
        size = np.abs(exact).max() * np.abs(w).sum() + 1.0
        for rows in (np.arange(n), np.arange(0, n, 3), np.arange(0)):
            some = np.zeros(n)
            some[rows] = c[rows]
            bits = set()
            for n_threads in (1, 3):
                raw, out = np.full(n, np.nan), np.full(d, np.nan)
                kernels.predict(*arrays_of(stored), 3, n_threads, w, 0.3, raw)
                close(raw, exact @ w + 0.3, size, 4 * d)
                kernels.sum_rows(*arrays_of(stored), 3, n_threads, some, out)
                close(out, exact.T @ some, np.abs(exact).max() * np.abs(some).sum(), 4 * n)
                bits.add(raw.tobytes() + out.tobytes())
            assert len(bits) == 1
            poisoned = stored.copy()
            if sp.issparse(poisoned):
                poisoned.data[
                    np.isin(np.repeat(np.arange(n), np.diff(stored.indptr)), rows, invert=True)
                ] = np.nan
            else:
                poisoned[np.setdiff1d(np.arange(n), rows)] = np.nan
            again = np.empty(d)
            kernels.sum_rows(*arrays_of(poisoned), 3, 1, some, again)
            np.testing.assert_array_equal(again, out)


def near(X, y, p, w, b, loss, baseline, guess, before, bounds, n_parts=1, n_threads=1):
    """As `visit`, next to the vectors of a visit before."""
    n, d = X.shape
    raw, losses, slopes, first, second = (np.full(k, np.nan) for k in (n, n, n, d + 1, d + 1))
    tally = kernels.visit_near(
        X, n_parts, n_threads, w, b, loss.code, loss.parameter, y, p, baseline,
        *guess, *before, *bounds, raw, losses, slopes, first, second,
    )  # fmt: skip
    return raw, losses, slopes, first, second, *tally


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n", [1, 3, 130, 1023, 1024, 2500])
def test_a_near_visit_against_numpy(dtype, loss, n):
    d, rng = 20, np.random.default_rng(n)
    X, y, p, w, baseline = data(n, d, n, loss)
    baseline = baseline if n % 2 else np.empty(0)
    stored, loss = X.astype(dtype), LOSSES[loss]
    X, step = stored.astype(float), 0.05 * rng.standard_normal(d)
    before = visit(stored, y, p, w, 0.3, loss, baseline, (0, 0.0, 1.0, np.inf))[:3]
    reach, distance = np.linalg.norm(X, axis=1), float(np.linalg.norm(step))
    moves = reach * distance + 0.02
    above = before[1] + moves * (np.abs(before[2]) + 0.5 * loss.curvature * moves)
    tau = float(np.quantile(before[1], 0.7))
    cut = tau - 0.1
    guess = (tau, 0.2, 3.0)
    bounds = (reach, distance, 0.02, loss.curvature, cut)
    given = (stored, y, p, w + step, 0.32, loss, baseline, guess, before, bounds)
    raw, losses, slopes, first, second, bad, *masses, count = near(*given, 3)
    exact = visit(stored, y, p, w + step, 0.32, loss, baseline, (1, *guess), 3)
    read = above >= cut
    assert count == read.sum() and bad == 0
    size = np.abs(X).max() * np.abs(w).sum() + 1.0
    # Rows of another group of four are added up in another order: d roundings of the prediction.
    close(raw[read], exact[0][read], size, 4 * d)
    close(losses[read], exact[1][read], size * (size + 4.0), 8 * d)
    close(slopes[read], exact[2][read], size, 8 * d)
    left = ~read
    np.testing.assert_array_equal(raw[left], before[0][left])
    np.testing.assert_allclose(losses[left], above[left], rtol=0, atol=8 * EPS * size**2)
    np.testing.assert_allclose(
        slopes[left], (np.abs(before[2]) + loss.curvature * moves)[left], rtol=8 * EPS
    )
    # What it holds of them are bounds.
    assert (exact[1][left] <= losses[left] + 8 * d * EPS * size**2).all()
    assert (np.abs(exact[2][left]) <= slopes[left] + 8 * d * EPS * size).all()
    parts = [np.where(read, each, 0.0) for each in weights_at(1, *guess, losses, p)]
    ones = np.column_stack([X, np.ones(n)])
    for found, part, mass in zip((first, second), parts, masses):
        terms = np.abs(part * slopes) @ np.abs(ones)
        close(found, (part * slopes) @ ones, terms.max() + EPS, 8 * n)
        assert mass == pytest.approx(part.sum(), rel=8 * n * EPS, abs=EPS)
    again = near(*given, 3, n_threads=3)
    for a, b in zip((raw, losses, slopes, first, second, bad, *masses, count), again):
        np.testing.assert_array_equal(a, b)


def test_a_near_visit_reads_what_is_no_number():
    X, y, p, w, _ = data(300, 20, 1)
    before = [each.copy() for each in visit(X, y, p, w, 0.0, LOSSES["squared"], np.empty(0),
                                            (0, 0.0, 1.0, np.inf))[:3]]  # fmt: skip
    before[1][[5, 200]], X[200, 3] = np.nan, np.inf
    found = near(X, y, p, w, 0.0, LOSSES["squared"], np.empty(0), (1e9, 0.2, 3.0), before,
                 (np.ones(300), 1e-3, 0.0, 1.0, 1e9))  # fmt: skip
    assert found[-1] == 2 and found[5] == 1
    assert np.isfinite(found[1][5]) and not np.isfinite(found[1][200])
