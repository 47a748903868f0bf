"""The paper's Algorithm 2, written lean: what `drago` is compared with.

Plain NumPy, with Numba for the pooling of the dual step. Two tables of all gradients (n x d, times
the number of classes) are kept in memory, rows are in contiguous blocks, and every dual step sorts
the n losses and pools adjacent violators, CVaR being one spectral set among others. Squared and
multinomial losses, uniform weights, the chi2 divergence, no intercept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# The step sizes that the paper tries, first those that are often the best.
STEP_SIZES = (0.1, 0.03, 0.3, 0.01, 1.0, 3e-3, 3.0, 1e-3, 3e-4, 1e-4)
# A point this many times worse than w = 0 will not come back; the method starts wildly.
_DIVERGED = 1e12


@numba.njit(cache=True)
def isotonic(values: Vector) -> Vector:
    """The nondecreasing vector nearest to `values`, by pool-adjacent-violators."""
    n = values.size
    mean, count = np.empty(n), np.empty(n, np.int64)
    top = -1
    for k in range(n):
        top += 1
        mean[top], count[top] = values[k], 1
        while top > 0 and mean[top - 1] >= mean[top]:
            total = count[top - 1] + count[top]
            mean[top - 1] += (mean[top] - mean[top - 1]) * count[top] / total
            count[top - 1] = total
            top -= 1
    out = np.empty(n)
    place = 0
    for pool in range(top + 1):
        out[place : place + count[pool]] = mean[pool]
        place += count[pool]
    return out


def cvar_spectrum(n: int, tail_fraction: float) -> Vector:
    """The weights sigma of CVaR as a spectral set."""
    upper = np.arange(1, n + 1) / n
    covered = np.maximum(upper - (1.0 - tail_fraction), 0.0) / tail_fraction
    return np.diff(covered, prepend=0.0)


def squared(X: Matrix, y: Vector, w: Vector) -> tuple[Vector, Matrix]:
    """Losses and gradients of some rows."""
    residual = X @ w - y
    return 0.5 * residual**2, residual[:, None] * X


def multinomial(X: Matrix, y: Any, w: Vector) -> tuple[Vector, Matrix]:
    """The same for classes 0 ... k-1; w is d x k, and so is a gradient, both flat."""
    rows = np.arange(len(y))
    raw = X @ w.reshape(X.shape[1], -1)
    raw -= raw.max(axis=1, keepdims=True)
    exponential = np.exp(raw)
    total = exponential.sum(axis=1)
    losses = np.log(total) - raw[rows, y]
    slopes = exponential / total[:, None]
    slopes[rows, y] -= 1.0
    return losses, (X[:, :, None] * slopes[:, None, :]).reshape(len(y), -1)


class Lagged:
    """The state of Algorithm 2 from w = 0, with the paper's names.

    Parameters
    ----------
    X, y : arrays
    loss : {"squared", "multinomial"}
    sigma : array of shape (n,)
        The spectrum.
    mu, nu : float
        As in `DROProblem`: nu is the paper's divided by n.
    alpha : float
        The step size.
    n_blocks : int
    """

    def __init__(
        self,
        X: Matrix,
        y: Any,
        loss: str,
        sigma: Vector,
        mu: float,
        nu: float,
        alpha: float,
        n_blocks: int,
    ) -> None:
        self.X, self.y, self.sigma, self.mu, self.nu, self.alpha = X, y, sigma, mu, nu, alpha
        n, d = X.shape
        outputs = 1 if loss == "squared" else int(y.max()) + 1
        self.evaluate = squared if loss == "squared" else multinomial
        self.blocks = self.cut(n, n_blocks)
        self.w, self.q = np.zeros(d * outputs), np.full(n, 1.0 / n)
        self.losses, self.grad_1 = self.evaluate(X, y, self.w)
        self.losses_1, self.grad_2 = self.losses.copy(), self.grad_1.copy()
        self.q_1, self.q_2 = self.q.copy(), self.q.copy()
        self.past = np.zeros((n_blocks, d * outputs))
        self.grad_sum, self.past_sum = self.grad_1.T @ self.q_1, np.zeros(d * outputs)
        self.t = 0

    @staticmethod
    def cut(n: int, n_blocks: int) -> list[slice]:
        """Contiguous blocks."""
        ends = [n * k // n_blocks for k in range(n_blocks + 1)]
        return [slice(lo, hi) for lo, hi in itertools.pairwise(ends)]

    def step(self, i: int, j: int) -> None:
        """One iteration with the blocks I = `i` and J = `j`."""
        self.t += 1
        X, y, alpha, count = self.X, self.y, self.alpha, len(self.blocks)
        k = self.t % count
        I, J, K = self.blocks[i], self.blocks[j], self.blocks[k]  # noqa: E741
        far = 0.0 if count == 1 else 1.0 / (16.0 * alpha * (1.0 + alpha) * (count - 1) ** 2)
        beta = (1.0 - (1.0 + alpha) ** (1.0 - self.t)) / (alpha * (1.0 + alpha))
        # Primal update.
        _, grad = self.evaluate(X[I], y[I], self.w)
        change = grad.T @ self.q[I] - self.grad_2[I].T @ self.q_2[I]
        v = self.grad_sum + count / (1.0 + alpha) * change
        pull = (beta - far * (count - 1)) * self.w + far * (self.past_sum - self.past[k])
        self.w = (pull - v / self.mu) / (1.0 + beta)
        self.past_sum += self.w - self.past[k]
        self.past[k] = self.w
        # Dual update.
        losses_k, grad_k = self.evaluate(X[K], y[K], self.w)
        losses_j, _ = self.evaluate(X[J], y[J], self.w)
        v = self.losses.copy()
        v[K] = losses_k
        v[J] += count / (1.0 + alpha) * (losses_j - self.losses_1[J])
        self.q = self.dual_step(v, beta)
        # All tables.
        old = self.grad_1[K].T @ self.q_1[K]
        self.grad_2[K] = self.grad_1[K]
        self.grad_1[K] = grad_k
        self.losses_1[K] = self.losses[K]
        self.losses[K] = losses_k
        self.q_2[K] = self.q_1[K]
        self.q_1[K] = self.q[K]
        self.grad_sum += grad_k.T @ self.q_1[K] - old

    def dual_step(self, v: Vector, beta: float) -> Vector:
        """``argmax <v, q> - nu D(q || 1/n) - beta nu Bregman(q, q_before)`` over the set."""
        n = v.size
        scale = n * self.nu * (1.0 + beta)
        u = v + n * self.nu * beta * self.q
        order = np.argsort(u)
        ranked = u[order]
        q = np.empty(n)
        q[order] = (ranked - isotonic(ranked - scale * self.sigma)) / scale
        return q


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `reached` says whether at the target."""

    reached: bool
    seconds: float
    iterations: int
    suboptimality: float


def run_to(
    make: Callable[[], Lagged],
    suboptimality: Callable[[Vector], float],
    target: float,
    time_limit: float,
    max_iter: float = np.inf,
) -> Outcome:
    """Iterate to the target; the suboptimality is looked at once an epoch, outside of the clock."""
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    state = make()
    spent = time.perf_counter() - began
    count, value = len(state.blocks), 1.0
    while target < value < _DIVERGED and spent < time_limit and state.t < max_iter:
        draws = rng.integers(0, count, size=(count, 2)).tolist()
        began = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):
            for i, j in draws:
                state.step(i, j)
        spent += time.perf_counter() - began
        value = suboptimality(state.w) if np.isfinite(state.w).all() else np.inf
    return Outcome(value <= target, spent, state.t, value)
