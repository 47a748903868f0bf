"""L-BFGS on ``P`` with exact weights: the deterministic reference (`scipy.optimize`), in a metric.

In a metric and without bounds it is our own (`drago.solvers.quasi_newton`), for two reasons: a
search along a line then costs no visit to the data, and the first step is as long as the metric
says, where scipy's has length 1 whatever the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_flag, check_integer, check_option
from drago.certificate.hessian import hessian_metric
from drago.loop.loop import Iterate, Loop
from drago.loop.method import Method
from drago.metric import Metric, is_box, make_metric
from drago.problem import DROProblem, Evaluation, Gradient, NonFiniteLossError
from drago.solvers import class_descent
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
        The norm in which it moves (`drago.metric`).
    progressive : bool
        Whether large problems are first solved on a part of their rows, to start from there.
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
        self, part: DROProblem, w: Matrix, b: Vector, error: float
    ) -> tuple[Metric, Vector] | None:
        """The metric for all rows, from a part of them and its optimum."""
        return hessian_metric(part, w, b, error) if self.metric == "auto" else None

    def run(self, problem: DROProblem, loop: Loop) -> str:
        in_metric = self.metric != "euclidean" and not is_box(problem)
        if in_metric and class_descent.is_for(problem):
            return class_descent.ClassRun(problem, loop, self.memory, self.metric).minimise()
        kind = _LineSearchRun if in_metric and problem.rows.is_linear else _LBFGSRun
        run = kind(problem, loop, self)
        if problem.nu > 0 or problem.kappa_q <= 1:
            return run.minimise(problem.nu, 0.0)
        if problem.uncertainty.own_divergence is not None:
            run.minimise(0.0, 0.0)  # a ball has no corners, but for those of the simplex
        why = ""
        scale = problem.scale + np.finfo(float).tiny
        for error in scale * 10.0 ** -np.append([2.0], np.arange(4.0, 13.0)):
            why = run.minimise(problem.smoothing(error), 0.1 * error)
            run.end_stage()
        return why


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


class _LBFGSRun:
    """One run of scipy's L-BFGS: the point in scipy's flat form, and the count of what it cost.

    Features are centred by their weighted mean when an intercept is fitted: the unknowns are
    ``w``, in the unit of the features, and ``b + xbar'w``, whose directions do not interfere. In a
    metric the unknowns are the coordinates of ``w`` in its basis, each divided by its scale.
    """

    def __init__(self, problem: DROProblem, loop: Loop, settings: LBFGS) -> None:
        self.problem, self.loop, self.memory = problem, loop, settings.memory
        self.shape = (problem.n_features, problem.n_outputs)
        self.oracle = problem.dual_oracle()
        self.n_iter, self.n_calls = 0, 0
        self.mean = np.zeros(problem.n_features)
        self.passes = 0.0
        self.last: _TriedPoint | None = None
        if loop.start_centre is not None and settings.metric != "euclidean":
            self.mean = loop.start_centre
        elif problem.fit_intercept:
            self.mean = problem.rows.centre()
            self.passes = 0.5
        self.metric: Metric | None = None
        self.scale: Matrix | float = 1.0
        self.along = 1.0
        if settings.metric != "euclidean":
            centre = self.mean if problem.fit_intercept else None
            self.metric = loop.make_metric(settings.metric, centre, FLOOR)
            self.scale = 1.0 / np.sqrt(self.metric.eigenvalues)[:, None]
            self.along = 1.0 / np.sqrt(self.metric.intercept)
        elif problem.fit_intercept and problem.rows.has("compiled"):
            self.scale = 1.0 / _unit(problem, self.mean)
        w, b = loop.start
        shifted = b + self.mean @ w
        if self.metric is not None:
            w = self.metric.rotate(w)
        self.x = (w / self.scale).reshape(-1)
        if problem.fit_intercept:
            self.x = np.append(self.x, shifted / self.along)

    def _unpack(self, x: Vector) -> tuple[Matrix, Vector]:
        w = self.scale * x[: self.shape[0] * self.shape[1]].reshape(self.shape)
        if self.metric is not None:
            w = self.metric.back(w)
        if not self.problem.fit_intercept:
            return w, np.zeros(self.shape[1])
        return w, self.along * x[self.shape[0] * self.shape[1] :] - self.mean @ w

    def minimise(self, nu: float, accuracy: float) -> str:
        """Minimise P with the shift cost `nu`, roughly to `accuracy`; returns scipy's reason."""
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
            out = minimize(
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
        return str(out.message)

    def _descend(self, nu: float, accuracy: float) -> str:
        """The same by our own searches along lines, which cost no visit to the data."""
        problem = self.problem._replace(nu=nu)
        low, high = (np.full(self.x.size, side) for side in (-np.inf, np.inf))
        here = self._evaluate(self.x, nu, low, high)
        if self.n_iter == 0:
            self._observe(here)
        memory, idle, least = Memory(self.memory, self.x.size), 0, here.estimate
        blocked: NonFiniteLossError | None = None
        while idle < _IDLE:
            dx = memory.direction(here.slope)
            falling, found = float(np.dot(here.slope, dx)), None
            if falling < 0:
                start, value = here.evaluation, here.value
                step = self._unpack(dx)
                line = Line(problem, self.oracle, start, value, falling, *step)
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
