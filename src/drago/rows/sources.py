"""Rows of a source: arrays where they fit its limit, files where they do not."""

from __future__ import annotations

import warnings
from typing import Any

from drago.files.blocks import Blocks, Held
from drago.rows.open import Opened, open_arrays, with_baseline
from drago.rows.open import open_rows as open_given
from drago.sources.cluster import ClusterSource
from drago.sources.source import Source


def open_rows(X: Any, y: Any, *, loss: Any, sample_weight: Any, groups: Any) -> Opened:
    """The store of a source, which has its own target, weights, groups and baseline."""
    given = {"y": y, "sample_weight": sample_weight, "groups": groups}
    if isinstance(X, ClusterSource):
        return _on_cluster(X, given, loss)
    if not isinstance(X, Source):  # something else of ours, which may be rows of numbers
        return open_arrays(X, y, loss=loss, sample_weight=sample_weight, groups=groups)
    for name, values in given.items():
        if values is not None:
            raise TypeError(
                f"{name} was given beside {X!r}, which has its own: name it where the source is "
                "made."
            )
    blocks: Blocks = X.open(loss)
    if not all(isinstance(column, Held) for column in blocks.columns.values()):
        return open_given(blocks, None, loss=loss, sample_weight=None, groups=None)
    return open_held(blocks, loss)


def _on_cluster(X: ClusterSource, given: dict[str, Any], loss: Any) -> Opened:
    """The store of rows on the workers of a cluster."""
    from drago.rows.cluster.engine import LocalEngine, as_engine
    from drago.rows.cluster.open import LOCAL, open_collections

    for name, values in given.items():
        if values is not None:
            raise TypeError(f"{name} was given beside {X!r}, which has its own.")
    own = {"sample_weight": X.sample_weight, "groups": X.groups}
    own |= {"memory_limit": X.memory_limit, "cache_dir": X.cache_dir}
    y = X.y
    if y is not None and not loss.is_classification and hasattr(y, "astype"):
        y = y.astype(float)
    engine = as_engine(X.client)
    if isinstance(engine, LocalEngine):
        warnings.warn(LOCAL, UserWarning, stacklevel=5)
    opened = open_collections(engine, X.X, y, loss=loss, **own)
    if X.baseline is None:
        return opened
    return opened._replace(rows=with_baseline(opened.rows, X.baseline, None))


def open_held(blocks: Blocks, loss: Any) -> Opened:
    """The store of blocks that are all in memory."""
    held: dict[str, Any] = {
        name: column.read(0, column.shape[0]) for name, column in blocks.columns.items()
    }
    X = held.get("X")
    if X is None:
        from scipy.sparse import csr_matrix

        parts = held["data"], held["indices"], held["indptr"]
        X = csr_matrix(parts, shape=(blocks.n_samples, blocks.n_features))
    weight, groups = held.get("sample_weight"), held.get("groups")
    opened = open_arrays(X, held["y"], loss=loss, sample_weight=weight, groups=groups)
    if "baseline" not in held:
        return opened
    return opened._replace(rows=with_baseline(opened.rows, held["baseline"], opened.kept))
