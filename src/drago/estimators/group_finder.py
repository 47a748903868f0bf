"""Found groups as features."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from drago._validation import check_option, refuse_masked
from drago.estimators.columns import is_frame
from drago.estimators.dask import is_dask
from drago.estimators.found_groups import find_groups
from drago.estimators.group_table import FoundGroups
from drago.sources.source import Source

Array = npt.NDArray[Any]

OUTPUTS = ("dummies", "labels")


class GroupFinder(TransformerMixin, BaseEstimator):
    """The groups that `find_groups` finds, as features for another model.

    A linear model with these features serves its worst groups and often everybody better: they are
    where a model without them falls short of what is attainable.

    Parameters
    ----------
    max_groups : int
        Most groups.
    min_size : int, optional
        Fewest rows of a group among those searched, which are half of all: 3% of them, and at
        least 20, where it is not given.
    model : estimator, optional
        The model that serves the groups badly; None is the ordinary linear fit.
    baseline : "auto", estimator or None
        What is attainable; see `find_groups`.
    output : {"dummies", "labels"}
        A column of 0 and 1 for each group but the largest, or one of their numbers.
    task : {"auto", "regression", "classification"}
        What y is; see `find_groups`.
    random_state : int, RandomState or None
        Draws folds and halves; None is 0.

    Attributes
    ----------
    found_ : FoundGroups
        The groups with their rules, judged on the other half of the rows.
    largest_ : int
        The group without a column: that of the most rows judged.
    n_features_in_ : int
    feature_names_in_ : array of str
        Of a frame.

    See Also
    --------
    find_groups

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn.pipeline import make_pipeline, make_union
    >>> from sklearn.preprocessing import FunctionTransformer
    >>> import drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(1000, 2))
    >>> y = 5.0 * (X[:, 0] > 0.75) + X[:, 1] + rng.normal(size=1000)
    >>> finder = drago.GroupFinder(max_groups=4)
    >>> features = make_union(FunctionTransformer(), finder)
    >>> with_groups = make_pipeline(features, LinearRegression()).fit(X, y)
    >>> plain = LinearRegression().fit(X, y)
    >>> with_groups.score(X, y) > plain.score(X, y)
    True
    """

    def __init__(
        self,
        max_groups: int = 8,
        min_size: int | None = None,
        model: Any = None,
        baseline: Any = "auto",
        output: str = "dummies",
        task: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.max_groups = max_groups
        self.min_size = min_size
        self.model = model
        self.baseline = baseline
        self.output = output
        self.task = task
        self.random_state = random_state

    found_: FoundGroups

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> GroupFinder:
        """Find the groups.

        Parameters
        ----------
        X : array or frame of shape (n, n_features)
            Or a source, of which a sample is searched (`find_groups`).
        y : array of shape (n,)
            That of a source is its own.
        sample_weight : array of shape (n,), optional
            Rows of weight 0 are left out.

        Returns
        -------
        self
        """
        check_option("output", self.output, OUTPUTS)
        if isinstance(X, Source):
            self._look_at(X)
        elif is_dask(X):
            self.n_features_in_ = int(X.shape[1])
            self.__dict__.pop("feature_names_in_", None)
            if hasattr(X, "columns"):
                self.feature_names_in_ = np.array([str(name) for name in X.columns], dtype=object)
        else:
            X = self._read(X, reset=True)
        found = find_groups(
            X,
            y,
            self.model,
            max_groups=self.max_groups,
            min_size=self.min_size,
            baseline=self.baseline,
            sample_weight=sample_weight,
            task=self.task,
            random_state=self.random_state,
        )
        self.found_ = found
        self.largest_ = int(np.argmax(found.table["rows"]))
        return self

    def transform(self, X: Any) -> Array:
        """The groups of rows.

        Parameters
        ----------
        X : array or frame of shape (n, n_features)

        Returns
        -------
        array of shape (n, n_groups - 1), or (n, 1) with the numbers of the groups
        """
        check_is_fitted(self)
        number = self.found_.labels(self._read(X, reset=False))[:, None]
        if self.output == "labels":
            return number
        return (number == self._kept()).astype(np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The rules of the columns, or "group".

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        array of str
        """
        check_is_fitted(self)
        if self.output == "labels":
            return np.array(["group"], dtype=object)
        return np.array([self.found_.rules[k] for k in self._kept()], dtype=object)

    def _look_at(self, source: Source) -> None:
        """The features of a source, as scikit-learn's checks remember them."""
        self.n_features_in_ = source.n_features
        names = source.feature_names
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _kept(self) -> Array:
        """The groups with a column."""
        return np.delete(np.arange(self.found_.n_groups), self.largest_)

    def _read(self, X: Any, *, reset: bool) -> Any:
        """X with scikit-learn's own checks of its shape and names; frames stay as they are."""
        refuse_masked("X", X)
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        words = not reset and self.found_.has_words
        return validate_data(
            self,
            X,
            reset=reset,
            dtype=None if words else np.float64,
            ensure_all_finite=False if words else "allow-nan",
        )
