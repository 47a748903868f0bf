"""The stochastic methods that DRAGO was published against: SGD, LSVRG and Prospect.

All three move one row or one small batch at a time, in compiled code (`drago.kernels`);
an iteration is an epoch, n rows drawn. A number for their step size is taken as it is, and
`drago.tune` finds one by the paper's rule. With "auto" they start from a step that the losses'
curvature suggests, and cut it when they diverge or make no progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._validation import check_integer, check_number, check_option
from drago.loop.loop import Iterate, Loop
from drago.loop.method import Method
from drago.problem import DROProblem, NonFiniteLossError
from drago.terms.uncertainty import DualOracle

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# The first step under "auto", in units of one over the curvature.
_FIRST = 0.3
# By how much "auto" cuts the step, after how many epochs without progress, and how often at most.
_CUT = 0.3
_PATIENCE = 6
_CUTS = 20
# Multiplications in a call of compiled code, after which there is a look at the clock.
_WORK = 1 << 26


def _check_step(step_size: float | str) -> None:
    if isinstance(step_size, str):
        check_option("step_size", step_size, ("auto",))
    else:
        check_number("step_size", step_size, low=0, open_low=True)


def _check_common(name: str, problem: DROProblem) -> None:
    if not problem.loss.has_kernels or problem.uncertainty.is_users:
        raise ValueError(f"solver {name!r} takes built-in losses and sets only.")
    if not problem.constraint.is_everything:
        raise ValueError(
            f"solver {name!r} takes no constraint, but the problem has {problem.constraint!r}."
        )


def _check_uniform(name: str, problem: DROProblem) -> None:
    if problem.p.min() < problem.p.max():
        raise ValueError(f"solver {name!r} takes rows of equal weight only.")


def _check_spectral(name: str, problem: DROProblem) -> None:
    if not (problem.uncertainty.is_spectral or problem.uncertainty.is_capped):
        raise ValueError(
            f"solver {name!r} takes spectral sets (CVaR, Extremile, ESRM, Spectrum, Simplex), but "
            f"the problem has {problem.uncertainty!r}."
        )
    if problem.mu == 0 or problem.nu == 0:
        raise ValueError(
            f"solver {name!r} needs l2_reg > 0 and shift_cost > 0, but the problem has "
            f"l2_reg={problem.mu:g} and shift_cost={problem.nu:g}."
        )


@dataclass(frozen=True)
class SGD(Method):
    """Settings of stochastic gradient descent on minibatches (Levy et al. 2020).

    On a batch B, drawn without replacement, ``q = argmax over q in Q_B of <l_B(w), q> - nu D`` on
    its rows, and ``w <- w - eta (sum_B q_i grad l_i(w) + mu w)``. The robust loss of a batch is
    not that of the data, so the method ends at a distance that falls with the batch size only.

    Parameters
    ----------
    step_size : float or "auto"
        The eta of the formula.
    batch_size : int

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> problem = drago.DROProblem(X, X[:, 0], shift_cost=1.0, l2_reg=0.1)
    >>> result = drago.solve(problem, drago.SGD(step_size=0.01), tol=0.5)
    >>> result.rel_gap <= 0.5
    True
    """

    step_size: float | str = "auto"
    batch_size: int = 64
    name = "sgd"
    needs = ("single rows",)

    def __post_init__(self) -> None:
        _check_step(self.step_size)
        check_integer("batch_size", self.batch_size, low=1)

    def check(self, problem: DROProblem) -> None:
        _check_common(self.name, problem)
        _check_uniform(self.name, problem)
        if problem.uncertainty.needs_groups:
            raise ValueError(f"solver {self.name!r} takes no Grouped set: a batch misses groups.")

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return _SGDRun(problem, loop, self).run(self.step_size)


@dataclass(frozen=True)
class LSVRG(Method):
    """Settings of LSVRG (Mehta et al. 2023): variance reduction with checkpoints.

    Every epoch ``wbar = w``, its exact weights ``qbar`` and ``gbar = sum_i qbar_i grad l_i(wbar)``;
    then for n rows i, drawn uniformly,
    ``w <- w - eta (n qbar_i (grad l_i(w) - grad l_i(wbar)) + gbar + mu w)``. The weights are a
    checkpoint's, so the method converges for large shift costs only. Spectral sets.

    A checkpoint counts n oracle calls and a step one, as in the authors' code: the gradient of row
    i at ``wbar`` is known from the checkpoint.

    Parameters
    ----------
    step_size : float or "auto"
        The eta of the formula.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> problem = drago.DROProblem(X, X[:, 0], shift_cost=1.0, l2_reg=0.1)
    >>> drago.solve(problem, drago.LSVRG(step_size=0.01), tol=1e-2).rel_gap <= 1e-2
    True
    """

    step_size: float | str = "auto"
    name = "lsvrg"
    needs = ("single rows",)

    def __post_init__(self) -> None:
        _check_step(self.step_size)

    def check(self, problem: DROProblem) -> None:
        _check_common(self.name, problem)
        _check_spectral(self.name, problem)

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return _LSVRGRun(problem, loop).run(self.step_size)


@dataclass(frozen=True)
class Prospect(Method):
    """Settings of Prospect (Mehta et al. 2024): variance reduction with tables.

    With tables of losses ``lhat``, gradients ``ghat`` and weights ``qhat``, their aggregate
    ``gbar = sum_i qhat_i ghat_i``, and ``q`` the exact weights of ``lhat``: for a row i drawn
    uniformly, ``w <- w - eta (n q_i grad l_i(w) - n qhat_i ghat_i + gbar + mu w)``; then row i of
    the tables is brought up to date. Each step costs n: the weights of the whole table. Spectral
    sets.

    Parameters
    ----------
    step_size : float or "auto"
        The eta of the formula.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> problem = drago.DROProblem(X, X[:, 0], shift_cost=1.0, l2_reg=0.1)
    >>> drago.solve(problem, drago.Prospect(step_size=0.01), tol=1e-2).rel_gap <= 1e-2
    True
    """

    step_size: float | str = "auto"
    name = "prospect"
    needs = ("single rows",)

    def __post_init__(self) -> None:
        _check_step(self.step_size)

    def check(self, problem: DROProblem) -> None:
        _check_common(self.name, problem)
        _check_uniform(self.name, problem)
        _check_spectral(self.name, problem)

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return _ProspectRun(problem, loop).run(self.step_size)


class _StochasticRun:
    """One run: the point in the kernels' form, and the control of the step size."""

    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        self.problem, self.loop = problem, loop
        self.n, self.shape = problem.n_samples, (problem.n_features, problem.n_outputs)
        self.rng = np.random.default_rng(loop.random_state)
        self.rows = _rows(problem)
        self.loss = (problem.y, problem.loss.code, problem.loss.parameter)
        self.baseline = problem.rows.kernel_baseline  # type: ignore[attr-defined]
        self.n_iter, self.n_calls, self.visits = 0, 0, 0
        w, b = loop.start
        self.w, self.b = self.flat(w), b.copy()

    def run(self, step_size: float | str) -> str:
        with np.errstate(invalid="ignore"):  # a diverging run overflows on its way
            return self._run(step_size)

    def _run(self, step_size: float | str) -> str:
        if not isinstance(step_size, str):
            self.eta = float(step_size)
            self.begin()
            while True:
                self.epoch()
        self.eta = self.first_step()
        for _ in range(_CUTS):
            best, idle = np.inf, 0
            kept = self.w.copy(), self.b.copy()
            try:
                self.begin()
                while idle < _PATIENCE:
                    merit = self.epoch()
                    if not np.isfinite(merit):
                        break
                    idle += 1
                    if merit < best:
                        best, kept, idle = merit, (self.w.copy(), self.b.copy()), 0
            except NonFiniteLossError:
                pass
            self.w, self.b = kept
            self.eta *= _CUT
        return "no step size makes progress"

    def first_step(self) -> float:
        """A share of one over the mean curvature of what a step sees."""
        problem = self.problem
        size = problem.rows.mean_square(problem.fit_intercept)  # type: ignore[attr-defined]
        return _FIRST / (self.weight * problem.loss.curvature * size + problem.mu + 1e-300)

    @property
    def weight(self) -> float:
        """The largest factor of a row's gradient in a step."""
        return self.n * self.problem.q_max

    def begin(self) -> None:
        """Prepare for epochs from the present point."""

    def epoch(self) -> float:
        """Draw n rows and observe; a merit that falls as the method converges."""
        raise NotImplementedError  # pragma: no cover

    def flat(self, w: Matrix) -> Vector:
        """Coefficients or their gradient as the kernels take them."""
        return (w if self.problem.is_sparse else w.T).flatten()

    def point(self) -> tuple[Matrix, Vector]:
        """The present point in the library's form."""
        if self.problem.is_sparse:
            return self.w.reshape(self.shape).copy(), self.b.copy()
        return np.ascontiguousarray(self.w.reshape(self.shape[::-1]).T), self.b.copy()

    def merit(self, g: Vector, g_b: Vector) -> float:
        """``||grad P||^2 / (2 mu)``, for a gradient without the penalty."""
        mu = self.problem.mu
        square = float(np.sum((g + mu * self.w) ** 2))
        if self.problem.fit_intercept:
            square += float(np.sum(g_b**2))
        return square / (2.0 * mu)

    def observe(self, **known: Any) -> None:
        w, b = self.point()
        self.loop.observe(
            Iterate(
                w=w,
                b=b,
                n_iter=self.n_iter,
                n_passes=self.visits / self.n,
                n_oracle_calls=self.n_calls,
                **known,
            )
        )

    def count(self, drawn: int) -> None:
        """So many rows were drawn; within an epoch, a look at the clock."""
        self.visits += drawn
        self.n_calls += drawn
        if self.visits % self.n:
            self.observe()

    def chunks(self, draws: Any, cost: int, multiple: int = 1) -> list[Any]:
        """Parts of an epoch's draws that take a fraction of a second each."""
        size = max(_WORK // cost // multiple, 1) * multiple
        return [draws[k : k + size] for k in range(0, len(draws), size)]


def _rows(problem: DROProblem) -> tuple[Any, Any, Any]:
    """X as the kernels take it."""
    X = problem.X
    if problem.is_sparse:
        # No index at all means dense; a matrix of zeros must not.
        indices = X.indices if X.indices.size else np.zeros(1, X.indices.dtype)
        return X.data, indices, X.indptr
    values = np.ascontiguousarray(X).reshape(-1)
    values.flags.writeable = False
    return values, np.empty(0, np.int32), np.empty(0, np.int32)


def _set_codes(oracle: DualOracle) -> tuple[int, int, float, Vector]:
    """Family, divergence, parameter and spectrum of a set for the kernels."""
    assert oracle.family is not None
    return oracle.family, oracle.divergence.code, oracle.parameter, oracle.spectrum


class _SGDRun(_StochasticRun):
    weight = 1.0

    def __init__(self, problem: DROProblem, loop: Loop, settings: SGD) -> None:
        super().__init__(problem, loop)
        self.batch_size = min(settings.batch_size, self.n)
        short = self.n % self.batch_size or self.batch_size
        whole, rest = (self._codes(size) for size in (self.batch_size, short))
        self.set = (*whole, rest[-1])

    def _codes(self, size: int) -> tuple[int, int, float, Vector]:
        problem = self.problem
        p = np.full(size, 1.0 / size)
        return _set_codes(problem.uncertainty.oracle(p, problem.divergence))

    def epoch(self) -> float:
        problem, total = self.problem, 0.0
        cost = self.shape[0] * self.shape[1]
        for order in self.chunks(self.rng.permutation(self.n), cost, self.batch_size):
            total += order.size * kernels.sgd(
                *self.rows, *self.loss, self.baseline, *self.set, self.w, self.b, order,
                self.batch_size, self.eta, problem.mu, problem.nu, problem.fit_intercept,
            )  # fmt: skip
            self.count(order.size)
        self.n_iter += 1
        self.observe()
        return total / self.n + 0.5 * problem.mu * float(np.dot(self.w, self.w))


class _LSVRGRun(_StochasticRun):
    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        super().__init__(problem, loop)
        self.oracle = problem.dual_oracle()

    def epoch(self) -> float:
        problem = self.problem
        ev = problem.evaluate(*self.point())
        q = self.oracle.weights(ev.losses, problem.nu)
        found = problem.gradient(ev, q)
        g, g_b = self.flat(found.w), found.b
        merit = self.merit(g, g_b)
        self.visits += self.n
        self.n_calls += self.n
        value = problem.primal(ev.w, ev.losses, q)
        self.observe(evaluation=ev, gap_estimate=merit, primal_estimate=value)
        draws = self.rng.integers(0, self.n, size=self.n)
        for part in self.chunks(draws, self.shape[0] * self.shape[1]):
            kernels.lsvrg(
                *self.rows, *self.loss, self.w, self.b, q, ev.dlosses, g, g_b, part,
                self.eta, problem.mu, problem.fit_intercept,
            )  # fmt: skip
            self.count(part.size)
        self.n_iter += 1
        return merit


class _ProspectRun(_StochasticRun):
    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        super().__init__(problem, loop)
        self.oracle = problem.dual_oracle()
        self.set = _set_codes(self.oracle)

    def begin(self) -> None:
        problem = self.problem
        ev = problem.evaluate(*self.point())
        self.table, self.q = ev.losses.copy(), self.oracle.weights(ev.losses, problem.nu)
        self.products = self.q[:, None] * ev.dlosses
        self.g, self.g_b = self.flat(problem.rows.weighted_sum(self.products)), self.products.sum(0)
        self.memory = np.nan
        self.visits += self.n
        self.n_calls += self.n
        if self.n_iter == 0:
            self.observe(evaluation=ev)

    def epoch(self) -> float:
        problem = self.problem
        draws = self.rng.integers(0, self.n, size=self.n)
        for part in self.chunks(draws, 4 * self.n + self.shape[0] * self.shape[1]):
            self.memory = kernels.prospect(
                *self.rows, *self.loss, self.baseline, *self.set, problem.p, self.w, self.b,
                self.table, self.q, self.products, self.g, self.g_b, part, self.eta, problem.mu,
                problem.nu, self.memory, problem.fit_intercept,
            )  # fmt: skip
            self.count(part.size)
        self.n_iter += 1
        merit = self.merit(self.g, self.g_b)
        value = problem.primal(self.point()[0], self.table, self.q)
        self.observe(gap_estimate=merit, primal_estimate=value)
        return merit
