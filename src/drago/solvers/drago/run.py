"""One solve by DRAGO: what makes it run by itself.

In which metric, with which step size, when to cut it, and when to leave the rest to a method that
converges faster near the optimum.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drago.certificate.cost import curvature_cost
from drago.files.checkpoint import State
from drago.loop.loop import Diverged, Iterate, Loop
from drago.metric import Metric, is_box
from drago.problem import DROProblem, Evaluation
from drago.rows.tables.base import NOTICEABLE, Tables
from drago.solvers import class_descent
from drago.solvers.drago.constants import constants_in, theory_step
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.one_block import OneBlockIterations
from drago.solvers.drago.saved import check_run
from drago.solvers.drago.steps import LaggedSteps, SecantSteps, StepRule, Steps, UnregularisedSteps
from drago.solvers.drago.variants import LaggedIterations, SupportIterations
from drago.solvers.drago.watch import WINDOW, Watch
from drago.solvers.lbfgs import LBFGS
from drago.solvers.newton import Newton

if TYPE_CHECKING:
    from drago.solvers.drago.method import Drago

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Step size under step_size="auto", times M: with the primal gradient from blocks (and the root of
# the weights' second moment), and with the exact one.
_STEP = 1.2
_EXACT_STEP = 0.8
# The same with blocks and fresh tables: there is less noise.
_FRESH_STEP = 2.4
# Iterations between two fillings of the tables, with the primal gradient from blocks and exact.
_FRESH_FOR = 4
_FRESH_FOR_EXACT = 2
_LARGEST_STEP = 0.4
# With one block and the exact gradient: the first step, times the root of the second moment, and
# the largest step and the boldness of `SecantSteps`.
_FIRST_STEP, _LARGEST_LEARNT, _BOLDNESS = 0.8, 2.0, 1.1
# By how much the step is cut for a new start, and without one when the pace is bad.
_CUT = 0.3
_SLOWER = 0.5
_LEAST_CUT = 1e-5
# Iterations after which there is a look at the clock, whatever the number of blocks.
_ROUND = 64
# Rounds to go, at the recent pace, beyond which another method finishes.
_FAR, _FAR_ON_DEVICE = 5, 3
# By how much L-BFGS may underestimate the gap on a device, in a metric that it did not choose: an
# iteration more costs less than a certificate that fails.
_DOUBT = 10.0
# Passes that Newton steps may cost to take over at once, and how many of them another method may
# use up before they do.
_CHEAP = 3.0
_AS_LONG_AS = 5.0
# The more blocks, the older the tables: the gap that they show is several times the true one.
_OPTIMISM = 1.6
_OPTIMISM_WHEN_FRESH = 0.4
# The theory's constants are safe, not sharp; without mu or nu "auto" takes them this much smaller.
_SLACK = 100.0


_KINDS = {kind.kind: kind for kind in (LaggedIterations, Iterations, SupportIterations)}


def is_unregularised(problem: DROProblem) -> bool:
    """Whether the step sizes are those of the paper's appendix."""
    return problem.mu == 0 or (problem.nu == 0 and problem.kappa_q > 1)


def _learnt_steps(moment: float) -> SecantSteps:
    """The first of them from the second moment of the weights, ``sum_i q_i^2 / p_i``."""
    return SecantSteps(_FIRST_STEP / np.sqrt(moment), _LARGEST_LEARNT, _BOLDNESS)


def is_small(problem: DROProblem) -> bool:
    """Whether a visit to all rows costs less than what goes with it."""
    if problem.n_samples * problem.n_features <= problem.rows.small:
        return True
    return OneBlockIterations.is_for(problem, 1)


