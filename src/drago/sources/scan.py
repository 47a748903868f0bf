"""The first scan: what is read once is checked, counted, and put where a store can read it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._interrupts import poll
from drago._progress import begin, tell
from drago._validation import require_scale, sum_of_squares
from drago.files.blocks import Blocks, Column, Held, checksum
from drago.sources.batch import Batch, Reader
from drago.sources.labels import Labels
from drago.sources.moments import Moments
from drago.sources.sink import Part, Sink

Array = npt.NDArray[Any]

# Labels that a target and groups may have.
MOST_CLASSES, MOST_GROUPS = 10_000, 1_000_000
# Bytes of a part: at most, at least, and as a share of what may be held.
MOST_BYTES, LEAST_BYTES, SHARE = 128 << 20, 1 << 16, 16


def part_bytes(limit: int) -> int:
    """How large a part is to be where so many bytes may be held."""
    return max(LEAST_BYTES, min(MOST_BYTES, limit // SHARE))


class HasZeroWeightsError(Exception):
    """Rows of X in place have to be dropped, which makes a copy of the others."""


class Scan:
    """One reading of a source.

    Parameters
    ----------
    reader : Reader
        Prepared.
    labels : bool
        Whether y holds labels.
    standardize : bool
    shuffle : int or None
        The seed of the order in which rows of a part are put into files; None for their own.
    limit : int
        Bytes that may be held.
    cache_dir : str
        Where blocks are written that may not.
    part : int
        Bytes of a part.
    in_place : Column or Held, optional
        X, where it lies in a file or in memory already.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        labels: bool,
        standardize: bool,
        limit: int,
        cache_dir: str,
        part: int,
        shuffle: int | None = None,
        in_place: Column | Held | None = None,
    ) -> None:
        self._reader, self._labels, self._limit, self._in_place = reader, labels, limit, in_place
        self._classes = Labels("y", MOST_CLASSES)
        self._groups = Labels("groups", MOST_GROUPS)
        self._moments = Moments(reader.n_features) if standardize else None
        self._dropped = 0
        others = 8 * len(reader.names)
        features = 0 if in_place else reader.n_features * reader.dtype.itemsize
        self._bytes = part
        self._per_part = max(1, part // (reader.n_features * reader.dtype.itemsize))
        expected = None
        if reader.n_rows is not None:
            self._per_part = max(1, min(self._per_part, reader.n_rows))
            if not reader.is_sparse:
                expected = reader.n_rows, reader.n_rows * (features + others)
        if isinstance(in_place, Column):  # X itself is nothing that is held
            limit //= 4
        self._sink = Sink(limit, cache_dir, self._inspect, expected, shuffle)
        self._features = (self._per_part, reader.n_features), reader.dtype
        self._seen = np.empty(*self._features) if in_place else np.empty(0)
        self._part: Part = {}
        self._filled = 0
        self._pieces: list[Any] = []  # of CSR
        self._sums: list[int] = []

    def run(self) -> tuple[Blocks, Sink]:
        """Read all rows; nothing is left of them where that fails."""
        begin("scan", self._reader.n_rows)
        try:
            for batch in self._reader.batches(self._labels):
                poll()
                self._take(batch)
                tell(batch.n_rows)
            self._flush()
            if self._sink.n_rows == 0:
                what = "no rows of positive weight" if self._dropped else "no rows"
                raise ValueError(f"{self._reader.described} has {what}; give it some.")
            self._sink.close()
            return self._settle(), self._sink
        except BaseException:
            self._sink.abort()
            raise

    # ---------------------------------------------------------------------------- rows in

    def _take(self, batch: Batch) -> None:
        weight = batch.sample_weight
        if weight is not None and batch.n_rows:
            if weight.min() < 0:
                row = int(weight.argmin())
                raise ValueError(
                    f"sample_weight must be nonnegative, but is {weight[row]:g} in row "
                    f"{self._sink.n_rows + self._filled + self._dropped + row}."
                )
            if not weight.all():
                if self._in_place is not None:
                    raise HasZeroWeightsError
                self._dropped += int(np.count_nonzero(weight == 0))
                batch = batch.take(weight > 0)
        vectors = self._vectors(batch)
        if hasattr(batch.X, "indptr"):
            self._add_sparse(batch.X, vectors)
        else:
            self._add_dense(batch.X, vectors)

    def _vectors(self, batch: Batch) -> dict[str, Array]:
        y = self._classes.add(batch.y) if self._labels else batch.y
        found = {"y": y, "sample_weight": batch.sample_weight, "baseline": batch.baseline}
        if batch.groups is not None:
            found["groups"] = self._groups.add(batch.groups)
        return {name: values for name, values in found.items() if values is not None}

    def _add_dense(self, X: Any, vectors: dict[str, Array]) -> None:
        start, n = 0, len(X)
        while start < n:
            if not self._part:
                shapes: dict[str, Any] = {
                    name: ((self._per_part,), values.dtype) for name, values in vectors.items()
                }
                if self._in_place is None:
                    shapes["X"] = self._features
                self._part = self._sink.room(shapes)
                if self._in_place is not None:
                    self._part["X"] = self._seen
            stop = min(n, start + self._per_part - self._filled)
            rows = slice(self._filled, self._filled + stop - start)
            X.write(self._part["X"][rows], start)
            for name, values in vectors.items():
                self._part[name][rows] = values[start:stop]
            self._filled, start = rows.stop, stop
            if self._filled == self._per_part:
                self._flush()

    def _add_sparse(self, X: Any, vectors: dict[str, Array]) -> None:
        entry = X.data.itemsize + 4
        most = self._bytes
        start, n = 0, X.shape[0]
        while start < n:
            left = max(1, (most - self._filled) // entry)
            stop = int(np.searchsorted(X.indptr, X.indptr[start] + left, side="right")) - 1
            stop = min(n, max(start + 1, stop))
            some = {name: values[start:stop] for name, values in vectors.items()}
            self._pieces.append((X[start:stop], some))
            self._filled += entry * int(X.indptr[stop] - X.indptr[start]) + 8 * (stop - start)
            start = stop
            if self._filled >= most:
                self._flush()

    def _flush(self) -> None:
        """Hand the part to the sink."""
        if self._pieces:
            rows, vectors = zip(*self._pieces)
            lengths = np.concatenate([np.diff(X.indptr) for X in rows])
            part = {
                "data": np.concatenate([X.data for X in rows]),
                "indices": np.concatenate([X.indices for X in rows]).astype(np.int32),
                "indptr": np.cumsum(lengths, dtype=np.int64),
            }
            for name in vectors[0]:
                part[name] = np.concatenate([some[name] for some in vectors])
            self._sink.put(part, lengths.size)
        elif self._filled:
            if self._in_place is not None:  # looked at, and left where it is
                X = self._part.pop("X")[: self._filled]
                self._inspect({"X": X}, self._sink.n_rows)
                self._sums.append(checksum(X))
            self._sink.put(self._part, self._filled)
        self._part, self._pieces, self._filled = {}, [], 0

    # ------------------------------------------------------------- each part as it comes by

    def _inspect(self, part: Part, first: int) -> None:
        """Look at the rows of a part; in the thread that writes them."""
        if "X" not in part and not self._reader.is_sparse:
            return
        entries = part["data"] if self._reader.is_sparse else part["X"]
        total = sum_of_squares(entries)
        if not math.isfinite(total):
            bad = ~np.isfinite(entries)
            if bad.any():
                raise ValueError(self._complaint(part, bad, first))
            require_scale(float(np.abs(entries).max()), entries.size)
        if self._moments is not None:
            X = entries
            if self._reader.is_sparse:
                X = self._matrix(part, first)
            self._moments.add(X, part.get("sample_weight"))

    def _matrix(self, part: Part, first: int) -> Any:
        from scipy.sparse import csr_matrix

        ends = part["indptr"]
        begin = int(ends[-1]) - part["data"].size
        indptr = np.concatenate([[0], ends - begin])
        shape = (ends.size, self._reader.n_features)
        return csr_matrix((part["data"], part["indices"], indptr), shape=shape)

    def _complaint(self, part: Part, bad: Array, first: int) -> str:
        place = np.argwhere(bad)[0]
        if self._reader.is_sparse:
            ends = part["indptr"] - (int(part["indptr"][-1]) - part["data"].size)
            row = int(np.searchsorted(ends, place[0], side="right"))
            column = int(part["indices"][place[0]])
        else:
            row, column = int(place[0]), int(place[1])
        names = self._reader.feature_names
        name = repr(names[column]) if names else str(column)
        among = " (of those with positive weight)" if self._dropped else ""
        return (
            f"X contains NaN or infinite entries, the first in column {name} of row "
            f"{first + row}{among}; remove or impute them, or give fill= where the source takes it."
        )

    # ------------------------------------------------------------------------- what was found

    def _settle(self) -> Blocks:
        sink, reader = self._sink, self._reader
        classes = groups = None
        if self._labels:
            classes, last = self._classes.settled()
            kind = np.float64 if classes.size <= 2 else np.int64
            sink.rewrite("y", lambda part, k: last[part].astype(kind))
        if "groups" in reader.names:
            groups, order = self._groups.settled()
            sink.rewrite("groups", lambda part, k: order[part])
        mean = scale = None
        if self._moments is not None:
            mean, scale = self._moments.settled(centred=not reader.is_sparse)
            self._standardize(mean, scale)
        columns: dict[str, Column | Held] = dict(sink.columns())
        sums = sink.sums
        if self._in_place is not None:
            self._in_place.check()
            columns["X"], sums["X"] = self._in_place, tuple(self._sums)
        return Blocks(
            n_samples=sink.n_rows,
            n_features=reader.n_features,
            columns=columns,
            ends=tuple(sink.ends),
            sums=sums,
            feature_names=reader.feature_names,
            classes=classes,
            group_names=groups,
            mean=mean,
            scale=scale,
            keep_alive=sink.folder,
            memory_limit=self._limit,
        )

    def _standardize(self, mean: Array, scale: Array) -> None:
        dtype = self._reader.dtype

        def dense(part: Array, k: int) -> Array:
            out = np.empty_like(part)
            step = max(1, (1 << 20) // part.shape[1])
            for start in range(0, part.shape[0], step):
                rows = slice(start, start + step)
                out[rows] = (part[rows].astype(np.float64) - mean) / scale
            return out

        def sparse(part: Array, k: int) -> Array:
            return (part / scale[self._sink.read("indices", k)]).astype(dtype)

        if self._reader.is_sparse:
            self._sink.rewrite("data", sparse)
        else:
            self._sink.rewrite("X", dense)
