"""Rows in parts: any stores, one after the other, as one.

What an operation does with its parts is said where it is declared (`drago.rows.base`), so that all
of them follow from those of the parts. Sums are added in the order of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from drago._validation import check_groups, check_vector
from drago.oracles.atoms import AtomOracle, AtomResponse
from drago.oracles.rounds.oracle import SearchOracle
from drago.oracles.rounds.spectral import RangeOracle, excess
from drago.rows.base import (
    Evaluation,
    Index,
    Kept,
    Matrix,
    NonFiniteLossError,
    RowStore,
    RowVector,
    Vector,
)
from drago.rows.memory import ArrayRows
from drago.rows.part import Part
from drago.rows.tables.parts import PartTables

# Rounds in which the least weight of a selection is looked for, and how far it may fall short.
_ROUNDS = 60
_SHORT = 0.9


class PartVector:
    """A vector of the rows, or a selection of them, in parts: nothing but the store reads it."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Any]) -> None:
        self.parts = tuple(parts)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "a vector of the rows is opaque: hand it to an operation of problem.rows, or to "
            "problem.rows.export where an array is wanted."
        )

    __array__ = __getitem__ = __iter__ = __len__ = __bool__ = __float__ = _refuse


class PartedRows(Part):
    """Several stores as one.

    Parameters
    ----------
    parts : sequence of `drago.rows.part.ArrayPart`
        Their nominal weights are those of all rows: they sum to 1 together. Groups are numbered
        alike in all of them.
    """

    capabilities = frozenset({"responses", "tables"})
    vector: Callable[[Iterable[Any]], Any] = PartVector

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self.n_samples = sum(part.n_samples for part in self.parts)
        self.n_features = self.parts[0].n_features
        self.n_entries = sum(part.n_entries for part in self.parts)
        self.is_sparse = self.parts[0].is_sparse
        self.p, self.y = (self.vector(getattr(part, name) for part in self.parts) for name in "py")
        self.groups = None
        if self.parts[0].groups is not None:
            self.groups = self.vector(part.groups for part in self.parts)
        self.baseline = None
        if self.parts[0].baseline is not None:
            self.baseline = self.vector(part.baseline for part in self.parts)
        self.n_groups = max(part.n_groups for part in self.parts)
        self.label_type = self.parts[0].y.dtype

    @property
    def X(self) -> Any:
        raise AttributeError(
            "rows in parts have no X as one array: ask problem.rows for what you need of them, or "
            "problem.rows.parts for the parts."
        )

    # ------------------------------------------------------------------------ over the parts

    def _each(self, name: str, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
        """An operation on every part, with the parts of what it is given."""
        return [
            getattr(part, name)(
                *(_part(value, k) for value in arguments),
                **{key: _part(value, k) for key, value in settings.items()},
            )
            for k, part in enumerate(self.parts)
        ]

    def _mapped(self, name: str, arguments: Sequence[Any], settings: dict[str, Any]) -> Any:
        """A vector, a selection or a tuple of these from those of the parts."""
        return self._together(self._each(name, arguments, settings))

    def _together(self, found: list[Any]) -> Any:
        """Vectors from those of the parts, and tuples of vectors from tuples."""
        if isinstance(found[0], tuple):
            return tuple(self.vector(each) for each in zip(*found))
        return self.vector(found)

    def split(self, value: Any) -> list[Any]:
        """What an operation on each part is given."""
        return [_part(value, k) for k in range(len(self.parts))]

    def _local(self, index: Index) -> list[tuple[int, Index]]:
        """Numbers of rows as numbers in their parts."""
        ends = np.cumsum([part.n_samples for part in self.parts])
        of = np.searchsorted(ends, index, side="right")
        starts = ends - [part.n_samples for part in self.parts]
        return [(int(k), index[of == k] - starts[k]) for k in np.unique(of)]

    def evaluate(self, loss: Any, w: Any, b: Any, raw: RowVector = None) -> Evaluation:
        found = []
        for k, part in enumerate(self.parts):
            try:
                here = part.evaluate(loss, w, b, _part(raw, k))
                found.append([self.stored(each) for each in (here.raw, here.losses, here.dlosses)])
            except NonFiniteLossError as error:
                where = f"in part {k} of {len(self.parts)}, "
                raise NonFiniteLossError(where + str(error)) from None
        return Evaluation(w, b, *(self.vector(each) for each in zip(*found)))

    def extremes(self, values: RowVector) -> tuple[float, float]:
        ends = self._each("extremes", (values,), {})
        return min(end[0] for end in ends), max(end[1] for end in ends)

    def offsets(self, raw: RowVector) -> tuple[float, float, float]:
        found = self._each("offsets", (raw,), {})
        least, greatest, mean = zip(*found)
        return min(least), max(greatest), sum(mean)

    def drift(self, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
        return max(
            self.parts[k].drift(loss, _part(ev, k), some, scale) for k, some in self._local(index)
        )

    def steepest_of(self, dlosses: RowVector, index: Index, lengths: Vector) -> float:
        ends = np.cumsum([0] + [some.size for _, some in self._local(index)])
        return max(
            self.parts[k].steepest_of(_part(dlosses, k), some, lengths[ends[i] : ends[i + 1]])
            for i, (k, some) in enumerate(self._local(index))
        )

    # ------------------------------------------------------------------------ in and out

    def export(self, values: RowVector) -> Any:
        return np.concatenate([np.asarray(part) for part in values.parts])

    def content(self) -> tuple[Any, ...]:
        return tuple(array for part in self.parts for array in part.content())

    def imported(self, array: Any) -> RowVector:
        ends = np.cumsum([part.n_samples for part in self.parts])[:-1]
        return self.vector(np.split(array, ends))

    def enter(self, name: str, values: Any, kept: Kept = None) -> RowVector:
        if kept is None:
            return self.imported(check_vector(name, values, self.n_samples))
        return self.imported(check_vector(name, values, kept.size)[kept])

    def sample(self, index: Index) -> Any:
        pieces = self._pieces(self._local(index))
        found: list[Any] = [None if each[0] is None else _stacked(each) for each in zip(*pieces)]
        X, y, p, groups, baseline = found
        groups = None if groups is None else check_groups(groups, p.size)
        return ArrayRows(X, y, p / p.sum(), groups, baseline)

    def _pieces(self, some: list[tuple[int, Index]]) -> list[tuple[Any, ...]]:
        """What some rows of some parts are made of."""
        return [self.parts[k].pieces(index) for k, index in some]

    def take(self, index: Index) -> RowStore:
        return self.sample(index)

    def with_baseline(self, baseline: RowVector | None) -> RowStore:
        split = self.split(baseline)
        return type(self)([part.with_baseline(each) for part, each in zip(self.parts, split)])

    def condensed(self, n_classes: int) -> RowStore | None:
        if self.baseline is not None or (self.n_groups or 1) * n_classes >= self.n_samples:
            return None
        mass = _sum(self._each("cells", (n_classes, self.n_groups), {}))
        there = np.flatnonzero(mass)
        groups = None if self.groups is None else there // n_classes
        y = (there % n_classes).astype(self.label_type)
        p = mass[there] / mass[there].sum()
        return ArrayRows(np.zeros((there.size, 1)), y, p, groups)

    # --------------------------------------------------------------------------- weights

    def oracle(self, uncertainty: Any, divergence: Any) -> AtomOracle:
        if uncertainty.is_spectral:
            return RangeOracle(self, uncertainty, divergence)
        kind = SearchOracle if SearchOracle.takes(uncertainty) else AtomOracle
        return kind(self, uncertainty, divergence)

    @property
    def sorting(self) -> int:
        """Bytes that a sort of a vector may take."""
        return 1 << 62

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> Any:
        return PartTables(
            self, problem, [part.tables_of_part(problem, kind, count) for part in self.parts]
        )

    def pairs(self, u: RowVector) -> list[tuple[Vector, Vector | None]]:
        """A vector and the nominal weights of each part, None where all of these are equal."""
        weights = [None] * len(self.parts) if self.is_uniform else self.p.parts
        return list(zip(u.parts, weights))

    def room(self, size: int) -> Vector:
        """An array for the entries of a part's rows in a new vector."""
        return np.empty(size)

    def stored(self, entries: Any) -> Any:
        """The entries of a part's rows in a new vector, or a tuple of these, where they belong."""
        return entries

    def profiles(self, u: RowVector) -> list[tuple[Vector, Vector]]:
        """The atoms of each part (`drago.oracles.atoms`)."""
        return self._each("profile", (u,), {})

    def heaviest(self, weight: RowVector, size: int) -> RowVector:
        """As many of each part as it has among the heaviest of all."""
        low, high = 0.0, self.greatest(weight)
        counts = self._counts(weight, 0.5 * high)
        if sum(counts) > size:
            total = sum(counts)
            counts = [size * count // total for count in counts]
        else:
            counts = self._counts(weight, low)
            for _ in range(_ROUNDS):
                if sum(counts) <= size and (low == 0.0 or sum(counts) >= _SHORT * size):
                    break
                middle = 0.5 * (low + high)
                found = self._counts(weight, middle)
                low, high = (middle, high) if sum(found) > size else (low, middle)
                counts = found if sum(found) <= size else counts
                low = max(low, np.finfo(float).tiny)
        return self.vector(
            part.heaviest(values, count) if count else part.none()
            for part, values, count in zip(self.parts, weight.parts, counts)
        )

    def _counts(self, weight: RowVector, above: float) -> list[int]:
        return self._each("count", (weight, above), {})

    def violation(self, uncertainty: Any, q: RowVector) -> float:
        lacking = self.excess(self.scaled(q, -1.0), 0.0)
        if uncertainty.needs_groups:
            mass, r = (self.group_sums(x, self.n_groups) for x in (self.p, q))
            inner = uncertainty._inner._violation(r, mass, None)
            return max(lacking, self.group_spread(q, r / mass), inner)
        return max(0.0, abs(self.total(q) - 1.0), lacking, self._excess(uncertainty, q))

    def _excess(self, uncertainty: Any, q: RowVector) -> float:
        if uncertainty.tail_share is not None:
            return self.excess(q, 1.0 / uncertainty.tail_share)
        if uncertainty.own_divergence is not None:
            return self.distance(uncertainty.match("auto"), q) - uncertainty.radius
        if not uncertainty.is_spectral:
            return 0.0
        return excess(uncertainty, self.pairs(self.relative(q)), self.sorting)

    def group_masses(self) -> tuple[Vector, Vector]:
        largest = np.max(self._each("group_greatest", (self.p, self.n_groups), {}), axis=0)
        return self.group_sums(self.p, self.n_groups), largest

    def balance(
        self, loss: Any, raw: RowVector, q: RowVector, n_outputs: int
    ) -> tuple[RowVector, float] | None:
        if not loss.has_conjugate:
            return None
        masses = self.class_masses(q, n_outputs) if loss.has_class_hessian else None
        sums = self.balance_sums(loss, raw, q, masses)
        alpha, young = self.balanced(loss, raw, q, sums, masses)
        return alpha, self.dot(q, young)

    def hessian(
        self, loss: Any, ev: Evaluation, q: RowVector, response: Any, intercept: bool
    ) -> Matrix:
        if response.inner is not None:
            H = _sum(self._each("plain_hessian", (loss, ev, q, None, intercept), {}))
            mass = self.group_sums(self.p, self.n_groups)
            return H + response.inner.curvature(self.group_gradients(ev, mass, intercept))
        H, sums, mass, along, norm = self.response_sums(loss, ev, q, response, intercept)
        safe = np.where(mass > 0, mass, 1.0)
        H = H - sums.T @ (sums / safe[:, None])
        return H - np.outer(along, along / norm) if norm > 0 else H


def _stacked(arrays: Sequence[Any]) -> Any:
    """Arrays or CSR matrices below each other."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    from scipy.sparse import vstack

    return vstack(arrays, format="csr")


def _part(value: Any, k: int, some: slice | None = None) -> Any:
    """What an operation on the part `k`, or on some of its rows, is given."""
    if isinstance(value, PartVector):
        return value.parts[k] if some is None else value.parts[k][some]
    if isinstance(value, Evaluation):
        return Evaluation(*(_part(each, k, some) for each in value))
    if isinstance(value, AtomResponse):
        return value.part(k, lambda each, k: _part(each, k, some))
    return value


def _derived(name: str, kind: str) -> Any:
    """An operation on parts from that of each part."""

    def operation(self: PartedRows, *arguments: Any, **settings: Any) -> Any:
        if kind in ("map", "choose"):
            return self._mapped(name, arguments, settings)
        found = self._each(name, arguments, settings)
        if kind == "greatest":
            return max(found)
        return _sum(found)

    operation.__name__, operation.__doc__ = name, getattr(Part, name).__doc__
    return operation


def _sum(found: list[Any]) -> Any:
    """The sum of numbers, arrays or tuples of these, in their order."""
    if isinstance(found[0], tuple):
        sums = [_sum(list(each)) for each in zip(*found)]
        return type(found[0])(*sums) if hasattr(found[0], "_fields") else tuple(sums)
    total = found[0]
    for each in found[1:]:
        total = total + each
    return total


for _name, _operation in (vars(RowStore) | vars(Part)).items():
    if hasattr(_operation, "kind") and _name not in vars(PartedRows):
        setattr(PartedRows, _name, _derived(_name, _operation.kind))
