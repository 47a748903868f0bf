"""The kernels of `drago.rows.fused`."""

# Kernels take pointers and numbers, which have no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


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
def predict(
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
def sums(
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
