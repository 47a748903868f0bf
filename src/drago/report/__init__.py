"""Reports to hand on: one HTML file about a model, or about an audit."""

from __future__ import annotations

from typing import Any

from drago._html import Safe, paragraph, text
from drago._interrupts import interruptible
from drago._validation import check_flag, shown
from drago.advice.audit import Audit
from drago.advice.methods import MEAN, ROBUST
from drago.advice.table import Comparison, legend
from drago.estimators.base import DROEstimator
from drago.plotting._models import unit_of
from drago.report import pictures, sections, words
from drago.report.facts import read, without_small_groups
from drago.report.folds import MEAN as MEAN_MODEL
from drago.report.folds import OWN, Refits, refit
from drago.report.page import document
from drago.report.privacy import LEAST, are_enough, without_rows

__all__ = ["audit_report", "html_report"]


@interruptible
def html_report(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    sample_weight: Any = None,
    audit: Any = None,
    rows: bool = True,
    title: str | None = None,
) -> str:
    """A report about a fitted model as one HTML file: whom it serves worst, and what that cost.

    Parameters
    ----------
    model : fitted estimator of this library, or a pipeline or a search that ends in one
    X : array, sparse matrix, frame or source
        The rows to report on. Held-out rows tell more than those of the fit; the report says which
        they are.
    y : array of shape (n,)
        None for a source, which has its own.
    groups : array of shape (n,), str or list of str, optional
        Labels, or names of columns of X. What is missing is a group of its own.
    sample_weight : array of shape (n,), optional
    audit : Audit, optional
        What `drago.audit` returned: its table takes the place of the comparison with a mean model.
    rows : bool
        False leaves out all row data: no row is named, and nothing is said of fewer than ten.
    title : str, optional

    Returns
    -------
    str
        A page without scripts that loads nothing from elsewhere.

    Notes
    -----
    The mean model is fitted here: on four fifths of the rows (at most 20,000 of them, drawn), and
    judged on the others, five times, as is a robust model with the settings of `model`; a baseline
    is estimated anew on each four fifths. Pictures are drawn as SVG with text, so matplotlib is not
    needed.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = X[:, 0] + rng.standard_t(3, size=100)
    >>> page = drago.html_report(drago.DRORegressor().fit(X, y), X, y, rows=False)
    >>> page.startswith("<!doctype html>"), "<script" in page
    (True, False)
    """
    check_flag("rows", rows)
    if audit is not None and not isinstance(audit, Audit):
        raise TypeError(f"audit must be what drago.audit returned, but is {shown(audit)}.")
    facts = read(model, X, y, groups, sample_weight)
    if not rows and not are_enough(facts.worst.nominal_weights, LEAST):
        return _withheld(facts.model, facts.n_rows, words.question(facts), title)
    name = "Who is served worst" if title is None else title
    unit = unit_of(facts.model)
    least = 0 if rows else LEAST
    facts = without_small_groups(facts, least)
    has_groups = facts.groups is not None
    parts: list[tuple[str, str, str]] = []
    refits: Refits | str = ""
    curve = ""
    if audit is None:
        refits = refit(facts)
        verdict = [words.verdict(facts, refits)]
        parts.append(("models", "Mean model and robust model", sections.models(facts, refits)))
    else:
        found, verdict, n_pooled = _of_audit(audit, rows)
        inner = _tried(audit, found) + _told(audit.notes) + sections.models(facts, "", own=True)
        parts.append(("models", "What was tried, and this model", inner))
        curve = sections.audit_curve(found, unit)
    if has_groups:
        inner = sections.groups(facts, refits)
        if audit is not None and audit.comparison.groups["group"]:
            inner += sections.audit_groups(found, audit.recommended, unit, n_pooled)
        parts.append(("groups", "Groups", inner))
    if isinstance(refits, Refits):
        curve = sections.curve(facts, refits)
        names, losses, weight = [MEAN_MODEL, OWN], refits.losses, refits.weight
    else:
        there = facts.weight > 0
        names, losses, weight = ["this model"], facts.worst.losses[None, there], facts.weight[there]
    if curve:
        parts.append(("trade-off", "Trade-off", curve))
    parts.append(("losses", "Losses", _spread(names, losses, weight, unit, least)))
    if facts.calibration is not None:
        classes = facts.model.classes_.tolist()
        inner = pictures.calibration(facts.calibration, len(classes) == 2, str(classes[-1]))
        parts.append(("calibration", "Calibration", sections.figures(inner)))
    parts.append(("weights", "Who carries the weight", sections.weights(facts, rows)))
    result = getattr(facts.model, "result_", None)
    parts.append(
        (
            "certificate",
            "The certificate",
            _told(words.certificate(result, _is_exact(result, rows))),
        )
    )
    if audit is not None:
        parts.append(("code", "Code", _code(audit)))
    parts.append(("settings", "Settings and versions", sections.settings(facts.model)))
    lead = (
        f'<p class="soft">{text(words.question(facts), None)}</p>{_verdict(verdict)}'
        f"{sections.key_numbers(facts)}<p>{text(words.purpose(facts), None)}</p>"
    )
    return document(name, lead, parts, _foot(rows))


