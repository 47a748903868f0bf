"""Checkpoints, resumption to the last bit, and warm starts.

Run as a script, this file is a process that has its solves killed and resumes them.
"""

import errno
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import drago
from cases import no_worse
from drago.files.checkpoint import CheckpointError, load
from drago.loop import resume
from drago.loop.loop import Loop
from drago.result import Record
from drago.solvers.drago import iterations
from drago.solvers.drago.one_block import OneBlockIterations

TIMES = ("time", "solver_time")


def data(loss="squared", n=240, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.logspace(0, -1, d)
    X[np.abs(X) < 0.02] = 0.0
    z = X @ rng.standard_normal(d) * 2 + rng.standard_normal(n) + 0.5
    if loss == "logistic":
        return X, (z > 0.5).astype(float)
    if loss == "multinomial":
        return X, np.digitize(z, [-0.5, 1.5])
    return X, z


def make(loss="squared", n=240, d=5, seed=0, as_type=np.asarray, weighted=False, **options):
    X, y = data(loss, n, d, seed)
    rng = np.random.default_rng(seed + 1)
    kwargs = {"shift_cost": 0.1, "l2_reg": 1e-2, "uncertainty": drago.CVaR(0.3), **options}
    if weighted:
        kwargs["sample_weight"] = rng.exponential(size=n)
    if isinstance(kwargs["uncertainty"], drago.Grouped):
        kwargs["groups"] = rng.integers(0, 6, n)
    return drago.DROProblem(as_type(X), y, loss=kwargs.pop("own", loss), **kwargs)


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("error", "The checkpoint .* claims more")
        return drago.solve(*args, **kwargs)


def bits(value):
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else repr(value)


def outcome(result):
    """Everything in a result that two runs share, to the last bit."""
    kept = {
        field.name: bits(getattr(result, field.name))
        for field in fields(result)
        if field.name not in (*TIMES, "history")
    }
    for name in Record.__dataclass_fields__:
        if name not in TIMES:
            kept[f"history.{name}"] = bits(getattr(result.history, name))
    return kept


def assert_same(result, expected):
    found, wanted = outcome(result), outcome(expected)
    differ = [name for name in wanted if found[name] != wanted[name]]
    assert not differ, differ


class Boom(Exception):
    """Ends a solve from within, as a bug in a user's code might."""


def stop_after(patch, steps, error):
    """Let `error` come out of the middle of the work, after so many steps: a list of its places."""
    step, several = iterations.Iterations.step, OneBlockIterations._several
    left, raised = steps, []

    def count(self, size):
        nonlocal left
        left -= size
        if left < 0:
            raised.append(self.n_iter)
            raise error

    def counted(self, i, j):
        count(self, 1)
        step(self, i, j)

    def counted_several(self, size, steps):
        count(self, size)
        return several(self, size, steps)

    patch.setattr(iterations.Iterations, "step", counted)
    patch.setattr(OneBlockIterations, "_several", counted_several)  # compiled: all or none
    return raised


@pytest.fixture
def eager(monkeypatch):
    """Saving whenever it is possible, however long it takes; but no wait for the disk."""
    monkeypatch.setattr(resume, "_SHARE", math.inf)
    monkeypatch.setattr(os, "fsync", lambda file: None)


def run_in_legs(problem, method, path, steps, **kwargs):
    """Solve with an interruption every so many steps: the result, and how far each leg came."""
    kwargs |= {"checkpoint": path, "checkpoint_every": 0.0}
    reached = []
    for leg in range(200):
        error = KeyboardInterrupt if leg % 2 == 0 else Boom
        with pytest.MonkeyPatch.context() as patch:
            raised = stop_after(patch, steps + leg % 3, error)
            try:
                result = quiet(problem, method, **kwargs)
            except Boom:
                assert raised
        # The point at which it was interrupted may turn out to be optimal.
        if not raised:
            return result, reached
        reached += raised
    raise AssertionError(f"no end after 200 legs, which came to {reached}")


# ------------------------------------------------------------------------------------ kill -9

# Of this file as a program, which has to find what it imports.
PROGRAM = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
KILLS = 20
# Problem, method, tolerance, and how often a process may save before it is killed, at most: some
# 240 and 60 times it saves until it is done.
SLOW = {
    "numeric step": (
        {"n": 1500, "d": 8},
        drago.Drago(step_size=0.006, finish="none", progressive=False),
        1e-6,
        8,
    ),
    "auto": (
        {"n": 1500, "d": 8, "loss": "logistic", "as_type": sp.csr_array, "weighted": True,
         "fit_intercept": True, "divergence": "kl", "l2_reg": 1e-4},
        drago.Drago(block_size=25, primal="blocks", finish="none", progressive=False),
        1e-8,
        2,
    ),
}  # fmt: skip


def survive(name, folder):
    """Kill solves and resume them; report as JSON what happened. Only ever a process of its own."""
    options, method, tol, most = SLOW[name]
    problem, rng = make(**options), np.random.default_rng()
    path, answer = str(Path(folder) / "solve"), Path(folder) / "answer"
    expected = quiet(problem, method, tol=tol)  # compiles, too
    resume._SHARE = math.inf
    saving = quiet(problem, method, tol=tol, checkpoint=f"{path}.other", checkpoint_every=0.0)
    reached, at_work, ends, pace = [], 0, 0, 1e-3
    while True:
        before, ended = age(path), (0, 0)
        child = os.fork()
        if child == 0:
            result = quiet(problem, method, tol=tol, checkpoint=path, checkpoint_every=0.0)
            answer.write_bytes(pickle.dumps(outcome(result)))
            os._exit(0)
        if len(reached) < KILLS:
            # Most of them not before they have saved a few times, so that they get on however
            # busy the machine is; but not so often that it ends before the last kill.
            left = rng.integers(1, most + 1) if len(reached) % 5 else 0
            saved = []
            while left and ended == (0, 0):
                now = age(path)
                if now != before:
                    left, before = left - 1, now
                    saved.append(time.perf_counter())
                time.sleep(1e-4)
                ended = os.waitpid(child, os.WNOHANG)
            # And then at any moment of the next few, at the pace that the machine has now.
            if len(saved) > 1:
                pace = (saved[-1] - saved[0]) / (len(saved) - 1)
            time.sleep(rng.uniform(0.0, 2.0) * pace)
            if ended == (0, 0):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0) if ended == (0, 0) else ended
        if not os.WIFSIGNALED(status):  # it was done before
            ends += 1
            if len(reached) >= KILLS or ends > 10:
                break
            continue
        at_work += os.path.exists(f"{path}.partial") or os.path.exists(f"{path}.former")
        found = load(path)
        reached.append(0 if found is None else found[1]["method"]["state"]["counts"]["t"])
    same = pickle.loads(answer.read_bytes()) == outcome(expected) == outcome(saving)
    report = {"same": same, "reached": reached, "n_iter": expected.n_iter, "pace": pace}
    print(json.dumps({**report, "while saving": at_work, "status": expected.status}))


