"""Rounds of DRAGO's iterations as work that is recorded in CUDA graphs and replayed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from drago.rows.base import Evaluation

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

    def __init__(self, iterations: Any) -> None:
        # Without the proxy, the two would keep each other until a collection.
        self.iterations: Any = weakref.proxy(iterations)
        self.tables = tables = iterations.tables
        self.graphs: dict[str, Any] = {}
        self._has_room = True
        problem, rows, blocks = tables.problem, tables.rows, tables.blocks
        # For each iteration: three blocks, whether the first is known, four step sizes.
        self._plan = tables.p.new_zeros((_LINES, 8))
        self._place = torch.zeros(1, dtype=torch.int64, device=rows.device)
        self._visit: list[torch.Tensor] = []
        self._summaries: dict[bool, torch.Tensor] = {}
        self._shapes: list[Any] = []
        self._kind = (
            tables.kind, type(problem.loss), problem.uncertainty.kind, problem.divergence.name,
            rows.X.dtype, rows.n_features, rows.device, rows.is_uniform, blocks.count, blocks.group,
            iterations.mean is None, iterations.metric.basis is None, rows.baseline is None,
            rows.n_samples.bit_length(),
        )  # fmt: skip

    def run(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        """See `drago.solvers.drago.iterations.Iterations.round`."""
        iterations = self.iterations
        for first in range(0, len(pairs), _LINES):
            self._iterate(pairs[first : first + _LINES])
        if refresh and not self._visit:
            self._visit = [torch.empty_like(self.tables.p) for _ in range(3)]
        if refresh:
            self._do("visit and summary", self._visit_and_sum_up)
            iterations.count_refreshment()
        else:
            self._do("summary", self._sum_up)
        found = self.tables.unpacked(self._summaries[refresh], self._shapes)
        iterations.take_down(found)
        w, b = found[:2]
        if not (refresh and all(np.isfinite(part).all() for part in found)):
            return None
        losses, slopes, raw = self._visit
        return Evaluation(w, b, raw[:, None], losses, slopes[:, None])

    def _iterate(self, pairs: Sequence[tuple[int, int]]) -> None:
        lines = []
        for i, j in pairs:
            k, known, numbers = self.iterations.plan(i, j)
            lines.append([i, j, k, known, *numbers])
        self._plan[: len(lines)] = torch.tensor(lines, dtype=self._plan.dtype)
        self._place.zero_()
        for _ in pairs:
            self._do("iteration", self._advance)

    # ------------------------------------------------------------------------- pieces of work

    def _advance(self) -> None:
        line = self._plan.index_select(0, self._place)[0]
        self._place += 1
        i, j, k = line[:3].to(torch.int64).split(1)
        self.iterations.advance(i, j, k, line[3] > 0, False, *line[4:].unbind(0))

    def _visit_and_sum_up(self) -> None:
        iterations, tables = self.iterations, self.tables
        losses, slopes, raw = self._visit
        w, b = iterations.point
        tables.rows.fill(tables.problem.loss, w, b, losses, slopes, raw)
        iterations.fill(Evaluation(w, b, raw[:, None], losses, slopes[:, None]), "exact")
        self._sum_up(is_fresh=True)

    def _sum_up(self, is_fresh: bool = False) -> None:
        summary = self.iterations.summary(is_fresh)
        self._shapes = [part.shape for part in summary]
        self._summaries[is_fresh] = self.tables.packed(summary)

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
