"""A round of DRAGO's iterations as one piece of work, recorded in a CUDA graph and replayed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drago.passes import Evaluation

if TYPE_CHECKING:
    from drago.torch_engine.iterations import TensorIterations

# Kinds of rounds that have run once: what they need is compiled, which cannot be recorded.
_COMPILED: set[Any] = set()


class Round:
    """Some iterations and the visit to all rows after them, as one piece of work for the device.

    Which blocks are meant and how long the steps are is read on the device, and what is known
    already is computed again: so every round is the same work, and can be recorded.
    """

    def __init__(self, state: TensorIterations, size: int, refresh: bool) -> None:
        # Without the proxy, state and rounds would keep each other until a collection.
        self.state: Any = weakref.proxy(state)
        self.size, self.refresh = size, refresh
        self.fresh = state._is_fresh
        problem = state.problem
        # For each iteration: three blocks, whether the first is known, four step sizes.
        self.plan = state.p.new_zeros((size, 8))
        self.visit = [torch.empty_like(problem.p) for _ in range(3 if refresh else 0)]
        self.graph: Any = None
        self.kind = (
            type(state), size, refresh, self.fresh, type(problem.loss), problem.uncertainty.kind,
            problem.divergence.name, problem.X.dtype, problem.n_features, problem.device,
            problem.is_uniform, state.blocks.count, state.blocks.group, state.mean is None,
            state._basis is None, problem.n_samples.bit_length(),
        )  # fmt: skip

    def run(self, pairs: Sequence[tuple[int, int]]) -> Evaluation | None:
        state = self.state
        plan = []
        for i, j in pairs:
            k, known, numbers = state._next(i, j)
            plan.append([i, j, k, known, *numbers])
            state._is_fresh = False
        self.plan.copy_(torch.tensor(plan, dtype=self.plan.dtype))
        state._is_fresh = self.fresh
        if self.kind in _COMPILED:
            with torch.cuda.device(self.plan.device):
                if self.graph is None:
                    self.graph = self._recorded()
                self.graph.replay()
        else:
            self._work()
            _COMPILED.add(self.kind)
        state._is_fresh = self.refresh
        state._mean_w, state._mean_b = state._w, state._b
        if self.refresh:
            state._last_k, state._last_j = -1, -1
            state._calls += state.problem.n_samples
            state._visits += state.problem.n_samples
        state._take_down(self.summary)
        w, b, numbers = state._found
        if not (self.refresh and np.isfinite(w).all() and np.isfinite(numbers).all()):
            return None
        losses, slopes, raw = self.visit
        return Evaluation(w, b, raw[:, None], losses, slopes[:, None])

    def _work(self) -> None:
        state = self.state
        for line in self.plan.unbind(0):
            i, j, k = line[:3].to(torch.int64).split(1)
            state._advance(i, j, k, line[3] > 0, False, *line[4:].unbind(0))
            state._is_fresh = False
        if self.refresh:
            losses, slopes, raw = self.visit
            state.problem.visit(state._w, state._b, losses, slopes, raw)
            state._fill(losses, slopes[:, None])
            state._is_fresh = True
        self.summary = state._summary()

    def _recorded(self) -> Any:
        """The work as a graph; recording itself does none of it."""
        graph = torch.cuda.CUDAGraph()
        # Relaxed: should a kernel be compiled for another size after all, it may be loaded.
        stream = torch.cuda.Stream(self.plan.device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            self._work()
        return graph
