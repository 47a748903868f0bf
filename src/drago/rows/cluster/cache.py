"""Rows that the workers have no memory for: which these are, and how they get to the disks.

The parts are those that would be in memory, so that the answer has the same bits. Each is made by
one task from the blocks of the collections, which nobody holds: what is told of them first, how
many rows they have and which labels, is computed beforehand where it is not known already.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from drago.files.disk import is_in_memory
from drago.rows.cluster import blocks as made_of
from drago.rows.cluster.disk import Block, DiskPart, worker_dir
from drago.rows.cluster.engine import ClusterEngine, Engine
from drago.sources.cache import require_room
from drago.sources.memory import as_bytes, as_text

# Share of all workers' memory up to which rows are held there: while parts are made they are there
# twice, and Dask begins to move data to its disks at 0.6.
SHARE = 0.3
# Bytes of a row that are set aside for what a solver keeps of it.
_ROW = 64
# What the vectors of a solve take, in bytes a row, and the share of the workers' memory up to which
# there is room for them beside a part that is read.
_SOLVED, _VECTORS = 120, 0.25


def cache_for(
    engine: Engine, X: Any, blocks: Sequence[Any], memory_limit: Any, cache_dir: Any
) -> Cache | None:
    """A cache for the blocks of X; None where they fit the memory, or nobody knows it."""
    memory = memory_of(engine)
    if memory_limit is None and memory is None:
        return None
    limit = int(SHARE * (memory or 0)) if memory_limit is None else as_bytes(memory_limit)
    known = known_facts(X)
    if known is None:
        # The middle one stands for all.
        block = engine.blocks([blocks[len(blocks) // 2]])
        facts = engine.gather(engine.map(made_of.facts_of, block, ["X"], [False], name="look"))
        known = facts * len(blocks)
    n = sum(each.n for each in known)
    size = sum(each.n_bytes for each in known) + _ROW * n
    if size <= limit:
        return None
    if memory is not None and _SOLVED * n > _VECTORS * memory:
        warnings.warn(
            f"the vectors of a solve take about {as_text(_SOLVED * n)} of the workers' "
            f"{as_text(memory)}, and these stay in memory while the features are on disks: have "
            "more workers, or give them more memory, before Dask runs short of it.",
            UserWarning,
            stacklevel=5,
        )
    return Cache(engine, None if cache_dir is None else os.fsdecode(cache_dir), size, limit)


def memory_of(engine: Engine) -> int | None:
    """Bytes of all workers; None where one of them has no known limit."""
    if not isinstance(engine, ClusterEngine):
        return None
    workers = engine.client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [each.get("memory_limit") for each in workers]
    return sum(limits) if limits and all(limits) else None


def known_facts(values: Any) -> list[Any] | None:
    """What is known of dense blocks before they are computed; None where something is not."""
    if not isinstance(getattr(values, "_meta", None), np.ndarray):
        return None
    sizes = values.chunks[0]
    shape, dtype = tuple(values.shape[1:]), np.dtype(values.dtype)
    if np.isnan(sum(sizes)) or np.isnan(sum(shape)) or dtype.kind not in "biuf":
        return None
    wide = int(np.prod(shape, dtype=np.int64))
    return [
        made_of.Facts(n, shape, n * wide * dtype.itemsize, n * wide, False, None, 0.0, 0.0)
        for n in map(int, sizes)
    ]


class LazyColumn(made_of.Column):
    """A collection in blocks that are computed when they are needed, and not held."""

    def __init__(self, engine: Engine, name: str, blocks: list[Any], loss: Any, values: Any):
        self._engine = engine
        wants = name == "groups" or (name == "y" and loss.is_classification)
        known = None if wants or name == "sample_weight" else known_facts(values)
        if known is None:
            known = self._told(made_of.facts_of, blocks, name, wants)
        self._settle(name, blocks, known)

    def _told(self, function: Any, blocks: Sequence[Any], *given: Any) -> list[Any]:
        from dask import delayed

        work = delayed(function, pure=False)
        return self._engine.gather(self._engine.blocks([work(each, *given) for each in blocks]))

    def sum_over(self, engine: Engine, most: float) -> float:
        return sum(self._told(made_of.sum_over, self.handles, most))


class Cache:
    """Where the features of the rows go: to the disks of the workers.

    Parameters
    ----------
    engine : Engine
    cache_dir : str or None
        A folder on every worker's own disk; None is the worker's directory.
    size, limit : int
        Bytes of the rows, and those that would be in memory.
    """

    def __init__(self, engine: Engine, cache_dir: str | None, size: int, limit: int) -> None:
        self.engine, self.cache_dir = engine, cache_dir
        self.size, self.limit = size, limit

    @property
    def notice(self) -> str:
        """What happens, for people."""
        return (
            f"the rows take about {as_text(self.size)}, more than {as_text(self.limit)} of the "
            "workers' memory: their features lie in a cache on the workers' disks."
        )

    def columns(self, given: dict[str, Any], blocks: dict[str, list[Any]], loss: Any) -> Any:
        """The collections, of which nothing is held."""
        return {
            name: LazyColumn(self.engine, name, some, loss, given[name])
            for name, some in blocks.items()
        }

    def made(self, recipes: Sequence[tuple[Any, Sequence[Any]]]) -> list[Any]:
        """The handles of bundles of one part each, from recipes and the blocks they need."""
        from dask import delayed

        work, key = delayed(make_part, pure=False), f"drago-disk-{uuid.uuid4().hex[:8]}"
        # All at once: a block that several parts need is then computed once.
        bundles = self.engine.blocks(
            [
                work(Given(recipe, self.cache_dir), *blocks, dask_key_name=f"{key}-{k}")
                for k, (recipe, blocks) in enumerate(recipes)
            ]
        )
        folders = self.engine.gather(self.engine.map(where, bundles, name="check"), bundles)
        mapped = sorted({folder for folder, in_memory in folders if in_memory})
        if mapped:
            warnings.warn(
                f"the cache of the workers lies in memory (tmpfs) in {mapped[0]}, where it takes "
                "what it was meant to spare: give the workers a local_directory= on a disk, or "
                "cache_dir= where the source is made.",
                UserWarning,
                stacklevel=2,
            )
        return bundles


class Given:
    """A recipe and a folder, which Dask does not look into."""

    def __init__(self, recipe: Any, cache_dir: str | None) -> None:
        self.recipe, self.cache_dir = recipe, cache_dir


def make_part(given: Given, *blocks: Any) -> list[DiskPart]:
    """A part in a bundle of its own, checked and on the disk."""
    (pieces,) = given.recipe.parts
    X = made_of.features_of(pieces["X"], blocks)
    require_room(given.cache_dir or worker_dir(), sum(map(_size, X)))
    if len({each.dtype for each in X}) > 1 or not isinstance(X[0], np.ndarray):
        X = [made_of.stacked(X)]
    n = sum(each.shape[0] for each in X)
    y, p, groups = made_of.vectors_of(given.recipe, pieces, blocks, n)
    block = Block(X if isinstance(X[0], np.ndarray) else X[0], given.cache_dir)
    part = DiskPart(block, np.array(y), p, groups)
    block.features  # noqa: B018  writes them
    return [part]


def _size(X: Any) -> int:
    return int(X.nbytes) if isinstance(X, np.ndarray) else int(X.data.nbytes + X.indices.nbytes)


def where(parts: Sequence[DiskPart]) -> tuple[str, bool]:
    """The folder of a part, and whether it is on a disk at all."""
    folder = parts[0].block.folder
    place = "" if folder is None else os.path.dirname(folder.path)
    return place, bool(place) and is_in_memory(place)
