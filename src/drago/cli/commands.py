"""What the commands do and tell."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from drago.cli import columns, large, tables, work
from drago.cli.columns import Asked
from drago.cli.doctor import examine
from drago.cli.out import FAILED, FINE, UNCERTIFIED, Out
from drago.cli.work import Rows, Settings, last_of
from drago.files import models


def audit(
    out: Out,
    data: str,
    asked: Asked,
    task: str,
    report: str | None,
    *,
    title: str | None,
    rows: bool,
    time_budget: float,
    repeats: int,
    seed: int,
    memory_limit: str | None,
) -> None:
    """`drago audit`."""
    from drago.advice.audit import audit as audit_of

    if report is not None:
        _require_report(report)
    with out.working(f"reading {data}"):
        frame = _read(data, memory_limit, out)
        plan = columns.plan_of(frame, asked)
        given = Rows.of(frame, plan)
        labels = columns.classifies(given.y, task, asked.target)
    _tell_of(out, plan, given)
    with out.working("trying models"):
        found = audit_of(
            given.X,
            given.y,
            given.groups,
            given.weights,
            task="classification" if labels else "regression",
            n_repeats=repeats,
            time_budget=time_budget,
            random_state=seed,
        )
    for note in found.notes:
        out.note(note)
    _tell_audit(out, found)
    if report is not None:
        from drago.report import audit_report

        with out.working("writing the report"):
            page = audit_report(found, title=title, rows=rows)
            tables.write_text(page, report)
        out.found["report"] = report
        out.say(f"\nreport: {report}")
    out.end()


# The columns of its table that are printed; the report has the loss of the worst group too.
_AUDITED = ("mean_loss", "worst_group_excess", "found_group_excess", "tail_excess")


def _tell_audit(out: Out, found: Any) -> None:
    from drago.advice.table import NAMES, legend

    table = found.comparison.table
    shown: dict[str, Any] = {"model": table["model"]}
    names = [name for name in _AUDITED if np.isfinite(table[name]).any()]
    for name in names:
        shown[NAMES[name]] = [_change(table, name, k) for k in range(len(table["model"]))]
    out.table(shown, "What models lose on rows that they were not fitted on")
    for line in legend(found.comparison, names):
        out.say(line)
    out.facts(found.methods, "What was tried")
    groups = found.comparison.groups_to_frame()
    if len(groups):
        wide = groups.pivot(index=["group", "rows"], columns="model", values="loss")
        wide = wide[found.comparison.models].reset_index()
        wide = wide.sort_values(found.comparison.reference, ascending=False)
        out.table({name: wide[name].tolist() for name in wide.columns}, "Mean loss by group")
    out.say("\n" + "\n".join(found.verdict))
    out.say(f"\nIn Python, the recommended model is\n\n{found.code}")
    out.found.update(
        recommended=found.recommended,
        verdict=found.verdict,
        models=found.comparison.to_frame().to_dict("records"),
        groups=groups.to_dict("records"),
        code=found.code,
        seconds=found.time,
    )


def _change(table: dict[str, Any], name: str, k: int) -> str:
    low, high = table[f"{name}_low"][k], table[f"{name}_high"][k]
    ends = "" if k == 0 else f" [{low:+.3g}, {high:+.3g}]"
    return f"{table[name][k]:.4g}{ends}"


def fit(
    out: Out,
    data: str,
    asked: Asked,
    task: str,
    path: str,
    told: Settings,
    *,
    include_weights: bool,
    memory_limit: str | None,
) -> None:
    """`drago fit`."""
    told.check()
    tables.require_place(path)
    began = time.perf_counter()
    notes: dict[str, Any] = {}
    if tables.is_large(data, memory_limit):
        model, plan, notes = large.fit(out, data, asked, task, told, memory_limit)
    else:
        with out.working(f"reading {data}"):
            frame = tables.read(data)
            plan = columns.plan_of(frame, asked)
            rows = Rows.of(frame, plan)
            labels = columns.classifies(rows.y, task, asked.target)
        _tell_of(out, plan, rows)
        estimator = told.estimator(labels, bool(plan.groups))
        model = columns.pipeline_of(plan, estimator, asked.max_categories)
        with out.working("fitting"):
            model.fit(rows.X, rows.y, **rows.given())
            report = last_of(model).worst_case_report(
                model[:-1].transform(rows.X),
                rows.y,
                groups=rows.groups,
                sample_weight=rows.weights,
                baseline=last_of(model).baseline_,
            )
        _tell_losses(out, report)
    notes["plan"] = plan.to_notes()
    models.write(model, path, include_weights=include_weights, notes=notes)
    _tell_fit(out, last_of(model), path, time.perf_counter() - began)


def _tell_fit(out: Out, last: Any, path: str, seconds: float) -> None:
    result = last.result_
    facts = {
        "task": "classification" if hasattr(last, "classes_") else "regression",
        "uncertainty": repr(last.uncertainty_),
        "shift_cost": last.shift_cost_,
        "l2_reg": last._levels()["l2_reg"],
        "features": last.n_features_in_,
        "status": str(result.status),
        "rel_gap": result.rel_gap,
        "tol": last.tol,
        "seconds": seconds,
        "model": path,
    }
    if hasattr(last, "classes_"):
        facts["classes"] = len(last.classes_)
    out.found.update(facts)
    words = {"seconds": "seconds, with reading and saving"}
    out.facts({words.get(name, name.replace("_", " ")): value for name, value in facts.items()},
              "The fit")  # fmt: skip
    is_fine = str(result.status) == "optimal"
    if is_fine:
        out.say(
            "\nCertified: no linear model with these settings can improve this fit by more than "
            f"{_share(result.rel_gap)} of its gain over a model without features."
        )
        out.say(f"saved: {path}")
    else:
        out.say(
            f"\nNot certified to {last.tol:g}: the proved gap is {result.rel_gap:.2g}. The model "
            f"is saved; the exit code is {UNCERTIFIED}."
        )
        out.say(f"saved: {path}")
    out.end(FINE if is_fine else UNCERTIFIED)


def _share(gap: float) -> str:
    """A share in percent, in digits that people read."""
    percent = 100.0 * gap
    if not percent >= 0.001:
        return "less than 0.001%"
    return f"{percent:.2g}%" if percent < 10 else f"{percent:.0f}%"


_COLUMNS = {
    "mass": "share of rows",
    "share": "share of worst-case weight",
    "low": "95% low",
    "high": "95% high",
}


def _tell_losses(out: Out, report: Any) -> None:
    losses = {
        "mean_loss": report.mean_loss,
        "tail_fraction": report.tail_fraction,
        "tail_loss": report.tail_loss,
        "worst_case_loss": report.worst_case_loss,
    }
    out.found["losses"] = losses
    out.facts(
        {
            "mean loss": report.mean_loss,
            f"worst {report.tail_fraction:.0%} of the rows": report.tail_loss,
            "under worst-case weights": report.worst_case_loss,
        },
        "On the rows it was fitted on",
    )
    if report.groups:
        out.found["groups"] = {name: column.tolist() for name, column in report.groups.items()}
        columns = {_COLUMNS.get(name, name): column for name, column in out.found["groups"].items()}
        out.table(columns, "Groups, the worst-off first")


def predict(
    out: Out, model: str, data: str, path: str, keep: list[str], memory_limit: str | None
) -> None:
    """`drago predict`."""
    tables.require_place(path)
    tables.out_kind(path)
    with out.working("reading the model"):
        fitted, plan = work.saved(model)
    if large.is_of_source(fitted) or tables.is_large(data, memory_limit):
        count = large.predict(out, model, fitted, plan, data, path, keep, memory_limit)
    else:
        with out.working(f"reading {data}"):
            frame = tables.read(data)
        with out.working("predicting"):
            unseen = work.Unseen()
            found = work.predictions(fitted, frame, plan, keep, unseen)
            tables.write(found, path)
        unseen.tell(out, fitted, plan)
        count = len(found)
    out.found.update(rows=count, out=path)
    out.say(f"{count} predictions: {path}")
    out.end()


# Losses that are at least 0, and so is every mean of them with a penalty.
_NONNEGATIVE = ("squared", "huber", "logistic", "multinomial")


def certify(out: Out, model: str, data: str, tol: float | None, memory_limit: str | None) -> None:
    """`drago certify`."""
    with out.working("reading the model"):
        fitted, plan = work.saved(model)
    goal = float(last_of(fitted).tol if tol is None else tol)
    if large.is_of_source(fitted):
        source = large.source(model, plan, data, memory_limit)
        with out.working("certifying", reads_rows=True):
            found, problem = work.certificate_on(fitted, source)
    else:
        with out.working(f"reading {data}"):
            rows = Rows.of(_read(data, memory_limit, out), plan)
        with out.working("certifying"):
            found, problem = work.certificate_of(fitted, rows)
    is_fine = bool(found.rel_gap <= goal)
    facts = {
        "rows": problem.n_samples,
        "primal": found.primal,
        "dual": found.dual,
        "gap": found.gap,
        "rel_gap": found.rel_gap,
        "tol": goal,
        "bound": found.bound,
    }
    out.found.update(facts, certified=is_fine)
    words = {"primal": "objective", "dual": "no model is below", "rel_gap": "relative gap"}
    told = {words.get(name, name): value for name, value in facts.items() if name != "bound"}
    if problem.baseline is None and problem.loss.name in _NONNEGATIVE:
        told["no model is below"] = max(float(found.dual), 0.0)
    out.facts(told)
    if is_fine:
        out.say(
            f"\nCertified: at most {_share(found.rel_gap)} of what there is to gain on these rows "
            "is missing."
        )
    else:
        out.say(
            f"\nNot certified to {goal:g}: on these rows another model may be better by up to "
            f"{_share(found.rel_gap)} of what there is to gain. On rows that the model was not "
            "fitted on this bound is rough: it does not mean that a better model exists. For its "
            "own rows, fit it again with a smaller --tol or a longer --time-limit."
        )
    out.end(FINE if is_fine else UNCERTIFIED)


def report(
    out: Out,
    model: str,
    data: str,
    path: str,
    *,
    title: str | None,
    rows: bool,
    memory_limit: str | None,
) -> None:
    """`drago report`."""
    _require_report(path)
    with out.working("reading the model"):
        fitted, plan = work.saved(model)
    with out.working(f"reading {data}"):
        if large.is_of_source(fitted):
            X, y, groups, weights = large.drawn(out, model, fitted, plan, data, memory_limit)
        else:
            given = Rows.of(_read(data, memory_limit, out), plan)
            X, y, groups, weights = given.X, given.y, given.groups, given.weights
    from drago.report import html_report

    with out.working("writing the report"):
        page = html_report(
            fitted, X, y, groups=groups, sample_weight=weights, rows=rows, title=title
        )
        tables.write_text(page, path)
    out.found.update(rows=len(y), out=path, bytes=len(page.encode()))
    out.say(f"report on {_count(len(y))}: {path}")
    out.end()


def doctor(out: Out) -> None:
    """`drago doctor`."""
    with out.working("looking around, and timing a solve"):
        found = examine()
    out.found.update(found)
    for title, facts in found.items():
        out.facts(facts, title)
    out.end(FINE if found["solve"]["status"] == "optimal" else FAILED)


# ---------------------------------------------------------------------------------- shared


def _read(path: str, memory_limit: str | None, out: Out) -> Any:
    """A frame of all rows, or of some where they are too many."""
    if not tables.is_large(path, memory_limit):
        return tables.read(path)
    return large.sampled(path, out)


def _tell_of(out: Out, plan: columns.Plan, rows: Rows) -> None:
    """What becomes of rows and columns."""
    if rows.dropped:
        out.note(f"{_count(rows.dropped)} without a target: left out.")
    plan.tell(out)
    out.found.update(rows=rows.y.size, columns=plan.to_notes())


def _require_report(path: str) -> None:
    if not path.lower().endswith((".html", ".htm")):
        raise ValueError(f"{path}: a report is HTML, give a name that ends with .html.")
    tables.require_place(path)


def _count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
