"""L-BFGS on ``P`` with exact weights: the deterministic reference (`scipy.optimize`), in a metric.

In a metric and without bounds it is our own (`drago.solvers.quasi_newton`), for two reasons: a
search along a line then costs no visit to the data, and the first step is as long as the metric
says, where scipy's has length 1 whatever the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_flag, check_integer, check_option
from drago.certificate.hessian import hessian_metric
from drago.files.archive import State
from drago.files.forms import inner
from drago.loop.loop import Iterate, Loop
from drago.loop.method import Method
from drago.metric import Metric, is_box, make_metric
from drago.problem import DROProblem, Evaluation, Gradient, NonFiniteLossError
from drago.solvers import class_descent
from drago.solvers.lbfgs_saved import check_lbfgs
from drago.solvers.quasi_newton import FLOOR, Line, Memory

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LBFGS(Method):
    """Settings of the L-BFGS method.

    ``P(w) = max over q of L(w, q)`` has the gradient ``sum_i q_i grad l_i(w) + mu w`` at the exact
    weights ``q`` (Danskin), and is smooth for shift_cost > 0 and in balls. For shift_cost = 0 it
    is not elsewhere: then ``P`` is replaced by smoothed versions with a falling shift cost, each
    started at the last one's answer, until the certificate of the problem itself is small enough.

    Parameters
    ----------
    memory : int
        Pairs of steps and gradient changes that are kept.
    metric : {"euclidean", "auto", "diagonal", "full"}
        How the length of steps is measured: plainly, or by the curvature of the data ("diagonal"
        or "full", "auto" by the number of features), which takes fewer steps.
    progressive : bool
        Whether large problems are first solved on a part of their rows, to start from there.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> drago.solve(problem, drago.LBFGS(metric="auto", progressive=True)).solver
    'lbfgs'
    """

    memory: int = 20
    metric: str = "euclidean"
    progressive: bool = False
    name = "lbfgs"

    def __post_init__(self) -> None:
        check_integer("memory", self.memory, low=1)
        check_option("metric", self.metric, ("auto", "euclidean", "diagonal", "full"))
        check_flag("progressive", self.progressive)

    def check(self, problem: DROProblem) -> None:
        if not problem.constraint.has_bounds:
            raise ValueError(
                f"solver 'lbfgs' takes a Box, NonNegative or no constraint, but the problem has "
                f"{problem.constraint!r}."
            )
        if self.metric == "full" and is_box(problem):
            raise ValueError(
                f"solver 'lbfgs' handles {problem.constraint!r} with metric='diagonal' or "
                "'euclidean', where it is still a box."
            )

    def metric_at(
        self, part: DROProblem, at: Iterate, error: float
    ) -> tuple[Metric, Vector] | None:
        """The metric for all rows, from a part of them and its optimum."""
        if self.metric != "auto":
            return None
        return hessian_metric(part, at.w, at.b, error, at.evaluation)

    def resumes(self, problem: DROProblem) -> bool:
        """By our own searches along lines: scipy's method and the compiled one keep no state."""
        in_metric = self.metric != "euclidean" and not is_box(problem)
        return in_metric and problem.rows.is_linear and not class_descent.is_for(problem)

    def run(self, problem: DROProblem, loop: Loop) -> str:
        if self.resumes(problem):
            return _LineSearchRun(problem, loop, self).run()
        if self.metric != "euclidean" and not is_box(problem) and class_descent.is_for(problem):
            return class_descent.ClassRun(problem, loop, self.memory, self.metric).minimise()
        return _LBFGSRun(problem, loop, self).run()

    def resume(self, problem: DROProblem, loop: Loop, saved: State) -> Callable[[], str]:
        return _LineSearchRun(problem, loop, self, saved).run


@dataclass(frozen=True)
class _TriedPoint:
    """What is known of a point that the method tried."""

    value: float
    slope: Vector
    evaluation: Evaluation
    q: Vector
    gradient: Gradient
    estimate: float
    is_sum: bool = False


@dataclass(frozen=True)
class _Descent:
    """What our own descent knows besides its point.

    The pairs, the least estimate of the gap, and the iterations since the objective fell.
    """

    memory: Memory
    least: float
    idle: int = 0


