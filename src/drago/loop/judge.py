"""The judge of the points that a method shows: from the problem alone, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drago.certificate.certificate import uncertified
from drago.certificate.certify import NO_BOUND, judge
from drago.certificate.search import AMPLE
from drago.loop.best import Entry
from drago.loop.budget import Budget
from drago.loop.protocol import Iterate
from drago.metric import subsample
from drago.problem import DROProblem, Evaluation

# Predictions that are sums of many steps are computed afresh at so many rows; the losses have to
# agree to this share of the trivial model's objective.
_WITNESSES = 32
_AGREEMENT = 1e-11
# Newton steps that may be tried to predict better weights, where the method offers none.
_PREDICTIONS = 3


class Judge:
    """Certifies the points of a method.

    Parameters
    ----------
    problem : DROProblem
        The problem that the method works on.
    tol : float
        The relative gap at which a certificate is good enough.
    budget : Budget
        Told of what it costs.
    is_late : callable, optional
        Whether there is no time left.

    Attributes
    ----------
    exact : DROProblem
        The same problem in float64, which certificates are made with.
    oracle : DualOracle
        Of the problem that the method works on; remembers where its last search ended.
    """

    def __init__(
        self,
        problem: DROProblem,
        tol: float,
        budget: Budget,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._problem, self._tol, self._budget, self._is_late = problem, tol, budget, is_late
        self.exact, self.oracle = problem.in_float64, problem.dual_oracle()

    def certify(self, iterate: Iterate, credit: float, is_last: bool = False) -> Entry:
        """The certificate of a point, for no more than `credit` passes, and the point.

        If it is not the last one, the first on large data is a look, which may end early.
        """
        problem, ev, q, oracle = self._problem, self.trusted(iterate), iterate.q, self.oracle
        exact = None if ev is None else iterate.exact
        if self.exact is not problem:
            # Weights of less than float64 do not lie in the set.
            problem, ev, q, oracle = self.exact, None, None, self.exact.dual_oracle()
            exact = None
        if ev is None:
            ev = problem.evaluate(iterate.w, iterate.b)
            self._budget.spend(0.5)
        # A method that keeps weights offers them; predicting others is for the last word.
        is_look = self._budget.is_first_look
        cheap = q is not None or is_look or not iterate.predicts
        certificate = judge(
            problem,
            ev,
            q,
            oracle=oracle,
            exact=exact,
            target=self._tol,
            credit=credit,
            predictions=_PREDICTIONS if credit == AMPLE or not cheap else 0,
            is_late=self._is_late,
            is_look=is_look and not is_last,
        )
        self._budget.spend(certificate.n_passes)
        return certificate, ev.w, ev.b

    def reference(self) -> Entry:
        """The trivial model: its objective, and no bound yet."""
        unknown = uncertified(self.exact, self.exact.reference[0])
        if not self._problem.is_convex:
            slope = self._problem.reference_slope
            unknown = replace(unknown, bound=NO_BOUND, stationarity=slope)
        return unknown, *self._problem.origin

    def objective(self, iterate: Iterate) -> Entry | None:
        """A point and its objective, without a bound; None where the method has not computed it."""
        problem, ev = self.exact, self.trusted(iterate)
        if ev is None:
            return None
        if problem is not self._problem:
            ev = problem.evaluate(ev.w, ev.b)
        q = problem.dual_oracle().weights(ev.losses, problem.nu)
        return uncertified(problem, problem.primal(ev.w, ev.losses, q)), ev.w, ev.b

    def trusted(self, iterate: Iterate) -> Evaluation | None:
        """The evaluation that came with a point; None where it has lost too many digits."""
        ev, problem = iterate.evaluation, self._problem
        if ev is None or not iterate.is_sum:
            return ev
        index, scale = subsample(problem, _WITNESSES), problem.scale
        return ev if problem.rows.drift(problem.loss, ev, index, scale) <= _AGREEMENT else None
