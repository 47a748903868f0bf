"""The pools of `drago.oracles.pools` on CUDA devices, joined in place by kernels in Triton.

The same pools and sums. But both ends of a new pool are found by a search instead of a look at each
row: which pools of the left take part is false up to some row and true from there on, on the right
it is the other way round, and the stretch to compare with is found by a search within. Of two
blocks that are joined, only rows of the new pool change what they know of it, the left ones their
sums to the end of the block and the right ones those from its start. The last block may have any
length, so nothing is filled up.

No value is seen by the host, and equal input gives equal bits.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
from torch import Tensor

from drago.oracles import pool_kernels as kernels

# Blocks of up to so many rows are joined by one program. It tries as many rows of a pair of blocks
# at the same time as its threads are many: the more, the fewer pairs are left. Three steps do.
_BLOCK, _STEPS = 1024, (8, 64, 1024)
# The rows that are tried at the same time in larger blocks, and in those of so many rows or more,
# of which there are few.
_WAYS, _MANY_WAYS, _LARGE = 128, 2048, 1 << 15
# The rows of a program that updates, and the pairs of one that settles.
_TILE, _PAIRS = 1024, 128
_WARPS, _BLOCK_WARPS, _MANY_WARPS = 4, 8, 16


def weights(
    u: Tensor,
    p: Tensor,
    sigma: Tensor,
    c: float | Tensor,
    order: Tensor,
    *,
    linear: bool,
    free: bool,
) -> Tensor:
    """The weights of rows in the order of their losses, back in the order before; all float64.

    Row k was row ``order[k]``. `linear` tells chi2 from KL, and with `free` the cost is 0.
    """
    with torch.cuda.device_of(u) if u.is_cuda else contextlib.nullcontext():
        return _launch(u, p, sigma, c, order, linear, free)


def _launch(
    u: Tensor,
    p: Tensor,
    sigma: Tensor,
    c: float | Tensor,
    order: Tensor,
    linear: bool,
    free: bool,
) -> Tensor:
    n = int(u.shape[0])
    u, p, sigma = u.contiguous(), p.contiguous(), sigma.contiguous()
    base, level, h0, h1, t0, t1 = u.new_empty((6, n))
    first, last = torch.empty((2, n), dtype=torch.int32, device=u.device)
    programs = triton.cdiv(n, _BLOCK)
    starts, ends = torch.empty((2, programs * _BLOCK // 2), dtype=torch.int32, device=u.device)
    levels = u.new_empty(programs * _BLOCK // 2)
    cost: dict[str, Any] = {
        "c_ptr": c.to(u).reshape(()) if isinstance(c, Tensor) else u,
        "n": n,
        "price": 1.0 if isinstance(c, Tensor) else float(c),
        "PRICED": isinstance(c, Tensor),
        "LINEAR": linear,
        "FREE": free,
    }
    pools = (base, level, first, last, h0, h1, t0, t1)
    k, ways = 0, 1
    for goal in _STEPS:
        finish = goal.bit_length() - 1
        kernels.blocks[(programs,)](
            u, p, sigma, *pools, starts, ends, levels,
            begin=k, finish=finish, BLOCK=_BLOCK, WAYS=ways, ALONE=k == 0,
            num_warps=_BLOCK_WARPS, **cost,
        )  # fmt: skip
        k, ways = finish, goal
    while 1 << k < n:
        size = 1 << k
        pairs = triton.cdiv(n - size, 2 * size)
        wide = size >= _LARGE
        kernels.find[(pairs, 2)](
            u, *pools, starts, ends, k=k, WAYS=_MANY_WAYS if wide else _WAYS,
            num_warps=_MANY_WARPS if wide else _WARPS, **cost,
        )  # fmt: skip
        kernels.settle[(triton.cdiv(pairs, _PAIRS),)](
            u, h0, h1, t0, t1, starts, ends, levels,
            k=k, pairs=pairs, TILE=_PAIRS, num_warps=_WARPS, **cost,
        )  # fmt: skip
        rows = min(n, pairs * 2 * size)
        kernels.update[(triton.cdiv(rows, _TILE),)](
            u, *pools, starts, ends, levels, k=k, TILE=_TILE, num_warps=_WARPS, **cost
        )
        k += 1
    q = torch.empty_like(u)
    kernels.write[(triton.cdiv(n, _TILE),)](
        u, p, order, base, level, q, TILE=_TILE, num_warps=_WARPS, **cost
    )
    return q
