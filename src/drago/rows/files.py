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
from drago._threads import limited, threads_for
from drago.files.blocks import Blocks, Held, checksum
from drago.oracles.atoms import AtomOracle
from drago.rows.array_visits import NO_GUESS, Guess, Seen, guess_for
from drago.rows.base import (
    Evaluation,
    Gradient,
    Index,
    Matrix,
    NonFiniteLossError,
    RowStore,
    RowVector,
    Vector,
    Visit,
)
from drago.rows.file_part import Buffers, Features, FilePart, Piece
from drago.rows.guessed import nearest, rest_after
from drago.rows.in_order import in_order
from drago.rows.memory import ArrayRows
from drago.rows.open import NEGLIGIBLE
from drago.rows.part import Part
from drago.rows.parts import PartedRows, _part
from drago.rows.room import Room, scratch_folder
from drago.rows.tables.files import FileTables, thin_for
from drago.sources.memory import as_bytes

# Shares of the memory limit: for rows that are taken out, and for vectors. What is left is for what
# is computed with them.
_TAKEN, _VECTORS = 0.25, 0.5
# What a sort of all losses takes, and the vectors of a solve, in bytes a row.
_SORTED, _SOLVED = 64, 120
# Rows that tell how far the threshold of all rows has moved.
_WITNESSES = 1 << 13
# Shares of the rows, and of the memory limit, that are kept from a visit: those nearest to where
# the weights change their kind.
_NEAR, _NEAR_MEMORY = 0.02, 1 / 16
# Bytes that the system is asked to read ahead.
_AHEAD = 1 << 25
# Operations that read the features of all rows, and those of them that make dense matrices.
_DENSE = {"weighted_squares", "response_sums", "group_gradients", "plain_hessian"}
_READ = {"gradient", "weighted_sum", "centre", "longest", "steepest"} | _DENSE
# Those that pick some rows.
_PICK = {"gram", "leverages", "unbent", "class_hessian", "class_diagonal", "class_leverages"}

_Kept = list[tuple[Any, Any]]
"""Numbers of some rows of a part, and their features."""


