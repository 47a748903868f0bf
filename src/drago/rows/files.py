"""Rows in files: parts that are read in turn, one ahead of the computation.

A visit reads the features of all parts, in their order, into memory that is used again. Everything
with an entry for each row is in memory up to a limit, and in files beyond (`drago.rows.room`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from drago._interrupts import poll
from drago.files.blocks import Blocks, Held
from drago.oracles.atoms import AtomOracle
from drago.rows.array_visits import Seen, guess_for
from drago.rows.base import (
    Evaluation,
    Gradient,
    Matrix,
    RowStore,
    RowVector,
    Vector,
    Visit,
)
from drago.rows.file_part import Buffers, Features, FilePart
from drago.rows.guessed import rest_after
from drago.rows.part import Part
from drago.rows.parts import PartedRows, _part
from drago.rows.room import Room, scratch_folder

# Share of the total weight below which a row counts as dropped: its inverse must be finite.
_NEGLIGIBLE = 1e-200
# Shares of the memory limit: for rows that are taken out, and what vectors get at least.
_TAKEN, _VECTORS = 0.25, 0.125
# What a sort of all losses takes, in bytes a row.
_SORTED = 64
# Operations that read the features of all rows; of the second kind temporary matrices are as large,
# so that some rows are done at a time.
_READ = {"predict", "gradient", "weighted_sum", "centre", "longest", "steepest"}
_PIECED = {"weighted_squares", "response_sums", "group_gradients", "plain_hessian"}


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
    readings : float
        How often the features of all rows were read so far.
    n_outputs : int
        Raw predictions that the loss takes for a row.
    """

    capabilities = frozenset({"responses"})
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
        self.limit = blocks.memory_limit or _third_of_memory()
        self.readings = 0.0
        if like is None:
            self.source, self.memory = Features(blocks), Room(0, scratch_folder())
            self._spare: list[Buffers] = []
        else:
            self.source, self.memory, self._spare = like.source, like.memory, like._spare
        if parts is None:
            sizes = self._sizes()
            self._largest = max(sizes)
            # Two parts are in memory at once.
            left = self.limit * (1 - _TAKEN) - 2 * self._largest
            self.memory.limit = int(max(left, _VECTORS * self.limit))
            parts = self._open(loss)
        elif like is not None:
            self._largest, self.n_outputs = like._largest, like.n_outputs
        super().__init__(parts)
        self.is_uniform = "sample_weight" not in blocks.columns
        self.most_part = max(self.least_part, int(_TAKEN * self.limit) // self._row_bytes)

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

    @property
    def _row_bytes(self) -> int:
        return self.source.row_bytes + 24

    def _sizes(self) -> list[int]:
        """Bytes of the features of each part."""
        entry = self.source.dtype.itemsize
        if self.source.is_sparse:
            entry += self.source.columns[1].dtype.itemsize
        return [entry * self.source.entries(a, b) + 256 for a, b in self._edges]

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
            y = [loss.check_target(column.read(a, b), b - a) for a, b in self._edges]
            self.n_outputs = loss.n_outputs(y[0])
            return [self.memory.kept(each) for each in y]
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
        if not min(float(each.min()) for each in found) > _NEGLIGIBLE:
            raise ValueError(
                "sample_weight must be positive on all rows in files, but some weigh nothing or "
                "next to nothing: leave these rows out of the source."
            )
        return found

    def _turns(self, reads: bool = False) -> Iterable[tuple[int, Any]]:
        return self._loaded() if reads else super()._turns()

    def _loaded(self) -> Iterator[tuple[int, FilePart]]:
        """The parts in turn with their features in memory; the next one is read meanwhile."""
        spare = [self._spare.pop() if self._spare else Buffers() for _ in range(2)]

        def read(k: int) -> Any:
            part = self.parts[k]
            X = self.source.read(part.start, part.stop, spare[k % 2].clear(self._largest))
            self.source.verify(k, X)
            return X

        # Left on every way out, an error or an interrupt included: it waits for the reading.
        with ThreadPoolExecutor(1, "drago-reader") as reader:
            ahead = reader.submit(read, 0)
            for k, part in enumerate(self.parts):
                poll()
                X = ahead.result()
                if k + 1 < len(self.parts):
                    ahead = reader.submit(read, k + 1)
                yield k, part.loaded(X)
        self._spare.extend(spare)
        self.readings += 1.0

    def _each(self, name: str, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
        reads = name in _READ and not (name == "predict" and not arguments[0].any())
        if name in _PIECED:
            return self._in_pieces(name, arguments)
        keep = self.memory.kept if _KINDS.get(name) == "map" else _as_it_is
        return [
            keep(
                getattr(part, name)(
                    *(_part(value, k) for value in arguments),
                    **{key: _part(value, k) for key, value in settings.items()},
                )
            )
            for k, part in self._turns(reads)
        ]

    def _in_pieces(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """A sum over all rows, some of them at a time."""
        return [
            getattr(part.between(a, b), name)(*(_part(v, k, slice(a, b)) for v in arguments))
            for k, part in self._turns(True)
            for a, b in part.cuts()
        ]

    # ------------------------------------------------------------------------ in and out

    def export(self, values: RowVector) -> Any:
        parts = [np.asarray(part) for part in values.parts]
        out = self.memory.empty((self.n_samples, *parts[0].shape[1:]), parts[0].dtype)
        return np.concatenate(parts, out=out)

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

    # ------------------------------------------------------------------------ visits to X

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return all(part.visits_once(loss, n_outputs) for part in self.parts)

    def visit(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Visit:
        """X is read once, and then the rows alone whose weights were not as they were guessed."""
        if not (self.visits_once(loss, w.shape[1]) and w.any()):
            return super().visit(loss, w, b, oracle, nu)
        guess = guess_for(self, loss, w, b, oracle, nu)
        if not guess.kind:
            return super().visit(loss, w, b, oracle, nu)
        seen: list[Seen] = [part._read(loss, w, b, guess) for _, part in self._turns(True)]
        if any(each.n_bad for each in seen):
            self.evaluate(loss, w, b)  # raises, and says which rows are to blame
        raw, losses, slopes = (self.vector(each.evaluation[k] for each in seen) for k in (2, 3, 4))
        ev = Evaluation(w, b, raw, losses, slopes)
        q = oracle.weights(losses, nu)
        gradients = []
        for part, each, weights in zip(self.parts, seen, q.parts):
            here = each.evaluation
            rest = rest_after(guess, each.masses, part.p, weights, here.losses, here.dlosses[:, 0])
            out = np.zeros(self.n_features + 1)
            # Sums that are not used need not be finite.
            for share, sums in ((rest.a, each.first), (rest.b, each.second)):
                if share != 0.0:
                    out += share * sums
            out[:-1] += part.sum_of(rest.rows, rest.values)
            out[-1] += rest.values.sum()
            gradients.append(out)
        g = sum(gradients[1:], gradients[0])
        return Visit(ev, q, Gradient(g[:-1, None], g[-1:]))


_KINDS = {
    name: operation.kind
    for name, operation in (vars(RowStore) | vars(Part)).items()
    if hasattr(operation, "kind")
}


def _as_it_is(value: Any) -> Any:
    return value


def _third_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3
