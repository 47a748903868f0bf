"""What users make sources with."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago._validation import check_option
from drago.sources.arrays import ArraysReader
from drago.sources.batches import BatchesReader
from drago.sources.cluster import read_on
from drago.sources.source import Source
from drago.sources.tables import TableReader, arrow_dataset, parquet_dataset


def from_arrays(
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    baseline: Any = None,
    feature_names: Any = None,
    dtype: Any = None,
    standardize: bool = False,
    shuffle: bool | int = False,
    cache_dir: Any = None,
    keep_cache: bool = False,
    memory_limit: Any = None,
) -> Source:
    """A source of arrays that need not fit memory.

    Parameters
    ----------
    X : path, memory map, or an object with `shape`, `dtype` and slices of rows
        A ``.npy`` file or a `numpy.memmap` of float32 or float64 in C order is read where it lies,
        without a copy. A ``.npz`` file of `scipy.sparse.save_npz`, or a list of such files, holds
        CSR matrices, each of which has to fit memory. Anything else with slices, such as an array
        of Zarr, is copied to blocks.
    y, sample_weight, groups, baseline : the same with one entry a row, optional
        As in `DROProblem`; y may hold labels of any kind for a classification.
    feature_names : sequence of str, optional
    dtype : {None, "float32", "float64"}
        None is float32 for features of float32, else float64.
    standardize, shuffle, cache_dir, keep_cache, memory_limit
        See `Source`.

    Returns
    -------
    Source

    Examples
    --------
    >>> import numpy as np, drago
    >>> source = drago.from_arrays(np.eye(3), [1.0, 2.0, 6.0], memory_limit="1GB")
    >>> problem = drago.DROProblem(source, uncertainty=drago.CVaR(0.5), shift_cost=0.1)
    >>> problem.n_samples
    3
    """
    vectors = {"y": y, "sample_weight": sample_weight, "groups": groups, "baseline": baseline}
    reader = ArraysReader(X, vectors, feature_names, as_dtype(dtype))
    return Source(
        reader,
        standardize=standardize,
        shuffle=shuffle,
        cache_dir=cache_dir,
        keep_cache=keep_cache,
        memory_limit=memory_limit,
    )


def read_parquet(
    path: Any,
    target: str | None = None,
    *,
    features: Any = None,
    sample_weight: str | None = None,
    groups: Any = None,
    baseline: str | None = None,
    filters: Any = None,
    fill: Any = None,
    max_categories: int = 100,
    dtype: Any = None,
    standardize: bool = False,
    shuffle: bool | int = False,
    cache_dir: Any = None,
    keep_cache: bool = False,
    memory_limit: Any = None,
    client: Any = None,
) -> Any:
    """A source of Parquet files, which need not fit memory.

    Numbers and flags are features as they are. Text and categories become a feature of 0 and 1 for
    each of their words ("colour=red"), which are found by a first scan of these columns. Dates,
    decimals and nested columns are refused by name.

    Parameters
    ----------
    path : path or list of paths
        A file, a folder of files, a folder of hive partitions (``year=2024/...``) whose names are
        columns then, or a pattern with ``*``.
    target : str, optional
        The column of y: numbers, or labels of any kind for a classification. A source without one
        is good for predictions.
    features : list of str, optional
        All columns that have no other part to play, where it is None.
    sample_weight, baseline : str, optional
        Columns, see `DROProblem`.
    groups : str or list of str, optional
        The column of the groups; several are crossed.
    filters : expression of `pyarrow.dataset` or list of (column, operator, value), optional
        Which rows to read.
    fill : number, str or dict of column to value, optional
        What stands in for nulls and NaN: a number in columns of numbers, a word in columns of
        words. Without it they are an error that names the column and counts them.
    max_categories : int
        How many words a column may have.
    dtype : {None, "float32", "float64"}
        None is float32 where a feature is float32 and float32 holds all others exactly, else
        float64.
    standardize, shuffle, cache_dir, keep_cache, memory_limit
        See `Source`.
    client : distributed.Client, optional
        Have each worker of a Dask cluster read its own files and keep their rows
        (docs/cluster.md). The workers have to see the files under the same path; `memory_limit` and
        `cache_dir` are about the workers then, see `from_dask`.

    Returns
    -------
    Source
        With a client, a `ClusterSource`.

    Examples
    --------
    >>> import os, tempfile
    >>> import pyarrow as pa
    >>> import pyarrow.parquet as pq
    >>> import drago
    >>> path = os.path.join(tempfile.mkdtemp(), "rows.parquet")
    >>> table = {"x": [0.0, 1.0, 2.0], "colour": ["red", "green", "red"], "y": [1.0, 2.0, 6.0]}
    >>> pq.write_table(pa.table(table), path)
    >>> source = drago.read_parquet(path, target="y")
    >>> drago.DRORegressor().fit(source).feature_names_in_.tolist()
    ['x', 'colour=green', 'colour=red']
    """
    roles = {"y": target, "sample_weight": sample_weight, "groups": groups, "baseline": baseline}
    columns = {"features": features, "filters": filters, "fill": fill, "dtype": as_dtype(dtype)}
    if client is not None:
        _refuse_with_client(standardize=standardize, shuffle=shuffle, keep_cache=keep_cache)
        reader = TableReader(
            *parquet_dataset(path), roles, **columns, max_categories=max_categories
        )
        return read_on(client, reader, memory_limit, cache_dir)
    return _of_table(
        *parquet_dataset(path),
        roles=roles,
        columns=columns,
        max_categories=max_categories,
        standardize=standardize,
        shuffle=shuffle,
        cache_dir=cache_dir,
        keep_cache=keep_cache,
        memory_limit=memory_limit,
    )


def _refuse_with_client(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise ValueError(
                f"{name}={value!r} does not go with client=, whose workers keep the rows as they "
                "are: leave it out."
            )


def from_arrow(
    data: Any,
    target: str | None = None,
    *,
    features: Any = None,
    sample_weight: str | None = None,
    groups: Any = None,
    baseline: str | None = None,
    filters: Any = None,
    fill: Any = None,
    max_categories: int = 100,
    dtype: Any = None,
    standardize: bool = False,
    shuffle: bool | int = False,
    cache_dir: Any = None,
    keep_cache: bool = False,
    memory_limit: Any = None,
) -> Source:
    """A source of what pyarrow reads or holds.

    Parameters
    ----------
    data : Dataset, Table or RecordBatchReader of pyarrow, or a table with its C stream interface
        A reader can be read once only, which is enough for one fit of numbers.
    target, features, sample_weight, groups, baseline, filters, fill, max_categories, dtype
        See `read_parquet`.
    standardize, shuffle, cache_dir, keep_cache, memory_limit
        See `Source`.

    Returns
    -------
    Source

    Examples
    --------
    >>> import pyarrow as pa
    >>> import drago
    >>> table = pa.table({"x": [0.0, 1.0, 2.0], "y": [1.0, 2.0, 6.0]})
    >>> drago.DROProblem(drago.from_arrow(table, target="y")).n_samples
    3
    """
    return _of_table(
        *arrow_dataset(data),
        roles={"y": target, "sample_weight": sample_weight, "groups": groups, "baseline": baseline},
        columns={"features": features, "filters": filters, "fill": fill, "dtype": as_dtype(dtype)},
        max_categories=max_categories,
        standardize=standardize,
        shuffle=shuffle,
        cache_dir=cache_dir,
        keep_cache=keep_cache,
        memory_limit=memory_limit,
    )


def from_batches(
    batches: Any,
    *,
    feature_names: Any = None,
    dtype: Any = None,
    standardize: bool = False,
    shuffle: bool | int = False,
    cache_dir: Any = None,
    memory_limit: Any = None,
) -> Source:
    """A source of batches that a reader of your own gives.

    Parameters
    ----------
    batches : callable without arguments, or sequence
        A function that gives the batches anew each time it is called; it has to give the same rows
        each time, which is checked. A batch is ``(X, y)``, ``(X, y, sample_weight)``, or a dict
        with "X" and some of "y", "sample_weight", "groups" and "baseline"; X is an array, a frame
        of numbers or a sparse matrix.
    feature_names : sequence of str, optional
        The columns of a frame where there are some.
    dtype : {None, "float32", "float64"}
        None is float32 for features of float32, else float64.
    standardize, shuffle, cache_dir, memory_limit
        See `Source`.

    Returns
    -------
    Source

    Examples
    --------
    >>> import numpy as np, drago
    >>> def batches():
    ...     for seed in range(3):
    ...         X = np.random.default_rng(seed).normal(size=(100, 2))
    ...         yield X, X @ [1.0, -1.0]
    >>> drago.DROProblem(drago.from_batches(batches), shift_cost=0.1).n_samples
    300
    """
    return Source(
        BatchesReader(batches, feature_names, as_dtype(dtype)),
        standardize=standardize,
        shuffle=shuffle,
        cache_dir=cache_dir,
        memory_limit=memory_limit,
    )


def _of_table(
    data: Any,
    described: str,
    roles: dict[str, Any],
    columns: dict[str, Any],
    max_categories: int,
    **settings: Any,
) -> Source:
    reader = TableReader(data, described, roles, **columns, max_categories=max_categories)
    return Source(reader, **settings)


def as_dtype(dtype: Any) -> np.dtype[Any] | None:
    """float32, float64 or None."""
    if dtype is None:
        return None
    return np.dtype(check_option("dtype", np.dtype(dtype).name, ("float32", "float64")))