def age(path):
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", SLOW)
def test_killed_twenty_times_in_a_row(name, tmp_path):
    command = [sys.executable, __file__, name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=PROGRAM)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    print(report)
    reached = report["reached"]
    assert report["same"] and report["status"] == "optimal"
    assert len(reached) == KILLS
    # It never lost what it had saved, and the kills came at all stages.
    assert reached == sorted(reached)
    assert len(set(reached)) >= 6
    assert reached[-1] - reached[0] >= 0.15 * report["n_iter"]


# -------------------------------------------------------------------------- resumption, in here


def own_loss(y, raw):
    """A user's own loss: the squared one."""
    return 0.5 * (raw - y) ** 2, raw - y


class OwnSet:
    """A user's own set: a CVaR."""

    def worst_case(self, u, c, divergence, p):
        return drago.CVaR(0.3).worst_case(u, c, divergence, p)

    def q_max(self, p):
        return float(p.max()) / 0.3


def cube(x):
    return np.asarray(x) ** 3


def float32(X):
    return X.astype(np.float32)


def csr32(X):
    return sp.csr_array(X).astype(np.float32)


PAPER = {"start": "paper", "step_size": 0.05}

# name: (problem, settings, arguments of solve)
VARIANTS = {
    "dense": ({}, {}, {}),
    "fortran": ({"as_type": np.asfortranarray}, {}, {}),
    "sparse": ({"as_type": sp.csr_array}, {}, {}),
    "float32": ({"as_type": float32}, {}, {}),
    "sparse float32": ({"as_type": csr32, "fit_intercept": True}, {"primal": "blocks"}, {}),
    "intercept": ({"fit_intercept": True}, {}, {}),
    "weights": ({"weighted": True}, {}, {}),
    "weights, intercept, blocks": (
        {"weighted": True, "fit_intercept": True}, {"primal": "blocks"}, {}),
    "extremile": ({"uncertainty": drago.Extremile(2.0)}, {}, {}),
    "esrm": ({"uncertainty": drago.ESRM(2.0), "divergence": "kl"}, {}, {}),
    "spectrum": ({"uncertainty": drago.Spectrum(integral=cube)}, {}, {}),
    "simplex": ({"uncertainty": drago.Simplex(), "shift_cost": 1.0}, {}, {}),
    "mean": ({"uncertainty": drago.CVaR(1.0)}, {"primal": "blocks"}, {}),
    "chi2 ball": ({"uncertainty": drago.Chi2Ball(0.5)}, {}, {}),
    "kl ball": ({"uncertainty": drago.KLBall(0.5)}, {}, {}),
    "grouped": ({"uncertainty": drago.Grouped(drago.CVaR(0.5))}, {}, {}),
    "grouped ball": ({"uncertainty": drago.Grouped(drago.KLBall(0.3))}, {}, {}),
    "kl": ({"divergence": "kl"}, {}, {}),
    "kl, blocks": ({"divergence": "kl"}, {"primal": "blocks"}, {}),
    "full metric": ({}, {"metric": "full"}, {}),
    "diagonal metric": ({"fit_intercept": True}, {"metric": "diagonal"}, {}),
    "euclidean metric": ({}, {"metric": "euclidean"}, {"max_iter": 80}),
    "blocks": ({}, {"primal": "blocks"}, {}),
    "support": ({}, {"primal": "support", "block_size": 30}, {}),
    "blocks that do not divide n": ({}, {"primal": "blocks", "block_size": 37}, {}),
    "n/d": ({}, {"primal": "blocks", "block_size": "n/d"}, {}),
    "one block": ({}, {"block_size": 240}, {}),
    "two threads": (
        {"n": 20_000, "d": 60}, {"block_size": 20_000, "n_threads": 2}, {"max_iter": 24}),
    "gathered support": (
        {"n": 9000, "d": 60, "uncertainty": drago.CVaR(0.05)}, {}, {"max_iter": 24}),
    "lists of rows": (
        {"n": 70_000, "d": 4, "uncertainty": drago.CVaR(0.05)},
        {"block_size": 7000, "primal": "blocks", "refresh": False}, {"max_iter": 100}),
    "numeric step": ({}, {"step_size": 0.1, "dual_step_size": 0.2}, {}),
    "theory": ({}, {"step_size": "theory"}, {"max_iter": 50}),
    "paper": ({}, PAPER, {"max_iter": 50}),
    "lagged": ({}, {"tables": "lagged", **PAPER}, {"max_iter": 50}),
    "lagged, many blocks": (
        {"loss": "logistic"}, {"tables": "lagged", "block_size": 30, **PAPER}, {"max_iter": 50}),
    "mu = 0": ({"l2_reg": 0.0}, {}, {"max_iter": 60}),
    "nu = 0": ({"shift_cost": 0.0}, {}, {"max_iter": 60}),
    "nu = 0, kl": ({"shift_cost": 0.0, "divergence": "kl"}, {}, {"max_iter": 60}),
    "mu = nu = 0, intercept": (
        {"shift_cost": 0.0, "l2_reg": 0.0, "fit_intercept": True}, {}, {"max_iter": 60}),
    "multinomial": ({"loss": "multinomial"}, {}, {"tol": 1e-6}),
    "multinomial, intercept, blocks": (
        {"loss": "multinomial", "fit_intercept": True}, {"primal": "blocks"}, {"tol": 1e-5}),
    "logistic": ({"loss": "logistic", "fit_intercept": True}, {}, {"tol": 1e-6}),
    "huber": ({"loss": "huber"}, {}, {"tol": 1e-12}),
    "box": ({"constraint": drago.Box(-0.5, 0.5)}, {}, {}),
    "ball": ({"constraint": drago.L2Ball(0.7)}, {}, {}),
    "own loss": ({"own": own_loss}, {}, {"max_iter": 50}),
    "own set": ({"uncertainty": OwnSet()}, {}, {}),
    "random_state": ({}, {"primal": "blocks"}, {"random_state": 12345}),
}  # fmt: skip


