"""The sentences of a report."""

from __future__ import annotations

import math
from typing import Any

from drago._html import number
from drago.report.facts import HELD_OUT, TRAINING, Facts, label_of
from drago.report.folds import MEAN, OWN, Refits
from drago.terms.uncertainty import ESRM, Chi2Ball, CVaR, Extremile, KLBall, Simplex

# An interval of a change that is wider than this share of the mean model's mean loss tells little.
_WIDE = 0.2


def set_in_words(uncertainty: Any) -> str:
    """What a model with this set keeps low."""
    inner, of_groups = uncertainty.ungrouped, uncertainty.needs_groups
    one, many = ("group", "groups") if of_groups else ("row", "rows")
    if isinstance(inner, CVaR):
        if inner.tail_share == 1:
            return f"the mean loss of all {many}"
        return f"the mean loss of the worst {_percent(inner.tail_fraction)} of the {many}"
    if isinstance(inner, Simplex):
        return f"the loss of the worst {one}"
    if isinstance(inner, ESRM) and inner.risk_aversion > 0:
        g = float(inner.risk_aversion)
        most, least = g / -math.expm1(-g), g / math.expm1(g)
        return (
            f"a mean loss in which a {one} counts more the larger its loss is: the worst one "
            f"{most:.2g} times, the best one {least:.2g} times as much as in a plain mean"
        )
    if isinstance(inner, Extremile) and float(inner.n_draws) > 1:
        return (
            f"a mean loss in which a {one} counts more the larger its loss is: the worst one up "
            f"to {float(inner.n_draws):.3g} times, the best one next to nothing"
        )
    if isinstance(inner, (Chi2Ball, KLBall)):
        name = "chi-squared" if isinstance(inner, Chi2Ball) else "Kullback-Leibler"
        return (
            f"the worst mean loss under any reweighting of the {many} within a {name} distance of "
            f"{inner.radius:g}"
        )
    return f"the worst mean loss under the reweightings of {uncertainty.label}"


def loss_in_words(model: Any) -> str:
    """What a loss is, with its unit."""
    name = model.loss_.name
    if name == "squared":
        return "half the squared error, in squared units of the target"
    if name == "huber":
        return "the Huber loss: half the squared error, linear for large errors"
    if name in ("logistic", "multinomial"):
        return "the log loss in nats: minus the logarithm of the probability of the true class"
    return f"the loss {name!r} of your own"


def question(facts: Facts) -> str:
    """What a report answers."""
    kind = "classifier" if facts.classifies else "regression model"
    whom = "groups" if facts.groups is not None else "rows"
    return (
        f"Which {whom} does this {kind} serve worst, and are they served better than by a model "
        "that looks at the mean alone?"
    )


def purpose(facts: Facts) -> str:
    """What the model was fitted for."""
    words = f"The model was fitted to keep low {set_in_words(facts.model.uncertainty_)}"
    if getattr(facts.model, "baseline_", None) is not None:
        words += "; losses count by how far they are above what another model attains on the row"
    return f"{words}. A loss is {loss_in_words(facts.model)}."


def origin(facts: Facts) -> str:
    """Where the rows come from."""
    if facts.origin == TRAINING:
        return (
            "These are the rows that the model was fitted on, because its objective on them is the "
            "one that was certified. Figures of the fitted model itself flatter it here."
        )
    if facts.origin == HELD_OUT:
        return (
            "These are not the rows that the model was fitted on, because its objective on them is "
            "not the one that was certified. So they tell how it does on new rows."
        )
    return (
        "Whether the model was fitted on these rows cannot be told: its objective on them is not "
        "known to be the one that was certified. Weights, groups or a baseline of the fit may be "
        "missing. Take its figures as those of training rows."
    )


