"""Files of rows: CSV, Parquet, Feather, and folders of Parquet, in and out."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from drago.files.archive import discard
from drago.sources.columns import arrow
from drago.sources.memory import as_bytes, as_text
from drago.sources.tables import parquet_dataset

CSV = (".csv", ".csv.gz", ".csv.zip", ".csv.bz2", ".csv.xz", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
FEATHER = (".feather", ".arrow", ".ipc")
FORMATS = ".csv (also .tsv, .txt, .csv.gz), .parquet, .feather, or a folder of Parquet files"
# Bytes that a frame takes for each byte of CSV, for a number, and for a word, with the copies
# that a fit makes.
_OF_CSV, _NUMBER, _WORD = 4, 32, 150
# Characters of a file that are looked at for the separator.
_HEADER = 1 << 16


def kind_of(path: str) -> str:
    """ "csv", "parquet", "feather" or "folder"; an error for others."""
    name = os.path.basename(path).lower()
    if os.path.isdir(path):
        return "folder"
    for kind, endings in (("csv", CSV), ("parquet", PARQUET), ("feather", FEATHER)):
        if name.endswith(endings):
            return kind
    raise ValueError(f"{path} is none of {FORMATS}: give it one of these endings, or convert it.")


def is_large(path: str, memory_limit: str | None) -> bool:
    """Whether the rows are more than memory shall hold, and Parquet."""
    kind = kind_of(path)
    _require_file(path)
    limit = as_bytes(memory_limit)
    if kind in ("parquet", "folder"):
        with _named(path, kind):
            data = parquet_dataset(path)[0]
            widths = [_WORD if _is_text(field.type) else _NUMBER for field in data.schema]
            return data.count_rows() * sum(widths) > limit
    size = os.path.getsize(path) * (_OF_CSV if kind == "csv" else 2)
    if size > limit:
        raise ValueError(
            f"{path} would take about {as_text(size)} in memory, and {as_text(limit)} are allowed: "
            "convert it to Parquet, which is read in parts, or give a larger --memory-limit."
        )
    return False


def _is_text(kind: Any) -> bool:
    types = arrow("pyarrow.types")
    return not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _require_file(path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(2, "There is no such file or folder", path)


def read(path: str) -> pd.DataFrame:
    """All rows of a file or a folder as a frame."""
    kind = kind_of(path)
    _require_file(path)
    with _named(path, kind):
        if kind == "csv":
            frame = pd.read_csv(
                path, sep=_separator(path), low_memory=False, float_precision="round_trip"
            )
        elif kind == "feather":
            frame = arrow("pyarrow.feather").read_table(path).to_pandas()
        else:
            frame = parquet_dataset(path)[0].to_table().to_pandas()
    frame.columns = [str(name) for name in frame.columns]
    double = frame.columns[frame.columns.duplicated()].tolist()
    if double:
        raise ValueError(f"{path} has several columns of the name {double[0]!r}: rename them.")
    if not len(frame):
        raise ValueError(f"{path} has no rows.")
    return frame


@contextmanager
def _named(path: str, kind: str) -> Iterator[None]:
    """What goes wrong with a file names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in UTF-8 (byte {error.start}): convert it, as with "
            "`iconv -f LATIN1 -t UTF-8`."
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, arrow().ArrowException) as error:
        raise ValueError(f"{path} cannot be read as {kind}: {str(error).strip()}") from error


def _separator(path: str) -> str:
    """What stands between the columns: a comma, or what the first line has in place of it."""
    if path.lower().endswith(".tsv"):
        return "\t"
    if not path.lower().endswith((".csv", ".txt")):
        return ","
    with open(path, encoding="utf-8-sig") as file:
        header = file.readline(_HEADER)
    return max((",", ";", "\t"), key=lambda mark: (header.count(mark), mark == ","))


def batches(path: str, size: int = 1 << 18) -> Iterator[pd.DataFrame]:
    """The rows of Parquet files, some at a time."""
    for batch in parquet_dataset(path)[0].to_batches(batch_size=size):
        if batch.num_rows:
            yield batch.to_pandas()


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """The name of a new file that takes the place of another when it is whole."""
    require_place(path)
    partial = f"{path}.{secrets.token_hex(4)}.partial"
    try:
        yield partial
        os.replace(partial, path)
    finally:
        discard(partial)


def write(frame: pd.DataFrame, path: str) -> None:
    """Write a frame, by the ending of the name."""
    kind = out_kind(path)
    with replacing(path) as partial:
        if kind == "csv":
            mark = "\t" if path.lower().endswith(".tsv") else ","
            packed: Any = "gzip" if path.lower().endswith(".gz") else None
            frame.to_csv(partial, index=False, sep=mark, compression=packed)
        elif kind == "feather":
            frame.reset_index(drop=True).to_feather(partial)
        else:
            frame.to_parquet(partial, index=False)


def write_parts(frames: Iterator[pd.DataFrame], path: str) -> int:
    """Write frames to one Parquet file; returns how many rows it has."""
    if out_kind(path) != "parquet":
        raise ValueError(
            f"{path}: predictions for more rows than fit memory are written to .parquet only."
        )
    pyarrow, parquet = arrow(), arrow("pyarrow.parquet")
    count, writer = 0, None
    with replacing(path) as partial:
        try:
            for frame in frames:
                part = pyarrow.Table.from_pandas(frame, preserve_index=False)
                if writer is None:
                    writer = parquet.ParquetWriter(partial, part.schema)
                writer.write_table(part)
                count += part.num_rows
        finally:
            if writer is not None:
                writer.close()
    return count


def write_text(text: str, path: str) -> None:
    """Write a file of text."""
    with replacing(path) as partial:
        Path(partial).write_text(text, encoding="utf-8")


def out_kind(path: str) -> str:
    """The format of a file to be written, or an error."""
    if os.path.isdir(path):
        return "parquet"
    if not path.lower().endswith((".csv", ".csv.gz", ".tsv", *PARQUET, *FEATHER)):
        ending = os.path.splitext(path)[1] or "a name without an ending"
        raise ValueError(
            f"Predictions can be written as .csv, .tsv, .parquet or .feather, not {ending}."
        )
    return kind_of(path)


def require_place(path: str) -> None:
    """Raise where no file of this name can be written; better before anything long is done."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(2, "There is no folder for the file", path)
    if os.path.isdir(path):
        raise IsADirectoryError(21, "A folder is there already", path)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "The folder cannot be written to", folder)
