"""Visits to a block of the rows of a dense matrix, for losses with one output.

The places ``0, 1, ...`` of block ``k`` of ``count`` are rows of X, dealt out in groups (see
`drago.solvers.blocks`). What is done with a row is done while it lies in the cache: a few rows at
a time are multiplied by ``w``, their losses evaluated, and the rows summed with their weights.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from drago.kernels import REDUCE, jit
from drago.kernels.losses import one_single_output

# Rows that are looked at together, and how many entries ahead memory is asked for more.
TOGETHER = 256
AHEAD = 640


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
            losses[r], slopes[r] = one_single_output(code, parameter, y[r], losses[r])


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


@jit(error_model="numpy", forceinline=True, _nrt=False)
def _part(at, end, k, count, group):
    """Neighbouring rows from the place `at` on: the first, the end, and the jump after them."""
    inside = at % group
    row = (k + at // group * count) * group + inside
    size = min(TOGETHER, group - inside, end - at)
    return row, row + size, (count - 1) * group if inside + size == group else 0


@jit(error_model="numpy", _nrt=False)
def _copy(X, index, size, rows):
    """Some rows of X, asked for all at once."""
    for r in range(size):
        _ask(X, index[r], 1)
    for r in range(size):
        for j in range(X.shape[1]):
            rows[r, j] = X[index[r], j]


@jit(error_model="numpy", _nrt=False)
def evaluate(X, k, count, group, lo, hi, w, b, code, parameter, y, losses, slopes):
    """Losses and slopes of the places `lo` to `hi`."""
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
    X, k, count, group, lo, hi, w, b, code, parameter,
    y, q, product, least, index, rows, some, out,
):  # fmt: skip
    """``out = sum over the places of x (q s - product)``; returns the sum without x.

    Rows without `product` and with a weight up to the `least` add nothing: where they are most they
    are not read. There is room for `TOGETHER` rows in `index`, `rows` and `some`.
    """
    out[:] = 0.0
    total = 0.0
    at = lo
    while at < hi:
        first, last, jump = _part(at, hi, k, count, group)
        end = at + last - first
        size = 0
        for i in range(end - at):
            index[size] = i
            size += (q[at + i] > least) | (product[at + i] != 0.0)
        if 2 * size > end - at:
            total += _correct(
                X[first:last], jump, w, b, code, parameter,
                y[at:end], q[at:end], product[at:end], some[3], out,
            )  # fmt: skip
        else:
            _copy(X[first:last], index, size, rows)
            for r in range(size):
                i = at + index[r]
                some[0, r], some[1, r], some[2, r] = y[i], q[i], product[i]
            total += _correct(
                rows[:size], 0, w, b, code, parameter, some[0], some[1], some[2], some[3], out
            )
        at = end
    return total


@jit(error_model="numpy", _nrt=False)
def accumulate(X, k, count, group, lo, hi, c, index, rows, some, out):
    """``out = sum over the places of c x``; rows with ``c = 0`` as above."""
    out[:] = 0.0
    at = lo
    while at < hi:
        first, last, jump = _part(at, hi, k, count, group)
        end = at + last - first
        size = 0
        for i in range(end - at):
            index[size] = i
            size += c[at + i] != 0.0
        if 2 * size > end - at:
            _accumulate(X[first:last], jump, c[at:end], out)
        else:
            _copy(X[first:last], index, size, rows)
            for r in range(size):
                some[0, r] = c[at + index[r]]
            _accumulate(rows[:size], 0, some[0], out)
        at = end
