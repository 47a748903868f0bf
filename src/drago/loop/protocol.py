"""What a method and the loop say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago.metric import Metric
from drago.problem import Evaluation, Gradient

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Diverged(FloatingPointError):
    """Iterates that have become NaN or infinite."""


class Enough(Exception):
    """Ends the run of a method that had its share of passes."""


class Stop(Exception):
    """Raised by `Loop.observe` to end a method's run."""


class Iterate(NamedTuple):
    """Where a method stands.

    Parameters
    ----------
    w, b : arrays
    n_iter : int
    n_passes : float
        Visits to all rows so far, by the method alone.
    n_oracle_calls : int
    evaluation : Evaluation, optional
        Losses at ``(w, b)``, where the method has them: saves the certificate a pass.
    q : array of shape (n,), optional
        Weights in Q that may certify the point better than the exact ones.
    exact : (q, Gradient), optional
        The exact weights at the evaluation, and the gradient with these, where the method has them.
    gap_estimate, primal_estimate : float
        Free estimates of the gap, up to an unknown factor, and of the objective; they decide when
        a certificate is due.
    milestone : bool
        The end of a stage of the method: a certificate is due in any case.
    is_measured : bool
        Whether `gap_estimate` measures the gap itself. On small data, where a certificate takes as
        long as several iterations, none is due before such an estimate is small.
    is_sum : bool
        Whether the predictions of the evaluation are a sum of many steps, which loses digits where
        these are huge. Then some rows are computed afresh before a certificate trusts them.
    predicts : bool
        Whether a certificate may predict better weights by Newton steps, where those take longer
        than the iterations that would do as well.
    """

    w: Matrix
    b: Vector
    n_iter: int
    n_passes: float
    n_oracle_calls: int
    evaluation: Evaluation | None = None
    q: Any = None
    exact: tuple[Any, Gradient] | None = None
    gap_estimate: float = np.inf
    primal_estimate: float = np.inf
    milestone: bool = False
    is_measured: bool = False
    is_sum: bool = False
    predicts: bool = True


class Counts(NamedTuple):
    """What methods that handed over have done; whoever goes on counts from there."""

    n_iter: int = 0
    n_passes: float = 0.0
    n_oracle_calls: int = 0

    def added_to(self, iterate: Iterate) -> Iterate:
        """A point with these counts on top of its own."""
        if not any(self):
            return iterate
        return iterate._replace(
            n_iter=iterate.n_iter + self.n_iter,
            n_passes=iterate.n_passes + self.n_passes,
            n_oracle_calls=iterate.n_oracle_calls + self.n_oracle_calls,
        )


@dataclass(frozen=True)
class Start:
    """A point to start from.

    Parameters
    ----------
    w, b : arrays
    q : array of shape (n,), optional
        Weights, for the methods that keep some.
    metric : Metric, optional
        The metric it came with.
    centre : array of shape (n_features,), optional
        Where that metric sees the features' centre.
    """

    w: Matrix
    b: Vector
    q: Any = None
    metric: Metric | None = None
    centre: Vector | None = None


@dataclass(frozen=True)
class Progress:
    """What a callback sees at each certificate."""

    n_iter: int
    coef: Vector
    intercept: Any
    primal: float
    dual: float
    gap: float
    rel_gap: float
    n_passes: float
    time: float
