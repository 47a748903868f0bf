"""What was added to the published method, one factor at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from problems import Spec
from store import Results

# The suboptimality to which the work is compared.
TARGET = 1e-8


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
    def faster(self) -> bool:
        """Whether it is less work with the change, as far as one can tell."""
        return self.ratio > 1.0 if self.exact else bool(np.isfinite(self.better))


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
