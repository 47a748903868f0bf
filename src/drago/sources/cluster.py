"""Parquet files that the workers of a Dask cluster read, each its own."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from drago.sources.batch import dense
from drago.sources.columns import arrow
from drago.sources.labels import Coded
from drago.sources.tables import TableReader


class ClusterSource(NamedTuple):
    """Rows of files that are read on the workers; `DROProblem` and the estimators take it.

    Attributes
    ----------
    X, y, sample_weight, groups, baseline : Dask arrays
        A block for each file; None where there is no such column.
    client : distributed.Client
    feature_names : tuple of str
    """

    X: Any
    y: Any
    sample_weight: Any
    groups: Any
    baseline: Any
    client: Any
    feature_names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ClusterSource({self.X.numblocks[0]} files, {len(self.feature_names)} features)"


def read_on(client: Any, reader: TableReader) -> ClusterSource:
    """The rows of a reader, each file by a worker; words are found by a scan of their columns."""
    import dask.array as da
    from dask import delayed

    reader.prepare()
    files, read, pick = _files(reader), delayed(read_file, pure=False), delayed(_column, pure=False)
    rows = [read(file) for file in files]

    def array(name: str, dtype: Any, *more: int) -> Any:
        pieces = [da.from_delayed(pick(each, name), (np.nan, *more), dtype=dtype) for each in rows]
        return da.concatenate(pieces, allow_unknown_chunksizes=True)

    found: dict[str, Any] = {"X": array("X", reader.dtype, reader.n_features)}
    for name in ("y", "sample_weight", "groups", "baseline"):
        of_words = name in ("y", "groups")
        there = name in reader.names
        found[name] = array(name, object if of_words else np.float64) if there else None
    return ClusterSource(**found, client=client, feature_names=reader.feature_names)


class _File:
    """A reader of one file, which Dask does not look into."""

    def __init__(self, reader: TableReader) -> None:
        self.reader = reader


def _files(reader: TableReader) -> list[_File]:
    dataset: Any = arrow("pyarrow.dataset")
    data, found = reader._data, []
    for fragment in data.get_fragments():
        one = copy.copy(reader)
        one._data = dataset.FileSystemDataset([fragment], data.schema, data.format, data.filesystem)
        one._stamps = one._found()
        found.append(_File(one))
    return found


def read_file(file: _File) -> dict[str, Any]:
    """The columns of a file as arrays."""
    reader = file.reader
    parts: dict[str, list[Any]] = {}
    is_number = "y" in reader.names and _is_number(reader)
    for batch in reader.batches(not is_number if "y" in reader.names else None):
        here = {name: getattr(batch, name) for name in ("y", "sample_weight", "groups", "baseline")}
        here["X"] = dense(batch.X).astype(reader.dtype, copy=False)
        for name, values in here.items():
            if values is not None:
                parts.setdefault(name, []).append(_plain(values))
    if not parts:
        none = {name: np.empty(0) for name in reader.names}
        return {**none, "X": np.empty((0, reader.n_features), reader.dtype)}
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}


def _is_number(reader: TableReader) -> bool:
    kind: Any = arrow("pyarrow.types")
    of = reader._data.schema.field(reader._roles["y"]).type
    return bool(kind.is_floating(of) or kind.is_integer(of) or kind.is_boolean(of))


def _plain(values: Any) -> Any:
    return np.array(values.values)[values.codes] if isinstance(values, Coded) else values


def _column(columns: dict[str, Any], name: str) -> Any:
    return columns[name]
