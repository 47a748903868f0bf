"""Estimators on Dask collections: fits on the workers, lazy predictions, scores, and samples.

A collection is an array or a frame of Dask's. What it is made of is computed by the current client,
or by threads of this process where there is none.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from drago._interrupts import interruptible
from drago._validation import shown
from drago.estimators.baseline import N_FOLDS, check_baseline, dummies, is_auto, judges_of
from drago.estimators.callbacks import FitTask
from drago.estimators.presets import own_baseline
from drago.estimators.sources import require_alone
from drago.loop.display import displayed
from drago.loop.messages import warn
from drago.problem import DROProblem
from drago.sources.cluster import ClusterSource
from drago.sources.numbers import folds_of
from drago.sources.source import SAMPLE_ROWS

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]


def is_dask(X: Any) -> bool:
    """Whether something is a collection of Dask's, or files that its workers read."""
    return isinstance(X, ClusterSource) or type(X).__module__.partition(".")[0] == "dask"


class Drawn(NamedTuple):
    """Rows of collections in memory, with their numbers; None for what was not given."""

    X: Any
    y: Any
    sample_weight: Any
    groups: Any
    numbers: npt.NDArray[np.int64]
    n_rows: int

    @property
    def is_whole(self) -> bool:
        return self.numbers.size == self.n_rows


