"""The dual oracles that a threshold decides: capped simplices and divergence balls.

Solved here: ``argmax_q <u, q> - c Omega(q)`` for tensors, on any device, without a look at a value:
the number of steps depends on the number of rows alone. Rows of weight 0 carry the smallest loss
(see `drago.oracles.tensors`), where they change nothing.

Which rows lie at a bound is found by trying the losses of rows as the threshold: all of them at
once where they are few, otherwise by a search in their order. Each trial is a sum of nonnegative
terms that are measured from the tried row, so it keeps its digits at any scale of the losses and of
``c``. The sort leaves log2(n) passes at most: a search without it could not stop early, which takes
a look, and would need a pass for each of the 64 bits of the threshold.

Many rows go to `drago.oracles.search` where that can look: on processors, where a look costs
nothing, and inside a kernel on CUDA devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from drago.oracles import search
from drago.terms.divergences import TINY

# The most rows that are tried at once, where not all are; and up to how many entries a table of
# trials costs about as much as a single one, on processors and on other devices.
_MOST_WAYS = 1023
_ENTRIES, _MANY_ENTRIES = 1 << 15, 1 << 20
# KL balls: the radius below which divergences are summed from the mean, the largest exponent there,
# the bits of the search's bracket that are settled before Newton's method, and its steps.
_TINY, _NEAR, _BITS, _NEWTON = 1e-2, 30.0, 20.0, 5


def is_zero(c: float | Tensor) -> bool:
    """Whether the cost is known to be 0; the value of a tensor is not read."""
    return not isinstance(c, Tensor) and c < TINY


def entries(device: torch.device) -> int:
    """How many numbers an operation may work on before their number is what it costs."""
    return _ENTRIES if device.type == "cpu" else _MANY_ENTRIES


def _ways(u: Tensor) -> int:
    return max(1, min(_MOST_WAYS, entries(u.device) // int(u.shape[0])))


def _boundary(u: Tensor, test: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The largest entry of `u` for which `test` is false, and the smallest for which it is true.

    `test` takes a column of entries and is true from some value on. Where there is no such entry,
    minus or plus infinity.
    """
    n = int(u.shape[0])
    if n * n <= entries(u.device):
        true = test(u[:, None])
        return torch.where(true, -math.inf, u).amax(), torch.where(true, u, math.inf).amin()
    ordered = u.sort().values
    ways = _ways(u)
    shares = torch.arange(1, ways + 1, device=u.device)
    low, high = shares[:1] * 0, shares[:1] * 0 + n
    left = n
    while left > 0:
        places = low + (high - low) * shares // (ways + 1)
        tried = ordered.gather(0, places.clamp(max=n - 1))
        count = (~test(tried[:, None])).sum(0, keepdim=True)
        edges = torch.cat([low - 1, places, high])
        low = torch.minimum(edges.gather(0, count) + 1, high)
        high = torch.maximum(edges.gather(0, count + 1), low)
        left //= ways + 1
    before = torch.where(low > 0, ordered.gather(0, (low - 1).clamp(min=0)), -math.inf)
    after = torch.where(low < n, ordered.gather(0, low.clamp(max=n - 1)), math.inf)
    return before, after


def _searched(kind: int, u: Tensor, p: Tensor, c: float | Tensor, bound: float) -> Tensor | None:
    """The weights by a search without a sort, where there is one."""
    if not (search.searches(kind, bound, u.device) and search.takes(u, p, c)):
        return None
    return search.weights(kind, u, p, c, bound)


def _over(value: Tensor, total: Tensor) -> Tensor:
    """``value / total``, and 0 where there is nothing to divide by."""
    return torch.where(total > 0, value / torch.where(total > 0, total, 1.0), 0.0)


# ----------------------------------------------------------------------------- capped simplices


def capped_vertex(u: Tensor, p: Tensor, cap: float) -> Tensor:
    """``c = 0``: the cap is filled from the largest loss down; ties share in proportion to p."""
    if cap <= 1.0:
        return p
    q = _searched(search.VERTEX, u, p, 0.0, cap)
    if q is not None:
        return q
    threshold = u.amax()
    if cap < math.inf:

        def too_few(value: Tensor) -> Tensor:
            return (p * (u >= value)).sum(-1) < 1.0 / cap

        threshold = torch.maximum(_boundary(u, too_few)[0], u.amin())
    above, tied = (p * (u > threshold)).sum(), (p * (u == threshold)).sum()
    full = (1.0 / above).clamp(max=cap)
    rest = torch.where(above > 0, (1.0 - full * above).clamp(min=0.0), 1.0)
    ratio = torch.where(u == threshold, _over(rest, tied), 0.0)
    return p * torch.where(u > threshold, full, ratio)


