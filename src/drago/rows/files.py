"""Rows in files: parts that are read in turn.

A visit reads the features of all rows in their order, a few at a time into memory that is used
again, and works on them while they are in the cache. Everything with an entry for each row is in
memory up to a limit, and in files beyond (`drago.rows.room`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from drago._interrupts import poll
from drago._progress import tell
from drago._threads import limited, threads_for
from drago.files.blocks import Blocks, Held, checksum
from drago.oracles.atoms import AtomOracle
from drago.oracles.whole import WholeOracle
from drago.rows.base import Index, Matrix, RowStore, RowVector, Vector
from drago.rows.features import Features
from drago.rows.file_part import FilePart, Piece
from drago.rows.file_visits import FileVisits
from drago.rows.in_order import in_order
from drago.rows.open import NEGLIGIBLE
from drago.rows.part import Part
from drago.rows.parts import PartVector, _part
from drago.rows.room import Room, scratch_folder
from drago.rows.tables.files import FileTables, thin_for
from drago.sources.memory import as_bytes

# Shares of the memory limit: for rows that are taken out, for vectors, and for losses that are
# sorted. What is left is for what is computed with them.
_TAKEN, _VECTORS, _SORTED = 0.25, 0.5, 0.125
# What the vectors of a solve take, in bytes a row.
_SOLVED = 120
# Bytes that the system is asked to read ahead.
_AHEAD = 1 << 25
# Operations that read the features of all rows, and those of them that make dense matrices.
_DENSE = {"weighted_squares", "response_sums", "group_gradients", "plain_hessian"}
_READ = {"gradient", "weighted_sum", "centre", "longest", "steepest"} | _DENSE
# Those that pick some rows.
_PICK = {"gram", "leverages", "unbent", "class_hessian", "class_diagonal", "class_leverages"}


class WholeVector(PartVector):
    """A vector of the rows whose parts lie behind each other in one array."""

    __slots__ = ("whole",)

    def __init__(self, whole: Vector, parts: Sequence[Any]) -> None:
        super().__init__(parts)
        self.whole = whole


class FileRows(FileVisits):
    """Rows in files, in parts.

    Parameters
    ----------
    blocks : Blocks
    loss : Loss
        Says what the target has to be.
    parts : sequence of FilePart, optional
        Those that were made before, of the same files.
    like : FileRows, optional
        Whose memory is shared.

    Attributes
    ----------
    n_outputs : int
        Raw predictions that the loss takes for a row.
    are_whole : bool
        Whether all vectors of a solve fit the memory: then each is one array.
    """

    capabilities = frozenset({"responses", "tables"})
    n_outputs: int

    def __init__(
        self,
        blocks: Blocks,
        loss: Any = None,
        *,
        parts: Sequence[FilePart] | None = None,
        like: FileRows | None = None,
    ) -> None:
        self.blocks = blocks
        self.limit = as_bytes(blocks.memory_limit)
        if like is None:
            self.source, self.memory = Features(blocks), Room(0, scratch_folder())
            self._checked: set[int] = set()
            self.memory.limit = int(_VECTORS * self.limit)
        else:
            self.source, self.memory = like.source, like.memory
            self._checked, self.n_outputs = like._checked, like.n_outputs
        parts = self._open(loss) if parts is None else parts
        super().__init__(parts)
        self.is_uniform = "sample_weight" not in blocks.columns
        self.are_whole = _SOLVED * self.n_samples <= int(_VECTORS * self.limit)
        row = self.source.row_bytes + _SOLVED
        self.thin = thin_for(self.source.row_bytes)
        self.most_part = max(self.least_part, int(_TAKEN * self.limit) // row)

    @property
    def readings(self) -> float:
        """How often the features were read so far: all bytes that were read, by those of X."""
        return self.source.read_so_far / max(self.source.size, 1)

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return (
            f"FileRows({self.n_samples} x {self.n_features}, {kind} {self.source.dtype}, "
            f"{len(self.parts)} parts)"
        )

    # ------------------------------------------------------------------------ the parts

    @property
    def _edges(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise((0, *self.blocks.ends)))

    def _open(self, loss: Any) -> list[FilePart]:
        """The parts, with all that is read once: targets, weights, groups and baselines."""
        columns, edges = self.blocks.columns, self._edges

        def vectors(name: str, dtype: Any) -> list[Any]:
            found = columns.get(name)
            if found is None:
                return [None] * len(edges)
            if isinstance(found, Held) and found.dtype == dtype:
                return [found.read(a, b) for a, b in edges]
            return [self.memory.kept(found.read(a, b).astype(dtype, copy=False)) for a, b in edges]

        y = self._targets(loss)
        weights = self._nominal(vectors("sample_weight", np.float64))
        groups, baseline = vectors("groups", np.int64), vectors("baseline", np.float64)
        return [
            FilePart(
                self.source, a, b, y[k], weights[k], groups[k], baseline[k],
                self.source.entries(a, b),
            )
            for k, (a, b) in enumerate(edges)
        ]  # fmt: skip

    def _targets(self, loss: Any) -> list[Any]:
        """The targets of each part, in the form that the loss takes."""
        column, n = self.blocks.columns["y"], self.blocks.n_samples
        if not loss.is_classification:
            keep = self.memory.kept
            y = [keep(loss.check_target(column.read(a, b), b - a)) for a, b in self._edges]
            self.n_outputs = loss.n_outputs(y[0])
            return y
        # Labels are checked by themselves: a part need not have all of them.
        labels = np.unique(np.concatenate([np.unique(column.read(a, b)) for a, b in self._edges]))
        most = float(np.nan_to_num(labels.max(), posinf=0.0))
        checked = np.resize(labels, max(labels.size, min(n, int(most) + 1)))
        checked = loss.check_target(checked, checked.size)
        self.n_outputs = loss.n_outputs(checked)
        return [self.memory.kept(column.read(a, b).astype(checked.dtype)) for a, b in self._edges]

    def _nominal(self, given: list[Any]) -> list[Vector]:
        """The nominal weights of each part; equal ones share their memory."""
        n = self.blocks.n_samples
        if given[0] is None:
            longest = max(b - a for a, b in self._edges)
            p = np.full(longest, 1.0 / n)
            p.flags.writeable = False
            return [p[: b - a] for a, b in self._edges]
        # Divided by the largest first: a sum of huge weights must not overflow.
        most = max(float(each.max()) for each in given)
        total = sum(float((each / most).sum()) for each in given)
        found = [self.memory.kept(each / most / total) for each in given]
        if not min(float(each.min()) for each in found) > NEGLIGIBLE:
            raise ValueError(
                "sample_weight must be positive on all rows in files, but some weigh nothing or "
                "next to nothing: leave these rows out of the source."
            )
        return found

    # ------------------------------------------------------------------------ over the rows

    def _visited(
        self, work: Callable[[Piece, int, slice], Any], is_dense: bool = False
    ) -> Iterator[Any]:
        """What `work` returns for all rows, a few at a time.

        In the order of the rows, whoever was first: each thread reads some rows and works on them
        while they are in its cache.
        """
        n, ahead = self.n_samples, max(1, _AHEAD // self.source.row_bytes)

        def go(k: int, rows: slice) -> tuple[Any, tuple[int, ...]]:
            part = self.parts[k]
            X = self.source.read(part.start + rows.start, part.start + rows.stop)
            # As many as are read now, further on.
            first, last = (min(part.start + row + ahead, n) for row in (rows.start, rows.stop))
            self.source.expect(first, last)
            sums: tuple[int, ...] = ()
            if k not in self._checked:
                half = rows.start * self.source.row_bytes // 4
                sums = tuple(checksum(each, half) for each in (_arrays(X)))
            return work(Piece(part, X, rows), k, rows), sums

        totals: list[tuple[int, ...]] = []
        turns = [(k, rows) for k, part in enumerate(self.parts) for rows in part.cuts(is_dense)]
        for (k, rows), (found, sums) in zip(turns, self._in_threads(go, turns)):
            poll()
            tell(rows.stop - rows.start)
            yield found
            totals.append(sums)
            if rows.stop == self.parts[k].n_samples:
                if self.is_sparse and k not in self._checked and len(totals) > 1:
                    # Whose pieces begin who knows where.
                    totals = [self.source.sums_of(self.parts[k].start, self.parts[k].stop)]
                self._check(k, totals)
                totals = []

    def _check(self, k: int, totals: list[tuple[int, ...]]) -> None:
        """Compare the check sums of a part, once."""
        if k in self._checked:
            return
        error = self.source.damaged(k, tuple(sum(each) for each in zip(*totals)))
        if error is not None:
            raise error
        self._checked.add(k)

    @property
    def _threads(self) -> int:
        return threads_for(self.n_entries)

    def _each(self, name: str, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
        if name in _READ:
            return self._read_each(name, arguments)
        keep = self.stored if _KINDS.get(name) == "map" else _as_it_is

        def work(k: int) -> Any:
            return getattr(self.parts[k], name)(
                *(_part(value, k) for value in arguments),
                **{key: _part(value, k) for key, value in settings.items()},
            )

        turns = [(k,) for k in range(len(self.parts))]
        found = self._in_threads(work, turns) if name in _PICK else (work(k) for (k,) in turns)
        return [keep(each) for each in found]

    def _in_threads(
        self, work: Callable[..., Any], turns: Sequence[tuple[Any, ...]]
    ) -> Iterator[Any]:
        """What `work` returns for each, in their order."""
        errors = np.geterr()

        def go(*turn: Any) -> Any:
            with limited(1), np.errstate(**errors):
                return work(*turn)

        return in_order(go, turns, self._threads)

    def _read_each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """A sum or a maximum over all rows, from those of a few rows each."""

        def work(piece: Piece, k: int, rows: slice) -> Any:
            return getattr(piece, name)(*(_part(value, k, rows) for value in arguments))

        return list(self._visited(work, name in _DENSE))

    def predict(self, w: Matrix, b: Vector) -> RowVector:
        out = [self.memory.empty((part.n_samples, b.size)) for part in self.parts]

        def work(piece: Piece, k: int, rows: slice) -> None:
            out[k][rows] = piece.predict(w, b)

        if w.any():
            for _ in self._visited(work):
                pass
        else:
            for each in out:
                each[:] = b
        return self.vector(out)

    # ------------------------------------------------------------------------ in and out

    def export(self, values: RowVector) -> Any:
        parts = values.parts
        out = self.memory.empty((self.n_samples, *parts[0].shape[1:]), parts[0].dtype)
        for (a, b), each in zip(self._edges, parts):
            out[a:b][self.blocks.order(a, b)] = each
        return out

    def _pieces(self, some: list[tuple[int, Index]]) -> list[tuple[Any, ...]]:
        return list(self._in_threads(lambda k, index: self.parts[k].pieces(index), some))

    def imported(self, array: Any) -> RowVector:
        orders = itertools.starmap(self.blocks.order, self._edges)
        found = zip(super().imported(array).parts, orders)
        return self.vector(self.stored(each[order].copy()) for each, order in found)

    def content(self) -> tuple[Any, ...]:
        """What tells these rows from others, without reading them."""
        blocks = self.blocks
        parts: list[Any] = [blocks.digest, blocks.n_samples, blocks.n_features, *blocks.ends]
        if not blocks.digest:
            for name, column in sorted(blocks.columns.items()):
                parts += [name, str(column.dtype), *column.shape]
                if isinstance(column, Held):
                    parts.append(column.array)
                else:
                    stamp = column.stamp
                    parts += [os.path.abspath(column.path), column.offset]
                    parts += [] if stamp is None else [stamp.size, stamp.modified_ns]
        if self.baseline is not None:
            parts += list(self.baseline.parts)
        return tuple(parts)

    def with_baseline(self, baseline: RowVector | None) -> RowStore:
        parts = [part.with_baseline(each) for part, each in zip(self.parts, self.split(baseline))]
        return FileRows(self.blocks, parts=parts, like=self)

    def room(self, size: int) -> Vector:
        return self.memory.empty(size)

    @property
    def sorting(self) -> int:
        return int(_SORTED * self.limit)

    def stored(self, entries: Any) -> Any:
        return self.memory.kept(entries)

    def new_vectors(self, count: int) -> list[RowVector]:
        if self.are_whole:
            # In one piece: of fresh memory the system gives large pages to large pieces.
            return [self.cut(each) for each in self.memory.empty((count, self.n_samples))]
        sizes = [part.n_samples for part in self.parts]
        return [self.vector(self.room(size) for size in sizes) for _ in range(count)]

    def new_array(self) -> Vector:
        """An array for the entries of all rows."""
        return self.memory.empty(self.n_samples)

    def cut(self, whole: Vector) -> WholeVector:
        """A row vector of one array."""
        return WholeVector(whole, [whole[a:b] for a, b in self._edges])

    def whole(self, values: RowVector) -> Vector:
        """The entries of a row vector as one array."""
        return values.whole if isinstance(values, WholeVector) else np.concatenate(values.parts)

    @cached_property
    def whole_p(self) -> Vector:
        """The nominal weights of all rows."""
        return self.memory.kept(self.whole(self.p))

    def oracle(self, uncertainty: Any, divergence: Any) -> AtomOracle:
        if self.are_whole and WholeOracle.takes(uncertainty):
            return WholeOracle(self, uncertainty, divergence)
        return super().oracle(uncertainty, divergence)

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> Any:
        return FileTables(self, problem, kind, count, n_threads)


_KINDS = {
    name: operation.kind
    for name, operation in (vars(RowStore) | vars(Part)).items()
    if hasattr(operation, "kind")
}


def _arrays(X: Any) -> tuple[Any, ...]:
    """What features are made of, as far as they have check sums."""
    return (X,) if isinstance(X, np.ndarray) else (X.data, X.indices)


def _as_it_is(value: Any) -> Any:
    return value
