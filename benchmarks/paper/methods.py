"""The methods that are compared, and how a run of one is recorded.

All minimise the same objective by the same oracle in the same loop (`drago.solvers`). What differs
from the library's own loop: the objective is evaluated at the method's own points, not at the best
one so far; nothing is certified on the way; and a run ends at a target, or when it has filled the
figure. The evaluations are neither in the seconds nor in the calls, as in the paper.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from problems import unknowns

sys.path.append(str(Path(__file__).parents[1]))
from lagged_baseline import cvar_spectrum, isotonic

import drago
from drago.loop.loop import Iterate, Loop
from drago.problem import DROProblem, NonFiniteLossError
from drago.result import Status
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import LaggedSteps, Steps
from drago.solvers.drago.variants import LaggedIterations
from drago.solvers.tune import STEP_SIZES

# Rows of a batch of SGD. The paper's code takes its nu' there as it is, which is nu'/64 for us.
BATCH = 64
# Calls grow by this factor from one recorded point to the next, at least.
_SPACING = 1.01
# A point this many times worse than the start will not come back; DRAGO starts wildly.
_DIVERGED = 1e12
# DRAGO's iterations between two looks, at most.
_ROUND = 64


@dataclass(frozen=True)
class BatchSGD(drago.SGD):
    """SGD with the shift cost that the paper's code has on a batch.

    Parameters
    ----------
    batch_nu : float
        Ours on the |B| rows of a batch; the library's own SGD takes that of the problem.
    """

    batch_nu: float = 1.0

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return super().run(problem._replace(nu=self.batch_nu), loop)


@dataclass(frozen=True)
class PlainDrago(drago.Drago):
    """The paper's iteration with a given step size and nothing around it.

    The library's own run looks at its tables after each round, for an estimate of the gap that a
    run to a given target has no use for.
    """

    def run(self, problem: DROProblem, loop: Loop) -> str:
        alpha = float(self.step_size)
        lagged = self.tables == "lagged"
        kind, m = LaggedIterations if lagged else Iterations, self.n_blocks(problem)
        start = problem.evaluate(*loop.start)
        stationary = self.start == "stationary"
        tables = problem.rows.tables(problem, kind.kind, m, 1)
        state = kind(
            problem, tables, loop.make_metric(self.metric, None), None, start,
            "exact" if stationary else "nominal",
        )  # fmt: skip
        state.steps = LaggedSteps(alpha) if lagged else Steps(alpha, alpha, stationary)
        self.prepare(state)
        rng, n = np.random.default_rng(loop.random_state), problem.n_samples
        size = min(max((m + 1) // 2, 4), _ROUND)
        while True:
            loop.observe(Iterate(state.w, state.b, state.t, state.visits / n, state.n_calls))
            for i, j in rng.integers(0, m, size=(size, 2)).tolist():
                state.step(i, j)

    def prepare(self, state: Iterations) -> None:
        """For those who change a part of the iteration."""


class SortedOracle:
    """The dual step of CVaR by a sort and pool-adjacent-violators, as in the authors' code."""

    def __init__(self, n: int, tail_fraction: float) -> None:
        self.sigma = cvar_spectrum(n, tail_fraction)

    def solve_into(self, u: Any, c: float, q: Any, mirror: Any = None) -> None:
        scale = u.size * c
        order = np.argsort(u)
        ranked = u[order]
        q[order] = (ranked - isotonic(ranked - scale * self.sigma)) / scale


@dataclass(frozen=True)
class SortedDrago(PlainDrago):
    """The same with the dual step of the authors' code."""

    def prepare(self, state: Iterations) -> None:
        level = float(state.problem.uncertainty.tail_fraction)
        state.tables.oracle = SortedOracle(state.problem.n_samples, level)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Entry:
    """A method by name: its settings for a problem, and how it is shown.

    Parameters
    ----------
    label : str
    make : callable
        Settings for a problem, with any step size.
    tuned : bool
        Whether the step size is chosen by the paper's rule.
    stochastic : bool
        Whether runs with different seeds differ.
    step_of : str
        Whose step size it takes, where not one of its own.
    """

    label: str
    make: Callable[[DROProblem], Any]
    tuned: bool = True
    stochastic: bool = True
    step_of: str = ""


