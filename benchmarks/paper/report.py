"""Writes `report.md` and the docs page from the results; no number in them is typed by hand."""

from __future__ import annotations

import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from claims import Claim, after, all_claims, number, seeds_agree
from figures import draw_all
from improvements import RULE, TARGET, changes, compare, summary
from methods import METHODS
from optimum import TOLERANCE
from problems import SMALL
from store import Results

import drago

# What each figure shows, in the order of the report.
CAPTIONS = {
    "uncertainty": "Uncertainty sets and penalties for three rows. Black dots: the adversary's "
    "choice, which moves from the nominal weights p to the edge of the set as nu falls.",
    "regression_calls": "Regression, CVaR 0.75, mu = nu = 1: suboptimality against oracle calls.",
    "regression_seconds": "The same against wall time.",
    "text": "Text classification, mu = 1 and falling nu: against oracle calls (above) and wall "
    "time (below).",
    "chi2_calls": "chi2 balls of radius 1, mu = nu = 1: against oracle calls.",
    "chi2_seconds": "The same against wall time.",
    "batch_calls": "DRAGO with several block sizes, from the stationary start: against oracle "
    "calls.",
    "batch_seconds": "The same against wall time.",
    "rates": "Iterations that a factor of ten takes, from the stationary start with the best step "
    "size, as one parameter of the problem varies.",
    "cost": "Left: time of an iteration. Right: numbers kept beside the data.",
    "ablation": f"Work to {TARGET:g} without an improvement by that with it; an arrow where only "
    "one of the two got there within the limits.",
}
# How several cases make one verdict.
SEVERAL = (
    "A claim on several cases is confirmed if it holds in all, refuted if in none, in part "
    "otherwise; a case in which none of the methods that are compared gets to the level is left "
    "out. The thresholds are this page's choice, not the paper's."
)
NOTES = f"""\
- **Data.** acsincome stands for 1,000 of the paper's 4,000 rows: the others are not to be had.
  Which sets are small (n <= {SMALL:,}) goes by the paper's own sizes; a part of a larger set, as
  this one is, is neither small nor large, and such claims show it but do not count it.
  yacht is without its first two rows, as in the paper. Preparation is `drago.datasets.load(name,
  prepare="paper")`.
- **Scale.** nu is the paper's: `shift_cost = nu/n` here. The paper's chi2 ball has radius 1 here.
- **SGD** takes the paper's nu on its batch of 64 as it is, as the authors' code does; on a chi2
  ball it takes the ball of radius 1 over the batch.
- **LSVRG** counts n oracle calls at each checkpoint and one for each of the n steps between, as
  the authors' code does: the second gradient of a step is known from the checkpoint. Its points
  are noted at its checkpoints, with their n calls.
- **Prospect**, which the paper's figures do not show, keeps the weight after a step in its table;
  its authors' code keeps the one before, and takes implicit steps in mu.
- **DRAGO b = ...** is Algorithm 1 to the letter, "Alg. 2" the paper's second listing, whose
  tables are older. On text n/d counts the coefficients of all classes, as in the paper. "DRAGO
  auto" is this library's default, with no step size to choose. Its certificates are not in its
  time, nor are the evaluations of the others. The figures of block sizes start as if from long
  ago (`start="stationary"`): with the paper's A_0 = 0 the smallest blocks diverge for mu < 1,
  whatever the step size.
- **Rates.** The sweeps of iterations a decade run from the stationary start too, A_0/a_1 =
  1/alpha, which is Algorithm 1 with A_0 > 0 and the exact first weights. With A_0 = 0 the first
  point is w_1 = -v/mu and the proximal weight of the last point is negative for a while, so that
  for a small mu the first iterations decide, not the rate. The comparison of methods by nu shows
  both starts.
- **Step sizes** are chosen by the paper's rule (`drago.tune`): its grid, two orders of magnitude
  lower for acsincome. Three seeds and 50 passes where that is affordable, fewer where a pass
  takes long (b = 1, b = 16 and Prospect on the larger sets): see `tunings/`. The time that this
  takes is not in the curves.
- **Suboptimality** is that of each method's own points, not of the best one so far.
- **Ends.** A run ends at 1e-10, or when it has filled both axes of its figure, or at the hard
  limit of time; a cross in the figures marks the last.
- **Languages.** Here all methods are compiled or vectorised and share one dual oracle. The
  paper's were PyTorch and Numba. Wall times compare methods within one table, not with the
  paper's seconds.
- **Not implemented**: BROO (Carmon and Hausler) and Minimax-APPA of the paper's tables, and the
  reformulation of Wasserstein DRO. Their rows of the tables are not tested here."""


