"""Sources of tables: Parquet files and what else pyarrow reads."""

from __future__ import annotations

import copy
import glob
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from drago._validation import check_integer, shown
from drago.files.blocks import SourceChangedError
from drago.sources.batch import Batch
from drago.sources.columns import (
    Feature,
    NullsError,
    TableBlock,
    arrow,
    coded_column,
    is_words,
    number_column,
    words_of,
)
from drago.sources.labels import Coded
from drago.sources.row_groups import batches_of, is_parquet

# Bytes of rows that are decoded at once, and batches that are decoded ahead.
_BYTES, _AHEAD = 8 << 20, 4


class TableReader:
    """The columns of a dataset of pyarrow, or of a reader of record batches.

    Parameters
    ----------
    data : pyarrow.dataset.Dataset or pyarrow.RecordBatchReader
    described : str
    roles : dict
        The columns of "y", "sample_weight", "baseline" (a name or None) and "groups" (a name, a
        list of names or None).
    features : list of str, optional
        All other columns where it is None.
    filters : expression of pyarrow or lists of (column, operator, value), optional
    fill : number, str or dict, optional
    max_categories : int
    dtype : dtype, optional
    """

    is_sparse = False

    def __init__(
        self,
        data: Any,
        described: str,
        roles: dict[str, Any],
        *,
        features: Any,
        filters: Any,
        fill: Any,
        max_categories: int,
        dtype: np.dtype[Any] | None,
    ) -> None:
        self._data, self.described = data, described
        self.once = not hasattr(data, "scanner")
        self._most = check_integer("max_categories", max_categories, low=1)
        groups = roles.get("groups")
        self._groups = [groups] if isinstance(groups, str) else list(groups or [])
        self._roles = {
            name: column
            for name, column in roles.items()
            if name != "groups" and column is not None
        }
        self.names = frozenset(self._roles) | ({"groups"} if self._groups else set())
        taken = [*self._roles.values(), *self._groups]
        schema = data.schema
        if features is None:
            features = [name for name in schema.names if name not in taken and not _is_index(name)]
        features = [features] if isinstance(features, str) else list(features)
        self._require(schema, taken + features)
        both = sorted(set(features) & {self._roles.get("y")})
        if both:
            raise ValueError(f"features must not hold the target {both[0]!r}; leave it out.")
        if not features:
            raise ValueError(f"{described} has no column that is left to be a feature.")
        fills = fill if isinstance(fill, dict) else dict.fromkeys(features, fill)
        self._require(schema, list(fills), "fill")
        self._features = tuple(Feature.of(schema.field(name), fills.get(name)) for name in features)
        self._filters = _expression(filters)
        if self.once and (self._filters is not None or self._words()):
            words = [feature.name for feature in self._words()]
            what = f"the words of {words[0]!r} need" if words else "filters need"
            raise ValueError(
                f"{described} can be read once only, and {what} more than that; give a dataset of "
                "pyarrow, or a function to drago.from_batches."
            )
        exact = all(feature.exact for feature in self._features)
        single = exact and any(feature.is_float32 for feature in self._features)
        self.dtype = dtype or np.dtype(np.float32 if single else np.float64)
        self.n_rows: int | None = None
        self._stamps = self._found()
        self._is_prepared = self._is_spent = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One for each number, and one for each category."""
        return tuple(name for feature in self._features for name in feature.names)

    @property
    def n_features(self) -> int:
        """How many features the columns become."""
        return len(self.feature_names)

    # -------------------------------------------------------- what is known before a reading

    def prepare(self, known: dict[str, Any] | None = None) -> None:
        """Find the categories, by a scan of the columns that have some, and count the rows."""
        if known is not None:
            self._features = self._with(known["categories"])
            self._is_prepared = True
        if self._is_prepared:
            return
        found: dict[str, set[Any]] = {feature.name: set() for feature in self._words()}
        nulls = dict.fromkeys(found, 0)
        for batch in self._scan(list(found)) if found else ():
            for feature in self._words():
                column = batch.column(feature.name)
                nulls[feature.name] += column.null_count
                found[feature.name].update(words_of(column))
                self._require_few(feature.name, found[feature.name])
        for feature in self._words():
            if nulls[feature.name] and feature.fill is None:
                raise _nulls(feature.name, str(nulls[feature.name]), "a word")
        self._features = tuple(
            feature.with_categories(found[feature.name]) if feature.name in found else feature
            for feature in self._features
        )
        if self._filters is None and not self.once:
            self.n_rows = int(self._data.count_rows())
        self._is_prepared = True

    def known(self) -> dict[str, Any]:
        """The categories of each column."""
        return {
            "categories": {feature.name: list(feature.categories) for feature in self._features}
        }

    def encoded(self, known: dict[str, Any]) -> TableReader:
        """The same rows with the features of another source."""
        names = [feature.name for feature in self._features]
        wanted = list(known["categories"])
        missing = [name for name in wanted if name not in names]
        if missing:
            raise ValueError(
                f"{self.described} has no feature {missing[0]!r}, which the model was fitted on; "
                f"it has {shown(names)}."
            )
        other = copy.copy(self)
        by_name = {feature.name: feature for feature in self._features}
        other._features = tuple(by_name[name] for name in wanted)
        other._features = other._with(known["categories"])
        other._is_prepared = True
        return other

    def identity(self) -> Any:
        """The files with their sizes and times, and what is read of them."""
        stamps = self._found()
        if stamps is None:
            return None
        for before, now in zip(self._stamps or [], stamps):
            if before != now:
                raise SourceChangedError(
                    f"{now[0]} was changed or is gone since the source was made. Make it anew."
                )
        columns = [[feature.name, feature.kind, feature.fill] for feature in self._features]
        schema = [str(field.type) for field in self._data.schema]
        roles = [sorted(self._roles.items()), self._groups]
        return [stamps, columns, schema, roles, str(self._filters), self._most]

    def _found(self) -> Any:
        """The files with their sizes and times, as they are now; None where there are none."""
        files = getattr(self._data, "files", None)
        if files is None:
            return None
        found = self._data.filesystem.get_file_info(files)
        return [[info.path, info.size, info.mtime_ns] for info in found]

    # ------------------------------------------------------------------------- all the rows

    def batches(self, labels: bool | None) -> Iterator[Batch]:
        """All rows, some 8 MB at a time, decoded by pyarrow's threads."""
        try:
            for batch in self._scan(self._columns(alone=labels is None)):
                if batch.num_rows:
                    yield self._batch(batch, labels)
        except NullsError as found:
            raise self._count(found) from None

    def _batch(self, batch: Any, labels: bool | None) -> Batch:
        given: dict[str, Any] = {}
        if labels is None:
            return Batch(TableBlock.of(batch, self._features))
        for name, column in self._roles.items():
            read = coded_column if name == "y" and labels else number_column
            given[name] = read(column, batch.column(column))
            if not isinstance(given[name], Coded):
                _require_finite(column, given[name])
        if self._groups:
            given["groups"] = _crossed([coded_column(g, batch.column(g)) for g in self._groups])
        return Batch(TableBlock.of(batch, self._features), **given)

    def _scan(self, columns: list[str]) -> Iterator[Any]:
        if self.once:
            if self._is_spent:
                raise ValueError(
                    f"{self.described} was read already, which can be done once only; give a "
                    "dataset of pyarrow."
                )
            self._is_spent = True
            yield from self._data
            return
        width = 8 * max(1, self.n_features)
        rows = min(1 << 17, max(1024, _BYTES // width))
        try:
            if is_parquet(self._data):
                yield from batches_of(self._data, columns, self._filters, rows)
                return
            yield from self._data.scanner(
                columns=columns,
                filter=self._filters,
                batch_size=rows,
                batch_readahead=_AHEAD,
                fragment_readahead=1,
            ).to_batches()
        except (OSError, arrow().ArrowException):
            self.identity()  # which knows better what has happened, where a file was changed
            raise

    def _columns(self, alone: bool) -> list[str]:
        names = [feature.name for feature in self._features]
        if alone:
            return names
        return list(dict.fromkeys([*names, *self._roles.values(), *self._groups]))

    def _words(self) -> list[Feature]:
        return [feature for feature in self._features if feature.kind == "words"]

    def _with(self, categories: dict[str, Any]) -> tuple[Feature, ...]:
        return tuple(
            feature.with_categories(set(categories[feature.name]))
            if feature.kind == "words"
            else feature
            for feature in self._features
        )

    # ------------------------------------------------------------------------------ errors

    def _require(self, schema: Any, names: list[str], argument: str = "") -> None:
        for name in names:
            if name not in schema.names:
                where = f"{argument} names" if argument else "there is"
                raise ValueError(
                    f"{where} no column {name!r} of {self.described}, which has "
                    f"{', '.join(map(repr, schema.names[:20]))}"
                    f"{', ...' if len(schema.names) > 20 else ''}."
                )
        double = [name for name in names if schema.names.count(name) > 1]
        if double:
            raise ValueError(f"{self.described} has several columns of the name {double[0]!r}.")

    def _require_few(self, name: str, found: set[Any]) -> None:
        if len(found) > self._most:
            raise ValueError(
                f"column {name!r} has more than {self._most} different words, such as "
                f"{shown(sorted(found)[:3])}; leave it out of features=, merge some of them, or "
                "give a larger max_categories=."
            )

    def _count(self, found: NullsError) -> ValueError:
        """The error for a column with nulls, which are counted for it."""
        name, kind = found.name, "a number or a word"
        if self.once:
            return _nulls(name, f"at least {found.count}", kind)
        total = sum(batch.column(name).null_count for batch in self._scan([name]))
        is_feature = any(feature.name == name for feature in self._features)
        return _nulls(name, str(total), kind if is_feature else "")


def parquet_dataset(path: Any) -> tuple[Any, str]:
    """The dataset of a file, a folder, a pattern or a list of them, and what to call it."""
    dataset = arrow("pyarrow.dataset")
    if hasattr(path, "scanner"):
        return path, "a dataset"
    if isinstance(path, (str, os.PathLike)):
        name = os.fsdecode(path)
        found: Any = name
        if any(letter in name for letter in "*?[") and not os.path.exists(name):
            found = sorted(glob.glob(name, recursive=True))
            if not found:
                raise FileNotFoundError(f"no file matches {name!r}.")
        described = f"parquet {name}"
    else:
        found = []
        for part in path:
            name = os.fsdecode(part)
            inside = os.path.join(glob.escape(name), "**", "*.parquet")
            found += sorted(glob.glob(inside, recursive=True)) if os.path.isdir(name) else [name]
        if not found:
            raise ValueError(f"path must name at least one file, but {shown(path)} was given.")
        described = f"parquet {found[0]} and {len(found) - 1} more"
    try:
        data = dataset.dataset(found, format="parquet", partitioning="hive")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no file {error}; check the path that was given."
        ) from None
    words = [field.name for field in data.schema if is_words(field.type)]
    if words and data.files:
        # Words are decoded as numbers of a list, which is several times as fast.
        form = dataset.ParquetFileFormat(dictionary_columns=words)
        data = dataset.dataset(found, format=form, partitioning="hive")
    return data, described


def arrow_dataset(data: Any) -> tuple[Any, str]:
    """A dataset of what pyarrow holds, or a reader of batches as it is, and what to call it."""
    pyarrow, dataset = arrow(), arrow("pyarrow.dataset")
    if isinstance(data, pyarrow.RecordBatchReader):
        return data, "a reader of record batches"
    if isinstance(data, dataset.Dataset):
        return data, "a dataset of pyarrow"
    if isinstance(data, pyarrow.RecordBatch):
        data = pyarrow.Table.from_batches([data])
    if isinstance(data, pyarrow.Table):
        return dataset.dataset(data), f"a table of {data.num_rows} rows"
    if hasattr(data, "__arrow_c_stream__"):
        return dataset.dataset(pyarrow.table(data)), f"a table ({type(data).__name__})"
    raise TypeError(
        "data must be a Dataset, a Table or a RecordBatchReader of pyarrow, or have its C stream "
        f"interface, but {shown(data)} ({type(data).__name__}) was given."
    )


def _is_index(name: str) -> bool:
    """Whether pandas has written its index to a column of this name."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def _expression(filters: Any) -> Any:
    if filters is None or isinstance(filters, arrow("pyarrow.dataset").Expression):
        return filters
    return arrow("pyarrow.parquet").filters_to_expression(filters)


def _require_finite(name: str, values: Any) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f"column {name!r} contains NaN or infinite entries; remove these rows.")


def _nulls(name: str, count: str, kind: str) -> ValueError:
    mend = "drop such rows, with filters= for example"
    if kind:
        mend = f"give fill= {kind} for it, or {mend}"
    plural = "s" * (count != "1")
    return ValueError(f"column {name!r} has {count} missing value{plural}; {mend}.")


def _crossed(columns: list[Coded]) -> Coded:
    """The combinations of several columns, "black, F" for two."""
    whole = columns[0]
    if len(columns) == 1:
        return whole
    values, codes = [str(value) for value in whole.values], whole.codes
    for other in columns[1:]:
        pairs, codes = np.unique(codes * len(other.values) + other.codes, return_inverse=True)
        first, second = np.divmod(pairs, len(other.values))
        values = [f"{values[i]}, {other.values[j]}" for i, j in zip(first, second)]
        codes = codes.reshape(-1).astype(np.int64)
    return Coded(values, codes)
