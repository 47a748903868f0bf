"""Rounds of DRAGO's iterations as work that is recorded in CUDA graphs and replayed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drago.rows.base import Evaluation

if TYPE_CHECKING:
    from drago.torch_engine.iterations import TensorIterations

# Kinds of work that have been done once: what they need is compiled, which cannot be recorded.
_COMPILED: set[Any] = set()
_RECORDING = threading.Lock()
_STREAMS: dict[torch.device, Any] = {}
# Iterations whose blocks and step sizes are sent to the device at a time.
_LINES = 64


class Rounds:
    """Rounds of iterations, of which one iteration and what follows a round are recorded.

    Which blocks are meant and how long the steps are is read on the device, and what is known
    already is computed again: so every iteration is the same work.

    Attributes
    ----------
    graphs : dict
        What has been recorded.
    """

    def __init__(self, state: TensorIterations) -> None:
        # Without the proxy, state and rounds would keep each other until a collection.
        self.state: Any = weakref.proxy(state)
        self.graphs: dict[str, Any] = {}
        self._has_room = True
        problem: Any = state.problem
        # For each iteration: three blocks, whether the first is known, four step sizes.
        self._plan = state.p.new_zeros((_LINES, 8))
        self._place = torch.zeros(1, dtype=torch.int64, device=problem.rows.device)
        self._visit: list[torch.Tensor] = []
        self._summaries: dict[bool, torch.Tensor] = {}
        self._kind = (
            type(state), type(problem.loss), problem.uncertainty.kind, problem.divergence.name,
            problem.X.dtype, problem.n_features, problem.rows.device, problem.rows.is_uniform,
            state.blocks.count, state.blocks.group, state.mean is None, state._basis is None,
            problem.n_samples.bit_length(),
        )  # fmt: skip

    def run(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        """See `drago.solvers.drago.iterations.run_round`."""
        state = self.state
        for first in range(0, len(pairs), _LINES):
            self._iterate(pairs[first : first + _LINES])
        if refresh and not self._visit:
            self._visit = [torch.empty_like(state.problem.p) for _ in range(3)]
        if refresh:
            self._do("visit and summary", self._visit_and_sum_up)
        else:
            self._do("summary", self._sum_up)
        state._is_fresh = refresh
        state._mean_w, state._mean_b = state._w, state._b
        if refresh:
            state._last_k, state._last_j = -1, -1
            state._calls += state.problem.n_samples
            state._visits += state.problem.n_samples
        state._take_down(self._summaries[refresh])
        w, b, numbers = state._found
        if not (refresh and np.isfinite(w).all() and np.isfinite(numbers).all()):
            return None
        losses, slopes, raw = self._visit
        return Evaluation(w, b, raw[:, None], losses, slopes[:, None])

    def _iterate(self, pairs: Sequence[tuple[int, int]]) -> None:
        lines = []
        for i, j in pairs:
            k, known, numbers = self.state._next(i, j)
            lines.append([i, j, k, known, *numbers])
            self.state._is_fresh = False
        self._plan[: len(lines)] = torch.tensor(lines, dtype=self._plan.dtype)
        self._place.zero_()
        for _ in pairs:
            self._do("iteration", self._advance)

    # ------------------------------------------------------------------------- pieces of work

    def _advance(self) -> None:
        line = self._plan.index_select(0, self._place)[0]
        self._place += 1
        i, j, k = line[:3].to(torch.int64).split(1)
        self.state._advance(i, j, k, line[3] > 0, False, *line[4:].unbind(0))

    def _visit_and_sum_up(self) -> None:
        state = self.state
        losses, slopes, raw = self._visit
        state.problem.rows.visit(state.problem.loss, state._w, state._b, losses, slopes, raw)
        state._fill(losses, slopes[:, None])
        state._is_fresh = True
        self._sum_up()

    def _sum_up(self) -> None:
        self._summaries[self.state._is_fresh] = self.state._summary()

    def _do(self, name: str, work: Callable[[], None]) -> None:
        if name in self.graphs:
            self.graphs[name].replay()
        elif (name, self._kind) in _COMPILED and self._has_room:
            try:
                self.graphs[name] = _recorded(work, self._plan.device)
            except torch.OutOfMemoryError:
                # Recorded work has memory of its own. Nothing has been done yet.
                self._has_room = False
                torch.cuda.empty_cache()
                work()
            else:
                self.graphs[name].replay()
        else:
            work()
            _COMPILED.add((name, self._kind))


def _recorded(work: Callable[[], None], device: torch.device) -> Any:
    """Some work as a graph; recording itself does none of it.

    Not by `torch.cuda.graph`, which frees all cached memory first and may collect all garbage: that
    takes longer than many rounds. One at a time in a process, and on one stream, for what libraries
    keep for each stream.
    """
    graph = torch.cuda.CUDAGraph()
    with _RECORDING, torch.cuda.device(device):
        stream = _STREAMS.setdefault(device, torch.cuda.Stream(device))
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Relaxed: should a kernel be compiled for another size after all, it may be loaded.
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
    return graph