class DaskSupport:
    """What an estimator does with Dask collections in place of arrays."""

    def __getstate__(self) -> Any:
        """A pickled model has no weights of rows that are on a cluster."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        if is_dask(state.get("dual_weights_")):
            result: Any = replace(state["result_"], dual_weights=np.empty(0))
            nothing = {"dual_weights_": np.empty(0), "baseline_": None, "result_": result}
            return {**state, **nothing}
        return state

    # ---------------------------------------------------------------------------- fitting

    @interruptible
    def _fit_dask(self: Any, X: Any, y: Any, **given: Any) -> None:
        """Solve the problem of collections and set the fitted attributes."""
        source = X if isinstance(X, ClusterSource) else None
        if source is not None:
            require_alone(X, y=y, **given)
            given = {name: getattr(X, name) for name in given}
            X, y = X.X, X.y
            if y is not None and not is_classifier(self):
                y = y.astype(float)
        with displayed(self.verbose):
            self._solve_dask(X, y, given, source)

    def _solve_dask(
        self: Any, X: Any, y: Any, given: dict[str, Any], source: ClusterSource | None
    ) -> None:
        began = time.perf_counter()
        self._require_simple()
        if y is None:
            raise ValueError("y is missing: give the target of each row of X.")
        before: Any = getattr(self, "classes_", None)
        if is_classifier(self):
            self.classes_ = _labels_of(y)
            if self.classes_.size < 2:
                raise ValueError(
                    f"{type(self).__name__} needs rows of at least two classes, but there is one "
                    f"class only: {self.classes_.tolist()[0]!r}."
                )
            self.class_weight_ = dict.fromkeys(self.classes_.tolist(), 1.0)
            y = _blockwise(self._encode, y)
        levels = self._levels()
        baseline = given.pop("baseline")
        if baseline is None:
            baseline = self._attainable_of(X, y, given)
        rows: dict[str, Any] = {"X": X, "y": y, **given}
        if source is not None:  # which knows the client, and how much memory there is
            rows = {"X": source._replace(**rows, baseline=None), "y": None}
        problem = DROProblem(
            **rows,
            loss=self._loss(),
            divergence=self.divergence,
            **levels,
            fit_intercept=self.fit_intercept,
            constraint=self.constraint,
            baseline=baseline,
        )
        self.n_features_in_ = problem.n_features
        self.__dict__.pop("feature_names_in_", None)
        self.__dict__.pop("source_columns_", None)
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.array([str(name) for name in X.columns], dtype=object)
        start = self._last_fit(problem.n_features)
        if is_classifier(self) and not (start and np.array_equal(before, self.classes_)):
            start = None
        if start is not None:
            start = start.coef, start.intercept if problem.fit_intercept else 0.0
        metadata = {**given, "baseline": None}

        def shapes(coef: Any, intercept: Any) -> dict[str, Any]:
            return self._shapes(coef, intercept, np.float64)

        task = FitTask(self, X, y, metadata, shapes)
        result = self._run(problem, task, time.perf_counter() - began, start)
        fitted = shapes(result.coef, result.intercept)
        weights = result.dual_weights
        self._keep(problem, result, weights, fitted, levels["uncertainty"], baseline, task)

    def _require_simple(self: Any) -> None:
        """Raise for what a fit on a cluster cannot do."""
        if hasattr(self, "cv"):
            plain = type(self).__name__.removesuffix("CV")
            raise ValueError(
                f"{type(self).__name__} does not take Dask collections: choose the levels on a "
                "sample that fits memory (X.partitions[:k].compute()), and fit "
                f"{plain}(**chosen.best_params_) on all rows."
            )
        if self.group_columns is not None:
            raise ValueError(
                f"group_columns={shown(self.group_columns)} are columns of a frame in memory; for "
                "Dask collections give groups= to fit."
            )
        if getattr(self, "class_weight", None) is not None:
            raise ValueError(
                f"class_weight={shown(self.class_weight)} does not go with Dask collections; give "
                "sample_weight= to fit."
            )
        if self.device is not None:
            raise ValueError(
                f"device={shown(self.device)} does not go with Dask collections, whose rows stay "
                "on the workers: leave device=None."
            )

    def _attainable_of(self: Any, X: Any, y: Any, given: dict[str, Any]) -> Any:
        """What a baseline model leaves on each row, lazily; it is fitted on a sample."""
        model = check_baseline(self.baseline, is_classifier(self)) or own_baseline(self.uncertainty)
        if model is None:
            return None
        sample = drawn(X, y, f"baseline={shown(model)} was fitted", self._seed(), **given)
        labels = self.classes_ if is_classifier(self) else None
        return losses_on_blocks(
            model, X, y, given["groups"], sample, self._loss(), self._seed(), labels
        )

    # ------------------------------------------------------------------------- predictions

    def _lazily(self: Any, X: Any, name: str) -> Any:
        """What a method of the model makes of each block: a Dask array."""
        check_is_fitted(self)
        X = X.X if isinstance(X, ClusterSource) else X
        bare = copy.copy(self)
        for each in ("dual_weights_", "baseline_", "result_", "history_", "skill_"):
            bare.__dict__.pop(each, None)
        found = np.asarray(getattr(bare, name)(_example(self)))
        return _blockwise(_Method(bare, name), X, more=found.shape[1:], dtype=found.dtype)

    def _score_dask(self: Any, X: Any, y: Any, sample_weight: Any) -> float:
        """Accuracy, or R^2."""
        if isinstance(X, ClusterSource):
            require_alone(X, y=y, sample_weight=sample_weight)
            X, y, sample_weight = X.X, X.y, X.sample_weight
        predicted = self.predict(X)
        y = _aligned_with(predicted, y)
        weight = 1.0 if sample_weight is None else _aligned_with(predicted, sample_weight)
        if is_classifier(self):
            right, total = _computed((weight * (predicted == y)).sum(), _total(weight, predicted))
            return float(right / total)
        total, first = _computed(_total(weight, predicted), (weight * y).sum())
        mean = first / total
        wrong, spread = _computed(
            (weight * (y - predicted) ** 2).sum(), (weight * (y - mean) ** 2).sum()
        )
        return float(1.0 - wrong / spread)


class _Method:
    """A method of a model as a function, which can be sent."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def __call__(self, block: Any) -> Any:
        return np.asarray(getattr(self.model, self.name)(block))


def _example(model: Any) -> Any:
    """A row that the model takes."""
    row = np.zeros((1, model.n_features_in_))
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return row
    return importlib.import_module("pandas").DataFrame(row, columns=names)


def _total(weight: Any, like: Any) -> Any:
    return weight.sum() if hasattr(weight, "sum") else (like == like).sum()


def _computed(*values: Any) -> tuple[Any, ...]:
    import dask

    return dask.compute(*values)


# ------------------------------------------------------------------------------------ blocks


def _blocks(values: Any) -> tuple[list[Any], list[float]]:
    """The blocks of a collection, and how many rows each has, NaN where that is not known."""
    if hasattr(values, "to_dask_array"):
        blocks = list(values.to_delayed())
        return blocks, [np.nan] * len(blocks)
    if values.ndim == 2 and len(values.chunks[1]) > 1:
        values = values.rechunk({1: -1})
    return values.to_delayed(optimize_graph=False).ravel().tolist(), list(values.chunks[0])