def verdict(facts: Facts, refits: Refits | str) -> str:
    """Whether robustness helps, in a sentence or two."""
    if isinstance(refits, str):
        return f"{_served(facts)} {refits}"
    name, whom = metric_of(facts)
    base, own = (refits.comparison.line(model) for model in (MEAN, OWN))
    low, high = own[f"{name}_low"], own[f"{name}_high"]
    ends = f"95% interval of the change {interval(low, high, base[name])}"
    change = f"from {number(base[name])} to {number(own[name])} ({ends})"
    price = f"The mean loss changes by {relative(own, base)}"
    if not math.isfinite(base[name]):
        words = f"What happens to {whom} is not shown, because these are too few rows. {price}."
    elif low == high == 0.0:
        words = "The robust model and the mean model are the same here."
    elif high < 0:
        words = f"Robustness helps {whom}: the loss falls {change}. {price}."
    elif low > 0:
        words = f"Robustness does harm here: the loss of {whom} rises {change}. {price}."
    elif high - low > _WIDE * abs(base["mean_loss"]):
        words = (
            f"These rows cannot tell whether robustness helps {whom}, because the interval is too "
            f"wide: the loss goes {change}. {price}."
        )
    else:
        words = (
            f"Robustness buys {whom} nothing that these rows could show: the loss goes {change}. "
            f"{price}."
        )
    return f"Refitted on parts of these rows, {words[0].lower()}{words[1:]}"


def metric_of(facts: Facts) -> tuple[str, str]:
    """The column of a comparison that counts, and whom it is about."""
    if facts.has_groups:
        return "worst_group_loss", "the worst group"
    return "tail_excess", "the worst tenth of the rows"


def interval(low: float, high: float, size: float) -> str:
    """Two signed ends; a dash where there are none, as for a single row."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    return f"[{signed(low, size)}, {signed(high, size)}]"


def signed(value: float, size: float) -> str:
    """A change, to the digit to which a value of that size is shown."""
    if not (math.isfinite(value) and math.isfinite(size)):
        return "–"
    places = 3 - math.floor(math.log10(abs(size))) if size else 3
    rounded = round(value, places)
    return "0" if rounded == 0 else ("+" if rounded > 0 else "") + number(rounded, 4)


def relative(line: dict[str, float], base: dict[str, float]) -> str:
    """The change of the mean loss in percent of the mean model's."""
    size = base["mean_loss"]
    if not size > 0:
        return signed(line["mean_loss_change"], size)
    ends = [100.0 * line[f"mean_loss_{end}"] / size for end in ("change", "low", "high")]
    change, low, high = (f"{round(end, 1) + 0.0:+.1f}" for end in ends)
    return f"{change}% [{low}, {high}]".replace("-", "−")


def _served(facts: Facts) -> str:
    worst = facts.worst
    if facts.has_groups:
        label, loss = label_of(worst.groups["group"].tolist()[0]), worst.groups["loss"][0]
        return (
            f"The model serves the group {label!r} worst: a mean loss of {number(loss)}, "
            f"{number(worst.mean_loss)} on all rows."
        )
    if not facts.tells_tail:
        return f"The model loses {number(worst.mean_loss)} on average."
    return (
        f"The model loses {number(worst.mean_loss)} on average, and {number(worst.tail_loss)} on "
        "the worst tenth of the rows."
    )


def certificate(result: Any, exact: bool = True) -> list[str]:
    """How good the fit is, for certain; without the figures of the objective unless `exact`."""
    if result is None:
        return ["The model holds no certificate."]
    words = []
    if not math.isfinite(result.rel_gap):
        words.append(
            "There is no bound on how far the objective is from its minimum: the problem is not "
            "known to be convex, or no bound was found."
        )
    elif exact:
        words.append(
            f"No model of this kind, with the same settings and on the same training rows, can "
            f"bring the objective below {number(result.dual, 6)}. This one reaches "
            f"{number(result.primal, 6)}."
        )
    if math.isfinite(result.rel_gap):
        words.append(
            f"So at most {share(result.rel_gap)} of what a fit can gain over a model without "
            "features is left to gain. This is proved by a bound, and not judged by how the solver "
            "went."
        )
    if str(result.status) != "optimal":
        words.append(f"The solver stopped early: {result.message}")
    words.append(
        "The certificate is about the fit to the training rows. It does not say how the model does "
        "on new ones."
    )
    return words


def share(value: float) -> str:
    """A small share in percent."""
    return f"{100 * value:.2g}%" if value >= 1e-5 else "0.001%"


def _percent(value: float) -> str:
    return f"{100 * float(value):.4g}%"
