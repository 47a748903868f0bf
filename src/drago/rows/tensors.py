"""Vectors of the rows as tensors: what is done with them without a visit to the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drago.oracles.ranks import RankOracle
from drago.oracles.spectra import Spectra
from drago.oracles.tensors import BoundOracle, TensorOracle
from drago.rows.base import Index, Kept, RowStore, Vector
from drago.rows.tensor_checks import check_vector
from drago.rows.tensor_losses import on_tensors
from drago.rows.tensor_ranks import Ranks
from drago.terms.uncertainty.base import UncertaintySet

Array = npt.NDArray[Any]


def to_host(values: Tensor) -> Array:
    """A small tensor as a NumPy array."""
    found = values.detach().cpu().numpy()
    # What comes from another device is a copy already.
    return found.astype(np.float64, copy=values.device.type == "cpu")


def by_label(labels: Tensor, values: Tensor, size: int = 0) -> Tensor:
    """Sums by label, from 0 on: the same on every run, unlike `index_add`."""
    counts = torch.bincount(labels, minlength=size)
    ordered = values[labels.argsort(stable=True)]
    return torch.segment_reduce(ordered, "sum", lengths=counts, initial=0.0)


class Chosen:
    """Some of the rows: their numbers, on the device."""

    def __init__(self, index: Tensor) -> None:
        self.index = index


class TensorVectors(RowStore):
    """A store whose vectors are tensors on one device: those of this rank's rows.

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
    ranks : Ranks, optional
        Who else has rows; by default this process is alone. Sums are over the rows of all, and so
        are `n_samples` and the numbers of rows.
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
        ranks: Ranks | None = None,
    ) -> None:
        self.p, self.groups, self.baseline = p, groups, baseline
        self.is_uniform, self.gives_tensors = is_uniform, gives_tensors
        self.n_here = int(p.shape[0])
        self.ranks = Ranks(None, (self.n_here,)) if ranks is None else ranks
        self.n_samples = self.ranks.n_samples
        self.is_first, self.is_shared = self.ranks.rank == 0, not self.ranks.is_alone
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

    def has(self, capability: str) -> bool:
        # DRAGO's blocks are those of one rank.
        return super().has(capability) and (capability != "tables" or self.ranks.is_alone)

    # ------------------------------------------------------------------------ in and out

    @property
    def n_given(self) -> int:
        return self.n_here if self.gives_tensors else self.n_samples

    def export(self, values: Tensor) -> Any:
        return values if self.gives_tensors else to_host(self.ranks.joined(values))

    def imported(self, array: Any) -> Tensor:
        given = array if self.gives_tensors else self.ranks.own(array)
        return torch.as_tensor(given).to(self.p)

    def saved(self, values: Tensor) -> Array:
        return to_host(self.ranks.joined(values))

    def restored(self, array: Array) -> Tensor:
        return torch.from_numpy(np.array(self.ranks.own(array))).to(self.p)

    def enter(self, name: str, values: Any, kept: Kept = None) -> Tensor:
        return self.ranks.agreed(lambda: self._entered(name, values, kept))

    def _entered(self, name: str, values: Any, kept: Kept) -> Tensor:
        if kept is None:
            whole = check_vector(name, values, self.n_given, self.device)
        else:
            whole = check_vector(name, values, kept.size, self.device)
            whole = whole[torch.from_numpy(kept).to(self.device)]
        return whole if self.gives_tensors else self.ranks.own(whole)

    def said(self, value: float) -> float:
        return self.ranks.said(value)

    def is_any(self, flag: bool) -> bool:
        return self.ranks.is_any(flag)

    def shared(self, work: Any) -> Any:
        return self.ranks.shared(work)

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
        kind = BoundOracle if self.ranks.is_alone else RankOracle
        return kind(self, self.tensor_oracle(uncertainty, divergence))

    def distance(self, divergence: Any, q: Tensor) -> float:
        return float(self.ranks.sum(self.distance_of(divergence, q)))

    def distance_of(self, divergence: Any, q: Tensor) -> Tensor:
        """What rows here add to ``D(q || p)``, on the device, in as few passes as torch can."""
        ratio = q * float(self.n_samples) if self.is_uniform else q / self.p
        if divergence.is_chi2:
            terms = ratio.sub_(1.0).square_().mul_(0.5)
        else:
            # x log x - (x - 1) for x log x: the same in sum, and accurate where q is close to p.
            terms = torch.xlogy(ratio, ratio).sub_(ratio).add_(1.0)
        return terms.sum() / self.n_samples if self.is_uniform else self.p @ terms

    def primal(self, divergence: Any, nu: float, losses: Tensor, q: Tensor) -> float:
        value = q @ losses
        value = value - nu * self.distance_of(divergence, q) if nu > 0 else value
        return float(self.ranks.sum(value))

    def violation(self, uncertainty: Any, q: Tensor) -> float:
        if uncertainty.needs_groups:
            assert self.groups is not None
            mass, r = self.by_group(self.p), self.by_group(q)
            spread = (q - self.p * (r / mass)[self.groups]).abs().sum()
            inner = uncertainty._inner._violation(to_host(r), to_host(mass), None)
            found = self.ranks.sum(torch.stack([spread, -q.clamp(max=0.0).sum()]))
            return max(inner, *found.tolist())
        here = [-q.clamp(max=0.0).sum(), q.sum(), self._excess(uncertainty, q)]
        lacking, total, excess = self.ranks.sum(torch.stack(here)).tolist()
        if uncertainty.own_divergence is not None:
            excess -= float(uncertainty.radius)
        return max(lacking, abs(total - 1.0), excess)

    def _excess(self, uncertainty: UncertaintySet, q: Tensor) -> Tensor:
        """What rows here add to the mass beyond the bounds of the set, or to a divergence."""
        if uncertainty.tail_share is not None:
            return (q - self.p / uncertainty.tail_share).clamp(min=0.0).sum()
        if uncertainty.own_divergence is not None:
            return self.distance_of(uncertainty.match("auto"), q)
        if not uncertainty.is_spectral:
            return q.new_zeros(())
        # The worst sets of rows are those of the largest q/p.
        p, q = self.ranks.joined(self.p), self.ranks.joined(q)
        order = (q / p).argsort()
        masses = Spectra(uncertainty).masses(p[order], self.is_uniform)  # type: ignore[arg-type]
        return (q[order] - masses).flip(0).cumsum(0).amax() / self.ranks.size

    def by_group(self, values: Tensor, what: str = "sum") -> Tensor:
        """The sum, or the maximum, over each group."""
        assert self.groups is not None
        if self._group_order is None:
            last = self.groups.amax() if self.n_here else self.groups.new_full((), -1)
            size = 0 if self.ranks.is_alone else int(self.ranks.most(last)) + 1
            counts = torch.bincount(self.groups, minlength=size)
            self._group_order = self.groups.argsort(stable=True), counts
        order, counts = self._group_order
        # Unsafe: that the counts are those of all rows need not be looked at.
        found = torch.segment_reduce(values[order], what, lengths=counts, initial=0.0, unsafe=True)
        return self.ranks.sum(found) if what == "sum" else self.ranks.most(found)

    _group_order: tuple[Tensor, Tensor] | None = None

    def top(self, values: Tensor) -> Tensor:
        """The greatest value on the device; minus infinity where there is none."""
        found = values.amax().to(self.p) if values.numel() else self.p.new_full((), -math.inf)
        return self.ranks.most(found)

    def group_masses(self) -> tuple[Vector, Vector]:
        return to_host(self.by_group(self.p)), to_host(self.by_group(self.p, "max"))

    # ------------------------------------------------------------------------- selections

    def heaviest(self, weight: Tensor, size: int) -> Chosen:
        about_equal = torch.nonzero(weight > 0.5 * self.top(weight))[:, 0]
        all_ranks = self.ranks.anew(int(about_equal.shape[0]))
        count = all_ranks.n_samples
        if count > size:
            spaced = torch.arange(size, device=weight.device) * count // size - all_ranks.start
            if not all_ranks.is_alone:
                spaced = spaced[(spaced >= 0) & (spaced < about_equal.shape[0])]
            return Chosen(about_equal[spaced])
        index = torch.nonzero(weight > 0)[:, 0]
        if self._on_all_ranks(int(index.shape[0])) > size:
            index = index[self._greatest_of(weight[index], size)]
        return Chosen(index)

    def _greatest_of(self, values: Tensor, size: int) -> Tensor:
        """Numbers of the entries here that are among so many greatest of all ranks, ascending."""
        most = min(size, int(values.shape[0]))
        if self.ranks.is_alone:
            return values.topk(most, sorted=False).indices.sort().values
        own = self.ranks.anew(most)
        found = own.joined(values.topk(most).values)
        least = found.topk(size).values[-1]
        above = values > least
        # Of those that are tied, the first ones.
        before = (found[: own.start] == least).sum()
        room = int(size - (found > least).sum() - before)
        tied = torch.nonzero(values == least)[: max(room, 0), 0]
        return torch.cat([torch.nonzero(above)[:, 0], tied]).sort().values

    def _on_all_ranks(self, count: int) -> int:
        """A number of rows here and elsewhere."""
        return count if self.ranks.is_alone else int(self.ranks.sum(torch.tensor(float(count))))

    def size(self, chosen: Chosen) -> int:
        return self._on_all_ranks(int(chosen.index.shape[0]))

    def total(self, values: Tensor, chosen: Chosen | None = None) -> float:
        return float(self.ranks.sum((values if chosen is None else values[chosen.index]).sum()))

    def greatest(self, values: Tensor) -> float:
        return float(self.top(values))

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
        return float(self.ranks.sum((self.p * x) @ x))

    def shift(self, raw: Tensor, b: Vector) -> Tensor:
        return raw + self.on_device(b)

    def by_class(self, values: Vector) -> Tensor:
        return self.on_device(values)[self.y.to(torch.int64)]

    def class_masses(self, weights: Tensor, n_classes: int) -> Vector:
        # One by one: sums by index depend on the order in which threads finish.
        masses = [torch.where(self.y == c, weights, 0.0).sum() for c in range(n_classes)]
        return to_host(self.ranks.sum(torch.stack(masses)))

    def dot(self, x: Tensor, y: Tensor) -> float:
        return float(self.ranks.sum(x @ y))

    def count(self, q: Tensor, above: float = 0.0) -> int:
        return int(self.ranks.sum((q > above).sum()))

    def slope_along(self, q: Tensor, dlosses: Tensor, step: Tensor) -> float:
        along = (
            (q * dlosses[:, 0]) @ step[:, 0]
            if dlosses.shape[1] == 1
            else (q @ (dlosses * step).sum(1))
        )
        return float(self.ranks.sum(along))

    def slope_sums(self, q: Tensor, dlosses: Tensor) -> tuple[Vector, Vector]:
        both = to_host(self.ranks.sum(torch.stack([q @ dlosses, q @ dlosses.abs()])))
        return both[0], both[1]

    def steepest_of(self, dlosses: Tensor, index: Index, lengths: Vector) -> float:
        here, place = self.local(index)
        sizes = torch.linalg.vector_norm(dlosses[place], dim=1)
        return self.greatest(sizes * self.on_device(lengths[here]))

    def local(self, index: Index) -> tuple[Any, Tensor]:
        """Which of some numbers of rows are rows here, and their numbers here."""
        here = (index >= self.ranks.start) & (index < self.ranks.start + self.n_here)
        return here, torch.from_numpy(index[here] - self.ranks.start).to(self.device)

    def extremes(self, values: Tensor) -> tuple[float, float]:
        ends = values.new_full((2,), -math.inf)
        if values.numel():
            low, high = torch.aminmax(values)
            ends = torch.stack([-low, high])
        least, greatest = self.ranks.most(ends).tolist()
        return -least, greatest

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
        return to_host(self.ranks.sum(torch.stack([centre, losses.sum(), alone])))

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
        return to_host(self.ranks.sum(torch.stack([first, bregman, step.abs().sum()])))

    def slack_scale(self, is_kl: bool, nu: float, exact: Tensor, centre: float) -> float:
        if nu == 0:
            return 0.0
        return nu * self.greatest((self._mirror(is_kl, nu, exact) - centre).abs())

    # ----------------------------------------------------------------------- the intercept

    def balance(
        self, loss: Any, raw: Tensor, q: Tensor, n_outputs: int
    ) -> tuple[Tensor, float] | None:
        alpha, young = on_tensors(loss).balance(self.y, raw, q, self.ranks.sum)
        return alpha, self.dot(q, young)

    def tangent_excess(
        self, q: Tensor, here: Tensor, losses: Tensor, dlosses: Tensor, shift: float
    ) -> float:
        excess = (here - losses + dlosses[:, 0] * shift).clamp(min=0.0)
        return float(self.ranks.sum(q @ excess))

    def moments(self, raw: Tensor) -> Vector:
        return to_host(self.ranks.sum(torch.stack([raw.sum(), (raw * raw).sum()])))

    def offsets(self, raw: Tensor) -> tuple[float, float, float]:
        offsets = self.y - raw[:, 0]
        least, greatest = self.extremes(offsets)
        return least, greatest, float(self.ranks.sum(self.p @ offsets))