def _blockwise(function: Any, values: Any, more: Any = (), dtype: Any = np.float64) -> Any:
    """A Dask array of what a function makes of each block."""
    import dask.array as da
    from dask import delayed

    if not is_dask(values):
        return function(np.asarray(values))
    apply = delayed(_applied, pure=False)
    blocks, sizes = _blocks(values)
    pieces = [
        da.from_delayed(apply(_Held(function), block), (size, *more), dtype=dtype)
        for block, size in zip(blocks, sizes)
    ]
    return da.concatenate(pieces, allow_unknown_chunksizes=True)


class _Held:
    """A function that Dask does not look into."""

    def __init__(self, function: Any) -> None:
        self.function = function


def _applied(held: _Held, block: Any) -> Any:
    plain = block.to_numpy() if getattr(block, "ndim", 2) == 1 and hasattr(block, "iloc") else block
    return held.function(plain)


def _labels_of(y: Any) -> Array:
    """The distinct labels of a target."""
    if not is_dask(y):
        return np.unique(np.asarray(y))
    from dask import delayed

    unique = delayed(_unique, pure=False)
    found = [each for each in _computed(*(unique(block) for block in _blocks(y)[0])) if each.size]
    return np.unique(np.concatenate(found))


def _unique(block: Any) -> Array:
    return np.unique(np.asarray(block))


def _as_array(values: Any) -> Any:
    """A Dask array of a series; labels of any kind are objects."""
    if not hasattr(values, "to_dask_array"):
        return values
    kind = getattr(values.dtype, "kind", "O")
    return _blockwise(np.asarray, values, dtype=values.dtype if kind in "biuf" else object)


def _aligned_with(like: Any, values: Any) -> Any:
    """A vector in the blocks of another."""
    import dask.array as da

    if not is_dask(values):
        values = da.from_array(np.asarray(values), chunks=like.chunks[0])
    values = _as_array(values)
    values = values[:, 0] if values.ndim == 2 else values
    known = not np.isnan(sum(like.chunks[0]) + sum(values.chunks[0]))
    return values.rechunk(like.chunks) if known and values.chunks != like.chunks else values


# ------------------------------------------------------------------------------------ samples


def drawn(
    X: Any, y: Any, what: str, seed: int, sample_weight: Any = None, groups: Any = None
) -> Drawn:
    """A uniform sample of the rows of collections in memory, which is said."""
    from dask import delayed

    given = {"X": X, "y": y, "sample_weight": sample_weight, "groups": groups}
    count, take = delayed(len, pure=False), delayed(_taken, pure=False)
    found: dict[str, Any] = {}
    numbers = np.empty(0, dtype=np.int64)
    n = -1
    for name, values in given.items():
        if values is None:
            found[name] = None
            continue
        blocks, sizes = _blocks(values) if is_dask(values) else ([values], [len(values)])
        if np.isnan(sum(sizes)):
            sizes = list(_computed(*(count(block) for block in blocks)))
        ends = np.cumsum([0, *sizes]).astype(np.int64)
        if n < 0:
            n = int(ends[-1])
            numbers = np.arange(n)
            if n > SAMPLE_ROWS:
                chosen = np.random.default_rng(seed).choice(n, SAMPLE_ROWS, replace=False)
                numbers = np.sort(chosen)
        if int(ends[-1]) != n:
            raise ValueError(f"{name} must have {n} entries, as X has rows, but has {ends[-1]}.")
        wanted = [
            (block, numbers[(numbers >= a) & (numbers < b)] - a)
            for block, (a, b) in zip(blocks, itertools.pairwise(ends))
        ]
        pieces = _computed(*(take(block, index) for block, index in wanted if index.size))
        found[name] = _together(pieces)
    if numbers.size < n:
        warn(
            f"{what} on {numbers.size} of {n} rows, a uniform sample by random_state.", UserWarning
        )
    return Drawn(**found, numbers=numbers, n_rows=n)


def _taken(block: Any, index: Any) -> Any:
    return block.iloc[index] if hasattr(block, "iloc") else block[index]


def _together(pieces: Any) -> Any:
    if hasattr(pieces[0], "iloc"):
        return importlib.import_module("pandas").concat(pieces, ignore_index=True)
    return np.concatenate(pieces)


