"""What a solve has to remember to go on bit for bit: the loop's part, and whose problem it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from drago._validation import shown
from drago._version import __version__
from drago.certificate import Certificate
from drago.checkpoint import CheckpointError, State, fingerprint, load, save
from drago.result import Record
from drago.solvers.protocol import Method, Start

if TYPE_CHECKING:
    from drago.solvers.base import Loop

# Saving may take this share of the time.
_SHARE = 0.05


class Checkpoints:
    """The file of a solve, and when to write it.

    Parameters
    ----------
    path : str or path
    every : float
        Seconds between two savings; more where one takes long.
    """

    def __init__(self, path: str | os.PathLike[str], every: float) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise TypeError(f"checkpoint must be the path of a file, but {shown(path)} was given.")
        folder = os.path.dirname(os.path.abspath(os.fspath(path)))
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder for the checkpoint {os.fspath(path)}.")
        self.path, self.every = path, every
        self._next = 0.0
        self._identity = ""

    def begin(self, loop: Loop, method: Method) -> State | None:
        """Restore what was saved for this very solve; the method's part of it, if there is one."""
        self._identity = identity(loop, method)
        found = load(self.path)
        if found is None:
            return None
        arrays, settings = found
        if settings.get("identity") != self._identity:
            raise CheckpointError(
                f"The checkpoint {os.fspath(self.path)} belongs to another problem, solver or "
                "random_state. Give another path, or delete it to start anew."
            )
        _unpack(loop, _inner(arrays, "loop."), settings["loop"])
        return _inner(arrays, "method."), settings["method"]

    def rest(self, loop: Loop, snapshot: Callable[[], State]) -> None:
        """A moment at which the solve could be resumed: save it where that is due."""
        began = time.perf_counter()
        if began < self._next and not loop.is_running_out:
            return
        arrays, settings = snapshot()
        mine, more = _pack(loop)
        names = {f"method.{name}": array for name, array in arrays.items()}
        names |= {f"loop.{name}": array for name, array in mine.items()}
        save(self.path, names, {"identity": self._identity, "loop": more, "method": settings})
        ended = time.perf_counter()
        self._next = ended + max(self.every, (ended - began) / _SHARE)


def identity(loop: Loop, method: Method) -> str:
    """A digest of everything that the course of a solve depends on, but for its limits."""
    problem, start = loop.problem, loop._start
    if hasattr(method, "n_threads") and is_dataclass(method):
        method = replace(method, n_threads=None)
    uncertainty = problem.uncertainty
    return fingerprint(
        problem.X,
        problem.y,
        problem.p,
        problem.groups,
        getattr(method, "layout", 1),
        *_described(problem.loss),
        *_described(getattr(uncertainty, "given", uncertainty)),
        problem.divergence.name,
        *_described(problem.constraint),
        problem.fit_intercept,
        problem.mu,
        problem.nu,
        repr(method),
        loop.random_state,
        __version__,
        *((None,) if start is None else (start.w, start.b, start.q)),
    )


def _described(thing: Any) -> list[Any]:
    """A class and its parameters, as far as they can be told apart from one process to another."""
    out: list[Any] = [type(thing).__qualname__]
    for name, value in sorted(vars(thing).items()):
        if name.startswith("_of_"):
            continue
        if isinstance(value, (str, int, float, bool, np.ndarray)) or value is None:
            out += [name, value]
        elif callable(value):
            # What it does cannot be told, but its name can.
            out += [name, getattr(value, "__qualname__", type(value).__qualname__)]
        else:
            out += [name, *_described(value)] if hasattr(value, "__dict__") else [name, repr(value)]
    return out


def _inner(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}


_NUMBERS = ("_judged_iter", "_looks", "_next_look", "_factor", "_extra_passes", "_evaluating")


def _pack(loop: Loop) -> State:
    arrays: dict[str, Any] = {}
    settings: dict[str, Any] = {name: getattr(loop, name) for name in _NUMBERS}
    settings["elapsed"] = loop.elapsed
    settings["notes"] = loop._notes
    settings["oracle"] = loop.oracle.memory
    settings["records"] = [list(asdict(record).values()) for record in loop._records]
    for name, entry in (("best", loop.best.point), ("dual", loop.best.dual)):
        certificate, arrays[f"{name}.w"], arrays[f"{name}.b"] = entry
        kept = {f.name: getattr(certificate, f.name) for f in fields(certificate)}
        arrays[f"{name}.q"] = kept.pop("dual_weights")
        settings[name] = kept
    if loop._start is not None:
        arrays["start.w"], arrays["start.b"] = loop._start.w, loop._start.b
    return arrays, settings


def _unpack(loop: Loop, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
    for name in _NUMBERS:
        setattr(loop, name, settings[name])
    loop._earlier = settings["elapsed"]
    loop._notes = settings["notes"]
    loop.oracle.memory = settings["oracle"]
    loop._records = [Record(*values) for values in settings["records"]]
    entries = []
    for name in ("best", "dual"):
        certificate = Certificate(dual_weights=arrays[f"{name}.q"], **settings[name])
        entries.append((certificate, arrays[f"{name}.w"], arrays[f"{name}.b"]))
    loop.best.put(*entries)
    if "start.w" in arrays:
        loop._start = Start(arrays["start.w"], arrays["start.b"])
