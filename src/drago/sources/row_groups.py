"""Parquet files, some row groups at a time.

A scanner of pyarrow decodes far ahead of a reader that is slower than it is, hundreds of megabytes
whatever it is told. Here the next row groups are decoded, by all of pyarrow's threads, while the
last ones are used, and no more than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from drago.sources.columns import arrow

# Bytes of decoded row groups at once, as far as their size allows.
_BYTES = 32 << 20


def is_parquet(data: Any) -> bool:
    """Whether a dataset is one of Parquet files."""
    kind = arrow("pyarrow.dataset").ParquetFileFormat
    return isinstance(getattr(data, "format", None), kind) and hasattr(data, "get_fragments")


def batches_of(data: Any, columns: list[str], filters: Any, rows: int) -> Iterator[Any]:
    """Record batches of at most so many rows, in the order of the files.

    Parameters
    ----------
    data : dataset of Parquet files
    columns : list of str
    filters : expression of pyarrow or None
    rows : int
    """
    settings = {"schema": data.schema, "columns": columns, "filter": filters}
    waiting: deque[Future[Any]] = deque()
    # Left on every way out: it waits for what is being decoded.
    with ThreadPoolExecutor(1, "drago-decoder") as decoder:
        for piece in _pieces(data, filters):
            waiting.append(decoder.submit(piece.to_table, **settings))
            if len(waiting) > 1:
                yield from waiting.popleft().result().to_batches(rows)
        while waiting:
            yield from waiting.popleft().result().to_batches(rows)


def _pieces(data: Any, filters: Any) -> Iterator[Any]:
    """Parts of the files: as many row groups as make a piece of some size, one at least."""
    for file in data.get_fragments(filter=filters):
        chosen: list[int] = []
        size = 0
        for group in file.row_groups:
            chosen.append(group.id)
            size += group.total_byte_size
            if size >= _BYTES:
                yield file.subset(row_group_ids=chosen)
                chosen, size = [], 0
        if chosen:
            yield file.subset(row_group_ids=chosen)