class Run:
    """One solve: the iterations and the judgement on their step size."""

    def __init__(
        self, settings: Drago, problem: DROProblem, loop: Loop, saved: State | None = None
    ) -> None:
        self.settings, self.problem, self.loop = settings, problem, loop
        self.auto = settings.step_size == "auto"
        self.finish = settings.finish
        if not problem.constraint.has_bounds:
            # Of the other methods, Newton's alone stays in a ball.
            wanted = settings.finish in ("auto", "newton")
            self.finish = "newton" if wanted and Newton.is_affordable(problem) else "none"
        # On a device, and with many classes, a certificate that fails costs more than all of
        # another method's steps: the first one, or the first sign of a bad pace, is enough.
        self.of_classes = class_descent.is_for(problem)
        quick = self.of_classes or not problem.rows.is_on_host
        self.hands_over = self.finish != "none" and quick
        self.watch = Watch(np.inf)
        self.rounds = 0
        if saved is not None:
            self._restore(saved)
            return
        self.mean = None
        if problem.fit_intercept:
            self.mean = problem.rows.centre()
        self.metric = loop.make_metric(settings.metric, self.mean)
        self.cut = 1.0
        if self._is_in_haste():
            self._begin_in_haste()
            return
        start = problem.evaluate(*loop.start)
        self.exact = self._is_exact_worthwhile(start)
        self.refreshing = self._is_refreshing()
        self.tables = self._make_tables()
        self.state = self._begin(start, loop.start_weights)
        loop.observe(self._iterate(start))

    @cached_property
    def rng(self) -> np.random.Generator:
        """Draws blocks, where there are several: to make it takes longer than an iteration."""
        return np.random.default_rng(self.loop.random_state)

    def _snapshot(self) -> State:
        arrays, inner = self.state.state()
        arrays["metric.eigenvalues"] = self.metric.eigenvalues
        if self.metric.basis is not None:
            arrays["metric.basis"] = self.metric.basis
        if self.mean is not None:
            arrays["mean"] = self.mean
        watch, seen = self.watch.state()
        arrays |= {f"watch.{name}": array for name, array in watch.items()}
        return arrays, {
            "state": inner,
            "watch": seen,
            "rng": self.rng.bit_generator.state,
            "intercept": self.metric.intercept,
            "cut": self.cut,
            "rounds": self.rounds,
            "exact": self.exact,
        }

    def _restore(self, saved: State) -> None:
        check_run(self.problem, self._is_exact_if_asked(), saved)
        arrays, settings = saved
        self.rng.bit_generator.state = settings["rng"]
        self.cut, self.exact = settings["cut"], settings["exact"]
        self.rounds = settings["rounds"]
        self.refreshing = self._is_refreshing()
        self.mean = arrays.get("mean")
        self.metric = self.loop.metric = Metric(
            arrays["metric.eigenvalues"], arrays.get("metric.basis"), settings["intercept"]
        )
        self.tables = self._make_tables()
        self.watch.restore(arrays, settings["watch"])
        self.state = self._kind.restored(
            self.problem,
            self.tables,
            self.metric,
            self.mean,
            (arrays, settings["state"]),
            self._rules(),
        )

    def _rules(self) -> tuple[type[Any], ...]:
        """What the steps may be of."""
        if is_unregularised(self.problem):
            return (UnregularisedSteps,)
        if self.settings.tables == "lagged":
            return (LaggedSteps,)
        learns = self.tables.count == 1 and self.settings.learns_its_steps(self.problem)
        return (Steps, SecantSteps) if learns else (Steps,)

    def _is_exact_if_asked(self) -> bool | None:
        """Whether the settings want the exact gradient; None where the start decides."""
        settings = self.settings
        if settings.primal != "auto" or not self.auto or is_unregularised(self.problem):
            return settings.primal == "support"
        return True if is_small(self.problem) and settings.block_size == "auto" else None

    def _make_tables(self) -> Tables:
        kind = "lagged" if self.settings.tables == "lagged" else "blocks"
        kind, count = "support" if self.exact else kind, self.settings.n_blocks(self.problem)
        return self.problem.rows.tables(self.problem, kind, count, self.settings.n_threads)

    @property
    def _kind(self) -> type[Iterations]:
        if self.exact and OneBlockIterations.is_for(self.problem, self.tables.count):
            return OneBlockIterations
        return _KINDS[self.tables.kind]

    def _is_refreshing(self) -> bool:
        settings, problem = self.settings, self.problem
        return (
            settings.refresh and self.auto and not (is_small(problem) or is_unregularised(problem))
        )

    def _is_in_haste(self) -> bool:
        """Whether to leave out a look at the start: it takes longer than a compiled round."""
        settings, problem, loop = self.settings, self.problem, self.loop
        if loop.has_start or loop.time_left == 0:
            return False
        plain = settings.primal == "auto" and settings.block_size == "auto"
        return (
            plain and settings.learns_its_steps(problem) and OneBlockIterations.is_for(problem, 1)
        )

    def _begin_in_haste(self) -> None:
        self.exact, self.refreshing = True, False
        self.tables = self.problem.rows.tables(self.problem, "support", 1, self.settings.n_threads)
        self.state, moment = OneBlockIterations.begun(
            self.problem, self.tables, self.metric, self.mean, *self.loop.start
        )
        self.state.steps = _learnt_steps(moment)

    def _is_exact_worthwhile(self, start: Evaluation) -> bool:
        """Whether to compute the primal gradient exactly, from the rows that carry weight."""
        problem, known = self.problem, self._is_exact_if_asked()
        if known is not None:
            return known
        q, n = self.loop.oracle.weights(start.losses, problem.nu), problem.n_samples
        return problem.rows.count(q, NOTICEABLE / n) < problem.rows.thin * n

    def _begin(self, start: Evaluation, q: Vector | None = None) -> Iterations:
        weights: Vector | str = "exact" if q is None else q
        if self.settings.start == "paper":
            weights = "nominal"
        state = self._kind(self.problem, self.tables, self.metric, self.mean, start, weights)
        state.steps = self._steps(state, start)
        return state

    def _steps(self, state: Iterations, start: Evaluation) -> StepRule:
        settings, problem, m = self.settings, self.problem, self.tables.count
        if is_unregularised(problem):
            smooth, lipschitz = constants_in(self.metric, problem, start, self.mean)
            slack = self.cut * _SLACK if self.auto else 1.0
            return UnregularisedSteps(
                m,
                self._strong_convexity(),
                12.0 * math.e * problem.kappa_q * smooth / slack,
                32.0 * lipschitz / slack,
            )
        if settings.step_size == "auto":
            # A block of b rows is worth b / (sum q^2/p) of them when the weights are uneven.
            rows = problem.rows
            moment = rows.second_moment(rows.relative(state.weights()))
            largest = (_FRESH_STEP if self.refreshing else _STEP) / (m * np.sqrt(moment))
            if self.exact:
                largest = _EXACT_STEP / m
            cut = self.cut
            if self.exact and m == 1 and settings.learns_its_steps(problem):
                if cut == 1.0:
                    return _learnt_steps(moment)
                cut = min(cut / _CUT, 1.0)  # steps of one length begin uncut
            alpha = cut * min(largest, _LARGEST_STEP)
        elif settings.step_size == "theory":
            alpha = theory_step(problem, m)
        else:
            alpha = float(settings.step_size)
        if settings.tables == "lagged":
            return LaggedSteps(alpha)
        dual = alpha if settings.dual_step_size is None else settings.dual_step_size
        return Steps(alpha, dual, settings.start == "stationary")

    def _strong_convexity(self) -> float:
        """Of the regularisation, in the unit of the metric: 1 for ``mu I``.

        In another metric it is mu by the greatest eigenvalue, and taken for 0: steps that grow so
        slowly gain nothing. An intercept is not regularised.
        """
        is_unit = self.settings.metric == "euclidean" and self.problem.mu > 0
        return 1.0 if is_unit and not self.problem.fit_intercept else 0.0

    def run(self) -> str:
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what diverges is noticed
                return self._run()
        finally:
            self.tables.close()

    def _run(self) -> str:
        while True:
            self.loop.rest(self._snapshot)
            try:
                iterate = self._iterate(self._round())
            except Diverged:  # there is no step to take
                if self.finish == "none" or not self.auto:
                    raise
                return self._finish()
            sound = math.isfinite(iterate.gap_estimate) and math.isfinite(iterate.primal_estimate)
            if not self.auto:
                if not sound:
                    return f"step_size={self.settings.step_size} is too large: the iterates diverge"
                self._observe(iterate)
                continue
            if sound and not self.watch.diverges(iterate):
                self._observe(iterate)
                if self._is_slow(iterate):
                    if self.cut < 0.3 or self.hands_over or is_unregularised(self.problem):
                        return self._finish()
                    self._slow_down()
                if not self.watch.stalls(self.loop.measure):
                    continue
            self._judge_the_best(iterate)
            if self.finish != "none" and self.cut < 1.0:
                return self._finish()
            self.cut *= _CUT
            if self.cut < _LEAST_CUT:
                return "no step size made further progress"
            spent = self.state
            self.state = self._begin(self.problem.evaluate(*self.loop.best_point()))
            self.state.continue_count(spent)
            del spent  # and its vectors
            self.watch = Watch(self.loop.measure)

    def _iterate(self, here: Evaluation | None) -> Iterate:
        optimism = min(_OPTIMISM / self.tables.count, 1.0)
        if self.refreshing:
            optimism = _OPTIMISM_WHEN_FRESH
        return self.state.iterate(here, optimism)

    def _slow_down(self) -> None:
        """Shorter steps, from where it is: the tables stay."""
        steps = self.state.steps
        assert isinstance(steps, (Steps, SecantSteps))
        self.cut *= _SLOWER
        self.state.steps = steps.shorter(_SLOWER)
        self.watch.estimates.clear()

    def _round(self) -> Evaluation | None:
        """Half an epoch, or a few iterations: what is worth a look at the estimates.

        Then all rows are visited and the tables filled anew, where that is wanted; the visit, which
        is returned, serves the certificate as well.
        """
        count = self.tables.count
        size = min(max((count + 1) // 2, self.state.least_round), _ROUND)
        if self.refreshing:
            size = _FRESH_FOR_EXACT if self.exact else _FRESH_FOR
        if self.loop.max_iter is not None:
            size = max(min(size, self.loop.max_iter - self.state.n_iter), 1)
        pairs = [(0, 0)] * size
        if count > 1:
            pairs = self.rng.integers(0, count, size=(size, 2)).tolist()
        return self.state.round(pairs, self.refreshing)

    def _observe(self, iterate: Iterate) -> None:
        if self.watch.suspicious:
            iterate = iterate._replace(milestone=True)
        self.loop.observe(iterate)
        self.rounds += 1
        if isinstance(self.state.steps, UnregularisedSteps) and self.rounds % WINDOW == 0:
            w, b = self.state.average()
            self.loop.observe(
                iterate._replace(w=w, b=b, q=None, gap_estimate=np.inf, milestone=True)
            )

    def _judge_the_best(self, now: Iterate) -> None:
        """Have the best point since the last start judged, so that it is where to go on from."""
        if self.watch.best is not None:
            self.loop.observe(
                self.watch.best._replace(
                    n_iter=now.n_iter,
                    n_passes=now.n_passes,
                    n_oracle_calls=now.n_oracle_calls,
                    milestone=True,
                )
            )

    def _is_slow(self, now: Iterate) -> bool:
        """Whether another method had better finish; the certificate has a say in it."""
        if self.finish == "none":
            return False
        to_go = self.watch.rounds_to(self.loop.estimate_wanted)
        if self.hands_over:
            return to_go > _FAR_ON_DEVICE or math.isfinite(self.loop.measure)
        if to_go <= _FAR:
            return False
        self._judge_the_best(now)
        return self.watch.rounds_to(self.loop.estimate_wanted) > _FAR

    def _finish(self) -> str:
        finish, problem = self.finish, self.problem
        if self.hands_over and self.watch.best is not None:
            self.loop.suggest(self.watch.best.w, self.watch.best.b)
        doubt = _DOUBT if self.hands_over and not self.of_classes else 1.0
        metric = self.settings.metric
        if is_box(problem):
            metric, self.loop.metric = "diagonal", None  # where a box is still one
        elif metric == "euclidean":
            metric, self.loop.metric = "auto", None
        if finish == "newton":
            return self.loop.hand_over(Newton())
        if finish == "lbfgs" or self.of_classes or not Newton.is_affordable(problem):
            return self.loop.hand_over(LBFGS(metric=metric), doubt=doubt)
        cost = curvature_cost(problem, problem.rows.hessian_rows(self.state.weights()))
        if cost > _CHEAP:
            self.loop.hand_over(LBFGS(metric=metric), passes=_AS_LONG_AS * cost, doubt=doubt)
        self.loop.hand_over(Newton())
        return self.loop.hand_over(LBFGS(metric=metric))  # the last resort
