"""What tasks do besides the operations of a part, and how vectors come and go."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drago.files.blocks import checksum
from drago.oracles.rounds.rows import few
from drago.rows.array_curvature import Chosen
from drago.rows.array_visits import Guess
from drago.rows.base import Evaluation, Gradient, Index, Matrix, Vector
from drago.rows.cluster.programs import one_thread, vectors_of
from drago.rows.cluster.vectors import Group, Node
from drago.rows.part import ArrayPart

if TYPE_CHECKING:
    from drago.rows.cluster.store import DaskRows


# ------------------------------------------------------------------------------ visits to X


def evaluated(
    part: ArrayPart, loss: Any, w: Matrix, b: Vector, raw: Any, guess: Guess
) -> tuple[Any, Any, Any, Any]:
    """Raw predictions, losses, slopes, and sums at guessed weights where there is a guess."""
    if raw is None and guess.kind and part.visits_once(loss, w.shape[1]):
        seen = part._read(loss, w, b, guess)
        if seen.n_bad == 0:
            ev = seen.evaluation
            found = ev.raw, ev.losses, ev.dlosses
            return *found, (seen.masses, seen.first, seen.second)
    ev = part.evaluate(loss, w, b, raw)
    return ev.raw, ev.losses, ev.dlosses, None


def gradient_after(
    part: ArrayPart, dlosses: Matrix, q: Vector, losses: Vector, guess: Guess, seen: Any
) -> Gradient:
    """The gradient after a visit with a guess: rows whose weights were guessed are not read."""
    from drago.rows.array_visits import Seen

    if seen is None:
        return part.gradient(dlosses, q)
    none = np.empty((0, 0))
    ev = Evaluation(none, none, none, losses, dlosses)
    return part._gradient(dlosses, q, guess, Seen(ev, 0, *seen))


def drift(part: ArrayPart, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
    return part.drift(loss, ev, index, scale) if index.size else -np.inf


def steepest_of(part: ArrayPart, dlosses: Matrix, index: Index, lengths: Vector) -> float:
    return part.steepest_of(dlosses, index, lengths) if index.size else -np.inf


# --------------------------------------------------------------------------- the intercept


def balance_sums(part: ArrayPart, loss: Any, raw: Matrix, q: Vector, masses: Any) -> Vector:
    """`ArrayPart.balance_sums`; rows without weight would take most of the time."""
    index = _weighty(loss, q)
    if index is None:
        return part.balance_sums(loss, raw, q, masses)
    return loss.balance_sums(part.y[index], raw[index], q[index], masses)


def balanced(
    part: ArrayPart, loss: Any, raw: Matrix, q: Vector, sums: Vector, masses: Any
) -> tuple[Matrix, Vector]:
    """`ArrayPart.balanced`, likewise: 0 on rows without weight, where nobody looks."""
    index = _weighty(loss, q)
    if index is None:
        return part.balanced(loss, raw, q, sums, masses)
    alpha, young = np.zeros(raw.shape), np.zeros(q.size)
    found = loss.balance_with(part.y[index], raw[index], q[index], sums, masses)
    alpha[index], young[index] = found
    return alpha, young


def _weighty(loss: Any, q: Vector) -> Index | None:
    """The rows of weight, where they are few and each has several outputs."""
    if not loss.has_class_hessian:
        return None
    index = np.flatnonzero(q)
    return index if 0 < 2 * index.size <= q.size else None


# ------------------------------------------------------------------------------ selections


def counts_above(part: ArrayPart, weight: Vector, levels: Vector) -> Index:
    """How many rows weigh more than each of some levels, which fall and are at least 0."""
    weight = weight[weight > 0.0]
    rising = np.sort(levels)
    below = np.bincount(np.searchsorted(rising, weight, side="left"), minlength=levels.size + 1)
    return (weight.size - np.cumsum(below)[:-1])[::-1]


def limits(part: ArrayPart, q: Vector, cap: float) -> tuple[float, float, int, float]:
    """Weights by their limits: what they lack to 0, their sum, how many are more, and the excess.

    The excess is what they have beyond ``cap p_i``.
    """
    out = np.zeros(4)
    for some, p in few([(q, part.p)]):
        assert p is not None
        out[:3] += -np.minimum(some, 0.0).sum(), some.sum(), np.count_nonzero(some > 0.0)
        if cap < np.inf:
            out[3] += np.maximum(some - cap * p, 0.0).sum()
    return float(out[0]), float(out[1]), int(out[2]), float(out[3])


def positive(part: ArrayPart, weight: Vector) -> Chosen:
    """The rows of any weight."""
    return Chosen(np.flatnonzero(weight > 0.0))


def heaviest(part: ArrayPart, weight: Vector, count: int) -> Chosen:
    return part.heaviest(weight, count) if count else part.none()


def pieces(part: ArrayPart, index: Index) -> tuple[Any, ...] | None:
    return part.pieces(index) if index.size else None


# ------------------------------------------------------------------------------ in and out


def itself(part: ArrayPart, values: Any) -> Any:
    """A vector of the part as one of its own."""
    return values


def fingerprint(part: ArrayPart) -> Any:
    """Check sums of all arrays of a part, to tell its rows from others."""
    X = (part.X,) if not part.is_sparse else (part.X.data, part.X.indices, part.X.indptr)
    given = [*X, part.y, part.p, part.groups, part.baseline]
    return np.array([0 if each is None else checksum(each) for each in given], dtype=np.uint64)


def with_baseline(parts: Sequence[ArrayPart], group: Any, index: int) -> list[ArrayPart]:
    return [part.with_baseline(kept[index]) for part, kept in zip(parts, group[0])]


def without_baseline(parts: Sequence[ArrayPart]) -> list[ArrayPart]:
    return [part.with_baseline(None) for part in parts]


def cut(whole: Any, sizes: Sequence[int]) -> Any:
    """An array as the vector of a bundle's parts."""
    ends = np.cumsum([0, *sizes])
    whole = np.ascontiguousarray(whole)
    return [(whole[a:b],) for a, b in itertools.pairwise(ends)], None


