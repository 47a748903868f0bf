"""Exact weights for rows that are shared by the ranks of a process group.

Where a threshold decides, each rank sums over its rows between many candidates, the sums of all
ranks are added in one exchange, and the threshold lies between two of the candidates. Rows that are
settled for any threshold between these are left behind, as sums. The few that are still open go to
all ranks, with what stands for the others, and every rank finishes the search by itself, exactly as
in memory (`drago.oracles.rounds.arrays`). What rounding leaves is shared by the rows between their
bounds.

Spectral sets need the order of all losses: these go to all ranks. Sets over groups need their sums.
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
from drago.oracles.rounds.tilt import Tilt, price_in_ball
from drago.oracles.tensors import BoundOracle, TensorOracle
from drago.oracles.thresholds import is_zero

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


_RULE = _RoundsRule()


class RankOracle(BoundOracle):
    """A `TensorOracle` for rows that ranks share, each of which has its own."""

    def __init__(self, rows: Any, oracle: TensorOracle) -> None:
        super().__init__(rows, oracle)
        self._known = {"threshold": math.nan, "moved": math.nan}
        self._all_p: Tensor | None = None

    @property
    def memory(self) -> dict[str, float]:
        """Where the last search ended (theta of a KL ball), and how far that had moved."""
        return self._known

    @memory.setter
    def memory(self, values: dict[str, float]) -> None:
        self._known = dict(values)

    def weights(self, u: Tensor, c: float | Tensor, out: Tensor | None = None) -> Tensor:
        q = self._found(u, float(c))
        return q if out is None else out.copy_(q)

    def _found(self, u: Tensor, c: float) -> Tensor:
        oracle, rows, c = self.oracle, self.rows, 0.0 if is_zero(c) else c
        inner: Any = oracle.uncertainty
        if self._mass is not None:
            return self._of_groups(u, c, self._mass)
        if inner.is_spectral:
            return self._sorted(u, c)
        is_ball = inner.own_divergence is not None
        if (inner.radius if is_ball else self._cap - 1.0) <= 0:
            return rows.p
        if is_ball and not oracle.divergence.is_chi2:
            return self._tilted(u, c, inner.radius)
        if is_ball:
            search = _Search(rows, BALL, u, c, inner.radius)
        else:
            kind = VERTEX if c == 0 else (CHI2 if oracle.divergence.is_chi2 else KL)
            search = _Search(rows, kind, u, c, self._cap)
        q, threshold = search.run(self.memory["threshold"], self.memory["moved"])
        old = self.memory["threshold"]
        moved = threshold - old if math.isfinite(old) else math.nan
        self.memory = {"threshold": threshold, "moved": moved}
        return q

    def _sorted(self, u: Tensor, c: float) -> Tensor:
        """Of a spectral set: every rank weighs the losses of all."""
        rows, ranks = self.rows, self.rows.ranks
        if self.p is not None and self._all_p is None:
            self._all_p = ranks.joined(rows.p)
        return ranks.own(self.oracle.exact_weights(ranks.joined(u), c, self._all_p, None))

    def _tilted(self, u: Tensor, c: float, radius: float) -> Tensor:
        """Of a KL ball."""
        rows = self.rows
        losses = _Losses(rows, u, radius)
        effective = price_in_ball(losses, c, radius, self.memory["threshold"])
        if effective > c:
            self.memory = {"threshold": 1.0 / effective, "moved": math.nan}
        return _highest(rows, u, losses.top, effective)


def _highest(rows: Any, u: Tensor, top: float, c: float) -> Tensor:
    """``q_i ~ p_i exp(u_i / c)``; what is tied at the top for ``c = 0``."""
    lifted = (u == top).to(u) if c == 0 else torch.exp(((u - top) / c).clamp(min=-745.0))
    q = rows.p * lifted
    return q / rows.ranks.sum(q.sum())


class _Losses(Tilt):
    """The losses of all ranks for a KL ball."""

    def __init__(self, rows: Any, u: Tensor, radius: float) -> None:
        self.rows, self.u, self.is_small = rows, u, radius < self.SMALL
        self.top = float(rows.top(u))
        self.centre = self.top + self._sums(u - self.top)[0]
        apart = u - self.centre
        self.offset, square = self._sums(apart, apart * apart)
        self.variance = max(square - self.offset**2, 0.0)

    def _sums(self, *values: Tensor) -> list[float]:
        """Of ``p_i`` times these, in one exchange."""
        here = torch.stack([self.rows.p @ each for each in values])
        return self.rows.ranks.sum(here).tolist()

    def tied(self) -> float:
        return self._sums((self.u == self.top).to(self.u))[0]

    def sums(self, theta: float, near: bool) -> list[float]:
        if near:
            d = (self.u - self.centre) - self.offset
            e = torch.expm1(theta * d)
            return self._sums(e - theta * d, e * d, (e + 1.0) * d * d)
        d = self.u - self.top
        e = torch.exp(theta * d)
        return self._sums(e, e * d, e * d * d)


class _Search:
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
        The rows that are open: their numbers, losses and weights.
    full : float
        The mass of the rows that have the cap for any threshold from `low` to `high`.
    mass, first, second : float
        Of the rows that are between their bounds for any: their mass, ``sum p (u - high)`` and
        ``sum p (u - high)^2``; with KL, `first` is ``sum p exp((u - low) / c)``.
    """

    def __init__(self, rows: Any, kind: int, u: Tensor, c: float, bound: float) -> None:
        self.rows, self.ranks, self.kind, self.c, self.bound = rows, rows.ranks, kind, c, bound
        self.given = self.u = u
        self.p = rows.p
        self.place: Tensor | None = None
        self.cap = math.inf if kind == BALL else bound
        # From a row's loss to where it has the cap.
        self.width = c * self.cap if kind == CHI2 else math.inf
        self.full = self.mass = self.first = self.second = 0.0

    def run(self, old: float, moved: float) -> tuple[Tensor, float]:
        """The weights, and the threshold."""
        self.least, self.top = self.rows.extremes(self.given)
        if not (math.isfinite(self.least) and math.isfinite(self.top)):
            return torch.full_like(self.given, math.nan), math.nan
        if self.bound == math.inf and self.kind in (VERTEX, KL):
            return _highest(self.rows, self.given, self.top, self.c), self.top
        self.low, self.high = self._ends()
        tried = self._near(old, moved)
        for _ in range(_RULE.rounds):
            if tried is None:
                tried = self._of_sample()
            if tried.size == 0 or self._round(tried) <= _RULE.few:
                break
            tried = None
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
        pairs = torch.stack([self.u[place], self.p[place] * (n / max(size, 1))], 1)
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
        enough = np.flatnonzero(totals >= 1.0 + _RULE.margin)
        lacking = np.flatnonzero(totals <= 1.0 - _RULE.margin)
        low = float(tried[enough[-1] + 1]) if enough.size else self.low
        high = float(tried[lacking[0] + 1]) if lacking.size else self.high
        return self._settle(low, high, sums)

    def _sums(self, edges: Array) -> Array:
        """Number, mass, and sums of the open rows from each edge to the next, over all ranks.

        Rows below the second edge, which are most, are but counted; with KL they carry weight.
        """
        size = edges.size + 1
        u, p, ends = self.u, self.p, torch.from_numpy(edges).to(self.u)
        few = u >= ends[1] if self.kind != KL else None
        n = int(u.shape[0])
        if few is not None:
            u, p = u[few], p[few]
        bucket = torch.bucketize(u, ends, right=True)
        if self.kind == KL:
            last = ends[bucket.clamp(max=size - 2)]
            first = p * torch.exp(((u - last) / self.c).clamp(max=0.0))
            terms = [p, first]
        else:
            apart = u - ends[bucket - 1]
            terms = [p, p * apart] if self.kind != BALL else [p, p * apart, p * apart * apart]
        counts, sums = _by_bucket(bucket, size, terms)
        counts[1] += n - int(u.shape[0])
        sums += [torch.zeros_like(counts)] * (3 - len(sums))
        return self.ranks.sum(torch.stack([counts, *sums])).cpu().numpy()

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
        u = self.u
        keep = (u >= low) & (u < high)
        if self.width < math.inf:
            keep |= (u >= max(high, low + self.width)) & (u < high + self.width)
        place = torch.nonzero(keep)[:, 0]
        self.place = place if self.place is None else self.place[place]
        self.u, self.p = u[place], self.p[place]
        return int(sums.count[~out].sum())

    # ------------------------------------------------------------------------------ the end

    def _finish(self) -> tuple[Tensor, float]:
        """The weights from the open rows of all ranks and what stands for the others."""
        if self.place is None:
            self.place = torch.arange(self.u.shape[0], device=self.u.device)
        values, mass = _merged(self.u.cpu().numpy(), self.p.cpu().numpy())
        mine = torch.from_numpy(np.stack([values, mass], 1)).to(self.given)
        values, mass = _merged(*self.ranks.gathered(mine).cpu().numpy().T)
        atoms, masses = self._atoms()
        rest = 1.0 - float(mass.sum()) - sum(masses)
        if rest > 0.0 and self.kind != KL:
            atoms, masses = [*atoms, -max(self.high - self.low, self.c) or -1.0], [*masses, rest]
        weight = np.concatenate([mass, masses])
        found = arrays.search(
            self.kind, np.concatenate([values - self.low, atoms]), weight, self.c, self.bound, None
        )
        ratio = found.q[0] / weight
        r = self._ratio(ratio[values.size :], atoms, found.effective)
        if values.size:
            own = np.searchsorted(values, self.u.cpu().numpy())
            r[self.place] = torch.from_numpy(ratio[own]).to(r)
        return self.rows.p * r, self.low + found.threshold

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
            apart = (u - self.low) - atoms[0]
            if self.kind == KL:
                lifted = torch.exp((apart / c).clamp(max=700.0)) * float(ratio[0])
                full = float(ratio[1]) if self.full > 0.0 else self.cap
                return torch.where(u >= self.high, full, lifted.clamp(max=self.cap))
            unit = c if self.kind == CHI2 else effective
            return (apart / unit + float(ratio[0])).clamp(0.0, self.cap)
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


# Rows whose sums by bucket are made one after the other: the sums of these are added in pairs.
_RUN = 1 << 12


def _by_bucket(bucket: Tensor, size: int, terms: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """How many rows are in each bucket, and sums of terms; the same on every run."""
    like = terms[0]
    counts = torch.bincount(bucket, minlength=size).to(like)
    if bucket.device.type == "cpu":
        runs = -(-int(bucket.shape[0]) // _RUN) or 1
        label = bucket + size * (torch.arange(bucket.shape[0]) // _RUN)
        found = [torch.bincount(label, term, minlength=size * runs) for term in terms]
        return counts, [each.view(runs, size).sum(0) for each in found]
    order = bucket.argsort(stable=True)
    lengths = counts.to(torch.int64)
    return counts, [
        torch.segment_reduce(term[order], "sum", lengths=lengths, initial=0.0) for term in terms
    ]


def _merged(values: Array, masses: Array) -> tuple[Array, Array]:
    """Distinct values, ascending, and the mass of each."""
    found, place = np.unique(values, return_inverse=True)
    return found, np.bincount(place.reshape(-1), masses, found.size)
