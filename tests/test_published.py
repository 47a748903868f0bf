"""The benchmark's baselines, Algorithm 2 written in three ways, take the same steps."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import lagged_baseline as lagged
import published_baseline as published


def kinds():
    yield published.Published
    try:
        from published_torch import PublishedTorch
    except ImportError:
        return
    yield PublishedTorch


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("kind", list(kinds()))
def test_the_same_steps(loss, kind):
    rng = np.random.default_rng(0)
    n, d, n_blocks = 90, 4, 5
    X = rng.standard_normal((n, d))
    y = X @ rng.standard_normal(d) + rng.standard_t(3, n)
    y = y if loss == "squared" else np.digitize(y, [-1.0, 1.0])
    arguments = (X, y, loss, lagged.cvar_spectrum(n, 0.3), 0.5, 1.0 / n, 0.05, n_blocks)
    lean, other = lagged.Lagged(*arguments), kind(*arguments)
    for i, j in rng.integers(0, n_blocks, size=(60, 2)).tolist():
        lean.step(i, j)
        other.step(i, j)
    assert lean.t == other.t == 60 and np.abs(lean.w).max() > 0.01
    assert other.w == pytest.approx(lean.w, rel=1e-10, abs=1e-12)
    assert np.asarray(other.q) == pytest.approx(lean.q, rel=1e-10, abs=1e-12)
    assert lean.q.min() < 1e-12 and lean.q.max() > 2.0 / n  # a tail, not the mean


@pytest.mark.parametrize("module", [lagged, published])
def test_pools(module):
    from scipy.optimize import isotonic_regression

    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=1 + 7 * seed)
        assert module.isotonic(values) == pytest.approx(isotonic_regression(values).x, abs=1e-12)
