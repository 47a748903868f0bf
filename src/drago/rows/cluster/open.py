"""Dask collections as rows on the workers: how they are cut into parts, and what is checked."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from drago._validation import check_features
from drago.rows.cluster.blocks import (
    Column,
    Recipe,
    Settings,
    cut_from,
    stacked,
    vectors_of,
)
from drago.rows.cluster.blocks import Facts as Facts
from drago.rows.cluster.cache import cache_for
from drago.rows.cluster.engine import Engine, LocalEngine, as_engine
from drago.rows.cluster.store import DaskRows, Layout
from drago.rows.open import NEGLIGIBLE, Opened
from drago.rows.part import ArrayPart

LOCAL = (
    "there is no Dask client, so the rows are worked on by threads of this process: make a "
    "distributed.Client first to use a cluster."
)


@dataclass(frozen=True)
class _PartRule:
    """How large the parts are; it depends on the data alone, and so do all sums."""

    parts: int = 32
    """So many parts where these are neither too small nor too large."""
    least: int = 1 << 25
    """Bytes of a part below which neighbours are merged,"""
    most: int = 1 << 29
    """and bytes above which it is split."""


RULE = _PartRule()


def open_rows(X: Any, y: Any, *, loss: Any, sample_weight: Any, groups: Any) -> Opened:
    """The store of Dask collections, on the current client."""
    engine = as_engine(None)
    if isinstance(engine, LocalEngine):
        warnings.warn(LOCAL, UserWarning, stacklevel=4)
    return open_collections(engine, X, y, loss=loss, sample_weight=sample_weight, groups=groups)


def open_collections(
    engine: Engine,
    X: Any,
    y: Any,
    *,
    loss: Any,
    sample_weight: Any,
    groups: Any,
    memory_limit: Any = None,
    cache_dir: Any = None,
) -> Opened:
    """The same on an engine; in a cache on the workers' disks beyond a limit of memory."""
    if y is None:
        raise ValueError("y is missing: give the target of each row of X.")
    given = {"X": X, "y": y, "sample_weight": sample_weight, "groups": groups}
    delayed = {name: _delayed(name, each) for name, each in given.items() if each is not None}
    cache = cache_for(engine, X, delayed["X"], memory_limit, cache_dir)
    if cache is None:
        # All at once: what they have in common is then computed once.
        handles = iter(engine.blocks([each for some in delayed.values() for each in some]))
        columns = {
            name: Column(engine, name, list(itertools.islice(handles, len(some))), loss)
            for name, some in delayed.items()
        }
    else:
        columns = cache.columns(given, delayed, loss)
    n = columns["X"].n
    for name, column in columns.items():
        if column.n != n:
            raise ValueError(
                f"{name} must have one entry per row of X, which has {n} rows, but has {column.n}."
            )
    if n == 0:
        raise ValueError("X must have at least one row, but has none.")
    shape = columns["X"].shape
    target, n_outputs, label_type = _target(columns["y"], loss, n)
    labels = columns["groups"].labels("groups") if groups is not None else None
    weights = _weights(columns.get("sample_weight"), n)
    ends = _ends(columns["X"])
    parts = list(itertools.pairwise((0, *ends)))
    plan = _bundles(parts, engine.tasks_at_once if cache is None else len(parts))
    settings = Settings(loss, target, labels, weights)
    recipes = [_recipe(engine, columns, some, settings) for some in plan]
    if cache is None:
        bundles = [
            engine.map(make_parts, [made], *([each] for each in needed), name="part")[0]
            for made, needed in recipes
        ]
        engine.gather(engine.map(_are_there, bundles, name="check"), bundles)
    else:
        bundles = cache.made(recipes)
    sizes = [[b - a for a, b in some] for some in plan]
    facts = {
        "n_features": shape[0],
        "n_entries": sum(each.n_entries for each in columns["X"].facts),
        "is_sparse": columns["X"].facts[0].is_sparse,
        "is_uniform": sample_weight is None,
        "n_groups": 0 if labels is None else len(labels),
        "label_type": label_type,
        "row_bytes": max(1, columns["X"].n_bytes // n) + 40,
        "has_groups": groups is not None,
        "has_baseline": False,
        "notice": "" if cache is None else cache.notice,
    }
    return Opened(DaskRows(Layout(engine, bundles, sizes), facts), None, n_outputs)


def _delayed(name: str, values: Any) -> list[Any]:
    """The blocks of a collection."""
    if hasattr(values, "to_dask_array"):  # a frame or a series
        return list(values.to_delayed())
    if not hasattr(values, "dask"):
        import dask.array as da

        values = da.from_array(np.asarray(values), chunks=(1 << 20, *np.shape(values)[1:]))
    if values.ndim == 2 and len(values.chunks[1]) > 1:
        values = values.rechunk({1: -1})
    return values.to_delayed(optimize_graph=False).ravel().tolist()


def _target(column: Column, loss: Any, n: int) -> tuple[Any, int, Any]:
    """The type of labels, raw predictions of a row, and the type of the target."""
    if not loss.is_classification:
        return None, loss.n_outputs(np.zeros(1)), np.dtype(np.float64)
    labels = column.labels("y")
    if labels.dtype.kind not in "biuf":
        loss.check_target(labels, labels.size)  # says what it wants
    most = float(np.nan_to_num(labels.astype(np.float64).max(), posinf=0.0))
    checked = np.resize(labels, max(labels.size, min(n, int(most) + 1)))
    checked = loss.check_target(checked, checked.size)
    return checked.dtype, loss.n_outputs(checked), checked.dtype


def _weights(column: Column | None, n: int) -> tuple[float, ...]:
    """What weights are divided by: nothing where they are all the same."""
    if column is None:
        return (float(n),)
    most = max(each.most for each in column.facts)
    if not min(each.least for each in column.facts) > NEGLIGIBLE * most:
        raise ValueError(
            "sample_weight must be positive on all rows on a cluster, but some weigh nothing or "
            "next to nothing: leave these rows out."
        )
    return (most,)


def _ends(column: Column) -> list[int]:
    """Where the parts end: blocks that are too small are merged, too large ones split."""
    per_row = max(column.n_bytes / column.n, 1e-300)
    wanted = min(max(column.n_bytes // RULE.parts, RULE.least), RULE.most)
    rows = max(1, int(wanted / per_row))
    ends, done, open_ = [], 0, 0
    for each in column.facts:
        if open_ and open_ + each.n > rows:
            ends.append(done)
            open_ = 0
        if each.n > 2 * rows:
            count = -(-each.n // rows)
            ends += [done + each.n * k // count for k in range(1, count)]
            open_ = each.n - each.n * (count - 1) // count
        else:
            open_ += each.n
        done += each.n
    return [*ends, done]


def _bundles(parts: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    """Neighbours together, so that there are about so many bundles of about as many rows."""
    total, out = parts[-1][1], [[parts[0]]]
    for part in parts[1:]:
        if part[0] >= total * len(out) / min(count, len(parts)):
            out.append([])
        out[-1].append(part)
    return out


def _recipe(
    engine: Engine, columns: dict[str, Column], parts: Any, settings: Settings
) -> tuple[Recipe, list[Any]]:
    """How a bundle is made, and the blocks it is made of."""
    needed: list[Any] = []
    places: dict[tuple[str, int], int] = {}
    recipes = []
    for a, b in parts:
        recipe: dict[str, Any] = {}
        for name, column in columns.items():
            pieces = []
            for block, start, stop in column.pieces(a, b):
                if (name, block) not in places:
                    places[name, block] = len(needed)
                    needed.append(column.handles[block])
                pieces.append((places[name, block], start, stop))
            recipe[name] = pieces
        recipes.append(recipe)
    total = None
    if "sample_weight" in columns:
        total = _total(engine, columns["sample_weight"], settings.weights[0])
    return Recipe(recipes, settings, total), needed


def _total(engine: Engine, column: Column, most: float) -> Any:
    """The sum of all weights, which is taken once."""
    if not hasattr(column, "total"):
        column.total = column.sum_over(engine, most)  # type: ignore[attr-defined]
    return column.total  # type: ignore[attr-defined]


def make_parts(recipe: Recipe, *blocks: Any) -> list[ArrayPart]:
    """The parts of a bundle, checked."""
    return [_part(recipe, part, blocks) for part in recipe.parts]


def _part(recipe: Recipe, of: dict[str, Any], blocks: Sequence[Any]) -> ArrayPart:
    X = stacked(cut_from("X", of["X"], blocks))
    X = check_features(X)
    if isinstance(X, np.ndarray):
        X = np.require(X, requirements=["C", "A"])
    return ArrayPart(X, *vectors_of(recipe, of, blocks, X.shape[0]))


@sizeof.register(ArrayPart)
def _size_of(part: ArrayPart) -> int:
    """Bytes of a part, so that Dask knows when to move some to a worker's disk."""
    X = (part.X,) if not part.is_sparse else (part.X.data, part.X.indices, part.X.indptr)
    vectors = [each for each in (part.y, part.p, part.groups, part.baseline) if each is not None]
    return sum(int(each.nbytes) for each in (*X, *vectors))


def _are_there(parts: Sequence[ArrayPart]) -> int:
    return len(parts)
