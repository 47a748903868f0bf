"""KL balls of rows on other machines: theta from a few rounds of sums at some theta.

The weights are ``q_i ~ p_i exp(theta u_i)``. A few rows on this side tell about where theta is, and
the moments of the losses under the weights at one theta tell those at another one nearby.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drago.oracles.atoms import RowVector
from drago.oracles.rounds import looks
from drago.oracles.rounds.oracle import SearchOracle
from drago.oracles.rounds.rows import FAINT
from drago.oracles.rounds.tilt import Losses, Tilt, price_in_ball

# How far on either side of a guess to look, as a share of it, at most and at least, and how many
# times the last error of a guess.
_TILT, _LEAST_TILT, _ERRORS = 0.03, 1e-3, 4.0
# How near to the radius the moments tell the rest, how far a step goes, and rounds at most.
_CLOSE, _FARTHEST, _TILTS = 1e-4, 0.25, 20


class TiltSearch(SearchOracle):
    """What `drago.oracles.rounds.remote.RemoteOracle` does for KL balls."""

    def _sampled(self, u: RowVector, c: float) -> tuple[float, float]:
        """Theta of the witnesses, and the mean of their losses there; NaN where there is none."""
        shadow, radius = self.rows.shadow(u), float(self.uncertainty.radius)
        # Small divergences are sums around the mean, for the sake of their digits.
        if shadow is None or radius < Tilt.SMALL or not np.isfinite(shadow).all():
            return math.nan, math.nan
        p = self.rows.witness.p
        losses = Losses([(shadow, p)], radius)
        if not losses.variance > 0.0:
            return math.nan, math.nan
        effective = price_in_ball(losses, c, radius, self.memory["sampled"])
        if not effective > 0.0:
            return math.nan, math.nan
        e = p * np.exp(np.maximum((shadow - losses.top) / effective, FAINT))
        return 1.0 / effective, float(np.dot(e, shadow) / e.sum())

    def _thetas(self, u: RowVector, c: float) -> tuple[float, tuple[float, ...]] | None:
        """About where the losses with weight are, and theta on either side of a guess."""
        (sampled, about), known = self._sampled(u, c), self.memory
        if not math.isfinite(sampled):
            return None
        most = 1.0 / c if c > 0.0 else math.inf
        guess, width = sampled, _TILT
        if known["searched"] == c and math.isfinite(known["anchor"] * known["error"]):
            # Whatever was nearer before: as the witnesses moved, or not at all.
            width = min(known["error"], known["moved"])
            guess *= known["anchor"] / known["sampled"]
            guess = guess if known["error"] <= known["moved"] else known["anchor"]
            width = min(max(_ERRORS * width, _LEAST_TILT), _TILT)
        if not guess < most:
            return about, (most,)
        return about, (guess * (1.0 - width), min(guess * (1.0 + width), most))

    def _tilted(self, u: RowVector, c: float) -> looks.Tilted | None:
        """The weights of a KL ball, by rounds at a few theta; None where these do not find it."""
        tried = self._thetas(u, c)
        if tried is None:
            return None
        about, thetas = tried
        radius, most = float(self.uncertainty.radius), 1.0 / c if c > 0.0 else math.inf
        inside: list[looks.Tilted] = []  # the greatest theta whose weights lie in the ball
        beyond: list[looks.Tilted] = []  # and the least whose do not
        for _ in range(_TILTS):
            told = self.rows.told(looks.tilts, u, about, thetas)
            found = looks.tilted(told, about, thetas)
            if not all(each.spent > 0.0 and each.variance > 0.0 for each in found):
                return None
            inside = sorted([*inside, *(each for each in found if each.spent <= radius)])[-1:]
            beyond = sorted([*beyond, *(each for each in found if each.spent > radius)])[:1]
            if inside and inside[0].theta == most:
                return inside[0]
            ends = sorted([*inside, *beyond], key=lambda each: abs(each.spent - radius))
            if abs(ends[0].spent - radius) <= _CLOSE * radius:
                last = ends[0].settled(radius)
                self._remember(last.theta, self._sampled(u, c)[0], c)
                return last
            thetas = (min(_theta_where(ends, radius), most),)
        return None

    def _remember(self, theta: float, sampled: float, c: float) -> None:
        """For the next guess: by how much each of the two would have been wrong."""
        known, off = self.memory, {"moved": math.inf, "error": math.inf}
        if known["searched"] == c and math.isfinite(known["anchor"]):
            moved = sampled * known["anchor"] / known["sampled"]
            off = {"moved": abs(known["anchor"] / theta - 1.0), "error": abs(moved / theta - 1.0)}
        self.memory |= off | {"anchor": theta, "sampled": sampled, "searched": c}


def _theta_where(ends: Sequence[looks.Tilted], radius: float) -> float:
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
