"""A user's own set behind the face of the built-in ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.terms.divergences import Divergence
from drago.terms.uncertainty.base import USERS, DualOracle, UncertaintySet, Vector


class UserSet(UncertaintySet):
    """Adapter that gives a user's own set the face of the built-in ones."""

    short_name = USERS
    is_users = True

    @property
    def can_check(self) -> bool:  # type: ignore[override]
        return hasattr(self.given, "violation")

    @property
    def label(self) -> str:
        return type(self.given).__name__

    def __init__(self, given: Any) -> None:
        self.given = given

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return DualOracle(self.given, divergence, p)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        return np.minimum(float(self.given.q_max(p)), 1.0) / p

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        if self.can_check:
            return float(self.given.violation(q, p))
        # Only the set itself could tell; weights come from its own worst_case.
        return float(q.max()) - float(self.given.q_max(p))
