"""Compiled functions: arrays, scalars and small integer codes in, arrays out.

Kernels know no classes. Objects of the other modules translate themselves to ``(code,
parameters)``. They are written in C++ (``*.hpp``), bound in ``bind_*.cpp`` and built when the
package is installed, one extension for each level of the processor's instructions; the best that
runs here is taken. Arrays of another type or order than a kernel is written for are refused with a
TypeError, never copied.

Importing this costs nothing: the extension is loaded when the first kernel is asked for, so that
tensors are worked on where there is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LEVELS = ("_v4", "_v3", "_plain")


def _load() -> Any:
    tried = []
    for level in _LEVELS:
        try:
            return import_module(f"drago.kernels.{level}")
        except ImportError as error:
            tried.append(f"{level}: {error}")
    raise ImportError(
        "drago's compiled kernels are not there, or not for this processor; install the package "
        f"(pip install .) with a C++ compiler on this machine. Tried: {'; '.join(tried)}."
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    found = _load()
    # From now on a kernel is an attribute like any other.
    globals().update({key: getattr(found, key) for key in dir(found) if not key.startswith("__")})
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"drago.kernels has no function {name!r}") from None
