"""A Cholesky factor on a device, for matrices that take a processor longer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from drago.rows.factor import Factor, Matrix, inflation_of


class TensorFactor(Factor):
    """The same, of a matrix on a device: its inverse root is kept, so that solving is a product."""

    def __init__(self, H: Tensor) -> None:
        self.safe, self.inflation = False, np.inf
        diagonal = H.diagonal()
        scale = 1.0 / diagonal.clamp(min=0.0).sqrt()
        scaled = H * scale[:, None] * scale
        lower, info = torch.linalg.cholesky_ex(scaled)
        unit = torch.eye(H.shape[0], dtype=H.dtype, device=H.device)
        inverse = torch.linalg.solve_triangular(lower, unit, upper=False)
        # Exact where LAPACK estimates: the greatest sums of columns of the matrix and its inverse.
        norms = scaled.abs().sum(0).amax() * (inverse.T @ inverse).abs().sum(0).amax()
        failed, norm = torch.stack([info.to(norms), norms]).tolist()
        if failed == 0 and np.isfinite(norm):
            self.inflation = inflation_of(1.0 / norm, int(H.shape[0]))
            self.safe = self.inflation < 10.0
        self._root = inverse * scale

    def half(self, b: Matrix) -> Matrix:
        there = self._root @ torch.from_numpy(np.ascontiguousarray(b)).to(self._root)
        return there.cpu().numpy()

    @property
    def root(self) -> Tensor:
        return np.sqrt(self.inflation) * self._root

    @property
    def inverse(self) -> Matrix:
        return (self.root.T @ self.root).cpu().numpy()

    def solve(self, b: Matrix) -> Matrix:
        there = torch.from_numpy(np.ascontiguousarray(b)).to(self._root)
        return (self._root.T @ (self._root @ there)).cpu().numpy()
