"""Passes over a dense matrix on a CUDA device, for models with one output.

A pass takes as long as it takes to read the matrix ``X``. So each pass reads it once, and rows that
carry no weight are not read at all. Entries are converted in registers: whatever the type of ``X``,
all arithmetic and all other arrays are float64.

Rows are dealt out to blocks in groups of neighbours, see `Rows`. Sums are taken in an order that
depends on the shapes and on the device alone. No value is looked at from the host, so all passes
can be recorded in a CUDA graph, after a first call that compiles them; which block is meant is read
on the device.
"""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

SQUARED, HUBER, LOGISTIC = 0, 1, 2
# The most columns of a row that a program holds in registers.
_WIDEST = 512


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the rows of a block are.

    Group g, the rows ``g * group`` to ``(g + 1) * group``, belongs to block ``g % n_blocks``. Row l
    of block k, counted within the block, is row ``(k + l // group * n_blocks) * group + l % group``
    of the matrix and of vectors of all rows.

    Parameters
    ----------
    starts : tensor of int64 (n_blocks + 1,)
        The number of rows of the blocks before each block, and of all.
    n_blocks, group : int
        How many blocks there are, and how many neighbours stay together.
    largest : int
        The number of rows of the largest block, less than 2^30.
    """

    starts: Tensor
    n_blocks: int
    group: int
    largest: int

    @classmethod
    def deal(
        cls, n: int, n_blocks: int = 1, group: int = 1, device: torch.device | str | None = None
    ) -> Rows:
        """`n` rows, dealt out to blocks; a single one by default."""
        groups = -(-n // group)
        sizes = [len(range(k, groups, n_blocks)) * group for k in range(n_blocks)]
        sizes[(groups - 1) % n_blocks] -= groups * group - n
        starts = torch.tensor([0, *sizes], dtype=torch.int64).cumsum(0)
        return cls(starts.to(device), n_blocks, group, max(sizes))


def evaluate(
    X: Tensor,
    y: Tensor,
    w: Tensor,
    b: Tensor,
    rows: Rows,
    block: Tensor,
    losses: Tensor,
    slopes: Tensor,
    raw: Tensor | None = None,
    *,
    code: int,
    parameter: float = 0.0,
) -> None:
    """Losses of the rows of a block, and their derivatives in the raw prediction.

    Parameters
    ----------
    X : tensor of float32 or float64 (n, d)
        The matrix, row after row.
    y : tensor (n,)
        Targets; 0 or 1 for the logistic loss.
    w, b : tensor (d,), tensor (1,)
        The coefficients and the intercept.
    rows : Rows
        Where the rows of a block are.
    block : tensor of int64 (1,)
        Which block.
    losses, slopes, raw : tensor (rows.largest,)
        Filled with the losses, the derivatives and, if given, the raw predictions, in the order of
        the block. Entries beyond its last row are left alone.
    code, parameter : int, float
        The loss, and the threshold of the Huber loss.
    """
    _predict(X, y, w, b, None, None, rows, block, losses, slopes, raw, code, parameter, 0.0)


def visit(
    X: Tensor,
    y: Tensor,
    w: Tensor,
    b: Tensor,
    q: Tensor,
    minus: Tensor | None,
    rows: Rows,
    block: Tensor,
    out: Tensor | None = None,
    *,
    code: int,
    parameter: float = 0.0,
    negligible: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the gradients of a block, less what is known of it.

    Row l counts ``c_l = q_l s_l - minus_l`` times, ``s_l`` the derivative of its loss. If ``q_l``
    is at most `negligible` and ``minus_l`` is 0, it does not count and is not read.

    Parameters
    ----------
    X, y, w, b, rows, block, code, parameter
        As in `evaluate`.
    q, minus : tensor (n,)
        Of all rows. Without `minus`, nothing is subtracted.
    out : tensor (d + 1,), optional
        Filled with the two sums.
    negligible : float
        The largest weight that is taken for 0.

    Returns
    -------
    grad, total : tensor (d,), tensor (1,)
        The sums of ``x_l c_l`` and of ``c_l``, one after the other in `out`.
    """
    if int(X.shape[1]) > _WIDEST:
        c = q.new_empty(rows.largest)
        _predict(X, y, w, b, q, minus, rows, block, None, c, None, code, parameter, negligible)
        return accumulate(X, c, rows, block, out)
    return _sums(X, y, w, b, q, minus, rows, block, out, code, parameter, negligible)


def accumulate(
    X: Tensor, c: Tensor, rows: Rows, block: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sums of ``x_l c_l`` and of ``c_l`` over a block, see `visit`.

    `c` is in the order of the block. Rows where it is 0 are not read.
    """
    return _sums(X, None, None, None, c, None, rows, block, out, SQUARED, 0.0, 0.0)


# ------------------------------------------------------------------------------------ launches


class _Tiling(NamedTuple):
    """How a pass is cut up.

    A tile has `chunks` x `columns` columns of `rows` rows. The neighbouring columns of a chunk go
    to neighbouring threads, so a thread holds columns of all chunks, and the threads of a program
    cover `ways` rows at a time. There are `programs` of `warps` warps to each multiprocessor, with
    `stages` tiles under way in each. Of `segment` rows at a time, those that count are listed. With
    `spread`, each thread has the losses of other rows to compute. A thread has as many `registers`
    as it likes, or these.
    """

    rows: int
    chunks: int
    columns: int
    ways: int
    warps: int
    stages: int
    programs: int
    segment: int = 1024
    spread: bool = False
    registers: int | None = None


def _tiling(kind: str, d: int, dtype: torch.dtype, code: int) -> _Tiling:
    """The tiling of a pass: ``"evaluate"``, ``"visit"`` or ``"accumulate"``."""
    vector = 4 if dtype == torch.float32 else 2
    width = min(triton.next_power_of_2(d), _WIDEST)
    # Eight threads to a row read whole sectors; more if one had to hold more than 16 columns.
    columns = max(min(width, 8 * vector), width * vector // 16)
    chunks = width // columns
    warps = 8 if width == _WIDEST else 4
    ways = 32 * warps // max(columns // vector, 1)
    if kind == "evaluate":
        spread = code == LOGISTIC
        return _Tiling(4 * ways, chunks, columns, ways, warps, 1, 5, spread=spread)
    # What is under way waits in shared memory, about 64 KiB at most.
    single = dtype == torch.float32
    if kind == "visit":
        stages = 4 if single and width < _WIDEST else 3
        return _Tiling(ways, chunks, columns, ways, warps, stages, 3)
    return _Tiling(2 * ways if single else ways, chunks, columns, ways, warps, 3, 3)


def _programs(tiling: _Tiling, rows: Rows, X: Tensor) -> int:
    units = 2
    if X.is_cuda:
        units = torch.cuda.get_device_properties(X.device).multi_processor_count
    return min(units * tiling.programs, -(-rows.largest // tiling.rows))


def _constants(tiling: _Tiling, rows: Rows, d: int, code: int) -> dict[str, Any]:
    """What kernels are compiled for."""
    return {
        "CODE": code,
        "WHOLE": rows.n_blocks == 1,
        "GROUP": rows.group if rows.n_blocks > 1 else 1,
        "D": d,
        "CHUNKS": tiling.chunks,
        "COLUMNS": tiling.columns,
        "ROWS": tiling.rows,
        "STAGES": tiling.stages,
        "num_warps": tiling.warps,
        "maxnreg": tiling.registers,
    }


def _bits(value: float) -> int:
    """A float64 as an integer: a float would reach a kernel as a float32."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


def _check(X: Tensor, *vectors: Tensor | None) -> None:
    assert X.is_contiguous() and X.dtype in (torch.float32, torch.float64)
    for v in vectors:
        assert v is None or (v.is_contiguous() and v.dtype == torch.float64)


def _predict(
    X: Tensor,
    y: Tensor,
    w: Tensor,
    b: Tensor,
    q: Tensor | None,
    minus: Tensor | None,
    rows: Rows,
    block: Tensor,
    losses: Tensor | None,
    slopes: Tensor,
    raw: Tensor | None,
    code: int,
    parameter: float,
    negligible: float,
) -> None:
    """Fill `losses`, `slopes` and `raw`; with `q`, only `slopes`, with the factors of the rows."""
    _check(X, y, w, b, q, minus, losses, slopes, raw)
    d = int(X.shape[1])
    tiling = _tiling("evaluate", d, X.dtype, code)
    data = (X, y, w, b, q, minus, rows.starts, block, rows.largest, rows.n_blocks)
    numbers = (_bits(parameter), _bits(negligible))
    with torch.cuda.device_of(X):
        _predict_kernel[(_programs(tiling, rows, X),)](
            *data,
            losses,
            slopes,
            raw,
            *numbers,
            SPREAD=tiling.spread,
            **_constants(tiling, rows, d, code),
        )


def _sums(
    X: Tensor,
    y: Tensor | None,
    w: Tensor | None,
    b: Tensor | None,
    q: Tensor,
    minus: Tensor | None,
    rows: Rows,
    block: Tensor,
    out: Tensor | None,
    code: int,
    parameter: float,
    negligible: float,
) -> tuple[Tensor, Tensor]:
    """The sums of `visit`; without `y`, those of `accumulate` with `q` for the factors."""
    _check(X, y, w, b, q, minus, out)
    d = int(X.shape[1])
    tiling = _tiling("accumulate" if y is None else "visit", d, X.dtype, code)
    programs, panels = _programs(tiling, rows, X), -(-d // (tiling.chunks * tiling.columns))
    partial = q.new_empty((programs, d + 1))
    segment = max(tiling.segment, tiling.rows)
    lists = torch.empty((panels, programs, segment), dtype=torch.int32, device=X.device)
    data = (X, y, w, b, q, minus, rows.starts, block, rows.largest, rows.n_blocks)
    numbers = (_bits(parameter), _bits(negligible))
    with torch.cuda.device_of(X):
        _sums_kernel[(programs, panels)](
            *data,
            lists,
            partial,
            *numbers,
            WAYS=min(tiling.ways, tiling.rows),
            SEGMENT=segment,
            **_constants(tiling, rows, d, code),
        )
    if out is None:
        out = partial.sum(0)
    else:
        torch.sum(partial, 0, out=out)
    return out[:d], out[d:]


# ------------------------------------------------------------------------------------- kernels


@triton.jit
def _float64(bits):
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _slope_and_loss(z, y, parameter, CODE: tl.constexpr):
    """The derivative and the value of a loss, as in `drago.kernels.losses`."""
    if CODE == 2:  # logistic
        m = tl.where(y > 0.5, z, -z)
        e = tl.exp(-tl.abs(m))
        u = 1.0 + e
        s = 1.0 / u
        # log(1 + e) with the digits of e that the sum has lost.
        loss = tl.log(u) + (e - (u - 1.0)) * s + tl.where(m > 0, 0.0, -m)
        s = tl.where(m > 0, e * s, s)
        slope = tl.where(y > 0.5, -s, s)
    else:
        slope = z - y
        loss = 0.5 * slope * slope
        if CODE == 1:  # Huber
            size = tl.abs(slope)
            loss = tl.where(size > parameter, parameter * (size - 0.5 * parameter), loss)
            end = tl.where(slope > 0, parameter, -parameter)
            slope = tl.where(size > parameter, end, slope)
    return slope, loss


@triton.jit
def _row(local, k, n_blocks, GROUP: tl.constexpr, WHOLE: tl.constexpr):
    """The row of the matrix."""
    if WHOLE:
        row = local.to(tl.int64)
    else:
        row = (k + (local // GROUP).to(tl.int64) * n_blocks) * GROUP + local % GROUP
    return row


@triton.jit
def _coefficients(w, panel, D: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr):
    """Those of a panel of columns (1, CHUNKS, COLUMNS).

    They are loaded by the chunk: so few that all threads load what they need themselves. Loaded at
    once, each by one thread, they would impose that order on the tiles.
    """
    chunk = tl.arange(0, CHUNKS)[None, :, None]
    coef = tl.zeros((1, CHUNKS, COLUMNS), tl.float64)
    for i in tl.static_range(CHUNKS):
        columns = panel + i * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
        coef = tl.where(chunk == i, tl.load(w + columns, mask=columns < D, other=0.0), coef)
    return coef


@triton.jit
def _extent(starts, block, largest, WHOLE: tl.constexpr):
    """The number of a block and its size."""
    if WHOLE:
        k = tl.zeros((), tl.int64)
        size = largest
    else:
        k = tl.load(block)
        size = (tl.load(starts + k + 1) - tl.load(starts + k)).to(tl.int32)
    return k, size


@triton.jit(do_not_specialize=["largest", "n_blocks", "parameter", "negligible"])
def _predict_kernel(
    X,
    y,
    w,
    b,
    q,
    minus,
    starts,
    block,
    largest,
    n_blocks,
    losses,
    slopes,
    raw,
    parameter,
    negligible,
    CODE: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    SPREAD: tl.constexpr,
):
    WIDTH: tl.constexpr = CHUNKS * COLUMNS
    parameter, negligible = _float64(parameter), _float64(negligible)
    k, size = _extent(starts, block, largest, WHOLE)
    intercept = tl.load(b)
    chunk = tl.arange(0, CHUNKS)[None, :, None] * COLUMNS
    columns = chunk + tl.arange(0, COLUMNS)[None, None, :]
    coef = _coefficients(w, 0, D, CHUNKS, COLUMNS)
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, size, step, num_stages=STAGES):
        local = first + tl.arange(0, ROWS)
        inside = local < size
        row = _row(local, k, n_blocks, GROUP, WHOLE)
        wanted = inside
        if q is not None:
            weight = tl.load(q + row, mask=inside, other=0.0)
            wanted = inside & (weight > negligible)
            if minus is not None:
                less = tl.load(minus + row, mask=inside, other=0.0)
                wanted = wanted | (less != 0.0)
        target = tl.load(y + row, mask=wanted, other=0.0)
        at = X + row[:, None, None] * D + columns
        x = tl.load(at, mask=wanted[:, None, None] & (columns < D), other=0.0).to(tl.float64)
        z = tl.sum(tl.sum(x * coef, axis=1), axis=1)
        for panel in tl.static_range(WIDTH, D, WIDTH):
            mask = columns < D - panel
            part = _coefficients(w, panel, D, CHUNKS, COLUMNS)
            x = tl.load(at + panel, mask=wanted[:, None, None] & mask, other=0.0).to(tl.float64)
            z += tl.sum(tl.sum(x * part, axis=1), axis=1)
        z += intercept
        if SPREAD:
            # All threads of a row know its prediction. By way of memory, each gets other rows.
            tl.store(slopes + local, z, mask=inside)
            tl.debug_barrier()
            z = tl.load(slopes + local, mask=inside, other=0.0)
            tl.debug_barrier()
        slope, loss = _slope_and_loss(z, target, parameter, CODE)
        if q is not None:
            c = weight * slope
            if minus is not None:
                c -= less
            tl.store(slopes + local, tl.where(wanted, c, 0.0), mask=inside)
        else:
            tl.store(losses + local, loss, mask=inside)
            tl.store(slopes + local, slope, mask=inside)
            if raw is not None:
                tl.store(raw + local, z, mask=inside)


@triton.jit(do_not_specialize=["largest", "n_blocks", "parameter", "negligible"])
def _sums_kernel(
    X,
    y,
    w,
    b,
    q,
    minus,
    starts,
    block,
    largest,
    n_blocks,
    lists,
    partial,
    parameter,
    negligible,
    CODE: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WAYS: tl.constexpr,
    SEGMENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    parameter, negligible = _float64(parameter), _float64(negligible)
    k, size = _extent(starts, block, largest, WHOLE)
    program, programs, panel = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    chunk = tl.arange(0, CHUNKS)[None, :, None] * COLUMNS
    columns = panel * (CHUNKS * COLUMNS) + chunk + tl.arange(0, COLUMNS)[None, None, :]
    if y is not None:
        coef = _coefficients(w, 0, D, CHUNKS, COLUMNS)
        intercept = tl.load(b)
    lists += (panel * programs + program) * SEGMENT
    grad = tl.zeros((WAYS, CHUNKS, COLUMNS), tl.float64)
    total = tl.zeros((WAYS,), tl.float64)

    # All programs take equally many rows in each round.
    rounds = tl.cdiv(tl.maximum(size, 1), programs * SEGMENT)
    share = tl.cdiv(tl.maximum(size, 1), programs * rounds * ROWS) * ROWS
    for first in range(program * share, size, programs * share):
        local = first + tl.arange(0, SEGMENT)
        inside = (local < first + share) & (local < size)
        if y is not None:
            row = _row(local, k, n_blocks, GROUP, WHOLE)
            wanted = inside & (tl.load(q + row, mask=inside, other=0.0) > negligible)
            if minus is not None:
                wanted = wanted | (tl.load(minus + row, mask=inside, other=0.0) != 0.0)
        else:
            wanted = tl.load(q + local, mask=inside, other=0.0) != 0.0
        # The rows that are wanted are listed, so that tiles are full of them.
        ranks = tl.cumsum(wanted.to(tl.int32), 0)
        count = tl.sum(wanted.to(tl.int32), 0)
        tl.debug_barrier()
        tl.store(lists + ranks - 1, local, mask=wanted)
        tl.debug_barrier()
        for done in tl.range(0, count, ROWS, num_stages=STAGES):
            entry = done + tl.arange(0, ROWS)
            listed = entry < count
            own = tl.load(lists + entry, mask=listed, other=0)
            its = _row(own, k, n_blocks, GROUP, WHOLE)
            at = X + its[:, None, None] * D + columns
            x = tl.load(at, mask=listed[:, None, None] & (columns < D), other=0.0).to(tl.float64)
            if y is None:
                c = tl.load(q + own, mask=listed, other=0.0)
            else:
                c = tl.load(q + its, mask=listed, other=0.0)
                target = tl.load(y + its, mask=listed, other=0.0)
                z = tl.sum(tl.sum(x * coef, axis=1), axis=1) + intercept
                slope, _ = _slope_and_loss(z, target, parameter, CODE)
                c *= slope
                if minus is not None:
                    c -= tl.load(minus + its, mask=listed, other=0.0)
            # Rows that fall to the same thread are added, the others wait for the end.
            parts = tl.reshape(x * c[:, None, None], (ROWS // WAYS, WAYS, CHUNKS, COLUMNS))
            grad += tl.sum(parts, axis=0)
            total += tl.sum(tl.reshape(c, (ROWS // WAYS, WAYS)), axis=0)

    sums = tl.sum(grad, axis=0)[None, :, :]
    partial += program * (D + 1)
    tl.store(partial + columns, sums, mask=columns < D)
    if panel == 0:
        tl.store(partial + D, tl.sum(total, 0))
