"""Rows that were scanned once, read from their blocks: some of them make another source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.files.blocks import Blocks
from drago.sources.batch import Batch, as_batch
from drago.sources.numbers import Numbers

Array = npt.NDArray[Any]

# Bytes of rows that are read at once.
_BYTES = 16 << 20


class BlocksReader:
    """Rows of blocks, as they were encoded and standardised.

    Parameters
    ----------
    blocks : Blocks
        Their labels and groups are the numbers that the scan gave them.
    described : str
    kept : callable, optional
        From numbers of rows to whether they are wanted; all of them without it.
    """

    once = False

    def __init__(
        self,
        blocks: Blocks,
        described: str,
        kept: Callable[[Numbers], Array] | None = None,
    ) -> None:
        self.blocks, self.described, self._kept = blocks, described, kept
        self.is_sparse, self.n_features = blocks.is_sparse, blocks.n_features
        self.dtype = blocks.columns["data" if blocks.is_sparse else "X"].dtype
        self.feature_names = blocks.feature_names
        others = ("y", "sample_weight", "groups", "baseline")
        self.names = frozenset(name for name in others if name in blocks.columns)
        self.n_rows: int | None = blocks.n_samples

    def prepare(self, known: dict[str, Any] | None = None) -> None:
        """All is known."""

    def known(self) -> dict[str, Any]:
        return {}

    def encoded(self, known: dict[str, Any]) -> BlocksReader:
        return self

    def identity(self) -> Any:
        """None: what is made of these rows is not for another process."""
        return None

    def batches(self, labels: bool | None) -> Iterator[Batch]:
        """The rows that are wanted in the order of the source, some 16 MB at a time."""
        blocks = self.blocks
        width = max(1, self.n_features * self.dtype.itemsize)
        if self.is_sparse:
            width = max(1, 12 * blocks.columns["data"].shape[0] // blocks.n_samples)
        step = max(1, _BYTES // width)
        order = blocks.columns.get("order")
        for first, last in pairwise((0, *blocks.ends)):
            whole, places = None, np.empty(0, np.int64)
            if order is not None:  # the rows of a part are in another order than in the source
                whole = self._read(first, last, labels)
                places = np.argsort(order.read(first, last))
            for start in range(first, last, step):
                stop = min(start + step, last)
                if whole is None:
                    found = self._read(start, stop, labels)
                else:
                    index = places[start - first : stop - first]
                    found = {name: values[index] for name, values in whole.items()}
                batch = as_batch(**found, labels=labels)
                if self._kept is not None:
                    batch = batch.take(self._kept(np.arange(start, stop)))
                yield batch

    def _read(self, start: int, stop: int, labels: bool | None) -> dict[str, Any]:
        """Rows of the blocks as they lie there."""
        found = {"X": self._features(start, stop)}
        for name in self.names if labels is not None else ():
            values = self.blocks.columns[name].read(start, stop)
            is_label = name == "groups" or (name == "y" and labels)
            found[name] = values.astype(np.int64) if is_label else values
        return found

    def _features(self, start: int, stop: int) -> Any:
        columns = self.blocks.columns
        if not self.is_sparse:
            return columns["X"].read(start, stop)
        from scipy.sparse import csr_matrix

        ends = columns["indptr"].read(start, stop + 1)
        first, last = int(ends[0]), int(ends[-1])
        parts = columns["data"].read(first, last), columns["indices"].read(first, last)
        return csr_matrix((*parts, ends - first), shape=(stop - start, self.n_features))