LONG = (
    "lists of rows", "multinomial, intercept, blocks", "kl ball", "blocks that do not divide n",
    "random_state", "kl, blocks", "numeric step", "nu = 0, kl", "lagged, many blocks", "n/d",
    "fortran", "weights", "diagonal metric", "mean",
)  # fmt: skip


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in VARIANTS],
)
def test_interrupted_and_resumed_is_the_same_to_the_last_bit(name, tmp_path):
    """By Ctrl-C and by errors, in the middle of rounds, many times in a solve."""
    options, settings, kwargs = VARIANTS[name]
    problem = make(**options)
    method = drago.Drago(**{"finish": "none", "progressive": False, **settings})
    count = method.n_blocks(problem)
    compiled = OneBlockIterations.is_for(problem, count)
    # Compiled rounds are longer: a solve of several of them would need a tolerance so small that
    # it depends on rounding whether it is reached.
    endless = compiled and "tol" not in kwargs
    kwargs = {**({"tol": 0.0, "max_iter": 60} if endless else {"tol": 1e-9}), **kwargs}
    expected = quiet(problem, method, **kwargs)
    # A leg has to be longer than a round, which is half the blocks.
    steps = max(count // 2, 8 if compiled else 4) + 1
    result, reached = run_in_legs(problem, method, tmp_path / "solve", steps, **kwargs)
    assert_same(result, expected)
    if "max_iter" not in kwargs:
        assert result.status == "optimal"
    # The legs went on from one another: none came so far by itself.
    assert reached == sorted(reached) and reached[-1] > steps + 2


@pytest.mark.usefixtures("eager")
def test_across_cuts_of_the_step(tmp_path):
    """A problem on which "auto" begins with too large a step, more than once."""
    problem = make("logistic", uncertainty=drago.CVaR(0.02), shift_cost=1e-4, l2_reg=1e-5)
    method = drago.Drago(primal="support", block_size=120, finish="none")
    expected = quiet(problem, method, max_iter=600)
    path = tmp_path / "solve"
    cuts = set()
    for leg in range(100):
        with pytest.MonkeyPatch.context() as patch:
            raised = stop_after(patch, 29 + leg % 5, KeyboardInterrupt)
            result = quiet(problem, method, max_iter=600, checkpoint=path, checkpoint_every=0.0)
        cuts.add(load(path)[1]["method"]["cut"])
        if not raised:
            break
    assert_same(result, expected)
    assert len(cuts) >= 3 and 1.0 in cuts


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("late", [False, True])
def test_with_a_progressive_start(late, tmp_path, monkeypatch):
    """Stopped while it solves on a part of the rows, or after."""
    problem = make(n=8000, d=5, uncertainty=drago.CVaR(0.1), shift_cost=0.01)
    method, path, steps = drago.Drago(primal="blocks", finish="none"), tmp_path / "solve", []
    step = iterations.Iterations.step
    with monkeypatch.context() as patch:
        patch.setattr(iterations.Iterations, "step", lambda *args: (steps.append(1), step(*args)))
        expected = drago.solve(problem, method, tol=1e-8)
    assert "started from 2000 of 8000 rows" in expected.message
    on_the_part = len(steps) - expected.n_iter
    assert on_the_part > 5
    with monkeypatch.context() as patch:
        stop_after(patch, on_the_part + 9 if late else on_the_part // 2, KeyboardInterrupt)
        first = quiet(problem, method, tol=1e-8, checkpoint=path, checkpoint_every=0.0)
    assert first.status == "interrupted" and path.exists() == late
    steps = 9 if late else on_the_part + 9
    result, reached = run_in_legs(problem, method, path, steps, tol=1e-8)
    assert_same(result, expected)
    assert reached == sorted(reached) and reached[-1] >= 9


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("finish", ["newton", "lbfgs", "auto"])
def test_with_a_finish_by_another_method(finish, tmp_path):
    """Stopped before it and, through the callback, in the middle of it."""
    problem = make("logistic", uncertainty=drago.CVaR(0.05), shift_cost=1e-3, l2_reg=1e-4)
    method, path = drago.Drago(finish=finish), tmp_path / "solve"
    expected = drago.solve(problem, method, tol=1e-8)
    assert "finished by" in expected.message
    result, reached = run_in_legs(problem, method, path, 9, tol=1e-8)
    assert_same(result, expected)
    handed_over = int(expected.message.split(" from iteration ")[1].split()[0])
    assert reached and reached[-1] <= handed_over

    def ctrl_c(state):
        if state.n_iter > handed_over:
            raise KeyboardInterrupt

    for callback in (ctrl_c, ctrl_c, None):
        result = quiet(
            problem, method, tol=1e-8, checkpoint=path, checkpoint_every=0.0, callback=callback
        )
        # Where the first certificate of the finish is good enough, Ctrl-C comes too late.
        assert result.status == "optimal" or callback is not None
    assert_same(result, expected)


def stop_at(n_iter):
    return {"callback": lambda state: state.n_iter >= n_iter}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "limit, status",
    [({"max_iter": 21}, "max_iter"), (stop_at(18), "stopped"), ({"time_limit": 0.02}, "time_limit"),
     ({"time_limit": 0.0}, "time_limit"), ({"tol": 1e-2}, "optimal")],
)  # fmt: skip
def test_goes_on_with_other_limits(limit, status, tmp_path):
    problem, path = make("logistic"), tmp_path / "solve"
    method = drago.Drago(step_size=0.05, primal="blocks")
    expected = drago.solve(problem, method, tol=1e-7)
    kept = {"checkpoint": path, "checkpoint_every": 0.0}
    first = quiet(problem, method, **{"tol": 1e-7, **kept, **limit})
    assert first.status == status and first.n_iter < expected.n_iter
    assert path.exists() == (first.n_iter > 0)
    again = quiet(problem, method, tol=1e-7, max_iter=first.n_iter + 9, **kept)
    assert again.status == "max_iter" and again.n_iter == first.n_iter + 9
    result = drago.solve(problem, method, tol=1e-7, time_limit=1000, **kept)
    assert result.status == "optimal"
    if "tol" not in limit:  # where certificates are due depends on tol
        assert_same(result, expected)
    # What is finished goes on, too.
    finer = drago.solve(problem, method, tol=1e-8, **kept)
    assert finer.status == "optimal" and finer.rel_gap <= 1e-8
    assert finer.n_iter > result.n_iter and finer.n_passes < 1.5 * result.n_passes
    assert finer.time >= result.history.time[-2]


def test_a_finished_solve_gives_the_same_answer_again(tmp_path):
    problem, path = make(), tmp_path / "solve"
    first = drago.solve(problem, "drago", checkpoint=path)
    before = path.read_bytes()
    assert_same(drago.solve(problem, "drago", checkpoint=path), first)
    assert_same(drago.solve(problem, "drago", checkpoint=str(path)), first)
    assert_same(drago.solve(problem, "drago"), first)
    assert before and sorted(p.name for p in tmp_path.iterdir()) in (
        ["solve"], ["solve", "solve.previous"])  # fmt: skip


def test_saves_no_more_often_than_asked(tmp_path, monkeypatch):
    problem, saved = make(), []
    save = resume.save
    monkeypatch.setattr(resume, "save", lambda *args: (saved.append(1), save(*args)))
    method = drago.Drago(step_size=0.01, primal="blocks", finish="none")
    drago.solve(problem, method, tol=1e-6, checkpoint=tmp_path / "one", checkpoint_every=1000.0)
    assert len(saved) == 1
    began = time.perf_counter()
    drago.solve(problem, method, tol=1e-6, checkpoint=tmp_path / "two", checkpoint_every=0.05)
    assert len(saved) <= 2 + (time.perf_counter() - began) / 0.05
    # Saving takes a small share of the time, even where it is asked for without a pause.
    del saved[:]
    monkeypatch.setattr(resume, "save", lambda *args: (saved.append(1), time.sleep(0.01)))
    result = drago.solve(
        problem, method, tol=1e-6, checkpoint=tmp_path / "three", checkpoint_every=0.0
    )
    assert len(saved) <= 2 + result.time / 0.2


# ------------------------------------------------------------------------ where saving fails


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.thinned(2)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "error", [FULL, OSError(errno.EIO, "Input/output error"), PermissionError(errno.EACCES, "No")]
)
@pytest.mark.parametrize("at_first", [False, True])
def test_an_error_in_saving_does_not_cost_the_answer(error, at_first, tmp_path):
    """One warning; no partial file; and what was saved before goes on to the same answer."""
    problem, path = make(), tmp_path / "solve"
    method = drago.Drago(step_size=0.05, primal="blocks")
    expected = drago.solve(problem, method, tol=1e-7)
    kept = {"tol": 1e-7, "checkpoint": path, "checkpoint_every": 0.0}
    write = np.lib.format.write_array

    def write_array(*args, **options):
        if at_first or path.exists():
            raise error
        write(*args, **options)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        patch.setattr(np.lib.format, "write_array", write_array)
        assert_same(drago.solve(problem, method, **kept), expected)
    (warning,) = said
    assert warning.category is UserWarning and warning.filename == __file__
    assert str(path) in str(warning.message) and error.strerror in str(warning.message)
    assert os.listdir(tmp_path) == ([] if at_first else ["solve"])
    assert at_first or load(path)[1]["method"]["state"]["counts"]["t"] < expected.n_iter
    assert_same(drago.solve(problem, method, **kept), expected)


