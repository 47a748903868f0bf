"""The only loop: clocks, certificates, stopping, history, the best point and the result.

A method moves; everything else happens here. It calls `Loop.observe` after each of its iterations
(or batches of them) with the point it has reached, and goes on until that raises `Stop`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._interrupts import guard
from drago._validation import are_finite
from drago.certificate.certificate import Certificate, relative, uncertified
from drago.certificate.certify import NO_BOUND, judge
from drago.certificate.search import AMPLE
from drago.files.checkpoint import State as CheckpointState
from drago.loop.best import Best
from drago.loop.outcome import result_of
from drago.loop.protocol import Diverged as Diverged
from drago.loop.protocol import Enough as Enough
from drago.loop.protocol import Iterate as Iterate
from drago.loop.protocol import Method as Method
from drago.loop.protocol import Start as Start
from drago.loop.protocol import State as State
from drago.loop.protocol import Stop as Stop
from drago.loop.resume import Checkpoints
from drago.loop.start import start_on_a_part
from drago.loop.threads import blas_threads
from drago.loop.warm_up import compile_for
from drago.metric import FLOOR, Metric, make_metric, subsample
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.result import Record, SolverResult, Status
from drago.solvers.drago.blocks import SMALL

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Loop:
    """One solve: judges what a method observes and decides when it is over.

    Parameters
    ----------
    problem : DROProblem
    tol : float
    max_iter : int or None
    time_limit : float or None
        Seconds, compilation not counted.
    callback : callable or None
        Called with a `State` at each certificate; a true return value stops the solve.
    random_state : int
        Seed for the methods that draw.
    start : Start, optional
        Where to start; the trivial model otherwise.
    checkpoints : Checkpoints, optional
        Where to save the solve, and to resume it from.
    others : methods
        What goes on, one after the other, where the method makes no further progress.
    why : str
        Why this method was taken; the message begins with it.
    quiet : bool
        A solve inside another: no warning, no compilation of its own, no interrupt caught.
    trusting : bool
        Whether the method's own estimate of the gap is enough to stop: no certificates.
    """

    def __init__(
        self,
        problem: DROProblem,
        tol: float,
        max_iter: int | None = None,
        time_limit: float | None = None,
        callback: Callable[[State], Any] | None = None,
        random_state: int = 0,
        start: Start | None = None,
        checkpoints: Checkpoints | None = None,
        others: Sequence[Method] = (),
        why: str = "",
        quiet: bool = False,
        trusting: bool = False,
    ) -> None:
        self.problem, self.tol, self.quiet = problem, tol, quiet
        self.trusting = trusting
        self.random_state = random_state
        self.max_iter, self.time_limit, self.callback = max_iter, time_limit, callback
        self.status = Status.STALLED
        self.oracle = problem.dual_oracle()
        self._exact = problem.in_float64  # what certificates are made with
        self._records: list[Record] = []
        self._last: Iterate | None = None
        self._judged_iter = -1
        self._looks = 0
        self._next_look = 1
        self._factor = 1.0  # certified gap / estimate, at the last certificate
        self._extra_passes = 0.0
        self._metric_passes = 0.0  # apart, for certificates are not to be fewer for it
        self._began = time.perf_counter()
        self._earlier = 0.0  # seconds before a resumption
        self._rested = self._began
        self._evaluating = 0.0
        self._checkpoints = checkpoints
        self._best: Best | None = None
        self._start, self._given = start, start is not None
        self.metric: Metric | None = None  # the one in use, for whoever goes on
        self._others, self.why = others, why
        self._notes: list[str] = []
        self._allowed = np.inf
        self._before = (0, 0.0, 0)  # iterations, passes, calls of methods that handed over
        self._guard = guard()

    # ------------------------------------------------------------------------ for methods

    def observe(self, iterate: Iterate) -> None:
        """Take note of a point; raises `Stop` when the solve is over."""
        self._guard.poll()
        if not (are_finite(iterate.w) and are_finite(iterate.b)):
            raise Diverged("the iterates diverged to NaN or infinity")
        if any(self._before):
            n_iter, n_passes, n_calls = self._before
            iterate = iterate._replace(
                n_iter=iterate.n_iter + n_iter,
                n_passes=iterate.n_passes + n_passes,
                n_oracle_calls=iterate.n_oracle_calls + n_calls,
            )
        if not self.problem.constraint.contains(iterate.w):
            inside = self.problem.constraint.project(iterate.w)
            iterate = iterate._replace(w=inside, evaluation=None)
        if self._last is None and self._given:
            self._enter_start(iterate)
        self._last = iterate
        if self.trusting and self._seems_done(iterate):
            self._stop(Status.OPTIMAL)
        limit = self.max_iter is not None and iterate.n_iter >= self.max_iter
        late = self._is_late()
        if limit or late or self._is_due(iterate):
            self._judge(iterate, self._credit(iterate))
        if self.best.is_certified(self.tol):
            self._stop(Status.OPTIMAL)
        if self._is_stationary():
            self._stop(Status.STATIONARY)
        if limit:
            self._stop(Status.MAX_ITER)
        if self._is_late():
            self._stop(Status.TIME_LIMIT)
        if iterate.n_passes > self._allowed:
            raise Enough

    @property
    def start(self) -> tuple[Matrix, Vector]:
        """Where a method starts: a given point, or w = 0 with its best intercept."""
        if self._start is not None:
            return self._start.w.copy(), self._start.b.copy()
        return self.trivial

    @property
    def has_start(self) -> bool:
        """Whether that is another point than the trivial model."""
        return self._start is not None

    @property
    def was_given_a_start(self) -> bool:
        """Whether the caller gave it, and not a method that handed over."""
        return self._start is not None and not any(self._before)

    @property
    def start_weights(self) -> Vector | None:
        """Weights to start with, where some were given."""
        return None if self._start is None else self._start.q

    @property
    def start_centre(self) -> Vector | None:
        """The features' centre, where the metric of the start has one."""
        return None if self._start is None else self._start.centre

    @property
    def start_error(self) -> float:
        """How far above the optimum the start may lie, as far as is known."""
        return min(max(self.best.gap, 0.0), abs(self.problem.reference[0]))

    def iterations_left(self, n_iter: int) -> int:
        """How many a method may make that has made `n_iter`, up to the limit; at least one."""
        done = n_iter + self._before[0]
        return sys.maxsize if self.max_iter is None else max(self.max_iter - done, 1)

    @property
    def measure(self) -> float:
        """What has to become small: the certified gap, or ``||grad P||^2`` without one."""
        return _measure(self.best.point[0], self.best.gap)

    @property
    def estimate_wanted(self) -> float:
        """What a method's free estimate of the gap has to fall to."""
        if not self.problem.is_convex:
            return (self.tol * self.problem.reference_slope) ** 2 / max(self._factor, 1e-300)
        primal, reference = self._objective(self._last)
        return self.tol * max(reference - primal, 0.0) / max(self._factor, 1e-300)

    def make_metric(self, kind: str, mean: Vector | None, floor: float = FLOOR) -> Metric:
        """The metric of the problem, or that of the part of its rows which gave the start."""
        inherited = None if self._start is None else self._start.metric
        if inherited is not None and kind != "euclidean":
            self.metric = inherited
        else:
            own = self.problem.rows.engine.get("metric")
            if own is None:
                self.metric = make_metric(self.problem, kind, mean, floor)
            else:
                self.metric, passes = own(self.problem, kind, floor)
                self._metric_passes += passes
        return self.metric

    def hand_over(self, method: Method, passes: float = np.inf) -> str:
        """Let another method go on from the best point, for so many passes; it will be named."""
        try:
            method.check(self.problem)
        except ValueError as error:
            return str(error)
        last = self._last
        if last is not None:
            self._before = (last.n_iter, last.n_passes, last.n_oracle_calls)
        self._notes.append(f"finished by {method.name} from iteration {self._before[0]} on")
        self._compile(method)
        self._start = Start(*self.best_point(), metric=self.metric)
        self._factor = 1.0
        self._next_look = self._before[0] + 1
        self._allowed = self._before[1] + passes
        try:
            return method.run(self.problem, self)
        except Enough:
            assert self._last is not None
            self._judge(self._last, self._credit(self._last))
            return "another method did no better"

    def _compile(self, method: Method) -> None:
        """Compile what a method needs; the clocks leave that out."""
        began = time.perf_counter()
        compile_for(self.problem, method)
        spent = time.perf_counter() - began
        self._began, self._rested = self._began + spent, self._rested + spent

    @property
    def trivial(self) -> tuple[Matrix, Vector]:
        return self.problem.origin

    def best_point(self) -> tuple[Matrix, Vector]:
        """The best point certified so far."""
        _, w, b = self.best.point
        return w.copy(), b.copy()

    @property
    def best(self) -> Best:
        """The best point and the best bound so far."""
        assert self._best is not None
        return self._best

    @property
    def time_left(self) -> float | None:
        """Seconds to the time limit, where there is one."""
        if self.time_limit is None:
            return None
        return max(self.time_limit - (time.perf_counter() - self._began), 0.0)

    @property
    def elapsed(self) -> float:
        """Seconds, those before a resumption included."""
        return self._earlier + time.perf_counter() - self._began

    def rest(self, snapshot: Callable[[], CheckpointState]) -> None:
        """For a method that can be resumed: `snapshot` holds all it needs to go on from here."""
        if self._checkpoints is not None:
            self._checkpoints.rest(self, snapshot)
        self._rested = time.perf_counter()

    @property
    def is_running_out(self) -> bool:
        """Whether the time limit may come before the next rest."""
        if self.time_limit is None:
            return False
        now = time.perf_counter()
        return now - self._began + 2.0 * (now - self._rested) >= self.time_limit

    def _is_late(self) -> bool:
        return self.time_left == 0.0

    # ------------------------------------------------------------------------ the decisions

    def _stop(self, status: Status) -> None:
        self.status = status
        raise Stop

    def _is_due(self, iterate: Iterate) -> bool:
        """When the method says so, by its own estimate of the gap, or from time to time."""
        if iterate.milestone or self._seems_done(iterate):
            return True
        if iterate.is_measured and self.problem.n_entries <= SMALL:
            return False
        affordable = self._extra_passes + 1.0 <= _LOOKING * iterate.n_passes
        return affordable and iterate.n_iter >= self._next_look and not self.trusting

    def _seems_done(self, iterate: Iterate) -> bool:
        expected = self._factor * iterate.gap_estimate
        if not self.problem.is_convex:
            return expected <= 0.5 * (self.tol * self.problem.reference_slope) ** 2
        primal, reference = self._objective(iterate)
        return relative(expected, primal, reference) <= 0.7 * self.tol

    def _is_stationary(self) -> bool:
        """Whether the best point is one, where that is all that can be known."""
        found = self.best.point[0].stationarity
        return found is not None and found <= self.tol * self.problem.reference_slope

    def _objective(self, iterate: Iterate | None) -> tuple[float, float]:
        """The best objective, known or estimated, and that of the trivial model."""
        best = self.best.point[0]
        estimate = np.inf if iterate is None else iterate.primal_estimate
        return min(best.primal, estimate), best.reference

    def _credit(self, iterate: Iterate) -> float:
        """Certificates may take half as much work as the method has put in, and a little more.

        The first one on large data is a cheap look: if it fails, an iteration of a method that
        converges well is worth more than a better bound.
        """
        if self._is_first_look:
            return _FIRST_CREDIT
        return max(4.0 + 0.5 * iterate.n_passes - self._extra_passes, _LEAST_CREDIT)

    @property
    def _is_first_look(self) -> bool:
        return self._looks == 0 and self.problem.n_entries > SMALL

    def _judge(self, iterate: Iterate, credit: float) -> None:
        began = time.perf_counter()
        problem, ev, q, oracle = self.problem, self._evaluation(iterate), iterate.q, self.oracle
        if self._exact is not problem:
            # Weights of less than float64 do not lie in the set.
            problem, ev, q, oracle = self._exact, None, None, self._exact.dual_oracle()
        if ev is None:
            ev = problem.evaluate(iterate.w, iterate.b)
            self._extra_passes += 0.5
        # A method that keeps weights offers them; predicting others is for the last word.
        cheap = q is not None or self._is_first_look
        certificate = judge(
            problem,
            ev,
            q,
            oracle=oracle,
            target=self.tol,
            credit=credit,
            predictions=3 if credit == AMPLE or not cheap else 0,
        )
        self._looks += 1
        self._extra_passes += certificate.n_passes
        self._judged_iter = iterate.n_iter
        # Looks by count thin out; the estimate is what calls for a certificate in good time.
        self._next_look = max(iterate.n_iter + 1, int(1.5 * iterate.n_iter) + 1)
        measure = _measure(certificate, certificate.gap)
        known = math.isfinite(measure) and math.isfinite(iterate.gap_estimate)
        if known and iterate.gap_estimate > 0:
            self._factor = measure / iterate.gap_estimate
        self.best.keep(certificate, ev.w, ev.b)
        self._evaluating += time.perf_counter() - began
        self._record(iterate)

    def _evaluation(self, iterate: Iterate) -> Evaluation | None:
        """What the method has computed at its point; not where the digits of it are lost."""
        ev, problem = iterate.evaluation, self.problem
        if ev is None or not iterate.is_sum:
            return ev
        index, scale = subsample(problem, _WITNESSES), abs(problem.reference[0])
        return ev if problem.rows.drift(problem.loss, ev, index, scale) <= _AGREEMENT else None

    def _record(self, iterate: Iterate) -> None:
        best, w, b = self.best.point
        gap, rel_gap = self.best.gap, self.best.rel_gap
        elapsed = self.elapsed
        passes = iterate.n_passes + self._extra_passes + self._metric_passes
        self._records.append(
            Record(
                n_iter=iterate.n_iter,
                n_passes=passes,
                n_oracle_calls=iterate.n_oracle_calls,
                time=elapsed,
                solver_time=elapsed - self._evaluating,
                primal=best.primal,
                dual=best.primal - gap,
                gap=gap,
                rel_gap=rel_gap,
            )
        )
        if self.callback is not None:
            coef, intercept = self.problem.to_public(w, b)
            state = State(
                n_iter=iterate.n_iter,
                coef=coef,
                intercept=intercept,
                primal=best.primal,
                dual=best.primal - gap,
                gap=gap,
                rel_gap=rel_gap,
                n_passes=passes,
                time=elapsed,
            )
            began = time.perf_counter()
            try:
                enough = self.callback(state)
            except StopIteration:
                enough = True
            self._evaluating += time.perf_counter() - began
            if enough:
                self._stop(Status.OPTIMAL if self.best.is_certified(self.tol) else Status.STOPPED)

    # ------------------------------------------------------------------------ running

    def run(self, method: Method) -> SolverResult:
        """Let `method` solve the problem."""
        threads = blas_threads(self.problem, method)
        with self._guard, threads, np.errstate(over="ignore", under="ignore"):
            if self.quiet:
                return result_of(self, method, self._run(method))
            self._compile(method)
            self._guard.hold()
            why = self._run(method)
            self._is_interrupted()
            result = result_of(self, method, why)
            return result_of(self, method, why) if self._is_interrupted() else result

    def _is_interrupted(self) -> bool:
        """Whether an interrupt has come meanwhile; it is the status then."""
        try:
            self._guard.poll()
        except KeyboardInterrupt:
            self.status = Status.INTERRUPTED
            return True
        return False

    def _run(self, method: Method) -> str:
        """Everything but the result; returns why there is no further progress."""
        why = ""
        try:
            self._enter_reference()
            go_on = None
            if self._checkpoints is not None:
                go_on = self._checkpoints.begin(self, method)
            if go_on is not None:
                why = go_on()
            else:
                start_on_a_part(self, method)
                why = self._run_in_turn(method)
        except Stop:
            pass
        except KeyboardInterrupt:
            if self.quiet or self._guard.is_urgent:
                raise  # it is for the solve around this one, or for whoever called that
            self.status = Status.INTERRUPTED
        except Diverged as error:
            why = str(error)
        except NonFiniteLossError as error:
            if self.problem.loss.is_users:
                raise
            why = str(error)
        if self.status is Status.STALLED:
            try:
                self._judge_last()
            except KeyboardInterrupt:
                if self.quiet or self._guard.is_urgent:
                    raise
                self.status = Status.INTERRUPTED
        if self.status is Status.INTERRUPTED:
            self._judge_last()
        return why

    def _run_in_turn(self, method: Method) -> str:
        """Let it run, and others go on from its best point where it gives up."""
        if not self._others:
            return method.run(self.problem, self)
        why = ""
        with suppress(NonFiniteLossError, Diverged):
            why = method.run(self.problem, self)
        for other in self._others:
            self._judge_last()
            if self.best.is_certified(self.tol):
                break
            with suppress(NonFiniteLossError, Diverged):
                why = self.hand_over(other)
        return why

    def _enter_reference(self) -> None:
        """The trivial model is the first candidate: nothing worse is ever returned."""
        unknown = uncertified(self._exact, self._exact.reference[0])
        if not self.problem.is_convex:
            slope = self.problem.reference_slope
            unknown = replace(unknown, bound=NO_BOUND, stationarity=slope)
        self._best = Best(unknown, *self.trivial)

    def _enter_start(self, iterate: Iterate) -> None:
        """Nor anything worse than a start that was given."""
        problem, ev = self._exact, self._evaluation(iterate)
        if ev is not None:
            if problem is not self.problem:
                ev = problem.evaluate(ev.w, ev.b)
            q = problem.dual_oracle().weights(ev.losses, problem.nu)
            primal = problem.primal(ev.w, ev.losses, q)
            self.best.keep(uncertified(problem, primal), ev.w, ev.b)

    def _judge_last(self) -> None:
        if self._best is None:
            self._enter_reference()
        last = self._last if self._last is not None else Iterate(*self.start, 0, 0.0, 0)
        if self.problem.rows.engine:  # what was broken off may have written over its vectors
            last = last._replace(evaluation=None)
        stalled = self.status is Status.STALLED  # the last word: spare nothing
        if last.n_iter != self._judged_iter or (stalled and not self.best.is_certified(self.tol)):
            callback, self.callback = self.callback, None  # it has had its say
            try:
                self._judge(last, AMPLE if stalled else self._credit(last))
            except NonFiniteLossError:
                if self.problem.loss.is_users:
                    raise
            self.callback = callback
        if not stalled:
            return
        if self.best.is_certified(self.tol):
            self.status = Status.OPTIMAL
        elif self._is_stationary():
            self.status = Status.STATIONARY


def _measure(certificate: Certificate, gap: float) -> float:
    slope = certificate.stationarity
    return gap if slope is None else slope**2


# What each certificate may spend, come what may: without it one could not tell success.
_LEAST_CREDIT = 4.0
# What the first one may spend on large data.
_FIRST_CREDIT = 1.0
# Rows at which predictions that are sums of steps are looked at, and how well their losses have to
# agree, by the objective of the trivial model.
_WITNESSES = 32
_AGREEMENT = 1e-11
# The share of the passes that may go into certificates on the way.
_LOOKING = 0.1
