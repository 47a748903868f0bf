"""L-BFGS on ``P`` with exact weights: the deterministic reference (`scipy.optimize`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_flag, check_integer, check_option
from drago.metric import Metric, is_box
from drago.problem import DROProblem, Evaluation
from drago.solvers.base import Iterate, Loop

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LBFGS:
    """Settings of the L-BFGS method.

    ``P(w) = max over q of L(w, q)`` has the gradient ``sum_i q_i grad l_i(w) + mu w`` at the exact
    weights ``q`` (Danskin), and is smooth for shift_cost > 0. For shift_cost = 0 it is not: then
    ``P`` is replaced by smoothed versions with a falling shift cost, each started at the last
    one's answer, until the certificate of the problem itself is small enough.

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
        if problem.constraint.bounds((problem.n_features, problem.n_outputs)) is None:
            raise ValueError(
                f"solver 'lbfgs' takes a Box, NonNegative or no constraint, but the problem has "
                f"{problem.constraint!r}."
            )
        if self.metric == "full" and is_box(problem):
            raise ValueError(
                f"solver 'lbfgs' handles {problem.constraint!r} with metric='diagonal' or "
                "'euclidean', where it is still a box."
            )

    def run(self, problem: DROProblem, loop: Loop) -> str:
        run = _Run(problem, loop, self)
        if problem.nu > 0 or problem.kappa_q <= 1:
            return run.minimise(problem.nu, 0.0)
        why = ""
        scale = abs(problem.reference[0]) + np.finfo(float).tiny
        for error in scale * 10.0 ** -np.arange(1.0, 13.0):
            why = run.minimise(problem.smoothing(error), 0.1 * error)
            run.end_stage()
        return why


@dataclass(frozen=True)
class _Trial:
    """What is known of a point that the method tried."""

    value: float
    slope: Vector
    evaluation: Evaluation
    q: Vector
    estimate: float


class _Run:
    """One run: the point in scipy's flat form, and the count of what it cost.

    Features are centred by their weighted mean when an intercept is fitted: the unknowns are
    ``w`` and ``b + xbar'w``, whose directions do not interfere. In a metric the unknowns are the
    coordinates of ``w`` in its basis, each divided by its scale.
    """

    def __init__(self, problem: DROProblem, loop: Loop, settings: LBFGS) -> None:
        self.problem, self.loop, self.memory = problem, loop, settings.memory
        self.shape = (problem.n_features, problem.n_outputs)
        self.oracle = problem.dual_oracle()
        self.n_iter, self.n_calls = 0, 0
        self.mean = np.zeros(problem.n_features)
        self.passes = 0.0
        self.last: _Trial | None = None
        if problem.fit_intercept:
            self.mean = problem.weighted_rows(problem.p[:, None])[:, 0]
            self.passes = 1.0
        self.metric: Metric | None = None
        if settings.metric != "euclidean":
            centre = self.mean if problem.fit_intercept else None
            self.metric = loop.make_metric(settings.metric, centre)
            self.scale = 1.0 / np.sqrt(self.metric.eigenvalues)[:, None]
        w, b = loop.start
        shifted = b + self.mean @ w
        if self.metric is not None:
            w = self.metric.rotate(w) / self.scale
        self.x = np.concatenate([w.reshape(-1), shifted if problem.fit_intercept else []])

    def _unpack(self, x: Vector) -> tuple[Matrix, Vector]:
        w = x[: self.shape[0] * self.shape[1]].reshape(self.shape)
        if self.metric is not None:
            w = self.metric.back(self.scale * w)
        if not self.problem.fit_intercept:
            return w, np.zeros(self.shape[1])
        return w, x[self.shape[0] * self.shape[1] :] - self.mean @ w

    def minimise(self, nu: float, accuracy: float) -> str:
        """Minimise P with the shift cost `nu`, roughly to `accuracy`; returns scipy's reason."""
        from scipy.optimize import minimize

        problem = self.problem
        box = problem.constraint.bounds(self.shape)
        assert box is not None
        if self.metric is not None:  # a diagonal one, where the bounds are finite
            box = box[0] / self.scale, box[1] / self.scale
        low, high = (
            np.append(side.reshape(-1), np.full(self.x.size - side.size, inf))
            for side, inf in zip(box, (-np.inf, np.inf))
        )
        bounded = np.isfinite(low).any() or np.isfinite(high).any()
        # The evaluation of each trial point, until its iteration ends.
        seen: dict[bytes, _Trial] = {}

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
            progress = before - value > 1e-13 * abs(value)
            if accuracy > 0.0 or self.n_iter == n_iter or not progress:
                return str(out.message)
            # Old pairs and bounds that became active since can jam the method far from the
            # optimum; a start with fresh memory tells.

    def _evaluate(self, x: Vector, nu: float, low: Vector, high: Vector) -> _Trial:
        """``P`` with the shift cost `nu` and its gradient; one pass."""
        problem = self.problem
        w, b = self._unpack(x)
        ev = problem.evaluate(w.copy(), b)
        self.n_calls += 1
        q = self.oracle.weights(ev.losses, nu)
        penalty = nu * problem.divergence.value(q, problem.p) if nu > 0 else 0.0
        value = float(np.dot(q, ev.losses) - penalty + 0.5 * problem.mu * np.vdot(w, w))
        weighted = q[:, None] * ev.dlosses
        total = weighted.sum(axis=0)
        slope = problem.weighted_rows(weighted) + problem.mu * w
        if problem.fit_intercept:
            slope -= np.outer(self.mean, total)
        if self.metric is not None:
            slope = self.scale * self.metric.rotate(slope)
        slope = np.append(slope, total) if problem.fit_intercept else slope.reshape(-1)
        return _Trial(value, slope, ev, q, self._estimate(x, slope, low, high))

    def _estimate(self, x: Vector, slope: Vector, low: Vector, high: Vector) -> float:
        """``||grad P||^2 / (2 mu)``, or half its square in the metric, where it may move."""
        held = ((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0))
        size = float(np.linalg.norm(slope[~held]))
        if self.metric is not None:
            return 0.5 * size**2
        if self.problem.mu > 0:
            return size**2 / (2.0 * self.problem.mu)
        return size * (1.0 + float(np.linalg.norm(x)))

    def end_stage(self) -> None:
        """Have the last point of a smoothed problem certified for the problem itself."""
        if self.last is not None:
            self._observe(self.last, milestone=True)

    def _observe(self, trial: _Trial, milestone: bool = False) -> None:
        n = self.problem.n_samples
        self.loop.observe(
            Iterate(
                w=trial.evaluation.w,
                b=trial.evaluation.b,
                n_iter=self.n_iter,
                n_passes=self.passes + self.n_calls,
                n_oracle_calls=self.n_calls * n,
                evaluation=trial.evaluation,
                q=trial.q if self.problem.nu == 0 else None,
                gap_estimate=trial.estimate,
                primal_estimate=trial.value,
                milestone=milestone,
            )
        )