class FileRows(PartedRows):
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
            self._spare: list[Buffers] = []
            self._checked: set[int] = set()
            self.memory.limit = int(_VECTORS * self.limit)
        else:
            self.source, self.memory, self._spare = like.source, like.memory, like._spare
            self._checked, self.n_outputs = like._checked, like.n_outputs
        parts = self._open(loss) if parts is None else parts
        super().__init__(parts)
        self.is_uniform = "sample_weight" not in blocks.columns
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
                self.source, a, b, self.memory, y[k], weights[k], groups[k], baseline[k],
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
        self,
        work: Callable[[Piece, int, slice], Any],
        out: Sequence[Sequence[Vector]] = (),
        is_dense: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """`work` on all rows, a few at a time: the number of the part, and what it returned.

        In the order of the rows, whoever was first: each thread reads some rows and works on them
        while they are in its cache.
        """
        vectors = out or [()] * len(self.parts)
        n, ahead = self.n_samples, max(1, _AHEAD // self.source.row_bytes)

        def go(k: int, rows: slice) -> tuple[Any, tuple[int, ...]]:
            part = self.parts[k]
            buffers = self._buffers()
            X = self.source.read(part.start + rows.start, part.start + rows.stop, buffers)
            # As many as are read now, further on.
            first, last = (min(part.start + row + ahead, n) for row in (rows.start, rows.stop))
            self.source.expect(first, last)
            sums: tuple[int, ...] = ()
            if k not in self._checked:
                sums = tuple(checksum(each) for each in (_arrays(X)))
            found = work(Piece(part, X, rows, vectors[k]), k, rows)
            self._spare.append(buffers)
            return found, sums

        totals: list[tuple[int, ...]] = []
        turns = [(k, rows) for k, part in enumerate(self.parts) for rows in part.cuts(is_dense)]
        for (k, rows), (found, sums) in zip(turns, self._in_threads(go, turns)):
            poll()
            yield k, found
            totals.append(sums)
            if rows.stop == self.parts[k].n_samples:
                self._check(k, totals)
                totals = []

    def _check(self, k: int, totals: list[tuple[int, ...]]) -> None:
        """Compare the check sums of a part, once."""
        if k in self._checked:
            return
        sums = tuple(sum(each) for each in zip(*totals))
        if self.is_sparse and len(totals) > 1:  # whose pieces need not be whole words
            sums = self.source.sums_of(self.parts[k].start, self.parts[k].stop)
        error = self.source.damaged(k, sums)
        if error is not None:
            raise error
        self._checked.add(k)

    def _buffers(self) -> Buffers:
        try:
            return self._spare.pop().clear()
        except IndexError:
            return Buffers()

    @property
    def _threads(self) -> int:
        return threads_for(self.n_entries)

    def _each(self, name: str, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
        if name in _READ:
            return self._read_each(name, arguments)
        keep = self.memory.kept if _KINDS.get(name) == "map" else _as_it_is

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

        return [found for _, found in self._visited(work, is_dense=name in _DENSE)]

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

    def _seen(
        self, loss: Any, w: Matrix, b: Vector, guess: Guess
    ) -> tuple[Evaluation, list[Seen], list[_Kept]]:
        """All that one reading of X tells: of all rows, and of the rows of each part.

        And some rows themselves, which a gradient may need again.
        """
        share = 0.0
        if guess.kind and not self.is_sparse:
            share = min(_NEAR, _NEAR_MEMORY * self.limit / max(self.source.size, 1))
        names = range(3)
        out = [[self.memory.empty(part.n_samples) for _ in names] for part in self.parts]
        found: list[list[Any]] = [[] for _ in self.parts]

        def work(piece: Piece, k: int, rows: slice) -> Any:
            ev, n_bad, masses, first, second = piece._read(loss, w, b, guess)
            near: Any = None
            if share > 0.0 and n_bad == 0:
                index = nearest(guess, ev.losses, int(share * piece.n_samples))
                near = (index + rows.start, piece.X[index]) if index.size else None
            return (n_bad, np.array(masses), first, second), near

        kept: list[_Kept] = [[] for _ in self.parts]
        for k, (each, near) in self._visited(work, out):
            found[k].append(each)
            if near is not None:
                kept[k].append(near)
        seen = []
        for (raw, losses, slopes), each in zip(out, found):
            n_bad, masses, first, second = (sum(values[1:], values[0]) for values in zip(*each))
            ev = Evaluation(w, b, raw[:, None], losses, slopes[:, None])
            seen.append(Seen(ev, n_bad, (float(masses[0]), float(masses[1])), first, second))
        raw, losses, slopes = (self.vector(each.evaluation[k] for each in seen) for k in (2, 3, 4))
        return Evaluation(w, b, raw, losses, slopes), seen, kept

    def _guess(
        self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float
    ) -> tuple[Guess, float]:
        """A guess of the weights at a point, and the threshold of a sample there.

        The threshold of the last visit, moved as far as that of the sample has moved since.
        """
        kind, tau, cap = oracle.guess(nu)
        if not kind or tau == -np.inf or self.n_samples < 2 * _WITNESSES:
            return guess_for(self, loss, w, b, oracle, nu), np.nan
        witness = self._witnesses.oracle(oracle.uncertainty, oracle.divergence)
        try:
            witness.weights(self._witnesses.evaluate(loss, w, b).losses, nu)
        except NonFiniteLossError:
            return NO_GUESS, np.nan  # the visit says which of all rows are to blame
        sampled, known = witness.guess(nu)[1], oracle.memory
        moved = known["anchor"] + (sampled - known["sampled"])
        tau = sampled if np.isnan(tau) or np.isnan(moved) else moved
        return Guess(kind, tau, nu, cap), sampled

    @cached_property
    def _witnesses(self) -> ArrayRows:
        index = np.arange(_WITNESSES, dtype=np.int64) * self.n_samples // _WITNESSES
        return self.sample(index)

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
        return self.vector(self.memory.kept(each[order].copy()) for each, order in found)

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

    def oracle(self, uncertainty: Any, divergence: Any) -> AtomOracle:
        if uncertainty.is_spectral and _SORTED * self.n_samples > self.limit:
            raise MemoryError(
                f"{uncertainty!r} needs a sort of all losses, which takes some "
                f"{_SORTED * self.n_samples} bytes, but memory_limit is {self.limit}: raise it, or "
                "take a CVaR or a ball, which do without."
            )
        return super().oracle(uncertainty, divergence)

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> Any:
        return FileTables(self, problem, kind, count, n_threads)

    # ------------------------------------------------------------------------ visits to X

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return all(part.visits_once(loss, n_outputs) for part in self.parts)

    def evaluate(self, loss: Any, w: Any, b: Any, raw: RowVector = None) -> Evaluation:
        if raw is None and w.any() and self.visits_once(loss, w.shape[1]):
            ev, seen, _ = self._seen(loss, w, b, NO_GUESS)
            if not any(each.n_bad for each in seen):
                return ev
            raw = ev.raw  # whoever looks at the losses raises, and says which rows are to blame
        return super().evaluate(loss, w, b, self.predict(w, b) if raw is None else raw)

    def visit(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Visit:
        """X is read once, and then the rows alone whose weights were not as they were guessed."""
        # Kernels of CSR rows take no guess: they would leave the sums at it empty.
        if self.is_sparse or not (self.visits_once(loss, w.shape[1]) and w.any()):
            return super().visit(loss, w, b, oracle, nu)
        guess, sampled = self._guess(loss, w, b, oracle, nu)
        if not guess.kind:
            return super().visit(loss, w, b, oracle, nu)
        ev, seen, kept = self._seen(loss, w, b, guess)
        if any(each.n_bad for each in seen):
            self.evaluate(loss, w, b, ev.raw)
        q = oracle.weights(ev.losses, nu)
        oracle.memory |= {"anchor": oracle.guess(nu)[1], "sampled": sampled}

        def corrected(k: int) -> Vector:
            """The gradient of a part: its sums at the guess, and what the weights differ by."""
            part, found = self.parts[k], seen[k]
            here = found.evaluation
            rest = rest_after(
                guess, found.masses, part.p, q.parts[k], here.losses, here.dlosses[:, 0]
            )
            out = np.zeros(self.n_features + 1)
            # Sums that are not used need not be finite.
            for share, sums in ((rest.a, found.first), (rest.b, found.second)):
                if share != 0.0:
                    out += share * sums
            left = np.ones(rest.rows.size, dtype=bool)
            for index, X in kept[k]:
                a, b = np.searchsorted(rest.rows, (index[0], index[-1] + 1))
                at = np.searchsorted(index, rest.rows[a:b])
                known = index[np.minimum(at, index.size - 1)] == rest.rows[a:b]
                out[:-1] += rest.values[a:b][known] @ X[at[known]].astype(np.float64)
                left[a:b] = ~known
            out[:-1] += part.sum_of(rest.rows[left], rest.values[left])
            out[-1] += rest.values.sum()
            return out

        gradients = list(self._in_threads(corrected, [(k,) for k in range(len(seen))]))
        g = sum(gradients[1:], gradients[0])
        return Visit(ev, q, Gradient(g[:-1, None], g[-1:]))


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
