"""Rules in words: what a path through a small tree says of the rows at its end.

A rule is a conjunction of conditions, one a column: ``14.7 < age <= 30 and class = 3rd``. Rows are
put into groups by the rules themselves, with the numbers as they are printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeRegressor

from drago.estimators.columns import Columns, levels

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Digits that tell any two float64 apart.
_ALL_DIGITS = 17


@dataclass(frozen=True)
class Between:
    """``low < x <= high``; with `missing`, rows without a number belong to it too."""

    low: float = -np.inf
    high: float = np.inf
    missing: bool = True

    def holds(self, x: Array) -> Array:
        with np.errstate(invalid="ignore"):
            inside = (x > self.low) & (x <= self.high)
        return inside | (np.isnan(x) & self.missing)

    def words(self, name: str, kind: str, has_missing: bool) -> str:
        low, high = self.low > -np.inf, self.high < np.inf
        if kind == "flag":
            return f"{name} = {low}"
        if not self.low < self.high:
            return f"{name} is missing"
        if not (low or high):
            return f"{name} is known"
        if low and high:
            text = f"{written(self.low)} < {name} <= {written(self.high)}"
        else:
            text = f"{name} > {written(self.low)}" if low else f"{name} <= {written(self.high)}"
        return f"({text} or missing)" if has_missing and self.missing else text


@dataclass(frozen=True)
class Among:
    """One word (`only`), or none of some; None is what is missing."""

    only: tuple[str | None, ...] = ()
    never: tuple[str | None, ...] = ()

    def holds(self, x: Array) -> Array:
        if self.only:
            return _equal(x, self.only[0])
        return ~np.logical_or.reduce([_equal(x, word) for word in self.never])

    def words(self, name: str, kind: str, has_missing: bool) -> str:
        if self.only:
            word = self.only[0]
            return f"{name} is missing" if word is None else f"{name} = {word}"
        if self.never == (None,):
            return f"{name} is known"
        if len(self.never) == 1:
            return f"{name} != {self.never[0]}"
        listed = ", ".join("missing" if word is None else word for word in self.never)
        return f"{name} not in ({listed})"


@dataclass(frozen=True)
class Rule:
    """Conditions on columns, all of which hold; without any it is all rows."""

    conditions: tuple[tuple[int, Between | Among], ...] = ()

    def holds(self, values: list[Array]) -> Array:
        """Which rows it is true for."""
        out = np.ones(values[0].shape[0], dtype=bool)
        for j, condition in self.conditions:
            out &= condition.holds(values[j])
        return out

    def words(self, columns: Columns) -> str:
        named = ((columns.all[j], condition) for j, condition in self.conditions)
        parts = [each.words(c.name, c.kind, c.has_missing) for c, each in named]
        return " and ".join(parts) or "all rows"

    def narrowed(self, j: int, **changes: Any) -> Rule:
        """With one more condition, merged with what is there on that column."""
        there = dict(self.conditions)
        new: Between | Among
        if "never" in changes or "only" in changes:
            old = there.get(j, Among())
            assert isinstance(old, Among)
            new = Among(changes.get("only", old.only), old.never + changes.get("never", ()))
        else:
            old = there.get(j, Between())
            assert isinstance(old, Between)
            new = replace(
                old,
                low=max(old.low, changes.get("low", -np.inf)),
                high=min(old.high, changes.get("high", np.inf)),
                missing=old.missing and changes["missing"],
            )
        there[j] = new
        return Rule(tuple(there.items()))


def rules_of(
    columns: Columns,
    values: list[Array],
    target: Vector,
    weight: Vector,
    *,
    max_groups: int,
    min_size: int,
    seed: int,
) -> list[Rule]:
    """The leaves of a regression tree of `target`, as rules that split all rows.

    Numbers enter by their ranks and words one by one, so that each split is one between values of
    the rows, or of one word against the others. Missing numbers go to the side that fits better.
    """
    features, meanings = _features(columns, values, min_size)
    if features is None or max_groups < 2 or target.size < 2 * min_size:
        return [Rule()]
    tree = DecisionTreeRegressor(
        max_leaf_nodes=max_groups, min_samples_leaf=min_size, random_state=seed
    )
    nodes = tree.fit(features, target, sample_weight=weight).tree_
    out: list[Rule] = []

    def walk(node: int, rule: Rule) -> None:
        left, right = int(nodes.children_left[node]), int(nodes.children_right[node])
        if left < 0:
            out.append(rule)
            return
        j, meaning = meanings[int(nodes.feature[node])]
        if isinstance(meaning, np.ndarray):
            at, first = float(nodes.threshold[node]), bool(nodes.missing_go_to_left[node])
            cut = _cut(meaning, at)
            walk(left, rule.narrowed(j, high=cut, missing=first))
            # Beyond everything there is nothing but what is missing.
            walk(right, rule.narrowed(j, low=cut, missing=not first))
        else:
            walk(left, rule.narrowed(j, never=meaning))
            walk(right, rule.narrowed(j, only=meaning))

    walk(0, Rule())
    return out


def numbers_of(rules: list[Rule], values: list[Array]) -> npt.NDArray[np.int64]:
    """Which rule each row fits."""
    out = np.zeros(values[0].shape[0], dtype=np.int64)
    for k, rule in enumerate(rules):
        out[rule.holds(values)] = k
    return out


def _features(
    columns: Columns, values: list[Array], min_size: int
) -> tuple[Array | None, list[tuple[int, Any]]]:
    """What the tree sees, and what its columns mean: the distinct numbers, or a word."""
    found: list[Array] = []
    meanings: list[tuple[int, Any]] = []
    for j, column in enumerate(columns.all):
        x = values[j]
        if column.kind == "words":
            known, codes = levels(x)
            for k, word in enumerate(known):
                # Rarer words cannot make a group.
                if min_size <= int((codes == k).sum()) <= x.shape[0] - min_size:
                    found.append((codes == k).astype(np.float64))
                    meanings.append((j, (word,)))
            continue
        missing = np.isnan(x)
        distinct, ranks = np.unique(x[~missing], return_inverse=True)
        if distinct.size + missing.any() < 2:
            continue
        rank = np.full(x.shape, np.nan)
        rank[~missing] = ranks
        found.append(rank)
        meanings.append((j, distinct))
    return (np.column_stack(found) if found else None), meanings


def _cut(distinct: Vector, at: float) -> float:
    """A number of few digits that separates the values up to a rank from those beyond."""
    k = int(np.floor(at)) if np.isfinite(at) else distinct.size
    if k >= distinct.size - 1:
        return np.inf
    low, high = float(distinct[k]), float(distinct[k + 1])
    middle = Decimal(low) / 2 + Decimal(high) / 2
    for digits in range(1, _ALL_DIGITS + 1):
        for rounding in (ROUND_HALF_EVEN, ROUND_FLOOR):
            cut = float(Context(digits, rounding).plus(middle))
            if low <= cut < high:
                return cut + 0.0  # no -0
    return low


def written(number: float) -> str:
    """A number in as many digits as it has, without a power of ten where that is short."""
    if number == 0 or 1e-4 <= abs(number) < 1e7:
        return np.format_float_positional(number, trim="-")
    return repr(number)


def _equal(x: Array, word: str | None) -> Array:
    return np.fromiter((other == word for other in x), bool, x.shape[0])
