"""Rows of Parquet that do not fit memory: they are read in parts, as a source.

The pipeline is that of a source then. Holes of numbers get the median of the first rows, those of
words "missing"; words become features of 0 and 1, and all features are standardised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from drago.cli import columns, tables, work
from drago.cli.columns import MISSING, Asked, Plan
from drago.cli.out import Out
from drago.files import models
from drago.sources.batch import dense
from drago.sources.source import Source
from drago.sources.tables import parquet_dataset

# Rows that a plan is made of, and rows that a report is about.
HEAD, SAMPLE = 100_000, 100_000


def fit(
    out: Out,
    path: str,
    asked: Asked,
    task: str,
    told: work.Settings,
    memory_limit: str | None,
) -> tuple[Any, Plan, dict[str, Any]]:
    """A model of rows read in parts, the plan of its columns, and what replaces missing numbers."""
    with out.working(f"reading the first rows of {path}"):
        head = parquet_dataset(path)[0].head(HEAD).to_pandas()
        plan = columns.plan_of(head, asked)
        fills = {name: float(np.nanmedian(columns.numbers_of(head[name]))) for name in plan.numbers}
        fill: dict[str, Any] = {**fills, **dict.fromkeys(plan.words, MISSING)}
        there, _ = columns.with_target(head, plan)
        y = columns.labels_or_numbers(there[asked.target])
        labels = columns.classifies(y, task, asked.target)
    out.note(
        f"the rows do not fit memory and are read in parts: which columns are features, and what "
        f"replaces missing numbers (the median), is said by the first {len(head)} rows."
    )
    plan.tell(out)
    model = told.estimator(labels, bool(plan.groups))
    rows = work.source_of(path, plan, memory_limit, fill, asked.max_categories)
    with out.working("fitting", reads_rows=True):
        model.fit(rows)
    out.found["columns"] = plan.to_notes()
    return model, plan, {"fill": fill, "max_categories": asked.max_categories}


def is_of_source(model: Any) -> bool:
    """Whether a model was fitted on rows that were read in parts."""
    return not hasattr(model, "steps")


def source(
    model_path: str, plan: Plan, path: str, memory_limit: str | None, target: bool = True
) -> Source:
    """The rows of a file as the model of another one takes them."""
    notes = models.read(model_path)[1]
    if tables.kind_of(path) not in ("parquet", "folder"):
        raise ValueError(
            f"{path}: the model was fitted on Parquet that is read in parts, and takes Parquet."
        )
    if not target:
        plan = Plan(None, [], None, plan.numbers, plan.words)
    return work.source_of(path, plan, memory_limit, notes["fill"], notes["max_categories"])


def predict(
    out: Out,
    model_path: str,
    model: Any,
    plan: Plan,
    path: str,
    out_file: str,
    keep: list[str],
    memory_limit: str | None,
) -> int:
    """Write predictions batch by batch; returns how many."""
    if is_of_source(model):
        if keep or tables.out_kind(out_file) != "parquet":
            raise ValueError(
                "predictions of a model that was fitted on rows read in parts are written to "
                ".parquet, without other columns (--keep)."
            )
        rows = source(model_path, plan, path, memory_limit, target=False)
        with out.working("predicting", reads_rows=True):
            return model.predict_to(rows, out_file)

    unseen = work.Unseen()

    def parts() -> Iterator[pd.DataFrame]:
        for frame in tables.batches(path):
            yield work.predictions(model, frame, plan, keep, unseen)

    with out.working("predicting"):
        count = tables.write_parts(parts(), out_file)
    unseen.tell(out, model, plan)
    return count


def drawn(
    out: Out, model_path: str, model: Any, plan: Plan, path: str, memory_limit: str | None
) -> tuple[Any, Any, Any, Any]:
    """Some rows as features of the model, with their target, groups and weights."""
    rows = source(model_path, plan, path, memory_limit)
    n = parquet_dataset(path)[0].count_rows()
    wanted = np.zeros(n, dtype=bool)
    wanted[np.random.default_rng(0).choice(n, min(n, SAMPLE), replace=False)] = True
    if n > SAMPLE:
        out.note(f"{path} does not fit memory: {SAMPLE} of its {n} rows are drawn.")
    names = ("X", "y", "groups", "sample_weight")
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for batch in rows.batches(model.source_columns_, labels=is_classifier(model)):
        here, wanted = wanted[: len(batch.X)], wanted[len(batch.X) :]
        for name in names:
            values = getattr(batch, name)
            if values is not None:
                values = (
                    np.array(values.values)[values.codes] if hasattr(values, "codes") else values
                )
                parts[name].append((dense(values) if name == "X" else values)[here])
    X, y, groups, weight = (np.concatenate(part) if part else None for part in parts.values())
    return pd.DataFrame(X, columns=model.feature_names_in_), y, groups, weight


def sampled(path: str, out: Out) -> pd.DataFrame:
    """Some rows of files that do not fit memory, from all of their parts."""
    data = parquet_dataset(path)[0]
    n = data.count_rows()
    wanted = np.sort(np.random.default_rng(0).choice(n, min(n, SAMPLE), replace=False))
    if wanted.size < n:
        out.note(f"{path} does not fit memory: {wanted.size} of its {n} rows are drawn.")
    return data.take(wanted).to_pandas()
