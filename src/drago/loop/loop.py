"""The only loop: it lets methods run, has their points judged, and decides when a solve is over.

A method moves; everything else happens here. It calls `Loop.observe` after each of its iterations
(or batches of them) with the point it has reached, and goes on until that raises `Stop`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from drago._interrupts import guard
from drago._validation import are_finite
from drago.certificate.search import AMPLE
from drago.files.checkpoint import State
from drago.loop.best import Best
from drago.loop.budget import Budget
from drago.loop.clock import Clock
from drago.loop.goal import Goal, measure
from drago.loop.judge import Judge
from drago.loop.ledger import Ledger
from drago.loop.method import Method as Method
from drago.loop.method import Solver, adapted
from drago.loop.outcome import result_of
from drago.loop.protocol import Counts
from drago.loop.protocol import Diverged as Diverged
from drago.loop.protocol import Enough as Enough
from drago.loop.protocol import Iterate as Iterate
from drago.loop.protocol import Progress as Progress
from drago.loop.protocol import Start as Start
from drago.loop.protocol import Stop as Stop
from drago.loop.resume import Checkpoints
from drago.loop.start import start_on_a_part
from drago.loop.threads import blas_threads
from drago.metric import FLOOR, Metric, make_metric
from drago.problem import DROProblem, NonFiniteLossError
from drago.result import SolverResult, Status

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Loop:
    """One solve: shows what a method observes to the judge, and decides when it is over.

    Parameters
    ----------
    problem : DROProblem
    tol : float
    max_iter : int or None
    time_limit : float or None
        Seconds.
    time_spent : float
        How many of them were gone before.
    callback : callable or None
        Called with a `Progress` at each certificate; a true return value stops the solve.
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
        A solve inside another: no warning, no interrupt caught.
    trusting : bool
        Whether the method's own estimate of the gap is enough to stop: no certificates.

    Attributes
    ----------
    clock, budget, goal, judge, ledger
        The time; what certificates may cost; what ends the solve; who certifies; what was found.
    oracle : DualOracle
        The judge's, for methods too.
    status : Status
    last : Iterate or None
        The last point that was observed, with the counts of all methods.
    before : Counts
        What methods that handed over have done.
    start_at : Start or None
        Where a method starts, if that is another point than the trivial model.
    metric : Metric or None
        The one in use, for whoever goes on.
    """

    def __init__(
        self,
        problem: DROProblem,
        tol: float,
        max_iter: int | None = None,
        time_limit: float | None = None,
        callback: Callable[[Progress], Any] | None = None,
        random_state: int = 0,
        start: Start | None = None,
        checkpoints: Checkpoints | None = None,
        others: Sequence[Solver] = (),
        why: str = "",
        quiet: bool = False,
        trusting: bool = False,
        time_spent: float = 0.0,
    ) -> None:
        self.problem, self.tol, self.max_iter = problem, tol, max_iter
        self.random_state, self.why = random_state, why
        self.quiet, self.trusting = quiet, trusting
        self.clock = Clock(time_limit, spent=time_spent, said=problem.rows.said)
        self.budget = Budget(problem.n_entries)
        self.goal = Goal(problem, tol)
        # On small data nobody waits for the whole of a certificate.
        clock, large = self.clock, self.budget.is_large
        self.judge = Judge(problem, tol, self.budget, lambda: large and clock.is_late)
        self.ledger = Ledger(problem, self.clock, callback)
        self.oracle = self.judge.oracle
        self.status = Status.STALLED
        self.last: Iterate | None = None
        self.before = Counts()
        self.start_at = start
        self.metric: Metric | None = None
        self._is_start_given = start is not None
        self._checkpoints = checkpoints
        self._others = [adapted(other) for other in others]
        self.rounds_before = problem.rows.n_rounds
        self._guard = guard()

    # ------------------------------------------------------------------------ for methods

    def observe(self, iterate: Iterate) -> None:
        """Take note of a point; raises `Stop` when the solve is over."""
        self._guard.poll()
        if not (are_finite(iterate.w) and are_finite(iterate.b)):
            raise Diverged("the iterates diverged to NaN or infinity")
        iterate = self.before.added_to(iterate)
        if not self.problem.constraint.contains(iterate.w):
            inside = self.problem.constraint.project(iterate.w)
            iterate = iterate._replace(w=inside, evaluation=None)
        if self.last is None and self._is_start_given:
            self._enter_start(iterate)
        self.last = iterate
        if self.trusting and self.goal.seems_reached(iterate, self.best):
            self.stop(Status.OPTIMAL)
        limit = self.max_iter is not None and iterate.n_iter >= self.max_iter
        self.clock.visited(iterate.n_passes)
        late = self.is_out_of_time
        is_judged = limit or late or self._is_due(iterate)
        if not is_judged and self.clock.is_late:  # since a moment ago
            is_judged = late = True
        if is_judged:
            self._judge(iterate, self._credit(iterate, late), is_last=limit or late)
        if self.goal.is_certified(self.best):
            self.stop(Status.OPTIMAL)
        if self.goal.is_stationary(self.best):
            self.stop(Status.STATIONARY)
        if limit:
            self.stop(Status.MAX_ITER)
        if late or (is_judged and self.clock.is_late):
            self.stop(Status.TIME_LIMIT)
        if self.budget.is_spent(iterate.n_passes):
            raise Enough

    def stop(self, status: Status) -> NoReturn:
        """End the run of the method, and the solve."""
        self.status = status
        raise Stop

    @property
    def start(self) -> tuple[Matrix, Vector]:
        """Where a method starts: a given point, or w = 0 with its best intercept."""
        if self.start_at is not None:
            return self.start_at.w.copy(), self.start_at.b.copy()
        return self.trivial

    @property
    def has_start(self) -> bool:
        """Whether methods start from another point than the trivial model."""
        return self.start_at is not None

    @property
    def was_given_a_start(self) -> bool:
        """Whether they do, and the point does not come from a method that handed over."""
        return self.start_at is not None and not any(self.before)

    @property
    def start_weights(self) -> Vector | None:
        """Weights to start with, where some were given."""
        return None if self.start_at is None else self.start_at.q

    @property
    def start_centre(self) -> Vector | None:
        """The features' centre, where the metric of the start has one."""
        return None if self.start_at is None else self.start_at.centre

    @property
    def start_error(self) -> float:
        """How far above the optimum the start may lie, as far as is known."""
        return min(max(self.best.gap, 0.0), self.problem.scale)

    @property
    def trivial(self) -> tuple[Matrix, Vector]:
        """The trivial model: w = 0 with its best intercept."""
        return self.problem.origin

    @property
    def best(self) -> Best:
        """The best point and the best bound so far."""
        return self.ledger.best

    def best_point(self) -> tuple[Matrix, Vector]:
        """A copy of the best point certified so far."""
        _, w, b = self.best.point
        return w.copy(), b.copy()

    def suggest(self, w: Matrix, b: Vector) -> None:
        """Have a point considered for the best by its objective, without a certificate."""
        evaluation = self.problem.evaluate(w, b)
        self.budget.spend(0.5)
        self._enter_start(Iterate(w, b, 0, 0.0, 0, evaluation=evaluation))

    @property
    def measure(self) -> float:
        """What has to become small: the certified gap, or ``||grad P||^2`` without one."""
        return measure(self.best.point[0], self.best.gap)

    @property
    def estimate_wanted(self) -> float:
        """What a method's free estimate of the gap has to fall to."""
        return self.goal.estimate_wanted(self.last, self.best)

    @property
    def time_left(self) -> float | None:
        """Seconds to the time limit, where there is one."""
        return self.clock.left

    @property
    def is_out_of_time(self) -> bool:
        """Whether the limit is reached, or would be before a last certificate is made.

        Before the first iteration there is nothing worth that.
        """
        done = self.counts
        return self.clock.is_late_for(self.budget.last_word(done.n_passes) if done.n_iter else 0.0)

    @property
    def counts(self) -> Counts:
        """What all methods have done up to the last point that was observed."""
        last = self.last
        return Counts() if last is None else Counts(last.n_iter, last.n_passes, last.n_oracle_calls)

    def iterations_left(self, n_iter: int) -> int:
        """How many more a method may make that has made `n_iter`; at least one."""
        done = n_iter + self.before.n_iter
        return sys.maxsize if self.max_iter is None else max(self.max_iter - done, 1)

    def make_metric(self, kind: str, mean: Vector | None, floor: float = FLOOR) -> Metric:
        """The metric of the problem, or that of the part of its rows which gave the start."""
        inherited = None if self.start_at is None else self.start_at.metric
        if inherited is not None and kind != "euclidean":
            self.metric = inherited
        else:
            own = self.problem.rows.own_metric
            if own is None:
                self.metric = make_metric(self.problem, kind, mean, floor)
            else:
                self.metric, passes = own(self.problem, kind, floor)
                self.budget.spend_on_metric(passes)
        return self.metric

    def rest(self, snapshot: Callable[[], State]) -> None:
        """For a method that can be resumed: `snapshot` holds all it needs to go on from here."""
        if self._checkpoints is not None:
            self._checkpoints.rest(self, snapshot)
        self.clock.rest()

    def hand_over(self, method: Solver, passes: float = np.inf, doubt: float = 1.0) -> str:
        """Let another method go on from the best point, for so many passes; messages name it.

        By `doubt` its first estimates of the gap are multiplied.
        """
        method = adapted(method)
        try:
            method.check(self.problem)
        except ValueError as error:
            return str(error)
        self.before = self.counts
        n_iter = self.before.n_iter
        self.ledger.notes.append(f"finished by {method.name} from iteration {n_iter} on")
        self.start_at = Start(*self.best_point(), metric=self.metric)
        self.goal.factor = doubt
        self.budget.hand_over(n_iter, self.before.n_passes + passes)
        # A checkpoint is that of the first method, which would not know what to do with this.
        kept, self._checkpoints = self._checkpoints, None
        try:
            return method.run(self.problem, self)
        except Enough:
            assert self.last is not None
            self._judge(self.last, self.budget.credit(self.last.n_passes))
            return "another method did no better"
        finally:
            self._checkpoints = kept

    def inner(self, problem: DROProblem, tol: float, **more: Any) -> Loop:
        """A quiet solve of another problem inside this one, in the time that is left."""
        settings = {"time_limit": self.time_left, "random_state": self.random_state, **more}
        return Loop(problem, tol, quiet=True, **settings)

    # ------------------------------------------------------------------------ the judgements

    def _is_due(self, iterate: Iterate) -> bool:
        """Whether a certificate is due: the method or its estimate says so, or it is time again."""
        if self._is_asked_for(iterate):
            return True
        return not self.trusting and self.budget.is_look_due(iterate)

    def _is_asked_for(self, iterate: Iterate) -> bool:
        return iterate.milestone or self.goal.seems_reached(iterate, self.best)

    def _credit(self, iterate: Iterate, late: bool) -> float:
        """What a certificate may cost; no more than there is time for, where that runs out."""
        credit = self.budget.credit(iterate.n_passes)
        if iterate.is_measured and not (late or self._is_asked_for(iterate)):
            credit = self.budget.credit_for_look
        if late and self.clock.pace > 0:
            credit = min(credit, self.budget.credit_for((self.time_left or 0.0) / self.clock.pace))
        return credit

    def _judge(
        self, iterate: Iterate, credit: float, *, is_last: bool = False, aloud: bool = True
    ) -> None:
        """Have a point certified and, with `aloud`, tell the callback."""
        with self.clock.of_evaluations():
            found = self.judge.certify(iterate, credit, is_last)
            self.budget.looked(iterate.n_iter)
            self.goal.learn(found[0], iterate)
            self.best.keep(*found)
        self.ledger.write(iterate, self.budget.total(iterate.n_passes))
        if aloud and self.ledger.report():
            self.stop(Status.OPTIMAL if self.goal.is_certified(self.best) else Status.STOPPED)

    def _judge_last(self) -> None:
        """The last word on where the method stands."""
        if not self.ledger.is_open:
            self.ledger.open(self.judge.reference())
        last = self.last if self.last is not None else Iterate(*self.start, 0, 0.0, 0)
        # On a device what was broken off may have written over its vectors.
        if not self.problem.rows.is_on_host:
            last = last._replace(evaluation=None)
        stalled = self.status is Status.STALLED  # then spare nothing
        is_open = stalled and not self.goal.is_certified(self.best)
        if last.n_iter != self.budget.judged_iter or is_open:
            credit = AMPLE if stalled else self.budget.credit(last.n_passes)
            try:
                self._judge(last, credit, is_last=True, aloud=False)
            except NonFiniteLossError:
                if self.problem.loss.is_users:
                    raise
        if not stalled:
            return
        if self.goal.is_certified(self.best):
            self.status = Status.OPTIMAL
        elif self.goal.is_stationary(self.best):
            self.status = Status.STATIONARY

    def _enter_start(self, iterate: Iterate) -> None:
        """Nothing worse than a start that was given is returned."""
        found = self.judge.objective(iterate)
        if found is not None:
            self.best.keep(*found)

    # ------------------------------------------------------------------------ running

    def run(self, method: Solver) -> SolverResult:
        """Let `method` solve the problem."""
        method = adapted(method)
        threads = blas_threads(self.problem, method)
        with self._guard, self._agreed(), threads, np.errstate(over="ignore", under="ignore"):
            if self.quiet:
                return result_of(self, method, self._run(method))
            self._guard.hold()
            why = self._run(method)
            self._is_interrupted()
            result = result_of(self, method, why)
            return result_of(self, method, why) if self._is_interrupted() else result

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        """An interrupt of one process is one of all that share the rows."""
        before = self._guard.agree
        self._guard.agree = self.problem.rows.is_any if self.problem.rows.is_shared else before
        try:
            yield
        finally:
            self._guard.agree = before

    def _is_interrupted(self) -> bool:
        """Whether an interrupt has come meanwhile, which is then the status."""
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
            self.ledger.open(self.judge.reference())
            go_on = None
            if self._checkpoints is not None:
                go_on = self._checkpoints.begin(self, method)
            if go_on is not None:
                why = go_on()
            else:
                start_on_a_part(self, method)
                self.clock.visited(0.0)
                if self.has_start and not self._is_start_given and self.clock.is_late:
                    # The method would begin with passes of its own.
                    self.observe(Iterate(*self.start, 0, 0.0, 0))
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
            if self.goal.is_certified(self.best):
                break
            with suppress(NonFiniteLossError, Diverged):
                why = self.hand_over(other)
        return why
