"""KL balls of rows on other machines: theta from a round or two of sums.

The weights are ``q_i ~ p_i exp(theta u_i)``. A few rows on this side tell about where theta is. At
one theta all parts tell their greatest losses and the moments of the others, which give the sums at
another theta nearby (`drago.oracles.rounds.tilt_looks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drago.oracles.atoms import RowVector
from drago.oracles.rounds import looks, tilt_looks
from drago.oracles.rounds.oracle import SearchOracle
from drago.oracles.rounds.tilt import Losses, Tilt, price_in_ball
from drago.oracles.rounds.tilt_looks import Tilted, Tilts

# The error of what moments tell that is no more than rounding, how far a step goes without them,
# and rounds at most.
_EXACT, _FARTHEST, _TILTS = 1e-14, 0.25, 20


class TiltSearch(SearchOracle):
    """What `drago.oracles.rounds.remote.RemoteOracle` does for KL balls."""

    def _sampled(self, u: RowVector, c: float) -> float:
        """Theta of the witnesses; NaN where there is none."""
        shadow, radius = self.rows.shadow(u), float(self.uncertainty.radius)
        # Small divergences are sums around the mean, for the sake of their digits.
        if shadow is None or radius < Tilt.SMALL or not np.isfinite(shadow).all():
            return math.nan
        losses = Losses([(shadow, self.rows.witness.p)], radius)
        if not losses.variance > 0.0:
            return math.nan
        effective = price_in_ball(losses, c, radius, self.memory["sampled"])
        return 1.0 / effective if effective > 0.0 else math.nan

    def _first_theta(self, u: RowVector, c: float) -> float:
        """A guess of theta, or NaN."""
        guess, known = self._sampled(u, c), self.memory
        if known["searched"] == c and math.isfinite(known["anchor"] * known["error"]):
            # Whatever was nearer before: as the witnesses moved, or not at all.
            guess *= known["anchor"] / known["sampled"]
            guess = guess if known["error"] <= known["moved"] else known["anchor"]
        return min(guess, 1.0 / c) if c > 0.0 else guess

    def _look_at(self, u: RowVector, theta: float) -> tuple[RowVector, float, float]:
        """What `tilt_looks.tilts` is given: theta, and about which losses to take moments."""
        rows = self.rows
        share = tilt_looks.TOP * len(rows.parts) / rows.n_samples
        return u, tilt_looks.middle(rows.shadow(u), share, theta), theta

    def _tilted(self, u: RowVector, c: float) -> Tilted | None:
        """The weights of a KL ball, by rounds at a theta each; None where these do not find it."""
        theta = self._first_theta(u, c)
        if math.isnan(theta):
            return None
        radius, most = float(self.uncertainty.radius), 1.0 / c if c > 0.0 else math.inf
        inside: list[Tilted] = []  # the greatest theta whose weights lie in the ball
        beyond: list[Tilted] = []  # and the least whose do not
        for _ in range(_TILTS):
            asked = self._look_at(u, theta)
            tilts = Tilts(self.rows.told(tilt_looks.tilts, *asked), *asked[1:])
            here, there = tilts.at(theta), tilts.where(radius, most)
            if there is not None and there.error <= _EXACT:
                if there.theta < most:
                    self._remember(there.theta, self._sampled(u, c), c)
                return there
            if not (here.spent > 0.0 and here.variance > 0.0):
                return None
            inside = sorted([*inside, *([here] if here.spent <= radius else [])])[-1:]
            beyond = sorted([*beyond, *([here] if here.spent > radius else [])])[:1]
            ends = sorted([*inside, *beyond], key=lambda each: abs(each.spent - radius))
            theta = min(_theta_where(ends, radius), most) if there is None else there.theta
        return None

    def _remember(self, theta: float, sampled: float, c: float) -> None:
        """For the next guess: by how much each of the two would have been wrong."""
        known, off = self.memory, {"moved": math.inf, "error": math.inf}
        if known["searched"] == c and math.isfinite(known["anchor"]):
            moved = sampled * known["anchor"] / known["sampled"]
            off = {"moved": abs(known["anchor"] / theta - 1.0), "error": abs(moved / theta - 1.0)}
        self.memory |= off | {"anchor": theta, "sampled": sampled, "searched": c}


def _theta_where(ends: Sequence[Tilted], radius: float) -> float:
    """Where the divergence should be the radius: its root is almost linear in theta.

    Between two ends a cubic of that root tells, the nearer end first; beside one its tangent.
    """
    target = math.sqrt(2.0 * radius)
    root = [math.sqrt(2.0 * each.spent) for each in ends]
    rate = [x / (each.theta * each.variance) for x, each in zip(root, ends)]
    theta = [each.theta for each in ends]
    if len(ends) == 1:
        step = theta[0] + (target - root[0]) * rate[0]
        return min(max(step, _FARTHEST * theta[0]), theta[0] / _FARTHEST)
    width = root[1] - root[0]
    t = (target - root[0]) / width
    rise, first, last = theta[1] - theta[0], rate[0] * width, rate[1] * width
    cubic, square = first + last - 2.0 * rise, 3.0 * rise - 2.0 * first - last
    found = theta[0] + t * (first + t * (square + t * cubic))
    return found if min(theta) < found < max(theta) else math.sqrt(theta[0] * theta[1])


class RemoteLosses(Tilt):
    """Those of rows elsewhere, by rounds over the parts."""

    def __init__(self, rows: Any, u: RowVector, radius: float) -> None:
        self.rows, self.u, self.is_small = rows, u, radius < self.SMALL
        shadow = rows.shadow(u)
        about = 0.0 if shadow is None else float(np.dot(rows.witness.p, shadow))
        greatest, mass, first = zip(*rows.told(looks.middle, u, about))
        self.top = max(greatest)
        self.centre = about + sum(first) / sum(mass)
        self.offset, square = np.sum(rows.told(looks.apart, u, self.centre), axis=0).tolist()
        self.variance = max(square - self.offset**2, 0.0)

    def tied(self) -> float:
        return float(sum(self.rows.told(looks.tied, self.u, self.top)))

    def sums(self, theta: float, near: bool) -> Sequence[float]:
        about = (self.centre, self.offset) if near else (self.top, 0.0)
        told = self.rows.told(looks.tilt_sums, self.u, *about, theta, near)
        return np.sum(told, axis=0).tolist()
