"""What an audit tries on the training rows of a fold, and how a recommended one is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from drago.estimators import DROClassifier, DROClassifierCV, DRORegressor, DRORegressorCV
from drago.estimators.columns import Column, Columns, is_frame
from drago.estimators.group_finder import GroupFinder
from drago.scorers import row_losses
from drago.terms.uncertainty import CVaR

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

MEAN, ROBUST, FOUND = "mean fit", "robust fit", "mean fit + found groups"
INTERACTIONS, REWEIGHTED, TREES = "mean fit + group interactions", "reweighted", "boosted trees"
# What a recommended model may lose more in the mean than the mean fit, relative to that.
CAP = 0.02
ABOUT = {
    MEAN: "the ordinary fit: it minimises the mean loss; l2_reg is chosen by cross-validation",
    ROBUST: "the best robust fit, by cross-validation, of those whose mean loss is at most "
    f"{CAP:.0%} above the mean fit's",
    FOUND: "the mean fit with more features: groups that a small tree finds",
    INTERACTIONS: "the mean fit with coefficients of its own for each group; it needs the group of "
    "every new row",
    REWEIGHTED: "the mean fit with weights that make all groups count the same",
    TREES: "gradient-boosted trees of scikit-learn",
}
"""What is tried, in words."""
# Folds of the choice within a fold.
_INNER = 3
_TREES = {"max_iter": 100, "max_leaf_nodes": 15}


def as_words(frame: Any) -> Array:
    """Columns of words as strings, with None for what is missing, as an encoder takes them."""
    return np.column_stack(
        [Column(str(k), "words").read(frame.iloc[:, k]) for k in range(frame.shape[1])]
    )


def preparation(X: Any, columns: Columns) -> tuple[Any, str]:
    """Numbers scaled, words as 0 and 1, missing values filled; and the same in words of Python."""
    fill = SimpleImputer(strategy="median", add_indicator=True)
    filled = "make_pipeline(SimpleImputer(strategy='median', add_indicator=True), StandardScaler())"
    if not is_frame(X):
        if any(column.has_missing for column in columns.all):
            return make_pipeline(fill, StandardScaler()), filled
        return StandardScaler(), "StandardScaler()"
    named = all(isinstance(name, str) for name in X.columns)
    places = [X.columns[j] if named else j for j in range(X.shape[1])]
    words = [place for place, column in zip(places, columns.all) if column.kind == "words"]
    numbers = [place for place in places if place not in words]
    encode: Any = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    encoded = "OneHotEncoder(handle_unknown='infrequent_if_exist', min_frequency=5)"
    if any(not _are_strings(X.iloc[:, places.index(place)]) for place in words):
        encode = make_pipeline(FunctionTransformer(as_words), encode)
        encoded = f"make_pipeline(FunctionTransformer(as_words), {encoded})"
    parts, lines = [], []
    if numbers:
        parts.append((make_pipeline(fill, StandardScaler()), numbers))
        lines.append(f"    ({filled}, {numbers}),")
    if words:
        parts.append((encode, words))
        lines.append(f"    ({encoded}, {words}),")
    made = make_column_transformer(*parts, sparse_threshold=0.0)
    whole = ["make_column_transformer(", *lines, "    sparse_threshold=0.0,", ")"]
    return made, "\n".join(whole)


def _are_strings(column: Any) -> bool:
    """Whether an encoder takes it as it is: a category, or nothing but strings."""
    if str(column.dtype) == "category":
        return not column.isna().any()
    return all(isinstance(value, str) for value in np.asarray(column, dtype=object))


def rows_of(X: Any, index: Array) -> Any:
    """Some rows of an array or a frame."""
    return X.iloc[index] if is_frame(X) else X[index]


@dataclass(frozen=True)
class Task:
    """Data, and what is to be done with it."""

    X: Any
    y: Array
    groups: Array | None
    weight: Vector
    classifies: bool
    prepare: Any
    seed: int

    @property
    def names(self) -> list[str]:
        """What is tried."""
        own = [] if self.groups is None else [INTERACTIONS, REWEIGHTED]
        return [MEAN, ROBUST, FOUND, *own, TREES]

    def taken(self, index: Array) -> Task:
        """Some of the rows."""
        return replace(
            self,
            X=rows_of(self.X, index),
            y=self.y[index],
            groups=None if self.groups is None else self.groups[index],
            weight=self.weight[index],
        )

    def plain(self, *given: Any, **settings: Any) -> Any:
        return (DROClassifier if self.classifies else DRORegressor)(*given, **settings)

    def trees(self) -> Any:
        kind = HistGradientBoostingClassifier if self.classifies else HistGradientBoostingRegressor
        return kind(**_TREES, random_state=self.seed)

    def chosen(self, X: Any, rows: Array, **settings: Any) -> Any:
        """The choice among robust fits under the cap, on prepared rows."""
        kind = DROClassifierCV if self.classifies else DRORegressorCV
        groups = None if self.groups is None else self.groups[rows]
        model = kind(cv=_INNER, max_mean_loss=1.0 + CAP, random_state=self.seed, **settings)
        return model.fit(X, self.y[rows], sample_weight=self.weight[rows], groups=groups)

    def balanced(self, rows: Array) -> Vector:
        """Weights that make all groups count alike."""
        assert self.groups is not None
        codes = np.unique(self.groups[rows], return_inverse=True)[1].reshape(-1)
        mass = np.bincount(codes, weights=self.weight[rows])
        return self.weight[rows] / mass[codes]

    def crossed(self, X: Matrix, rows: Array) -> Matrix:
        """Features, groups, and their products."""
        assert self.groups is not None
        labels = np.unique(self.groups)[1:]
        own = [(self.groups[rows] == label).astype(np.float64)[:, None] for label in labels]
        return np.hstack([X, *own, *(X * each for each in own)])

    def judge_fold(self, train: Array, test: Array) -> dict[str, Any]:
        """Losses of each method on the test rows, and groups found on the training rows."""
        prepare = self.prepare_on(train)
        here, there = (
            np.asarray(prepare.transform(rows_of(self.X, rows)), dtype=np.float64)
            for rows in (train, test)
        )
        y, weight = self.y[train], self.weight[train]
        robust = self.chosen(here, train)
        reg = robust.cv_results_["l2_reg"][robust.reference_index_]
        finder = GroupFinder(
            task="classification" if self.classifies else "regression", random_state=self.seed
        ).fit(rows_of(self.X, train), y)
        found = [finder.transform(rows_of(self.X, rows)) for rows in (train, test)]

        def mean(X: Any, weights: Vector = weight) -> Any:
            return self.plain(CVaR(1.0), l2_reg=reg).fit(X, y, sample_weight=weights)

        models: dict[str, tuple[Any, Any]] = {
            MEAN: (mean(here), there),
            ROBUST: (robust, there),
            FOUND: (mean(np.hstack([here, found[0]])), np.hstack([there, found[1]])),
        }
        if self.groups is not None:
            models[INTERACTIONS] = mean(self.crossed(here, train)), self.crossed(there, test)
            models[REWEIGHTED] = mean(here, self.balanced(train)), there
        models[TREES] = self.trees().fit(here, y, **self._weights(weight)), there
        losses = [row_losses(*models[name], self.y[test]) for name in self.names]
        proba = None
        if self.classifies:
            proba = [models[name][0].predict_proba(models[name][1]) for name in self.names]
        return {
            "rows": test,
            "losses": np.array(losses),
            "found": finder.found_.labels(self.X),
            "probabilities": proba,
        }

    @staticmethod
    def _weights(weight: Vector) -> dict[str, Vector]:
        """Weights for a fit; none where they are equal, as trees take long to bin weighted rows."""
        return {"sample_weight": weight} if np.ptp(weight) > 0 else {}

    def prepare_on(self, rows: Array) -> Any:
        from sklearn.base import clone

        return clone(self.prepare).fit(rows_of(self.X, rows))

    def made(self, name: str, params: dict[str, Any], reg: float) -> tuple[Any, dict[str, Any]]:
        """A pipeline for a method, and what its fit is given besides X and y."""
        last: Any = self.plain(CVaR(1.0), l2_reg=reg)
        given: dict[str, Any] = {**self._weights(self.weight)}
        if name == ROBUST:
            last = self.plain(
                params["uncertainty"],
                shift_cost=params["shift_cost"],
                l2_reg=params["l2_reg"],
                baseline=params["baseline"],
            )
            if params["uncertainty"].needs_groups:
                given["groups"] = self.groups
        elif name == REWEIGHTED:
            given["sample_weight"] = self.balanced(np.arange(self.y.shape[0]))
        elif name == TREES:
            last = self.trees()
        prepare = self.prepare
        if name == FOUND:
            task = "classification" if self.classifies else "regression"
            prepare = make_union(prepare, GroupFinder(task=task, random_state=self.seed))
        pipe = make_pipeline(prepare, last)
        step = pipe.steps[-1][0]
        return pipe, {f"{step}__{key}": value for key, value in given.items()}
