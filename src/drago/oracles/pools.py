"""The dual oracle of a spectral set: one sort, then pools that are joined pairwise.

Solved here: ``argmax_q <u, q> - c Omega(q)`` over ``{q : q(A) <= G(p(A)) for all A}``. In the order
of increasing ``u``, with ``sigma`` the spectrum's mass of each row,

    chi2:  q_i = p_i (u_i - v_i) / c          KL:  q_i = p_i exp((u_i - v_i) / c)

with ``v`` nondecreasing and constant on pools; a pool B keeps its mass, ``q(B) = sigma(B)``. This
is an isotonic regression, which is usually solved by a sweep from row to row. Here all blocks of 1,
2, 4, ... rows are solved at once, each from its two halves. Joining two solved halves makes at most
one new pool, across the border between them. A pool on the left takes part exactly if its ``v``
exceeds that of the stretch from its end to the last row on the right whose ``v`` is smaller than
its own; on the right it is the other way round. So one look at each row finds both ends, and
log2(n) rounds of a fixed number of operations end with the exact answer.

All sums run from the border outward, and losses are taken from the rows next to it: what is far
away, in place or in value, costs no digits.

On CUDA devices kernels join many rows (`drago.oracles.pool_launch`).
"""

from __future__ import annotations

import functools
import math
import warnings
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

from drago.oracles import search
from drago.oracles.spectra import Spectra
from drago.oracles.thresholds import entries, is_zero


def spectral(
    u: Tensor, p: Tensor, c: float | Tensor, divergence: str, spectra: Spectra, uniform: bool
) -> Tensor:
    """The weights of a spectral set; `uniform` says that all rows have the same weight."""
    n = int(u.shape[0])
    # Rows without weight come last, with the largest loss.
    ordered, order = torch.where(p > 0, u, math.inf).sort()
    share = p.gather(0, order)
    ordered = torch.where(share > 0, ordered, u.amax())
    sigma = spectra.masses(share, uniform)
    linear = divergence == "chi2" or is_zero(c)
    if n * n <= 2 * entries(u.device):
        ratio = _all_stretches(ordered, share, sigma, c, linear)
    else:
        q = _by_kernels(ordered, share, sigma, c, order, linear)
        if q is not None:
            return q
        more = (1 << (n - 1).bit_length()) - n
        filled = torch.cat([ordered, u.amax().expand(more)])
        pools = _Pools(filled, pad(share, (0, more)), pad(sigma, (0, more)), c, linear)
        ratio = pools.ratios()[:n]
    return torch.zeros_like(u).scatter(0, order, share * ratio)


@functools.cache
def _kernels() -> ModuleType | None:
    """The module of the CUDA kernels, None where Triton is missing or too old."""
    try:
        from drago.oracles import pool_launch
    except Exception:
        return None
    return pool_launch


_broken: set[torch.device] = set()


