"""Weights that prove the trivial model optimal where there is no shift cost.

At such an optimum the losses of the tail are all equal, so the maximum over q is attained by many
weights, of which only those that balance the gradient prove anything. With a tiny shift cost they
are unique, and what solves that problem finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from drago.loop.loop import Iterate, Loop
from drago.loop.method import Method
from drago.problem import DROProblem

# The shift cost, in units of the trivial model's objective, and how well that problem is solved.
_SHIFT_COST = 1e-8
_TOL = 1e-6
# How little the best point may gain on the trivial model, in the same unit, to be taken for it.
_LITTLE = 1e-6


@dataclass(frozen=True)
class TrivialModel(Method):
    """A last word on the trivial model, where nothing better was found.

    Parameters
    ----------
    methods : methods
        What solves the problem with a tiny shift cost.
    """

    methods: tuple[Method, ...]
    name = "weights for the trivial model"

    def check(self, problem: DROProblem) -> None:
        if problem.nu > 0:
            raise ValueError("with a shift cost the weights of the trivial model are unique.")

    def run(self, problem: DROProblem, loop: Loop) -> str:
        why = "the objective does not fall any more"
        value, size = problem.reference[0], problem.scale
        if loop.best.primal < value - _LITTLE * size or size == 0:
            return why
        tiny = problem._replace(nu=_SHIFT_COST * size)
        result = loop.inner(tiny, _TOL, others=self.methods[1:]).run(self.methods[0])
        w, b = loop.trivial
        calls, q = result.n_oracle_calls, problem.rows.imported(result.dual_weights)
        loop.observe(Iterate(w, b, 1, result.n_passes, calls, q=q, milestone=True))
        return why