def _paper(
    block: int | None, kind: type[PlainDrago] = PlainDrago, **changes: Any
) -> Callable[[DROProblem], Any]:
    """Algorithm 1 to the letter; None is a block of n/d rows."""

    def make(problem: DROProblem) -> PlainDrago:
        size: int | str = "n/d" if block is None else min(block, problem.n_samples)
        if block is None and problem.n_outputs > 1:
            size = max(problem.n_samples // unknowns(problem), 1)
        settings: dict[str, Any] = {
            "block_size": size,
            "step_size": 0.1,
            "start": "paper",
            "metric": "euclidean",
            "primal": "blocks",
            "n_threads": 1,
        }
        return kind(**(settings | changes))

    return make


def _sgd(problem: DROProblem) -> BatchSGD:
    batch = min(BATCH, problem.n_samples)
    return BatchSGD(0.1, batch, batch_nu=problem.nu * problem.n_samples / batch)


METHODS: dict[str, Entry] = {
    "sgd": Entry("SGD", _sgd),
    "lsvrg": Entry("LSVRG", lambda problem: drago.LSVRG(0.1)),
    "prospect": Entry("Prospect", lambda problem: drago.Prospect(0.1)),
    "lbfgs": Entry("L-BFGS", lambda problem: drago.LBFGS(), tuned=False, stochastic=False),
    **{f"drago-{b}": Entry(f"DRAGO b = {b}", _paper(b)) for b in (1, 16, 64, 256)},
    "drago-n/d": Entry("DRAGO b = n/d", _paper(None)),
    "drago-lagged": Entry("DRAGO Alg. 2, b = n/d", _paper(None, tables="lagged")),
    "drago-auto": Entry("DRAGO auto", lambda problem: drago.Drago(n_threads=1), tuned=False),
}


def _automatic(**changes: Any) -> Callable[[DROProblem], Any]:
    """Blocks of n/d rows in the metric, from the stationary start, with the automatic step."""
    settings: dict[str, Any] = {"primal": "blocks", "refresh": False, "progressive": False}

    def make(problem: DROProblem) -> drago.Drago:
        size = _paper(None)(problem).block_size
        own = {"block_size": size, "finish": "none", "n_threads": 1}
        return drago.Drago(**(settings | own | changes))

    return make


# What was added to the published method, one thing at a time: each of these differs from another
# one in a single setting (see `improvements`).
VARIANTS: dict[str, Entry] = {
    "published": Entry(
        "Alg. 2, sorting", _paper(None, SortedDrago, tables="lagged"), step_of="drago-lagged"
    ),
    "sorting": Entry("Alg. 1, sorting", _paper(None, SortedDrago), step_of="drago-n/d"),
    "stationary": Entry("stationary start", _paper(None, start="stationary")),
    "metric": Entry("metric", _paper(None, start="stationary", metric="auto")),
    "automatic": Entry("automatic step", _automatic(), tuned=False),
    "support": Entry(
        "exact primal gradient", _automatic(primal="support", block_size="auto"), tuned=False
    ),
    "blocks": Entry("blocks", _automatic(block_size="auto"), tuned=False),
}
METHODS |= VARIANTS
# The question of the block size with other mu: from A_0 = 0 small blocks diverge for mu < 1.
STEADY = {
    f"steady-{b}": Entry(f"DRAGO b = {b}", _paper(b, start="stationary")) for b in (1, 16, 64, 256)
}
METHODS |= STEADY | {"steady-n/d": Entry("DRAGO b = n/d", _paper(None, start="stationary"))}


def grid(data: str) -> tuple[float, ...]:
    """The paper's step sizes, two orders of magnitude lower for acsincome."""
    factor = 1e-2 if data.startswith("acsincome") else 1.0
    return tuple(factor * step for step in STEP_SIZES)


@dataclass(frozen=True)
class Limits:
    """When a run is over: at the target, or when it has filled both axes, or at the hard limit.

    Parameters
    ----------
    target : float
        Of the normalised suboptimality.
    passes, seconds : float
        What a figure shows at most: calls by n, and time.
    most_seconds : float
        The hard limit, for methods that take much longer for their calls.
    """

    target: float
    passes: float
    seconds: float
    most_seconds: float


@dataclass
class Curve:
    """A run: its points, and how it ended (`"target"`, `"filled"`, `"limit"`, `"stopped"`)."""

    calls: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    suboptimality: list[float] = field(default_factory=list)
    end: str = "stopped"
    message: str = ""


class Recorder(Loop):
    """A loop that notes calls, time and objective of what a method shows it.

    Methods with a step size of their own choice need the library's certificates to judge it, so
    these go on behind the notes; their time is not the method's, as in `SolverResult.solver_time`.
    """

    def __init__(
        self, problem: DROProblem, seed: int, limits: Limits, optimum: float, certified: bool
    ) -> None:
        super().__init__(problem, tol=limits.target, random_state=seed, quiet=True)
        self.limits, self.optimum, self.certified = limits, optimum, certified
        self.curve = Curve()
        self.worth = problem.reference[0] - optimum
        self.most_iterations = np.inf
        self._noting, self._next = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the method alone."""
        return self.clock.elapsed - self.clock.evaluating - self._noting

    def observe(self, iterate: Iterate) -> None:
        seconds = self.seconds
        calls = iterate.n_oracle_calls + self.before.n_oracle_calls
        late = seconds >= self.limits.most_seconds or iterate.n_iter >= self.most_iterations
        if calls >= self._next or late:
            self._note(iterate, calls, seconds)
        if late:
            self._over("limit")
        if self.certified:
            super().observe(iterate)
        else:
            self.last = iterate

    def _note(self, iterate: Iterate, calls: int, seconds: float) -> None:
        began = time.perf_counter()
        problem, curve, limits = self.problem, self.curve, self.limits
        self._next = max(calls + 1, _SPACING * calls)
        value = np.inf
        if np.isfinite(iterate.w).all() and np.isfinite(iterate.b).all():
            try:
                ev = iterate.evaluation or problem.evaluate(iterate.w, iterate.b)
                q = self.oracle.weights(ev.losses, problem.nu)
                value = problem.primal(ev.w, ev.losses, q)
            except NonFiniteLossError:
                pass
        share = (value - self.optimum) / self.worth
        curve.calls.append(calls)
        curve.iterations.append(iterate.n_iter + self.before.n_iter)
        curve.seconds.append(seconds)
        curve.objective.append(value)
        curve.suboptimality.append(share)
        self._noting += time.perf_counter() - began
        if not share < _DIVERGED:
            self._over("diverged")
        if share <= limits.target:
            self._over("target")
        full = calls >= limits.passes * problem.n_samples and seconds >= limits.seconds
        if full:
            self._over("filled")

    def _over(self, end: str) -> None:
        self.curve.end = end
        self.stop(Status.STOPPED)


def record(
    entry: Entry, method: Any, problem: DROProblem, seed: int, limits: Limits, optimum: float
) -> Curve:
    """Run a method and note its way."""
    warm_up(method, problem, entry)
    loop = Recorder(problem, seed, limits, optimum, certified=not entry.tuned and entry.stochastic)
    with np.errstate(all="ignore"):
        result = loop.run(method)
    loop.curve.message = result.message
    if loop.curve.end == "stopped" and loop.curve.suboptimality[-1] <= limits.target:
        loop.curve.end = "target"
    return loop.curve


def warm_up(method: Any, problem: DROProblem, entry: Entry) -> None:
    """A moment of the run itself, so that its memory and libraries are there."""
    short = Limits(target=0.0, passes=1.0, seconds=0.0, most_seconds=0.05)
    loop = Recorder(problem, 0, short, 0.0, certified=not entry.tuned and entry.stochastic)
    with np.errstate(all="ignore"):
        loop.run(method)


def with_step(method: Any, step_size: float) -> Any:
    return replace(method, step_size=step_size)
