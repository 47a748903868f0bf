"""What a comparison says, in sentences."""

from __future__ import annotations

import math

from drago.advice.methods import CAP, FOUND, INTERACTIONS, MEAN, REWEIGHTED, ROBUST, TREES
from drago.advice.table import Comparison

# An interval of a change that is wider than this share of the mean fit's mean loss tells little.
_WIDE = 0.2
# A group of fewer rows is not called the worst, unless all are as small.
_LEAST = 10
# What could help besides a robust fit, and what to know of it.
_OTHERS = {
    FOUND: "",
    INTERACTIONS: " (it needs the group of every new row)",
    REWEIGHTED: " (all groups count the same)",
    TREES: "",
}


def verdict_of(found: Comparison, recommended: str, has_groups: bool) -> list[str]:
    """Who is served worst, whether robustness buys anything, what would help, and what to use."""
    name = "worst_group_excess" if has_groups else "found_group_excess"
    whom = "the worst group" if has_groups else "the worst found group"
    base, robust = found.line(MEAN), found.line(ROBUST)

    def effect(line: dict[str, float]) -> str:
        ends = f"{line[f'{name}_low']:+.3f} to {line[f'{name}_high']:+.3f}"
        price, low, high = (
            100.0 * line[f"mean_loss_{end}"] / base["mean_loss"]
            for end in ("change", "low", "high")
        )
        return (
            f"the excess of {whom} goes from {base[name]:.3f} to {line[name]:.3f} "
            f"(95% interval of the change: {ends}), and the mean loss changes by {price:+.1f}% "
            f"({low:+.1f}% to {high:+.1f}%)"
        )

    sentences = []
    if has_groups:
        sentences.append(_served_worst(found, base["mean_loss"]))
    low, high = robust[f"{name}_low"], robust[f"{name}_high"]
    if not (math.isfinite(low) and math.isfinite(high)):
        sentences.append(f"Nothing is said of {whom}, because it has too few rows.")
    elif low == high == 0.0:
        sentences.append(
            "The robust fit is the mean fit itself here: no other was better of those whose mean "
            f"loss is at most {CAP:.0%} higher."
        )
    elif high < 0:
        sentences.append(f"Robustness helps {whom} here: {effect(robust)}.")
    elif low > 0:
        sentences.append(f"Robustness does harm here: {effect(robust)}.")
    elif high - low > _WIDE * base["mean_loss"]:
        sentences.append(
            f"These rows cannot tell whether robustness helps, because the interval is too wide: "
            f"{effect(robust)}."
        )
    else:
        sentences.append(f"No benefit of robust fitting could be shown: {effect(robust)}.")
    helpful = [
        f"- {model}{_OTHERS[model]}: {effect(found.line(model))}"
        for model in found.models
        if model in _OTHERS and found.line(model)[f"{name}_high"] < 0
    ]
    if helpful:
        sentences += ["What would help:", *helpful]
    elif math.isfinite(high):
        sentences.append(
            f"Nothing else that was tried lowers the excess of {whom} by more than chance could."
        )
    use = "Use the mean fit." if recommended == MEAN else f"Use: {recommended}."
    better = [
        model
        for model in (ROBUST, *_OTHERS)
        if model in found.models
        and found.line(model)[f"{name}_high"] < 0
        and found.line(model)[name] < found.line(recommended)[name]
    ]
    if better:
        use += (
            f" What helps{'' if recommended == MEAN else ' more'} was not recommended, because it "
            "needs the group of every new row, or because it may cost too much: the 95% interval "
            f"of the change of the mean loss must end below +{CAP:.0%}."
        )
    return [*sentences, use]


def _served_worst(found: Comparison, mean_loss: float) -> str:
    """The group with the largest loss under the mean fit, and that with the largest excess."""
    label, rows, model, loss = (found.groups[name] for name in ("group", "rows", "model", "loss"))
    places = [k for k, name in enumerate(model) if name == MEAN]
    large = [k for k in places if rows[k] >= _LEAST] or places
    worst = max(large, key=lambda k: loss[k])
    sentence = (
        f"The mean fit serves {str(label[worst])!r} worst: a loss of {loss[worst]:.3f} on "
        f"{rows[worst]} rows, {mean_loss:.3f} on all."
    )
    if label[worst] != found.worst_group:
        sentence += (
            f" The excess, the loss less what a baseline loses on the row, is largest for "
            f"{str(found.worst_group)!r}."
        )
    return sentence
