"""The curvature of some of the rows of tensors: what bounds and Newton steps are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from drago.rows.base import Evaluation, Gradient, Matrix
from drago.rows.factor import Factor
from drago.rows.tensor_factor import TensorFactor
from drago.rows.tensor_losses import on_tensors
from drago.rows.tensors import Chosen, TensorVectors, to_host

# Entries of X that are converted to float64 at a time, on processors and on other devices.
_CHUNK, _LARGE_CHUNK = 1 << 18, 1 << 26
# Unknowns from which on their matrices are factored on the card.
_LARGE_MATRIX = 128
# Rows that a Newton step's Hessian is made of, at least, and for each unknown: eigenvalues of a
# sample of k an unknown are off by about 2 / sqrt(k).
_LEAST_DRAWN = 1 << 15
_ROWS_PER_UNKNOWN = 256


class TensorCurvature(TensorVectors):
    """What `drago.rows.device.TensorRows` knows of curvature."""

    X: Tensor

    @property
    def _chunk(self) -> int:
        return _CHUNK if self.device.type == "cpu" else _LARGE_CHUNK

    def features(self, index: Tensor, intercept: bool) -> Tensor:
        """Rows of X in float64, with a last 1 for an intercept."""
        F = self.X.index_select(0, index).to(self.p.dtype)
        return pad(F, (0, 1), value=1.0) if intercept else F

    def _parts(self, chosen: Chosen, width: int) -> list[slice]:
        """Places of a selection, as many at a time as memory likes."""
        n, step = int(chosen.index.shape[0]), max(1, self._chunk // width)
        return [slice(k, min(k + step, n)) for k in range(0, n, step)]

    def curvature(self, loss: Any, raw: Tensor, q: Tensor) -> Tensor:
        if raw.shape[1] > 1:
            return loss.curvature * q
        return q * on_tensors(loss).second(self.y, raw)

    def gram(self, chosen: Chosen, weight: Tensor, intercept: bool) -> Matrix:
        m = self.n_features + int(intercept)
        out = torch.zeros((m, m), dtype=self.p.dtype, device=self.device)
        for part in self._parts(chosen, m):
            place = chosen.index[part]
            F = self.features(place, intercept)
            out.addmm_((F * weight[place, None]).T, F)
        return to_host(self.ranks.sum(out))

    def responds(self, uncertainty: Any, n_outputs: int) -> bool:
        return uncertainty.is_capped and n_outputs == 1

    def hessian(
        self, loss: Any, ev: Evaluation, q: Tensor, response: Any, intercept: bool
    ) -> Matrix | None:
        """From a sample of the rows where these are many; a search tells how far to go."""
        if ev.dlosses.shape[1] > 1:
            return None
        slopes, rate = ev.dlosses[:, 0], response.rate
        weight = q * on_tensors(loss).second(self.y, ev.raw) + rate * slopes.square()
        place, times = self._drawn(weight, self._drawn_rows(intercept))
        F = self.features(place, intercept)
        rate, slopes = times * rate[place], slopes[place]
        # All move together: what they have in common is no move.
        along, mass = (rate * slopes) @ F, rate.sum()
        H = (F * (times * weight[place])[:, None]).T @ F
        H, along, mass = self.ranks.sums(H, along, mass)
        return to_host(H - torch.outer(along, along / torch.where(mass > 0, mass, 1.0)))

    def hessian_rows(self, q: Tensor | None = None) -> int:
        return min(self._drawn_rows(True), self.n_samples)

    def _drawn_rows(self, intercept: bool) -> int:
        return max(_LEAST_DRAWN, _ROWS_PER_UNKNOWN * (self.n_features + int(intercept)))

    def _drawn(self, weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Rows at equal distances in the sum of the weights, and how often each counts.

        Rows that weigh more than such a distance are drawn for sure, and count once in all; the
        others are drawn by chance and count for those that were not. All rows count once where they
        are no more than these. No value is looked at.
        """
        if self.n_samples <= size:
            return torch.arange(self.n_here, device=self.device), torch.ones_like(weight)
        sums = weight.cumsum(0)
        at, share = self._draws(sums, size)
        place = torch.searchsorted(sums, at).clamp_(max=self.n_here - 1)
        there = weight[place]
        copies = torch.searchsorted(place, place, right=True) - torch.searchsorted(place, place)
        rare = share / torch.where(there > 0, there, math.inf)
        return place, torch.where(there > share, 1.0 / copies, rare)

    def _draws(self, sums: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Where in the sums of the weights here rows are drawn, and the distance of draws."""
        rank, all_ranks = self.ranks.rank, self.ranks
        if not all_ranks.is_alone:
            last = sums[-1:] if self.n_here else sums.new_zeros(1)
            sums = all_ranks.joined(last, (1,) * all_ranks.size).cumsum(0)
        share = sums[-1] / size
        at = (torch.arange(size, device=self.device) + 0.5) * share
        if all_ranks.is_alone:
            return at, share
        before, end = pad(sums, (1, 0))[rank : rank + 2]
        return at[(at >= before) & (at < end)] - before, share

    def factor(self, H: Matrix) -> Factor:
        is_large = self.device.type == "cuda" and H.shape[0] >= _LARGE_MATRIX
        return TensorFactor(self.on_device(H)) if is_large else Factor(H)

    def leverages(self, chosen: Chosen, root: Any, intercept: bool) -> Tensor:
        there = root.T if isinstance(root, Tensor) else self.on_device(root.T)
        out = self.p.new_empty(chosen.index.shape[0])
        for part in self._parts(chosen, root.shape[1]):
            moved = self.features(chosen.index[part], intercept) @ there
            out[part] = (moved * moved).sum(1)
        return out.sqrt_()

    def unbent(self, chosen: Chosen, raw: Tensor, step: Gradient, delta: float) -> Chosen:
        place = chosen.index
        move = self.predict(step.w, step.b)[place, 0]
        residual = raw[place, 0] - self.y[place]
        return Chosen(place[(residual - move).abs() <= delta])

    def class_hessian(
        self, loss: Any, chosen: Chosen, raw: Tensor, q: Tensor, intercept: bool
    ) -> Matrix:
        k, m = raw.shape[1], self.n_features + int(intercept)
        H = self.p.new_zeros((k, k, m, m))
        for part in self._parts(chosen, m):
            place = chosen.index[part]
            F, pi = self.features(place, intercept), torch.softmax(raw[place], 1)
            for a in range(k):
                of_class = q[place] * pi[:, a]
                for c in range(a, k):
                    moved = of_class * ((1.0 if a == c else 0.0) - pi[:, c])
                    H[a, c].addmm_((F * moved[:, None]).T, F)
        found = to_host(self.ranks.sum(H))
        for a in range(k):
            for c in range(a):
                found[a, c] = found[c, a].T
        return found.transpose(0, 2, 1, 3).reshape(k * m, k * m)

    def class_diagonal(
        self, loss: Any, chosen: Chosen, raw: Tensor, q: Tensor, intercept: bool
    ) -> Matrix:
        out = self.p.new_zeros((self.n_features, raw.shape[1]))
        for part in self._parts(chosen, self.n_features):
            place = chosen.index[part]
            pi = torch.softmax(raw[place], 1)
            out.addmm_((self.features(place, False) ** 2).T, q[place, None] * pi * (1.0 - pi))
        return to_host(self.ranks.sum(out))

    def class_leverages(self, chosen: Chosen, inverse: Matrix, intercept: bool) -> Tensor:
        k, out = inverse.shape[0], self.p.new_zeros(chosen.index.shape[0])
        blocks = self.on_device(np.ascontiguousarray(inverse.transpose(0, 2, 1, 3)))
        for part in self._parts(chosen, inverse.shape[1]):
            F = self.features(chosen.index[part], intercept)
            own = [((F @ blocks[a, a]) * F).sum(1) for a in range(k)]
            for a in range(k):
                for c in range(a + 1, k):
                    pair = own[a] + own[c] - 2.0 * ((F @ blocks[a, c]) * F).sum(1)
                    out[part] = torch.maximum(out[part], pair)
        return out.sqrt_()