def capped_chi2(u: Tensor, p: Tensor, c: float | Tensor, cap: float) -> Tensor:
    """``q_i = p_i clip((u_i - tau) / c, 0, cap)``.

    A row gets nothing if the weights with ``tau`` at its loss sum to 1 or more, and the cap if
    those with ``tau`` at ``c cap`` below its loss sum to 1 or less. The others share what is left,
    around their own mean.
    """
    if cap <= 1.0:
        return p
    q = _searched(search.CHI2, u, p, c, cap)
    if q is not None:
        return q

    def weighs(value: Tensor) -> Tensor:
        return (p * ((u - value) / c).clamp(0.0, cap)).sum(-1) < 1.0

    free = u > _boundary(u, weighs)[0]
    full = torch.zeros_like(free)
    if cap < math.inf:

        def is_full(value: Tensor) -> Tensor:
            return (p * ((u - value) / c + cap).clamp(0.0, cap)).sum(-1) <= 1.0

        full = u >= _boundary(u, is_full)[1]
        free = free & ~full
    rest = 1.0 - torch.where(full, p * cap, 0.0).sum()
    share = p * free
    mass = share.sum()
    ratio = (_deviations(u, share, mass) / c + _over(rest, mass)).clamp(0.0, cap)
    return p * torch.where(full, cap, torch.where(free, ratio, 0.0))


def _deviations(u: Tensor, share: Tensor, mass: Tensor) -> Tensor:
    """``u`` from its mean under `share`, whose sum is `mass`; exact next to the mean.

    The first mean has the rounding of the largest loss with a share. It is only a place to measure
    from: from there on, differences between rows that are close to each other are exact.
    """
    top = torch.where(share > 0, u, u.amin()).amax()
    centre = top + _over((share * (u - top)).sum(), mass)
    apart = u - centre
    for _ in range(2):
        apart = apart - _over((share * apart).sum(), mass)
    return apart


def capped_kl(u: Tensor, p: Tensor, c: float | Tensor, cap: float) -> Tensor:
    """``q_i = p_i min(exp((u_i - tau) / c), cap)``.

    A row has the cap if the weights that give it the cap sum to 1 or less; the others share what is
    left in proportion to ``p exp(u / c)``.
    """
    if cap <= 1.0:
        return p
    q = _searched(search.KL, u, p, c, cap)
    if q is not None:
        return q
    if cap == math.inf:
        lifted = p * torch.exp((u - u.amax()) / c)
        return lifted / lifted.sum()

    def is_full(value: Tensor) -> Tensor:
        return cap * (p * torch.exp(((u - value) / c).clamp(max=0.0))).sum(-1) <= 1.0

    full = u >= _boundary(u, is_full)[1]
    rest = (1.0 - cap * (p * full).sum()).clamp(min=0.0)
    largest = torch.where(full, u.amin(), u).amax()
    lifted = torch.where(full, 0.0, p * torch.exp(((u - largest) / c).clamp(max=0.0)))
    return torch.minimum(torch.where(full, p * cap, _over(rest * lifted, lifted.sum())), p * cap)


# ------------------------------------------------------------------------------ divergence balls


def _spread(u: Tensor) -> Tensor:
    """The range of the losses, 1 where they are equal: squares of what is left are in range."""
    spread = u.amax() - u.amin()
    return torch.where(spread > 0, spread, 1.0)


