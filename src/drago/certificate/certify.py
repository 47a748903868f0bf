"""The one judge: how far from optimal a point can be, from the problem alone.

For any ``w`` and any ``q`` in Q::

    gap = [ max over q' of L(w, q') - L(w, q) ] + [ L(w, q) - min over w' of L(w', q) ]

is at least ``P(w) - P*``. The first bracket is computed exactly, the second is bounded from above
(`drago.certificate.bounds`). Both are sums of nonnegative terms, so the gap goes to zero with the
error and does not stop at the rounding of ``P``. Any weights in Q give a valid gap; the solver's
own, the exact ones at ``w``, and those at losses predicted by Newton steps are tried, and the best
kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._interrupts import interruptible
from drago.certificate.certificate import Certificate, uncertified
from drago.certificate.search import AMPLE, FEASIBILITY, GapSearch
from drago.problem import DROProblem, Evaluation, Gradient, check_problem
from drago.terms.uncertainty import DualOracle

Vector = npt.NDArray[np.float64]

NO_BOUND = "none: the losses are not declared convex"
# Newton steps that `certify` tries to predict the optimal weights.
_PREDICTIONS = 25


@interruptible
def certify(
    problem: DROProblem, coef: Any, intercept: Any = 0.0, dual_weights: Any = None
) -> Certificate:
    """Prove how far from the optimum a point is at most, from scratch and in float64.

    Parameters
    ----------
    problem : DROProblem
    coef : array of shape (n_features,) or (n_outputs, n_features)
    intercept : float or array of shape (n_outputs,)
    dual_weights : array of shape (n,), optional
        Weights to try; they must lie in the uncertainty set. The exact weights at `coef` are
        always tried.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> result = drago.solve(problem, tol=1e-8)
    >>> drago.certify(problem, result.coef).rel_gap <= 1e-8
    True
    """
    problem = check_problem(problem).in_float64
    w, b = problem.to_internal(coef, intercept)
    if not problem.constraint.contains(w):
        raise ValueError(f"coef does not lie in the constraint set {problem.constraint!r}.")
    q = None
    if dual_weights is not None:
        q = problem.rows.enter("dual_weights", dual_weights)
        if problem.uncertainty.is_users and not problem.uncertainty.can_check:
            raise ValueError(
                "dual_weights cannot be checked against a set of your own; leave them out, or give "
                "the set a method violation(q, p) that is 0 inside the set."
            )
        violation = problem.violation(q)
        if violation > FEASIBILITY:
            raise ValueError(
                f"dual_weights are not allowed by {problem.uncertainty!r}: they break its limits "
                f"by {violation:.2g}. Use the dual_weights of a SolverResult, or leave them out."
            )
    with np.errstate(under="ignore"):
        found = judge(problem, problem.evaluate(w, b), q, credit=AMPLE, predictions=_PREDICTIONS)
    return replace(found, dual_weights=problem.rows.export(found.dual_weights))


def judge(
    problem: DROProblem,
    ev: Evaluation,
    q: Vector | None = None,
    *,
    oracle: DualOracle | None = None,
    exact: tuple[Vector, Gradient] | None = None,
    target: float = 0.0,
    credit: float = AMPLE,
    predictions: int = 3,
    is_late: Callable[[], bool] = lambda: False,
    is_look: bool = False,
) -> Certificate:
    """The certificate at an evaluated point, with effort until `target` is reached.

    Parameters
    ----------
    q : array of shape (n,), optional
        Weights in Q to try besides the exact ones.
    exact : (array, Gradient), optional
        The exact weights, and the gradient with these, where they are known.
    target : float
        Relative gap below which nothing better is looked for.
    credit : float
        Passes that may be spent on curvature bounds and predictions.
    predictions : int
        Newton steps that may be tried to predict the optimal weights.
    is_late : callable, optional
        Whether there is no time for another bound.
    is_look : bool
        Whether to end where the curvature of more rows is not expected to lead to the target.
    """
    oracle = oracle or problem.dual_oracle()
    if not problem.is_convex:
        return _flatness(problem, ev, oracle)
    search = GapSearch(problem, ev, oracle, target, credit, exact, is_late, is_look)
    search.run(q, predictions)
    return search.result()


def judge_with(
    problem: DROProblem,
    ev: Evaluation,
    q: Vector | None = None,
    *,
    credit: float,
    rest: float | None = None,
) -> Certificate:
    """The certificate from these weights in Q, or from the exact ones; no others are tried.

    With `rest`, steps toward a minimum end where no more than that is left.
    """
    oracle = problem.dual_oracle()
    if not problem.is_convex:
        return _flatness(problem, ev, oracle)
    search = GapSearch(problem, ev, oracle, 0.0, credit)
    search.rest = rest
    q = search.exact if q is None else q
    search.try_all(q, search.gradient(ev, q))
    return search.result()


def _flatness(problem: DROProblem, ev: Evaluation, oracle: DualOracle) -> Certificate:
    """What is known of a point without convexity: how flat the objective is there."""
    q = oracle.weights(ev.losses, problem.nu)
    slope = problem.gradient(ev, q).w + problem.mu * ev.w
    return replace(
        uncertified(problem, problem.primal(ev.w, ev.losses, q)),
        dual_weights=q,
        bound=NO_BOUND,
        n_passes=0.5,
        stationarity=float(np.linalg.norm(slope)),
    )
