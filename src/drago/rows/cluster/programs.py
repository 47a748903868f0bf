"""What a task does: some operations on each part of a bundle, one after the other.

A program is the same for all parts. What it reads are the part, vectors that earlier tasks left on
the worker, and small values. What it gives are vectors, which stay where they are, and sums, which
go to the driver. It is a pure function of its inputs: made again after a failure it gives the same
bits.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from drago._threads import limited
from drago.oracles.atoms import AtomResponse
from drago.rows.array_curvature import Chosen
from drago.rows.base import Evaluation, NonFiniteLossError


class Slot(NamedTuple):
    """A value that the program has computed before."""

    number: int


class Input(NamedTuple):
    """A vector of an earlier task."""

    group: int
    place: int


class Attribute(NamedTuple):
    """A vector of the part itself."""

    name: str


class Local(NamedTuple):
    """A small value that differs from part to part."""

    number: int


class PerPart:
    """Small values, one for each part."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)


class Instruction(NamedTuple):
    """An operation of a part, or a function of it, and where the results go."""

    operation: str | Callable[..., Any]
    arguments: tuple[Any, ...]
    settings: dict[str, Any]
    slots: tuple[int, ...]
    """Of a tuple of results one for each; a single one otherwise."""
    is_tuple: bool


class Failed(NamedTuple):
    """Why a program ended early."""

    message: str


class Program:
    """Instructions, which of their results stay, and which go to the driver."""

    __slots__ = ("instructions", "kept", "told")

    def __init__(
        self, instructions: Sequence[Instruction], kept: Sequence[int], told: Sequence[int]
    ) -> None:
        self.instructions, self.kept, self.told = tuple(instructions), tuple(kept), tuple(told)

    def __reduce__(self) -> Any:
        return Program, (self.instructions, self.kept, self.told)

    def run(self, part: Any, here: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        """Vectors that stay, and what is told; instead of the second, why there is none."""
        slots: dict[int, Any] = {}
        # Not a function that knows itself: all vectors would stay until somebody collects garbage.
        found = functools.partial(_value_of, slots, part, here, inputs)
        told: Any
        try:
            for operation, arguments, settings, numbers, is_tuple in self.instructions:
                work = operation if callable(operation) else getattr(type(part), operation)
                given = {name: found(value) for name, value in settings.items()}
                out = work(part, *(found(value) for value in arguments), **given)
                slots.update(zip(numbers, out if is_tuple else (out,)))
            told = tuple(slots[number] for number in self.told)
        except NonFiniteLossError as error:
            told = Failed(str(error))
        return tuple(slots.get(number) for number in self.kept), told


def _value_of(slots: Any, part: Any, here: Any, inputs: Any, value: Any) -> Any:
    """What an argument of an instruction stands for."""
    if isinstance(value, Slot):
        return slots[value.number]
    if isinstance(value, Input):
        return aligned(inputs[value.group][value.place])
    if isinstance(value, Attribute):
        return getattr(part, value.name)
    if isinstance(value, Local):
        return aligned(here[value.number])
    return aligned(rebuilt(value, functools.partial(_value_of, slots, part, here, inputs)))


def aligned(value: Any) -> Any:
    """An array as compiled code takes it: one that was sent may begin anywhere in memory."""
    if isinstance(value, np.ndarray) and not value.flags.aligned:
        return value.copy()
    if isinstance(value, Chosen) and not value.index.flags.aligned:
        return Chosen(value.index.copy(), value.longest)
    if isinstance(value, dict):
        return {name: aligned(each) for name, each in value.items()}
    if isinstance(value, tuple):
        found = [aligned(each) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    return value


def rebuilt(value: Any, of: Callable[[Any], Any]) -> Any:
    """A value whose parts are replaced, for what is made of vectors."""
    if isinstance(value, Evaluation):
        return Evaluation(*map(of, value))
    if isinstance(value, AtomResponse):
        return value.part(0, lambda each, _: of(each))
    return value


# ---------------------------------------------------------------------------------- the tasks


def run_bundle(parts: Sequence[Any], here: Any, *groups: Any, program: Program) -> Any:
    """The program on every part of a bundle: what stays, and what is told, part by part."""
    with one_thread(), np.errstate(all="ignore"):
        found = [
            program.run(
                part.at_hand(), () if here is None else here[k], [group[0][k] for group in groups]
            )
            for k, part in enumerate(parts)
        ]
    return [kept for kept, _ in found], [told for _, told in found]


def told_by(group: Any) -> Any:
    """What goes to the driver of a task's result."""
    return group[1]


def tell_bundle(parts: Sequence[Any], here: Any, *groups: Any, program: Program) -> Any:
    """As `run_bundle`, where nothing stays."""
    return run_bundle(parts, here, *groups, program=program)[1]


def vectors_of(group: Any, index: int) -> Any:
    """One vector of each part of a bundle, behind each other."""
    return np.concatenate([kept[index] for kept in group[0]])


def held_by(group: Any, index: int) -> Any:
    """One vector of each part of a bundle."""
    return [kept[index] for kept in group[0]]


_LOCK = threading.Lock()
_STATE: dict[str, Any] = {"tasks": 0, "limits": None, "reuses": False}
# Parameters of glibc's malloc: what is free at the end of the heap and goes back to the system, and
# what comes from there directly. And how many bytes of each suit vectors of a part.
_TRIM, _MMAP = -1, -3
_SPARE, _LARGE = 1 << 26, 1 << 25


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for kernels and BLAS: a worker runs as many tasks at once as it has threads.

    The limit of BLAS is one of the process, so the first task sets it and the last one lifts it.
    """
    with _LOCK:
        _STATE["tasks"] += 1
        if _STATE["tasks"] == 1:
            _STATE["limits"] = _limit_blas()
        if "MALLOC_TRIM_THRESHOLD_" in os.environ and not _STATE["reuses"]:
            _STATE["reuses"] = True
            _reuse_memory()
    try:
        with limited(1):
            yield
    finally:
        with _LOCK:
            _STATE["tasks"] -= 1
            if _STATE["tasks"] == 0 and _STATE["limits"] is not None:
                _STATE["limits"].restore_original_limits()
                _STATE["limits"] = None


def _reuse_memory() -> None:
    """Let vectors take the memory of those before them.

    Dask starts workers with a setting that has glibc return every freed vector to the system. To
    fetch it back, page by page, takes as long as to compute many a vector.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # pragma: no cover
        return  # another system
    mallopt(_TRIM, _SPARE)
    mallopt(_MMAP, _LARGE)


_CONTROLLERS: list[Any] = []


def _limit_blas() -> Any:
    """What lifts the limit again; None without threadpoolctl."""
    if not _CONTROLLERS:
        try:
            from threadpoolctl import ThreadpoolController
        except ImportError:  # pragma: no cover
            return None
        _CONTROLLERS.append(ThreadpoolController())
    return _CONTROLLERS[0].limit(limits=1, user_api="blas")
