"""The norm in which solvers move: a quick picture of the curvature of the losses.

``H = curvature * X' diag(p) X + mu I`` says how far a step along each direction changes the losses,
with the curvature that the loss has at the trivial model. Moving in its norm, one step size serves
data of any scaling and conditioning. It is taken from a subsample of the rows, which costs next to
nothing, and applied to vectors of length d; X is never rotated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._validation import check_option
from drago.problem import DROProblem
from drago.rows.memory import ArrayRows
from drago.terms.constraints import Constraint

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Features up to which the full matrix is decomposed under "auto".
FULL = 600
# Features up to which its own rotations decompose a matrix sooner than a call to LAPACK.
FEW = 8
# Rows that a metric is taken from, for each feature of the full matrix, and entries of a sparse
# feature that tell its size.
_LEAST_ROWS = 2000
_ROWS_PER_FEATURE = 20
_SEEN = 100
# A direction that no row of the subsample sees still needs a curvature.
FLOOR = 1e-6


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

    def project(self, constraint: Constraint, w: Matrix, weights: Matrix) -> Matrix:
        """The point of W nearest to `w` in the norm with these eigenvalues.

        Parameters
        ----------
        weights : array of shape (n_features, 1)
            Positive eigenvalues of the norm, in the metric's basis.
        """
        near = constraint.project(w)
        if near is w or (near == w).all():
            return w
        box = constraint.bounds(w.shape)
        if box is None:
            return self._onto_ball(constraint, w, weights)
        if self.basis is None:
            return near  # separable
        A = (self.basis * weights[:, 0]) @ self.basis.T
        out = np.empty_like(w)
        for c in range(w.shape[1]):
            out[:, c] = _nearest_in_box(A, w[:, c], box[0][:, c], box[1][:, c])
        return out

    def _onto_ball(self, constraint: Constraint, w: Matrix, weights: Matrix) -> Matrix:
        """``z = a w / (a + lambda)`` in the basis, with ``lambda`` from ``||z|| = radius``."""
        radius = constraint.radius
        assert radius is not None
        v, low, high = self.rotate(w), 0.0, float(weights.max())

        def at(multiplier: float) -> Matrix:
            return weights * v / (weights + multiplier)

        while np.linalg.norm(at(high)) > radius:
            low, high = high, 4.0 * high
        while high - low > 4e-16 * high:
            middle = 0.5 * (low + high)
            if middle in (low, high):
                break
            low, high = (middle, high) if np.linalg.norm(at(middle)) > radius else (low, middle)
        return constraint.project(self.back(at(high)))


def _nearest_in_box(A: Matrix, target: Vector, low: Vector, high: Vector) -> Vector:
    """``argmin over low <= z <= high of (z - target)' A (z - target)``, by projected Newton steps.

    Coordinates are held at a bound that the gradient pushes them to; the others make a Newton step
    along the projection of a line.
    """
    z = np.clip(target, low, high)
    for _ in range(10 * z.size + 50):
        slope = A @ (z - target)
        free = ~(((z <= low) & (slope > 0)) | ((z >= high) & (slope < 0)))
        if not free.any():
            return z
        step = np.zeros_like(z)
        step[free] = -np.linalg.solve(A[np.ix_(free, free)], slope[free])
        length = 1.0
        for _ in range(60):
            there = np.clip(z + length * step, low, high)
            move = there - z
            # The change of the objective, without the rounding of its values.
            if np.dot(slope, move) + 0.5 * np.dot(move, A @ move) < 0.0:
                break
            length *= 0.5
        else:
            return z
        done = length == 1.0 and (there == z + step).all()
        z = there
        if done and (np.abs(step) <= 1e-14 * (1.0 + np.abs(z))).all():
            return z
    return z


def subsample(problem: DROProblem, size: int) -> npt.NDArray[np.int64]:
    """Evenly spaced rows; no randomness."""
    n = problem.n_samples
    size = min(size, n)
    return np.arange(size, dtype=np.int64) * n // size


def make_metric(
    problem: DROProblem, kind: str, mean: Vector | None = None, floor: float = FLOOR
) -> Metric:
    """The metric of a problem.

    Parameters
    ----------
    kind : {"auto", "euclidean", "diagonal", "full"}
        "auto" is "full" up to a few hundred features, "diagonal" beyond and where W is a box
        (projections onto it are separable then); "euclidean" is mu I, or I where mu = 0.
    mean : array of shape (n_features,), optional
        Subtracted from the features: their centre when an intercept is fitted.
    floor : float
        The least eigenvalue of the rows' part, relative to the greatest.
    """
    check_option("metric", kind, ("auto", "euclidean", "diagonal", "full"))
    d, mu = problem.n_features, problem.mu
    curvature = typical_curvature(problem)
    if kind == "euclidean":
        return Metric(np.full(d, mu if mu > 0 else 1.0), None, curvature)
    if kind == "auto":
        kind = "full" if d <= FULL and not is_box(problem) else "diagonal"
    size = max(_LEAST_ROWS, _ROWS_PER_FEATURE * d) if kind == "full" else _LEAST_ROWS
    if problem.is_sparse and kind == "diagonal":
        # So many that a feature is seen often enough.
        size = max(size, int(_SEEN * problem.n_samples * d / max(problem.n_entries, 1)))
    if problem.rows.has("compiled") and size >= problem.n_samples and kind == "full":
        sample = problem.rows  # as they are
    else:
        sample = problem.rows.sample(subsample(problem, size))
    assert isinstance(sample, ArrayRows)
    if kind == "diagonal":
        found, directions = _mean_squares(sample, mean), None
    else:
        rows, p = sample.X if sample.is_plain else _dense(sample), sample.p
        if d <= FEW and problem.rows.is_on_host:
            rows = np.ascontiguousarray(rows)
            centre = np.zeros(d) if mean is None else mean
            eigenvalues, basis = np.empty(d), np.empty((d, d))
            settings = floor, curvature, mu
            if kernels.curvature_of_rows(rows, p, centre, *settings, eigenvalues, basis):
                return Metric(eigenvalues, basis, curvature)
        if mean is not None:
            rows = rows - mean
        found, directions = np.linalg.eigh((rows * p[:, None]).T @ rows)
    found = np.maximum(found, floor * max(float(found.max()), 1e-300))
    return Metric(curvature * found + mu, directions, curvature)


def _dense(sample: ArrayRows) -> Matrix:
    return sample.dense(np.arange(sample.n_samples))


def typical_curvature(problem: DROProblem) -> float:
    """The second derivative of the loss at the trivial model, in its largest direction.

    Of a classification loss it is that of the classes' shares ``f``, the greatest eigenvalue of
    ``diag(f) - f f'``, under the nominal or the worst-case weights; its upper bound would be
    several times too large.
    """
    loss, rows = problem.loss, problem.rows
    if not loss.is_classification:
        return loss.curvature if 0.0 < loss.curvature < np.inf else 1.0
    f = problem.class_masses
    with np.errstate(divide="ignore"):
        worst = problem.dual_oracle().weights(rows.by_class(-np.log(f)), problem.nu)
    found = 0.0
    for share in (f, rows.class_masses(worst, f.size)):
        largest = float(np.linalg.eigvalsh(np.diag(share) - np.outer(share, share))[-1])
        found = max(found, largest if loss.has_class_hessian else 0.5 * largest)
    return max(found, 0.01 * loss.curvature)


def is_box(problem: DROProblem) -> bool:
    """Whether W is a box with a finite side: separable in some metrics only."""
    if problem.constraint.is_everything:
        return False
    box = problem.constraint.bounds((problem.n_features, problem.n_outputs))
    return box is not None and bool(np.isfinite(np.concatenate(box)).any())


def _mean_squares(sample: ArrayRows, mean: Vector | None) -> Vector:
    """``sum_i p_i (x_i - mean)^2`` of some rows, feature by feature."""
    p = sample.p
    if sample.is_sparse:
        rows = sample.X.astype(np.float64)
        square, first = rows.multiply(rows).T @ p, rows.T @ p
    else:
        rows = sample.X if sample.is_plain else _dense(sample)
        square, first = p @ rows**2, p @ rows
    if mean is not None:
        square = np.maximum(square - 2.0 * mean * first + mean**2, 0.0)
    return np.asarray(square, dtype=np.float64)
