"""Checks of tensors that a user gives, as `drago._validation` has for arrays."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from drago._validation import LEAST_SQUARE, numeric, require_scale, require_target_scale, shown
from drago.oracles.tensors import working_dtype
from drago.rows.tensor_ranks import Ranks

Array = npt.NDArray[Any]


def as_device(device: Any) -> torch.device:
    """A device of torch that is there, or an error."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            "device must be None (compiled code on arrays) or a device of torch such as 'cpu', "
            f"'cuda' or 'mps', but {shown(device)} was given."
        ) from error
    missing = {
        "cuda": not torch.cuda.is_available(),
        "mps": not torch.backends.mps.is_available(),
    }
    if missing.get(place.type, False):
        raise ValueError(f"device={shown(device)} was given, but torch finds no such device here.")
    return place


def card_of_rank(place: torch.device) -> torch.device:
    """The card of a rank of torchrun, where no other is named: the one of its local number."""
    local = os.environ.get("LOCAL_RANK")
    if place.type != "cuda" or place.index is not None or local is None:
        return place
    return torch.device("cuda", int(local) % torch.cuda.device_count())


def from_numpy(values: Array) -> Tensor:
    with warnings.catch_warnings():  # that it is read-only: nobody here writes to it
        warnings.simplefilter("ignore")
        return torch.from_numpy(values)


def on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def check_features(X: Tensor) -> Tensor:
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(
            f"X must have shape (n_samples, n_features) with no side 0, but has shape "
            f"{tuple(X.shape)}."
        )
    if X.is_complex() or X.layout != torch.strided:
        raise ValueError(f"X must be a dense tensor of real numbers, but is {X.layout}, {X.dtype}.")
    X = X.detach()
    if X.dtype not in (torch.float32, torch.float64):
        X = X.to(working_dtype(X.device))
    if not bool(torch.isfinite(torch.linalg.vector_norm(X))):
        _require_finite("X", X)
        require_scale(float(X.abs().amax()), X.numel())
    return X.contiguous()


def _require_finite(name: str, values: Tensor) -> None:
    if bool(torch.isfinite(values.sum())):
        return
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        first = tuple(int(k) for k in torch.nonzero(bad)[0])
        raise ValueError(
            f"{name} contains {int(bad.sum())} NaN or infinite entries, the first at "
            f"{first[0] if len(first) == 1 else first}; remove or impute them."
        )


def check_vector(name: str, values: Any, n: int, device: torch.device) -> Tensor:
    vector = torch.as_tensor(values if isinstance(values, Tensor) else numeric(name, values))
    vector = vector.detach()
    if vector.is_complex():
        raise ValueError(f"{name} must hold real numbers, but its dtype is {vector.dtype}.")
    if vector.shape == (n, 1):
        vector = vector[:, 0]
    if vector.shape != (n,):
        raise ValueError(
            f"{name} must have shape ({n},), one entry for each row of X, but has shape "
            f"{tuple(vector.shape)}."
        )
    vector = vector.to(device, working_dtype(device))
    _require_finite(name, vector)
    return vector


def check_target(y: Any, n: int, loss: Any, device: torch.device) -> Tensor:
    vector = check_vector("y", y, n, device)
    if (
        loss.is_classification
        and not loss.has_class_hessian
        and not bool(((vector == 0) | (vector == 1)).all())
    ):
        raise ValueError("y must hold 0 and 1 for the logistic loss; encode the labels.")
    if loss.has_class_hessian:
        whole = bool(((vector == vector.round()) & (vector >= 0) & (vector < max(n, 2))).all())
        if not whole:
            raise ValueError(
                "y must hold the integers 0..k-1 for the multinomial loss, with no more classes "
                "than rows; encode the labels."
            )
        return vector.to(torch.int64)
    if loss.is_of_residuals and float(vector @ vector) < LEAST_SQUARE * n:
        require_target_scale(float(vector.abs().amax()))
    return vector


def check_weight(sample_weight: Any, n: int, device: torch.device) -> Tensor:
    weight = check_vector("sample_weight", sample_weight, n, device)
    if not bool((weight >= 0).all()):
        raise ValueError("sample_weight must be nonnegative, and not 0 on all rows.")
    return weight


def nominal_weights(
    weight: Tensor | None, n: int, device: torch.device, ranks: Ranks | None = None
) -> tuple[Tensor, Any]:
    """Weights with sum 1 of the rows that have some, and which these are; None for all of them.

    The sum is over the rows of all ranks, of which `n` are here.
    """
    ranks = Ranks(None, (n,)) if ranks is None else ranks
    if weight is None:
        kind = working_dtype(device)
        return torch.full((n,), 1.0 / ranks.n_samples, dtype=kind, device=device), None
    most = ranks.most(weight.amax())
    if not bool(most > 0):
        raise ValueError("sample_weight must be nonnegative, and not 0 on all rows.")
    weight = weight / most
    p = weight / ranks.sum(weight.sum())
    kept = p > 0
    return (p, None) if bool(kept.all()) else (p[kept], kept)
