"""L-BFGS in a metric goes on from a checkpoint bit for bit, on arrays and on files."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import drago
from drago.files.blocks import Blocks, Column, Held, Stamp
from drago.files.checkpoint import CheckpointError, load, save
from drago.rows.part import cut
from drago.rows.parts import PartedRows

N, D = 400, 6
METHOD = drago.LBFGS(metric="auto")
CASES = {
    "squared, cvar": ("squared", "cvar", "chi2", 0.05),
    "logistic, cvar kl": ("logistic", "cvar", "kl", 0.05),
    "huber, extremile": ("huber", "extremile", "chi2", 0.05),
    "logistic, kl ball": ("logistic", "kl_ball", "auto", 0.05),
    "squared, groups": ("squared", drago.Grouped("cvar"), "chi2", 0.05),
    "no shift cost": ("squared", drago.CVaR(0.5), "chi2", 0.0),
    "ball without shift cost": ("squared", "chi2_ball", "auto", 0.0),
}


@pytest.fixture(autouse=True)
def saving_at_every_iteration(monkeypatch):
    monkeypatch.setattr("drago.loop.resume._SHARE", np.inf)


def data(loss):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, D)) * np.geomspace(0.1, 3.0, D)
    y = X @ np.linspace(-2.0, 2.0, D) + rng.standard_t(3, size=N)
    return X, (y > 0.5).astype(float) if loss == "logistic" else y, rng.integers(0, 7, N)


def make(case, where, folder, **settings):
    loss, uncertainty, divergence, nu = CASES[case]
    X, y, groups = data(loss)
    settings = {"loss": loss, "uncertainty": uncertainty, "divergence": divergence,
                "shift_cost": nu, "fit_intercept": True, "l2_reg": 1e-4, **settings}  # fmt: skip
    if where == "files":
        path = str(folder / "X.bin")
        if not os.path.exists(path):
            X.tofile(path)
        columns = {"X": Column(path, X.dtype, X.shape, 0, Stamp.of(path)), "y": Held(y),
                   "groups": Held(groups)}  # fmt: skip
        return drago.DROProblem(Blocks(N, D, columns, (120, 250, N), digest="ours"), **settings)
    problem = drago.DROProblem(X, y, groups=groups, **settings)
    if where == "parts":
        return problem._replace(rows=PartedRows(cut(problem.rows, (120, 250))))
    return problem


@pytest.mark.parametrize("where", ["arrays", "parts", "files"])
@pytest.mark.parametrize("case", CASES)
def test_a_solve_goes_on_where_it_was_stopped(case, where, tmp_path):
    path, tol = tmp_path / "half.drago", 1e-9 if CASES[case][3] > 0 else 1e-6
    whole = drago.solve(make(case, where, tmp_path), METHOD, tol=tol)
    assert whole.n_iter > 3
    for stop in (1, whole.n_iter // 2, whole.n_iter - 1):
        with pytest.warns(UserWarning, match="max_iter"):
            drago.solve(make(case, where, tmp_path), METHOD, tol=tol, max_iter=stop,
                        checkpoint=path, checkpoint_every=0.0)  # fmt: skip
        result = drago.solve(make(case, where, tmp_path), METHOD, tol=tol, checkpoint=path)
        np.testing.assert_array_equal(result.coef, whole.coef)
        np.testing.assert_array_equal(result.dual_weights, whole.dual_weights)
        assert (result.n_iter, result.status) == (whole.n_iter, whole.status)
        assert result.primal == whole.primal
        for name in os.listdir(tmp_path):
            if name.startswith("half"):
                os.remove(tmp_path / name)


def test_after_a_start_on_a_part_of_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12_000, D)) * np.geomspace(0.01, 3.0, D)
    y = X @ np.ones(D) + rng.standard_t(3, size=12_000)
    problem = drago.DROProblem(X, y, shift_cost=0.1, l2_reg=1e-5)
    method, path = drago.LBFGS(metric="auto", progressive=True), tmp_path / "half.drago"
    whole = drago.solve(problem, method, tol=1e-12)
    assert "started from" in whole.message
    with pytest.warns(UserWarning, match="max_iter"):
        drago.solve(problem, method, tol=1e-12, max_iter=2, checkpoint=path, checkpoint_every=0.0)
    result = drago.solve(problem, method, tol=1e-12, checkpoint=path)
    np.testing.assert_array_equal(result.coef, whole.coef)
    np.testing.assert_array_equal(result.dual_weights, whole.dual_weights)
    assert result.n_iter == whole.n_iter


def test_a_process_that_is_killed(tmp_path):
    """At any moment: the answer is that of a solve which nobody disturbed."""
    code = f"""
    import sys
    sys.path[:0] = {sys.path!r}
    import pathlib, time
    import test_lbfgs_saved as test
    import drago
    import drago.loop.loop, drago.loop.resume
    drago.loop.resume._SHARE = float('inf')
    folder = pathlib.Path({str(tmp_path)!r})
    observe = drago.loop.loop.Loop.observe
    def watched(self, iterate):
        observe(self, iterate)
        print(iterate.n_iter, flush=True)
        time.sleep(0.03)
    drago.loop.loop.Loop.observe = watched
    problem = test.make("logistic, cvar kl", "files", folder)
    drago.solve(problem, test.METHOD, tol=1e-9, checkpoint=folder / "k.drago",
                checkpoint_every=0.0)
    """
    whole = drago.solve(make("logistic, cvar kl", "files", tmp_path), METHOD, tol=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        for _ in range(int(rng.integers(2, 6))):
            assert child.stdout is not None
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    problem = make("logistic, cvar kl", "files", tmp_path)
    result = drago.solve(problem, METHOD, tol=1e-9, checkpoint=tmp_path / "k.drago")
    np.testing.assert_array_equal(result.coef, whole.coef)
    np.testing.assert_array_equal(result.dual_weights, whole.dual_weights)
    assert result.n_iter == whole.n_iter


def test_what_cannot_be_resumed_says_so(tmp_path):
    problem = make("squared, cvar", "arrays", tmp_path)
    box = make("squared, cvar", "arrays", tmp_path, constraint=drago.NonNegative())
    for given, method in ((problem, drago.LBFGS()), (box, METHOD)):
        with pytest.raises(ValueError, match="solver 'lbfgs' cannot be resumed"):
            drago.solve(given, method, checkpoint=tmp_path / "half.drago")


def test_another_problem_or_a_damaged_state_is_refused(tmp_path):
    path = tmp_path / "half.drago"
    problem = make("squared, cvar", "arrays", tmp_path)
    with pytest.warns(UserWarning, match="max_iter"):
        drago.solve(problem, METHOD, tol=1e-9, max_iter=3, checkpoint=path, checkpoint_every=0.0)
    other = make("squared, cvar", "arrays", tmp_path, l2_reg=1e-3)
    with pytest.raises(CheckpointError, match="another problem"):
        drago.solve(other, METHOD, checkpoint=path)
    arrays, settings = load(path)
    mine = [name for name in arrays if name.startswith("method.")]
    assert len(mine) > 10
    for name in mine:
        bad = arrays[name].copy()
        assert bad.size > 0, name
        bad.reshape(-1)[0] = np.nan
        for changed in ({**arrays, name: bad}, {**arrays, name: arrays[name][..., :-1]}):
            save(path, changed, settings)
            with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                drago.solve(problem, METHOD, checkpoint=path)
    for name in settings["method"]:
        if name == "oracle":
            continue
        save(path, arrays, {**settings, "method": {**settings["method"], name: "x"}})
        with pytest.raises(CheckpointError, match=rf"method\.{name}"):
            drago.solve(problem, METHOD, checkpoint=path)
