"""What DRAGO's part of a saved solve holds; the loop's is in `drago.loop.saved`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drago.files.archive import State
from drago.files.checkpoint import CheckpointError
from drago.files.forms import (
    NOT_NEGATIVE,
    POSITIVE,
    UP_TO_INFINITY,
    Constant,
    Count,
    Fields,
    Flag,
    Floats,
    Form,
    Items,
    Number,
    Part,
    Text,
    inner,
)
from drago.loop.saved import memory_form, point_forms, require_weights
from drago.problem import DROProblem
from drago.solvers.drago.steps import REMEMBERED

if TYPE_CHECKING:
    from drago.solvers.drago.iterations import Iterations

# How far numbers that follow from one another may be apart.
_ROUNDING = 1e-9
_STEP = Number(1e-100, 1e100)  # its inverse is multiplied with prices and curvatures

_GENERATOR = Fields(
    {
        "bit_generator": Text(("PCG64",)),
        "state": Fields({"state": Count(0, 2**128 - 1), "inc": Count(0, 2**128 - 1)}),
        "has_uint32": Count(0, 1),
        "uinteger": Count(0, 2**32 - 1),
    }
)
# The attributes of each rule of steps, and the parts of a state.
_STEPS: dict[str, Fields] = {
    "Steps": Fields({"alpha": _STEP, "dual_alpha": _STEP, "stationary": Flag()}),
    "SecantSteps": Fields(
        {
            "alpha": _STEP,
            "largest": Number(1e-3, 1e3),
            "boldness": Number(1e-3, 1e3),
            "curvatures": Items(Number(), REMEMBERED),
        }
    ),
    "LaggedSteps": Fields({"alpha": _STEP}),
    "UnregularisedSteps": Fields(
        {
            "mu": NOT_NEGATIVE,
            "smooth": POSITIVE,
            "lipschitz": POSITIVE,
            "nu_1": POSITIVE,
            "a": NOT_NEGATIVE,
            "total": NOT_NEGATIVE,
            "c": NOT_NEGATIVE,
        }
    ),
}
_STATE = ("counts", "oracle", "estimator", "steps", "unsettled")


def check_run(problem: DROProblem, exact: bool | None, state: State) -> None:
    """Raise where DRAGO's part of a saved solve, but for its iterations, is not one.

    `exact` is what the setting of this name has to be, where that is known.
    """
    arrays, settings = state
    d = problem.n_features
    watch: dict[str, Form] = {
        "estimates": Items(POSITIVE),
        "certified": UP_TO_INFINITY,
        "stale": Count(),
    }
    seen = Fields(
        {
            "n_iter": Count(),
            "n_passes": NOT_NEGATIVE,
            "n_oracle_calls": Count(),
            "gap_estimate": NOT_NEGATIVE,
            "primal_estimate": Number(),
        }
    )
    Fields(
        {
            "state": Part(),
            "watch": Fields(watch, {"best": seen}),
            "rng": _GENERATOR,
            "intercept": POSITIVE,
            "cut": Number(0.0, 1.0, above=True),
            "rounds": Count(),
            "exact": Flag() if exact is None else Constant(exact),
        }
    ).check("method", settings)
    mean: dict[str, Form] = {"mean": Floats((d,))} if problem.fit_intercept else {}
    basis = Floats((d, d), any_order=True)
    Fields({"eigenvalues": Floats((d,), 0.0, above=True)}, {"basis": basis}).check(
        "method.metric", inner(arrays, "metric.")
    )
    point = point_forms(problem) if "best" in settings["watch"] else {}
    Fields(point).check("method.watch", inner(arrays, "watch."))
    Fields(mean).check("method", {key: arrays[key] for key in ("mean",) if key in arrays})


def check_iterations(iterations: Iterations, rules: tuple[str, ...], state: State) -> None:
    """Raise where a state is not one of these iterations, with steps of one of the `rules`.

    Arrays of the run may be among its own.
    """
    arrays, settings = state
    problem, tables = iterations.problem, iterations.tables
    Fields({"rule": Text(rules), **dict.fromkeys(_STATE, Part())}).check("method.state", settings)
    rule = settings["rule"]
    n, d, k, m = problem.n_samples, problem.n_features, problem.n_outputs, tables.count
    packed = (d + 1 if problem.fit_intercept else d, k)
    forms: dict[str, Form] = {
        **point_forms(problem),
        **point_forms(problem, "average_"),
        "aggregate": Floats((d, k)),
        "aggregate_b": Floats((k,)),
        "last_change": Floats((d, k)),
        "last_change_b": Floats((k,)),
    }
    if m > 1:
        forms |= {"ring": Floats((m, *packed)), "ring_sum": Floats(packed)}
    if iterations.kind == "support":
        past = arrays.get("past_point")
        shape = packed if past is not None and past.size > 0 else (0, 0)
        forms |= {name: Floats(shape) for name in ("past_point", "past_slope")}
    of_tables: dict[str, Form] = {
        "loss_table": Floats((n,)),
        "q": Floats((n,), 0.0),
        "mirror": Floats((n,), neginf=True),
        "product": Floats((n, k)),
        "slopes": Floats((n, k)),
        "old_losses": Floats((n,)),
        "old_product": Floats((n, k)),
    }
    forms |= {name: of_tables[name] for name in tables.names}
    others = ("metric.", "watch.", "mean")
    own = {name: array for name, array in arrays.items() if not name.startswith(others)}
    Fields(forms).check("method", own)
    block = Count(-1, m - 1)
    memories = tables.memories
    lists: dict[str, Form] = {}
    if memories["unsettled"]:
        lists = {"moved": Number(0.0, nan=True), "rest": Count()}
    parts = {
        "counts": Fields(
            {
                **{name: Count() for name in ("t", "n_calls", "visits", "_offset")},
                "_last_k": block,
                "_last_j": block,
                "_is_fresh": Count(0, 1),
            }
        ),
        "oracle": memory_form(memories["oracle"]),
        "estimator": memory_form(memories["estimator"]),
        "steps": _STEPS[rule],
        "unsettled": Fields(lists),
    }
    for name in _STATE:
        parts[name].check(f"method.state.{name}", settings[name])
    counts, q = settings["counts"], arrays["q"]
    if (counts["_last_k"] < 0) != (counts["_last_j"] < 0):
        raise CheckpointError("method.state.counts knows one of the last two blocks only")
    if "mirror" in tables.names and not (q[arrays["mirror"] == -math.inf] == 0.0).all():
        raise CheckpointError("method.mirror must be finite where method.q is not 0")
    require_weights("method.q", problem, q)
    if rule == "UnregularisedSteps":
        _check_unregularised(settings["steps"], problem.mu, m, counts["t"])


def _check_unregularised(steps: dict[str, float], mu: float, m: int, t: int) -> None:
    """What follows from the rest has to: a step of length 0 would be divided by."""
    a, total, coupling = steps["a"], steps["total"], m * steps["lipschitz"]
    begun = a > 0.0 if t > 0 else total == 0.0
    first = abs(math.sqrt(steps["nu_1"]) * steps["smooth"] - coupling) <= _ROUNDING * coupling
    far = abs(5.0 * max(m - 1, 1) * steps["c"] - a) <= _ROUNDING * a
    known = steps["mu"] in (0.0, mu) and math.isfinite(coupling)
    if not (begun and first and far and known and total >= a * (1.0 - _ROUNDING)):
        raise CheckpointError("method.state.steps are no sequences of the method")
