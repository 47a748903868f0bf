"""The threshold search of `drago.oracles.search` on CUDA devices, in one launch.

All programs of a launch are on the device at the same time and meet after each pass: a pass leaves
the sums of each program in memory, and after the meeting every program adds all of them in the same
order and takes the same decision. So there is one launch, it stops as soon as the threshold is
found, no value is seen by the host, and equal input gives equal bits.
"""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drago.oracles.search import ball, kernel
from drago.oracles.search.parts import (
    count_wrong,
    load,
    meet,
)
from drago.terms.divergences import TINY

VERTEX, CHI2, KL, BALL, KL_BALL = 0, 1, 2, 3, 4
# The tile of a program: rows in the registers of a thread by rows in a row of threads. Two programs
# on a multiprocessor hide each other's waiting; the limit on registers makes room for both.
_DEPTH, _LANES, _WARPS, _RESIDENT, _REGISTERS = 4, 512, 8, 2, 128
# Of a KL ball, whose sums need more registers by row.
_BALL_DEPTH = 2
# The sample that the search starts from: for few programs and for many, and its table of trials.
_FEW, _MANY, _TABLE = 128, 1024, 4096
# After so many passes, which nothing but rounding can take, the best threshold so far is taken.
_PASSES = 300
# What a sum of weights may differ from 1 by: its own rounding.
_CLOSE = 4e-15
# In a bracket of so many units of ``c`` the sum of the weights is a flight of steps, at the rows.
_STEEP = 1e4
_LOWEST = -(2**63)


