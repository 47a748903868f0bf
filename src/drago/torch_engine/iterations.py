"""DRAGO's iteration on tensors: that of `drago.solvers.drago.iterations`, on the device.

Coefficients, tables and weights are tensors. Iterations read nothing back, so the processor runs
ahead of the device, and looks once a round. Where there are fused kernels, an iteration and the
visit to all rows at the end of a round are recorded in CUDA graphs and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from drago.loop.protocol import Iterate
from drago.metric import Metric
from drago.problem import DROProblem
from drago.rows.base import Evaluation
from drago.rows.tensors import to_host
from drago.solvers.drago.blocks import NOTICEABLE
from drago.solvers.drago.iterations import run_round
from drago.solvers.drago.steps import StepRule, Steps, UnregularisedSteps
from drago.torch_engine._rounds import Rounds
from drago.torch_engine.blocks import Block, TensorBlocks

# The least ratio q/p whose logarithm is taken as it is: below, digits are lost.
_TINY = 1e-280


class TensorIterations:
    """The state of DRAGO and its iteration, on a device.

    The parameters and the meaning of everything are those of
    `drago.solvers.drago.iterations.Iterations`.
    """

    least_round = 4

    def __init__(
        self,
        problem: DROProblem,
        blocks: TensorBlocks,
        metric: Metric,
        mean: Any,
        start: Evaluation,
        q: Any = "exact",
    ) -> None:
        self.problem, self.blocks, self.metric = problem, blocks, metric
        self.store = cast(Any, problem.rows)
        self.steps: StepRule = Steps(0.1, 0.1, True)
        # Each starts its search where its last one ended, so there is one for each purpose.
        self.oracle, self._exact = problem.dual_oracle(), problem.dual_oracle()
        n, spare = problem.n_samples, blocks.spare
        self.p = problem.p
        self.mean = None if mean is None else self.store.on_device(mean)
        self._eigenvalues = self.store.on_device(metric.eigenvalues)[:, None]
        self._basis = None if metric.basis is None else self.store.on_device(metric.basis)
        self.t, self._calls, self._visits, self._offset = 0, 0, 0, 0
        self._seen = torch.zeros((), dtype=torch.int64, device=self.store.device)
        self._w, self._b = self.store.on_device(start.w), self.store.on_device(start.b)
        self._mean_w, self._mean_b = self._w, self._b
        self._ring = self._packed().expand(blocks.count, -1, -1).contiguous()
        self._ring_sum = self._ring.sum(0)
        self._last_k, self._last_j = -1, -1
        self._is_fresh = True
        # Vectors with entries to spare, see `drago.torch_engine.blocks`.
        self._q, self._losses, self._u = (self.p.new_zeros(n + spare) for _ in range(3))
        self._product = self.p.new_zeros(n + spare if self._has_product else 0, problem.n_outputs)
        self._mirror = self.p.new_zeros(n if problem.divergence.name == "kl" else 0)
        self._last_change, self._last_change_b = (
            torch.zeros_like(self._w),
            torch.zeros_like(self._b),
        )
        self._aggregate, self._aggregate_b = torch.zeros_like(self._w), torch.zeros_like(self._b)
        self._fill_tables(start, q)
        self._seen_at: tuple[int, bool] | None = None
        self._rounds: Rounds | None = None

    _has_product = True

    # ------------------------------------------------------------------- what others look at

    @property
    def q(self) -> Tensor:
        return self._q[: self.problem.n_samples]

    @property
    def loss_table(self) -> Tensor:
        return self._losses[: self.problem.n_samples]

    @property
    def w(self) -> Any:
        """The coefficients as an array; waits for the device."""
        return self._look()[0]

    @property
    def b(self) -> Any:
        return self._look()[1]

    @property
    def visits(self) -> int:
        return self._visits + int(self._look()[2][-1])

    @property
    def n_calls(self) -> int:
        return self._calls + int(self._look()[2][-1])

    def _look(self) -> tuple[Any, Any, list[float]]:
        """Coefficients, intercept, and the numbers of `_summary`; one transfer for all of them."""
        if self._seen_at != (self.t, self._is_fresh):
            self._take_down(self._summary())
        return self._found

    def _take_down(self, summary: Tensor) -> None:
        found, size = summary.cpu().numpy().astype(np.float64), self._w.numel()
        numbers = found[size + self._b.numel() :].tolist()
        w, b = found[:size].reshape(self._w.shape), found[size : size + self._b.numel()]
        self._found = (w, b, numbers)
        self._seen_at = (self.t, self._is_fresh)

    @property
    def n_iter(self) -> int:
        return self.t + self._offset

    def continue_count(self, before: TensorIterations) -> None:
        """Carry the counts of an abandoned run on."""
        self._offset = before.t + before._offset
        self._visits += before.visits
        self._calls += before.n_calls

    def average(self) -> tuple[Any, Any]:
        """The weighted mean of the iterates."""
        return to_host(self._mean_w), to_host(self._mean_b)

    def iterate(self, here: Evaluation | None = None, optimism: float = 1.0) -> Iterate:
        """Where the method stands, see `drago.solvers.drago.iterations.Iterations.iterate`."""
        gap, primal = self.estimates()
        return Iterate(
            w=self.w,
            b=self.b,
            n_iter=self.n_iter,
            n_passes=self.visits / self.problem.n_samples,
            n_oracle_calls=self.n_calls,
            evaluation=here,
            q=self.q.clone(),
            gap_estimate=optimism * gap,
            primal_estimate=primal,
        )

    def estimates(self) -> tuple[float, float]:
        """The gap and the objective as the tables see them; no visit to the data."""
        best, own, slope, square, _ = self._look()[2]
        return max(best - own, 0.0) + slope, best + 0.5 * self.problem.mu * square

    def _summary(self) -> Tensor:
        """All that is looked at between rounds, in one vector."""
        problem, losses = self.problem, self.loss_table
        exact = self.q if self._is_fresh else self._weights(losses, problem.nu)
        distance = self.store.tensor_oracle(problem.uncertainty, problem.divergence).distance
        values = [x @ losses - problem.nu * distance(x, self.p) for x in (exact, self.q)]
        grad = self._aggregate + problem.mu * self._w
        if self.mean is not None:
            grad = grad - torch.outer(self.mean, self._aggregate_b)
        box = problem.constraint.bounds(tuple(grad.shape))
        if box is not None and not problem.constraint.is_everything:
            low, high = (self.store.on_device(side) for side in box)
            held = ((self._w <= low) & (grad > 0)) | ((self._w >= high) & (grad < 0))
            grad = torch.where(held, 0.0, grad)
        inner = 0.5 * (self._rotate(grad) ** 2 / self._eigenvalues).sum()
        if self.mean is not None:
            inner = inner + 0.5 * (self._aggregate_b**2).sum() / self.metric.intercept
        size = (self._w * self._w).sum()
        numbers = torch.stack([*values, inner, size, self._seen.to(inner)])
        return torch.cat([self._w.reshape(-1), self._b, numbers])

    # ------------------------------------------------------------------------- the tables

    def _fill_tables(self, start: Evaluation, q: Any) -> None:
        problem, n = self.problem, self.problem.n_samples
        self._losses[:n] = start.losses
        exact = isinstance(q, str) and q == "exact"
        if exact:
            self._solve(self.loss_table, problem.nu, self._exact)
            if problem.nu == 0 and self._mirror.numel():
                # A vertex has no mirror coordinate to start from.
                self._q[:n] = 0.5 * (self.q + self.p)
                exact = False
        else:
            self._q[:n] = self.p if isinstance(q, str) else torch.as_tensor(q).to(self.p)
        if not exact and self._mirror.numel():
            self._mirror.copy_(torch.log(self.q / self.p))
        self._fill_aggregate(start)
        self._calls += n
        self._visits += n

    def _fill(self, losses: Tensor, slopes: Tensor) -> None:
        """The tables at a point, with its exact weights."""
        self._losses[: self.problem.n_samples] = losses
        self._solve(self.loss_table, self.problem.nu, self._exact)
        self._fill_from(slopes)

    def _fill_aggregate(self, start: Evaluation) -> None:
        self._fill_from(start.dlosses)

    def _fill_from(self, slopes: Tensor) -> None:
        weighted = self.q[:, None] * slopes
        if self._has_product:
            self._product[: self.problem.n_samples] = weighted
        self._aggregate.copy_(self.store.accumulate(weighted))
        self._aggregate_b.copy_(weighted.sum(0))

    def refresh(self, here: Evaluation) -> None:
        """Fill the tables anew, at the present point, with its exact weights."""
        self._last_k, self._last_j = -1, -1
        self._fill_tables(here, "exact")
        self._is_fresh = True

    def _weights(self, u: Tensor, c: float | Tensor) -> Tensor:
        return self._exact.weights(u, c)

    def _solve(self, u: Tensor, c: float | Tensor, oracle: Any = None) -> None:
        """The weights and their mirror coordinate."""
        q = (oracle or self.oracle).weights(u, c, out=self.q)
        if self._mirror.numel():
            self._mirror.copy_(self._mirror_of(u, q))

    def _mirror_of(self, u: Tensor, q: Tensor) -> Tensor:
        """``log(q / p)``; for weights that underflow, along the line of the others."""
        ratio = q / self.p
        some = ratio > _TINY
        logs = torch.log(torch.where(some, ratio, 1.0))
        top = torch.where(some, u, -np.inf).argmax(0, keepdim=True)
        low = torch.where(some, u, np.inf).argmin(0, keepdim=True)
        from_u, from_log = u.gather(0, low), logs.gather(0, low)
        run = (u.gather(0, top) - from_u).clamp(min=1e-300)
        rate = ((logs.gather(0, top) - from_log) / run).clamp(min=0.0)
        return torch.where(some, logs, from_log + rate * (u - from_u))

    # ------------------------------------------------------------------------ the iteration

    def round(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        """A round, see `drago.solvers.drago.iterations.run_round`; recorded where that can be."""
        if not self._can_record():
            return run_round(self, pairs, refresh)
        if self._rounds is None:
            self._rounds = Rounds(self)
        return self._rounds.run(pairs, refresh)

    def step(self, i: int, j: int) -> None:
        """One iteration with the blocks I = `i` and J = `j`."""
        k, known, numbers = self._next(i, j)
        self._advance(i, j, k, known, j == k, *numbers)
        self._is_fresh = False
        if isinstance(self.steps, UnregularisedSteps):
            share = self.steps.a / self.steps.total
            self._mean_w = self._mean_w + share * (self._w - self._mean_w)
            self._mean_b = self._mean_b + share * (self._b - self._mean_b)
        else:
            self._mean_w, self._mean_b = self._w, self._b

    def _next(self, i: int, j: int) -> tuple[int, bool, Any]:
        """Count an iteration: its block K, whether block I is known, and its step sizes."""
        self.t += 1
        m, sizes = self.blocks.count, self.blocks.sizes
        k = self.t % m
        known = self._knows(i)
        self._count(i, j, k, known)
        self._visits += sizes[k] + sizes[j]
        self._last_k, self._last_j = k, j
        return k, known, self.steps(self.t, m, self.problem.nu)

    def _knows(self, i: int) -> bool:
        """Whether the correction on block `i` is that of the last iteration."""
        return i == self._last_k

    def _count(self, i: int, j: int, k: int, known: bool) -> None:
        sizes = self.blocks.sizes
        self._visits += sizes[i]
        self._calls += sizes[k]
        self._calls += 0 if known or i == self._last_j else sizes[i]
        self._calls += 0 if j == k else sizes[j]

    def _advance(
        self,
        i: Block,
        j: Block,
        k: Block,
        known: bool | Tensor,
        same: bool,
        ratio: Any,
        near: Any,
        far: Any,
        dual: Any,
    ) -> None:
        scale = ratio * self.blocks.count
        grad, grad_b = self._primal_gradient(i, scale, known)
        self._move(k, grad, grad_b, near, far)
        self._dual_step(j, k, same, scale, dual)

    def _primal_gradient(self, i: Block, scale: Any, known: bool | Tensor) -> tuple[Tensor, Tensor]:
        """``v^P``, and the same for the intercept."""
        change, change_b = self._last_change, self._last_change_b
        if isinstance(known, Tensor) or not known:
            older = self._older_product()
            change, change_b = self.blocks.correction(i, self._w, self._b, self._q, older)
        if isinstance(known, Tensor):
            change = torch.where(known, self._last_change, change)
            change_b = torch.where(known, self._last_change_b, change_b)
        return self._aggregate + scale * change, self._aggregate_b + scale * change_b

    def _dual_step(self, j: Block, k: Block, same: bool, scale: Any, s: Any) -> None:
        problem, blocks, n = self.problem, self.blocks, self.problem.n_samples
        losses, slopes = blocks.evaluate(k, self._w, self._b)
        there = losses if same else blocks.evaluate(j, self._w, self._b)[0]
        change = scale * (there - blocks.take(self._older_losses(), j))
        self._store_losses(k, losses)
        u = self._u[:n]
        if self._mirror.numel():
            torch.addcmul(self.loss_table, self._mirror, _tensor(s, self.p), out=u)
        elif self.store.is_uniform:
            torch.addcmul(self.loss_table, self.q, _tensor(s * float(n), self.p), out=u)
        else:
            torch.add(self.loss_table, s * (self.q / self.p), out=u)
        blocks.put(self._u, j, blocks.take(self._u, j) + change)
        self._solve(u, problem.nu + s)
        self._update_product(k, slopes)

    def _update_product(self, k: Block, slopes: Tensor) -> None:
        """The table ``qhat s`` on block `k`, and its aggregate."""
        blocks = self.blocks
        before = blocks.take(self._product, k)
        change = blocks.take(self._q, k)[:, None] * slopes - before
        self._store_product(k, before, change)
        last, last_b = blocks.accumulate(k, change)
        self._last_change.copy_(last)
        self._last_change_b.copy_(last_b)
        self._aggregate += last
        self._aggregate_b += last_b

    def _older_product(self) -> Tensor:
        return self._product

    def _older_losses(self) -> Tensor:
        return self._losses

    def _store_losses(self, k: Block, losses: Tensor) -> None:
        self.blocks.put(self._losses, k, losses)

    def _store_product(self, k: Block, before: Tensor, change: Tensor) -> None:
        self.blocks.put(self._product, k, before + change)

    def _window(self, here: Tensor, k: Block) -> Tensor:
        """The sum of the M - 1 points before the last one, w_{t-M} ... w_{t-2}."""
        return self._ring_sum - here

    def _move(self, k: Block, grad: Tensor, grad_b: Tensor, near: Any, far: Any) -> None:
        """The primal step: a proximal step in the metric from a mean of past points."""
        m, mu, d = self.blocks.count, self.problem.mu, self.problem.n_features
        weight = near + (m - 1) * far
        here = self._packed()
        past = near * here + far * self._window(here, k)
        if self.mean is not None:
            grad = grad - torch.outer(self.mean, grad_b)
        scale = mu + weight * self._eigenvalues
        moved = self._eigenvalues * self._rotate(past[:d]) - self._rotate(grad)
        w = self._project(self._back(moved / scale), scale)
        self._w.copy_(w)
        if self.mean is not None:
            self._b.copy_((past[d] - grad_b / self.metric.intercept) / weight - self.mean @ w)
        packed = self._packed()
        before = self._ring[k] if isinstance(k, int) else self._ring.index_select(0, k)[0]
        self._ring_sum += packed - before
        if isinstance(k, int):
            self._ring[k] = packed
        else:
            self._ring.index_copy_(0, k, packed[None])

    def _project(self, w: Tensor, scale: Tensor) -> Tensor:
        constraint = self.problem.constraint
        if constraint.is_everything:
            return w
        return self.store.on_device(self.metric.project(constraint, to_host(w), to_host(scale)))

    def _packed(self) -> Tensor:
        """``w`` and, below it, the shifted intercept."""
        if self.mean is None:
            return self._w
        return torch.cat([self._w, (self._b + self.mean @ self._w)[None]])

    def _rotate(self, v: Tensor) -> Tensor:
        return v if self._basis is None else self._basis.T @ v

    def _back(self, v: Tensor) -> Tensor:
        return v if self._basis is None else self._basis @ v

    # ------------------------------------------------------------------------ whole rounds

    def _can_record(self) -> bool:
        problem = self.problem
        asked = "Spectrum" in problem.uncertainty.kind  # by the host, for its values
        plain = type(self.steps) is Steps and problem.constraint.is_everything
        has_kernels = self.store.kernels_for(problem.loss) is not None
        return has_kernels and plain and not asked


def _tensor(value: Any, like: Tensor) -> Tensor:
    """A number as a tensor; one that is a tensor already as it is."""
    return value if isinstance(value, Tensor) else like.new_full((), value)


class TensorSupportIterations(TensorIterations):
    """The exact primal gradient over the rows that carry weight, instead of an estimate."""

    _has_product = False

    def _knows(self, i: int) -> bool:
        return self._is_fresh

    def _count(self, i: int, j: int, k: int, known: bool) -> None:
        sizes = self.blocks.sizes
        self._calls += sizes[k] + (0 if j == k else sizes[j])

    def _primal_gradient(self, i: Block, scale: Any, known: bool | Tensor) -> tuple[Tensor, Tensor]:
        if not self._is_fresh:
            grad, grad_b = self.blocks.gradient(self._w, self._b, self.q)
            self._aggregate.copy_(grad)
            self._aggregate_b.copy_(grad_b)
            self._seen += (self.q > NOTICEABLE / self.problem.n_samples).sum()
        return self._aggregate, self._aggregate_b

    def _update_product(self, k: Block, slopes: Tensor) -> None:
        pass


class TensorLaggedIterations(TensorIterations):
    """The paper's Algorithm 2, "Implementation Version", as printed."""

    def _fill_tables(self, start: Evaluation, q: Any) -> None:
        super()._fill_tables(start, q)
        self._old_losses, self._old_product = self._losses.clone(), self._product.clone()

    def _can_record(self) -> bool:
        return False

    def _older_product(self) -> Tensor:
        return self._old_product

    def _older_losses(self) -> Tensor:
        return self._old_losses

    def _store_losses(self, k: Block, losses: Tensor) -> None:
        self.blocks.put(self._old_losses, k, self.blocks.take(self._losses, k))
        super()._store_losses(k, losses)

    def _store_product(self, k: Block, before: Tensor, change: Tensor) -> None:
        self.blocks.put(self._old_product, k, before)
        super()._store_product(k, before, change)

    def _window(self, here: Tensor, k: Block) -> Tensor:
        return self._ring_sum - self._ring[k]


KINDS = {
    "blocks": TensorIterations,
    "support": TensorSupportIterations,
    "lagged": TensorLaggedIterations,
}
