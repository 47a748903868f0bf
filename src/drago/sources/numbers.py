"""Rows by their number: folds and samples that depend on it alone, and on a seed.

Rows are numbered in the order of the source, without those of weight 0. What is drawn does not
depend on parts, batches or the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago._frames import as_frame
from drago._interrupts import poll
from drago._progress import tell
from drago.sources.batch import Batch, dense
from drago.sources.labels import Coded

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

_STEP = 0x9E3779B97F4A7C15


def keys_of(numbers: Numbers, seed: int = 0) -> npt.NDArray[np.uint64]:
    """A hash of each number, all 64 bits of it: that of the generator SplitMix64.

    With ``z = (number + 1) G + h(seed)``, G = 0x9E3779B97F4A7C15 and h the same hash of the seed::

        z = (z xor z >> 30) 0xBF58476D1CE4E5B9
        z = (z xor z >> 27) 0x94D049BB133111EB
        z xor z >> 31                                   modulo 2^64
    """
    start = 0 if seed == 0 else int(keys_of(np.array([seed - 1]))[0])
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def folds_of(numbers: Numbers, n_folds: int, seed: int = 0) -> Numbers:
    """The fold of each row, ``floor(n_folds (key / 2^32) / 2^32)``: 0 to n_folds - 1.

    The keys are those of the seed ``2 seed``; samples have those of ``2 seed + 1``, so that every
    sample lies across all folds.
    """
    high = keys_of(numbers, 2 * seed) >> np.uint64(32)
    return ((high * np.uint64(n_folds)) >> np.uint64(32)).astype(np.int64)


class Sample(NamedTuple):
    """Rows of a source in memory, in their order.

    Attributes
    ----------
    X : array or CSR matrix of float64
    y, groups : array or None
        Labels as they are in the source, or numbers.
    sample_weight, baseline : array of float64 or None
    numbers : array of int
        Which rows they are, of those with positive weight.
    n_rows : int
        How many of these there are in all.
    feature_names : tuple of str or None
    """

    X: Any
    y: Any
    groups: Any
    sample_weight: Any
    baseline: Any
    numbers: Numbers
    n_rows: int
    feature_names: tuple[str, ...] | None = None

    def frame(self) -> Any:
        """The features with their names where they have some and pandas is installed."""
        if self.feature_names is None or not isinstance(self.X, np.ndarray):
            return self.X
        try:
            return as_frame(dict(zip(self.feature_names, self.X.T)))
        except ImportError:
            return self.X

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows."""
        return bool(self.numbers.size == self.n_rows)

    @property
    def words(self) -> str:
        """What part of the source it is, for a message."""
        size = self.numbers.size
        return (
            f"all {size} rows" if size == self.n_rows else f"{size} rows drawn from {self.n_rows}"
        )


def sample_of(batches: Iterable[Batch], size: int, seed: int, names: Any = None) -> Sample:
    """The `size` rows of positive weight with the least keys, which is a uniform sample; or all.

    Parameters
    ----------
    batches : batches of a source, in one reading
    size : int
    seed : int
    names : tuple of str, optional
        Of the features.
    """
    found: list[dict[str, Any]] = []
    bound, waiting, n = np.uint64(2**64 - 1), 0, 0
    for batch in batches:
        poll()
        tell(batch.n_rows)
        weight = batch.sample_weight
        if weight is not None and not weight.all():
            batch = batch.take(weight > 0)
        keys = keys_of(np.arange(n, n + batch.n_rows), 2 * seed + 1)
        near = keys <= bound
        if near.any():
            kept = _columns(batch.take(near))
            found.append({**kept, "keys": keys[near], "numbers": n + np.flatnonzero(near)})
        n, waiting = n + batch.n_rows, waiting + int(np.count_nonzero(near))
        if 4 * waiting > 5 * size:
            found = [_least(found, size)]
            waiting, bound = size, found[0]["keys"].max()
    if not n:
        raise ValueError("the source has no rows of positive weight; give it some.")
    whole = _least(found, size)
    order = np.argsort(whole["numbers"])
    columns = ("X", "y", "groups", "sample_weight", "baseline", "numbers")
    chosen: dict[str, Any] = {
        name: whole.pop(name)[order] if name in whole else None for name in columns
    }
    return Sample(**chosen, n_rows=n, feature_names=names)


def _columns(batch: Batch) -> dict[str, Any]:
    """What a batch has, as arrays."""
    X = batch.X.astype(np.float64) if hasattr(batch.X, "indptr") else dense(batch.X)
    found = {"X": X}
    for field in fields(batch)[1:]:
        given = getattr(batch, field.name)
        if isinstance(given, Coded):
            found[field.name] = np.array(given.values)[given.codes]
        elif given is not None:
            found[field.name] = given
    return found


def _least(found: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The rows with the least keys of all."""
    keys = np.concatenate([each["keys"] for each in found])
    chosen = np.arange(keys.size)
    if keys.size > size:
        chosen = np.argpartition(keys, size - 1)[:size]
    whole = {}
    for name in list(found[0]):  # a column after the other, so that few are there twice
        whole[name] = _joined([each.pop(name) for each in found])[chosen]
    return whole


def _joined(parts: list[Any]) -> Any:
    if not hasattr(parts[0], "indptr"):
        return np.concatenate(parts)
    from scipy.sparse import vstack

    return vstack(parts, format="csr")
