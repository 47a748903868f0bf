"""Visits to rows in files with one output, by kernels that read the features themselves.

The rows are gone through in steps: within one, threads read and compute without Python, and between
two of them an interrupt is heard, and errors and check sums are looked at.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from drago import kernels
from drago._interrupts import poll
from drago._progress import tell
from drago._threads import threads_for
from drago.rows.array_visits import NO_GUESS, NO_ROOM, NONE, Guess, guess_for, parts_of_visit
from drago.rows.base import (
    Evaluation,
    Gradient,
    Matrix,
    NonFiniteLossError,
    RowVector,
    Vector,
    Visit,
)
from drago.rows.features import Features, Near
from drago.rows.file_part import FilePart
from drago.rows.memory import ArrayRows
from drago.rows.parts import PartedRows

# Bytes of X in a step.
_STEP = 1 << 27
# Rows that tell how far the threshold of all rows has moved.
_WITNESSES = 1 << 13
# Shares of the rows, and of the memory limit, that are kept from a visit: those nearest to where
# the weights change their kind. And how many more there is room for, as these are counted in
# advance.
_NEAR, _NEAR_MEMORY, _MORE = 0.005, 1 / 16, 1.25


class Step(NamedTuple):
    """Some rows of a part, and the parts of a visit to them."""

    k: int
    rows: slice
    start: int
    stop: int
    n_parts: int


class Found(NamedTuple):
    """What a visit to the rows of a step tells: sums at guessed weights, and rows that it kept."""

    n_bad: int
    masses: tuple[float, float]
    first: Vector
    second: Vector
    near: Near | None


class Keeping(NamedTuple):
    """A share of the rows, those whose weights are the first to be other than they were guessed.

    They are nearest to the thresholds at which a weight reaches 0 or the cap.
    """

    share: float
    low: float
    high: float
    width: float
    like: Any

    def room(self, step: Step) -> Near:
        """Room for those of a step."""
        most = int(_MORE * self.share * (step.stop - step.start) / step.n_parts)
        X = np.empty((step.n_parts * most, self.like.shape[1]), self.like.dtype)
        return Near(X, np.zeros((step.n_parts, most + 1), np.int64), *self[1:4])


class Guessed(NamedTuple):
    """A guess of the weights at a point, and the threshold and the losses of a sample there."""

    guess: Guess
    threshold: float = math.nan
    losses: Vector = NONE


class FileVisits(PartedRows):
    """What `drago.rows.files.FileRows` reads of X by kernels."""

    parts: tuple[FilePart, ...]
    source: Features
    limit: int

    _checked: set[int]
    """Parts whose check sums were compared."""

    def _check(self, k: int, sums: list[tuple[int, ...]]) -> None:
        """Compare the check sums of a part with those of all its rows."""
        raise NotImplementedError  # pragma: no cover

    def new_vectors(self, count: int) -> list[Any]:
        """New row vectors, not filled."""
        raise NotImplementedError  # pragma: no cover

    @cached_property
    def _steps(self) -> list[Step]:
        """The rows in steps; what they are depends on the source alone."""
        found = []
        most = max(1, _STEP // self.source.row_bytes)
        for k, part in enumerate(self.parts):
            count = -(-part.n_samples // most)
            ends = [part.n_samples * i // count for i in range(count + 1)]
            for a, b in itertools.pairwise(ends):
                entries = part.n_entries * (b - a) // part.n_samples
                n_parts = parts_of_visit(b - a, self.n_features, entries, self.is_sparse)
                found.append(Step(k, slice(a, b), part.start + a, part.start + b, n_parts))
        return found

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        return n_outputs == 1 and loss.has_kernels and self.source.is_filed

    def evaluate(self, loss: Any, w: Any, b: Any, raw: RowVector = None) -> Evaluation:
        if raw is None and w.any() and self.visits_once(loss, w.shape[1]):
            ev, found = self._seen(loss, w, b, NO_GUESS)
            if not any(each.n_bad for each in found):
                return ev
            raw = ev.raw  # whoever looks at the losses raises, and says which rows are to blame
        return super().evaluate(loss, w, b, self.predict(w, b) if raw is None else raw)

    def visit(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Visit:
        """X is read once, and then the rows alone whose weights were not as they were guessed."""
        # Kernels of CSR rows take no guess: they would leave the sums at it empty.
        if self.is_sparse or not (self.visits_once(loss, w.shape[1]) and w.any()):
            return super().visit(loss, w, b, oracle, nu)
        guessed = self._guess(loss, w, b, oracle, nu)
        if not guessed.guess.kind:
            return super().visit(loss, w, b, oracle, nu)
        ev, found = self._seen(loss, w, b, guessed.guess, guessed.losses)
        if any(each.n_bad for each in found):
            self.evaluate(loss, w, b, ev.raw)
        q = oracle.weights(ev.losses, nu)
        oracle.memory |= {"anchor": oracle.guess(nu)[1], "sampled": guessed.threshold}
        return Visit(ev, q, self._gradient(ev.dlosses, q, guessed.guess, ev.losses, found))

    def gradient(self, dlosses: RowVector, q: RowVector) -> Gradient:
        if self.source.is_filed and dlosses.parts[0].shape[1] == 1:
            return self._gradient(dlosses, q, NO_GUESS, q)
        return super().gradient(dlosses, q)

    def _seen(
        self, loss: Any, w: Matrix, b: Vector, guess: Guess, witnesses: Vector = NONE
    ) -> tuple[Evaluation, list[Found]]:
        """All that one reading of X tells: of all rows, and of each step."""
        raw, losses, slopes = self.new_vectors(3)
        keeping = self._keeping(guess, witnesses) if witnesses.size else None
        found, sums = [], []
        for step in self._steps:
            part, rows, looks = self.parts[step.k], step.rows, step.k not in self._checked
            near = None if keeping is None else keeping.room(step)
            first, second = np.empty((2, self.n_features + 1))
            origin = part.start if looks else None
            with self.source.opened(step.start, step.stop, origin, near) as reading:
                n_bad, *masses = kernels.visit(
                    *reading.storage,
                    step.n_parts,
                    threads_for(self.n_entries),
                    np.ascontiguousarray(w[:, 0]),
                    float(b[0]),
                    loss.code,
                    loss.parameter,
                    part.y[rows],
                    part.p[rows],
                    NONE if part.baseline is None else part.baseline[rows],
                    *guess,
                    *(each.parts[step.k][rows] for each in (raw, losses, slopes)),
                    NONE,
                    NO_ROOM,
                    first,
                    second,
                )
            found.append(Found(n_bad, tuple(masses), first, second, near))
            sums.append(reading.sums)
            if rows.stop == part.n_samples:
                self._check(step.k, sums)
                sums = []
            poll()
            tell(step.stop - step.start)
        raw, slopes = (self.vector(part[:, None] for part in each.parts) for each in (raw, slopes))
        return Evaluation(w, b, raw, losses, slopes), found

    def _gradient(
        self,
        dlosses: RowVector,
        q: RowVector,
        guess: Guess,
        losses: RowVector,
        found: list[Found] | None = None,
    ) -> Gradient:
        """After a visit with a guess, or without one."""
        total = np.zeros(self.n_features + 1)
        out = np.empty_like(total)
        for i, step in enumerate(self._steps):
            seen = Found(0, (0.0, 0.0), NONE, NONE, None) if found is None else found[i]
            part, k, rows = self.parts[step.k], step.k, step.rows
            with self.source.opened(step.start, step.stop, near=seen.near) as reading:
                kernels.gradient_after(
                    *reading.storage,
                    step.n_parts,
                    threads_for(self.n_entries),
                    part.p[rows],
                    q.parts[k][rows],
                    losses.parts[k][rows],
                    np.ascontiguousarray(dlosses.parts[k][rows, 0]),
                    *guess,
                    *seen.masses,
                    seen.first,
                    seen.second,
                    out,
                )
            total += out
            poll()
            if found is None:  # otherwise some rows alone are read again
                tell(step.stop - step.start)
        return Gradient(total[:-1, None], total[-1:])

    def _keeping(self, guess: Guess, witnesses: Vector) -> Keeping:
        """Which rows a visit keeps; how near these are, a sample tells."""
        share = min(_NEAR, _NEAR_MEMORY * self.limit / max(self.source.size, 1))
        edges = _edges(guess)
        away = np.minimum(*(np.abs(witnesses - edge) for edge in edges))
        width = float(np.sort(away)[int(share * away.size)])
        return Keeping(share if width < np.inf else 0.0, *edges, width, self.source.none_near.X)

    def _guess(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Guessed:
        """The threshold of the last visit, moved as far as that of a sample has moved since."""
        kind, tau, cap = oracle.guess(nu)
        if not kind or tau == -np.inf or self.n_samples < 2 * _WITNESSES:
            return Guessed(guess_for(self, loss, w, b, oracle, nu))
        witness = self._witnesses.oracle(oracle.uncertainty, oracle.divergence)
        try:
            losses = self._witnesses.evaluate(loss, w, b).losses
        except NonFiniteLossError:
            return Guessed(NO_GUESS)  # the visit says which of all rows are to blame
        witness.weights(losses, nu)
        sampled, known = witness.guess(nu)[1], oracle.memory
        moved = known["anchor"] + (sampled - known["sampled"])
        tau = sampled if np.isnan(tau) or np.isnan(moved) else moved
        return Guessed(Guess(kind, tau, nu, cap), sampled, losses)

    @cached_property
    def _witnesses(self) -> ArrayRows:
        index = np.arange(_WITNESSES, dtype=np.int64) * self.n_samples // _WITNESSES
        return self.sample(index)


def _edges(guess: Guess) -> tuple[float, float]:
    """Losses at which weights reach 0 or the cap; infinity where they do not."""
    if guess.kind == 1:
        return guess.tau, guess.tau + guess.nu * guess.cap
    return guess.tau + guess.nu * math.log(guess.cap), math.inf
