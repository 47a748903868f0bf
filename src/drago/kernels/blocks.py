"""Visits to a block of the rows of a dense matrix, for losses with one output.

The places ``0, 1, ...`` of block ``k`` of ``count`` are rows of X, dealt out in groups (see
`drago.rows.tables.array_blocks`). What is done with a row is done while it lies in the cache: a few
rows at a time are multiplied by ``w``, their losses evaluated, and the rows summed with their
weights.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from drago.kernels import REDUCE, jit
from drago.kernels.losses import one_single_output

# Rows that are looked at together. How many entries ahead memory is asked for more, and how many
# rows where these are picked.
TOGETHER = 4096
AHEAD = 640
AHEAD_PICKED = 16


@intrinsic
def _prefetch(context, X, i):
    """Ask memory for the cache line of the entry `i` of X, counted from its start.

    It may lie beyond the end: nothing is read.
    """

    def generate(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        line = builder.bitcast(builder.gep(array.data, [args[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line.type, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To read, to be kept in all levels of the cache, data.
        builder.call(ask, [line, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(X, types.intp), generate


@jit(fastmath=REDUCE, forceinline=True, _nrt=False)
def _products(X, i, size, w, b, out):
    """``out = X w + b`` for up to four rows from the one at `i` on."""
    if size == 4:
        z0, z1, z2, z3 = b, b, b, b
        for j in range(X.shape[1]):
            v = w[j]
            z0 += X[i, j] * v
            z1 += X[i + 1, j] * v
            z2 += X[i + 2, j] * v
            z3 += X[i + 3, j] * v
        out[i], out[i + 1], out[i + 2], out[i + 3] = z0, z1, z2, z3
        return
    for r in range(i, i + size):
        z = b
        for j in range(X.shape[1]):
            z += X[r, j] * w[j]
        out[r] = z


@jit(fastmath=REDUCE, forceinline=True, _nrt=False)
def _sum(X, i, size, c, out):
    """``out += X' c`` for up to four rows."""
    if size == 4:
        c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
        for j in range(X.shape[1]):
            out[j] += c0 * X[i, j] + c1 * X[i + 1, j] + c2 * X[i + 2, j] + c3 * X[i + 3, j]
        return
    for r in range(i, i + size):
        for j in range(X.shape[1]):
            out[j] += c[r] * X[r, j]


@jit(forceinline=True, _nrt=False)
def _ask(X, first, size):
    """Ask memory for some rows."""
    for j in range(first * X.shape[1], (first + size) * X.shape[1], 8):
        _prefetch(X, j)


@jit(forceinline=True, _nrt=False)
def _ask_ahead(X, i, size, ahead, jump):
    """Ask for rows ahead of those at `i`; behind the last row the next ones lie a jump further."""
    i += ahead
    _ask(X, i if i < X.shape[0] else i + jump, size)


