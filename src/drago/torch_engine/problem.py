"""The problem with its rows on a device: the passes of `drago.passes` on tensors.

Vectors with an entry for each row are tensors and stay on the device; coefficients are NumPy
arrays. X may be float32: products with it are summed in float64, as everything else is, so that a
certificate means the same as on arrays. Devices without float64 (Apple's) work in float32.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drago._validation import check_groups, check_nominal
from drago.passes import Evaluation
from drago.problem import DROProblem, NonFiniteLossError
from drago.terms.losses import Logistic, Multinomial, Squared, as_loss
from drago.terms.uncertainty import CVaR, Simplex
from drago.terms.uncertainty.base import UncertaintySet
from drago.terms.uncertainty.grouped import group_sums
from drago.torch_engine._checks import (
    as_device,
    check_features,
    check_target,
    check_vector,
    from_numpy,
    nominal_weights,
    on_host,
)
from drago.torch_engine.losses import on_tensors
from drago.torch_engine.oracles import BoundOracle, TensorOracle, working_dtype

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Entries of X that are converted to float64 at a time, on processors and on other devices.
_CHUNK, _LARGE_CHUNK = 1 << 18, 1 << 26
# Rows, and entries of X, that take a graphics card as long as it takes to tell it what to do.
_LEAST_PART, _SMALL = 1 << 20, 1 << 27


class TensorProblem(DROProblem):
    """`DROProblem` with its rows on a device.

    It is what `DROProblem` makes of a tensor, and what `drago.solve` makes of a problem on arrays
    for a given device.

    Parameters
    ----------
    X : tensor of shape (n, n_features)
        float32 or float64 (anything else becomes float64), on any device.
    y, sample_weight, groups : tensors or arrays of shape (n,)
        They are brought to the device of `X`.
    loss : {"squared", "huber", "logistic", "multinomial"} or Loss
    uncertainty, divergence, shift_cost, l2_reg, fit_intercept, constraint :
        As for `DROProblem`; sets of one's own are not taken.
    """

    _KEPT = (*DROProblem._KEPT, "returns_tensors", "is_uniform")
    xp = torch

    def __init__(
        self,
        X: Tensor,
        y: Any,
        *,
        loss: Any = "squared",
        uncertainty: Any = "cvar",
        divergence: Any = "auto",
        shift_cost: float | str = "auto",
        l2_reg: float = 1e-3,
        sample_weight: Any = None,
        groups: Any = None,
        fit_intercept: bool = False,
        constraint: Any = None,
    ) -> None:
        self.X = check_features(X)
        n, device = self.X.shape[0], self.X.device
        self.loss = on_tensors(as_loss(loss))
        self.returns_tensors = True
        self.y = check_target(y, n, self.loss, device)
        labels = None if groups is None else check_groups(on_host(groups), n)
        self.is_uniform = sample_weight is None
        self.p, kept = nominal_weights(sample_weight, n, device)
        if kept is not None:
            self._kept = on_host(kept)
            self.X, self.y = self.X[kept], self.y[kept]
            if labels is not None:
                labels = check_groups(labels[self._kept], int(self.p.shape[0]))
        self.groups = None if labels is None else torch.from_numpy(labels).to(device)
        self.n_outputs = 1
        if isinstance(self.loss, Multinomial):
            self.n_outputs = int(self.y.max()) + 1
        if isinstance(self.loss, (Logistic, Multinomial)) and self.n_classes < 2:
            raise ValueError(
                "y must hold at least two classes among the rows of positive weight, but holds "
                f"only {float(self.y[0]):g}."
            )
        self._settle(fit_intercept, constraint, uncertainty, divergence, l2_reg, shift_cost)

    @classmethod
    def of(cls, problem: DROProblem, device: str | torch.device) -> TensorProblem:
        """A problem on arrays or tensors, on a device.

        Parameters
        ----------
        problem : DROProblem
            Dense. Results of a problem on arrays are arrays.
        device : str or torch.device
        """
        place = as_device(device)
        if isinstance(problem, TensorProblem):
            here = problem.device
            same = here.type == place.type and place.index in (None, here.index)
            return problem if same else problem.moved(place)
        if problem.is_sparse:
            raise TypeError(
                "the torch engine takes dense features, but X is sparse: leave device=None, or "
                "give X.toarray() if that fits into memory."
            )
        if problem.uncertainty.is_users:
            TensorOracle(problem.uncertainty)  # says why not
        kind = working_dtype(place)
        X = from_numpy(problem.X)
        if kind == torch.float32:
            X = X.float()
        integral = isinstance(problem.loss, Multinomial)
        other = object.__new__(cls)
        other.__dict__.update({name: problem.__dict__.get(name) for name in DROProblem._KEPT})
        other.__dict__.update(
            X=X.contiguous().to(place),
            y=from_numpy(problem.y).to(place, torch.int64 if integral else kind),
            p=from_numpy(problem.p).to(place, kind),
            groups=None if problem.groups is None else from_numpy(problem.groups).to(place),
            loss=on_tensors(problem.loss),
            returns_tensors=False,
            is_uniform=bool(problem.p.min() == problem.p.max()),
            _kept=problem._kept,
            _frozen=True,
        )
        return other

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.X.device

    @cached_property
    def in_float64(self) -> Any:
        """The problem itself; on the processor where the device has no float64."""
        if self.p.dtype == torch.float64:
            return self
        p = self.p.cpu().double()
        return self._replace(
            X=self.X.cpu().double(),
            y=self.y.cpu() if isinstance(self.loss, Multinomial) else self.y.cpu().double(),
            p=p / p.sum(),
            groups=None if self.groups is None else self.groups.cpu(),
        )

    @property
    def engine(self) -> Mapping[str, Any]:  # type: ignore[override]
        from drago.torch_engine.blocks import TensorBlocks
        from drago.torch_engine.iterations import KINDS

        return {"rows": TensorBlocks, **KINDS}

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def n_classes(self) -> int:
        if not isinstance(self.loss, (Logistic, Multinomial)):
            return 1
        return int((torch.bincount(self.y.to(torch.int64)) > 0).sum())

    @cached_property
    def tensor_oracle(self) -> TensorOracle:
        return TensorOracle(self.uncertainty, self.divergence)

    @cached_property
    def kernels(self) -> Any:
        """Fused kernels for the passes, where there are some for this device and problem."""
        if self.device.type != "cuda" or self.n_outputs > 1:
            return None
        return _fused_passes(self.device)

    @cached_property
    def row_norms(self) -> Any:
        square = torch.empty_like(self.p)
        for rows in self._chunks():
            square[rows] = (self.X[rows].to(self.p) ** 2).sum(1)
        return torch.sqrt(square + float(self.fit_intercept))

    @cached_property
    def q_max(self) -> float:
        return self.uncertainty.q_max(self._host_p, self._host_groups)

    @cached_property
    def kappa_q(self) -> float:
        if isinstance(self.uncertainty, (CVaR, Simplex)):
            cap = math.inf
            if isinstance(self.uncertainty, CVaR):
                cap = 1.0 / float(self.uncertainty.tail_fraction)
            return min(cap, 1.0 / float(self.p.amin()))
        return self.uncertainty.kappa_q(self._host_p, self._host_groups)

    @property
    def _host_p(self) -> Vector:
        return self.to_host(self.p)

    @property
    def _host_groups(self) -> Array | None:
        return None if self.groups is None else self.groups.cpu().numpy()

    # ------------------------------------------------------------------------ products with X

    def _chunks(self) -> list[slice]:
        size = _CHUNK if self.device.type == "cpu" else _LARGE_CHUNK
        rows = max(1, size // self.n_features)
        return [slice(k, min(k + rows, self.n_samples)) for k in range(0, self.n_samples, rows)]

    def on_device(self, values: Array) -> Tensor:
        """An array as a tensor beside the rows."""
        return torch.from_numpy(np.array(values)).to(self.p)  # a copy, on the processor too

    def raw_prediction(self, w: Matrix, b: Vector) -> Any:
        if not w.any():
            return self.on_device(b).expand(self.n_samples, -1).contiguous()
        return self.predict(self.on_device(w), self.on_device(b))

    def predict(self, w: Tensor, b: Tensor) -> Tensor:
        """``X w + b`` for coefficients on the device."""
        if self.kernels is not None:
            return self._visit(w, b)[2]
        if self.X.dtype == w.dtype:
            return self.X @ w + b
        raw = torch.empty((self.n_samples, w.shape[1]), dtype=w.dtype, device=self.device)
        for rows in self._chunks():
            torch.matmul(self.X[rows].to(w.dtype), w, out=raw[rows])
        return raw.add_(b)

    def weighted_rows(self, c: Any) -> Matrix:
        return self.to_host(self.accumulate(c))

    def accumulate(self, c: Tensor) -> Tensor:
        """``X' c`` on the device."""
        if self.kernels is not None and c.shape[1] == 1:
            return self.kernels.accumulate(self.X, c[:, 0], *self.all_rows)[0][:, None]
        if self.X.dtype == c.dtype:
            return self.X.T @ c
        out = torch.zeros((self.n_features, c.shape[1]), dtype=c.dtype, device=self.device)
        for rows in self._chunks():
            out.addmm_(self.X[rows].to(c.dtype).T, c[rows])
        return out

    @cached_property
    def all_rows(self) -> tuple[Any, Tensor]:
        """All rows as one block, and its name, for the fused kernels."""
        starts = torch.tensor([0, self.n_samples], device=self.device)
        return self.kernels.Rows(starts, 1, 1, self.n_samples), starts[:1]

    def visit(self, w: Tensor, b: Tensor, losses: Tensor, slopes: Tensor, raw: Tensor) -> None:
        """Losses, derivatives and raw predictions by the fused kernel, written to vectors."""
        self.kernels.evaluate(
            self.X, self.y, w[:, 0], b, *self.all_rows, losses, slopes, raw,
            code=self.loss.code, parameter=self.loss.parameter,
        )  # fmt: skip

    def _visit(self, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses, slopes, raw = (torch.empty_like(self.p) for _ in range(3))
        self.visit(w, b, losses, slopes, raw)
        return losses, slopes[:, None], raw[:, None]

    def _index(self, index: Any) -> Tensor:
        """Numbers of rows, which are arrays or tensors, on the device."""
        return torch.as_tensor(index, device=self.device)

    def rows(self, index: Any) -> Matrix:
        return self.to_host(self.X.index_select(0, self._index(index)).to(self.p.dtype))

    def own_features(self, index: Any) -> Any:
        F = self.X.index_select(0, self._index(index)).to(self.p.dtype)
        return torch.nn.functional.pad(F, (0, 1), value=1.0) if self.fit_intercept else F

    def gram(self, index: Any, weight: Any) -> Matrix:
        m = self.n_features + int(self.fit_intercept)
        out = torch.zeros((m, m), dtype=self.p.dtype, device=self.device)
        place = self._index(index)
        weights = weight[place]
        step = max(1, (_CHUNK if self.device.type == "cpu" else _LARGE_CHUNK) // m)
        for k in range(0, place.shape[0], step):
            F = self.own_features(place[k : k + step])
            out.addmm_((F * weights[k : k + step, None]).T, F)
        return self.to_host(out)

    def evaluate(self, w: Matrix, b: Vector, raw: Any = None) -> Evaluation:
        if raw is None and self.kernels is not None and w.any():
            losses, slopes, raw = self._visit(self.on_device(w), self.on_device(b))
        else:
            raw = self.raw_prediction(w, b) if raw is None else raw
            losses, slopes = self.loss.evaluate(self.y, raw)
        if not bool(torch.isfinite(losses.sum() + slopes.sum())):
            bad = ~(torch.isfinite(losses) & torch.isfinite(slopes).all(1))
            if bool(bad.any()):
                i = int(bad.to(torch.int8).argmax())
                raise NonFiniteLossError(
                    f"the loss {self.loss.name!r} is NaN or infinite on {int(bad.sum())} rows, "
                    f"first on row {i} at the raw prediction {raw[i].tolist()}; "
                    "scale the features and the target."
                )
        return Evaluation(w, b, raw, losses, slopes)

    def gradient(self, ev: Evaluation, q: Any) -> tuple[Matrix, Vector]:
        weighted = q[:, None] * ev.dlosses
        found = torch.cat([self.accumulate(weighted), weighted.sum(0, keepdim=True)])
        both = self.to_host(found)
        return both[:-1], both[-1]

    # ------------------------------------------------------------------- vectors of the rows

    def dual_oracle(self) -> Any:
        return BoundOracle(self)

    def violation(self, q: Any) -> float:
        given: UncertaintySet = self.uncertainty
        total = torch.stack([-q.clamp(max=0.0).sum(), (q.sum() - 1.0).abs()]).amax()
        if isinstance(given, CVaR):
            excess = (q - self.p / float(given.tail_fraction)).clamp(min=0.0).sum()
            return float(torch.maximum(total, excess))
        if isinstance(given, Simplex):
            return float(total)
        if given.own_divergence is not None:
            return max(float(total), self.distance(q) - float(given.radius))  # type: ignore[attr-defined]
        return given.violation(self.to_host(q), self._host_p, self._host_groups)

    def distance(self, q: Any) -> float:
        return float(self.tensor_oracle._distance(q, self.p))

    def primal(self, w: Matrix, losses: Any, q: Any) -> float:
        value = q @ losses
        if self.nu > 0:
            value = value - self.nu * self.tensor_oracle._distance(q, self.p)
        return float(value) + 0.5 * self.mu * float(np.vdot(w, w))

    def slope_along(self, q: Any, dlosses: Any, step: Any) -> float:
        return float(q @ (dlosses * step).sum(1))

    def shift(self, raw: Any, b: Vector) -> Any:
        return raw + self.on_device(b)

    def to_host(self, values: Any) -> Array:
        return np.array(values.detach().cpu().numpy(), dtype=np.float64)

    def from_host(self, values: Array) -> Any:
        return torch.from_numpy(values).to(self.device)

    def from_user(self, name: str, values: Any) -> Any:
        return check_vector(name, values, self.n_samples, self.device)

    def to_user(self, values: Any) -> Any:
        return values if self.returns_tensors else self.to_host(values)

    @property
    def least_part(self) -> int:  # type: ignore[override]
        return _LEAST_PART if self.device.type == "cuda" else DROProblem.least_part

    @property
    def small(self) -> int:  # type: ignore[override]
        return _SMALL if self.device.type == "cuda" else DROProblem.small

    @property
    def is_gram_cheap(self) -> bool:  # type: ignore[override]
        return self.device.type == "cuda" and isinstance(self.loss, Squared)

    def pick(self, values: Any, index: Any) -> Array:
        return self.to_host(values[self._index(index)])

    def parts(self) -> list[slice]:
        return [slice(0, self.n_samples)]

    def heaviest(self, weight: Any, size: int) -> Any:
        """As a tensor, which the other functions take too."""
        about_equal = torch.nonzero(weight > 0.5 * weight.amax())[:, 0]
        if about_equal.shape[0] > size:
            spaced = torch.arange(size, device=weight.device) * about_equal.shape[0] // size
            return about_equal[spaced]
        index = torch.nonzero(weight > 0)[:, 0]
        if index.shape[0] > size:
            index = index[weight[index].topk(size, sorted=False).indices].sort().values
        return index

    def class_masses(self, weights: Any, n_classes: int) -> Vector:
        # One by one: sums by index depend on the order in which threads finish.
        masses = [torch.where(self.y == c, weights, 0.0).sum() for c in range(n_classes)]
        return self.to_host(torch.stack(masses))

    def by_class(self, values: Vector) -> Any:
        return self.on_device(values)[self.y.to(torch.int64)]

    def on_all_rows(self, weights: Any) -> Any:
        if tuple(weights.shape) != (self.n_samples,):
            raise ValueError(
                "weights must have one entry per row of positive weight, shape "
                f"({self.n_samples},), but has shape {tuple(weights.shape)}."
            )
        if self._kept is None:
            return weights
        kept = torch.from_numpy(self._kept).to(weights.device)
        return torch.zeros(kept.shape[0]).to(weights).masked_scatter(kept, weights)

    # ------------------------------------------------------------------------ smaller relatives

    def _by_class(self) -> TensorProblem | None:
        classes = int(self.y.max()) + 1
        labels = self.y.to(torch.int64)
        if self.groups is not None:
            labels = labels + classes * self.groups
        if int(labels.max()) >= self.n_samples:
            return None
        mass = group_sums(labels.cpu().numpy(), self._host_p)
        there = np.flatnonzero(mass)
        mass = check_nominal(mass[there] / mass.sum())
        kind = self.p.dtype
        return self._replace(
            X=torch.zeros((there.size, 1), dtype=kind),
            y=torch.from_numpy(there % classes).to(self.y.dtype),
            p=torch.from_numpy(mass).to(kind),
            is_uniform=False,
            groups=None if self.groups is None else torch.from_numpy(there // classes),
        )  # type: ignore[return-value]

    def moved(self, place: torch.device) -> TensorProblem:
        """The same problem on another device."""
        kind = working_dtype(place)
        p = self.p.to(place, kind)
        return self._replace(
            X=(self.X.float() if kind == torch.float32 else self.X).to(place),
            y=self.y.to(place, torch.int64 if isinstance(self.loss, Multinomial) else kind),
            p=p / p.sum(),
            groups=None if self.groups is None else self.groups.to(place),
        )  # type: ignore[return-value]

    def take(self, rows: Array) -> TensorProblem:
        place = torch.from_numpy(rows).to(self.device)
        p = self.p[place]
        groups = self.groups
        if groups is not None:
            found = check_groups(groups[place].cpu().numpy(), int(rows.size))
            groups = torch.from_numpy(found).to(self.device)
        return self._replace(
            X=self.X.index_select(0, place), y=self.y[place], p=p / p.sum(), groups=groups
        )  # type: ignore[return-value]


@cache
def _fused_passes(device: torch.device) -> Any:
    """The module of fused passes, None where it cannot be used."""
    if torch.version.hip is not None:
        return None
    try:
        from drago.torch_engine import _triton
    except ImportError:
        return None
    rows = _triton.Rows.deal(1, device=device)
    one, two, three = (torch.ones(1, dtype=torch.float64, device=device) for _ in range(3))
    block = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        _triton.evaluate(one.view(1, 1), one, one, one, rows, block, two, three, code=0)
    except Exception as error:  # of many kinds: no compiler, an old version, another card
        warnings.warn(
            f"the fused passes on {device} could not be built, plain ones instead: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return _triton
