"""What the loop's part of a saved solve holds, and what it shares with that of a method."""

from __future__ import annotations

import math
from typing import Any

from drago._validation import shown
from drago.certificate.certify import NO_BOUND
from drago.certificate.search import AMPLE, FEASIBILITY
from drago.files.archive import State
from drago.files.checkpoint import CheckpointError
from drago.files.forms import (
    ANY,
    NOT_NEGATIVE,
    POSITIVE,
    UP_TO_INFINITY,
    Constant,
    Count,
    Fields,
    Floats,
    Form,
    Items,
    Maybe,
    Number,
    Part,
    Row,
    Text,
)
from drago.problem import DROProblem

# What a finite gap may rest on.
_BOUNDS = ("tangent", "curvature")


def point_forms(problem: DROProblem, prefix: str = "", ending: str = "") -> dict[str, Form]:
    """Coefficients and an intercept, which is 0 where none is fitted."""
    d, k = problem.n_features, problem.n_outputs
    most = math.inf if problem.fit_intercept else 0.0
    return {
        f"{prefix}w{ending}": Floats((d, k)),
        f"{prefix}b{ending}": Floats((k,), -most, most),
    }


def memory_form(memory: dict[str, Any]) -> Form:
    """The form of an oracle's memory: any numbers, because they do not decide what it finds."""
    return Fields(dict.fromkeys(memory, ANY))


def check_whole(arrays: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise where a saved solve is not made of a loop's part and a method's."""
    Fields({"identity": Text(), "loop": Part(), "method": Part()}).check("", settings)
    for name in arrays:
        if not name.startswith(("loop.", "method.")):
            raise CheckpointError(f"it holds {shown(name)}, which is not known")


def check_loop(problem: DROProblem, oracle: Any, state: State) -> None:
    """Raise where the loop's part of a saved solve cannot be one of this problem."""
    arrays, settings = state
    n = problem.n_samples
    forms: dict[str, Form] = {}
    claims: dict[str, Form] = {}
    claim = {
        "primal": Number(),
        "gap": UP_TO_INFINITY,
        "bound": Text((*_BOUNDS, "none", NO_BOUND)),
        "n_passes": Number(0.0, AMPLE),
        # Only where there is no gap is the slope what decides.
        "stationarity": Constant(None) if problem.is_convex else Maybe(NOT_NEGATIVE),
    }
    for name in ("best", "dual"):
        if name == "best" or name in settings:  # both may be one
            forms |= {**point_forms(problem, f"{name}."), f"{name}.q": Floats((n,), 0.0)}
            # Bounds over a ball are never kept apart from the point that they belong to.
            radius = Maybe(POSITIVE) if name == "best" else Constant(None)
            claims[name] = Fields({**claim, "restricted_to": radius})
    Fields(forms, point_forms(problem, "start.")).check("loop", arrays)
    record = (Count(), NOT_NEGATIVE, Count(), NOT_NEGATIVE, Number(), Number())
    bounds = (Number(finite=False), UP_TO_INFINITY, UP_TO_INFINITY)
    Fields(
        {
            "_judged_iter": Count(-1),
            "_looks": Count(),
            "_next_look": Count(1),
            "_factor": UP_TO_INFINITY,
            "_extra_passes": NOT_NEGATIVE,
            "_evaluating": NOT_NEGATIVE,
            "elapsed": NOT_NEGATIVE,
            "notes": Items(Text()),
            "oracle": memory_form(oracle.memory),
            "records": Items(Row((*record, *bounds))),
            **claims,
        }
    ).check("loop", settings)
    for name in claims:
        if (settings[name]["gap"] < math.inf) != (settings[name]["bound"] in _BOUNDS):
            raise CheckpointError(f"loop.{name}.gap does not go with loop.{name}.bound")
        require_weights(f"loop.{name}.q", problem, arrays[f"{name}.q"])
        if not problem.constraint.contains(arrays[f"{name}.w"]):
            raise CheckpointError(f"loop.{name}.w lies outside of {problem.constraint!r}")


def require_weights(name: str, problem: DROProblem, q: Any) -> None:
    """Raise where exported weights lie outside of the problem's set."""
    violation = problem.violation(problem.rows.restored(q))
    if not violation <= FEASIBILITY:
        raise CheckpointError(
            f"{name} must lie in {problem.uncertainty!r}, but violates it by {violation:.2g}"
        )
