"""The paper's rule for choosing a step size, for the methods that need one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from drago._interrupts import interruptible
from drago._validation import check_integer, check_number, shown
from drago.loop.loop import Iterate, Loop
from drago.problem import DROProblem, NonFiniteLossError, check_problem
from drago.result import Status
from drago.solvers.solve import as_method

STEP_SIZES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
"""The grid of the paper's experiments."""

# The paper averages over so many passes.
_LAST = 10
# Objectives that differ by less are equal: the larger step wins.
_ROUNDING = 1e-13
# An objective this many times that of the start will not come back; DRAGO starts wildly.
_FAR = 1e12


@dataclass(frozen=True)
class Trial:
    """A step size: its mean objective, and that of each seed (infinite where it diverged)."""

    step_size: float
    objective: float
    by_seed: tuple[float, ...]


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes
    ----------
    solver : settings
        The solver with the chosen step size, to be given to `drago.solve`.
    step_size : float
    trials : tuple of Trial
        All step sizes, in the order of the grid.
    """

    solver: Any
    step_size: float
    trials: tuple[Trial, ...]


@interruptible
def tune(
    problem: DROProblem,
    solver: Any,
    grid: Iterable[float] = STEP_SIZES,
    seeds: Iterable[int] = (0, 1, 2),
    n_passes: int = 50,
) -> Tuning:
    """Choose a step size by the selection rule of the paper's experiments.

    For each step size and seed the method makes `n_passes` passes; what counts is the mean of the
    objective over the last ten of them, averaged over the seeds. Step sizes that diverge for any
    seed are discarded: iterates that are not finite, or a mean above the objective of the start.
    Among those that end level, up to rounding, the largest is taken.

    Parameters
    ----------
    problem : DROProblem
    solver : {"sgd", "lsvrg", "prospect", "drago"} or a settings object with a `step_size`
    grid : iterable of float
        The step sizes to try; the paper takes two orders of magnitude less for acsincome.
    seeds : iterable of int
    n_passes : int
        Row visits by n. The visits that evaluate the objective come on top.

    Returns
    -------
    Tuning

    Raises
    ------
    ValueError
        If every step size of the grid diverges.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> problem = drago.DROProblem(X, X[:, 0], shift_cost=1.0, l2_reg=0.1)
    >>> tuning = drago.tune(problem, "sgd", grid=[1e-3, 1e-2], seeds=[0], n_passes=5)
    >>> tuning.step_size
    0.01
    """
    check_problem(problem)
    method = as_method(solver)
    settings = method.settings
    names = {field.name for field in fields(settings)} if is_dataclass(settings) else set()
    if "step_size" not in names:
        raise ValueError(f"solver {method.name!r} has no step size to tune.")
    steps = [check_number("grid", step, low=0, open_low=True) for step in grid]
    seeds = [check_integer("seeds", seed, low=0) for seed in seeds]
    check_integer("n_passes", n_passes, low=1)
    if not steps or not seeds:
        raise ValueError("grid and seeds must hold at least one value each, but one is empty.")
    trials = []
    for step in steps:
        candidate = replace(settings, step_size=step)
        candidate.check(problem)
        values: list[float] = []
        for seed in seeds:
            values.append(_run(problem, candidate, seed, n_passes))
            if not np.isfinite(values[-1]):
                break
        trials.append(Trial(step, float(np.mean(values)), tuple(values)))
    least = min(trial.objective for trial in trials)
    if not np.isfinite(least):
        raise ValueError(
            f"solver {method.name!r} diverges with every step size of the grid, "
            f"{shown(steps)}; give smaller ones."
        )
    level = least + _ROUNDING * abs(least)
    best = max(trial.step_size for trial in trials if trial.objective <= level)
    return Tuning(replace(settings, step_size=best), best, tuple(trials))


def _run(problem: DROProblem, method: Any, seed: int, n_passes: int) -> float:
    """The mean objective of the last ten passes; infinite where the method diverged."""
    loop = _Recorder(problem, seed, n_passes)
    loop.run(method)
    return loop.mean()


class _Recorder(Loop):
    """A loop that evaluates the objective at what a method shows it, and certifies nothing."""

    def __init__(self, problem: DROProblem, seed: int, n_passes: int) -> None:
        super().__init__(problem, tol=0.0, random_state=seed, quiet=True)
        self.n_passes = n_passes
        self.seen: list[tuple[float, float]] = []

    def observe(self, iterate: Iterate) -> None:
        problem = self.problem
        self.last = iterate
        value = np.inf
        if np.isfinite(iterate.w).all() and np.isfinite(iterate.b).all():
            try:
                ev = iterate.evaluation or problem.evaluate(iterate.w, iterate.b)
                q = self.oracle.weights(ev.losses, problem.nu)
                value = problem.primal(ev.w, ev.losses, q)
            except NonFiniteLossError:
                pass
        self.seen.append((iterate.n_passes, value))
        if not value <= _FAR * problem.scale:
            self.stop(Status.STALLED)
        if iterate.n_passes >= self.n_passes:
            self.stop(Status.MAX_ITER)

    def mean(self) -> float:
        last = self.seen[-1][0]
        values = [value for passes, value in self.seen if passes > last - _LAST]
        reached = self.status is Status.MAX_ITER
        value = float(np.mean(values))
        return value if reached and value <= self.problem.reference[0] else np.inf
