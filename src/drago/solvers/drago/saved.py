"""What a saved solve holds: what everything that is read from a checkpoint has to fit.

Anyone can compute a SHA-256, and compiled code believes the shapes it is told. So each array and
each setting is described here, by its shape or its range, and compared before it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from drago._validation import are_finite, shown
from drago.certificate.certify import NO_BOUND
from drago.certificate.search import AMPLE
from drago.files.archive import State
from drago.files.checkpoint import CheckpointError
from drago.problem import DROProblem
from drago.solvers.drago.steps import REMEMBERED

if TYPE_CHECKING:
    from drago.solvers.drago.iterations import Iterations

# How far outside the set weights may lie, in mass: what rounding leaves.
_FEASIBILITY = 1e-9
# What a finite gap may rest on.
_BOUNDS = ("tangent", "curvature")
# More than any count; and how far numbers that follow from one another may be apart.
_MANY = 2**62
_ROUNDING = 1e-9

# ---------------------------------------------------------------------------------- the forms


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


# ------------------------------------------------------------------------------- what is there

_ANY = Number(finite=False, nan=True)
_NOT_NEGATIVE = Number(0.0)
_POSITIVE = Number(0.0, above=True)
_STEP = Number(1e-100, 1e100)  # its inverse is multiplied with prices and curvatures
_UP_TO_INFINITY = Number(0.0, finite=False)


def _point(problem: DROProblem, prefix: str = "", ending: str = "") -> dict[str, Form]:
    """Coefficients and an intercept, which is 0 where none is fitted."""
    d, k = problem.n_features, problem.n_outputs
    most = math.inf if problem.fit_intercept else 0.0
    return {
        f"{prefix}w{ending}": Floats((d, k)),
        f"{prefix}b{ending}": Floats((k,), -most, most),
    }


def _memory(oracle: Any) -> Form:
    """Where a search begins does not decide where it ends: any number will do."""
    return Fields(dict.fromkeys(oracle.memory, _ANY))


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
        "gap": _UP_TO_INFINITY,
        "bound": Text((*_BOUNDS, "none", NO_BOUND)),
        "n_passes": Number(0.0, AMPLE),
        # Only where there is no gap is the slope what decides.
        "stationarity": Constant(None) if problem.is_convex else Maybe(_NOT_NEGATIVE),
    }
    for name in ("best", "dual"):
        if name == "best" or name in settings:  # both may be one
            forms |= {**_point(problem, f"{name}."), f"{name}.q": Floats((n,), 0.0)}
            # Bounds over a ball are never kept apart from the point that they belong to.
            radius = Maybe(_POSITIVE) if name == "best" else Constant(None)
            claims[name] = Fields({**claim, "restricted_to": radius})
    Fields(forms, _point(problem, "start.")).check("loop", arrays)
    record = (Count(), _NOT_NEGATIVE, Count(), _NOT_NEGATIVE, Number(), Number())
    bounds = (Number(finite=False), _UP_TO_INFINITY, _UP_TO_INFINITY)
    Fields(
        {
            "_judged_iter": Count(-1),
            "_looks": Count(),
            "_next_look": Count(1),
            "_factor": _UP_TO_INFINITY,
            "_extra_passes": _NOT_NEGATIVE,
            "_evaluating": _NOT_NEGATIVE,
            "elapsed": _NOT_NEGATIVE,
            "notes": Items(Text()),
            "oracle": _memory(oracle),
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
    """Raise where weights, in the problem's order, lie outside of its set."""
    violation = problem.violation(q)
    if not violation <= _FEASIBILITY:
        raise CheckpointError(
            f"{name} must lie in {problem.uncertainty!r}, but violates it by {violation:.2g}"
        )


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
            "mu": _NOT_NEGATIVE,
            "smooth": _POSITIVE,
            "lipschitz": _POSITIVE,
            "nu_1": _POSITIVE,
            "a": _NOT_NEGATIVE,
            "total": _NOT_NEGATIVE,
            "c": _NOT_NEGATIVE,
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
        "estimates": Items(_POSITIVE),
        "certified": _UP_TO_INFINITY,
        "stale": Count(),
    }
    seen = Fields(
        {
            "n_iter": Count(),
            "n_passes": _NOT_NEGATIVE,
            "n_oracle_calls": Count(),
            "gap_estimate": _NOT_NEGATIVE,
            "primal_estimate": Number(),
        }
    )
    Fields(
        {
            "state": Part(),
            "watch": Fields(watch, {"best": seen}),
            "rng": _GENERATOR,
            "intercept": _POSITIVE,
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
    point = _point(problem) if "best" in settings["watch"] else {}
    Fields(point).check("method.watch", inner(arrays, "watch."))
    Fields(mean).check("method", {key: arrays[key] for key in ("mean",) if key in arrays})


def check_iterations(iterations: Iterations, rules: tuple[str, ...], state: State) -> None:
    """Raise where a state is not one of these iterations, with steps of one of the `rules`.

    Arrays of the run may be among its own.
    """
    arrays, settings = state
    problem, blocks, kind = iterations.problem, iterations.blocks, iterations.kind
    Fields({"rule": Text(rules), **dict.fromkeys(_STATE, Part())}).check("method.state", settings)
    rule = settings["rule"]
    n, d, k, m = problem.n_samples, problem.n_features, problem.n_outputs, blocks.count
    packed = (d + 1 if problem.fit_intercept else d, k)
    is_kl = problem.divergence.name == "kl"
    forms: dict[str, Form] = {
        **_point(problem),
        **_point(problem, "_mean_"),
        "_ring": Floats((m, *packed)),
        "_ring_sum": Floats(packed),
        "loss_table": Floats((n,)),
        "product": Floats((0 if kind == "support" else n, k)),
        "q": Floats((n,), 0.0),
        "mirror": Floats((n if is_kl else 0,), neginf=True),
        "aggregate": Floats((d, k)),
        "aggregate_b": Floats((k,)),
        "_last_change": Floats((d, k)),
        "_last_change_b": Floats((k,)),
    }
    if kind == "support":
        past = arrays.get("_past_point")
        shape = packed if past is not None and past.size > 0 else (0, 0)
        forms |= {name: Floats(shape) for name in ("_past_point", "_past_slope")}
        forms["_slopes"] = Floats((2, blocks.largest, k))
    if kind == "lagged":
        forms |= {"old_losses": Floats((n,)), "old_product": Floats((n, k))}
    others = ("metric.", "watch.", "mean")
    own = {name: array for name, array in arrays.items() if not name.startswith(others)}
    Fields(forms).check("method", own)
    block = Count(-1, m - 1)
    lists: dict[str, Form] = {}
    if iterations._unsettled is not None:
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
        "oracle": _memory(iterations.oracle),
        "estimator": _memory(iterations._estimator),
        "steps": _STEPS[rule],
        "unsettled": Fields(lists),
    }
    for name in _STATE:
        parts[name].check(f"method.state.{name}", settings[name])
    counts, q = settings["counts"], arrays["q"]
    if (counts["_last_k"] < 0) != (counts["_last_j"] < 0):
        raise CheckpointError("method.state.counts knows one of the last two blocks only")
    if is_kl and not (q[arrays["mirror"] == -math.inf] == 0.0).all():
        raise CheckpointError("method.mirror must be finite where method.q is not 0")
    require_weights("method.q", problem, blocks.scatter(q))
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