@triton.jit
def _top(
    u_ptr,
    p_ptr,
    q_ptr,
    c_ptr,
    sums_ptr,
    counter_ptr,
    n,
    price: tl.float64,
    VERTEX: tl.constexpr,
    UNIFORM: tl.constexpr,
    PRICED: tl.constexpr,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Without a cap: ``q ~ p exp(u / c)``, and for ``c = 0`` what is tied at the top."""
    own = tl.program_id(0)
    programs = tl.num_programs(0)
    zero = tl.zeros((), tl.float64)
    c = zero + price
    if PRICED:
        c = tl.load(c_ptr)
    inverse = 1.0 / tl.where(c < 1e-300, zero + 1e-300, c)
    tile = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tiles = (n + DEPTH * LANES - 1) // (DEPTH * LANES)
    mine = (tiles - own + programs - 1) // programs
    lane = tl.arange(0, PROGRAMS)
    there = lane < programs

    wrong = tl.zeros((LANES,), tl.float64)
    highest = wrong - float("inf")
    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        wrong += tl.sum(count_wrong(u, p, at, n, UNIFORM), axis=0)
        highest = tl.maximum(highest, tl.max(u, axis=0))
    tl.store(sums_ptr + own, tl.sum(wrong))
    tl.store(sums_ptr + PROGRAMS + own, tl.max(highest))
    meet(counter_ptr, programs)
    finite = tl.sum(tl.load(sums_ptr + lane, mask=there, other=0.0)) == 0.0
    top = tl.max(tl.load(sums_ptr + PROGRAMS + lane, mask=there, other=float("-inf")))

    share = tl.zeros((LANES,), tl.float64)
    for step in range(0, mine):
        at = (own + (mine - 1 - step) * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        if VERTEX:
            lifted = tl.where(u == top, 1.0 + zero, zero)
        else:
            lifted = tl.exp((u - top) * inverse)
        if not UNIFORM:
            lifted = p * lifted
        share += tl.sum(lifted, axis=0)
    tl.store(sums_ptr + 2 * PROGRAMS + own, tl.sum(share))
    meet(counter_ptr, 2 * programs)
    total = tl.sum(tl.load(sums_ptr + 2 * PROGRAMS + lane, mask=there, other=0.0))
    total = tl.where(finite, 1.0 / total, float("nan"))

    for step in range(0, mine):
        at = (own + step * programs) * (DEPTH * LANES) + tile
        u, p = load(u_ptr, p_ptr, at, n, UNIFORM)
        if VERTEX:
            lifted = tl.where(u == top, 1.0 + zero, zero)
        else:
            lifted = tl.exp((u - top) * inverse)
        if not UNIFORM:
            lifted = p * lifted
        # NaN, where it is, also for rows at 0.
        tl.store(q_ptr + at, tl.where(lifted > 0.0, lifted, 0.0) * total, mask=at < n)


def _most_programs(device: torch.device) -> int:
    """As many as can be on the device at the same time."""
    if device.type != "cuda":  # the interpreter runs one after another
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count * _RESIDENT


def _room(size: int, device: torch.device) -> Tensor:
    """Numbers that the programs of a launch share; their counter starts at 0."""
    return torch.zeros(size, dtype=torch.float64, device=device)


def _arguments(u: Tensor, p: Tensor | None, c: float | Tensor, q: Tensor) -> dict[str, Any]:
    priced = isinstance(c, Tensor)
    return {
        "u_ptr": u,
        "p_ptr": u if p is None else p,
        "q_ptr": q,
        "c_ptr": c if priced else u,
        "price": 1.0 if priced else float(c),
        "n": u.shape[0],
        "UNIFORM": p is None,
        "PRICED": priced,
        "DEPTH": _DEPTH,
        "LANES": _LANES,
        "num_warps": _WARPS,
        "maxnreg": _REGISTERS,
        "launch_cooperative_grid": True,
    }


def search(
    kind: int,
    u: Tensor,
    p: Tensor | None,
    c: float | Tensor,
    bound: float,
    q: Tensor,
    memory: Tensor | None,
) -> None:
    """Write the weights into `q`; see `drago.oracles.search.weights`."""
    with torch.cuda.device_of(u) if u.is_cuda else contextlib.nullcontext():
        _launch(kind, u, p, c, bound, q, memory)


def _launch(
    kind: int,
    u: Tensor,
    p: Tensor | None,
    c: float | Tensor,
    bound: float,
    q: Tensor,
    memory: Tensor | None,
) -> None:
    most = _most_programs(u.device)
    programs = min(most, triton.cdiv(u.shape[0], _DEPTH * _LANES))
    padded = max(2, triton.next_power_of_2(most))
    sample = _MANY if programs >= 32 else _FEW
    room = _room(21 * padded + 2 * sample + 1, u.device)
    settings = _arguments(u, p, c, q)
    if math.isinf(bound) and kind in (VERTEX, KL):
        _top[(programs,)](
            sums_ptr=room,
            counter_ptr=room[-1:].view(torch.int32),
            VERTEX=kind == VERTEX,
            PROGRAMS=padded,
            **settings,
        )
        return
    free = kind in (BALL, KL_BALL) and not isinstance(c, Tensor) and c < TINY
    if kind == KL_BALL:
        ball.kl_ball[(programs,)](
            memory_ptr=u if memory is None else memory,
            sums_ptr=room,
            counter_ptr=room[-1:].view(torch.int32),
            radius=bound,
            REMEMBERS=memory is not None,
            FREE=free,
            PROGRAMS=padded,
            PASSES=_PASSES,
            **(settings | {"DEPTH": _BALL_DEPTH}),
        )
        return
    kernel.search[(programs,)](
        memory_ptr=u if memory is None else memory,
        sums_ptr=room,
        sample_ptr=room[21 * padded :],
        counter_ptr=room[-1:].view(torch.int32),
        cap=bound,
        KIND=kind,
        REMEMBERS=memory is not None,
        FREE=free,
        PROGRAMS=padded,
        SAMPLE=sample,
        AT_ONCE=_TABLE // sample,
        PASSES=_PASSES,
        CLOSE=_CLOSE,
        STEEP=_STEEP,
        LOWEST=_LOWEST,
        FUSED=u.is_cuda,
        **settings,
    )
