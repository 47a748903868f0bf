"""What a value that was read from a file may be, and how to say that it is not.

Anyone can compute a SHA-256, and compiled code believes the shapes it is told. So each array and
each setting of a checkpoint is described by a form, its shape or its range, and compared with it
before it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drago._validation import are_finite, shown
from drago.files.checkpoint import CheckpointError

# More than any count.
_MANY = 2**62


class Form:
    """What a value may be; `fits` tells, and `expected` says it in words."""

    expected = ""

    def fits(self, value: Any) -> bool:
        raise NotImplementedError  # pragma: no cover

    def check(self, name: str, value: Any) -> None:
        """Raise where a value does not fit."""
        if not self.fits(value):
            raise CheckpointError(f"{name} must be {self.expected}, but is {_described(value)}")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype} and shape {value.shape}"
    return f"{shown(value)} ({type(value).__name__})"


@dataclass(frozen=True)
class Number(Form):
    """A real number in ``[low, high]``, or in ``(low, high]``."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    finite: bool = True
    nan: bool = False

    def fits(self, value: Any) -> bool:
        if type(value) is int:
            return abs(value) <= _MANY and self.fits(float(value))
        if type(value) is not float:
            return False
        if not math.isfinite(value) and (self.finite or math.isnan(value)):
            return self.nan and math.isnan(value)
        return self.low < value <= self.high if self.above else self.low <= value <= self.high

    @property
    def expected(self) -> str:  # type: ignore[override]
        left = "(" if self.above else "["
        words = "a finite number" if self.finite else "a number"
        return f"{words} in {left}{self.low:g}, {self.high:g}]{' or NaN' if self.nan else ''}"


@dataclass(frozen=True)
class Count(Form):
    """An integer in ``[low, high]``."""

    low: int = 0
    high: int = _MANY

    def fits(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"an integer in [{self.low}, {self.high}]"


class Flag(Form):
    """True or False."""

    expected = "true or false"

    def fits(self, value: Any) -> bool:
        return type(value) is bool


@dataclass(frozen=True)
class Constant(Form):
    """Nothing but this."""

    value: bool | None

    def fits(self, value: Any) -> bool:
        return value is self.value

    @property
    def expected(self) -> str:  # type: ignore[override]
        return str(self.value)


@dataclass(frozen=True)
class Text(Form):
    """A str, one of `words` where there are some."""

    words: tuple[str, ...] = ()

    def fits(self, value: Any) -> bool:
        return type(value) is str and (not self.words or value in self.words)

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"one of {', '.join(map(repr, self.words))}" if self.words else "text"


@dataclass(frozen=True)
class Maybe(Form):
    """None, or what `form` says."""

    form: Form

    def fits(self, value: Any) -> bool:
        return value is None or self.form.fits(value)

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"null or {self.form.expected}"


@dataclass(frozen=True)
class Items(Form):
    """A list, of at most so many items, all of one form."""

    form: Form
    most: int = _MANY

    def check(self, name: str, value: Any) -> None:
        if type(value) is not list or len(value) > self.most:
            most = "" if self.most == _MANY else f" of at most {self.most}"
            raise CheckpointError(f"{name} must be a list{most}, but is {_described(value)}")
        for k, item in enumerate(value):
            self.form.check(f"{name}[{k}]", item)


@dataclass(frozen=True)
class Row(Form):
    """A list with one form for each of its items."""

    forms: tuple[Form, ...]

    def check(self, name: str, value: Any) -> None:
        if type(value) is not list or len(value) != len(self.forms):
            size = len(self.forms)
            raise CheckpointError(f"{name} must be a list of {size}, but is {_described(value)}")
        for k, (form, item) in enumerate(zip(self.forms, value)):
            form.check(f"{name}[{k}]", item)


class Part(Form):
    """A dict, which is looked into later."""

    expected = "a dict"

    def fits(self, value: Any) -> bool:
        return type(value) is dict


@dataclass(frozen=True)
class Fields(Form):
    """A dict with these keys and no others; those in `optional` are there together or not."""

    forms: dict[str, Form]
    optional: dict[str, Form] = field(default_factory=dict)

    def check(self, name: str, value: Any) -> None:
        Part().check(name, value)
        wanted = self.forms
        if any(key in value for key in self.optional):
            wanted = wanted | self.optional
        prefix = f"{name}." if name else ""
        for key, form in wanted.items():
            if key not in value:
                raise CheckpointError(f"{prefix}{key} is missing")
            form.check(f"{prefix}{key}", value[key])
        for key in value:
            if key not in wanted:
                raise CheckpointError(f"it holds {shown(prefix + key)}, which is not known")


@dataclass(frozen=True)
class Floats(Form):
    """An array of float64, of this shape, with finite entries in ``[low, high]``."""

    shape: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    any_order: bool = False
    neginf: bool = False

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"an array of float64 and shape {self.shape}"

    def fits(self, value: Any) -> bool:
        plain = isinstance(value, np.ndarray) and value.dtype == np.float64
        return plain and value.shape == self.shape

    def check(self, name: str, value: Any) -> None:
        super().check(name, value)
        if not (value.flags.c_contiguous or self.any_order):
            raise CheckpointError(f"{name} must be stored row by row")
        if self.neginf:
            value = value[value != -math.inf]
        if not are_finite(value):
            raise CheckpointError(f"{name} must be finite, but holds NaN or infinity")
        low, high = value.min(initial=math.inf), value.max(initial=-math.inf)
        if low < self.low or high > self.high or (self.above and low <= self.low):
            left = "(" if self.above else "["
            raise CheckpointError(
                f"{name} must have entries in {left}{self.low:g}, {self.high:g}], but they lie in "
                f"[{low:g}, {high:g}]"
            )


def inner(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays of one part."""
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}


ANY = Number(finite=False, nan=True)
NOT_NEGATIVE = Number(0.0)
POSITIVE = Number(0.0, above=True)
UP_TO_INFINITY = Number(0.0, finite=False)
