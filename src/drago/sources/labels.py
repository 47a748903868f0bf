"""Targets and groups of any kind as 0, 1, ..., found while the rows are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drago._validation import is_missing, shown

Array = npt.NDArray[Any]


class Coded(NamedTuple):
    """Labels of some rows: the distinct ones, and which of them each row has."""

    values: list[Any]
    codes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, name: str, labels: Any) -> Coded:
        """The labels of an array; an error where one is missing."""
        labels = np.asarray(labels)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise ValueError(
                f"{name} must have one entry a row, but a batch of it has shape {labels.shape}."
            )
        if labels.dtype.kind == "O":
            place: dict[Any, int] = {}
            codes = np.fromiter(
                (place.setdefault(label, len(place)) for label in labels), np.int64, labels.size
            )
            values = list(place)
        else:
            found, codes = np.unique(labels, return_inverse=True)
            values, codes = found.tolist(), codes.reshape(-1).astype(np.int64)
        if any(is_missing(value) for value in values):
            raise ValueError(f"{name} has rows without a label; drop them or give them one.")
        return cls(values, codes)

    def take(self, kept: Any) -> Coded:
        """Some of the rows."""
        return Coded(self.values, self.codes[kept])


class Labels:
    """Codes by the order in which labels turn up, and in the end by the order of the labels.

    Parameters
    ----------
    name : str
        What messages call them.
    most : int
        How many different ones there may be.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._place: dict[Any, int] = {}

    def add(self, rows: Coded) -> npt.NDArray[np.int64]:
        """The codes of some rows, by the order of appearance."""
        there = np.bincount(rows.codes, minlength=len(rows.values)) > 0
        for value in np.flatnonzero(there):
            self._place.setdefault(rows.values[value], len(self._place))
        if len(self._place) > self._most:
            raise ValueError(
                f"{self._name} has more than {self._most} different labels, such as "
                f"{shown(list(self._place)[:3])}; numbers are for a loss of regression."
            )
        table = np.array([self._place.get(value, -1) for value in rows.values], dtype=np.int64)
        return table[rows.codes]

    def settled(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """The labels in order, and the last code of each one that turned up."""
        names = as_names(self._name, self._place)
        order = np.argsort(names, kind="stable")
        last = np.empty(order.size, dtype=np.int64)
        last[order] = np.arange(order.size)
        return names[order], last


def as_names(name: str, values: Iterable[Any]) -> Array:
    """Labels as an array of one kind: text, whole numbers or flags."""
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in values}
    if kinds <= {str} or kinds <= {bool} or kinds <= {int}:
        return np.array(values)
    if kinds <= {bool, int, float}:
        found = np.array(values, dtype=np.float64)
        if (found == np.round(found)).all():
            return found
        raise ValueError(
            f"{name} holds numbers that are not whole, such as "
            f"{float(found[found != np.round(found)][0])!r}, where labels were expected; give "
            "text or whole numbers, or, for a target of numbers, a loss of regression."
        )
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(f"{name} must hold labels of one kind, but holds {names}; give them as text.")
