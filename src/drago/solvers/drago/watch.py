"""How DRAGO is doing: divergence, pace and stalling, from free estimates and certificates."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.files.checkpoint import State
from drago.loop.protocol import Iterate

# By how much the estimated gap may grow over its best before that counts as divergence.
_GROWTH = 10.0
# For how many rounds the certified gap may fail to halve.
_PATIENCE = 80
# Rounds over which the pace is measured.
WINDOW = 4

_NUMBERS = ("n_iter", "n_passes", "n_oracle_calls", "gap_estimate", "primal_estimate")


class Watch:
    """Tells divergence and the pace by the free estimate of the gap, stalling by the certified."""

    def __init__(self, certified: float) -> None:
        self.estimates: list[float] = []
        self.certified, self.stale = certified, 0
        self.best: Iterate | None = None

    @property
    def rounds(self) -> int:
        return len(self.estimates)

    def state(self) -> State:
        """What is needed to go on watching."""
        arrays: dict[str, Any] = {}
        settings: dict[str, Any] = {
            "estimates": self.estimates,
            "certified": self.certified,
            "stale": self.stale,
        }
        if self.best is not None:
            arrays |= {"w": self.best.w, "b": self.best.b}
            settings["best"] = {field: getattr(self.best, field) for field in _NUMBERS}
        return arrays, settings

    def restore(self, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
        """Go on from the state of another watch, its arrays under ``watch.``."""
        self.estimates, self.certified = settings["estimates"], settings["certified"]
        self.stale = settings["stale"]
        if "best" in settings:
            self.best = Iterate(arrays["watch.w"], arrays["watch.b"], **settings["best"])

    @property
    def suspicious(self) -> bool:
        """Whether it is time to ask for a certificate."""
        return self.stale >= _PATIENCE

    def diverges(self, iterate: Iterate) -> bool:
        self.estimates.append(max(iterate.gap_estimate, 1e-300))
        if self.best is None or iterate.gap_estimate < self.best.gap_estimate:
            self.best = iterate._replace(q=None, evaluation=None)  # no vectors of length n
        return self.estimates[-1] > _GROWTH * min(self.estimates)

    def stalls(self, certified: float) -> bool:
        if certified <= 0.5 * self.certified and np.isfinite(certified):
            self.certified, self.stale = certified, 0
            return False
        self.stale += 1
        return self.stale > _PATIENCE

    def rounds_to(self, wanted: float) -> float:
        """Rounds until the estimate is `wanted`, at the recent pace; 0 if not yet known."""
        if self.rounds <= WINDOW:
            return 0.0
        now, then = self.estimates[-1], self.estimates[-1 - WINDOW]
        if now <= wanted:
            return 0.0
        pace = np.log(then / now) / WINDOW
        return float(np.log(now / max(wanted, 1e-300)) / pace) if pace > 0 else np.inf
