"""Rows on the workers of a Dask cluster: of collections, or of files that each reads its own of."""

from __future__ import annotations

import copy
import os
from typing import Any, NamedTuple

import numpy as np

from drago._validation import shown
from drago.sources.batch import dense
from drago.sources.columns import arrow
from drago.sources.labels import Coded
from drago.sources.memory import as_bytes
from drago.sources.tables import TableReader


class ClusterSource(NamedTuple):
    """Rows on the workers of a cluster; `DROProblem` and the estimators take it.

    Made by `drago.from_dask`, or by `drago.read_parquet` with a client.

    Attributes
    ----------
    X, y, sample_weight, groups, baseline : Dask collections
        Of files a block for each; None where there is no such column.
    client : distributed.Client or None
        None is the current one.
    feature_names : tuple of str
        Empty where the features have no names.
    memory_limit : int, str or None
        Bytes of all workers' memory up to which the rows are held there, or text such as "4GB".
        None is three tenths of what the workers have.
    cache_dir : str or None
        Where workers put the features of more rows: each in its own directory where it is None.
    """

    X: Any
    y: Any
    sample_weight: Any
    groups: Any
    baseline: Any
    client: Any
    feature_names: tuple[str, ...]
    memory_limit: Any = None
    cache_dir: str | None = None

    def __repr__(self) -> str:
        blocks = getattr(self.X, "npartitions", 1)
        return f"ClusterSource({blocks} blocks, {self.X.shape[1]} features)"


def from_dask(
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    baseline: Any = None,
    client: Any = None,
    memory_limit: Any = None,
    cache_dir: Any = None,
) -> ClusterSource:
    """A source of Dask collections that need not fit the memory of the workers.

    Collections can be given to `DROProblem` and to the estimators as they are, too. A source of
    them says besides how much of the workers' memory their rows may take, and where the others go.

    Parameters
    ----------
    X : Dask array or frame
    y, sample_weight, groups, baseline : Dask array or series, or array, optional
        As in `DROProblem`.
    client : distributed.Client, optional
        The current one where it is None.
    memory_limit : int, str or None
        Bytes of all workers' memory that the rows may take, or text such as "40GB": 8 bytes a
        number (4 of float32) and 64 a row. Where they take more, the features go to files on the
        workers' disks. None is three tenths of the workers' limits; rows are held where a worker
        has none.
    cache_dir : str, optional
        A folder on the disk of each worker for these files; the worker's own directory
        (``local_directory`` of Dask) where it is None.

    Returns
    -------
    ClusterSource

    Examples
    --------
    >>> import dask.array as da
    >>> import drago
    >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(250, 3))
    >>> source = drago.from_dask(X, X[:, 0], memory_limit="1GB")
    >>> source
    ClusterSource(4 blocks, 3 features)
    """
    if not hasattr(X, "dask"):
        raise TypeError(
            f"X must be a collection of Dask's, but {shown(X)} was given: give arrays in memory to "
            "DROProblem or fit as they are, and files to from_arrays or read_parquet."
        )
    names = tuple(map(str, X.columns)) if hasattr(X, "columns") else ()
    given = (X, y, sample_weight, groups, baseline, client, names)
    return ClusterSource(*given, *_limits(memory_limit, cache_dir))


def _limits(memory_limit: Any, cache_dir: Any) -> tuple[Any, str | None]:
    """What was given, checked."""
    limit = None if memory_limit is None else as_bytes(memory_limit)
    if cache_dir is None:
        return limit, None
    return limit, os.path.abspath(os.path.expanduser(os.fsdecode(cache_dir)))


def read_on(
    client: Any, reader: TableReader, memory_limit: Any = None, cache_dir: Any = None
) -> ClusterSource:
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
    limit, folder = _limits(memory_limit, cache_dir)
    return ClusterSource(
        **found,
        client=client,
        feature_names=reader.feature_names,
        memory_limit=limit,
        cache_dir=folder,
    )


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