def audit_report(audit: Any, *, title: str | None = None, rows: bool = True) -> str:
    """A report about an audit as one HTML file: what was tried, and what to use.

    Parameters
    ----------
    audit : Audit
        What `drago.audit` returned.
    title : str, optional
    rows : bool
        False leaves out all row data: nothing is said of fewer than ten rows.

    Returns
    -------
    str
        A page without scripts that loads nothing from elsewhere.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 1))
    >>> audit = drago.audit(X, X[:, 0] + rng.normal(size=60), time_budget=0, verbose=0)
    >>> "What was tried" in drago.report.audit_report(audit)
    True
    """
    check_flag("rows", rows)
    if not isinstance(audit, Audit):
        raise TypeError(f"audit must be what drago.audit returned, but is {shown(audit)}.")
    last = audit.model[-1]
    classifies = hasattr(last, "classes_")
    unit = "log loss (nats)" if classifies else "loss (half squared error)"
    has_groups = bool(audit.comparison.groups["group"])
    least = 0 if rows else LEAST
    whom = "groups" if has_groups else "parts of the data"
    question = (
        f"Which {whom} does a model of the mean serve worst, and would a robust model, or another "
        "one, serve them better?"
    )
    judged = audit.comparison.judged
    weight = judged.row_weight
    if not rows and not are_enough(weight, LEAST):
        return _withheld(last, weight.size, question, title)
    found, verdict, n_pooled = _of_audit(audit, rows)
    parts = [("models", "What was tried", _tried(audit, found))]
    if has_groups:
        inner = sections.audit_groups(found, audit.recommended, unit, n_pooled)
        parts.append(("groups", "Groups", inner))
    names = list(dict.fromkeys([MEAN, ROBUST, audit.recommended]))
    losses = judged.row_losses[[found.models.index(name) for name in names]]
    curve = sections.audit_curve(found, unit)
    if curve:
        parts.append(("trade-off", "Trade-off", curve))
    parts.append(("losses", "Losses", _spread(names, losses, weight, unit, least)))
    if isinstance(last, DROEstimator):
        result = getattr(last, "result_", None)
        inner = _told(words.certificate(result, _is_exact(result, rows)))
        parts.append(("certificate", "The certificate of the recommended model", inner))
    parts.append(("code", "Code", _code(audit)))
    inner = _told(audit.notes) + sections.settings(
        last, {"time of the audit": f"{audit.time:.0f} s"}
    )
    parts.append(("settings", "Notes, settings and versions", inner))
    lead = f'<p class="soft">{text(question, None)}</p>{_verdict(verdict)}'
    name = "What robustness would buy" if title is None else title
    return document(name, lead, parts, _foot(rows))


def _of_audit(audit: Audit, rows: bool) -> tuple[Comparison, list[str], int]:
    """The table of an audit, its verdict, and how many of its groups are shown as one."""
    return (audit.comparison, audit.verdict, 0) if rows else without_rows(audit)


def _tried(audit: Audit, found: Comparison) -> str:
    """The table of an audit, and what its lines and columns are."""
    return (
        sections.changes(found, plain=False, pick=audit.recommended)
        + sections.listed(audit.methods)
        + _told(legend(found)[1:])
    )


def _is_exact(result: Any, rows: bool) -> bool:
    """Whether the objective may be shown, which is a mean over the training rows of weight."""
    return rows or (result is not None and are_enough(result.dual_weights, LEAST))


def _spread(names: list[str], losses: Any, weight: Any, unit: str, least: int) -> str:
    return sections.figures(
        pictures.sorted_losses(names, losses, weight, unit, least),
        pictures.tail_risk(names, losses, weight, unit, least),
    )


def _verdict(lines: list[str]) -> str:
    """Sentences, and points where lines begin with a dash."""
    inner = ""
    for line in lines:
        if line.startswith("- "):
            inner += f"<ul><li>{text(line[2:], None)}</li></ul>"
        else:
            inner += f"<p>{text(line, None)}</p>"
    inner = inner.replace("</ul><ul>", "")
    return f'<div class="verdict" role="note" aria-label="Verdict">{inner}</div>'


def _told(lines: list[str]) -> Safe:
    return Safe("".join(paragraph(line) for line in lines))


def _code(audit: Audit) -> str:
    return (
        f"<p>How to make the recommended model without an audit:</p>"
        f'<pre tabindex="0" aria-label="Code"><code>{text(audit.code, None)}</code></pre>'
    )


def _foot(rows: bool) -> str:
    said = "" if rows else " Row data was left out: nothing here is about fewer than ten rows."
    return f"<p>Made by drago.{said}</p>"


def _withheld(model: Any, n_rows: int, question: str, title: str | None) -> str:
    """Of so few rows nothing can be said that is no row data."""
    why = (
        f"There are {n_rows} rows. With rows=False nothing is said of fewer than {LEAST}, or of "
        "rows of which one has more than a tenth of the weight, so this report has no figures of "
        "them."
    )
    result = getattr(model, "result_", None)
    parts = [
        ("certificate", "The certificate", _told(words.certificate(result, exact=False))),
        ("settings", "Settings and versions", sections.settings(model)),
    ]
    name = "Who is served worst" if title is None else title
    lead = f'<p class="soft">{text(question, None)}</p>{_verdict([why])}'
    return document(name, lead, parts, _foot(False))
