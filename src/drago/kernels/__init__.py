"""Numba functions: arrays, scalars and small integer codes in, arrays out.

Kernels know no classes. Objects of the other modules translate themselves to ``(code,
parameters)`` once per solve, which keeps the compile cache on disk working: it is keyed by the
types of the arguments, and an integer always has the same one.

Nothing here is imported when ``drago`` is: the modules above import a kernel inside the call that
needs it, so each oracle and each loss family is compiled when it is first used, and no sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# What a hot reduction may assume. Never the full `fastmath`: it lets the compiler drop NaN checks.
REDUCE = {"contract", "reassoc"}
# For functions that allocate nothing and are called for single rows: without it Numba counts the
# references to each array that they are given, atomically, which costs more than the row.
LEAN = {"_nrt": False, "forceinline": True}


def jit(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`numba.njit` with a compile cache on disk where one can be kept.

    Numba raises while decorating when it finds no writable folder for the cache (a read-only
    installation without a home, say). A solver that compiles anew is better than one that does
    not import, so the cache is given up then.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(cache=True, nogil=True, **options)(function)
        except (RuntimeError, OSError):
            return numba.njit(nogil=True, **options)(function)

    return decorate
