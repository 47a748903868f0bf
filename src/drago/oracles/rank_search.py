"""The weights of rows that ranks share, by rounds of candidates for the threshold.

Each rank sums over its rows between many candidates, the sums of all ranks are added in one
exchange, and the threshold lies between two of the candidates. Rows that are settled for any
threshold between these are left behind, as sums. The few that are still open go to all ranks, with
what stands for the others, and every rank finishes the search by itself, exactly as in memory
(`drago.oracles.rounds.arrays`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drago.oracles.rounds import arrays
from drago.oracles.rounds.arrays import BALL, CHI2, KL, VERTEX

Array = np.ndarray


@dataclass(frozen=True)
class _RoundsRule:
    """How the threshold is looked for."""

    sample: int = 512
    """Rows of a rank that the first candidates come from, and those of later rounds."""
    ways: int = 24
    """Candidates of a round that come from a sample."""
    near: int = 6
    """Candidates on either side of an old threshold, each four times as far as the last."""
    few: int = 1 << 13
    """Open rows, of all ranks, that are gathered."""
    rounds: int = 12
    """After so many rounds all that is open is gathered."""
    margin: float = 1e-11
    """How far the sum of the weights has to be from 1 to tell on which side a candidate lies."""
    close: float = 1e-11
    """How far it may be from 1 in the end."""


_RULE = _RoundsRule()


def highest(rows: Any, u: Tensor, top: float, c: float) -> Tensor:
    """``q_i ~ p_i exp(u_i / c)``; what is tied at the top for ``c = 0``."""
    lifted = (u == top).to(u) if c == 0 else torch.exp(((u - top) / c).clamp(min=-745.0))
    q = rows.p * lifted
    return q / rows.ranks.sum(q.sum())


class RankSearch:
    """The search for the threshold tau of a capped simplex or a chi2 ball.

        chi2:    q_i = p_i clip((u_i - tau) / c, 0, cap)
        KL:      q_i = p_i cap exp(min(u_i - tau, 0) / c)
        vertex:  q_i = p_i cap above tau, 0 below, and what is left shared by the rows at tau
        ball:    q_i ~ p_i max(u_i - tau, 0)

    Attributes
    ----------
    low, high : float
        The threshold lies between them.
    place, u, p : tensors
        The rows that are open: their numbers (None for all rows), losses and weights (None where
        each weighs `unit`).
    full : float
        The mass of the rows that have the cap for any threshold from `low` to `high`.
    mass, first, second : float
        Of the rows that are between their bounds for any: their mass, ``sum p (u - high)`` and
        ``sum p (u - high)^2``; with KL, `first` is ``sum p exp((u - low) / c)``.
    """

    def __init__(self, rows: Any, kind: int, u: Tensor, c: float, bound: float) -> None:
        self.rows, self.ranks, self.kind, self.c, self.bound = rows, rows.ranks, kind, c, bound
        self.given = u
        self.unit = 1.0 / rows.n_samples if rows.is_uniform else 1.0
        self.cap = math.inf if kind == BALL else bound
        # From a row's loss to where it has the cap.
        self.width = c * self.cap if kind == CHI2 else math.inf
        self._open(u)

    def _open(self, u: Tensor) -> None:
        """Nothing is settled."""
        self.u, self.p = u, None if self.rows.is_uniform else self.rows.p
        self.place: Tensor | None = None
        self.full = self.mass = self.first = self.second = 0.0
        # Before rows below a threshold were left: that threshold, and the rows.
        self._before: tuple[Any, ...] = (-math.inf,)

    def run(self, old: float, moved: float) -> tuple[Tensor, float]:
        """The weights, and the threshold."""
        self.least, self.top = self.rows.extremes(self.given)
        if not (math.isfinite(self.least) and math.isfinite(self.top)):
            return torch.full_like(self.given, math.nan), math.nan
        if self.bound == math.inf and self.kind in (VERTEX, KL):
            return highest(self.rows, self.given, self.top, self.c), self.top
        self.low, self.high = self._ends()
        self.margin = _RULE.margin
        if self.c > 0.0:  # where a loss plus what leads to the cap is rounded
            size = max(abs(self.least), abs(self.top))
            self.margin += min(8.0 * float(np.finfo(float).eps) * size / self.c, 0.25)
        tried = self._near(old, moved)
        for _ in range(_RULE.rounds):
            if tried is None:
                tried = self._of_sample()
            if tried.size == 0 or self._round(tried) <= _RULE.few:
                break
            tried = None
        q, threshold = self._finish()
        if abs(float(self.ranks.sum(q.sum())) - 1.0) <= _RULE.close:
            return q, threshold
        # Rounding has misled the search, with losses huge in units of the price: all to all.
        self._open(self.given)
        self.low, self.high = self._ends()
        return self._finish()

    def _ends(self) -> tuple[float, float]:
        """Thresholds with weights that sum to 1 or more, and to less than 1."""
        c, least, top = self.c, self.least, self.top
        if self.kind == CHI2:
            low, high = least - 2.0 * c, top
        elif self.kind == KL:
            low, high = least, top + 2.0 * c * math.log(self.cap)
        elif self.kind == BALL:
            unit = max(top - least, c) or 1.0
            low, high = least - unit * max(2.0 * c / unit, 1.0 / math.sqrt(2.0 * self.bound)), top
        else:
            low, high = least, top
        return math.nextafter(low, -math.inf), math.nextafter(high, math.inf)

    # ------------------------------------------------------------------------ candidates

    def _near(self, old: float, moved: float) -> Array | None:
        """Around an old threshold, as far as it moved last and further."""
        spread = self.top - self.least
        step = max(abs(moved), 1e-8 * spread) if math.isfinite(moved) else spread / 64.0
        if not (math.isfinite(old) and step > 0.0):
            return None
        steps = step * 4.0 ** np.arange(2 - _RULE.near, 2)
        return np.concatenate([old - steps, [old], old + steps])

    def _of_sample(self) -> Array:
        """From a sample of the open rows; nothing where these are ties."""
        n = int(self.u.shape[0])
        size = min(n, _RULE.sample)
        place = torch.arange(size, device=self.u.device) * n // max(size, 1)
        # Each stands for as many rows as there are to one of the sample.
        mass = torch.full_like(self.u[place], self.unit) if self.p is None else self.p[place]
        pairs = torch.stack([self.u[place], mass * (n / max(size, 1))], 1)
        values, masses = self.ranks.gathered(pairs).cpu().numpy().T
        order = np.argsort(values, kind="stable")
        values, masses = values[order], masses[order]
        if 4 * np.unique(values).size <= values.size:
            return values[:0]
        if self.place is None:
            with np.errstate(all="ignore"):
                found = arrays.search(
                    self.kind, values, masses / masses.sum(), self.c, self.bound, None
                )
            far = np.unique((1.5 ** np.arange(_RULE.ways // 2)).astype(int))
            root = int(np.searchsorted(values, found.threshold))
            near = np.concatenate([root - far, [root], root + far]).clip(0, values.size - 1)
            return np.append(values[near], found.threshold)
        # Rows at the upper edge tell of thresholds further down.
        values = np.concatenate([values, values - self.width])
        masses = np.concatenate([masses, masses])
        inside = np.argsort(values)[: np.sum(values < self.high)]
        inside = inside[values[inside] >= self.low]
        if inside.size == 0:
            return values[:0]
        values, ends = values[inside], np.cumsum(masses[inside])
        shares = np.arange(1, _RULE.ways + 1) / (_RULE.ways + 1)
        found = values[np.searchsorted(ends, shares * ends[-1]).clip(max=values.size - 1)]
        return np.concatenate([found, np.nextafter(found, math.inf)])

    # ----------------------------------------------------------------------------- a round

    def _round(self, tried: Array) -> int:
        """Sums between candidates and what follows; how many rows of all ranks are open still."""
        inside = tried[(tried > self.low) & (tried < self.high)]
        if self.kind == BALL:  # at the greatest loss there is nothing above to tell from
            inside = inside[inside < self.top]
        tried = np.unique(np.concatenate([[self.low], inside, [self.high]]))
        edges = tried
        if self.width < math.inf:
            edges = np.unique(np.concatenate([tried, tried + self.width]))
        sums = _Between(edges, *self._sums(edges))
        totals = np.array([self._total(t, sums) for t in tried[1:-1]])
        enough = np.flatnonzero(totals >= 1.0 + self.margin)
        lacking = np.flatnonzero(totals <= 1.0 - self.margin)
        low = float(tried[enough[-1] + 1]) if enough.size else self.low
        high = float(tried[lacking[0] + 1]) if lacking.size else self.high
        return self._settle(low, high, sums)

    def _sums(self, edges: Array) -> Array:
        """Number, mass, and sums of the open rows from each edge to the next, over all ranks.

        Rows below the second edge, which are most, are but counted; with KL they carry weight.
        """
        size, ends = edges.size + 1, torch.from_numpy(edges).to(self.u)
        n = int(self.u.shape[0])
        if self.kind != KL:
            self._leave(self.u >= ends[1], edges[1])
        u, p = self.u, self.p
        bucket = torch.bucketize(u, ends, right=True)
        if self.kind == KL:
            last = ends[bucket.clamp(max=size - 2)]
            terms = [torch.exp(((u - last) / self.c).clamp(max=0.0))]
        else:
            apart = u - ends[bucket - 1]
            terms = {VERTEX: [], CHI2: [apart], BALL: [apart, apart * apart]}[self.kind]
        counts, sums = _by_bucket(bucket, size, terms, p)
        counts[1] += n - int(u.shape[0])
        sums = [self.unit * each for each in sums]
        sums += [torch.zeros_like(counts)] * (3 - len(sums))
        return self.ranks.sum(torch.stack([counts, *sums])).cpu().numpy()

    def _leave(self, keep: Tensor, below: float = math.inf) -> None:
        """Go on with some of the rows; those that are left are below a threshold, or settled."""
        if below < math.inf:
            self._before = below, self.place, self.u, self.p
        place = _where(keep)
        self.place = place if self.place is None else self.place[place]
        self.u, self.p = self.u[place], None if self.p is None else self.p[place]

    def _total(self, t: float, sums: _Between) -> float:
        """What the weights sum to at a candidate; of a ball, the room that its radius leaves."""
        left, right, c = sums.left, sums.right, self.c
        above = left >= t
        if self.kind == VERTEX:
            return self.cap * float(sums.mass[above].sum() + self.full)
        if self.kind == KL:
            at_cap = float(sums.mass[above].sum()) + self.full
            below = ~above & (sums.first > 0)
            lifted = sums.first[below] * np.exp((right[below] - t) / c)
            return self.cap * (
                at_cap + float(lifted.sum()) + self.first * math.exp((self.low - t) / c)
            )
        at_cap = left >= t + self.width
        free = above & ~at_cap
        far, base = left[free] - t, self.high - t
        mass, first = sums.mass[free], sums.first[free]
        a = float((first + far * mass).sum()) + self.first + base * self.mass
        if self.kind == CHI2:
            full = float(sums.mass[at_cap].sum()) + self.full
            return a / c + (self.cap * full if full > 0.0 else 0.0)
        d = float((sums.second[free] + far * (2.0 * first + far * mass)).sum())
        d += self.second + base * (2.0 * self.first + base * self.mass)
        if not (a > 0.0 and d > 0.0):
            return 0.0
        inside = (1.0 + 2.0 * self.bound) * a * (a / d)
        return min(inside, a / c) if c > 0.0 else inside

    def _settle(self, low: float, high: float, sums: _Between) -> int:
        """Leave behind what is settled between two thresholds; how many rows are open still."""
        left, fall = sums.left, self.high - high
        if self.kind == KL:
            below = (sums.right <= low) & (sums.first > 0)
            lifted = sums.first[below] * np.exp((sums.right[below] - low) / self.c)
            self.first = self.first * math.exp((self.low - low) / self.c) + float(lifted.sum())
            self.mass += float(sums.mass[sums.right <= low].sum())
            full, free = left >= high, sums.right <= low
        else:
            full = left >= (high if self.kind == VERTEX else high + self.width)
            free = (left >= high) & (left < low + self.width) & ~full
            far, mass, first = left[free] - high, sums.mass[free], sums.first[free]
            self.second += fall * (2.0 * self.first + fall * self.mass)
            self.second += float((sums.second[free] + far * (2.0 * first + far * mass)).sum())
            self.first += fall * self.mass + float((first + far * mass).sum())
            self.mass += float(mass.sum())
        self.full += float(sums.mass[full].sum())
        out = (sums.right <= low) | full | free
        self.low, self.high = low, high
        if self.kind != KL and low < self._before[0]:  # those below are open still
            _, self.place, self.u, self.p = self._before
        u = self.u
        keep = (u >= low) & (u < high)
        if self.width < math.inf:
            keep |= (u >= max(high, low + self.width)) & (u < high + self.width)
        self._leave(keep)
        return int(sums.count[~out].sum())

    # ------------------------------------------------------------------------------ the end

    def _finish(self) -> tuple[Tensor, float]:
        """The weights from the open rows of all ranks and what stands for the others."""
        if self.place is None:
            self.place = torch.arange(self.u.shape[0], device=self.u.device)
        weight = torch.full_like(self.u, self.unit) if self.p is None else self.p
        values, mass = _merged(self.u.cpu().numpy(), weight.cpu().numpy())
        mine = torch.from_numpy(np.stack([values, mass], 1)).to(self.given)
        values, mass = _merged(*self.ranks.gathered(mine).cpu().numpy().T)
        atoms, masses = self._atoms()
        rest = 1.0 - float(mass.sum()) - sum(masses)
        if rest > 0.0 and self.kind != KL:
            atoms, masses = [*atoms, -max(self.high - self.low, self.c) or -1.0], [*masses, rest]
        whole, u = np.concatenate([mass, masses]), np.concatenate([values - self.low, atoms])
        found = arrays.search(self.kind, u, whole, self.c, self.bound, None)
        ratio = found.q[0] / whole
        r = self._ratio(ratio[values.size :], atoms, found.effective)
        if values.size:
            own = np.searchsorted(values, self.u.cpu().numpy())
            r[self.place] = torch.from_numpy(ratio[own]).to(r)
        r *= self.unit if self.rows.is_uniform else self.rows.p
        return r, self.low + found.threshold

    def _atoms(self) -> tuple[list[float], list[float]]:
        """Losses, from `low`, and masses that stand for the rows that are settled.

        First those of the rows between their bounds, then that of the rows at the cap.
        """
        atoms, masses, reach = [], [], self.high - self.low
        if self.mass > 0.0 and self.kind == KL:
            there = self.first > 0.0
            mean = math.log(self.first / self.mass) if there else -1e3
            atoms, masses = [self.c * mean], [self.mass]
        elif self.mass > 0.0 and self.kind == CHI2:
            atoms, masses = [reach + self.first / self.mass], [self.mass]
        elif self.mass > 0.0:
            # Two rows with the same sums, the lower one at `high`.
            upper = self.first * (self.first / self.second) if self.second > 0.0 else 0.0
            pairs = [(reach, self.mass - upper)]
            if upper > 0.0:
                pairs.append((reach + self.second / self.first, upper))
            atoms, masses = map(list, zip(*[pair for pair in pairs if pair[1] > 0.0]))
        if self.full > 0.0:
            above = self.width + self.c if self.kind == CHI2 else max(self.c, reach)
            atoms, masses = [*atoms, reach + above], [*masses, self.full]
        return atoms, masses

    def _ratio(self, ratio: Array, atoms: list[float], effective: float) -> Tensor:
        """``q / p`` of rows that are settled, from the ratios of what stands for them."""
        u, c = self.given, self.c
        if self.mass > 0.0:
            apart = (u - self.low).sub_(atoms[0])
            if self.kind == KL:
                lifted = apart.div_(c).clamp_(max=700.0).exp_().mul_(float(ratio[0]))
                full = float(ratio[1]) if self.full > 0.0 else self.cap
                return torch.where(u >= self.high, full, lifted.clamp_(max=self.cap))
            unit = c if self.kind == CHI2 else effective
            return apart.div_(unit).add_(float(ratio[0])).clamp_(0.0, self.cap)
        full = float(ratio[0]) if self.full > 0.0 else 0.0
        edge = self.high + self.width if self.kind == CHI2 else self.high
        return torch.where(u >= edge, full, 0.0).to(u)


@dataclass(frozen=True)
class _Between:
    """Sums over the rows from each edge to the next, the last ones beyond all edges.

    `left` and `right` are the edges; `first` and `second` are sums of powers of the distance to the
    left one, or with KL of the exponential of that to the right one.
    """

    edges: Any
    count: Any
    mass: Any
    first: Any
    second: Any

    @property
    def left(self) -> Any:
        return np.append(-math.inf, self.edges)

    @property
    def right(self) -> Any:
        return np.append(self.edges, math.inf)


# Sums by bucket of 2 to this power rows are made one after the other, those of these in pairs.
_RUN = 12


def _by_bucket(
    bucket: Tensor, size: int, terms: list[Tensor], p: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """How many rows are in each bucket, their mass, and sums of terms times their weights.

    The same on every run.
    """
    counts = torch.bincount(bucket, minlength=size).to(torch.float64)
    if p is not None:
        terms = [p, *(term * p for term in terms)]
    if bucket.device.type == "cpu":
        runs = -(-int(bucket.shape[0]) >> _RUN) or 1
        label = bucket + size * (torch.arange(bucket.shape[0]) >> _RUN)
        found = [torch.bincount(label, term, minlength=size * runs) for term in terms]
        sums = [each.view(runs, size).sum(0) for each in found]
    else:
        order, lengths = bucket.argsort(stable=True), counts.to(torch.int64)
        sums = [
            torch.segment_reduce(term[order], "sum", lengths=lengths, initial=0.0) for term in terms
        ]
    return counts, sums if p is not None else [counts.clone(), *sums]


def _where(mask: Tensor) -> Tensor:
    """Numbers of the rows where it is true."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return torch.nonzero(mask)[:, 0]


def _merged(values: Array, masses: Array) -> tuple[Array, Array]:
    """Distinct values, ascending, and the mass of each."""
    found, place = np.unique(values, return_inverse=True)
    return found, np.bincount(place.reshape(-1), masses, found.size)
