"""Columns of a table as features: numbers and flags as they are, words one-hot."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import shown
from drago.sources.labels import Coded

Array = npt.NDArray[Any]

# Rows that are turned from columns to rows at once: they stay near the processor.
_TILE = 2048


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, or how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this source needs pyarrow, which could not be imported ({error}): "
            "pip install 'drago[data]'"
        ) from error


@dataclass(frozen=True)
class Feature:
    """A column that is a feature, or one feature for each of its categories.

    Parameters
    ----------
    name : str
    kind : {"number", "words"}
    exact : bool
        Whether float32 holds all of its values.
    categories : tuple
        Of words, in their order.
    fill : number or str, optional
        What stands in for nulls, and for NaN.
    """

    name: str
    kind: str
    exact: bool
    is_float32: bool = False
    categories: tuple[Any, ...] = ()
    fill: Any = None

    @classmethod
    def of(cls, field: Any, fill: Any) -> Feature:
        """The feature of a column, by its type."""
        types, kind = arrow("pyarrow.types"), field.type
        if types.is_dictionary(kind):
            kind = kind.value_type
            if not (is_words(kind) or types.is_integer(kind) or types.is_boolean(kind)):
                raise _refused(field)
        elif types.is_floating(kind):
            small = types.is_float16(kind) or types.is_float32(kind)
            return cls(field.name, "number", small, is_float32=small, fill=_number(field, fill))
        elif types.is_integer(kind) or types.is_boolean(kind):
            exact = types.is_boolean(kind) or kind.bit_width <= 16
            return cls(field.name, "number", exact, fill=_number(field, fill))
        elif not is_words(kind):
            raise _refused(field)
        if fill is not None and not isinstance(fill, str):
            fill = None  # a number is for numbers
        return cls(field.name, "words", True, fill=fill)

    @property
    def names(self) -> list[str]:
        """The names of its features."""
        if self.kind == "number":
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]

    def with_categories(self, found: set[Any]) -> Feature:
        """The feature with the categories that a scan has found."""
        if self.fill is not None:
            found = found | {self.fill}
        return replace(self, categories=tuple(sorted(found)))

    def numbers(self, column: Any) -> Array:
        """The values of a number; an error of `NullsError` for nulls without `fill`."""
        if column.null_count:
            if self.fill is None:
                raise NullsError(self.name, column.null_count)
            column = column.cast("float64").fill_null(float(self.fill))
        values = column.to_numpy(zero_copy_only=False)
        if self.fill is not None and values.dtype.kind == "f":
            values = np.where(np.isnan(values), values.dtype.type(self.fill), values)
        return values

    def codes(self, column: Any) -> Array:
        """Which category each row has; an error for one that is not known."""
        coded = coded_column(self.name, column, self.fill)
        place = {category: k for k, category in enumerate(self.categories)}
        table = np.array([place.get(value, -1) for value in coded.values], dtype=np.int64)
        found = table[coded.codes]
        if found.size and found.min() < 0:
            value = coded.values[int(coded.codes[int(np.argmin(found))])]
            raise ValueError(
                f"column {self.name!r} holds the category {value!r}, which is none of the "
                f"{len(self.categories)} that were found when the source was scanned; replace it, "
                "or fit on rows that have it."
            )
        return found


class NullsError(Exception):
    """A column has nulls and nothing to put in their place; how many is still to be counted."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(name, count)
        self.name, self.count = name, count


@dataclass(frozen=True)
class TableBlock:
    """The rows of columns: a list of arrays, or of codes of categories, with their features."""

    n: int
    columns: list[tuple[int, int, Array]]
    """The first feature, the number of categories (0 for a number), and the values."""

    @classmethod
    def of(cls, batch: Any, features: tuple[Feature, ...]) -> TableBlock:
        """The features of a record batch."""
        found, first = [], 0
        for feature in features:
            column = batch.column(feature.name)
            if feature.kind == "number":
                found.append((first, 0, feature.numbers(column)))
                first += 1
            else:
                found.append((first, len(feature.categories), feature.codes(column)))
                first += len(feature.categories)
        return cls(batch.num_rows, found)

    def __len__(self) -> int:
        return self.n

    @property
    def width(self) -> int:
        return sum(width or 1 for _, width, _ in self.columns)

    def write(self, out: Array, start: int) -> None:
        # Columns are put below each other for some rows, and these turned: twice as fast as to
        # write each of them across the rows.
        tile = np.empty((out.shape[1], min(_TILE, len(out))), out.dtype)
        for a in range(0, len(out), _TILE):
            b = min(a + _TILE, len(out))
            rows, below = slice(start + a, start + b), tile[:, : b - a]
            for first, width, values in self.columns:
                if width:
                    below[first : first + width] = 0.0
                    below[first + values[rows], np.arange(b - a)] = 1.0
                else:
                    below[first] = values[rows]
            out[a:b] = below.T

    def take(self, kept: Array) -> TableBlock:
        columns = [(first, width, values[kept]) for first, width, values in self.columns]
        return TableBlock(int(np.count_nonzero(kept)), columns)


def is_words(kind: Any) -> bool:
    """Whether a type holds text."""
    types = arrow("pyarrow.types")
    is_view = getattr(types, "is_string_view", lambda kind: False)
    return types.is_string(kind) or types.is_large_string(kind) or is_view(kind)


def words_of(column: Any) -> set[Any]:
    """The different values of a column but for null."""
    if arrow("pyarrow.types").is_dictionary(column.type):
        column = column.dictionary.take(column.indices.unique().drop_null())
    return {value for value in column.unique().to_pylist() if value is not None}


def coded_column(name: str, column: Any, fill: Any = None) -> Coded:
    """The values of a column of labels and which of them each row has."""
    if column.null_count:
        if fill is None:
            raise NullsError(name, column.null_count)
        if arrow("pyarrow.types").is_dictionary(column.type):
            column = column.dictionary_decode()
        column = column.fill_null(fill)
    types = arrow("pyarrow.types")
    if not types.is_dictionary(column.type):
        if types.is_nested(column.type) or types.is_temporal(column.type):
            raise ValueError(
                f"column {name!r} has the type {column.type}, which cannot hold labels; give text, "
                "whole numbers or flags."
            )
        column = column.dictionary_encode()
    return Coded(column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64))


def number_column(name: str, column: Any) -> Array:
    """The values of a column that is no feature, in float64."""
    types = arrow("pyarrow.types")
    kind = column.type
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        raise ValueError(
            f"column {name!r} must hold numbers, but its type is {kind}; a target of labels is for "
            "a loss of classification."
        )
    if column.null_count:
        raise NullsError(name, column.null_count)
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


def _number(field: Any, fill: Any) -> Any:
    if fill is None or isinstance(fill, str):
        return None
    if not isinstance(fill, (int, float)) or not np.isfinite(fill):
        raise ValueError(f"fill must be a finite number for {field.name!r}, but is {shown(fill)}.")
    return fill


def _refused(field: Any) -> ValueError:
    return ValueError(
        f"column {field.name!r} has the type {field.type}, which is no feature: numbers, flags, "
        "text and categories are. Turn it into numbers first, or name the others in features=."
    )
