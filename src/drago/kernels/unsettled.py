"""Lists of the rows whose weight a dual step can change, see `drago.rows.tables.unsettled`."""

from drago.kernels import REDUCE, jit


@jit(error_model="numpy", _nrt=False)
def find(table, change, q, p, first, last, low, high, cap, where, level, weight, start, room):
    """List the rows `first` to `last` but those at 0 with a loss up to `low` and those at the cap
    with a loss from `high` on.

    The losses are those of the table and, where it is not empty, the `change`. Of each row in the
    list its place, loss and weight are kept, from `start` on. Returns how many there are, or -1
    where there is no room for them, and the mass of the others that are at the cap. `p` has an
    entry for each row or a single one.
    """
    size, capped = 0, 0.0
    for i in range(first, last):
        if size >= room:
            return -1, 0.0
        share = p[i] if p.shape[0] > 1 else p[0]
        loss = table[i] + change[i - first] if change.shape[0] > 0 else table[i]
        is_full = (q[i] >= share * cap) & (loss >= high)
        capped += share if is_full else 0.0
        where[start + size] = i
        level[start + size] = loss
        weight[start + size] = q[i]
        size += 0 if is_full | ((q[i] == 0.0) & (loss <= low)) else 1
    return size, capped


@jit(error_model="numpy", _nrt=False)
def collect(where, level, weight, p, starts, sizes, s, u, mass):
    """The argument of the dual step for all rows in the lists, and their nominal weights.

    The latter are left as they are where all rows have the same.
    """
    at = 0
    for k in range(starts.shape[0]):
        for r in range(starts[k], starts[k] + sizes[k]):
            if p.shape[0] > 1:
                mass[at] = p[where[r]]
            u[at] = level[r] + s * (weight[r] / mass[at])
            at += 1
    return at


@jit(fastmath=REDUCE, _nrt=False)
def total(new):
    """The sum of some weights."""
    out = 0.0
    for r in range(new.shape[0]):
        out += new[r]
    return out


@jit(_nrt=False)
def deal(new, starts, sizes, weight):
    """New weights of the rows in the lists."""
    at = 0
    for k in range(starts.shape[0]):
        for r in range(starts[k], starts[k] + sizes[k]):
            weight[r] = new[at]
            at += 1


@jit(_nrt=False)
def write(where, weight, start, size, q):
    """The weights of a list, put in their places."""
    for r in range(start, start + size):
        q[where[r]] = weight[r]
