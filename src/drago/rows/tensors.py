"""Vectors of the rows as tensors: what is done with them without a visit to the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drago.oracles.spectra import Spectra
from drago.oracles.tensors import BoundOracle, TensorOracle
from drago.rows.base import Index, Kept, RowStore, Vector
from drago.rows.tensor_checks import check_vector
from drago.rows.tensor_losses import on_tensors
from drago.terms.uncertainty.base import UncertaintySet

Array = npt.NDArray[Any]


def to_host(values: Tensor) -> Array:
    """A small tensor as a NumPy array."""
    found = values.detach().cpu().numpy()
    # What comes from another device is a copy already.
    return found.astype(np.float64, copy=values.device.type == "cpu")


def by_label(labels: Tensor, values: Tensor) -> Tensor:
    """Sums by label, from 0 on: the same on every run, unlike `index_add`."""
    counts = torch.bincount(labels)
    ordered = values[labels.argsort(stable=True)]
    return torch.segment_reduce(ordered, "sum", lengths=counts, initial=0.0)


class Chosen:
    """Some of the rows: their numbers, on the device."""

    def __init__(self, index: Tensor) -> None:
        self.index = index


class TensorVectors(RowStore):
    """A store whose vectors are tensors on one device.

    Parameters
    ----------
    p : tensor of shape (n,)
    groups : tensor of int of shape (n,) or None
    is_uniform : bool
        Whether all of `p` is equal.
    gives_tensors : bool
        Whether vectors of results are tensors, too.
    baseline : tensor of shape (n,) or None
        What is subtracted from the losses.
    """

    capabilities = frozenset({"tables"})
    is_on_host = False
    y: Any

    def __init__(
        self,
        p: Tensor,
        groups: Tensor | None,
        is_uniform: bool,
        gives_tensors: bool,
        baseline: Tensor | None = None,
    ) -> None:
        self.p, self.groups, self.baseline = p, groups, baseline
        self.is_uniform, self.gives_tensors = is_uniform, gives_tensors
        self.n_samples = int(p.shape[0])
        self._oracles: list[tuple[Any, Any, TensorOracle]] = []

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.p.device

    def kernels_for(self, loss: Any) -> Any:
        """Fused kernels for visits with a loss; None where there are none."""
        return None

    def moved(self, place: torch.device) -> TensorVectors:
        """The same rows on another device."""
        raise NotImplementedError  # pragma: no cover

    def on_device(self, values: Array) -> Tensor:
        """A small array as a tensor beside the rows."""
        copied = np.array(values) if self.device.type == "cpu" else np.ascontiguousarray(values)
        return torch.from_numpy(copied).to(self.p)

    def export(self, values: Tensor) -> Any:
        return values if self.gives_tensors else to_host(values)

    def enter(self, name: str, values: Any, kept: Kept = None) -> Tensor:
        if kept is None:
            return check_vector(name, values, self.n_samples, self.device)
        whole = check_vector(name, values, kept.size, self.device)
        return whole[torch.from_numpy(kept).to(self.device)]

    def spread(self, weights: Any, kept: npt.NDArray[np.bool_]) -> Any:
        if not isinstance(weights, Tensor):
            return super().spread(weights, kept)
        mask = torch.from_numpy(kept).to(weights.device)
        return torch.zeros(mask.shape[0]).to(weights).masked_scatter(mask, weights)

    # ----------------------------------------------------------------------------- the set

    def tensor_oracle(self, uncertainty: Any, divergence: Any) -> TensorOracle:
        """The dual oracle of a set; the last ones are kept, with their tables."""
        for one, other, oracle in self._oracles:
            if one is uncertainty and other is divergence:
                return oracle
        oracle = TensorOracle(uncertainty, divergence)
        self._oracles = [*self._oracles[-3:], (uncertainty, divergence, oracle)]
        return oracle

    def oracle(self, uncertainty: Any, divergence: Any) -> BoundOracle:
        return BoundOracle(self, self.tensor_oracle(uncertainty, divergence))

    def distance(self, divergence: Any, q: Tensor) -> float:
        return float(self.distance_of(divergence, q))

    def distance_of(self, divergence: Any, q: Tensor) -> Tensor:
        """``D(q || p)`` on the device, in as few passes as torch can."""
        ratio = q * float(self.n_samples) if self.is_uniform else q / self.p
        if divergence.is_chi2:
            terms = ratio.sub_(1.0).square_().mul_(0.5)
        else:
            # x log x - (x - 1) for x log x: the same in sum, and accurate where q is close to p.
            terms = torch.xlogy(ratio, ratio).sub_(ratio).add_(1.0)
        return terms.mean() if self.is_uniform else self.p @ terms

    def primal(self, divergence: Any, nu: float, losses: Tensor, q: Tensor) -> float:
        value = q @ losses
        return float(value - nu * self.distance_of(divergence, q) if nu > 0 else value)

    def violation(self, uncertainty: Any, q: Tensor) -> float:
        if uncertainty.needs_groups:
            assert self.groups is not None
            mass, r = self.by_group(self.p), self.by_group(q)
            spread = float((q - self.p * (r / mass)[self.groups]).abs().sum())
            inner = uncertainty._inner._violation(to_host(r), to_host(mass), None)
            lacking = float(-q.clamp(max=0.0).sum())
            return max(spread, inner, lacking)
        total = torch.stack([-q.clamp(max=0.0).sum(), (q.sum() - 1.0).abs()]).amax()
        return max(float(total), float(self._excess(uncertainty, q)))

    def _excess(self, uncertainty: UncertaintySet, q: Tensor) -> Tensor:
        """By how much weights pass the bounds of the set, in mass."""
        if uncertainty.tail_share is not None:
            return (q - self.p / uncertainty.tail_share).clamp(min=0.0).sum()
        if uncertainty.own_divergence is not None:
            away = self.distance_of(uncertainty.match("auto"), q)
            return away - float(uncertainty.radius)  # type: ignore[attr-defined]
        if not uncertainty.is_spectral:
            return q.new_zeros(())
        # The worst sets of rows are those of the largest q/p.
        order = (q / self.p).argsort()
        masses = Spectra(uncertainty).masses(self.p[order], self.is_uniform)  # type: ignore[arg-type]
        return (q[order] - masses).flip(0).cumsum(0).amax()

    def by_group(self, values: Tensor, what: str = "sum") -> Tensor:
        """The sum, or the maximum, over each group."""
        assert self.groups is not None
        if self._group_order is None:
            self._group_order = self.groups.argsort(stable=True), torch.bincount(self.groups)
        order, counts = self._group_order
        # Unsafe: that the counts are those of all rows need not be looked at.
        return torch.segment_reduce(values[order], what, lengths=counts, initial=0.0, unsafe=True)

    _group_order: tuple[Tensor, Tensor] | None = None

    def group_masses(self) -> tuple[Vector, Vector]:
        return to_host(self.by_group(self.p)), to_host(self.by_group(self.p, "max"))

    # ------------------------------------------------------------------------- selections

    def heaviest(self, weight: Tensor, size: int) -> Chosen:
        about_equal = torch.nonzero(weight > 0.5 * weight.amax())[:, 0]
        if about_equal.shape[0] > size:
            spaced = torch.arange(size, device=weight.device) * about_equal.shape[0] // size
            return Chosen(about_equal[spaced])
        index = torch.nonzero(weight > 0)[:, 0]
        if index.shape[0] > size:
            index = index[weight[index].topk(size, sorted=False).indices].sort().values
        return Chosen(index)

    def size(self, chosen: Chosen) -> int:
        return int(chosen.index.shape[0])

    def total(self, values: Tensor, chosen: Chosen | None = None) -> float:
        return float((values if chosen is None else values[chosen.index]).sum())

    def greatest(self, values: Tensor) -> float:
        return float(values.amax()) if values.numel() else -math.inf

    def narrow(self, chosen: Chosen, values: Tensor, most: float) -> Chosen:
        return Chosen(chosen.index[values <= most])

    # ----------------------------------------------------------------------------- vectors

    def add(self, x: Tensor, y: Tensor, t: float = 1.0) -> Tensor:
        return torch.add(x, y, alpha=t)

    def scaled(self, x: Tensor, t: float) -> Tensor:
        return t * x

    def mix(self, x: Tensor, y: Tensor, share: float) -> Tensor:
        return (1.0 - share) * x + share * y

    def relative(self, q: Tensor) -> Tensor:
        return q / self.p

    def second_moment(self, x: Tensor) -> float:
        return float((self.p * x) @ x)

    def shift(self, raw: Tensor, b: Vector) -> Tensor:
        return raw + self.on_device(b)

    def by_class(self, values: Vector) -> Tensor:
        return self.on_device(values)[self.y.to(torch.int64)]

    def class_masses(self, weights: Tensor, n_classes: int) -> Vector:
        # One by one: sums by index depend on the order in which threads finish.
        masses = [torch.where(self.y == c, weights, 0.0).sum() for c in range(n_classes)]
        return to_host(torch.stack(masses))

    def dot(self, x: Tensor, y: Tensor) -> float:
        return float(x @ y)

    def count(self, q: Tensor, above: float = 0.0) -> int:
        return int((q > above).sum())

    def slope_along(self, q: Tensor, dlosses: Tensor, step: Tensor) -> float:
        if dlosses.shape[1] == 1:
            return float((q * dlosses[:, 0]) @ step[:, 0])
        return float(q @ (dlosses * step).sum(1))

    def slope_sums(self, q: Tensor, dlosses: Tensor) -> tuple[Vector, Vector]:
        both = to_host(torch.stack([q @ dlosses, q @ dlosses.abs()]))
        return both[0], both[1]

    def steepest_of(self, dlosses: Tensor, index: Index, lengths: Vector) -> float:
        place = torch.from_numpy(index).to(self.device)
        sizes = torch.linalg.vector_norm(dlosses[place], dim=1)
        return float((sizes * self.on_device(lengths)).amax())

    def extremes(self, values: Tensor) -> tuple[float, float]:
        least, greatest = torch.stack([values.amin(), values.amax()]).tolist()
        return least, greatest

    # --------------------------------------------------------------- what weights are worth

    def _mirror(self, is_kl: bool, nu: float, exact: Tensor) -> Tensor:
        if nu == 0:
            return torch.zeros_like(exact)
        ratio = exact / self.p
        return torch.log(torch.where(ratio > 0, ratio, 1.0)) if is_kl else ratio

    def slack_sums(
        self, is_kl: bool, nu: float, losses: Tensor, exact: Tensor, q: Tensor
    ) -> Vector:
        alone = ((exact == 0) & (q > 0)).sum().to(exact)
        centre = exact @ self._mirror(is_kl, nu, exact)
        return to_host(torch.stack([centre, losses.sum(), alone]))

    def slack_terms(
        self,
        is_kl: bool,
        nu: float,
        losses: Tensor,
        exact: Tensor,
        q: Tensor,
        mean: float,
        centre: float,
    ) -> Vector:
        step, slope = exact - q, nu * (self._mirror(is_kl, nu, exact) - centre)
        bregman = step.new_zeros(())
        if nu > 0 and is_kl:
            some = exact > 0
            ratio = torch.where(some, q / torch.where(some, exact, 1.0), 1.0)
            logs = torch.log(torch.where(ratio > 0, ratio, 1.0))
            bregman = exact @ (ratio * logs - (ratio - 1.0))
        elif nu > 0:
            bregman = 0.5 * (step @ (step / self.p))
        first = step @ ((losses - mean) - slope)
        return to_host(torch.stack([first, bregman, step.abs().sum()]))

    def slack_scale(self, is_kl: bool, nu: float, exact: Tensor, centre: float) -> float:
        if nu == 0:
            return 0.0
        return nu * float((self._mirror(is_kl, nu, exact) - centre).abs().amax())

    # ----------------------------------------------------------------------- the intercept

    def balance(
        self, loss: Any, raw: Tensor, q: Tensor, n_outputs: int
    ) -> tuple[Tensor, float] | None:
        found = on_tensors(loss).balance(self.y, raw, q)
        return None if found is None else (found[0], float(q @ found[1]))

    def tangent_excess(
        self, q: Tensor, here: Tensor, losses: Tensor, dlosses: Tensor, shift: float
    ) -> float:
        return float(q @ (here - losses + dlosses[:, 0] * shift).clamp(min=0.0))

    def moments(self, raw: Tensor) -> Vector:
        return to_host(torch.stack([raw.sum(), (raw * raw).sum()]))

    def offsets(self, raw: Tensor) -> tuple[float, float, float]:
        offsets = self.y - raw[:, 0]
        least, greatest = self.extremes(offsets)
        return least, greatest, float(self.p @ offsets)
