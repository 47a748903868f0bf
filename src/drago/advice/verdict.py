"""What a comparison says, in sentences."""

from __future__ import annotations

from drago.advice.methods import FOUND, INTERACTIONS, MEAN, REWEIGHTED, ROBUST, TREES
from drago.advice.table import Comparison

# An interval of a change that is wider than this share of the mean fit's mean loss tells little.
_WIDE = 0.2
_WORDS = {
    FOUND: "found groups as features",
    INTERACTIONS: "features of their own for each group",
    REWEIGHTED: "groups of equal weight",
    TREES: "a better model (boosted trees)",
}


def verdict_of(found: Comparison, recommended: str, has_groups: bool) -> list[str]:
    """Whether robustness buys anything here, what would help, and what to use."""
    name = "worst_group_excess" if has_groups else "found_group_excess"
    whom = "the worst given group" if has_groups else "the worst found group"
    base = found.line(MEAN)
    robust, unit = found.line(ROBUST), base["mean_loss"]

    def change(line: dict[str, float], key: str) -> str:
        share = [100.0 * line[f"{key}_{end}"] / unit for end in ("change", "low", "high")]
        return "{:+.1f}% [{:+.1f}, {:+.1f}]".format(*share)

    low, high = robust[f"{name}_low"], robust[f"{name}_high"]
    price = f"the mean loss changes by {change(robust, 'mean_loss')}"
    what = f"the excess of {whom} by {change(robust, name)}"
    if high < 0:
        first = f"Robustness helps {whom} here: {what}, {price}."
    elif low > 0:
        first = f"Robustness does harm here: {what}, {price}."
    elif high - low > _WIDE * unit:
        first = (
            f"These rows cannot tell whether robustness helps: {what}, an interval that is too "
            f"wide; {price}."
        )
    else:
        first = f"Robustness buys nothing here that these rows could show: {what}, {price}."
    helpful = [
        f"{_WORDS[model]} (the excess of {whom} {change(found.line(model), name)}, the mean loss "
        f"{change(found.line(model), 'mean_loss')})"
        for model in found.models
        if model in _WORDS and found.line(model)[f"{name}_high"] < 0
    ]
    second = (
        "What would help: " + "; ".join(helpful) + "."
        if helpful
        else (
            f"Nothing that was tried lowers the excess of {whom} beyond what these rows leave in "
            "doubt."
        )
    )
    third = f"Use the {recommended}" if recommended == MEAN else f"Use: {recommended}"
    unit_note = "Changes are in percent of the mean fit's mean loss, with 95% intervals."
    return [first, second, f"{third}.", unit_note]