def chi2_ball(u: Tensor, p: Tensor, c: float | Tensor, radius: float) -> Tensor:
    """``q_i = p_i max((u_i - tau) / (c + lambda), 0)``, ``lambda >= 0`` from the radius.

    On the boundary, rows above ``tau = m - y`` carry the weight, ``m`` their mean, ``V`` their
    variance and ``M`` their mass: ``y^2 = V / (2 radius M - (1 - M))``. A row gets nothing if this
    threshold of the rows above it is not below its own loss.
    """
    if radius == 0:
        return p
    q = _searched(search.BALL, u, p, c, radius)
    if q is not None:
        return q
    inside = capped_vertex(u, p, math.inf) if is_zero(c) else capped_chi2(u, p, c, math.inf)
    moved = torch.where(p > 0, _over(inside, p) - 1.0, 0.0)
    fits = (p * moved * moved).sum() <= 2.0 * radius * (1.0 + 1e-13)
    top, spread = u.amax(), _spread(u)

    def rows_above(value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Their weights; from their mean, the value and all rows; ``V`` and its divisor."""
        share = p * (u > value)
        mass = share.sum(-1, keepdim=True)
        centre = top + (share * (u - top)).sum(-1, keepdim=True) / mass
        apart = (u - centre) / spread
        more = (share * apart).sum(-1, keepdim=True) / mass
        apart = apart - more
        variance = (share * apart * apart).sum(-1, keepdim=True) / mass
        room = 2.0 * radius * mass - (p * (u <= value)).sum(-1, keepdim=True)
        return share, (value - centre) / spread - more, apart, variance, room

    def weighs(value: Tensor) -> Tensor:
        # Nothing lies above the largest row: it has no room, and weighs.
        _, below, _, variance, room = rows_above(value)
        return ~((room > 0) & (below * below * room >= variance))[:, 0]

    share, _, apart, variance, room = rows_above(_boundary(u, weighs)[0])
    cut = torch.sqrt(variance / room)
    # Without a cut the rows that take part are tied.
    lifted = share * torch.where(cut > 0, apart + cut, 1.0).clamp(min=0.0)
    return torch.where(fits, inside, lifted / lifted.sum())


def kl_ball(u: Tensor, p: Tensor, c: float | Tensor, radius: float) -> Tensor:
    """``q_i ~ p_i exp(theta u_i)``, ``theta = 1 / (c + lambda)`` from the radius.

    The divergence rises with ``theta``: a search on a logarithmic scale between bounds, then
    Newton's method.
    """
    if radius == 0:
        return p
    q = _searched(search.KL_BALL, u, p, c, radius)
    if q is not None:
        return q
    top, spread = u.amax(), _spread(u)
    x = (u - top) / spread
    apart = _deviations(u, p, p.sum()) / spread
    tied = p * (u == top)

    def spent(theta: Tensor) -> tuple[Tensor, Tensor]:
        """The divergence at each of a few ``theta``, and its derivative in ``log(theta)``."""
        lifted = p * torch.exp(theta[:, None] * x)
        total = lifted.sum(-1)
        mean = (lifted * x).sum(-1) / total
        slope = (lifted * (theta[:, None] * (x - mean[:, None])) ** 2).sum(-1) / total
        divergence = theta * mean - torch.log(total)
        if radius >= _TINY:
            return divergence, slope
        # From the mean, differences to 1 summed without the 1: tiny divergences keep their digits.
        exponent = theta[:, None] * apart
        grown = torch.expm1(exponent.clamp(max=_NEAR))
        extra = (p * (grown - exponent)).sum(-1)
        close = theta * (p * grown * apart).sum(-1) / (1.0 + extra) - torch.log1p(extra)
        return torch.where(exponent.amax(-1) < _NEAR, close, divergence), slope

    # The divergence is at most theta^2 / 8, for the spread is 1; it is complete where the second
    # largest loss has vanished.
    gap = torch.where(x < 0, -x, 1.0).amin()
    most = torch.finfo(x.dtype).max * 1e-10
    high = (800.0 / gap).clamp(max=most).reshape(1)
    ceiling = high if is_zero(c) else (spread / c).clamp(max=most).reshape(1)
    fits = -torch.log(tied.sum()) <= radius if is_zero(c) else spent(ceiling)[0] <= radius
    high = torch.minimum(high, ceiling)
    low = high.clamp(max=2.0 * math.sqrt(radius))
    ways = _ways(u)
    shares = torch.arange(1, ways + 1, device=u.device).to(u) / (ways + 1)
    for _ in range(math.ceil(_BITS / math.log2(ways + 1))):
        tried = low * (high / low) ** shares
        beyond = spent(tried)[0] > radius
        low = torch.where(beyond, low, tried).amax(0, keepdim=True)
        high = torch.where(beyond, tried, high).amin(0, keepdim=True)
    theta = low
    for _ in range(_NEWTON):
        divergence, slope = spent(theta)
        step = _over(divergence - radius, slope)
        theta = torch.minimum(torch.maximum(theta * (1.0 - step), low), high)
    if not is_zero(c):
        theta = torch.where(fits, ceiling, theta)
    lifted = p * torch.exp(theta * x)
    q = lifted / lifted.sum()
    return torch.where(fits, tied / tied.sum(), q) if is_zero(c) else q
