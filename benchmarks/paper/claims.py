"""The claims of the paper's text, each with what was measured and a verdict, from the results.

Thresholds stand here once: "near best" and "match" mean at most twice as much, an order of
magnitude is a factor of ten, and work is compared to a suboptimality of 1e-6 unless a claim says
otherwise. A claim on several data sets is confirmed if it holds on all, refuted if on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from methods import METHODS
from problems import Spec
from store import Results, Run

NEAR = 2.0
LEVEL = 1e-6
SMALL = 1000  # rows
SECONDS = {"seconds": "wall time", "calls": "oracle calls"}


@dataclass(frozen=True)
class Claim:
    """A claim: where it stands in the paper, its words, what was measured, the verdict."""

    source: str
    text: str
    measured: str
    verdict: str


def all_claims(results: Results) -> list[Claim]:
    """In the order of the paper."""
    from theory import theory_claims

    return [
        *theory_claims(results),
        *_regression(results),
        *_text(results),
        *_balls(results),
        *_batch(results),
    ]


# ------------------------------------------------------------------------------- words


def verdict(held: Iterable[bool]) -> str:
    """Confirmed on all, refuted on none, in part between."""
    found = list(held)
    if not found:
        return "not measured"
    return "confirmed" if all(found) else "in part" if any(found) else "refuted"


def number(value: float) -> str:
    """Short, and in words where there is none."""
    if np.isnan(value):
        return "?"
    if np.isinf(value):
        return "never"
    return f"{value:.1e}" if value and not 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def listed(pairs: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name} {value}" for name, value in pairs)


def label(method: str) -> str:
    return METHODS[method].label.replace("DRAGO ", "")


def _by_best(
    results: Results, specs: Sequence[Spec], method: str, among: Sequence[str], axis: str
) -> tuple[list[bool], str]:
    """Where a method is near the best of several; in words, how near."""
    held, words = [], []
    several = len({(spec.mu, spec.nu) for spec in specs}) > 1
    for spec in specs:
        own = results.reach(spec, method, LEVEL, axis)
        least, name = min((results.reach(spec, other, LEVEL, axis), other) for other in among)
        held.append(bool(np.isfinite(own) and own <= NEAR * least))
        title = f"{spec.title}, mu = {spec.mu:g}, nu = {spec.nu:g}:" if several else spec.title
        best = "" if name == method else f" (best: {label(name)})"
        if np.isfinite(own) and not np.isfinite(least):
            words.append((title, f"reached by {label(method)} alone"))
        elif np.isfinite(own):
            words.append((title, f"{own / max(least, 1e-12):.2g}x{best}"))
        else:
            words.append((title, f"not reached{best}" if np.isfinite(least) else "reached by none"))
    return held, listed(words)


# -------------------------------------------------------------------------- regression


def _regression(results: Results) -> list[Claim]:
    specs = list(results.plan.regression)
    papers = ("sgd", "lsvrg", "drago-1", "drago-16", "drago-n/d")
    where = "Regression with Large Block Sizes"
    held, words = _by_best(results, specs, "drago-n/d", papers, "seconds")
    everyone = (*papers, "prospect", "lbfgs", "drago-auto")
    _, others = _by_best(results, specs, "drago-n/d", everyone, "seconds")
    found = [
        Claim(
            where,
            "b = n/d performs best or near best on all six data sets in wall time.",
            f"Time to {LEVEL:g} by that of the best of SGD, LSVRG and the paper's DRAGO: {words}. "
            f"With Prospect, L-BFGS and DRAGO auto in the race: {others}.",
            verdict(held),
        ),
        *_kin8nm(results),
    ]
    few = [spec for spec in specs if _rows(results, spec) <= SMALL]
    many = [spec for spec in specs if spec not in few]
    held_1, words_1 = _by_best(results, few, "drago-1", ("sgd", "lsvrg"), "calls")
    found.append(
        Claim(
            where,
            "For n <= 1,000, b = 1 matches the baselines in oracle calls.",
            f"Calls to {LEVEL:g} by the better of SGD and LSVRG: {words_1}.",
            verdict(held_1),
        )
    )
    held_16, words_16 = _by_best(results, many, "drago-16", ("sgd", "lsvrg"), "calls")
    held_b1, words_b1 = _by_best(results, many, "drago-1", ("sgd", "lsvrg"), "calls")
    found.append(
        Claim(
            where,
            "On the larger data sets b = 16 is needed to be comparable.",
            f"b = 16: {words_16}. b = 1: {words_b1}." if many else "No larger set at this size.",
            verdict([ok and not one for ok, one in zip(held_16, held_b1)]),
        )
    )
    found.append(_bias(results))
    return found


def _rows(results: Results, spec: Spec) -> int:
    return results.runs(spec, "sgd")[0].n


def _kin8nm(results: Results) -> list[Claim]:
    specs = list(results.plan.regression)
    spec = next((spec for spec in specs if spec.data == "kin8nm"), specs[-1])
    taken = results.reach(spec, "drago-n/d", 1e-7)
    lsvrg = results.at(spec, "lsvrg", taken) if np.isfinite(taken) else np.nan
    own = results.reach(spec, "lsvrg", 1e-7)
    where = "Regression with Large Block Sizes"
    return [
        Claim(
            where,
            "On kin8nm DRAGO (b = n/d) reaches 1e-7 within 1 second.",
            f"{spec.title}: after {number(taken)} s.",
            verdict([bool(taken <= 1.0)]),
        ),
        Claim(
            where,
            "LSVRG is only within 1e-2 of the minimum by then.",
            f"When DRAGO reaches 1e-7, LSVRG is at {number(lsvrg)}; it reaches 1e-7 after "
            f"{number(own)} s: its steps are compiled here.",
            verdict([bool(lsvrg >= 1e-3)]),
        ),
    ]


def _bias(results: Results) -> Claim:
    specs = [*results.plan.regression, *results.plan.text]
    least = [results.least(spec, "sgd") for spec in specs]
    words = listed((f"{s.title} (nu = {s.nu:g})", number(v)) for s, v in zip(specs, least))
    return Claim(
        "Introduction",
        "Minibatch SGD has a bias that does not vanish: it does not converge.",
        f"The least suboptimality that SGD shows with its chosen step: {words}.",
        verdict(value > 1e-8 for value in least),
    )


# -------------------------------------------------------------------------------- text


def _text(results: Results) -> list[Claim]:
    specs = list(results.plan.text)
    where = "Text Classification Under Ill-Conditioning"
    found = []
    held, words = [], []
    for spec in specs:
        taken = results.reach(spec, "drago-n/d", 1e-5)
        behind = [np.log10(results.at(spec, name, taken) / 1e-5) for name in ("sgd", "lsvrg")]
        held.append(bool(np.isfinite(taken) and min(behind) >= 2.0))
        value = [number(results.at(spec, name, taken)) for name in ("sgd", "lsvrg")]
        words.append(
            f"nu = {spec.nu:g}: DRAGO (b = n/d) after {number(taken)} s, then SGD {value[0]} and "
            f"LSVRG {value[1]} ({behind[0]:.1f} and {behind[1]:.1f} orders)"
        )
    found.append(
        Claim(
            where,
            "Within 4 seconds DRAGO comes close to 1e-5 while SGD and LSVRG are 2 to 3 orders of "
            "magnitude behind.",
            f"Time to 1e-5: {'; '.join(words)}.",
            verdict(held),
        )
    )
    found.append(_overtaken(results, specs, where))
    lsvrg = results.runs(specs[0], "lsvrg")[0]
    pace = float(lsvrg.seconds[-1] / max(lsvrg.calls[-1], 1.0))
    drago = results.runs(specs[0], "drago-n/d")[0]
    own = float(drago.seconds[-1] / max(drago.calls[-1], 1.0))
    found.append(
        Claim(
            where,
            "The time that LSVRG needs for 500,000 gradient evaluations is too large to be "
            "considered.",
            f"{number(5e5 * pace)} s here, in compiled code; DRAGO (b = n/d) "
            f"{number(5e5 * own)} s.",
            verdict([5e5 * pace > 4.0]),
        )
    )
    found.append(_steady(results, specs, where))
    found.append(_needs_shift_cost(results, specs))
    return found


def _overtaken(results: Results, specs: list[Spec], where: str) -> Claim:
    words, overtaken = [], []
    place = results.plan.text_limits.seconds
    for spec in specs:
        sgd, lsvrg = (results.at(spec, name, place) for name in ("sgd", "lsvrg"))
        overtaken.append(bool(sgd < lsvrg))
        words.append(f"nu = {spec.nu:g}: SGD {number(sgd)}, LSVRG {number(lsvrg)}")
    return Claim(
        where,
        "For small nu LSVRG is outperformed by SGD in wall time.",
        f"Suboptimality after {place:g} s: {'; '.join(words)}.",
        verdict(overtaken[1:]),
    )


def _steady(results: Results, specs: list[Spec], where: str) -> Claim:
    first, last = specs[0], specs[-1]
    words, held = [], []
    for axis in ("calls", "seconds"):
        level = 1e-5
        own = [results.reach(spec, "drago-n/d", level, axis) for spec in (first, last)]
        among = ("sgd", "lsvrg", "prospect")
        best = min(results.reach(last, name, level, axis) for name in among)
        held.append(bool(own[1] <= NEAR * best) and np.isfinite(own[1]))
        words.append(
            f"{SECONDS[axis]} to {level:g}: {number(own[0])} for nu = {first.nu:g}, "
            f"{number(own[1])} for nu = {last.nu:g} (best of SGD, LSVRG, Prospect: {number(best)})"
        )
    return Claim(
        where,
        "DRAGO with b = n/d stays performant in calls and wall time as nu falls by three orders.",
        f"{'; '.join(words)}.",
        verdict(held),
    )


def _needs_shift_cost(results: Results, specs: list[Spec]) -> Claim:
    last = specs[-1]
    least = {name: results.least(last, name) for name in ("lsvrg", "prospect", "drago-n/d")}
    words = listed((METHODS[name].label, number(value)) for name, value in least.items())
    return Claim(
        "Introduction; table of complexities",
        "LSVRG and Prospect have a linear rate only for a large nu; DRAGO for every nu > 0.",
        f"The least suboptimality within the limits, {last.title}, nu = {last.nu:g}: {words}.",
        verdict(
            least[name] > 1e-8 >= least["drago-n/d"] or least[name] > 1e2 * least["drago-n/d"]
            for name in ("lsvrg", "prospect")
        ),
    )


# ------------------------------------------------------------------- balls, block sizes


def _balls(results: Results) -> list[Claim]:
    specs = list(results.plan.balls)
    where = "Sensitivity to Uncertainty Set Choice"
    few = [spec for spec in specs if _rows(results, spec) <= SMALL]
    papers = ("sgd", "drago-1", "drago-16", "drago-n/d")
    held_1, words_1 = _by_best(results, few, "drago-1", papers, "calls")
    held_16, words_16 = _by_best(results, specs, "drago-16", papers, "calls")
    time_16, _ = _by_best(results, specs, "drago-16", papers, "seconds")
    held_nd, words_nd = _by_best(results, specs, "drago-n/d", papers, "seconds")
    return [
        Claim(
            where,
            "chi2 balls: b = 1 performs well on the smaller data sets.",
            f"Calls to {LEVEL:g} by the best: {words_1}.",
            verdict(held_1),
        ),
        Claim(
            where,
            "chi2 balls: b = 16 does not dominate in calls or wall time in general.",
            f"Calls to {LEVEL:g} by the best: {words_16}. Near best in calls on "
            f"{sum(held_16)} and in wall time on {sum(time_16)} of {len(specs)}.",
            verdict([not (all(held_16) and all(time_16))]),
        ),
        Claim(
            where,
            "chi2 balls: b = n/d has the better overall performance in wall time.",
            f"Time to {LEVEL:g} by the best: {words_nd}.",
            verdict(held_nd),
        ),
    ]


def _batch(results: Results) -> list[Claim]:
    specs, methods = results.plan.groups()["batch"]
    found = []
    for axis in ("calls", "seconds"):
        held, words = _by_best(results, specs, "steady-64", methods, axis)
        found.append(
            Claim(
                "Sensitivity to Batch Size",
                f"b = 64 generally matches the best block size in {SECONDS[axis]}.",
                f"To {LEVEL:g}, by the best: {words}.",
                verdict(held),
            )
        )
    return found


def seeds_agree(results: Results) -> list[tuple[Run, float]]:
    """For each pair of seeds, by what factor their calls to 1e-6 differ."""
    found = []
    for runs in results.by_seeds():
        places = [run.reach(LEVEL, "calls") for run in runs]
        if len(runs) > 1 and np.isfinite(places).all():
            found.append((runs[0], max(places) / max(min(places), 1.0)))
    return found
