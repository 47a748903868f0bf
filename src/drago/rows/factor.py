"""A Cholesky factor that knows what its rounding may cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


def inflation_of(reciprocal: float, size: int) -> float:
    """What rounding may cost, with this reciprocal of the condition number."""
    return 1.0 + 1e2 * size * float(np.finfo(float).eps) / reciprocal


class Factor:
    """Cholesky factor of a matrix scaled to unit diagonal, with what its rounding may cost.

    Attributes
    ----------
    safe : bool
        Whether solutions have correct digits to spare; a bound from others would not be one.
    inflation : float
        Factor >= 1 by which rounding may have made ``r' H^-1 r`` too small.
    """

    def __init__(self, H: Matrix) -> None:
        diagonal = np.diag(H)
        self.safe, self.inflation = False, np.inf
        if not (np.isfinite(H).all() and (diagonal > 0).all()):
            return
        self.scale = 1.0 / np.sqrt(diagonal)
        scaled = H * self.scale[:, None] * self.scale
        try:
            self.lower = np.linalg.cholesky(scaled).astype(np.float64, copy=False)
        except np.linalg.LinAlgError:
            return
        from scipy.linalg.lapack import dpocon

        size = float(np.abs(scaled).sum(axis=0).max())
        reciprocal = float(dpocon(self.lower, size, uplo="L")[0])
        if reciprocal > 0:
            self.inflation = inflation_of(reciprocal, H.shape[0])
            self.safe = self.inflation < 10.0

    def half(self, b: Matrix) -> Matrix:
        """``G b`` with ``G' G = H^-1``."""
        from scipy.linalg import solve_triangular

        scaled = b * (self.scale if b.ndim == 1 else self.scale[:, None])
        return solve_triangular(self.lower, scaled, lower=True, check_finite=False)

    @property
    def root(self) -> Any:
        """``G`` with ``G' G = H^-1``, times what rounding may cost: no ``||G f||`` is too small.

        As the store's `leverages` take it.
        """
        return np.sqrt(self.inflation) * self.half(np.eye(self.scale.size))

    @property
    def inverse(self) -> Matrix:
        """``H^-1``, times what rounding may cost."""
        return self.root.T @ self.root

    def solve(self, b: Matrix) -> Matrix:
        """``H^-1 b``."""
        from scipy.linalg import solve_triangular

        found = solve_triangular(
            self.lower, self.half(b), lower=True, trans="T", check_finite=False
        )
        return found * (self.scale if b.ndim == 1 else self.scale[:, None])

    def norm(self, r: Vector) -> float:
        """``sqrt(r' H^-1 r)``, rounded up so that it is never too small."""
        return float(np.linalg.norm(self.half(r)) * np.sqrt(self.inflation))
