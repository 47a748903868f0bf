"""What a solver returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._frames import as_frame
from drago._html import MOST_LINES, card, pairs, paragraph, table

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

    def to_frame(self) -> Any:
        """A line for each certificate, as a frame of pandas."""
        return as_frame({name: getattr(self, name) for name in Record.__dataclass_fields__})

    def _repr_html_(self) -> str:
        """A few of the certificates, the first and the last among them."""
        few = np.linspace(0, len(self) - 1, min(len(self), MOST_LINES)).round().astype(int)
        names = ("n_iter", "n_passes", "time", "primal", "gap", "rel_gap")
        columns = {name: [getattr(self.records[k], name) for k in few] for name in names}
        return card(repr(self), table(columns) if self.records else "")

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
    n_rounds : int
        How often all workers of a cluster were asked for something; 0 for rows elsewhere.

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
    n_rounds: int = 0

    def __repr__(self) -> str:
        return (
            f"SolverResult({self.status}, primal={self.primal:.8g}, rel_gap={self.rel_gap:.2g}, "
            f"n_passes={self.n_passes:g}, time={self.time:.3g} s, solver={self.solver!r})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "status": str(self.status),
            "objective (primal)": self.primal,
            "lower bound (dual)": self.dual,
            "relative gap": self.rel_gap,
            "bound": self.bound,
            "solver": self.solver,
            "visits to all rows": self.n_passes,
            "time in s": self.time,
        }
        return card("Result of a solve", paragraph(self.message), pairs(facts))
