"""The norm in which solvers move, from the Hessian of a model by autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from drago._validation import check_option
from drago.metric import FLOOR, Metric, subsample
from drago.rows.tensors import to_host

if TYPE_CHECKING:
    from drago.training.autograd import AutogradProblem

# Parameters up to which the whole Hessian is taken under "auto"; the rows that show it, at most,
# their share of all, and how many a parameter there are in any case.
_FULL = 128
_ROWS, _SHARE, _LEAST = 2000, 8, 10
# Products with the Hessian for its greatest eigenvalue, which they come close to.
_PRODUCTS = 20


def curvature_metric(
    problem: AutogradProblem, kind: str, floor: float = FLOOR
) -> tuple[Metric, float]:
    """``H + mu I`` with ``H`` the Hessian of ``sum_i p_i l_i`` where a solve starts.

    Parameters
    ----------
    kind : {"auto", "euclidean", "full"}
        "euclidean" is mu I, or I where mu = 0; "full" the whole matrix, with the absolute values of
        its eigenvalues. "auto" is "full" for convex problems of up to 128 parameters, and otherwise
        ``(h + mu) I`` with ``h`` near the greatest eigenvalue of ``H``.
    floor : float
        The least eigenvalue of ``H``, relative to the greatest.

    Returns
    -------
    metric : Metric
    n_passes : float
        What it cost, in visits to all rows.

    Notes
    -----
    ``H`` is taken from some of the rows. Where the losses have no curvature there (the linear parts
    of a Huber loss) or autograd cannot differentiate twice, the metric is the euclidean one.
    """
    if kind == "diagonal":
        raise ValueError(
            "metric must be 'auto', 'euclidean' or 'full' for an AutogradProblem, but 'diagonal' "
            "was given."
        )
    check_option("metric", kind, ("auto", "euclidean", "full"))
    d, mu = problem.n_features, problem.mu
    plain = Metric(np.full(d, mu if mu > 0 else 1.0), None, 1.0)
    if kind == "euclidean":
        return plain, 0.0
    whole = kind == "full" or (d <= _FULL and problem.is_convex)
    try:
        hessian = _Hessian(problem, max(_ROWS // _SHARE, _LEAST * d) if whole else _ROWS)
        found = _in_full(hessian, mu, floor) if whole else _as_number(hessian, mu, d)
    except RuntimeError:  # there is no second derivative
        return plain, 0.0
    return (plain if found is None else found), hessian.n_passes


def _in_full(hessian: _Hessian, mu: float, floor: float) -> Metric | None:
    H = hessian.matrix()
    if not np.isfinite(H).all():
        return None
    eigenvalues, basis = np.linalg.eigh(0.5 * (H + H.T))
    eigenvalues = np.abs(eigenvalues)
    greatest = float(eigenvalues.max())
    if greatest == 0:
        return None
    return Metric(np.maximum(eigenvalues, floor * greatest) + mu, basis, 1.0)


def _as_number(hessian: _Hessian, mu: float, d: int) -> Metric | None:
    greatest = hessian.greatest()
    return None if greatest == 0 else Metric(np.full(d, greatest + mu), None, 1.0)


class _Hessian:
    """Products with the Hessian of the mean loss of `size` rows."""

    def __init__(self, problem: AutogradProblem, size: int) -> None:
        self.problem, flat = problem, problem.flat
        size = min(max(size, min(_ROWS, flat.n // _SHARE)), flat.chunk_size, flat.n)
        index = torch.from_numpy(subsample(problem, size)).to(problem.rows.device)
        p = problem.p[index]
        w = problem.rows.on_device(problem.origin[0][:, 0]).to(problem.dtype)
        self.point, losses = flat.with_graph(w, flat.rows(index))
        total = losses @ (p / p.sum()).to(losses.dtype)
        self.slope = torch.autograd.grad(total, self.point, create_graph=True)[0]
        if not self.slope.requires_grad:  # linear in the parameters
            self.slope = self.slope + 0.0 * self.point
        self._unit = size / flat.n
        self.n_passes = self._unit

    def _times(self, v: Tensor) -> Tensor:
        self.n_passes += self._unit
        return torch.autograd.grad(self.slope, self.point, v, retain_graph=True)[0]

    def matrix(self) -> Any:
        """All of it."""
        rows = [self._times(row) for row in torch.eye(self.point.numel()).to(self.point)]
        return to_host(torch.stack(rows))

    def greatest(self) -> float:
        """The greatest absolute value of an eigenvalue, or somewhat less."""
        v, found = self.slope.detach().clone(), 0.0
        if not bool(v.any()):
            v = torch.ones_like(v)
        for _ in range(_PRODUCTS):
            v = v / torch.linalg.vector_norm(v)
            v = self._times(v)
            found = float(torch.linalg.vector_norm(v))
            if found == 0.0 or not np.isfinite(found):
                return 0.0
        return found
