"""Robust learning of any differentiable model, with gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from drago._validation import check_groups, check_integer, check_number, check_option, shown
from drago.oracles.tensors import working_dtype
from drago.problem import DROProblem
from drago.rows.base import Evaluation, Gradient, Visit
from drago.rows.tensor_checks import as_device, check_weight, nominal_weights, on_host
from drago.rows.tensors import to_host
from drago.terms.losses import Loss
from drago.training.flat import FlatModel
from drago.training.model_rows import ModelRows

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# What rounding may add to a sum of losses, relative to their size.
_ROUNDING = 1e-9
# Bytes that tables of gradients may take: on processors, and as a share of another device's memory.
_MEMORY, _MEMORY_SHARE = 1 << 30, 0.25
_DTYPES = (torch.float32, torch.float64)


class AutogradLoss(Loss):
    """Of a loss that is differentiated by autograd only the name is known."""

    def __init__(self, function: Any) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self.curvature = self.lipschitz = np.inf

    def __repr__(self) -> str:
        return f"AutogradLoss({self.name})"


class AutogradProblem(DROProblem):
    """Penalised distributionally robust learning with any differentiable model.

    ``min over w  max over q in Q  sum_i q_i loss_i(w) - nu D(q || p) + (mu/2) ||w||^2``

    where ``w`` is the flat vector of all D parameters of the model that can be learned, biases
    among them. It is a problem as `drago.DROProblem` is: `drago.solve` solves it, `drago.certify`
    judges a point of it.

    Parameters
    ----------
    model : nn.Module or callable
        ``module(*inputs)``, or ``function(parameters, *inputs)`` with `parameters` arranged as
        given. It is called with many rows at once, of which none may depend on another. Parameters
        of a module with ``requires_grad=False`` stay as they are. The module itself is not changed
        (`load_into` does that).
    data : tensor or tuple of tensors
        A row for each sample. Where there are several tensors and a loss, the last one is the
        target and the others are the inputs. Tensors stay on their device and are not copied.
    loss : callable or None
        ``loss(prediction, target)``, or ``loss(prediction)`` where `data` is one tensor: one
        number a row, so that losses of torch need ``reduction="none"``. None: the model returns
        the losses itself, from all of `data`.
    parameters : tensor, or dict, list or tuple of tensors, optional
        The parameters of a function to start from.
    convex : bool, optional
        True says that every loss is convex in `w`, as it is for a model that is linear in its
        parameters and a loss that is convex in the prediction. The certificate is true only if that
        is: a solve that meets a contradiction raises, but nothing proves it. None (not known) is
        treated as False: see the notes.
    uncertainty, divergence, shift_cost, l2_reg :
        As for `drago.DROProblem`; sets of one's own are not taken. The "auto" of `shift_cost` is
        0.1 times the mean loss at w = 0, or at the parameters given if the problem is not convex.
    sample_weight, groups : tensors or arrays of shape (n,), optional
        As for `drago.DROProblem`.
    dtype : torch.float32 or torch.float64, optional
        Of DRAGO's iterations; by default float64 for convex problems, otherwise that of the
        parameters. The certificate of a convex problem is computed in float64 in any case.
    device : str or torch.device, optional
        Where to compute; by default where the data is.
    chunk_size : int, optional
        Rows that the model is given at a time; by default as many as have about 4 million entries.
        It bounds the memory of a pass.
    tables : {"auto", "blocks", "ring", "full"}
        How `drago.Drago` keeps old gradients; all give the same iterates up to rounding. Rows are
        visited in M whole blocks, so the algorithm needs of them no more than their weighted sum
        over each block. "blocks" keeps these M sums, beside the M past iterates that the algorithm
        needs anyway: O(n + M D) numbers. "ring" computes them again from those iterates, as in the
        paper: half of that, for two more visits to a block in each iteration. "full" keeps the
        gradient of each row, by `torch.func.vmap`: O(n D). "auto" is "blocks" if `memory_limit`
        allows it, otherwise "ring".
    memory_limit : int, optional
        Bytes that these tables may take; by default 1 GiB, or a quarter of a GPU's memory.

    Notes
    -----
    A convex problem has a certificate: each loss lies above its tangent, so for any weights q in Q
    and ``g = sum_i q_i grad loss_i(w)`` the objective at `w` is above the optimum by no more than
    ``[max over q' of L(w, q') - L(w, q)] + ||g + mu w||^2 / (2 mu)``. The solve starts at w = 0,
    which is also what the relative gap is measured against.

    Without convexity there is none: the gap is infinite. What is reported instead is
    `stationarity`, the norm of the gradient of the objective, which is 0 at a local minimum, at a
    saddle point and nowhere else. (For shift_cost = 0 the objective has kinks, and this is the norm
    of one of its subgradients, which need not be small at a minimum.) The solve starts at the
    parameters given and ends where the stationarity is `tol` times what it was there.

    Examples
    --------
    >>> import torch, drago
    >>> from drago.torch_engine import AutogradProblem
    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> y = torch.tensor([1.0, 2.0, 6.0])
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> def squared(prediction, target):
    ...     return 0.5 * (prediction.squeeze(-1) - target) ** 2
    >>> problem = AutogradProblem(model, (X, y), squared, convex=True, shift_cost=0.1)
    >>> result = drago.solve(problem, tol=1e-8)
    >>> str(result.status), problem.parameters(result.coef)["weight"].shape
    ('optimal', torch.Size([1, 2]))
    """

    _KEPT = (*DROProblem._KEPT, "convex", "dtype", "tables", "memory_limit")
    rows: ModelRows

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        data: Tensor | tuple[Tensor, ...],
        loss: Callable[..., Tensor] | None = None,
        *,
        parameters: Any = None,
        convex: bool | None = None,
        uncertainty: Any = "cvar",
        divergence: Any = "auto",
        shift_cost: float | str = "auto",
        l2_reg: float = 1e-3,
        sample_weight: Any = None,
        groups: Any = None,
        dtype: torch.dtype | None = None,
        device: Any = None,
        chunk_size: int | None = None,
        tables: str = "auto",
        memory_limit: int | None = None,
    ) -> None:
        if convex is not None and not isinstance(convex, bool):
            raise TypeError(
                f"convex must be True, False or None (not known), but {shown(convex)} was given."
            )
        if dtype is not None and dtype not in _DTYPES:
            raise ValueError(
                f"dtype must be torch.float32 or torch.float64, but {shown(dtype)} was given."
            )
        if chunk_size is not None:
            chunk_size = check_integer("chunk_size", chunk_size, low=1)
        self.convex = convex
        self.tables = check_option("tables", tables, ("auto", "blocks", "ring", "full"))
        if memory_limit is not None:
            memory_limit = int(check_number("memory_limit", memory_limit, low=0))
        flat = FlatModel(model, data, loss, parameters, device, chunk_size)
        widest = working_dtype(flat.device)
        if dtype is None:
            dtype = widest if convex or flat.dtype not in _DTYPES else flat.dtype
        self.dtype = min(dtype, widest, key=lambda kind: torch.finfo(kind).bits)
        self.memory_limit = _memory(flat.device) if memory_limit is None else memory_limit
        self.loss = AutogradLoss(model if loss is None else loss)
        self.n_outputs = 1
        self.rows = self._weighed(flat, sample_weight, groups)
        self.flat.try_out(self.rows.dtype)
        self._settle(False, None, uncertainty, divergence, l2_reg, shift_cost)
        self.dual_oracle()  # refuses sets that it does not take

    def _weighed(self, flat: FlatModel, sample_weight: Any, groups: Any) -> ModelRows:
        """The rows with nominal weights and groups; those of weight 0 are dropped."""
        n, device = flat.n, flat.device
        labels = None if groups is None else check_groups(on_host(groups), n)
        weight = None if sample_weight is None else check_weight(sample_weight, n, device)
        p, kept = nominal_weights(weight, n, device)
        if kept is not None:
            self._kept = on_host(kept)
            flat = flat.on_rows(kept)
            if labels is not None:
                labels = check_groups(labels[self._kept], flat.n)
        place = None if labels is None else torch.from_numpy(labels).to(device)
        judged = working_dtype(device) if self.is_convex else self.dtype
        return ModelRows(flat, p, place, sample_weight is None, judged)

    def __repr__(self) -> str:
        known = {True: "convex", False: "not convex", None: "not known to be convex"}[self.convex]
        return (
            f"AutogradProblem({self.n_samples} rows, {self.n_features} parameters, {known}, "
            f"loss={self.loss.name!r}, uncertainty={self.uncertainty!r}, "
            f"divergence={self.divergence.name!r}, shift_cost={self.nu:g}, l2_reg={self.mu:g})"
        )

    # ------------------------------------------------------------------------ sizes

    @property
    def flat(self) -> FlatModel:
        """The model as a function of one flat vector."""
        return self.rows.flat

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        return self.rows.device

    @property
    def is_convex(self) -> bool:
        """Whether there is a certificate."""
        return self.convex is True

    def tables_for(self, n_blocks: int) -> str:
        """How old gradients are kept with so many blocks."""
        ring = n_blocks * self.n_features * self.p.element_size()
        table = self.n_samples * self.n_features * torch.finfo(self.dtype).bits // 8
        needs = {"blocks": 2 * ring, "ring": ring, "full": ring + table}
        if self.tables == "auto":
            return "blocks" if needs["blocks"] <= self.memory_limit else "ring"
        if needs[self.tables] > self.memory_limit:
            raise MemoryError(
                f"tables={self.tables!r} needs {needs[self.tables] / 2**20:.0f} MiB for "
                f"{n_blocks} blocks and {self.n_features} parameters, more than "
                f"memory_limit={self.memory_limit}; raise it, or take tables='auto' or larger "
                "blocks."
            )
        return self.tables

    # ------------------------------------------------------------------------ parameters

    def parameters(self, coef: Any) -> Any:
        """The parameters with these values, arranged as the model takes them.

        Parameters
        ----------
        coef : array or tensor of shape (D,)
            Such as the `coef` of a result.

        Returns
        -------
        parameters : dict by name (of a module), or as they were given
            Tensors of the dtype that the parameters had.
        """
        w = self._flat_vector(coef)
        return self.flat.unflatten(w.to(self.flat.dtype))

    def flatten(self, parameters: Any) -> Vector:
        """The flat vector of parameters that are arranged as the model takes them."""
        return to_host(self.flat.flatten(parameters))

    def load_into(self, module: nn.Module, coef: Any) -> nn.Module:
        """Write parameters into a module of the problem's kind, and return it."""
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be an nn.Module, but {shown(module)} was given.")
        values, own = self.parameters(coef), dict(module.named_parameters())
        matching = isinstance(values, dict) and all(
            name in own and own[name].shape == value.shape for name, value in values.items()
        )
        if not matching:
            raise ValueError(
                f"{type(module).__name__} does not have the parameters of this problem, "
                f"{self.flat.described()}."
            )
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)
        return module

    def _flat_vector(self, coef: Any) -> Tensor:
        if isinstance(coef, Tensor):
            coef = on_host(coef)
        return self.rows.on_device(self.to_internal(coef)[0][:, 0])

    @property
    def start(self) -> Vector:
        """The parameters that were given, as a flat vector."""
        return to_host(self.flat.start)

    # ------------------------------------------------------------------------ passes

    def visit(self, w: Matrix, b: Vector, oracle: Any) -> Visit:
        ev = self.evaluate(w, b)
        q = oracle.weights(ev.losses, self.nu)
        return Visit(ev, q, self.gradient(ev, q))

    def gradient(self, ev: Evaluation, q: Any) -> Gradient:
        found = self.rows.gradient_at(self.loss, ev.w, q)
        if self.is_convex:
            self._require_convexity(ev, q, found.w[:, 0])
        return found

    def _require_convexity(self, ev: Evaluation, q: Tensor, slope: Vector) -> None:
        """Tangents lie below at w = 0 too; where they do not, the declaration was wrong."""
        there, here = float(q @ self._origin_losses), float(q @ ev.losses)
        along = float(slope @ ev.w[:, 0])
        rounding = max(_ROUNDING, 100.0 * torch.finfo(self.rows.dtype).eps)
        if there - here + along < -rounding * (abs(there) + abs(here) + abs(along)):
            raise ValueError(
                "convex=True was given, but the losses are not convex: at parameters of norm "
                f"{float(np.linalg.norm(ev.w)):.3g} their tangents lie above them at 0, "
                f"{here - along:.6g} against {there:.6g}. There is no certificate for such losses: "
                "give convex=False."
            )

    def sample_gradients(self, coef: Any) -> Tensor:
        """The gradient of each row's loss, shape (n, D), by `torch.func.vmap`."""
        point = self._flat_vector(coef).to(self.rows.dtype)
        return self.flat.sample_gradients(point, self.flat.data)

    def stationarity(self, coef: Any) -> float:
        """``||grad P(w)||`` with the exact weights at w."""
        ev = self.evaluate(*self.to_internal(coef))
        return self.slope_norm(ev, self.dual_oracle().weights(ev.losses, self.nu))

    def slope_norm(self, ev: Evaluation, q: Any) -> float:
        """``||sum_i q_i grad l_i(w) + mu w||``."""
        return float(np.linalg.norm(self.gradient(ev, q)[0] + self.mu * ev.w))

    # ------------------------------------------------------------------------ the reference point

    @cached_property
    def origin(self) -> tuple[Matrix, Vector]:
        """Where a solve starts: w = 0, or the parameters given where that says nothing."""
        w = np.zeros(self.n_features) if self.is_convex else self.start
        return w[:, None], np.zeros(1)

    @cached_property
    def _origin_losses(self) -> Tensor:
        return self.evaluate(*self.origin).losses

    @cached_property
    def _at_origin(self) -> tuple[float, float]:
        """The objective there, and its stationarity (not needed if the problem is convex)."""
        nothing = self.p.new_empty((self.n_samples, 0))
        ev = Evaluation(*self.origin, nothing, self._origin_losses, nothing)
        q = self.dual_oracle().weights(ev.losses, self.nu)
        slope = np.nan if self.is_convex else self.slope_norm(ev, q)
        return self.primal(ev.w, ev.losses, q), slope

    @property
    def _trivial(self) -> tuple[float, Vector, float]:
        """The objective at `origin`."""
        return self._at_origin[0], np.zeros(1), 0.0

    @property
    def reference_slope(self) -> float:
        """The stationarity at `origin`."""
        return self._at_origin[1]

    @cached_property
    def trivial_loss(self) -> float:
        return float(self.p @ self._origin_losses)

    # ------------------------------------------------------------------------ smaller relatives

    def moved(self, device: Any, process_group: Any = None) -> DROProblem:
        """The same problem on another device; its rows are those of this process."""
        place = as_device(device)
        here = self.device
        if here.type == place.type and place.index in (None, here.index):
            return self
        return self._on(place)

    def _on(self, place: torch.device) -> DROProblem:
        rows = self.rows.moved(place)
        bits = torch.float32 if rows.p.dtype == torch.float32 else self.dtype
        return self._replace(rows=rows, dtype=bits, _kept=self._kept)

    @cached_property
    def in_float64(self) -> DROProblem:
        """The problem itself; on the processor where a device has no float64 to certify in."""
        if self.p.dtype == torch.float64 or not self.is_convex:
            return self
        return self._on(torch.device("cpu"))


def _memory(device: torch.device) -> int:
    """Bytes that tables may take if nothing is said; the same on every run."""
    if device.type != "cuda":
        return _MEMORY
    return int(_MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory)
