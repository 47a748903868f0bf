"""Ctrl-C: from another process at any moment, twice, and under a handler of one's own."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import drago
from drago import _interrupts
from drago.loop import loop as base

SOLVERS = ("auto", "drago", "lbfgs", "newton")


def press():
    os.kill(os.getpid(), signal.SIGINT)


def once():
    """A callback that presses Ctrl-C the first time."""
    left = [press]
    return lambda state: left.pop()() if left else None


def data(n=200, d=5):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X @ np.arange(1.0, d + 1) + rng.standard_t(3, n)


def make(n=200, **changes):
    X, y = data(n)
    settings = {"uncertainty": drago.CVaR(0.1), "shift_cost": 0.05, "l2_reg": 1e-3} | changes
    return drago.DROProblem(X, y, **settings)


@pytest.fixture(autouse=True)
def handler():
    """Python's own, also where the tests run in the background and inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert _interrupts._ACTIVE is None
    signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------ from another process

# Each solve says that its loop begins, and what came of it: a result, an exception, or an answer
# before the signal arrived. With tol = 0 there is always something left to do.
CHILD = """
import signal, sys, time, warnings
import numpy as np
import drago
from drago.loop.loop import Loop

warnings.simplefilter("ignore")
signal.signal(signal.SIGINT, signal.default_int_handler)
n = 20_000
rng = np.random.default_rng(0)
X = rng.standard_normal((n, 20))
y = (X[:, 0] + rng.standard_normal(n) > 0).astype(float)
problem = drago.DROProblem(
    X, y, loss="logistic", uncertainty=drago.CVaR(0.05), shift_cost=0.0, l2_reg=1e-7
)
solvers = {"lbfgs": drago.LBFGS(metric="auto")}
trivial, run, compiled = problem.reference[0], Loop._run, set()

def begin(self, method):
    if not self.quiet:
        print("begun", flush=True)
    return run(self, method)

for line in sys.stdin:
    solver = solvers.get(line.strip(), line.strip())
    if solver not in compiled:
        drago.solve(problem, solver, tol=0.0, time_limit=0.3)
        compiled.add(solver)
    result, word, Loop._run = None, "", begin
    try:
        result = drago.solve(problem, solver, tol=0.0)
        if result.status != "interrupted":
            time.sleep(60)
            word = "no signal"
    except KeyboardInterrupt:
        word = "raised" if result is None else "late"
    except BaseException as error:
        word = repr(error)
    Loop._run = run
    if result is not None and result.status == "interrupted":
        # That of the trivial model comes from the weights of the classes, sums of n terms.
        exact = problem.objective(result.coef, result.intercept)
        same = abs(result.primal - exact) <= 2 * n * np.finfo(float).eps * exact
        known = np.isfinite(result.gap) and result.primal <= trivial
        word = "certified" if same and known else f"{result!r} {same} {known}"
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            word = "the handler is not back"
    print(word, flush=True)
"""


@pytest.fixture(scope="module")
def child():
    """Another process, which solves what it is told to."""
    command, pipe = [sys.executable, "-c", CHILD], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.stdin.close()