def losses_on_blocks(
    model: Any, X: Any, y: Any, groups: Any, sample: Drawn, loss: Any, seed: int, labels: Any
) -> Any:
    """The loss of each row under a model that was fitted on a sample of the rows of other folds.

    Folds are by a hash of the rows' numbers, as those of `losses_on_source`. A Dask array.
    """
    import dask.array as da
    from dask import delayed

    names: Any = None
    codes: Any = None
    if groups is not None and is_auto(model):
        names = _labels_of(groups)
        codes = np.searchsorted(names, np.asarray(sample.groups))
    fold = folds_of(sample.numbers, N_FOLDS, seed)
    splits = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(N_FOLDS)]
    weight = sample.sample_weight
    weight = np.ones(sample.numbers.size) if weight is None else np.asarray(weight, np.float64)
    known = np.asarray(sample.X, dtype=np.float64)
    known = known if names is None else dummies(known, codes, names.size)
    target = np.asarray(sample.y)
    _, judges = judges_of(model, known, target, loss, weight, splits, seed, labels)
    blocks, sizes = _blocks(X)
    if np.isnan(sum(sizes)):
        sizes = list(_computed(*(delayed(len)(block) for block in blocks)))
    ends = np.cumsum([0, *sizes]).astype(np.int64)
    columns = {"y": y, "groups": None if names is None else groups}
    aligned = {name: _cut_as(values, sizes) for name, values in columns.items()}
    judged = _Judged(judges, loss, seed, names)
    work = delayed(_judged, pure=False)
    return da.concatenate(
        [
            da.from_delayed(work(judged, block, own, of, int(start)), (int(size),), np.float64)
            for block, own, of, start, size in zip(
                blocks, aligned["y"], aligned["groups"], ends, sizes
            )
        ]
    )


def losses_of(model: Any, X: Any, y: Any) -> Any:
    """The losses of a fitted model on collections: a Dask array."""
    import dask.array as da
    from dask import delayed

    check_is_fitted(model)
    raw = model._lazily(X, "_raw_prediction")
    y = _aligned_with(raw[:, 0], y)
    work = delayed(_losses, pure=False)
    pieces = zip(
        raw.to_delayed(optimize_graph=False)[:, 0],
        y.to_delayed(optimize_graph=False).ravel(),
        raw.chunks[0],
    )
    return da.concatenate(
        [
            da.from_delayed(work(model._encode, model.loss_, a, b), (size,), np.float64)
            for a, b, size in pieces
        ],
        allow_unknown_chunksizes=True,
    )


def _losses(encode: Any, loss: Any, raw: Any, y: Any) -> Vector:
    return loss.evaluate(encode(np.asarray(y)), np.ascontiguousarray(raw, dtype=np.float64))[0]


def _cut_as(values: Any, sizes: Any) -> list[Any]:
    """The blocks of a vector, cut as others are; None of None."""
    import dask.array as da

    if values is None:
        return [None] * len(sizes)
    if not is_dask(values):
        values = da.from_array(np.asarray(values), chunks=(tuple(map(int, sizes)),))
    values = _as_array(values)
    if np.isnan(sum(values.chunks[0])):
        values = values.compute_chunk_sizes()
    return (
        values.rechunk((tuple(map(int, sizes)),)).to_delayed(optimize_graph=False).ravel().tolist()
    )


class _Judged(NamedTuple):
    """Models of folds, and what they are asked."""

    judges: Any
    loss: Any
    seed: int
    names: Any


def _judged(judged: Any, X: Any, y: Any, groups: Any, start: int) -> Vector:
    """The losses of a block."""
    judges, loss, seed, names = judged
    X = np.asarray(X, dtype=np.float64)
    if names is not None:
        X = dummies(X, np.searchsorted(names, np.asarray(groups)), names.size)
    out, y = np.empty(len(X)), np.asarray(y)
    own = folds_of(np.arange(start, start + len(X)), N_FOLDS, seed)
    for k in range(N_FOLDS):
        chosen = np.flatnonzero(own == k)
        if chosen.size:
            raw = np.ascontiguousarray(judges[k](X[chosen]), dtype=np.float64)
            out[chosen] = loss.evaluate(y[chosen], raw)[0]
    return out
