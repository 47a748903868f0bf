"""Questions about risk by name: what each was measured to do stands in docs/when_it_helps.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drago._validation import check_option
from drago.terms.uncertainty import (
    ESRM,
    CVaR,
    Grouped,
    Simplex,
    UncertaintySet,
    as_uncertainty,
    short_names,
)


@dataclass(frozen=True)
class Preset:
    """A set, and the baseline that goes with it where none is given."""

    make: Callable[[], UncertaintySet]
    baseline: str | None = None


PRESETS = {
    # The worst row counts 1.2 times, the best one 0.8 times as much as in the mean.
    "mild": Preset(lambda: ESRM(0.4)),
    "worst_group": Preset(lambda: Grouped(Simplex())),
    "excess_tail": Preset(lambda: CVaR(0.2), baseline="auto"),
}


def as_set(uncertainty: Any) -> UncertaintySet:
    """The set that an estimator was given: a preset, a short name, or an object."""
    if isinstance(uncertainty, str):
        name = check_option("uncertainty", uncertainty, [*PRESETS, *short_names()])
        if name in PRESETS:
            return PRESETS[name].make()
    return as_uncertainty(uncertainty)


def own_baseline(uncertainty: Any) -> str | None:
    """The baseline that goes with a preset."""
    if isinstance(uncertainty, str) and uncertainty in PRESETS:
        return PRESETS[uncertainty].baseline
    return None
