"""Visits to rows of arrays near to an earlier one: what provably has no weight is not read."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago import kernels
from drago.rows.array_visits import NO_GUESS, ArrayVisits, Guess, Seen, sharper
from drago.rows.base import Evaluation, Matrix, Vector, Visit

# Rows that tell how many have to be read.
_LOOKED_AT = 512
# By how much the threshold may fall, as a share of what losses may rise by.
_FALL = 0.1
# Rounding, as a share of how far a prediction moves.
_ROUNDING = 1e-9


class ArrayNear(ArrayVisits):
    """What `drago.rows.memory.ArrayRows` need not read of X.

    See ``kernels/near.hpp`` for the bounds.
    """

    def visit_near(
        self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float, near: Evaluation
    ) -> Visit:
        """As `visit`, knowing an evaluation nearby with the same weights' oracle."""
        if not (self.visits_once(loss, w.shape[1]) and near.w.any()):
            return self.visit(loss, w, b, oracle, nu)
        guess = self._guess(loss, w, b, oracle, nu)
        if not (self._spares(guess) and np.isfinite([guess.tau, loss.curvature]).all()):
            return self.visit(loss, w, b, oracle, nu)
        if self.reach is None:  # a solve was taken up again: the first reading of X tells
            self._measure(loss, near.w, near.b, NO_GUESS)
        assert self.reach is not None
        unit, reach = self.reach
        distance = float(np.linalg.norm((w - near.w)[:, 0] / unit)) * (1.0 + _ROUNDING)
        move = distance, float(abs(b - near.b)[0]) * (1.0 + _ROUNDING), float(loss.curvature)
        cut = self._cut(guess, near, reach, *move)
        if cut is None:
            return self.visit(loss, w, b, oracle, nu)
        seen = self._seen_near(loss, w, b, guess, near, (reach, *move, cut))
        oracle.look_near(nu, sharper(guess, seen.masses))
        q = oracle.weights(seen.evaluation.losses, nu)
        if seen.n_bad or not oracle.guess(nu)[1] >= cut:
            return self.visit(loss, w, b, oracle, nu)
        return Visit(seen.evaluation, q, self._gradient(seen.evaluation.dlosses, q, guess, seen))

    def _cut(
        self,
        guess: Guess,
        near: Evaluation,
        reach: Vector,
        distance: float,
        shift: float,
        curvature: float,
    ) -> float | None:
        """The loss from which on rows are read; None where these would be too many."""
        some = slice(None, None, max(1, self.n_samples // _LOOKED_AT))
        moves = reach[some] * distance + shift
        rise = moves * (np.abs(near.dlosses[some, 0]) + 0.5 * curvature * moves)
        cut = guess.tau - _FALL * float(np.median(rise))
        share = float(np.mean(near.losses[some] + rise >= cut))
        return cut if self._is_less(share) and np.isfinite(cut) else None

    def _seen_near(
        self,
        loss: Any,
        w: Matrix,
        b: Vector,
        guess: Guess,
        near: Evaluation,
        bounds: tuple[Any, ...],
    ) -> Seen:
        """What the rows tell whose loss is not provably below the cut."""
        raw, losses, slopes = np.empty((3, self.n_samples))
        first, second = np.empty((2, self.n_features + 1))
        n_bad, *masses, n_read = kernels.visit_near(
            self.X,
            *self._asked(loss, w, b),
            *guess[1:],
            np.ascontiguousarray(near.raw[:, 0]),
            near.losses,
            np.ascontiguousarray(near.dlosses[:, 0]),
            *bounds,
            raw,
            losses,
            slopes,
            first,
            second,
        )
        share = n_read / self.n_samples
        ev = Evaluation(w, b, raw[:, None], losses, slopes[:, None], share)
        return Seen(ev, n_bad, tuple(masses), first, second)