@pytest.mark.usefixtures("eager")
def test_a_folder_that_goes_away_does_not_cost_the_answer(tmp_path):
    problem, folder = make(), tmp_path / "folder"
    folder.mkdir()
    method = drago.Drago(step_size=0.05, primal="blocks")
    expected = drago.solve(problem, method, tol=1e-7)

    def remove(state):
        if folder.exists():
            shutil.rmtree(folder)

    with pytest.warns(UserWarning, match=r"folder/solve could not be saved \(.*No such file"):
        result = drago.solve(
            problem, method, tol=1e-7, checkpoint=folder / "solve", checkpoint_every=0.0,
            callback=remove,
        )  # fmt: skip
    assert_same(result, expected)
    assert not folder.exists()


LIMITED = """
    import math, resource, sys, warnings
    import numpy as np
    import drago
    from drago.loop import resume

    resume._SHARE = math.inf
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 5))
    problem = drago.DROProblem(X, X.sum(axis=1) + rng.standard_normal(240), shift_cost=0.1)
    method = drago.Drago(step_size=0.05, primal="blocks")
    expected = drago.solve(problem, method)
    warnings.simplefilter("always")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # less than a checkpoint
    with warnings.catch_warnings(record=True) as said:
        result = drago.solve(problem, method, checkpoint=sys.argv[1], checkpoint_every=0.0)
    (warning,) = said
    assert sys.argv[1] in str(warning.message) and "too large" in str(warning.message), said
    assert result.status == "optimal" and (result.coef == expected.coef).all()
    print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_limit_of_the_system_does_not_cost_the_answer(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path / "solve")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_devices_and_pipes_are_refused_before_the_work(tmp_path, monkeypatch):
    def step(*args):  # pragma: no cover
        raise AssertionError("it began to work")

    monkeypatch.setattr(iterations.Iterations, "step", step)
    monkeypatch.setattr(OneBlockIterations, "_several", step)
    os.mkfifo(tmp_path / "solve")
    for path in (tmp_path / "solve", os.devnull):
        with pytest.raises(FileExistsError, match="A checkpoint cannot replace a device"):
            drago.solve(make(), "drago", checkpoint=path)
    assert os.listdir(tmp_path) == ["solve"]


@pytest.mark.usefixtures("eager")
def test_through_a_link(tmp_path):
    problem, path, there = make(), tmp_path / "solve", tmp_path / "there"
    there.mkdir()
    path.symlink_to(there / "file")
    method = drago.Drago(step_size=0.05, primal="blocks")
    expected = drago.solve(problem, method, tol=1e-7)
    result, reached = run_in_legs(problem, method, path, 5, tol=1e-7)
    assert_same(result, expected)
    assert path.is_symlink() and reached[-1] > 8
    assert sorted(os.listdir(there)) == ["file", "file.previous"]
    assert sorted(os.listdir(tmp_path)) == ["solve", "there"]


# ------------------------------------------------------------------------- what is not the same


def changed_entry(X):
    X = X.copy()
    X[100, 2] = np.nextafter(X[100, 2], np.inf)
    return X


def other_loss(y, raw):
    return own_loss(y, raw)


OTHERS = {
    "an entry of X": ({"as_type": changed_entry}, {}, {}),
    "the type of X": ({"as_type": float32}, {}, {}),
    "X in another format": ({"as_type": sp.csr_array}, {}, {}),
    "the rows": ({"n": 239}, {}, {}),
    "y": ({"seed": 3}, {}, {}),
    "weights": ({"weighted": True}, {}, {}),
    "mu": ({"l2_reg": np.nextafter(1e-2, 1.0)}, {}, {}),
    "nu": ({"shift_cost": np.nextafter(0.1, 1.0)}, {}, {}),
    "level": ({"uncertainty": drago.CVaR(np.nextafter(0.3, 1.0))}, {}, {}),
    "set": ({"uncertainty": drago.Extremile(2.0)}, {}, {}),
    "own set": ({"uncertainty": OwnSet()}, {}, {}),
    "divergence": ({"divergence": "kl"}, {}, {}),
    "loss": ({"own": "huber"}, {}, {}),
    "own loss": ({"own": own_loss}, {}, {}),
    "intercept": ({"fit_intercept": True}, {}, {}),
    "constraint": ({"constraint": drago.Box(-9, 9)}, {}, {}),
    "step size": ({}, {"step_size": 0.051}, {}),
    "blocks": ({}, {"block_size": 20}, {}),
    "metric": ({}, {"metric": "diagonal"}, {}),
    "random_state": ({}, {}, {"random_state": 1}),
}


class OtherSet(OwnSet):
    """Another one of the user's own."""

    def worst_case(self, u, c, divergence, p):
        return p