@jit(error_model="numpy", fastmath=REDUCE, _nrt=False)
def _evaluate(X, jump, w, b, code, parameter, y, losses, slopes):
    n, ahead = X.shape[0], max(4, AHEAD // X.shape[1])
    for i in range(0, n, 4):
        size = min(4, n - i)
        _ask_ahead(X, i, size, ahead, jump)
        _products(X, i, size, w, b, losses)
        for r in range(i, i + size):
            losses[r], slope = one_single_output(code, parameter, y[r], losses[r])
            if slopes.shape[0] > 0:
                slopes[r] = slope


@jit(error_model="numpy", fastmath=REDUCE, _nrt=False)
def _correct(X, jump, w, b, code, parameter, y, q, product, change, out):
    n, ahead = X.shape[0], max(4, AHEAD // X.shape[1])
    total = 0.0
    for i in range(0, n, 4):
        size = min(4, n - i)
        _ask_ahead(X, i, size, ahead, jump)
        _products(X, i, size, w, b, change)
        for r in range(i, i + size):
            slope = one_single_output(code, parameter, y[r], change[r])[1]
            change[r] = slope * q[r] - product[r]
            total += change[r]
        _sum(X, i, size, change, out)
    return total


@jit(error_model="numpy", fastmath=REDUCE, _nrt=False)
def _accumulate(X, jump, c, out):
    n, ahead = X.shape[0], max(4, AHEAD // X.shape[1])
    for i in range(0, n, 4):
        size = min(4, n - i)
        _ask_ahead(X, i, size, ahead, jump)
        _sum(X, i, size, c, out)


@jit(error_model="numpy", fastmath=REDUCE, _nrt=False)
def _correct_one(x, w, b, code, parameter, y, q, product, out):
    z = b
    for j in range(x.shape[0]):
        z += x[j] * w[j]
    change = q * one_single_output(code, parameter, y, z)[1] - product
    for j in range(x.shape[0]):
        out[j] += change * x[j]
    return change


@jit(error_model="numpy", fastmath=REDUCE, _nrt=False)
def _add_one(x, c, out):
    for j in range(x.shape[0]):
        out[j] += c * x[j]


@jit(error_model="numpy", forceinline=True, _nrt=False)
def _part(at, end, k, count, group):
    """Neighbouring rows from the place `at` on: the first, the end, and the jump after them."""
    inside = at % group
    row = (k + at // group * count) * group + inside
    size = min(group - inside, end - at)
    return row, row + size, (count - 1) * group if inside + size == group else 0


@jit(error_model="numpy", _nrt=False)
def _pick(at, end, k, count, group, c, d, picked):
    """The rows and places, of those from `at` to `end`, where `c` or `d` is not 0; how many."""
    size = 0
    while at < end:
        first, last, _ = _part(at, end, k, count, group)
        for row in range(first, last):
            picked[0, size], picked[1, size] = row, at
            size += (c[at] != 0.0) | (d[at] != 0.0)
            at += 1
    return size


@jit(error_model="numpy", _nrt=False)
def evaluate(X, k, count, group, lo, hi, w, b, code, parameter, y, losses, slopes):
    """Losses of the places `lo` to `hi`, and slopes if there is room for any."""
    at = lo
    while at < hi:
        first, last, jump = _part(at, hi, k, count, group)
        end = at + last - first
        _evaluate(
            X[first:last], jump, w, b, code, parameter, y[at:end], losses[at:end], slopes[at:end]
        )
        at = end


@jit(error_model="numpy", _nrt=False)
def correct(
    X, k, count, group, lo, hi, w, b, code, parameter, y, q, product, picked, change, out
):  # fmt: skip
    """``out = sum over the places of x (q s - product)``; returns the sum without x.

    Rows without `product` and weight add nothing: where they are most they are not read. There is
    room for `TOGETHER` rows in `picked` (2 x rows) and for a group in `change`.
    """
    out[:] = 0.0
    total = 0.0
    for start in range(lo, hi, TOGETHER):
        stop = min(start + TOGETHER, hi)
        size = _pick(start, stop, k, count, group, q, product, picked)
        if 2 * size > stop - start:
            at = start
            while at < stop:
                first, last, jump = _part(at, stop, k, count, group)
                end = at + last - first
                total += _correct(
                    X[first:last], jump, w, b, code, parameter,
                    y[at:end], q[at:end], product[at:end], change, out,
                )  # fmt: skip
                at = end
            continue
        for r in range(size):
            _ask(X, picked[0, min(r + AHEAD_PICKED, size - 1)], 1)
            at = picked[1, r]
            total += _correct_one(
                X[picked[0, r]], w, b, code, parameter, y[at], q[at], product[at], out
            )
    return total


@jit(error_model="numpy", _nrt=False)
def gradient(
    X, starts, group, lo, hi, w, b, code, parameter, y, q, least, none, picked, change, out
):  # fmt: skip
    """``out = sum of x q s`` over the groups `lo` to `hi` of all blocks, in the order of X.

    Block `k` begins at the place ``starts[k]``; `none` are zeros, as many as a group has rows. Rows
    with a weight up to the `least` are left out as above.
    """
    n, count = X.shape[0], starts.shape[0]
    out[:] = 0.0
    total = 0.0
    for start in range(lo, hi, TOGETHER // group):
        stop = min(start + TOGETHER // group, hi)
        size = 0
        for g in range(start, stop):
            at = starts[g % count] + g // count * group
            for row in range(g * group, min((g + 1) * group, n)):
                picked[0, size], picked[1, size] = row, at
                size += q[at] > least
                at += 1
        if 2 * size > (stop - start) * group:
            for g in range(start, stop):
                first, last = g * group, min((g + 1) * group, n)
                at = starts[g % count] + g // count * group
                end = at + last - first
                total += _correct(
                    X[first:last], 0, w, b, code, parameter, y[at:end], q[at:end], none,
                    change, out,
                )  # fmt: skip
            continue
        for r in range(size):
            _ask(X, picked[0, min(r + AHEAD_PICKED, size - 1)], 1)
            at = picked[1, r]
            total += _correct_one(X[picked[0, r]], w, b, code, parameter, y[at], q[at], 0.0, out)
    return total


@jit(error_model="numpy", _nrt=False)
def accumulate(X, k, count, group, lo, hi, c, picked, out):
    """``out = sum over the places of c x``; rows with ``c = 0`` are left out as above."""
    out[:] = 0.0
    for start in range(lo, hi, TOGETHER):
        stop = min(start + TOGETHER, hi)
        size = _pick(start, stop, k, count, group, c, c, picked)
        if 2 * size > stop - start:
            at = start
            while at < stop:
                first, last, jump = _part(at, stop, k, count, group)
                end = at + last - first
                _accumulate(X[first:last], jump, c[at:end], out)
                at = end
            continue
        for r in range(size):
            _ask(X, picked[0, min(r + AHEAD_PICKED, size - 1)], 1)
            _add_one(X[picked[0, r]], c[picked[1, r]], out)