def as_dask_array(rows: DaskRows, values: Node) -> Any:
    """A vector of the rows as a Dask array, one chunk for each bundle."""
    import dask.array as da
    from dask import delayed

    layout = rows.layout
    group, index = rows.held(values)
    vectors = delayed(vectors_of, pure=False)
    more = () if values.shadow is None else values.shadow.shape[1:]
    dtype = np.float64 if values.shadow is None else values.shadow.dtype
    sizes = [sum(each) for each in layout.bundled(layout.sizes)]
    return da.concatenate(
        [
            da.from_delayed(vectors(layout.engine.delayed(handle), index), (size, *more), dtype)
            for handle, size in zip(group.handles, sizes)
        ]
    )


def entered(rows: DaskRows, array: Any) -> Node:
    """A row vector from a Dask array or an array of all rows."""
    layout = rows.layout
    bundled = layout.bundled(layout.sizes)
    sizes = [sum(each) for each in bundled]
    node = Node()
    blocks: list[Any]
    if hasattr(array, "dask"):
        whole = array.rechunk((tuple(sizes), *((-1,) * (array.ndim - 1))))
        blocks = layout.engine.blocks(whole.to_delayed(optimize_graph=False).ravel().tolist())
    else:
        array = np.asarray(array)
        blocks = np.split(array, np.cumsum(sizes)[:-1])
        m, n = rows.n_witnesses, rows.n_samples
        node.shadow = array[np.arange(m, dtype=np.int64) * n // m]
    node.group = Group(layout.engine.map(cut, blocks, bundled, name="given"))
    node.index = 0
    return node


# ------------------------------------------------------------------------------ whole vectors


def masses_of(parts: Sequence[ArrayPart]) -> Vector:
    """The nominal weights of a bundle's rows, which its parts hold: no round of their own."""
    return np.concatenate([part.p for part in parts])


def joined(function: Any, count: int, arguments: Any, *arrays: Any) -> Any:
    """A function of whole vectors, from the pieces of two of them."""
    with one_thread(), np.errstate(all="ignore"):
        p, u = (np.concatenate(some) for some in (arrays[:count], arrays[count:]))
        return function(p, u, *arguments.values)


def cut_whole(found: Any, start: int, sizes: Sequence[int]) -> Any:
    """The vectors of a bundle's parts, from those of all rows."""
    ends = np.cumsum([start, *sizes])
    return [tuple(each[a:b].copy() for each in found[0]) for a, b in itertools.pairwise(ends)], None


def numbers(found: Any) -> Any:
    """What goes to the driver."""
    return found[1]


class Packed:
    """Arguments that Dask does not look into."""

    def __init__(self, values: Any) -> None:
        self.values = values


def of_whole(
    rows: DaskRows, function: Any, u: Node, arguments: Any, count: int, tells: bool
) -> tuple[Any, ...]:
    """Vectors that a function of whole vectors makes on one worker, and what it tells."""
    layout, engine = rows.layout, rows.engine
    bundled = layout.bundled(layout.sizes)
    group, index = rows.held(u)
    inputs = engine.map(masses_of, layout.bundles, name="vector")
    inputs += engine.map(vectors_of, group.handles, [index] * len(bundled), name="vector")
    layout.n_rounds += 1
    columns = [[each] for each in (function, len(bundled), Packed(arguments), *inputs)]
    (found,) = engine.map(joined, *columns, name="whole")
    nodes: list[Any] = []
    if count:
        starts = np.cumsum([0, *(sum(each) for each in bundled)])[:-1].tolist()
        handles = engine.map(cut_whole, [found] * len(bundled), starts, bundled, name="cut")
        group = Group(handles)
        for index in range(count):
            node = Node()
            node.group, node.index = group, index
            nodes.append(node)
    if tells:
        return (*nodes, engine.gather(engine.map(numbers, [found], name="told"))[0])
    return tuple(nodes)
