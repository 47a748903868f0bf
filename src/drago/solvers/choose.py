"""Which solver "auto" takes for which problem."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drago.certificate.cost import curvature_cost, n_unknowns
from drago.loop.method import Method
from drago.metric import make_metric
from drago.problem import DROProblem
from drago.solvers import class_descent
from drago.solvers.compiled import is_capped_chi2
from drago.solvers.drago.method import Drago
from drago.solvers.lbfgs import LBFGS
from drago.solvers.newton import Newton


@dataclass(frozen=True)
class _AutoRule:
    """The thresholds of `choose`, fitted on benchmarks/measurements/solvers.csv."""

    few_unknowns: int = 250
    """Newton steps are for at most so many unknowns."""
    small: int = 1 << 19
    """Compiled ones win up to so many entries of X; up to twice as many without a shift cost."""
    cheap_tail: float = 1.5
    """Beyond that they win at kinks, if the Hessian of the tail costs at most so many passes."""
    thin_tail: tuple[float, float] = (0.2, 2.0)
    """Compiled or not, they win where the tail holds from so many to so many rows an unknown; but
    not compiled with logistic losses on the tiniest data."""
    tiny: int = 1 << 15
    """They win in balls with the logistic loss, whose curvature changes on the way, up to so many
    entries; for a small shift cost, up to a quarter of that. On such data it hardly matters whether
    there are fewer rows than features, and a weight of 2 shall be two rows."""
    small_shift_cost: float = 0.01
    """What a small shift cost is at most, as a share of the objective at w = 0."""
    very_few_unknowns: int = 20
    """With several outputs and a small l2_reg they win up to so many unknowns."""
    small_l2_reg: float = 0.1
    """What a small l2_reg is less than; with fewer rows than features and chi2, DRAGO wins with a
    greater one, and for squared and Huber losses with any."""
    rows_per_unknown: int = 10
    """With several outputs, a small l2_reg and fewer rows than that a metric is of no use."""
    well_conditioned: float = 5.0
    """Nor is it where its greatest curvature is at most so many times its least."""
    few_features: int = 100
    """Whether that is so is looked at for at most so many features."""
    many_rows: int = 5000
    """With a shift cost it is looked at from so many rows on, for squared and Huber losses,"""
    most_rows: int = 500_000
    """and for squared losses up to so many, from where a start on a part of them saves more."""


_RULE = _AutoRule()
IN_METRIC = LBFGS(metric="auto", progressive=True, memory=40)


def choose(problem: DROProblem) -> tuple[Method, tuple[Method, ...], str]:
    """What "auto" takes for a problem, what goes on where that stalls, and why.

    1. In an `L2Ball`, Newton steps on small data (2^19 entries) with at most 250 unknowns, where
       they apply; otherwise DRAGO, which has them finish where they are affordable.
    2. With many classes, dense features, l2_reg and a shift cost, L-BFGS in a metric, which is
       compiled there (`drago.solvers.class_descent`).
    3. With dense features and at most 250 unknowns, Newton steps, because the objective has a kink
       wherever a row enters the tail:

       - for a `CVaR` with the chi2 divergence, where they are compiled, on small data (2^19
         entries; 2^20 without a shift cost). Without a shift cost on larger data too, if the loss
         is squared or Huber's and the Hessian of the tail costs no more than 1.5 passes;
       - for a `CVaR` with any divergence, if its tail holds 0.2 to 2 times as many rows as there
         are unknowns, or on tiny data (2^13 entries) if the shift cost is at most 1% of the
         objective at w = 0; where they are not compiled, on tiny data for squared and Huber losses
         alone;
       - in balls with the logistic loss on tiny data (2^15 entries);
       - with several outputs for at most 20 unknowns and l2_reg < 0.1.
       On a device: for a `CVaR` or the simplex and one output, if a Hessian costs no more than 2
       passes; not for squared losses with a shift cost on a graphics card, where L-BFGS has the
       Hessian of all rows for its metric, unless it is the simplex with KL, whose Hessian changes
       with the weights.
    4. With fewer rows than features DRAGO, whose iterations are compiled there, for a `CVaR` with
       chi2 and a shift cost on small data (2^15 to 2^19 entries), if the loss is squared or
       Huber's or l2_reg >= 0.1.
    5. Plain L-BFGS where a metric is of no use: with fewer rows than features (but for tiny data,
       2^15 entries), on well-conditioned features (one output, at most 100 features; no shift
       cost, or Huber's loss and 5000 rows or more, or the squared loss and 500,000 at most of
       these), and with several outputs, fewer than 10 rows an unknown and l2_reg < 0.1.
    6. Otherwise L-BFGS in a metric, started on a part of the rows where there are many.
    """
    if not problem.constraint.has_bounds:
        where = f"because it stays in {problem.constraint!r}; "
        affordable = Newton.is_affordable(problem)
        few = n_unknowns(problem) <= _RULE.few_unknowns
        if affordable and few and problem.n_entries <= _RULE.small:
            return Newton(), (Drago(),), f"auto took newton, {where}"
        return Drago(), (Newton(),) if affordable else (), f"auto took drago, {where}"
    if not problem.rows.has("compiled"):
        where = "for rows in parts" if problem.rows.is_on_host else "on a device"
        where = where if problem.rows.is_linear else "for a model that is not linear"
        if _is_for_newton_on_device(problem):
            return Newton(), (IN_METRIC, LBFGS()), f"auto took newton, {where}; "
        return (
            IN_METRIC,
            (*_newton(problem), LBFGS()),
            f"auto took lbfgs with scaled steps, {where}; ",
        )
    size = f"because there are {problem.n_samples} rows and {n_unknowns(problem)} coefficients; "
    if class_descent.is_for(problem):
        why = f"auto took lbfgs with scaled steps, because there are {problem.n_outputs} classes; "
        return IN_METRIC, (*_newton(problem), LBFGS()), why
    if _is_for_newton(problem):
        return Newton(), (IN_METRIC,), f"auto took newton, {size}"
    # Another try would call a user's loss where it may not like it.
    users = problem.loss.is_users
    if _is_well_conditioned(problem):
        why = "auto took lbfgs, because the features are well-conditioned; "
        return LBFGS(), () if users else (IN_METRIC, *_newton(problem)), why
    wide = problem.n_samples < problem.n_features and problem.n_entries > _RULE.tiny
    if wide and _is_for_drago(problem):
        return Drago(), (LBFGS(),), f"auto took drago, {size}"
    few = problem.n_samples < _RULE.rows_per_unknown * problem.n_features * problem.n_outputs
    if wide or (problem.n_outputs > 1 and few and problem.mu < _RULE.small_l2_reg):
        return LBFGS(), () if users else (IN_METRIC,), f"auto took lbfgs, {size}"
    others = () if users else (*_newton(problem), LBFGS())
    return IN_METRIC, others, "auto took lbfgs with scaled steps, the fastest on most problems; "


def _newton(problem: DROProblem) -> tuple[Method, ...]:
    """Newton's method, where its steps are affordable."""
    return (Newton(),) if Newton.is_affordable(problem) else ()


