"""DRAGO's iteration: Algorithm 1 of Mehta, Diakonikolas and Harchaoui (2024).

For t = 1, 2, ..., with blocks I, J drawn at random and K visited in turn::

    v^P = ghat' qhat + (a_{t-1}/a_t) M sum_{i in I} (q_i grad l_i(w_{t-1}) - qhat_i ghat_i)
    w_t = argmin <v^P, w> + (mu/2)||w||^2 + (C/a_t)(1/2)||w - w_{t-1}||_H^2
                 + (c/a_t)(1/2) sum_{s=t-M}^{t-2} ||w - w_s||_H^2
    tables lhat, ghat <- values at w_t on block K
    v^D = lhat + (a_{t-1}/a_t) M sum_{j in J} (l_j(w_t) - lhat_j) e_j
    q_t = argmax <v^D, q> - nu D(q || p) - (A_{t-1}/a_t) nu Bregman_D(q, q_{t-1})
    table qhat <- q_t on block K

where the tables inside the sums are those of the iteration before. Two facts keep it lean. The
older tables equal today's except on the one block that was just overwritten. And the sum over that
block of what changed is what the aggregate ``ghat' qhat`` changed by, so the data need not be
visited for it again.

It is written once, for rows of any kind: what it wants of them are the operations of
`drago.rows.tables.base.Tables`. Two special cases are tested against it: several iterations in one
call of compiled code (`drago.solvers.drago.one_block`), and iterations that are recorded on a
device and replayed (`drago.rows.tables.recorded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.files.checkpoint import State
from drago.loop.loop import Iterate
from drago.metric import Metric, is_box
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.rows.base import RowVector
from drago.rows.tables.base import Small, Tables
from drago.solvers.drago.saved import check_iterations
from drago.solvers.drago.steps import StepRule, Steps, UnregularisedSteps

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

_NONE = np.empty((0, 0))


class Iterations:
    """The state of DRAGO and its iteration.

    Coordinates of ``w`` are the standard ones; the intercept is kept as ``shifted = b + mean'w``
    for features centred by their mean, so that the two do not interfere.

    Parameters
    ----------
    problem : DROProblem
    tables : Tables
        Of the problem's rows, of this kind.
    metric : Metric
    mean : array of shape (n_features,) or None
        Mean of the features, where an intercept is fitted.
    start : Evaluation
        Where to start, and the losses there.
    q : row vector or "exact" or "nominal"
        The weights to start with; "exact" are those at the start.

    Attributes
    ----------
    steps : callable
        ``(t, M, nu) -> Weights``; may be replaced before the first step.
    least_round : int
        Iterations in a round, at the least.
    kind : {"blocks", "support", "lagged"}
        What it is to the tables and to a saved solve.
    """

    kind = "blocks"
    least_round = 4
    steps: StepRule = Steps(0.1, 0.1, True)
    recorder: Any = None  # what replays rounds, where they can be
    _past_mean: tuple[Small, Small] | None = None
    _seen_at: Any = None

    def __init__(
        self,
        problem: DROProblem,
        tables: Tables,
        metric: Metric,
        mean: Vector | None,
        start: Evaluation,
        q: RowVector | str = "exact",
    ) -> None:
        self._prepare(problem, tables, metric, mean)
        self._begin_at(start.w, start.b)
        self._aggregate, self._aggregate_b = tables.fill(start, q)
        self._count_all()

    def _prepare(
        self, problem: DROProblem, tables: Tables, metric: Metric, mean: Vector | None
    ) -> None:
        self.problem, self.tables, self.metric, self.mean = problem, tables, metric, mean
        small = tables.small
        self._mean = None if mean is None else small(mean)
        self._eigenvalues = small(metric.eigenvalues)[:, None]
        self._basis = None if metric.basis is None else small(metric.basis)
        self._box = None
        if is_box(problem):
            box = problem.constraint.bounds((problem.n_features, problem.n_outputs))
            assert box is not None
            self._box = small(box[0]), small(box[1])

    def _begin_at(self, w: Matrix, b: Vector) -> None:
        self.t, self._calls, self._visits = 0, 0, 0
        self._offset = 0  # iterations of abandoned runs
        self._already = self.tables.seen, self.tables.again  # what these have visited
        self._w, self._b = self.tables.small(w), self.tables.small(b)
        self._begin_history()
        self._last_k, self._last_j = -1, -1
        self._is_fresh = True  # whether the tables hold the present point
        self._last_change, self._last_change_b = 0.0 * self._w, 0.0 * self._b

    def _begin_history(self) -> None:
        """The last M points, and their sum."""
        packed, count = self._packed(), self.tables.count
        self._ring = packed * self.tables.small(np.ones((count, 1, 1)))
        self._ring_sum = count * packed
        self.tables.ring = self._ring

    # ------------------------------------------------------------------- what others look at

    @property
    def point(self) -> tuple[Small, Small]:
        """``w`` and ``b`` where the iterations keep them."""
        return self._w, self._b

    @property
    def w(self) -> Matrix:
        return self._read_point()[0]

    @property
    def b(self) -> Vector:
        return self._read_point()[1]

    def _read_point(self) -> tuple[Matrix, Vector]:
        if self._seen_at == (self.t, self._is_fresh):
            return self._found[0], self._found[1]
        w, b = self.tables.read(self._w, self._b)
        return w, b

    @property
    def visits(self) -> int:
        """Visits to single rows."""
        tables, (seen, again) = self.tables, self._already
        return self._visits + tables.seen - seen + tables.again - again

    @property
    def n_calls(self) -> int:
        """Calls of the oracle for one row's loss and gradient."""
        return self._calls + self.tables.seen - self._already[0]

    @property
    def n_iter(self) -> int:
        """Iterations, those of abandoned runs included."""
        return self.t + self._offset

    @property
    def is_plain(self) -> bool:
        """Whether what an iteration does depends on its number and its blocks alone."""
        return type(self.steps) is Steps and self.problem.constraint.is_everything

    def weights(self) -> RowVector:
        """The weights."""
        return self.tables.weights()

    def continue_count(self, before: Iterations) -> None:
        """Carry the counts of an abandoned run on."""
        self._offset = before.n_iter
        self._visits += before.visits
        self._calls += before.n_calls

    def average(self) -> tuple[Matrix, Vector]:
        """The weighted mean of the iterates, ``sum a_t w_t / A_T``, for the variant whose bound is
        on it; the last point otherwise."""
        if self._past_mean is None:
            return self._read_point()
        w, b = self.tables.read(*self._past_mean)
        return w, b

    def iterate(self, here: Evaluation | None = None, optimism: float = 1.0) -> Iterate:
        """Where the method stands.

        Parameters
        ----------
        here : Evaluation, optional
            Of this point, where there is one.
        optimism : float
            What the estimate of the gap is multiplied with.
        """
        gap, primal = self.estimates()
        return Iterate(
            w=self.w,
            b=self.b,
            n_iter=self.n_iter,
            n_passes=self.visits / self.problem.n_samples,
            n_oracle_calls=self.n_calls,
            evaluation=here,
            q=self.weights(),
            gap_estimate=optimism * gap,
            primal_estimate=primal,
        )

    def estimates(self) -> tuple[float, float]:
        """The gap and the objective as the tables see them; no visit to the data."""
        if self._seen_at != (self.t, self._is_fresh):
            self.take_down(self.tables.read(*self.summary(self._is_fresh)))
        best, own, slope, square = self._found[2:]
        return max(best - own, 0.0) + slope, best + 0.5 * self.problem.mu * square

    def take_down(self, summary: tuple[Any, ...]) -> None:
        """What was read of a `summary` of the present state."""
        self._found = summary
        self._seen_at = self.t, self._is_fresh

    def summary(self, is_fresh: bool) -> tuple[Small, ...]:
        """All that is looked at between rounds: the point, and what `estimates` are made of.

        The value of the best weights and of these, the slope of the objective in the metric, halved
        and squared, and the square of the coefficients.
        """
        mu, xp = self.problem.mu, self.tables.xp
        best, own = self.tables.values(self.problem.nu, is_fresh)
        grad = self._aggregate + mu * self._w
        if self._mean is not None:
            grad = grad - xp.outer(self._mean, self._aggregate_b)
        if self._box is not None:  # what a bound holds is no slope
            low, high = self._box
            held = ((self._w <= low) & (grad > 0)) | ((self._w >= high) & (grad < 0))
            grad = xp.where(held, 0.0, grad)
        slope = 0.5 * (self._rotate(grad) ** 2 / self._eigenvalues).sum()
        if self._mean is not None:
            slope = slope + 0.5 * (self._aggregate_b**2).sum() / self.metric.intercept
        return self._w, self._b, best, own, slope, (self._w * self._w).sum()

    # ------------------------------------------------------------------------------- rounds

    def round(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        """Iterations with these blocks I and J; then, with `refresh`, a visit to all rows.

        Returns that visit, or None where there was none or the losses are no numbers.
        """
        if self.recorder is None:
            self.recorder = self.tables.recorder(self)
        if self.recorder is not None:
            return self.recorder.run(pairs, refresh)
        for i, j in pairs:
            self.step(i, j)
        self.tables.rest()
        w, b = self._read_point()
        if not refresh or not np.isfinite(w).all():
            return None
        try:
            here = self.tables.evaluate(self.problem, w, b)
        except NonFiniteLossError:
            return None
        self.refresh(here)
        return here

    def refresh(self, here: Evaluation) -> None:
        """Fill the tables anew, at the present point, with its exact weights."""
        self.fill(here, "exact")
        self.count_refreshment()

    def fill(self, here: Evaluation, q: RowVector | str) -> None:
        """Fill the tables, and their aggregate."""
        grad, grad_b = self.tables.fill(here, q)
        self._aggregate = self.tables.kept(self._aggregate, grad)
        self._aggregate_b = self.tables.kept(self._aggregate_b, grad_b)

    def count_refreshment(self) -> None:
        """The tables hold the present point."""
        self._last_k, self._last_j, self._is_fresh = -1, -1, True
        self._count_all()

    def _count_all(self) -> None:
        self._calls += self.problem.n_samples
        self._visits += self.problem.n_samples

    # ------------------------------------------------------------------------ the iteration

    def step(self, i: int, j: int) -> None:
        """One iteration with the blocks I = `i` and J = `j`."""
        k, known, weights = self.plan(i, j)
        self.advance(i, j, k, known, j == k, *weights)
        if isinstance(self.steps, UnregularisedSteps):
            share, past = self.steps.a / self.steps.total, self._past_mean or (self._w, self._b)
            w, b = (old + share * (new - old) for old, new in zip(past, (self._w, self._b)))
            self._past_mean = w, b

    def plan(self, i: int, j: int) -> tuple[int, bool, Any]:
        """Count an iteration: its block K, whether what it wants of I is known, its step sizes."""
        self.t += 1
        k, known = self.t % self.tables.count, self._knows(i)
        self._count(i, j, k, known)
        self._last_k, self._last_j, self._is_fresh = k, j, False
        return k, known, self.steps(self.t, self.tables.count, self.problem.nu)

    def _knows(self, i: int) -> bool:
        """Whether the correction on block `i` is that of the last iteration."""
        return i == self._last_k

    def _count(self, i: int, j: int, k: int, known: bool) -> None:
        sizes = self.tables.sizes
        self._visits += sizes[i] + sizes[j] + sizes[k]
        self._calls += sizes[k]
        self._calls += 0 if known or i == self._last_j else sizes[i]
        self._calls += 0 if j == k else sizes[j]

    def advance(
        self,
        i: Any,
        j: Any,
        k: Any,
        known: Any,
        same: bool,
        ratio: Any,
        near: Any,
        far: Any,
        dual: Any,
    ) -> None:
        """An iteration that was planned; where it is recorded, all of that are tensors.

        `same` says that J and K are known to be one block.
        """
        scale = ratio * self.tables.count
        grad, grad_b = self._primal_gradient(i, scale, known)
        self._move(k, grad, grad_b, near, far)
        self._dual_step(j, k, same, scale, dual)
        self._remember(k)

    def _primal_gradient(self, i: Any, scale: Any, known: Any) -> tuple[Small, Small]:
        """``v^P``, and the same for the intercept."""
        change, change_b = self._last_change, self._last_change_b
        if known is not True:
            found, found_b = self.tables.correction(i, self._w, self._b)
            if known is not False:
                where = self.tables.xp.where
                found, found_b = where(known, change, found), where(known, change_b, found_b)
            change, change_b = found, found_b
        return self._aggregate + scale * change, self._aggregate_b + scale * change_b

    def _dual_step(self, j: Any, k: Any, same: bool, scale: Any, s: Any) -> None:
        """Tables of losses on block `k`, the dual step with block `j`, tables of weights."""
        tables = self.tables
        there, here, slopes = tables.visit(j, k, same, self._w, self._b)
        change = tables.change(j, there, scale)
        tables.put(k, here)
        tables.reweigh(j, change, self.problem.nu, s)
        self._renew(k, slopes)

    def _renew(self, k: Any, slopes: Any) -> None:
        """The table ``qhat s`` on block `k`, and the aggregate."""
        kept = self.tables.kept
        change, change_b = self.tables.renew(k, slopes, self._w)
        self._last_change = kept(self._last_change, change)
        self._last_change_b = kept(self._last_change_b, change_b)
        self._aggregate = kept(self._aggregate, self._aggregate + change)
        self._aggregate_b = kept(self._aggregate_b, self._aggregate_b + change_b)

    def _move(self, k: Any, grad: Small, grad_b: Small, near: Any, far: Any) -> None:
        """The primal step: a proximal step in the metric from a mean of past points."""
        problem, tables, m = self.problem, self.tables, self.tables.count
        weight, here = near + (m - 1) * far, self._packed()
        window = here if m == 1 else self._window(here, k)
        if self._mean is not None:
            grad = grad - tables.xp.outer(self._mean, grad_b)
        w = self._proximal_point(here, window, near, far, grad, weight)
        if not problem.constraint.is_everything:
            scale = problem.mu + weight * self._eigenvalues
            near_by = self.metric.project(problem.constraint, *tables.read(w, scale))
            w = tables.small(near_by)
        self._w = tables.kept(self._w, w)
        if self._mean is not None:
            past = near * here[-1] + far * window[-1]
            b = (past - grad_b / self.metric.intercept) / weight - self._mean @ w
            self._b = tables.kept(self._b, b)

    def _window(self, here: Small, k: Any) -> Small:
        """The sum of the M - 1 points before the last one, w_{t-M} ... w_{t-2}."""
        return self._ring_sum - here

    def _proximal_point(
        self, here: Small, window: Small, near: Any, far: Any, grad: Small, weight: Any
    ) -> Small:
        """``argmin <grad, w> + (mu/2)||w||^2`` and proximal terms, in the norm of the metric."""
        mu, d = self.problem.mu, self.problem.n_features
        if self.problem.rows.has("compiled"):
            eigenvalues, moved = self.metric.eigenvalues, np.empty(grad.shape)
            basis = _NONE if self._basis is None else np.ascontiguousarray(self._basis)
            kernels.proximal_point(
                here, window, near, far, grad, eigenvalues, basis, mu, weight, moved
            )
            return moved
        past = self._eigenvalues * self._rotate((near * here + far * window)[:d])
        moved = (past - self._rotate(grad)) / (mu + weight * self._eigenvalues)
        return moved if self._basis is None else self._basis @ moved

    def _remember(self, k: Any) -> None:
        """Put the new point into the ring of the last M."""
        packed = self._packed()
        before = self._ring[k].reshape(packed.shape)
        self._ring_sum = self.tables.kept(self._ring_sum, self._ring_sum + (packed - before))
        self._ring[k] = packed

    def _packed(self) -> Small:
        """``w`` and, below it, the shifted intercept."""
        if self._mean is None:
            return self._w
        shifted = self._b + self._mean @ self._w
        return self.tables.xp.concatenate([self._w, shifted[None]])

    def _rotate(self, v: Small) -> Small:
        return v if self._basis is None else self._basis.T @ v

    # ------------------------------------------------------------------------------ to go on

    _COUNTS = ("t", "n_calls", "visits", "_offset", "_last_k", "_last_j", "_is_fresh")
    _SMALL: tuple[str, ...] = (
        "w", "b", "aggregate", "aggregate_b", "last_change", "last_change_b",
    )  # fmt: skip

    @property
    def _small_names(self) -> tuple[str, ...]:
        """Small arrays that are saved; of a single block the last point is the present one."""
        return self._SMALL if self.tables.count == 1 else (*self._SMALL, "ring", "ring_sum")

    def state(self) -> State:
        """Everything that the next step depends on."""
        names, export = self._small_names, self.problem.rows.export
        found = self.tables.read(*(getattr(self, f"_{name}") for name in names))
        arrays = dict(zip(names, found))
        arrays["average_w"], arrays["average_b"] = self.average()
        arrays |= {name: export(table) for name, table in self.tables.state().items()}
        return arrays, {
            "counts": {name: int(getattr(self, name)) for name in self._COUNTS},
            "rule": type(self.steps).__name__,
            "steps": dict(vars(self.steps)),
            **self.tables.memories,
        }

    @classmethod
    def restored(
        cls,
        problem: DROProblem,
        tables: Tables,
        metric: Metric,
        mean: Vector | None,
        state: State,
        rules: tuple[type[Any], ...],
    ) -> Iterations:
        """The iterations that were in this state; `rules` are what their steps may be of."""
        self = cls.__new__(cls)
        self._prepare(problem, tables, metric, mean)
        by_name = {rule.__name__: rule for rule in rules}
        check_iterations(self, tuple(by_name), state)
        arrays, settings = state
        counts = settings["counts"]
        self._begin_at(arrays["w"], arrays["b"])
        for name in self._small_names:
            setattr(self, f"_{name}", tables.small(arrays[name]))
        self.t, self._calls, self._visits = counts["t"], counts["n_calls"], counts["visits"]
        self._offset, self._is_fresh = counts["_offset"], bool(counts["_is_fresh"])
        self._last_k, self._last_j = counts["_last_k"], counts["_last_j"]
        taken = {name: problem.rows.imported(arrays[name]) for name in tables.names}
        tables.restore(taken, (self._last_j, self._last_k))
        tables.memories = {name: settings[name] for name in tables.memories}
        self.steps = object.__new__(by_name[settings["rule"]])
        vars(self.steps).update(settings["steps"])
        if isinstance(self.steps, UnregularisedSteps):
            self._past_mean = tables.small(arrays["average_w"]), tables.small(arrays["average_b"])
        return self
