"""What a solver returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Status(StrEnum):
    """Why a solver stopped; all but `optimal` and `stationary` come with a `ConvergenceWarning`.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> drago.solve(problem).status == "optimal"
    True
    """

    OPTIMAL = "optimal"
    """The certified relative gap is at most `tol`."""
    MAX_ITER = "max_iter"
    """The limit on iterations was reached first."""
    TIME_LIMIT = "time_limit"
    """The limit on time was reached first."""
    INTERRUPTED = "interrupted"
    """Ctrl-C; the best certified point so far is returned."""
    STOPPED = "stopped"
    """The callback asked to stop."""
    STATIONARY = "stationary"
    """``||grad P||`` is at most `tol` times what it was at the start; there is no certificate."""
    STALLED = "stalled"
    """The method could not improve its point any more."""


@dataclass(frozen=True)
class Record:
    """One certificate in the course of a solve."""

    n_iter: int
    n_passes: float
    n_oracle_calls: int
    time: float
    solver_time: float
    primal: float
    dual: float
    gap: float
    rel_gap: float


@dataclass(frozen=True)
class History:
    """The certificates of a solve, in order; each column is an array (``history.rel_gap``)."""

    records: tuple[Record, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        last = f", the last of rel_gap={self.records[-1].rel_gap:.2g}" if self.records else ""
        return f"History({len(self)} certificates{last})"

    def __getattr__(self, name: str) -> Vector:
        if name.startswith("_") or name not in Record.__dataclass_fields__:
            raise AttributeError(f"a History has the columns {list(Record.__dataclass_fields__)}.")
        return np.array([getattr(record, name) for record in self.records])


@dataclass(frozen=True)
class SolverResult:
    """A certified answer.

    Attributes
    ----------
    coef, intercept : array, float or array
        The best point found, in scikit-learn's shapes.
    dual_weights : array of shape (n,)
        The worst-case weights ``q`` that the lower bound rests on: which rows decide the model.
    primal, dual, gap, rel_gap : float
        Certified: the objective at `coef`, a lower bound on the optimal value, their difference,
        and that as a share of what there is to gain over the model with all coefficients at 0.
    status : Status
    message : str
        What ran and why it stopped, in a sentence.
    bound : str
        Which bound the certificate rests on (see `drago.certify`).
    n_iter, n_passes, n_oracle_calls : int, float, int
        Iterations; readings of all rows, everything included; and losses with their gradients, a
        row each, as the paper counts them (certificates left out).
    time, solver_time : float
        Seconds; and seconds without the certificates.
    dual_coef, dual_intercept : array, float or array
        The point at which `dual_weights` attain `dual`: ``certify(problem, dual_coef,
        dual_intercept, dual_weights).dual`` is at least that.
    solver : str
    stationarity : float or None
        ``||grad P(coef)||`` of a problem that is not known to be convex, for which there is no
        bound: `gap` and `rel_gap` are infinite.
    history : History

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> result = drago.solve(problem)
    >>> result.coef.shape, str(result.status)
    ((3,), 'optimal')
    >>> result.rel_gap <= 1e-4
    True
    """

    coef: Vector
    intercept: Any
    dual_weights: Vector
    primal: float
    dual: float
    gap: float
    rel_gap: float
    status: Status
    message: str
    bound: str
    n_iter: int
    n_passes: float
    n_oracle_calls: int
    time: float
    solver_time: float
    dual_coef: Vector
    dual_intercept: Any
    solver: str
    stationarity: float | None = None
    history: History = field(default_factory=History, repr=False)

    def __repr__(self) -> str:
        return (
            f"SolverResult({self.status}, primal={self.primal:.8g}, rel_gap={self.rel_gap:.2g}, "
            f"n_passes={self.n_passes:g}, time={self.time:.3g} s, solver={self.solver!r})"
        )
