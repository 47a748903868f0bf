"""A recommended model as lines of Python that make it again."""

from __future__ import annotations

import re
from typing import Any

from drago.advice.methods import REWEIGHTED

_HOMES = {
    "as_words": "drago.advice.methods",
    "make_column_transformer": "sklearn.compose",
    "HistGradientBoostingClassifier": "sklearn.ensemble",
    "HistGradientBoostingRegressor": "sklearn.ensemble",
    "SimpleImputer": "sklearn.impute",
    "make_pipeline": "sklearn.pipeline",
    "make_union": "sklearn.pipeline",
    "FunctionTransformer": "sklearn.preprocessing",
    "OneHotEncoder": "sklearn.preprocessing",
    "StandardScaler": "sklearn.preprocessing",
}
_OWN = ("CVaR", "DROClassifier", "DRORegressor", "ESRM", "GroupFinder", "Grouped", "Simplex")


def code_of(name: str, model: Any, prepare: str, names: list[Any], weighted: bool) -> str:
    """The lines, from X, y and, where they were given, groups and sample_weight.

    Parameters
    ----------
    name : str
        The method's.
    model : pipeline
    prepare : str
        Its preparation of the features, in Python.
    names : list
        Columns of X that hold the groups; empty where these were given as labels.
    weighted : bool
        Whether weights were given.
    """
    first, last = model[0], model[-1]
    lines = [f"# {name}"]
    needs_groups = bool(getattr(getattr(last, "uncertainty", None), "needs_groups", False))
    if names:
        if needs_groups or name == REWEIGHTED:
            held = f"X[{names[0]!r}]" if len(names) == 1 else f"drago.cross_groups(X[{names!r}])"
            lines.append(f"groups = {held}")
        lines.append(f"X = X.drop(columns={names!r})")
    lines.append(f"prepare = {prepare}")
    if hasattr(first, "transformer_list"):
        lines.append(f"prepare = make_union(prepare, {_words(first.transformer_list[-1][1])})")
    lines.append(f"model = make_pipeline(prepare, {_words(last)})")
    given, step = [], model.steps[-1][0]
    if name == REWEIGHTED:
        own = "sample_weight" if weighted else "np.ones(len(groups))"
        lines.append(f"weight = np.asarray({own}, dtype=float)")
        lines.append("groups = np.asarray(groups)")
        lines.append("mass = {group: weight[groups == group].sum() for group in np.unique(groups)}")
        lines.append("weight /= [mass[group] for group in groups]")
        given.append(f"{step}__sample_weight=weight")
    elif weighted:
        given.append(f"{step}__sample_weight=sample_weight")
    if needs_groups:
        given.append(f"{step}__groups=groups")
    lines.append(f"model.fit({', '.join(['X', 'y', *given])})")
    return "\n".join([*_imports("\n".join(lines)), "", *lines])


def _words(estimator: Any) -> str:
    return " ".join(repr(estimator).split())


def _imports(text: str) -> list[str]:
    """What the lines need."""
    used = set(re.findall(r"\w+", text))
    lines = ["import numpy as np"] if "np" in used else []
    lines += ["import drago"] if "drago" in used else []
    homes: dict[str, list[str]] = {}
    for name, home in [*_HOMES.items(), *((name, "drago") for name in _OWN)]:
        if name in used:
            homes.setdefault(home, []).append(name)
    return lines + [
        f"from {home} import {', '.join(sorted(homes[home]))}" for home in sorted(homes)
    ]