def _by_kernels(
    u: Tensor, p: Tensor, sigma: Tensor, c: float | Tensor, order: Tensor, linear: bool
) -> Tensor | None:
    """The weights, in the order before the sort; None where there are no kernels."""
    if not (u.is_cuda and u.shape[0] < 2**30 and search.takes(u, p, sigma, c)):
        return None
    kernels = _kernels()
    if kernels is None or u.device in _broken:
        return None
    try:
        found: Tensor = kernels.weights(u, p, sigma, c, order, linear=linear, free=is_zero(c))
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # of many kinds: no compiler, a version without what is needed
        _broken.add(u.device)
        warnings.warn(
            f"the kernels on {u.device} could not be built, joining pools without: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return found


def _by_cost(difference: Tensor, c: float | Tensor) -> Tensor:
    """A difference of losses, by ``c``; a vertex is the limit."""
    far = 1e100 if difference.dtype == torch.float64 else 1e30
    if is_zero(c):
        return torch.sign(difference) * far
    return (difference / c).clamp(-far, far)


def _all_stretches(u: Tensor, p: Tensor, sigma: Tensor, c: float | Tensor, linear: bool) -> Tensor:
    """``q / p`` of a few rows, ``v_i = max over j <= i of min over k >= i`` of that of rows j to k.

    In the tables, a line is the end k of a stretch or the row i, a column its start j.
    """
    n = int(u.shape[0])
    x = _by_cost(u - u[:, None], c)
    lower = torch.ones_like(x).tril() > 0
    row = [p.expand(n, n), p * x - sigma] if linear else [sigma.expand(n, n), p * torch.exp(x)]
    sums = torch.where(lower, torch.stack(row), 0.0)
    step = 1
    while step < n:
        sums = sums + pad(sums[..., step:], (0, step))
        step *= 2
    level = sums[1] / sums[0] if linear else torch.log(sums[1]) - torch.log(sums[0])
    # A pool spreads no wider than the spectrum does. What is further away is left out, before the
    # rounding of its distance can speak. Rows without spectrum, which join the pool above them, are
    # measured from the first row with one.
    density = torch.where(p > 0, sigma / torch.where(p > 0, p, 1.0), 0.0)
    width, ref = density.amax(), u
    if not linear:
        some = density > 0
        width = torch.log(width) - torch.log(torch.where(some, density, math.inf).amin())
        ref = torch.maximum(u, torch.where(some, u, math.inf).amin())
    apart = _by_cost(u[:, None] - ref, c)
    best = torch.where(lower & (apart <= 4.0 * width + 2.0), level + apart, math.inf)
    best = best.flip(0).cummin(0).values.flip(0) - apart
    v = torch.where(lower & (apart <= 2.0 * width + 1.0), best, -math.inf).amax(1)
    return torch.where(p > 0, (-v).clamp(min=0.0) if linear else torch.exp(-v), 0.0)


class _Pools:
    """Rows in the order of their losses, as many as a power of two.

    Of each row, its pool is known: where it starts and ends in its block, the loss of its largest
    row (`base`) and its ``v / c`` from there (`level`). Of each block, sums over its first and over
    its last k rows for all k (`heads`, `tails`), two of them:

        chi2:  p;      p u / c - sigma, u from the first (heads) or last (tails) row of the block
        KL:    sigma;  p exp(u / c), u from the largest row that is summed
    """

    def __init__(
        self, u: Tensor, p: Tensor, sigma: Tensor, c: float | Tensor, linear: bool
    ) -> None:
        self.u, self.c, self.linear = u, c, linear
        live = p > 0
        if linear:
            level, row = -sigma / torch.where(live, p, 1.0), torch.stack([p, -sigma])
        else:
            level, row = torch.log(p) - torch.log(sigma), torch.stack([sigma, p])
        self.base, self.level = u, torch.where(live, level, math.inf)
        self.first = torch.zeros((u.shape[0], 1), dtype=torch.int64, device=u.device)
        self.last = self.first + 1
        self.heads, self.tails = pad(row[..., None], (1, 0)), pad(row[..., None], (0, 1))

    def ratios(self) -> Tensor:
        """``q / p``."""
        n = int(self.u.shape[0])
        size = 1
        while size < n:
            self._join(size)
            size *= 2
        lift = _by_cost(self.u - self.base, self.c) - self.level
        return lift.clamp(min=0.0) if self.linear else torch.exp(lift)

    def _join(self, size: int) -> None:
        """Join blocks of `size` rows pairwise."""
        left, right = self.u.view(-1, 2, size).unbind(1)
        border = right[:, :1]
        gap = _by_cost(border - left[:, -1:], self.c)
        # From the border: the largest of the right's first k rows, the left's last one for k = 0.
        reach = torch.cat([-gap, _by_cost(right - border, self.c)], -1)
        heads, tails = self.heads[:, 1::2], self.tails[:, 0::2]

        def level(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
            """``v / c`` of the rows from a place on the left to one on the right.

            From the largest of them, and from the border.
            """
            low = tails.gather(-1, start.expand(2, -1, -1))
            high = heads.gather(-1, end.expand(2, -1, -1))
            top = reach.gather(-1, end)
            if self.linear:
                out = (low[1] - gap * low[0] + high[1]) / (low[0] + high[0]) - top
            else:
                out = torch.log(low[1] * torch.exp(-(gap + top)) + high[1])
                out = out - torch.log(low[0] + high[0])
            return out, out + top

        v = _by_cost(self.base.view(-1, 2, size) - border[:, None], self.c) + self.level.view(
            -1, 2, size
        )
        v_left, v_right = v[:, 0].contiguous(), v[:, 1].contiguous()
        place = torch.arange(size, device=self.u.device)
        below = torch.searchsorted(v_right, v_left)
        joins = (below > 0) & (level(self.last[0::2], below)[1] < v_left)
        start = torch.where(joins, place, size).amin(-1, keepdim=True)
        above = torch.searchsorted(v_left, v_right, right=True)
        joins = (above < size) & (level(above, self.first[1::2])[1] > v_right)
        end = torch.where(joins, place + 1, 0).amax(-1, keepdim=True)

        place = torch.arange(2 * size, device=self.u.device)
        member = (place >= start) & (place < size + end)
        base = torch.cat([left[:, -1:], right], -1).gather(-1, end)
        self.base = torch.where(member, base, self.base.view(-1, 2 * size)).view(-1)
        new = level(start, end)[0]
        self.level = torch.where(member, new, self.level.view(-1, 2 * size)).view(-1)
        first = torch.cat([self.first[0::2], self.first[1::2] + size], -1)
        last = torch.cat([self.last[0::2], self.last[1::2] + size], -1)
        self.first = torch.where(member, start, first)
        self.last = torch.where(member, size + end, last)
        self._sum(left, right, gap, reach)

    def _sum(self, left: Tensor, right: Tensor, gap: Tensor, reach: Tensor) -> None:
        """The sums of the joined blocks: no term loses digits to another of the other sign."""
        heads, more = self.heads[:, 0::2], self.heads[:, 1::2, 1:]
        less, tails = self.tails[:, 0::2, :-1], self.tails[:, 1::2]
        if self.linear:
            ahead = _by_cost(right[:, :1] - left[:, :1], self.c)
            behind = _by_cost(right[:, -1:] - left[:, -1:], self.c)
            head = heads[1, :, -1:] + more[1] + ahead * more[0]
            tail = tails[1, :, :1] + less[1] - behind * less[0]
        else:
            behind = _by_cost(right[:, -1:] - left[:, -1:], self.c)
            head = heads[1, :, -1:] * torch.exp(-(gap + reach[:, 1:])) + more[1]
            tail = tails[1, :, :1] + less[1] * torch.exp(-behind)
        more = torch.stack([heads[0, :, -1:] + more[0], head])
        less = torch.stack([tails[0, :, :1] + less[0], tail])
        self.heads, self.tails = torch.cat([heads, more], -1), torch.cat([less, tails], -1)
