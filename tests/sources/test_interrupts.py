"""Ctrl-C on a source: in its scan, in a fit of it, and while a checkpoint is written."""

import gc
import os
import signal

import numpy as np
import pytest

import drago
import drago.loop.loop
import drago.loop.resume
from drago.files.archive import FileKind
from drago.files.checkpoint import load

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6000, 20))
Y = X[:, 0] + RNG.standard_t(3, 6000)
METHOD = drago.LBFGS(metric="auto")


@pytest.fixture(autouse=True)
def pythons_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def source(tmp_path, at=None):
    """Rows in files; an interrupt while batch `at` is read."""

    def batches():
        for k in range(0, 6000, 500):
            if k == at:
                interrupt()
            yield X[k : k + 500], Y[k : k + 500]

    return drago.from_batches(batches, cache_dir=tmp_path / "cache", memory_limit=200_000)


@pytest.mark.parametrize("at", [0, 500, 5500])
@pytest.mark.parametrize("kind", ["fit", "problem", "sample"])
def test_in_the_scan_nothing_is_left(tmp_path, at, kind):
    given = source(tmp_path, at)
    with pytest.raises(KeyboardInterrupt):
        if kind == "fit":
            drago.DRORegressor("cvar").fit(given)
        elif kind == "problem":
            drago.DROProblem(given)
        else:
            given.sample()
    cache = tmp_path / "cache"
    assert not cache.exists() or os.listdir(cache) == []
    assert not hasattr(drago.DRORegressor("cvar"), "coef_")


def test_in_a_fit_the_best_model_is_left_and_its_blocks_are_not(tmp_path, monkeypatch):
    model, given = drago.DRORegressor("cvar", tol=1e-12), source(tmp_path)
    seen = []

    def observed(self, iterate, observe=drago.loop.loop.Loop.observe):
        seen.append(iterate)
        if not self.quiet and len(seen) > 5:
            interrupt()
        observe(self, iterate)

    monkeypatch.setattr(drago.loop.loop.Loop, "observe", observed)
    with (
        pytest.warns(UserWarning, match="interrupted"),
        pytest.raises(KeyboardInterrupt, match="interrupted after"),
    ):
        model.fit(given)
    assert np.isfinite(model.result_.gap) and model.coef_.shape == (20,)
    assert model.predict(X).shape == (6000,)
    del given
    gc.collect()
    assert os.listdir(tmp_path / "cache") == []


def test_in_a_checkpoint_it_is_whole(tmp_path, monkeypatch):
    """The interrupt waits until the file is: the solve ends, and goes on from it."""
    path = tmp_path / "solve.drago"
    problem = drago.DROProblem(source(tmp_path), fit_intercept=True)
    whole = drago.solve(problem, METHOD, tol=1e-10)
    write, written = FileKind.write, []

    def interrupted(self, *given):
        written.append(given)
        if len(written) == 2:
            interrupt()
        write(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(FileKind, "write", interrupted)
        patched.setattr(drago.loop.resume, "_SHARE", float("inf"))
        with pytest.warns(UserWarning, match="interrupted"):
            result = drago.solve(problem, METHOD, tol=1e-10, checkpoint=path, checkpoint_every=0.0)
    assert result.status == "interrupted"
    assert load(path) is not None
    assert sorted(os.listdir(tmp_path)) == ["cache", "solve.drago", "solve.drago.previous"]
    result = drago.solve(problem, METHOD, tol=1e-10, checkpoint=path)
    np.testing.assert_array_equal(result.coef, whole.coef)
    np.testing.assert_array_equal(result.dual_weights, whole.dual_weights)
