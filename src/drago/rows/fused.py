"""Passes over a dense matrix on a CUDA device, for models with one output.

A pass takes as long as it takes to read the matrix ``X``. So each pass reads it once, and rows that
carry no weight are not read at all. Entries are converted in registers: whatever the type of ``X``,
all arithmetic and all other arrays are float64.

Rows are dealt out to blocks in groups of neighbours, see `Rows`. Sums are taken in an order that
depends on the shapes and on the device alone. No value is looked at from the host, so all passes
can be recorded in a CUDA graph, after a first call that compiles them; which block is meant is read
on the device.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from drago.rows import fused_kernels as kernels

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
    `spread`, each thread has the losses of other rows to compute.
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
        kernels.predict[(_programs(tiling, rows, X),)](
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
        kernels.sums[(programs, panels)](
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
