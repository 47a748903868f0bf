"""Blocks of Dask collections: what is told of them, and how parts are made of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from drago._validation import check_features, check_sample_weight, is_missing
from drago.rows.cluster.engine import Engine


class Facts(NamedTuple):
    """What is known of a block: rows, features, bytes, entries, kind, labels, weights, groups."""

    n: int
    shape: tuple[int, ...]
    n_bytes: int
    n_entries: int
    is_sparse: bool
    values: Any
    """Distinct values of labels or groups."""
    most: float
    least: float


class Column:
    """A collection in blocks on the workers, with what is known of each."""

    def __init__(self, engine: Engine, name: str, handles: list[Any], loss: Any) -> None:
        self.name, self.handles = name, handles
        wants = name == "groups" or (name == "y" and loss.is_classification)
        count = len(self.handles)
        told = engine.map(facts_of, self.handles, [name] * count, [wants] * count, name="look")
        self._settle(name, handles, engine.gather(told, self.handles))

    def _settle(self, name: str, handles: list[Any], found: list[Facts]) -> None:
        """Blocks with rows, and what they have in common."""
        self.name, self.handles = name, handles
        there = [(each, handle) for each, handle in zip(found, self.handles) if each.n]
        self.facts = [each for each, _ in there]
        self.handles = [handle for _, handle in there]
        self.n = sum(each.n for each in self.facts)
        self.ends = np.cumsum([each.n for each in self.facts])
        shapes = {each.shape for each in self.facts}
        if len(shapes) > 1:
            raise ValueError(f"{name} has blocks of unequal shapes: {sorted(shapes)}.")
        self.shape = next(iter(shapes), ())
        if name == "X" and len(self.shape) != 1:
            raise ValueError("X must have two dimensions (rows, features).")

    @property
    def n_bytes(self) -> int:
        return sum(each.n_bytes for each in self.facts)

    def sum_over(self, engine: Engine, most: float) -> float:
        """The sum of all entries, over the greatest: a sum of huge weights must not overflow."""
        told = engine.map(sum_over, self.handles, [most] * len(self.handles), name="sum")
        return sum(engine.gather(told))

    def labels(self, name: str) -> Any:
        """All distinct values."""
        try:
            return np.unique(np.concatenate([each.values for each in self.facts]))
        except TypeError:
            raise TypeError(f"{name} must hold labels of one sortable type.") from None

    def pieces(self, a: int, b: int) -> list[tuple[int, int, int]]:
        """The blocks that hold some rows: each by its number, and which of its rows."""
        first, last = np.searchsorted(self.ends, (a, b - 1), side="right")
        out = []
        for k in range(int(first), int(last) + 1):
            start = int(self.ends[k]) - self.facts[k].n
            out.append((k, max(a - start, 0), min(b - start, self.facts[k].n)))
        return out


def plain(name: str, block: Any) -> Any:
    """A block as an array or a CSR matrix."""
    if hasattr(block, "tocsr"):
        return block.tocsr()
    if hasattr(block, "dtypes") and hasattr(block, "columns"):  # a frame
        for column, dtype in zip(block.columns, block.dtypes):
            if getattr(dtype, "kind", "O") not in "biuf":
                raise ValueError(
                    f"{name} must hold numbers, but its column {column!r} is {dtype}: encode it "
                    "first (dask.dataframe.get_dummies), or read the files by drago.read_parquet, "
                    "which encodes categories."
                )
        block = block.to_numpy(dtype=np.result_type(*block.dtypes.tolist(), np.float32))
    if hasattr(block, "to_numpy"):
        return block.to_numpy()
    return np.asarray(block)


def facts_of(block: Any, name: str, wants: bool) -> Facts:
    block = plain(name, block)
    sparse = hasattr(block, "nnz")
    n_bytes = block.data.nbytes + block.indices.nbytes if sparse else block.nbytes
    entries = int(block.nnz) if sparse else int(block.size)
    values = None
    if name == "y" and block.ndim == 2 and block.shape[1] == 1:
        block = block[:, 0]
    if wants and block.shape[0]:
        if block.dtype.kind == "O" and any(map(is_missing, block)):
            raise ValueError(f"{name} holds missing labels: give these rows a label.")
        values = np.unique(block)
        if values.dtype.kind in "fMm" and (values != values).any():
            raise ValueError(f"{name} contains NaN labels: give these rows a label.")
    most = least = 0.0
    if name == "sample_weight" and block.size:
        block = check_sample_weight(block, block.shape[0]) if block.any() else block
        most, least = float(block.max()), float(block.min())
    shape = tuple(block.shape[1:])
    return Facts(block.shape[0], shape, n_bytes, entries, sparse, values, most, least)


def sum_over(block: Any, most: float) -> float:
    return float((plain("sample_weight", block).astype(np.float64) / most).sum())


class Settings(NamedTuple):
    """What is needed to make a part of blocks."""

    loss: Any
    target: Any
    labels: Any
    weights: tuple[float, ...]


class Recipe:
    """Of which rows of which blocks the parts of a bundle are made."""

    def __init__(self, parts: list[dict[str, Any]], settings: Settings, total: Any) -> None:
        self.parts, self.settings, self.total = parts, settings, total


def cut_from(name: str, pieces: Any, blocks: Sequence[Any]) -> list[Any]:
    return [plain(name, blocks[k])[a:b] for k, a, b in pieces]


def features_of(pieces: Any, blocks: Sequence[Any]) -> list[Any]:
    """The features of a part in pieces, each checked."""
    return [check_features(each) for each in cut_from("X", pieces, blocks)]


def vectors_of(
    recipe: Recipe, of: dict[str, Any], blocks: Sequence[Any], n: int
) -> tuple[Any, Any, Any]:
    """The target, the nominal weights and the groups of a part of n rows, checked."""
    loss, target, labels, weights = recipe.settings
    found = {
        name: stacked(cut_from(name, some, blocks)) for name, some in of.items() if name != "X"
    }
    y = found["y"]
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    y = loss.check_target(y, n) if target is None else y.astype(target)
    if "sample_weight" in found:
        p = check_sample_weight(found["sample_weight"], n) / weights[0] / recipe.total
    else:
        p = np.full(n, 1.0 / weights[0])
    groups = np.searchsorted(labels, found["groups"]) if "groups" in found else None
    return np.require(y, requirements=["C", "A"]), p, groups


def stacked(pieces: list[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    from scipy.sparse import vstack

    return vstack(pieces, format="csr")
