"""The norm in which solvers move: a quick picture of the curvature of the losses.

``H = curvature * X' diag(p) X + mu I`` says how far a step along each direction changes the losses.
Moving in its norm, one step size serves data of any scaling and conditioning. It is taken from a
subsample of the rows, which costs next to nothing, and applied to vectors of length d; X is never
rotated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago._validation import check_option
from drago.problem import DROProblem

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Features up to which the full matrix is decomposed under "auto".
_FULL = 400
# A direction that no row of the subsample sees still needs a curvature.
_FLOOR = 1e-6


@dataclass(frozen=True)
class Metric:
    """``H`` in a basis where it is diagonal.

    Attributes
    ----------
    eigenvalues : array of shape (n_features,)
    basis : array of shape (n_features, n_features) or None
        Columns are the directions; None is the standard basis.
    intercept : float
        The curvature along the intercept (of centred features).
    """

    eigenvalues: Vector
    basis: Matrix | None
    intercept: float

    def rotate(self, v: Matrix) -> Matrix:
        """Coordinates of `v` (n_features x outputs) in the basis."""
        return v if self.basis is None else self.basis.T @ v

    def back(self, v: Matrix) -> Matrix:
        """From coordinates in the basis to the standard ones."""
        return v if self.basis is None else self.basis @ v


def subsample(problem: DROProblem, size: int) -> npt.NDArray[np.int64]:
    """Evenly spaced rows; no randomness."""
    n = problem.n_samples
    return np.unique(np.linspace(0, n - 1, min(size, n)).round().astype(np.int64))


def make_metric(problem: DROProblem, kind: str, mean: Vector | None = None) -> Metric:
    """The metric of a problem.

    Parameters
    ----------
    kind : {"auto", "euclidean", "diagonal", "full"}
        "auto" is "full" up to a few hundred features, "diagonal" beyond; "euclidean" is mu I.
    mean : array of shape (n_features,), optional
        Subtracted from the features: their centre when an intercept is fitted.
    """
    check_option("metric", kind, ("auto", "euclidean", "diagonal", "full"))
    d, mu = problem.n_features, problem.mu
    curvature = problem.loss.curvature if np.isfinite(problem.loss.curvature) else 1.0
    if kind == "euclidean":
        return Metric(np.full(d, mu), None, curvature)
    if kind == "auto":
        kind = "full" if d <= _FULL else "diagonal"
    index = subsample(problem, max(2000, 20 * d) if kind == "full" else 2000)
    p = problem.p[index] / problem.p[index].sum()
    rows = problem.rows(index)
    if mean is not None:
        rows = rows - mean
    if kind == "diagonal":
        eigenvalues, basis = p @ rows**2, None
    else:
        eigenvalues, basis = np.linalg.eigh((rows * p[:, None]).T @ rows)
    eigenvalues = np.maximum(eigenvalues, _FLOOR * max(float(eigenvalues.max()), 1e-300))
    return Metric(curvature * eigenvalues + mu, basis, curvature)
