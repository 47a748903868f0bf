"""Per-sample losses of any differentiable model, as functions of one flat vector of parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from drago._validation import shown
from drago.oracles.tensors import working_dtype
from drago.rows.tensor_checks import as_device

# Entries of the data that a model is given at a time, and of a table of gradients.
_ENTRIES = 1 << 22
# Rows on which a model is tried.
_TRIED = 3
_CHANGING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)


class FlatModel:
    """A model, a loss and data: ``w -> (loss_1(w), ..., loss_n(w))``.

    Parameters
    ----------
    model : nn.Module or callable
        ``module(*inputs)`` or ``function(parameters, *inputs)``, for any number of rows.
    data : tensor or tuple of tensors
        With n rows each. All but the last are the inputs where there are several and a loss.
    loss : callable or None
        ``loss(prediction, target)``, or ``loss(prediction)`` where the data is one tensor; one
        number a row. None: the model returns the losses.
    parameters : pytree of tensors, optional
        Of a function.
    device : torch.device, optional
        That of the data by default.
    chunk_size : int, optional
        Rows that the model is given at a time.

    Attributes
    ----------
    start : tensor of shape (D,), float64 where the device has it
        The parameters that were given.
    dtype : torch.dtype
        That of the parameters.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        loss: Callable[..., Any] | None,
        parameters: Any = None,
        device: Any = None,
        chunk_size: int | None = None,
    ) -> None:
        self.data = _checked_data(data, device)
        self.n = int(self.data[0].shape[0])
        self.device = self.data[0].device
        if loss is not None and not callable(loss):
            raise TypeError(
                "loss must be a function of a prediction and a target that returns one loss per "
                f"row, or None where the model returns the losses, but {shown(loss)} was given."
            )
        self.loss = loss
        self._fixed: dict[str, Tensor] = {}
        if isinstance(model, nn.Module):
            if parameters is not None:
                raise TypeError(
                    "parameters= is for a function; a module brings its own, of which those with "
                    "requires_grad=False stay as they are."
                )
            parameters = self._of_module(model)
        elif not callable(model) or isinstance(model, type):
            raise TypeError(
                "model must be an nn.Module or a function of parameters and inputs, but "
                f"{shown(model)} was given."
            )
        elif parameters is None:
            raise TypeError(
                "the model is a function: give its parameters to start from, parameters=, a "
                "tensor or a dict, list or tuple of tensors."
            )
        self.model = model if not isinstance(model, nn.Module) else _still(model)
        leaves, self._tree = pytree.tree_flatten(parameters)
        _check_parameters(leaves)
        self.shapes = [leaf.shape for leaf in leaves]
        self.sizes = [leaf.numel() for leaf in leaves]
        self.dtype = leaves[0].dtype
        for leaf in leaves[1:]:
            self.dtype = torch.promote_types(self.dtype, leaf.dtype)
        self.start = self.flatten(parameters)
        row = sum(math.prod(part.shape[1:]) for part in self.data)
        self.chunk_size = max(1, _ENTRIES // max(row, 1)) if chunk_size is None else chunk_size
        self._cast: dict[torch.dtype, dict[str, Tensor]] = {}

    def _of_module(self, module: nn.Module) -> dict[str, Tensor]:
        parameters = dict(module.named_parameters())
        free: dict[str, Tensor] = {
            name: value for name, value in parameters.items() if value.requires_grad
        }
        if not free:
            raise ValueError(
                f"{type(module).__name__} has no parameter with requires_grad=True: there is "
                "nothing to learn."
            )
        self._fixed = {name: value for name, value in parameters.items() if name not in free}
        self._fixed |= dict(module.named_buffers())
        self._fixed = {
            name: value.detach().to(self.device)
            for name, value in self._fixed.items()
            if value is not None
        }
        return free

    # ------------------------------------------------------------------------ parameters

    @property
    def size(self) -> int:
        """The number D of parameters."""
        return sum(self.sizes)

    def flatten(self, parameters: Any) -> Tensor:
        """The flat vector of parameters, in the precision of the certificate."""
        leaves, tree = pytree.tree_flatten(parameters)
        shapes = [getattr(leaf, "shape", None) for leaf in leaves]
        if tree != self._tree or shapes != self.shapes:
            raise ValueError(
                f"parameters must be arranged as those of the problem, {self.described()}."
            )
        wide = working_dtype(self.device)
        return torch.cat([leaf.detach().to(self.device, wide).reshape(-1) for leaf in leaves])

    def unflatten(self, w: Tensor) -> Any:
        """The parameters as they were given, views of `w`."""
        parts = [part.view(shape) for part, shape in zip(w.split(self.sizes), self.shapes)]
        return pytree.tree_unflatten(parts, self._tree)

    def described(self) -> str:
        """The arrangement of the parameters, in words."""
        return shown(pytree.tree_unflatten([tuple(shape) for shape in self.shapes], self._tree))

    # ------------------------------------------------------------------------ losses

    def moved(self, place: torch.device) -> FlatModel:
        """The same model and rows on another device."""
        other = copy.copy(self)
        other.device, other._cast = place, {}
        other.data = tuple(part.to(place) for part in self.data)
        other.start = self.start.to(place, working_dtype(place))
        other._fixed = {name: value.to(place) for name, value in self._fixed.items()}
        return other

    def on_rows(self, rows: Tensor) -> FlatModel:
        """The same model with some of the rows."""
        other = copy.copy(self)
        other.data = self.rows(rows)
        other.n = int(other.data[0].shape[0])
        return other

    def rows(self, rows: Any) -> tuple[Tensor, ...]:
        """The data of a slice of the rows, or of some of them."""
        return tuple(part[rows] for part in self.data)

    def losses(self, w: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        """The loss of each of these rows, computed in the dtype of `w`."""
        size = int(rows[0].shape[0])
        rows = tuple(part.to(w.dtype) if part.is_floating_point() else part for part in rows)
        targeted = self.loss is not None and len(rows) > 1
        inputs, target = (rows[:-1], rows[-1:]) if targeted else (rows, ())
        parameters = self.unflatten(w)
        if isinstance(self.model, nn.Module):
            out = functional_call(self.model, {**self._constants(w.dtype), **parameters}, inputs)
        else:
            out = self.model(parameters, *inputs)
        losses = out if self.loss is None else self.loss(out, *target)
        if not isinstance(losses, Tensor) or tuple(losses.shape) not in ((size,), (size, 1)):
            raise ValueError(self._misshapen(losses, out, size, target))
        return losses.reshape(-1)

    def _constants(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Buffers and frozen parameters, in the dtype of the computation."""
        if dtype not in self._cast:
            self._cast[dtype] = {
                name: value.to(dtype) if value.is_floating_point() else value
                for name, value in self._fixed.items()
            }
        return self._cast[dtype]

    def _misshapen(self, losses: Any, out: Any, size: int, target: tuple[Tensor, ...]) -> str:
        what = "the loss" if self.loss is not None else "the model, which has no loss,"
        if not isinstance(losses, Tensor):
            return f"{what} must return a tensor of {size} losses, but returned {shown(losses)}."
        text = (
            f"{what} must return one loss per row, shape ({size},) for {size} rows, but returned "
            f"shape {tuple(losses.shape)}"
        )
        if losses.ndim == 0:
            hint = "; take reduction='none', and squeeze(-1), not squeeze(), in a model"
        elif tuple(losses.shape) == (size, size) and target:
            hint = (
                f": a prediction of shape {tuple(getattr(out, 'shape', ()))} and a target of shape "
                f"{tuple(target[0].shape)} were broadcast; squeeze(-1) the prediction"
            )
        else:
            hint = "; where a row has several, take their mean over it"
        return text + hint + "."

    def chunks(self, n: int) -> Iterator[slice]:
        """Slices of at most `chunk_size` rows, of n."""
        for start in range(0, n, self.chunk_size):
            yield slice(start, min(start + self.chunk_size, n))

    @torch.no_grad()
    def all_losses(self, w: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        """The losses of these rows, a few at a time."""
        parts = [
            self.losses(w, tuple(part[some] for part in rows))
            for some in self.chunks(int(rows[0].shape[0]))
        ]
        return torch.cat(parts)

    # ------------------------------------------------------------------------ gradients

    def with_graph(self, w: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """A copy of `w` and the losses there, for `torch.autograd.grad`."""
        point = w.detach().clone().requires_grad_()
        with torch.enable_grad():
            return point, self.losses(point, rows)

    def weighted_gradient(self, w: Tensor, rows: tuple[Tensor, ...], weights: Tensor) -> Tensor:
        """``sum_i weights_i grad loss_i(w)`` over these rows: one backward pass, chunk by chunk."""
        out = torch.zeros_like(w)
        for some in self.chunks(int(rows[0].shape[0])):
            point, losses = self.with_graph(w, tuple(part[some] for part in rows))
            out += torch.autograd.grad(losses, point, weights[some].to(losses.dtype))[0]
        return out

    def sample_gradients(self, w: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        """``grad loss_i(w)`` of each of these rows, shape (rows, D)."""

        def one(point: Tensor, *row: Tensor) -> Tensor:
            return self.losses(point, tuple(part.unsqueeze(0) for part in row))[0]

        step = max(1, min(self.chunk_size, _ENTRIES // self.size))
        each = vmap(grad(one), in_dims=(None, *(0 for _ in rows)), chunk_size=step)
        try:
            return each(w.detach(), *rows)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RuntimeError(
                f"torch.func.vmap could not map the model over single rows ({reason}); "
                "tables='blocks' does without."
            ) from error

    # ------------------------------------------------------------------------ at the door

    def try_out(self, dtype: torch.dtype) -> None:
        """Refuse a model whose losses are not those of the rows alone, or have no gradient."""
        w = self.start.to(dtype)
        rows = self.rows(slice(0, min(_TRIED, self.n)))
        try:
            losses = self.with_graph(w, rows)[1]
        except RuntimeError as error:
            if "type" not in str(error):
                raise
            raise TypeError(
                f"the model could not be computed in {dtype} ({str(error).splitlines()[0]}), "
                "which a certificate asks for, or dtype=; where it makes tensors of its own, they "
                "must have the dtype of its inputs."
            ) from error
        if not losses.requires_grad:
            raise ValueError(
                "the losses do not depend on the parameters by differentiable operations: there is "
                "no gradient; a detach(), a no_grad() or NumPy on the way cuts it."
            )
        again = self.all_losses(w, rows)
        size = int(losses.shape[0])
        alone = torch.cat(
            [self.all_losses(w, tuple(part[k : k + 1] for part in rows)) for k in range(size)]
        )
        if not _equal(losses, again):
            raise ValueError(
                "two evaluations of the same rows gave different losses, "
                f"{_first(losses)} and {_first(again)}: the model is random. Call eval() on it, or "
                "take the randomness out."
            )
        if not _equal(losses, alone):
            raise ValueError(
                "the loss of a row depends on the other rows of its batch: "
                f"{_first(losses)} among {size} rows, {_first(alone)} alone. Robust learning "
                "weights rows one by one: leave out what mixes them, such as batch normalisation "
                "without running statistics."
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Up to rounding; what is no number is reported elsewhere."""
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite].detach(), b[finite]
    slack = math.sqrt(torch.finfo(a.dtype).eps)
    return bool((torch.abs(a - b) <= slack * (1.0 + torch.abs(a))).all())


def _first(losses: Tensor) -> str:
    return f"{losses[0].item():.6g}"


def _still(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its tensors: its mode does not change any more."""
    restless = [
        f"{name or 'the module itself'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training and isinstance(part, _CHANGING)
    ]
    if restless:
        raise ValueError(
            f"{', '.join(restless[:3])} behaves differently on every batch while in training mode, "
            "so that there is no loss of a row alone; call module.eval() first."
        )
    shared = [*module.parameters(), *module.buffers()]
    with suppress(RuntimeError):  # some modules hold tensors that refuse to be copied
        return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})
    return module


def _checked_data(data: Any, device: Any) -> tuple[Tensor, ...]:
    parts = tuple(data) if isinstance(data, (tuple, list)) else (data,)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        wrong = [part for part in parts if not isinstance(part, Tensor)]
        raise TypeError(
            "data must be a tensor or a tuple of tensors with a row for each sample, such as "
            f"(inputs, target), but {shown(wrong[0]) if wrong else 'an empty tuple'} was given; "
            "torch.as_tensor makes one of an array."
        )
    shapes = [tuple(part.shape) for part in parts]
    if any(len(shape) == 0 or shape[0] != shapes[0][0] for shape in shapes) or shapes[0][0] == 0:
        raise ValueError(
            "the tensors of data must have the same number of rows, at least one, but have shapes "
            f"{', '.join(map(str, shapes))}."
        )
    devices = {part.device for part in parts}
    if device is None and len(devices) > 1:
        raise ValueError(
            f"the tensors of data lie on {', '.join(sorted(map(str, devices)))}; move them to one "
            "device, or give device=."
        )
    where = parts[0].device if device is None else as_device(device)
    return tuple(part.detach().to(where) for part in parts)


def _check_parameters(leaves: list[Any]) -> None:
    bad = [leaf for leaf in leaves if not isinstance(leaf, Tensor) or not leaf.is_floating_point()]
    if bad or not leaves:
        given = "none was given"
        if bad:
            kind = bad[0].dtype if isinstance(bad[0], Tensor) else shown(bad[0])
            given = f"{kind} was given"
        raise TypeError(
            f"parameters must be a tensor, or a dict, list or tuple of tensors, of real numbers, "
            f"but {given}."
        )
    if sum(leaf.numel() for leaf in leaves) == 0:
        raise ValueError("parameters must hold at least one number, but are empty.")
    if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
        raise ValueError("parameters must be finite, but hold NaN or infinity.")