def write_report(results: Results, out: Path, redraw: bool) -> str:
    """Draw the figures, write the report, and return its tables of claims."""
    names = draw_all(results, out / "figures", redraw=redraw)
    shown = {name: words for name, words in CAPTIONS.items() if name in names}
    tables = claims_tables(results)
    parts = [
        f"# The paper's claims, measured ({results.plan.size} size)",
        _how(results),
        tables,
        "## How to read it",
        NOTES,
        "## The optima",
        _optima(results),
        "## Two seeds",
        _seeds(results),
        "## Ends of runs",
        _ends(results),
        "## Step sizes",
        _steps(results),
        "## Figures",
        *(f"{words}\n\n![{name}](figures/{name}.png)" for name, words in shown.items()),
    ]
    (out / "report.md").write_text("\n\n".join(parts) + "\n")
    return tables


def claims_tables(results: Results) -> str:
    """Both tables: the paper's claims, and this library's additions."""
    claims = all_claims(results)
    counts = Counter(claim.verdict for claim in claims)
    total = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return "\n\n".join(
        [
            "## The claims of the paper",
            f"{len(claims)} claims: {total}. {SEVERAL}",
            _claims_table(claims),
            "## What this library adds",
            f"One factor at a time: oracle calls and seconds to {TARGET:g} without it, by those "
            "with it (> or <: only one of the two got there within the limits). "
            f"{RULE}.",
            _improvements_table(results),
            "## Against a full-batch method",
            _full_batch(results),
        ]
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def named(spec: Any) -> str:
    """A problem in words."""
    kind = "CVaR" if spec.uncertainty == "cvar" else "chi2 ball"
    return f"{spec.data} ({kind}, mu = {spec.mu:g}, nu = {spec.nu:g})"


def _claims_table(claims: list[Claim]) -> str:
    rows = [
        [str(k), claim.text, claim.source, claim.measured, claim.rule, f"**{claim.verdict}**"]
        for k, claim in enumerate(claims, 1)
    ]
    head = ["", "claim", "where", "measured here", "counts as confirmed if", "verdict"]
    return table(head, rows)


def _improvements_table(results: Results) -> str:
    specs = list(results.plan.ablation)
    heads = [f"{spec.data}, mu = {spec.mu:g}" for spec in specs]
    rows = []
    for change in changes():
        sides, cells = [], []
        for spec in specs:
            words = []
            for axis in ("calls", "seconds"):
                found = compare(results, spec, change, axis)
                mark = "" if found.exact else "> " if np.isfinite(found.better) else "< "
                word = f"{mark}{found.ratio:.2g}"
                if not np.isfinite(found.ratio):
                    word = "neither" if np.isnan(found.ratio) else "only with it"
                words.append(word)
            sides.append(found.side)
            same = words[0] == words[1] and not words[0][-1].isdigit()
            cells.append(words[0] if same else f"calls {words[0]}, seconds {words[1]}")
        if change.name == "automatic step":
            cells = [f"{cell}{_tuning_cost(results, spec)}" for cell, spec in zip(cells, specs)]
        rows.append([change.name, change.what, *cells, f"**{summary(sides)}**"])
    return table(["addition", "the rest", *heads, "verdict"], rows)


def _tuning_cost(results: Results, spec: Any) -> str:
    runs = results.runs(spec, "metric")
    taken = runs[0].tuning_seconds
    own = results.reach(spec, "automatic", TARGET)
    cost = f"the choice of the other's step took {number(taken)} s"
    return f" ({cost}; its own run got there {after(own)})"


def _full_batch(results: Results) -> str:
    plan = results.plan
    specs = [*plan.regression, *plan.text]
    papers = ("drago-1", "drago-16", "drago-64", "drago-n/d")
    rows = []
    for spec in specs:
        best = min((results.reach(spec, name, 1e-6), name) for name in papers)
        cells = [results.reach(spec, name, 1e-6) for name in ("drago-auto", "lbfgs", "lsvrg")]
        name = METHODS[best[1]].label if np.isfinite(best[0]) else "none"
        title = f"{spec.title}, nu = {spec.nu:g}"
        rows.append([title, f"{number(best[0])} ({name})", *map(number, cells)])
    head = ["seconds to 1e-6", "the paper's DRAGO, best b", "DRAGO auto", "L-BFGS", "LSVRG"]
    return (
        "The paper compares with stochastic methods only. L-BFGS on the exact objective, which it "
        "uses to find the optimum, in the same race:\n\n" + table(head, rows)
    )


def _how(results: Results) -> str:
    effort = results.effort
    return (
        f"Written by `python benchmarks/paper --size {results.plan.size}` with drago "
        f"{drago.__version__}, NumPy {np.__version__}, Python {platform.python_version()} on "
        f"{platform.machine()} with {os.cpu_count()} cores, one thread a run. "
        f"{effort['jobs']} jobs, of which {effort['computed']} were computed in the last call, in "
        f"{effort['seconds']:.0f} s on {max(effort['workers'], 1)} process(es); all calls together "
        f"took {effort['total']:.0f} s."
    )


def _optima(results: Results) -> str:
    rows, largest, apart = [], 0.0, []
    for job, best in zip(results.plan.optima(), results.optima):
        largest = max(largest, best["rel_gap"])
        difference = "-"
        if best["cvxpy"] is not None:
            share = abs(best["cvxpy"] - best["value"]) / (best["reference"] - best["value"])
            apart.append(share)
            difference = f"{share:.1e}"
        name = f"{named(job.spec)}, n = {best['n']:,}"
        value, gap = f"{best['value']:.15g}", f"{best['rel_gap']:.1e}"
        rows.append([name, value, gap, difference, best["cvxpy_status"]])
    ok = "all" if largest <= TOLERANCE else "NOT all"
    words = f"The largest certified relative gap is {largest:.1e}: {ok} are certified to "
    words += f"{TOLERANCE:g}. "
    if apart:
        words += (
            f"{len(apart)} were solved by cvxpy and Clarabel as well, from a model that shares no "
            f"code with the library; by P(w_0) - P* they differ by at most {max(apart):.1e}."
        )
    head = ["problem", "P*", "certified gap", "difference to cvxpy", "status of cvxpy"]
    return f"{words}\n\n{table(head, rows)}"


def _seeds(results: Results) -> str:
    found = seeds_agree(results)
    if not found:
        return "No method reached 1e-6 with two seeds."
    factors = np.array([factor for _, factor in found])
    run, worst = max(found, key=lambda pair: pair[1])
    return (
        f"Calls to 1e-6 with two seeds, the larger by the smaller, over {len(found)} pairs: median "
        f"{np.median(factors):.2f}, nine tenths below {np.quantile(factors, 0.9):.2f}, largest "
        f"{worst:.2f} ({METHODS[run.method].label}, {named(run.spec)})."
    )


def _ends(results: Results) -> str:
    runs = results.all_runs()
    counts = Counter(run.end for run in runs)
    words = {
        "target": "reached 1e-10",
        "filled": "filled both axes of their figure",
        "limit": "ended at the hard limit of time",
        "diverged": "diverged",
        "stopped": "gave up by themselves",
        "no step size": "had no step size on the grid that does not diverge",
    }
    text = "; ".join(f"{counts[end]} {what}" for end, what in words.items() if counts[end])
    rows = []
    for run in runs:
        if run.end in ("limit", "diverged", "stopped", "no step size") and run.seed == 0:
            last = (run.calls[-1] / run.n, run.seconds[-1], run.suboptimality[-1])
            numbers = [number(float(value)) for value in last]
            rows.append([named(run.spec), METHODS[run.method].label, words[run.end], *numbers])
    head = ["problem", "method (first seed)", "end", "calls by n", "seconds", "suboptimality"]
    return f"Of {len(runs)} runs: {text}.\n\n{table(head, rows) if rows else ''}"


def _steps(results: Results) -> str:
    rows = []
    for job, found in results.tunings:
        step = "none" if found["step_size"] is None else f"{found['step_size']:g}"
        effort = f"{found['seeds']} x {found['passes']}"
        name = METHODS[found["method"]].label
        rows.append([named(job.spec), name, step, effort, f"{found['seconds']:.1f}"])
    return table(["problem", "method", "step size", "seeds x passes", "seconds"], rows)


# --------------------------------------------------------------------------------- docs


def write_docs(results: Results, docs: Path) -> None:
    """The page for someone who has not read the paper, with its figures."""
    from story import page

    draw_all(results, docs / "paper", suffixes=("png",), dpi=110)
    (docs / "paper.md").write_text(page(results))
