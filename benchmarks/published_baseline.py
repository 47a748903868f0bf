"""The paper's Algorithm 2, written as in the code that its authors published.

`lagged_baseline` is the lean way to write it. This is how it was run for the paper: blocks gathered
and written by vectors of indices, losses and gradients from a product with X each, two sorts in a
dual step, and pools kept in lists (compiled). The steps are the same. Their code has PyTorch for
its arrays, which costs more than NumPy on small ones; so there are both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from lagged_baseline import Lagged, Matrix, Vector


@numba.njit(cache=True)
def isotonic(values: Vector) -> Vector:
    """The nondecreasing vector nearest to `values`, with the pools in lists."""
    means, ends = [values[0]], [1]
    for k in range(1, values.size):
        means.append(values[k])
        ends.append(k + 1)
        while len(means) > 1 and means[-2] >= means[-1]:
            last, end = means.pop(), ends.pop()
            before = ends[-1] - (ends[-2] if len(ends) > 1 else 0)
            means[-1] += (last - means[-1]) * (end - ends[-1]) / (before + end - ends[-1])
            ends[-1] = end
    out, start = np.zeros(values.size), 0
    for pool in range(len(means)):
        out[start : ends[pool]] = means[pool]
        start = ends[pool]
    return out


class Published:
    """The state of Algorithm 2 from w = 0; parameters and names as in `lagged_baseline.Lagged`.

    A subclass says where the arrays live, and computes the two functions of several classes.
    """

    array: Callable[[Any], Any] = staticmethod(np.asarray)
    copy: Callable[[Any], Any] = staticmethod(np.copy)
    arange: Callable[..., Any] = staticmethod(np.arange)
    argsort: Callable[[Any], Any] = staticmethod(np.argsort)

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
        n, d = X.shape
        self.mu, self.nu, self.alpha = mu, nu, alpha
        self.X, self.y, self.sigma = self.array(X), self.array(y), self.array(sigma)
        one = loss == "squared"
        size = d if one else d * (int(y.max()) + 1)
        self.loss = self.squared if one else self.multinomial
        self.gradients = self.squared_gradients if one else self.multinomial_gradients
        self.blocks = Lagged.cut(n, n_blocks)
        self.weights = self.array(np.zeros(size))
        self.q = self.array(np.full(n, 1.0 / n))
        self.losses = self.loss(self.X, self.y, self.weights)
        self.grad_1 = self.gradients(self.X, self.y, self.weights)
        self.losses_1, self.grad_2 = self.copy(self.losses), self.copy(self.grad_1)
        self.q_1, self.q_2 = self.copy(self.q), self.copy(self.q)
        self.past = self.array(np.zeros((n_blocks, size)))
        self.grad_sum, self.past_sum = self.grad_1.T @ self.q_1, self.past.sum(0)
        self.t = 0

    @property
    def w(self) -> Vector:
        return np.asarray(self.weights)

    def rows(self, block: int) -> Any:
        return self.arange(self.blocks[block].start, self.blocks[block].stop)

    def squared(self, X: Any, y: Any, w: Any) -> Any:
        return 0.5 * (y - X @ w) ** 2

    def squared_gradients(self, X: Any, y: Any, w: Any) -> Any:
        return (X @ w - y)[:, None] * X

    def multinomial(self, X: Any, y: Any, w: Any) -> Any:
        raw = X @ w.reshape(X.shape[1], -1)
        raw -= raw.max(axis=1, keepdims=True)
        return np.log(np.exp(raw).sum(axis=1)) - raw[np.arange(len(y)), y]

    def multinomial_gradients(self, X: Any, y: Any, w: Any) -> Any:
        raw = X @ w.reshape(X.shape[1], -1)
        slopes = np.exp(raw - raw.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(len(y)), y] -= 1.0
        return (X[:, :, None] * slopes[:, None, :]).reshape(len(y), -1)

    def step(self, i: int, j: int) -> None:
        """One iteration with the blocks I = `i` and J = `j`."""
        self.t += 1
        alpha, count = self.alpha, len(self.blocks)
        k = self.t % count
        far = 0.0 if count == 1 else 1.0 / (16.0 * alpha * (1.0 + alpha) * (count - 1) ** 2)
        beta = (1.0 - (1.0 + alpha) ** (1.0 - self.t)) / (alpha * (1.0 + alpha))
        # Primal update.
        rows = self.rows(i)
        grad = self.gradients(self.X[rows], self.y[rows], self.weights)
        change = self.q[rows] @ grad - self.q_2[rows] @ self.grad_2[rows]
        v = self.grad_sum + count / (1.0 + alpha) * change
        window = self.past_sum - self.past[k]
        pull = (beta - far * (count - 1)) * self.weights + far * window
        self.weights = (pull - v / self.mu) / (1.0 + beta)
        self.past_sum += self.weights - self.past[k]
        self.past[k] = self.weights
        # Dual update.
        K, J = self.rows(k), self.rows(j)
        X_k, y_k = self.X[K], self.y[K]
        losses_k = self.loss(X_k, y_k, self.weights)
        grad_k = self.gradients(X_k, y_k, self.weights)
        losses_j = losses_k if j == k else self.loss(self.X[J], self.y[J], self.weights)
        v = self.copy(self.losses)
        v[K] = losses_k
        v[J] += count / (1.0 + alpha) * (losses_j - self.losses_1[J])
        self.q = self.dual_step(v, beta)
        # All tables.
        self.grad_2[K] = self.grad_1[K]
        self.grad_1[K] = grad_k
        self.losses_1[K] = self.losses[K]
        self.losses[K] = losses_k
        self.q_2[K] = self.q_1[K]
        self.q_1[K] = self.q[K]
        self.grad_sum += self.q_1[K] @ self.grad_1[K] - self.q_2[K] @ self.grad_2[K]

    def dual_step(self, v: Any, beta: float) -> Any:
        """``argmax <v, q> - nu D(q || 1/n) - beta nu Bregman(q, q_before)`` over the set."""
        n = len(v)
        scale = n * self.nu * (1.0 + beta)
        u = v + n * self.nu * beta * self.q
        order = self.argsort(u)
        pooled = self.array(isotonic(np.asarray(u[order] - scale * self.sigma)))
        return (u - pooled[self.argsort(order)]) / scale
