"""What was added to the published method, one factor at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from problems import Spec
from store import Results

# The suboptimality to which the work is compared.
TARGET = 1e-8
# "Faster" and "slower" are by this factor of the seconds at least; less than that is even.
CLEAR = 1.2
RULE = (
    f"Faster and slower are by a factor of {CLEAR:g} in seconds at least, or because only one of "
    "the two got there; the rest is even. A median of two seeds on a few problems is not a law"
)


@dataclass(frozen=True)
class Change:
    """Two methods that differ in one thing.

    Parameters
    ----------
    name : str
    better, plain : str
        Names of methods: with it, and without.
    what : str
        What is the same in both.
    """

    name: str
    better: str
    plain: str
    what: str


def changes() -> list[Change]:
    paper = "b = n/d, euclidean, tuned step"
    return [
        Change("exact tables", "drago-n/d", "drago-lagged", f"{paper}, the paper's start"),
        Change("sort-free dual step", "drago-n/d", "sorting", f"{paper}, the paper's start"),
        Change("stationary start", "stationary", "drago-n/d", paper),
        Change("metric", "metric", "stationary", "b = n/d, stationary start, tuned step"),
        Change("automatic step", "automatic", "metric", "b = n/d, stationary start, metric"),
        Change("exact gradient, learnt steps", "support", "blocks", "automatic blocks, metric"),
        Change("everything together", "drago-auto", "published", "nothing"),
    ]


@dataclass(frozen=True)
class Comparison:
    """Work to the target with a change and without; infinite where it was not reached.

    `ratio` is without / with; where only one of the two got there, a bound on it from what the
    other had spent by then.
    """

    better: float
    plain: float
    ratio: float
    exact: bool

    @property
    def side(self) -> str:
        """ "faster", "slower", "even" or "neither": the work with the change."""
        if not self.exact:
            both = {self.better: "faster", self.plain: "slower"}
            return next((word for work, word in both.items() if np.isfinite(work)), "neither")
        return (
            "faster" if self.ratio >= CLEAR else "slower" if self.ratio * CLEAR <= 1.0 else "even"
        )


def summary(sides: list[str]) -> str:
    """On how many problems it is what, in words."""
    counts = Counter(sides)
    words = {"faster": "faster on", "slower": "slower on", "even": "even on"}
    found = [f"{text} {counts[side]}" for side, text in words.items() if counts[side]]
    if counts["neither"]:
        found.append(f"not there on {counts['neither']}")
    return ", ".join(found)


def compare(results: Results, spec: Spec, change: Change, axis: str) -> Comparison:
    """The work to the target, by calls or seconds."""
    better = results.reach(spec, change.better, TARGET, axis)
    plain = results.reach(spec, change.plain, TARGET, axis)
    spent = {
        name: float(np.median([getattr(run, axis)[-1] for run in results.runs(spec, name)]))
        for name in (change.better, change.plain)
    }
    if np.isfinite(better) and np.isfinite(plain):
        return Comparison(better, plain, plain / max(better, 1e-12), True)
    if np.isfinite(better):
        # No step size at all, and so nothing spent, is infinitely worse.
        bound = spent[change.plain] / max(better, 1e-12) or np.inf
        return Comparison(better, plain, bound, False)
    if np.isfinite(plain):
        return Comparison(better, plain, plain / max(spent[change.better], 1e-12), False)
    return Comparison(better, plain, np.nan, False)
