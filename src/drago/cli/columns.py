"""What the columns of a table are for, and the pipeline that the command fits by default.

Numbers: a missing one gets the median, and a feature of its own marks it; then mean 0 and standard
deviation 1. Words: a missing one is the word "missing"; then a feature of 0 and 1 for each of the
most frequent words and one for all others. What is the same on all rows, holds dates, or seems to
name the rows is left out, and the command says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from drago._validation import shown
from drago.cli.out import Out
from drago.estimators.columns import Column
from drago.estimators.groups import cross_groups

Array = npt.NDArray[Any]

MISSING = "missing"
AS_TOLD = "as told"
# Features that the words of a column become, at most.
MAX_CATEGORIES = 50
# A column of words with more different ones than that share of the rows names them.
_NAMES = 0.5
# How alike names are where one may be meant for another, and how many are listed.
_CLOSE, _LISTED = 0.75, 20
# Numbers from which on the variance of a column may overflow.
_HUGE = 1e140


@dataclass(frozen=True)
class Plan:
    """The columns of a table by what they are for; saved with a model.

    Attributes
    ----------
    target, weights : str or None
    groups : list of str
    numbers, words : list of str
        The features.
    left_out : dict
        Other columns, and why.
    """

    target: str | None
    groups: list[str]
    weights: str | None
    numbers: list[str]
    words: list[str]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        return [*self.numbers, *self.words]

    def tell(self, out: Out) -> None:
        """Say what is left out, unless it was asked for."""
        for name, why in self.left_out.items():
            if why != AS_TOLD:
                out.note(f"column {name!r} is left out: {why}.")

    def to_notes(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_notes(cls, notes: dict[str, Any]) -> Plan:
        """The plan of a model file; anyone can write one."""
        lists = [notes["groups"], notes["numbers"], notes["words"]]
        names = [name for part in lists for name in part]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("the columns in the model file are no names; save the model anew.")
        return cls(**{key: notes[key] for key in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Asked:
    """What a user says of the columns."""

    target: str
    groups: list[str]
    weights: str | None
    drop: list[str]
    max_categories: int = MAX_CATEGORIES


def plan_of(frame: pd.DataFrame, asked: Asked) -> Plan:
    """What to do with the columns of a table."""
    target, groups, weights, drop = asked.target, asked.groups, asked.weights, asked.drop
    taken = [target, *groups, *([weights] if weights else [])]
    require_columns(frame, [*taken, *drop])
    if target in [*groups, weights, *drop]:
        raise ValueError(f"{target!r} is the target, and cannot be a group, a weight or dropped.")
    numbers: list[str] = []
    words: list[str] = []
    left_out = dict.fromkeys(drop, AS_TOLD)
    for name in frame.columns:
        if name in taken or name in left_out:
            continue
        values = frame[name]
        kind = getattr(values.dtype, "kind", "O")
        if values.isna().all():
            left_out[name] = "it is empty"
        elif kind in "mM":
            left_out[name] = "it holds dates or times; give days or hours as numbers to use it"
        elif kind == "c":
            left_out[name] = "it holds complex numbers"
        elif _is_number(values):
            constant = values.min() == values.max() and not values.isna().any()
            if constant and len(frame) > 1:
                left_out[name] = "it is the same on all rows"
            else:
                numbers.append(name)
        else:
            why = _not_words(values, asked.max_categories)
            if why is None:
                words.append(name)
            else:
                left_out[name] = why
    if not numbers and not words:
        why = "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
        raise ValueError(f"no column is left to be a feature ({why or 'there is no other'}).")
    return Plan(target, groups, weights, numbers, words, left_out)


def require_columns(frame: pd.DataFrame, names: list[str]) -> None:
    """Raise where a table has no column of a name."""
    for name in names:
        if name not in frame.columns:
            near = get_close_matches(name, frame.columns.tolist(), 1, cutoff=_CLOSE)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"there is no column {name!r}{meant}; the columns are {_listed(frame)}."
            )


def _listed(frame: pd.DataFrame) -> str:
    """The names of the columns, whole, up to 20 of them."""
    names = [repr(name) for name in frame.columns.tolist()]
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _is_number(values: pd.Series) -> bool:
    return getattr(values.dtype, "kind", "O") in "biuf" and not _is_category(values)


def _is_category(values: pd.Series) -> bool:
    return isinstance(values.dtype, pd.CategoricalDtype)


def _not_words(values: pd.Series, max_categories: int) -> str | None:
    """Why a column is no column of words; None where it is."""
    there = values.dropna()
    if not isinstance(there.iloc[0], (str, bool, int, float, np.generic)) and not _is_category(
        values
    ):
        return f"it holds {type(there.iloc[0]).__name__}, which is neither a number nor a word"
    try:
        count = there.nunique()
    except TypeError:
        return "it holds what is neither a number nor a word"
    if count == 1 and len(there) == len(values) and len(values) > 1:
        return "it is the same on all rows"
    if count > max_categories and count > _NAMES * len(there):
        return f"it has {count} different words on {len(there)} rows, and seems to name the rows"
    return None


# ------------------------------------------------------------------------------ values of rows


def features_of(frame: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """The features as the pipeline takes them: float64 with NaN, words with NaN."""
    missing = [name for name in plan.features if name not in frame.columns]
    if missing:
        raise ValueError(
            f"there is no column {missing[0]!r}, which the model needs"
            f"{'' if len(missing) == 1 else f' (nor {len(missing) - 1} others)'}; the columns are "
            f"{_listed(frame)}."
        )
    columns: dict[str, Any] = {name: numbers_of(frame[name]) for name in plan.numbers}
    columns.update({name: words_of(frame[name]) for name in plan.words})
    return pd.DataFrame(columns, index=frame.index)


def numbers_of(values: pd.Series) -> Array:
    """A column of numbers; words in it, and infinity, are an error that names the row."""
    if _is_number(values):
        found = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        read = pd.to_numeric(values.astype(object), errors="coerce")
        found = read.to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = np.isnan(found) & values.notna().to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"column {values.name!r} must hold numbers, but row {row} is "
                f"{shown(values.iloc[row])}: mend it, or leave the column out with --drop when "
                "the model is fitted."
            )
    infinite = np.isinf(found)
    if infinite.any():
        raise ValueError(
            f"column {values.name!r} is infinite on {int(infinite.sum())} rows, the first is row "
            f"{int(infinite.argmax())}: replace or remove them, or leave the column out with "
            "--drop."
        )
    largest = np.nanmax(np.abs(found), initial=0.0)
    if largest > _HUGE:
        raise ValueError(
            f"column {values.name!r} holds numbers as large as {largest:.3g}, whose squares are "
            "more than a computer holds: divide them, or leave the column out with --drop."
        )
    return found


def unseen_words(model: Any, X: pd.DataFrame, plan: Plan) -> dict[str, pd.Series]:
    """Columns with words that the fit has not seen, and these words."""
    if not plan.words:
        return {}
    found = {}
    for name, known in zip(plan.words, _encoder(model).categories_):
        words = X[name].fillna(MISSING)
        unseen = words[~words.isin(known.tolist())]
        if len(unseen):
            found[name] = unseen
    return found


def shares_rare_words(model: Any, name: str, plan: Plan) -> bool:
    """Whether the rarest words of a column share a feature, which unseen ones then get."""
    rare = getattr(_encoder(model), "infrequent_categories_", None)
    return rare is not None and rare[plan.words.index(name)] is not None


def _encoder(model: Any) -> Any:
    """What makes features of words, in the pipeline that is fitted here."""
    return model.named_steps["prepare"].named_transformers_["words"].named_steps["encode"]


def words_of(values: pd.Series) -> Array:
    """A column as str, with NaN for what is missing."""
    missing = values.isna().to_numpy()
    if isinstance(values.dtype, pd.StringDtype):
        out = values.to_numpy(dtype=object, na_value=np.nan)
    else:
        out = Column(str(values.name), "words").read(values)
    out[missing] = np.nan
    return out


def groups_of(frame: pd.DataFrame, plan: Plan) -> Array | None:
    """The group of each row; several columns are crossed."""
    if not plan.groups:
        return None
    require_columns(frame, plan.groups)
    columns = {}
    for name in plan.groups:
        words = words_of(frame[name])
        columns[name] = np.where(frame[name].isna().to_numpy(), MISSING, words).astype(str)
    if len(columns) == 1:
        return columns[plan.groups[0]]
    return cross_groups(columns)


def weights_of(frame: pd.DataFrame, plan: Plan) -> Array | None:
    """The weight of each row."""
    if plan.weights is None:
        return None
    require_columns(frame, [plan.weights])
    found = numbers_of(frame[plan.weights])
    if np.isnan(found).any():
        raise ValueError(
            f"column {plan.weights!r} has no weight on {int(np.isnan(found).sum())} rows: fill "
            "them, 0 leaves a row out."
        )
    return found


def with_target(frame: pd.DataFrame, plan: Plan) -> tuple[pd.DataFrame, int]:
    """The rows that have a target, and how many have none."""
    assert plan.target is not None
    require_columns(frame, [plan.target])
    there = frame[plan.target].notna()
    if not there.any():
        raise ValueError(f"the target {plan.target!r} is empty on all {len(frame)} rows.")
    return (frame if there.all() else frame[there]), int((~there).sum())


def labels_or_numbers(values: pd.Series) -> Array:
    """The target as it is: numbers, flags or words."""
    if _is_number(values):
        kind = values.dtype.kind
        return np.asarray(values, dtype={"b": bool, "f": np.float64}.get(kind, np.int64))
    return words_of(values).astype(str)


def classifies(y: Array, task: str, name: str) -> bool:
    """Whether the target holds classes; an error where it can hold neither these nor numbers."""
    from drago.estimators.found_groups import target_of

    if task != "regression" and y.dtype.kind in "U":
        count = np.unique(y).size
        if count > max(MAX_CATEGORIES, _NAMES * y.size):
            raise ValueError(
                f"the target {name!r} has {count} different words on {y.size} rows: is this the "
                "column that you mean? A classification needs several rows of each class."
            )
    if task == "regression" and y.dtype.kind == "U":
        raise ValueError(
            f"the target {name!r} holds words such as {shown(y[0].item())}, and a regression needs "
            "numbers: give --task classification."
        )
    return target_of(y, y.size, task)[2] is not None


# ------------------------------------------------------------------------------ the pipeline


def pipeline_of(plan: Plan, model: Any, max_categories: int = MAX_CATEGORIES) -> Any:
    """The default preparation of the features, and a model."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    parts = []
    if plan.numbers:
        fill = SimpleImputer(strategy="median", add_indicator=True)
        parts.append(
            ("numbers", Pipeline([("fill", fill), ("scale", StandardScaler())]), plan.numbers)
        )
    if plan.words:
        fill = SimpleImputer(strategy="constant", fill_value=MISSING)
        encode = OneHotEncoder(
            handle_unknown="infrequent_if_exist", max_categories=max_categories, dtype=np.float64
        )
        parts.append(("words", Pipeline([("fill", fill), ("encode", encode)]), plan.words))
    return Pipeline([("prepare", ColumnTransformer(parts)), ("model", model)])