def _is_for_drago(problem: DROProblem) -> bool:
    """Whether its compiled iterations are the fastest, given that there are few rows."""
    if not (is_capped_chi2(problem) and math.isfinite(_rows_in_tail(problem))):
        return False
    bent = problem.loss.is_of_residuals or problem.mu >= _RULE.small_l2_reg
    return bent and problem.nu > 0 and problem.n_entries <= _RULE.small


def _rows_in_tail(problem: DROProblem) -> float:
    """How many rows share the weight at least; infinite for a set without a tail."""
    share = problem.uncertainty.tail_share
    return math.inf if share is None else problem.n_samples * share


def _is_for_newton(problem: DROProblem) -> bool:
    """Whether its steps are possible, and the fastest."""
    unknowns, rows = n_unknowns(problem), _rows_in_tail(problem)
    if problem.is_sparse or unknowns > _RULE.few_unknowns:
        return False
    try:
        Newton().check(problem)
    except ValueError:
        return False
    if problem.n_outputs > 1:
        return unknowns <= _RULE.very_few_unknowns and problem.mu < _RULE.small_l2_reg
    compiled, tiny = Newton.is_compiled(problem), problem.n_entries <= _RULE.tiny // 4
    # Logistic losses take many steps while the coefficients grow.
    pays = compiled or problem.loss.is_of_residuals or not tiny
    if pays and _RULE.thin_tail[0] * unknowns <= rows <= _RULE.thin_tail[1] * unknowns:
        return True
    ball = problem.uncertainty.own_divergence is not None
    if ball and problem.loss.is_classification and problem.n_entries <= _RULE.tiny:
        return True
    if not math.isfinite(rows):
        return False
    if not compiled:
        kinks = problem.nu <= _RULE.small_shift_cost * problem.scale
        return pays and kinks and tiny
    if problem.n_entries <= (_RULE.small if problem.nu > 0 else 2 * _RULE.small):
        return True
    kinks = problem.nu == 0 and problem.loss.is_of_residuals
    return kinks and curvature_cost(problem, rows) <= _RULE.cheap_tail


def _is_for_newton_on_device(problem: DROProblem) -> bool:
    """Whether its steps are possible on a device, and the fastest."""
    if not Newton.is_cheap_on_device(problem):
        return False
    softmax = problem.uncertainty.tail_share is None and problem.divergence.is_steep
    return problem.nu == 0 or softmax or not problem.rows.has_cheap_gram(problem.loss)


def _is_well_conditioned(problem: DROProblem) -> bool:
    """Whether the features are, where that decides."""
    if problem.n_outputs > 1 or problem.n_features > _RULE.few_features:
        return False
    most = _RULE.most_rows if problem.loss.is_quadratic else math.inf
    constant = problem.loss.is_of_residuals and _RULE.many_rows <= problem.n_samples <= most
    corners = problem.nu == 0 and problem.uncertainty.own_divergence is None
    if not (constant or corners):
        return False
    curvature = make_metric(problem._replace(mu=0.0), "auto").eigenvalues
    return bool(curvature.max() <= _RULE.well_conditioned * curvature.min())