class _LBFGSRun:
    """One run of scipy's L-BFGS: the point in scipy's flat form, and the count of what it cost.

    Features are centred by their weighted mean when an intercept is fitted: the unknowns are
    ``w``, in the unit of the features, and ``b + xbar'w``, whose directions do not interfere. In a
    metric the unknowns are the coordinates of ``w`` in its basis, each divided by its scale.
    """

    def __init__(
        self, problem: DROProblem, loop: Loop, settings: LBFGS, saved: State | None = None
    ) -> None:
        self.problem, self.loop, self.memory = problem, loop, settings.memory
        self.shape = (problem.n_features, problem.n_outputs)
        self.oracle = problem.dual_oracle()
        self.stage, self.n_iter, self.n_calls = 0, 0, 0
        self.mean = np.zeros(problem.n_features)
        self.passes = 0.0
        self.last: _TriedPoint | None = None
        self.descent: _Descent | None = None
        self.metric: Metric | None = None
        if saved is not None:
            self._restore(saved)
            return
        if loop.start_centre is not None and settings.metric != "euclidean":
            self.mean = loop.start_centre
        elif problem.fit_intercept:
            self.mean = problem.rows.centre()
            self.passes = 0.5
        self.scale: Matrix | float = 1.0
        self.along = 1.0
        if settings.metric != "euclidean":
            centre = self.mean if problem.fit_intercept else None
            self._move_in(loop.make_metric(settings.metric, centre, FLOOR))
        elif problem.fit_intercept and problem.rows.has("compiled"):
            self.scale = 1.0 / _unit(problem, self.mean)
        w, b = loop.start
        shifted = b + self.mean @ w
        if self.metric is not None:
            w = self.metric.rotate(w)
        self.x = (w / self.scale).reshape(-1)
        if problem.fit_intercept:
            self.x = np.append(self.x, shifted / self.along)

    def _move_in(self, metric: Metric) -> None:
        self.metric = metric
        self.scale = 1.0 / np.sqrt(metric.eigenvalues)[:, None]
        self.along = 1.0 / np.sqrt(metric.intercept)

    @cached_property
    def stages(self) -> list[tuple[float, float]]:
        """Shift costs with which P is minimised one after the other, and how accurately."""
        problem = self.problem
        if problem.nu > 0 or problem.kappa_q <= 1:
            return [(problem.nu, 0.0)]
        scale = problem.scale + np.finfo(float).tiny
        errors = scale * 10.0 ** -np.append([2.0], np.arange(4.0, 13.0))
        smoothed = [(problem.smoothing(error), 0.1 * error) for error in errors]
        # A ball has no corners, but for those of the simplex.
        is_ball = problem.uncertainty.own_divergence is not None
        return [(0.0, 0.0), *smoothed] if is_ball else smoothed

    def run(self) -> str:
        """All stages, from the current one on; returns why there is no further progress."""
        why = ""
        while self.stage < len(self.stages):
            nu, accuracy = self.stages[self.stage]
            why = self.minimise(nu, accuracy)
            if accuracy > 0.0:
                self.end_stage()
            self.stage += 1
        return why

    def _restore(self, saved: State) -> None:
        raise NotImplementedError("scipy's method cannot be resumed.")

    def _unpack(self, x: Vector) -> tuple[Matrix, Vector]:
        w = self.scale * x[: self.shape[0] * self.shape[1]].reshape(self.shape)
        if self.metric is not None:
            w = self.metric.back(w)
        if not self.problem.fit_intercept:
            return w, np.zeros(self.shape[1])
        return w, self.along * x[self.shape[0] * self.shape[1] :] - self.mean @ w

    def minimise(self, nu: float, accuracy: float) -> str:
        """Minimise P with the shift cost `nu`, roughly to `accuracy`; returns why it ended."""
        from scipy.optimize import minimize

        problem = self.problem
        box = problem.constraint.bounds(self.shape)
        assert box is not None
        low, high = (  # a metric is diagonal where they are finite
            np.append(side / self.scale, np.full(self.x.size - side.size, inf))
            for side, inf in zip(box, (-np.inf, np.inf))
        )
        bounded = np.isfinite(low).any() or np.isfinite(high).any()
        # The evaluation of each trial point, until its iteration ends.
        seen: dict[bytes, _TriedPoint] = {}

        def value_and_gradient(x: Vector) -> tuple[float, Vector]:
            key = x.tobytes()
            if key not in seen:
                seen[key] = self._evaluate(x, nu, low, high)
            return seen[key].value, seen[key].slope

        def after_iteration(intermediate_result: Any) -> None:
            self.n_iter += 1
            self.x = intermediate_result.x.copy()
            trial = self.last = seen[self.x.tobytes()]
            seen.clear()
            seen[self.x.tobytes()] = trial
            self._observe(trial)
            if trial.estimate <= accuracy:
                raise StopIteration

        self.x = np.clip(self.x, low, high)
        value, _ = value_and_gradient(self.x)
        if self.n_iter == 0:
            self._observe(seen[self.x.tobytes()])
        while True:
            before, n_iter = value, self.n_iter
            minimize(
                value_and_gradient,
                self.x,
                jac=True,
                method="L-BFGS-B",
                bounds=np.column_stack([low, high]) if bounded else None,
                callback=after_iteration,
                options={
                    "maxcor": self.memory,
                    "maxiter": 10**9,
                    "maxfun": 10**9,
                    "maxls": 50,
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
            value, _ = value_and_gradient(self.x)
            progress = before - value > 1e-13 * problem.size_of(value)
            if accuracy > 0.0 or self.n_iter == n_iter or not progress:
                break
            # Old pairs and bounds that became active since can jam the method far from the
            # optimum; a start with fresh memory tells.
        if accuracy == 0.0 and problem.rows.has("compiled") and not bounded:
            # The objective is level up to rounding; with a tiny mu the gradient has to fall on.
            self._descend(nu, accuracy)
        return "the objective does not fall any more"

    def _descend(self, nu: float, accuracy: float) -> str:
        """The same by our own searches along lines, which cost no visit to the data."""
        problem = self.problem._replace(nu=nu)
        low, high = (np.full(self.x.size, side) for side in (-np.inf, np.inf))
        if self.descent is None:
            here = self._evaluate(self.x, nu, low, high)
            if self.n_iter == 0:
                self._observe(here)
            self.descent = _Descent(Memory(self.memory, self.x.size), here.estimate)
        else:  # resumed in the middle of it
            assert self.last is not None
            here = self.last
        descent, self.descent = self.descent, None
        memory, idle, least = descent.memory, descent.idle, descent.least
        blocked: NonFiniteLossError | None = None
        while idle < _IDLE:
            self._rest(here, _Descent(memory, least, idle))
            dx = memory.direction(here.slope)
            falling, found = float(np.dot(here.slope, dx)), None
            if falling < 0:
                start, value = here.evaluation, here.value
                step = self._unpack(dx)
                # Rows without weight have none in certificates either if these are the weights.
                line = Line(
                    problem, self.oracle, start, value, falling, *step,
                    leaves_out=0.0 < nu == self.problem.nu,
                )  # fmt: skip
                found = line.search(1.0)
                self.passes += line.passes
                self.n_calls += line.n_trials
                blocked = line.error  # the border of where the losses are numbers
            if found is None or found.evaluation is None or found.q is None:
                if not memory.count:
                    break
                memory.clear()  # old pairs can jam the method far from the optimum
                continue
            ev, q, g = found.evaluation, found.q, found.gradient
            self.n_iter += 1
            self.x = self.x + found.t * dx
            is_sum = g is None
            if g is None:
                if self.n_iter % _FRESH == 0:
                    ev, is_sum = problem.evaluate(ev.w, ev.b), False
                    self.passes += 0.5
                g = problem.gradient(ev, q)
                self.passes += 0.5
            slope = self._slope(ev.w, g)
            memory.add(found.t * dx, slope - here.slope)
            estimate = self._estimate(self.x, slope, low, high)
            level = found.value >= here.value - 1e-15 * abs(here.value)
            # Where the objective is level up to rounding, the gradient tells.
            idle = idle + 1 if level and estimate > 0.9 * least else 0
            least = min(least, estimate)
            here = self.last = _TriedPoint(found.value, slope, ev, q, g, estimate, is_sum)
            self._observe(here)
            if estimate <= accuracy:
                return ""
        if blocked is not None:
            raise blocked
        return "the objective does not fall any more"

    def _rest(self, here: _TriedPoint, descent: _Descent) -> None:
        """A moment from which the solve could go on, for who can."""

    def _evaluate(self, x: Vector, nu: float, low: Vector, high: Vector) -> _TriedPoint:
        """``P`` with the shift cost `nu` and its gradient; one pass."""
        problem = self.problem._replace(nu=nu)
        w, b = self._unpack(x)
        ev, q, g = problem.visit(w, b, self.oracle)
        self.n_calls += 1
        self.passes += 1.0
        value, slope = problem.primal(w, ev.losses, q), self._slope(w, g)
        return _TriedPoint(value, slope, ev, q, g, self._estimate(x, slope, low, high))

    def _slope(self, w: Matrix, g: Gradient) -> Vector:
        """The gradient of ``P`` in the unknowns."""
        problem = self.problem
        slope = g.w + problem.mu * w
        if problem.fit_intercept:
            slope -= np.outer(self.mean, g.b)
        if self.metric is not None:
            slope = self.metric.rotate(slope)
        flat = (self.scale * slope).reshape(-1)
        return np.append(flat, self.along * g.b) if problem.fit_intercept else flat

    def _estimate(self, x: Vector, slope: Vector, low: Vector, high: Vector) -> float:
        """``||grad P||^2 / (2 mu)``, or half its square in the metric; without what bounds hold."""
        held = ((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0))
        size = float(np.linalg.norm(slope[~held]))
        if self.metric is not None:
            return 0.5 * size**2
        if self.problem.mu > 0:
            return size**2 / (2.0 * self.problem.mu * float(self.scale) ** 2)
        return size * (1.0 + float(np.linalg.norm(x)))

    def end_stage(self) -> None:
        """Have the last point of a smoothed problem certified for the problem itself."""
        if self.last is not None:
            self._observe(self.last, milestone=True)

    def _observe(self, trial: _TriedPoint, milestone: bool = False) -> None:
        n = self.problem.n_samples
        self.loop.observe(
            Iterate(
                w=trial.evaluation.w,
                b=trial.evaluation.b,
                n_iter=self.n_iter,
                n_passes=self.passes,
                n_oracle_calls=self.n_calls * n,
                evaluation=trial.evaluation,
                q=trial.q if self.problem.nu == 0 else None,
                exact=(trial.q, trial.gradient) if self.problem.nu > 0 else None,
                gap_estimate=trial.estimate,
                primal_estimate=trial.value,
                milestone=milestone,
                is_sum=trial.is_sum,
            )
        )


def _unit(problem: DROProblem, mean: Vector) -> float:
    """The typical size of the features, the curvature of the regularisation included.

    In a unit far from theirs, the coefficients or the intercept are left with steps that change
    nothing but rounding. A power of two: dividing by it is exact. Where it is not far from 1, or no
    more than the rounding of features that hardly vary, it is 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        metric = make_metric(problem, "diagonal", mean)
        size = float(np.sqrt(metric.eigenvalues.mean() / metric.intercept))
    if not _NO_SIZE + _HARDLY * float(np.abs(mean).max()) < size < 1.0 / _NO_SIZE:
        return 1.0
    power = round(np.log2(size))
    return float(2.0**power) if abs(power) > 3 else 1.0


# Sizes up to which features count as constant: by themselves, and as a share of their mean, where
# digits cancel.
_NO_SIZE, _HARDLY = 1e-100, 1e-7
# Iterations after which the raw predictions are computed afresh: they are sums of so many steps.
_FRESH = 50
# Iterations without a lower objective before the method gives up.
_IDLE = 5


class _LineSearchRun(_LBFGSRun):
    """The same for linear predictors in a metric, by our own searches along lines alone."""

    def minimise(self, nu: float, accuracy: float) -> str:
        return self._descend(nu, accuracy)

    def _rest(self, here: _TriedPoint, descent: _Descent) -> None:
        self.loop.rest(lambda: self._snapshot(here, descent))

    def _snapshot(self, here: _TriedPoint, descent: _Descent) -> State:
        rows, ev, memory, metric = self.problem.rows, here.evaluation, descent.memory, self.metric
        assert metric is not None
        arrays = {"w": ev.w, "b": ev.b, "mean": self.mean, "x": self.x, "slope": here.slope}
        arrays |= {"gradient_w": here.gradient.w, "gradient_b": here.gradient.b}
        arrays |= {"metric.eigenvalues": metric.eigenvalues, **memory.state()}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        vectors = {"raw": ev.raw, "losses": ev.losses, "dlosses": ev.dlosses, "q": here.q}
        arrays |= {name: rows.saved(vector) for name, vector in vectors.items()}
        if metric.basis is not None:
            arrays["metric.basis"] = metric.basis
        return arrays, {
            "stage": self.stage,
            "n_iter": self.n_iter,
            "n_calls": self.n_calls,
            "passes": self.passes,
            "idle": descent.idle,
            "least": descent.least,
            "value": here.value,
            "estimate": here.estimate,
            "is_sum": here.is_sum,
            "share": ev.share,
            "pairs": memory.count,
            "intercept": metric.intercept,
            "oracle": self.oracle.memory,
        }

    def _restore(self, saved: State) -> None:
        check_lbfgs(self.problem, self.oracle.memory, self.memory, len(self.stages), saved)
        arrays, settings = saved
        self.stage, self.n_iter, self.n_calls, self.passes = (
            settings[name] for name in ("stage", "n_iter", "n_calls", "passes")
        )
        self.oracle.memory = settings["oracle"]
        self.mean, self.x = arrays["mean"], arrays["x"]
        metric = inner(arrays, "metric.")
        self.loop.metric = Metric(metric["eigenvalues"], metric.get("basis"), settings["intercept"])
        self._move_in(self.loop.metric)
        rows = self.problem.rows
        raw, losses, dlosses, q = (
            rows.restored(arrays[name]) for name in ("raw", "losses", "dlosses", "q")
        )
        self.last = _TriedPoint(
            settings["value"],
            arrays["slope"],
            Evaluation(arrays["w"], arrays["b"], raw, losses, dlosses, settings["share"]),
            q,
            Gradient(arrays["gradient_w"], arrays["gradient_b"]),
            settings["estimate"],
            settings["is_sum"],
        )
        memory = Memory(self.memory, self.x.size)
        memory.restore(arrays)
        self.descent = _Descent(memory, settings["least"], settings["idle"])
