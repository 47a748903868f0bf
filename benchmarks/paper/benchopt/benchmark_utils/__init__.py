"""What the solvers of this benchmark share; the methods themselves are those of `methods`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import StoppingCriterion

sys.path.append(str(Path(__file__).parents[2]))

import methods

import drago
from drago.loop.loop import Iterate, Loop
from drago.result import Status

TARGET = 1e-10


class Target(StoppingCriterion):
    """Stop at the target, and for no other reason: a method that pauses is not cut off."""

    def __init__(self, target: float = TARGET, **monitored: Any) -> None:
        self.target = target
        super().__init__(target=target, **monitored)

    def check_convergence(self, objective_list: list[dict[str, Any]]) -> tuple[bool, float]:
        value = objective_list[-1]["objective_value"]
        done = np.log(max(value, 1e-300)) / np.log(self.target)
        return value <= self.target, min(max(float(done), 0.0), 1.0)


class Watched(Loop):
    """The library's loop, with benchopt's callback in place of the stopping rules.

    Where a method chooses its step size by certificates, these are made behind the callback, and
    benchopt's clock is set after them.
    """

    def __init__(
        self, problem: drago.DROProblem, solver: PaperSolver, callback: Any, certified: bool
    ) -> None:
        super().__init__(problem, tol=TARGET, random_state=solver.seed, quiet=True)
        self.solver, self.asked, self.certified = solver, callback, certified

    def observe(self, iterate: Iterate) -> None:
        calls = iterate.n_oracle_calls + self.before.n_oracle_calls
        self.solver.point = {"w": iterate.w.copy(), "calls": calls}
        if not self.asked():
            self.stop(Status.STOPPED)
        if self.certified:
            super().observe(iterate)
            self.asked.start()
        else:
            self.last = iterate


class PaperSolver(BaseSolver):
    """A method of `methods.METHODS`, its step size chosen by the paper's rule beforehand.

    Subclasses have a property `method`, the name.
    """

    sampling_strategy = "callback"
    method = ""
    seed = 0
    # Of the choice of the step size; the paper's rule has no number of passes.
    tune_seeds, tune_passes = 1, 50

    def set_objective(self, problem: drago.DROProblem, data: str) -> None:
        self.problem = problem
        self.entry = methods.METHODS[self.method]
        self.settings = self.entry.make(problem)
        if self.entry.tuned:
            seeds = range(self.tune_seeds)
            found = drago.tune(problem, self.settings, methods.grid(data), seeds, self.tune_passes)
            self.settings = found.solver
        self.point = {"w": np.zeros((problem.n_features, problem.n_outputs)), "calls": 0}

    def skip(self, problem: drago.DROProblem, data: str) -> tuple[bool, str | None]:
        try:
            methods.METHODS[self.method].make(problem).check(problem)
        except ValueError as error:
            return True, str(error)
        return False, None

    def warm_up(self) -> None:
        methods.warm_up(self.settings, self.problem, self.entry)

    def get_next(self, stop_val: int) -> int:
        return max(stop_val + 1, int(1.05 * stop_val))

    def run(self, callback: Any) -> None:
        certified = not self.entry.tuned and self.entry.stochastic
        with np.errstate(all="ignore"):
            Watched(self.problem, self, callback, certified).run(self.settings)

    def get_result(self) -> dict[str, Any]:
        return self.point
