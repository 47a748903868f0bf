"""Rows of a differentiable model: there is no X, and gradients come from autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from drago._validation import check_groups
from drago.metric import Metric
from drago.oracles.tensors import working_dtype
from drago.rows.base import Evaluation, Gradient, Index, Matrix, NonFiniteLossError, Vector
from drago.rows.tables.base import Tables
from drago.rows.tensors import TensorVectors, to_host
from drago.training.curvature import curvature_metric
from drago.training.flat import FlatModel
from drago.training.tables import model_tables

# Share of the rows below which those that carry weight are picked out.
_FEW = 0.5


class ModelRows(TensorVectors):
    """The rows that a model is given, and the losses that it makes of them.

    Parameters
    ----------
    flat : FlatModel
    p, groups, is_uniform :
        As for `drago.rows.tensors.TensorVectors`.
    dtype : torch.dtype
        Of what is judged.
    """

    is_linear = False
    y = None

    def __init__(
        self,
        flat: FlatModel,
        p: Tensor,
        groups: Tensor | None,
        is_uniform: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(p, groups, is_uniform, gives_tensors=True)
        self.flat, self.dtype = flat, dtype
        self.n_features = flat.size
        self.n_entries = self.n_samples * self.n_features

    def __getstate__(self) -> dict[str, Any]:
        names = ("flat", "p", "groups", "is_uniform", "dtype")
        return {name: getattr(self, name) for name in names}

    def replaced(self, **changes: Any) -> ModelRows:
        """The same rows but for this."""
        return ModelRows(**(self.__getstate__() | changes))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def X(self) -> Any:
        raise self._not_linear()

    def own_metric(self, problem: Any, kind: str, floor: float) -> tuple[Metric, float]:
        return curvature_metric(problem, kind, floor)

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> Tables:
        return model_tables(self, problem, kind, count)

    def take(self, index: Index) -> ModelRows:
        place = torch.from_numpy(index).to(self.device)
        p, groups = self.p[place], self.groups
        if groups is not None:
            found = check_groups(groups[place].cpu().numpy(), int(index.size))
            groups = torch.from_numpy(found).to(self.device)
        return ModelRows(self.flat.on_rows(place), p / p.sum(), groups, self.is_uniform, self.dtype)

    def moved(self, place: torch.device) -> ModelRows:
        """The same rows on another device."""
        p = self.p.to(place, working_dtype(place))
        groups = None if self.groups is None else self.groups.to(place)
        bits = min(self.dtype, p.dtype, key=lambda kind: torch.finfo(kind).bits)
        return ModelRows(self.flat.moved(place), p / p.sum(), groups, self.is_uniform, bits)

    # ------------------------------------------------------------------------ visits

    def point(self, w: Matrix) -> Tensor:
        """Parameters on the device, in the precision of what is judged."""
        return self.on_device(w[:, 0]).to(self.dtype)

    def evaluate(self, loss: Any, w: Matrix, b: Vector, raw: Any = None) -> Evaluation:
        losses = self.flat.all_losses(self.point(w), self.flat.data).to(self.p.dtype)
        if not bool(torch.isfinite(losses.sum())):
            bad = ~torch.isfinite(losses)
            if bool(bad.any()):
                raise NonFiniteLossError(
                    f"the loss {loss.name!r} is NaN or infinite on {int(bad.sum())} rows, "
                    f"first on row {int(bad.to(torch.int8).argmax())}, at parameters of norm "
                    f"{float(np.linalg.norm(w)):.3g}; check the model, the loss and the data, or "
                    "scale them."
                )
        nothing = losses.new_empty((self.n_samples, 0))
        return Evaluation(w, b, nothing, losses, nothing)

    def gradient_at(self, loss: Any, w: Matrix, q: Tensor) -> Gradient:
        """``sum_i q_i grad l_i(w)``; there is no intercept."""
        found = to_host(self.weighted_gradient(self.point(w), q))
        if not np.isfinite(found).all():
            raise NonFiniteLossError(
                f"the losses {loss.name!r} are finite, but their gradient is not, at "
                f"parameters of norm {float(np.linalg.norm(w)):.3g}; a root, a norm or a "
                "logarithm at 0 often is the reason."
            )
        return Gradient(found[:, None], np.zeros(1))

    def weighted_gradient(self, point: Tensor, q: Tensor) -> Tensor:
        """``sum_i q_i grad l_i``, shape (D,); rows without weight are left out where many."""
        flat, places = self.flat, torch.nonzero(q)[:, 0]
        if places.shape[0] >= _FEW * self.n_samples:
            return flat.weighted_gradient(point, flat.data, q)
        out = torch.zeros_like(point)
        for some in flat.chunks(int(places.shape[0])):
            index = places[some]
            out += flat.weighted_gradient(point, flat.rows(index), q[index])
        return out

    def predict(self, w: Matrix, b: Vector) -> Any:
        raise self._not_linear()

    def weighted_sum(self, c: Tensor) -> Matrix:
        raise self._not_linear()

    def centre(self) -> Vector:
        raise self._not_linear()

    def sample(self, index: Index) -> Any:
        raise self._not_linear()

    def _not_linear(self) -> ValueError:
        return ValueError(
            "an AutogradProblem has no features, which this method works with: take "
            "solver='lbfgs', or 'drago' with l2_reg > 0 and shift_cost > 0."
        )