def interrupt(child, solver, times, seed, longest=0.08):
    """What came of solves that were interrupted at random moments after their loops began."""
    found, draw = [], random.Random(seed)
    for _ in range(4 * times):
        child.stdin.write(f"{solver}\n")
        child.stdin.flush()
        assert child.stdout.readline() == "begun\n"
        time.sleep(draw.uniform(0.0, longest))
        child.send_signal(signal.SIGINT)
        word = child.stdout.readline().strip()
        if word != "late":  # the solve was over before
            found.append(word)
        if len(found) == times:
            break
    return found


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_signal_at_any_moment_returns_a_certified_point(child, solver):
    assert interrupt(child, solver, 2, seed=1) == ["certified"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_signals_at_200_moments(child, solver):
    assert interrupt(child, solver, 200, seed=2) == ["certified"] * 200


# ----------------------------------------------------------------------------- what is promised


def test_a_signal_is_kept_until_the_loop_asks_for_it():
    with pytest.warns(ConvergenceWarning, match="interrupted after"):
        result = drago.solve(make(), "lbfgs", tol=1e-12, callback=once())
    assert result.status == "interrupted" and np.isfinite(result.gap)
    assert len(result.history) == 1


def test_a_signal_after_the_last_iteration_is_not_lost(monkeypatch):
    """It may come when the answer is already certified, or while the result is made."""
    kept, late = base.result_of, once()

    def pressed(*args):
        late(None)
        return kept(*args)

    with pytest.warns(ConvergenceWarning, match="interrupted after"):
        result = drago.solve(make(), callback=once())
    assert result.status == "interrupted" and result.rel_gap <= 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(base, "result_of", pressed)
        with pytest.warns(ConvergenceWarning, match="interrupted after"):
            result = drago.solve(make(), "lbfgs")
    assert result.status == "interrupted" and result.rel_gap <= 1e-4


def test_a_second_signal_raises_at_once():
    def twice(state):
        press()
        press()
        raise AssertionError("the second one did not raise")

    with pytest.raises(KeyboardInterrupt):
        drago.solve(make(), "lbfgs", tol=1e-12, callback=twice)


def test_before_the_loop_a_signal_is_a_plain_interrupt(monkeypatch):
    def pressed(*args):
        press()
        raise AssertionError("the signal did not raise")

    with monkeypatch.context() as patch:
        patch.setattr(drago.DROProblem, "trivial_loss", property(pressed))
        with pytest.raises(KeyboardInterrupt):
            make(shift_cost="auto")


def test_what_an_interrupt_makes_of_a_compiled_call_is_an_interrupt():
    @_interrupts.interruptible
    def call(cause):
        raise SystemError("<a kernel> returned a result with an exception set") from cause

    with pytest.raises(KeyboardInterrupt, match="now") as caught:
        call(KeyboardInterrupt("now"))
    assert caught.value.__cause__ is None
    with pytest.raises(SystemError):
        call(ValueError("another error"))


def test_a_handler_of_ones_own_is_called_in_the_loop_and_is_back_afterwards():
    calls = []

    def own(number, frame):
        calls.append(number)

    class Cancelled(Exception):
        pass

    def cancel(number, frame):
        raise Cancelled

    signal.signal(signal.SIGINT, own)
    try:
        result = drago.solve(make(), "lbfgs", tol=1e-6, callback=lambda state: press())
        assert result.status == "optimal" and set(calls) == {signal.SIGINT}
        assert signal.getsignal(signal.SIGINT) is own
        signal.signal(signal.SIGINT, cancel)
        with pytest.raises(Cancelled):
            drago.solve(make(), "lbfgs", tol=1e-12, callback=lambda state: press())
        assert signal.getsignal(signal.SIGINT) is cancel
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        result = drago.solve(make(), "lbfgs", tol=1e-6, callback=lambda state: press())
        assert result.status == "optimal"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_was_set_during_a_solve_stays():
    def own(number, frame):
        pass

    try:
        drago.solve(make(), callback=lambda state: signal.signal(signal.SIGINT, own) and None)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_solves_in_other_threads_leave_signals_alone():
    results = []
    solves = threading.Thread(target=lambda: results.append(drago.solve(make(), "drago")))
    solves.start()
    solves.join()
    assert results[0].status == "optimal"


@pytest.mark.parametrize("before_the_result_is_kept", [False, True])
def test_estimators_keep_the_answer_and_raise(before_the_result_is_kept, monkeypatch):
    X, y = data()
    model = drago.DRORegressor(drago.CVaR(0.1), tol=1e-12)
    place = (drago.DRORegressor, "_shapes") if before_the_result_is_kept else (base.Loop, "_judge")
    kept = getattr(*place)

    def pressed(*args, **more):
        press()
        monkeypatch.setattr(*place, kept)
        return kept(*args, **more)

    monkeypatch.setattr(*place, pressed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
    assert np.isfinite(model.dual_gap_) and model.predict(X).shape == y.shape


def test_the_clock_of_a_solve_ends_before_its_warning(monkeypatch):
    from drago.loop import outcome
    from drago.loop.clock import Clock

    read, clock = [], Clock.elapsed.fget
    monkeypatch.setattr(Clock, "elapsed", property(lambda own: read.append(1) or clock(own)))
    monkeypatch.setattr(outcome, "warn", lambda message: read.append("warned"))
    drago.solve(make(), "lbfgs", tol=0.0, max_iter=1)
    assert read[-1] == "warned" and 1 in read
