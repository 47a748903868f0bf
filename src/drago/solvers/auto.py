"""Which solver for which problem, and the names that `solve` takes."""

from __future__ import annotations

from typing import Any

from drago._validation import check_option, shown
from drago.problem import DROProblem
from drago.solvers.base import Method
from drago.solvers.drago import Drago
from drago.solvers.lbfgs import LBFGS

_BY_NAME: dict[str, Any] = {"drago": Drago, "lbfgs": LBFGS}


def as_method(solver: Any, problem: DROProblem) -> Method:
    """A method from a name or a settings object."""
    if isinstance(solver, str):
        name = check_option("solver", solver, ["auto", *_BY_NAME])
        return _BY_NAME["lbfgs" if name == "auto" else name]()
    if hasattr(solver, "run") and hasattr(solver, "check") and not isinstance(solver, type):
        return solver
    names = ", ".join(map(repr, ["auto", *_BY_NAME]))
    raise TypeError(
        f"solver must be one of {names} or a settings object such as LBFGS(memory=20), "
        f"but {shown(solver)} was given."
    )