@pytest.mark.parametrize("what", OTHERS)
def test_another_problem_or_solver_is_refused(what, tmp_path):
    options, settings, kwargs = OTHERS[what]
    path = tmp_path / "solve"
    settings = {"step_size": 0.05, **settings}
    quiet(make(), drago.Drago(step_size=0.05), max_iter=10, checkpoint=path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match="another problem, solver or random_state") as caught:
        drago.solve(make(**options), drago.Drago(**settings), checkpoint=path, **kwargs)
    message = str(caught.value)
    assert str(path) in message and "Give another path, or delete it" in message
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "first, second",
    [
        ({"constraint": drago.L2Ball(0.7)}, {"constraint": drago.L2Ball(0.7000001)}),
        ({"own": drago.Huber(0.7)}, {"own": drago.Huber(0.7000001)}),
        ({"uncertainty": OwnSet()}, {"uncertainty": OtherSet()}),
    ],
)
def test_parameters_are_told_apart_to_the_last_bit(first, second, tmp_path):
    path = tmp_path / "solve"
    quiet(make(**first), "drago", max_iter=1, checkpoint=path)
    with pytest.raises(CheckpointError, match="another problem"):
        quiet(make(**second), "drago", max_iter=1, checkpoint=path)


@pytest.mark.slow
def test_a_spectrum_is_the_same_in_another_process(tmp_path):
    problem, path = make(uncertainty=drago.Spectrum(integral=cube)), tmp_path / "solve"
    command = [sys.executable, __file__, "begin", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=PROGRAM)
    assert path.exists()
    assert drago.solve(problem, "drago", checkpoint=path).status == "optimal"


