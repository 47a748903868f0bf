"""Has a robust fit given up? Its skill against that of the mean fit.

``skill = 1 - mean loss / mean loss of the best constant model``. Where the tail of the losses is
noise, the worst case is served best by a model that predicts the same for every row: its skill goes
to zero, and its answers are of no use.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from drago.loop.messages import warn
from drago.loop.threads import at_most
from drago.metric import subsample
from drago.problem import DROProblem
from drago.result import SolverResult
from drago.solvers.lbfgs import LBFGS
from drago.solvers.solve import solve
from drago.terms.constraints import Everything
from drago.terms.uncertainty import CVaR

# Rows that the mean fit is made on, at most.
MOST_ROWS = 10_000
# A fit with less than this share of the mean fit's skill has collapsed.
SHARE = 0.5
_TOL = 1e-3
_SHARE_OF_TIME = 0.1
# Features up to which a least-squares fit is made by its normal equations.
_FEW_FEATURES = 100


class CollapseWarning(UserWarning):
    """A robust fit has less than half of the mean fit's skill on the training rows.

    Examples
    --------
    >>> import warnings
    >>> import drago
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", drago.CollapseWarning)  # or "error", to stop there
    """


class Skill(NamedTuple):
    """What a fit explains, and what the mean fit explains of the same rows."""

    fit: float
    mean_fit: float
    """NaN where it need not be known: a fit with half of all skill there is has not collapsed."""

    @property
    def has_collapsed(self) -> bool:
        """Whether the fit has less than half of the mean fit's skill."""
        return bool(self.mean_fit > 0 and self.fit < SHARE * self.mean_fit)


def measure_skill(
    problem: DROProblem, result: SolverResult, time_limit: float | None = None
) -> Skill:
    """The skill of a fit, and of the mean fit on at most 10,000 of the rows.

    Parameters
    ----------
    problem : DROProblem
    result : SolverResult
        Its solution.
    time_limit : float, optional
        That of the fit; the mean fit may take a tenth of it.
    """
    if problem.loss.is_users:  # it may not like to be called elsewhere
        return Skill(np.nan, np.nan)
    mean = CVaR(1.0)
    plain = problem
    if problem.baseline is not None:
        plain = problem._replace(rows=problem.rows.with_baseline(None))
    if problem.n_samples > MOST_ROWS or not hasattr(problem.rows, "X"):  # rows in files
        part = plain.take(subsample(problem, MOST_ROWS))
        plain = part if part.n_classes == plain.n_classes else plain
    is_whole = plain.n_samples == problem.n_samples
    plain = plain._replace(uncertainty=mean, divergence=mean.match("auto"), nu=1.0)
    if is_whole and problem.fit_intercept and problem.constraint.is_everything:
        constant = problem.trivial_loss  # which an automatic shift cost has asked for already
    else:
        constant = plain._replace(fit_intercept=True, constraint=Everything()).trivial_loss
    if not constant > 0:
        return Skill(np.nan, np.nan)

    def skill(coef: Any, intercept: Any) -> float:
        losses = plain.evaluate(*plain.to_internal(coef, intercept)).losses
        return 1.0 - float(plain.rows.dot(plain.p, losses)) / constant

    own = skill(result.coef, result.intercept)
    if own >= SHARE or not np.isfinite(own):
        return Skill(own, np.nan)
    limit = None if time_limit is None else _SHARE_OF_TIME * time_limit
    return Skill(own, skill(*_mean_fit(plain, limit)))


def _mean_fit(problem: DROProblem, time_limit: float | None) -> tuple[Any, Any]:
    """The coefficients and the intercept of a mean fit, as well as they need be known."""
    few = problem.n_features <= _FEW_FEATURES and not problem.is_sparse
    if few and problem.loss.is_quadratic and problem.constraint.is_everything:
        return _least_squares(problem)
    method: Any = LBFGS() if problem.constraint.has_bounds else "auto"
    with warnings.catch_warnings():  # what it reaches is enough
        warnings.simplefilter("ignore")
        found = solve(problem, method, tol=_TOL, time_limit=time_limit)
    return found.coef, found.intercept


def _least_squares(problem: DROProblem) -> tuple[Any, Any]:
    """The mean fit of a squared loss, by its normal equations of centred features."""
    X, y, p = np.asarray(problem.X, dtype=np.float64), problem.y, problem.p
    mean, level = np.zeros(X.shape[1]), 0.0
    with at_most(1):
        if problem.fit_intercept:
            mean, level = p @ X, float(p @ y)
        Z = X - mean
        H, r = (Z.T * p) @ Z, Z.T @ (p * (y - level))
        H[np.diag_indices_from(H)] += problem.mu
        # In units in which they count alike; some may depend on others.
        unit = np.sqrt(np.diag(H))
        unit[~(unit > 0)] = 1.0
        coef = np.linalg.lstsq(H / np.outer(unit, unit), r / unit, rcond=None)[0] / unit
    return coef, level - float(mean @ coef)


def warn_of_collapse(skill: Skill, has_baseline: bool) -> None:
    """Say that a fit has collapsed, and what to do."""
    remedy = "uncertainty='mild' or a larger shift_cost"
    if not has_baseline:
        remedy = f"baseline='auto', {remedy}"
    warn(
        "the fit has collapsed: its skill on the training rows (1 - loss / loss of the best "
        f"constant prediction) is {skill.fit:.2f}, and that of the ordinary fit is "
        f"{skill.mean_fit:.2f}. Often the reason is noise in the worst rows. Try {remedy}.",
        CollapseWarning,
    )
