"""Rows that were scanned once, read from their blocks: some of them make another source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        """The rows that are wanted, some 16 MB at a time."""
        blocks = self.blocks
        width = max(1, self.n_features * self.dtype.itemsize)
        if self.is_sparse:
            width = max(1, 12 * blocks.columns["data"].shape[0] // blocks.n_samples)
        step = max(1, _BYTES // width)
        for start in range(0, blocks.n_samples, step):
            stop = min(start + step, blocks.n_samples)
            X = self._features(start, stop)
            found: dict[str, Any] = {}
            if labels is not None:
                found = {name: blocks.columns[name].read(start, stop) for name in self.names}
            for name in ("y", "groups"):
                if name in found and (labels or name == "groups"):
                    found[name] = found[name].astype(np.int64)
            batch = as_batch(X, **found, labels=labels)
            yield batch if self._kept is None else batch.take(self._kept(np.arange(start, stop)))

    def _features(self, start: int, stop: int) -> Any:
        columns = self.blocks.columns
        if not self.is_sparse:
            return columns["X"].read(start, stop)
        from scipy.sparse import csr_matrix

        ends = columns["indptr"].read(start, stop + 1)
        first, last = int(ends[0]), int(ends[-1])
        parts = columns["data"].read(first, last), columns["indices"].read(first, last)
        return csr_matrix((*parts, ends - first), shape=(stop - start, self.n_features))