def test_y_alone_is_noticed(tmp_path):
    (X, y), path = data(), tmp_path / "solve"
    quiet(drago.DROProblem(X, y, shift_cost=0.1), "drago", max_iter=2, checkpoint=path)
    y = y.copy()
    y[7] = np.nextafter(y[7], 0.0)
    with pytest.raises(CheckpointError):
        drago.solve(drago.DROProblem(X, y, shift_cost=0.1), "drago", checkpoint=path)


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "missing", "text"])
def test_a_damaged_file_falls_back_on_the_one_before(damage, tmp_path, eager):
    problem, path = make(), tmp_path / "solve"
    method = drago.Drago(step_size=0.05, primal="blocks")
    expected = drago.solve(problem, method, tol=1e-7)
    kept = {"tol": 1e-7, "checkpoint": path, "checkpoint_every": 0.0}
    quiet(problem, method, max_iter=40, **kept)
    previous = path.with_name("solve.previous")
    content = path.read_bytes()
    changed = content[:2000] + bytes([content[2000] ^ 1]) + content[2001:]
    cut = {"truncated": content[:-100], "empty": b"", "changed": changed, "text": b"hello"}
    if damage == "missing":
        path.unlink()
        result = drago.solve(problem, method, **kept)
    else:
        path.write_bytes(cut[damage])
        with pytest.warns(UserWarning, match="cannot be used.*saved before it, is used"):
            result = quiet(problem, method, **kept)
    assert_same(result, expected)
    # Both damaged: an error that names them and says what to do, and no harm done.
    if damage == "missing":
        return
    path.write_bytes(cut[damage])
    previous.write_bytes(content[:-50])
    with pytest.raises(CheckpointError, match="Delete both to start anew") as caught:
        drago.solve(problem, method, **kept)
    assert str(path) in str(caught.value) and str(previous) in str(caught.value)
    assert path.read_bytes() == cut[damage] and previous.read_bytes() == content[:-50]
    path.unlink(), previous.unlink()
    assert_same(drago.solve(problem, method, **kept), expected)


