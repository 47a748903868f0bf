"""The docs page: the paper's story for someone who has not read it, told by the results."""

from __future__ import annotations

from collections import Counter

from claims import Claim, all_claims
from report import CAPTIONS, NOTES, SEVERAL, claims_tables
from store import Results

_INTRODUCTION = """\
# The paper, reproduced

*This page is written by `make paper-docs` from the results in `results/paper`. No number on it
was typed by hand.*

A model that is good on average can be bad for some. Distributionally robust learning fits it for
a mean in which an adversary has moved weight to the rows with large losses. The adversary's
weights `q` stay in an *uncertainty set* Q, and every move away from the given weights `p` costs a
penalty, with a price nu:

    min over w   max over q in Q   sum_i q_i loss_i(w) - nu D(q || p) + (mu/2) ||w||^2

A large nu keeps q near p: plain learning. As nu falls, q goes to the edge of the set, the model
gets more robust, and the problem gets harder: a small change of w can make q jump.

DRAGO (Mehta, Diakonikolas and Harchaoui, NeurIPS 2024) solves this with a few rows at a time. It
keeps a table of the losses and gradients it saw last, replaces one block of b rows in turn,
corrects both the step of w and that of q by a random block, and pays O(n) for the weights in each
step. Its authors prove that the error falls by a fixed factor an iteration for every nu > 0, and
show experiments. Here every one of their claims that could be measured is set beside what this
library measures."""

# Sections: a title, the figures, words about what one sees, the sources of the claims that belong.
_SECTIONS: list[tuple[str, tuple[str, ...], str, tuple[str, ...]]] = [
    (
        "The adversary",
        ("uncertainty",),
        "With three rows the weights q are a point in a triangle. The coloured set is what the "
        "adversary may choose from, the line is the way of its best choice as nu falls.",
        ("Proposition on kappa_Q",),
    ),
    (
        "Six regression problems",
        ("regression_calls", "regression_seconds"),
        "How far from the optimum, relative to the start, after how much work. One *oracle call* "
        "is the loss and the gradient of one row. Calls do not depend on the machine; seconds "
        "tell the rest, because DRAGO with small blocks pays O(n) for few rows.",
        ("Regression with Large Block Sizes", "Introduction"),
    ),
    (
        "Text, and a falling price",
        ("text",),
        "Six emotions from 45 features of each text. From left to right nu falls and the problem "
        "gets harder.",
        ("Text Classification Under Ill-Conditioning",),
    ),
    (
        "Another set",
        ("chi2_calls", "chi2_seconds"),
        "The same with a ball around p. LSVRG and Prospect are made for other sets and are not "
        "here.",
        ("Sensitivity to Uncertainty Set Choice",),
    ),
    (
        "How large a block",
        ("batch_calls", "batch_seconds"),
        "",
        ("Sensitivity to Batch Size",),
    ),
    (
        "What the theory predicts",
        ("rates", "cost"),
        "The theorem bounds the iterations by n/b + kappa_Q L/mu + (n/b) sqrt(n G^2/(mu nu)), "
        "times a constant and the logarithm of the accuracy. The sweeps run from the stationary "
        "start, A_0 > 0 (see the fine print): from A_0 = 0 the first iterations are wild where mu "
        "is small, and hide the rate.",
        (
            "Theorem",
            "Theorem; Conclusion",
            "Introduction; table of complexities",
            "The DRAGO Algorithm, Computational Complexity",
        ),
    ),
]


def page(results: Results) -> str:
    """The page as Markdown."""
    claims = all_claims(results)
    counts = Counter(claim.verdict for claim in claims)
    total = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    parts = [_INTRODUCTION]
    if results.plan.size != "full":
        parts.append(f"**These are the results of the {results.plan.size} size only.**")
    parts.append(f"In short, of {len(claims)} claims: {total}.")
    parts.append(f"Below each claim stands what counts as confirmed. {SEVERAL}")
    for title, figures, words, sources in _SECTIONS:
        parts.append(f"## {title}")
        parts += [_figure(name) for name in figures]
        parts.append(words)
        parts += [_told(claim) for claim in claims if claim.source in sources]
    own = claims_tables(results).split("## What this library adds")[1]
    parts += [
        "## What this library adds",
        _figure("ablation"),
        own.strip(),
        "## The fine print",
        NOTES,
        "## Run it yourself",
        "With the data sets in the folder `DRAGO_DATA_DIR`: `make paper-quick` takes minutes, "
        "`make paper` much longer; it goes on where it was stopped. Both end "
        "with the tables of claims and write figures, curves (Parquet) and `report.md`. The folder "
        "`benchmarks/paper/benchopt` holds the same methods as a benchopt benchmark.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figure(name: str) -> str:
    return f"![{CAPTIONS[name]}](paper/{name}.png)\n\n*{CAPTIONS[name]}*"


def _told(claim: Claim) -> str:
    return (
        f"> {claim.text}\n\n{claim.measured}\n\n*Counts as confirmed if {claim.rule}.* "
        f"**{claim.verdict.capitalize()}.**"
    )