def test_arguments():
    problem = make()
    for solver in ("lbfgs", "auto", drago.LBFGS()):
        with pytest.raises(ValueError, match=r"^solver '\w+' cannot be resumed: [^.]*\.$"):
            drago.solve(problem, solver, checkpoint="nowhere/solve")
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="checkpoint_every must be a number in"):
            drago.solve(problem, "drago", checkpoint="nowhere/solve", checkpoint_every=wrong)
    with pytest.raises(TypeError, match="checkpoint_every must be a number in"):
        drago.solve(problem, "drago", checkpoint="nowhere/solve", checkpoint_every="often")
    with pytest.raises(TypeError):
        drago.solve(problem, "drago", checkpoint=17)


def test_a_folder_that_does_not_exist_is_noticed_before_the_work(tmp_path, monkeypatch):
    def step(*args):  # pragma: no cover
        raise AssertionError("it began to work")

    problem = make()
    drago.solve(problem, "drago")  # so that it is compiled
    monkeypatch.setattr(iterations.Iterations, "step", step)
    path = tmp_path / "no such folder" / "solve"
    with pytest.raises(OSError) as caught:
        drago.solve(problem, "drago", checkpoint=path)
    assert str(path) in str(caught.value)
    with pytest.raises((OSError, CheckpointError)) as caught:
        drago.solve(problem, "drago", checkpoint=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nor_does_it_work_on_a_part_before(tmp_path, monkeypatch):
    def step(*args):
        raise Boom

    problem = make(n=8000, d=5)
    monkeypatch.setattr(iterations.Iterations, "step", step)
    with pytest.raises(OSError):
        drago.solve(problem, "drago", checkpoint=tmp_path / "no such folder" / "solve")


# ------------------------------------------------------------------------------------ warm start

SOLVERS = ("drago", "lbfgs")
LOSSES = ("squared", "logistic", "multinomial")


def weights_kept(problem, result, monkeypatch):
    """The weights that a solve starts with when it is given a result."""
    seen = []
    run = Loop.run
    monkeypatch.setattr(Loop, "run", lambda self, m: (seen.append(self), run(self, m))[1])
    quiet(problem, "drago", warm_start=result, max_iter=1)
    return seen[0].start_weights


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_from_the_answer_itself(solver, loss, intercept):
    problem = make(loss, fit_intercept=intercept)
    cold = drago.solve(problem, solver, tol=1e-6)
    starts = [cold, (cold.coef, cold.intercept)]
    if not intercept:
        starts += [cold.coef, cold.coef.tolist()]
    for start in starts:
        warm = drago.solve(problem, solver, tol=1e-6, warm_start=start)
        assert warm.status == "optimal" and warm.rel_gap <= 1e-6
        # Where the bound came from another point, a few iterations lead to one as good.
        assert warm.n_iter <= 0.5 * cold.n_iter and warm.n_passes <= 0.5 * cold.n_passes
        assert no_worse(warm, cold.primal)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_never_worse_than_the_start(solver, loss):
    """However hard the problem is, and however early it ends."""
    for seed, kwargs in enumerate(({"max_iter": 1}, {"max_iter": 3}, {"time_limit": 0.0})):
        problem = make(loss, seed=seed, uncertainty=drago.CVaR(0.02), shift_cost=1e-4)
        rng = np.random.default_rng(seed)
        good = drago.solve(problem, "lbfgs", tol=1e-3)
        for start in (good.coef, good.coef * (1 + 0.01 * rng.standard_normal(good.coef.shape))):
            result = quiet(problem, solver, tol=1e-9, warm_start=start, **kwargs)
            value = problem.objective(start)
            assert no_worse(result, value)
            assert result.primal == pytest.approx(problem.objective(result.coef), rel=1e-12)
        # A start that is worse than the trivial model does no harm either.
        result = quiet(problem, solver, warm_start=-100.0 * good.coef, **kwargs)
        assert no_worse(result, problem.reference[0])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_answer_to_a_similar_problem_saves_work(solver, loss):
    before = drago.solve(make(loss, n=2000), solver)
    problem = make(loss, n=2000, l2_reg=1.1e-2)
    cold = drago.solve(problem, solver)
    warm = drago.solve(problem, solver, warm_start=before)
    assert warm.status == cold.status == "optimal"
    assert warm.n_passes <= cold.n_passes and warm.n_iter <= cold.n_iter
    assert warm.primal == pytest.approx(cold.primal, rel=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_of_the_wrong_shape(solver):
    plain, classes = make(), make("multinomial")
    for start, message in [
        (np.zeros(4), r"coef must have shape \(5,\), but has shape \(4,\)"),
        (np.zeros((2, 5)), r"coef must have shape \(5,\)"),
        ((np.zeros(5), np.zeros(2)), "intercept must have 1 entries"),
        ((np.zeros(5), 1.0), "fit_intercept=False"),
        (np.full(5, np.nan), "must be finite"),
        ("auto", "coef must hold numbers"),
        (drago.solve(classes, "lbfgs", tol=1e-2), r"coef must have shape \(5,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            drago.solve(plain, solver, warm_start=start)
    with pytest.raises(ValueError, match=r"coef must have shape \(3, 5\), but has shape \(5, 3\)"):
        drago.solve(classes, solver, warm_start=np.zeros((5, 3)))
    with pytest.raises(ValueError, match="coef must have shape"):
        drago.solve(plain, solver, warm_start=drago.solve(make(d=4), "lbfgs"))


@pytest.mark.parametrize(
    "constraint", [drago.Box(-0.2, 0.2), drago.NonNegative(), drago.L2Ball(0.3)]
)
def test_a_start_outside_the_constraint_set_is_projected(constraint):
    problem = make(constraint=constraint)
    start = drago.solve(make(), "lbfgs").coef
    assert not constraint.contains(start)
    for kwargs in ({"max_iter": 1}, {"time_limit": 0.0}, {}):
        result = quiet(problem, "drago", warm_start=start, **kwargs)
        assert constraint.contains(result.coef)
        value = problem.objective(constraint.project(start))
        assert no_worse(result, value)
    assert result.status == "optimal"


def test_weights_are_used_where_they_fit(monkeypatch):
    problem = make()
    result = drago.solve(problem, "drago")
    np.testing.assert_array_equal(weights_kept(problem, result, monkeypatch), result.dual_weights)
    # Other rows, a smaller set, and zeros that KL could never leave: the point alone is used.
    narrow = make(uncertainty=drago.CVaR(0.9))
    for other in (make(n=239), make(n=4000), narrow, make(divergence="kl")):
        assert weights_kept(other, result, monkeypatch) is None
        warm = drago.solve(other, "drago", warm_start=result)
        assert warm.status == "optimal"
    grouped = make(uncertainty=drago.Grouped(drago.CVaR(0.9)))
    assert drago.solve(grouped, "drago", warm_start=result).status == "optimal"


@pytest.mark.usefixtures("eager")
def test_a_warm_start_is_resumed_too(tmp_path):
    problem, path = make(), tmp_path / "solve"
    method = drago.Drago(primal="blocks", finish="none")
    start = drago.solve(make(l2_reg=0.1), "drago")
    expected = drago.solve(problem, method, tol=1e-9, warm_start=start)
    result, reached = run_in_legs(problem, method, path, 6, tol=1e-9, warm_start=start)
    assert_same(result, expected)
    assert reached[-1] > 8


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        begun = make(uncertainty=drago.Spectrum(integral=cube))
        quiet(begun, "drago", max_iter=1, checkpoint=sys.argv[2])
    else:
        survive(*sys.argv[1:])


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_of_another_layout_is_refused(tmp_path, monkeypatch):
    problem, path = make(), tmp_path / "solve"
    with monkeypatch.context() as patch:
        patch.setattr(drago.Drago, "layout", 1)
        quiet(problem, drago.Drago(), max_iter=8, tol=0.0, checkpoint=path, checkpoint_every=0.0)
    with pytest.raises(CheckpointError, match="belongs to another problem, solver"):
        quiet(problem, drago.Drago(), max_iter=8, tol=0.0, checkpoint=path)
