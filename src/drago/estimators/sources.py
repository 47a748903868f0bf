"""Estimators on sources: fits, predictions, scores and reports of rows that need not fit memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from drago._interrupts import interruptible
from drago._validation import shown
from drago.estimators.baseline import as_dense, check_baseline
from drago.estimators.callbacks import FitTask
from drago.estimators.presets import as_set, own_baseline
from drago.estimators.source_baseline import losses_on_source
from drago.loop.display import displayed
from drago.loop.messages import warn
from drago.problem import DROProblem
from drago.sources.batch import Batch, dense
from drago.sources.columns import arrow
from drago.sources.moments import Moments
from drago.sources.numbers import Sample
from drago.sources.source import SAMPLE_ROWS, Source

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Rows that are written to a file at once, at least.
_ROW_GROUP = 1 << 18


class Gathered(NamedTuple):
    """What a report needs of each row of a source."""

    losses: Vector
    y: Array
    groups: Array | None
    sample_weight: Vector | None
    baseline: Vector | None


class SourceSupport:
    """What an estimator does with a source in place of X and y."""

    # ---------------------------------------------------------------------------- fitting

    @interruptible
    def _fit_source(self: Any, source: Source, **given: Any) -> None:
        """Solve the problem of a source and set the fitted attributes."""
        with displayed(self.verbose):
            self._solve_source(source, given)

    def _solve_source(self: Any, source: Source, given: dict[str, Any]) -> None:
        began = time.perf_counter()
        self._require_own(source, given)
        before: Any = getattr(self, "classes_", None)
        if is_classifier(self):
            self.classes_ = self._classes_of(source)
            self.class_weight_ = dict.fromkeys(self.classes_.tolist(), 1.0)
        levels = self._levels()
        baseline = self._attainable_on(source)
        problem = DROProblem(
            source,
            loss=self._loss(),
            divergence=self.divergence,
            **levels,
            fit_intercept=self.fit_intercept,
            constraint=self.constraint,
            baseline=baseline,
        )
        names = source.feature_names
        self.n_features_in_ = problem.n_features
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.source_columns_ = source.known()
        start = self._last_fit(problem.n_features)
        if is_classifier(self) and not (start and np.array_equal(before, self.classes_)):
            start = None
        if start is not None and start.dual_weights.size != problem.n_samples:
            start = start.coef, start.intercept if problem.fit_intercept else 0.0
        dtype = source.coef_dtype

        def shapes(coef: Any, intercept: Any) -> dict[str, Any]:
            return self._shapes(*source.original(coef, intercept), dtype)

        metadata = dict.fromkeys(("sample_weight", "groups", "baseline"))
        task = FitTask(self, source, None, metadata, shapes)
        result = self._run(problem, task, time.perf_counter() - began, start)
        fitted = shapes(result.coef, result.intercept)
        kept = baseline if isinstance(baseline, np.ndarray) else None
        self._keep(problem, result, result.dual_weights, fitted, levels["uncertainty"], kept, task)

    def _attainable_on(self: Any, source: Source) -> Any:
        """What is subtracted from the losses of all rows; None is what the source has itself."""
        model = check_baseline(self.baseline, is_classifier(self)) or own_baseline(self.uncertainty)
        if model is None or "baseline" in source.names:
            return None
        classes = self.classes_ if is_classifier(self) else None
        found, sample = losses_on_source(
            model, source, self._loss(), seed=self._seed(), labels=classes
        )
        say_sampled(source, sample, f"baseline={shown(model)} was fitted")
        return found

    def _require_own(self: Any, source: Source, given: dict[str, Any]) -> None:
        """Raise for what a fit on a source cannot do."""
        require_alone(source, **given)
        if self.group_columns is not None:
            raise ValueError(
                f"group_columns={shown(self.group_columns)} are columns of a frame; for a source "
                "name groups= where it is made."
            )
        if getattr(self, "class_weight", None) is not None:
            raise ValueError(
                f"class_weight={shown(self.class_weight)} does not go with a source; give it "
                "sample_weight= of your own."
            )
        if self.device is not None:
            raise ValueError(
                f"device={shown(self.device)} does not go with {source!r}, whose rows are read on "
                "this machine: leave device=None, or give arrays or tensors that fit the device."
            )
        wanted = getattr(self, "uncertainty", None)  # none where it is chosen among candidates
        if wanted is not None and as_set(wanted).needs_groups and "groups" not in source.names:
            raise ValueError(
                f"uncertainty={shown(self.uncertainty)} needs to know the group of each row: name "
                "groups= where the source is made."
            )

    def _classes_of(self, source: Source) -> Array:
        classes = source.scanned(labels=True).classes
        assert classes is not None
        if classes.size < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least two classes with positive weight, "
                f"but there is one class only: {classes.tolist()[0]!r}."
            )
        return classes

    # ------------------------------------------------------------------------- predictions

    def _each(self: Any, source: Source, labels: bool | None) -> Iterator[tuple[Batch, Matrix]]:
        """The batches of a source with their raw predictions."""
        check_is_fitted(self)
        known = getattr(self, "source_columns_", None) or None
        coef = np.atleast_2d(self.coef_).T.astype(np.float64)
        for batch in source.batches(known, labels=labels):
            X = batch.X if hasattr(batch.X, "indptr") else dense(batch.X)
            if X.shape[1] != self.n_features_in_:
                raise ValueError(
                    f"{source!r} has {X.shape[1]} features, but {type(self).__name__} was fitted "
                    f"on {self.n_features_in_}."
                )
            yield batch, np.ascontiguousarray(X @ coef + self.intercept_)

    def _raw_of_source(self, source: Source) -> Matrix:
        """Raw predictions of all rows, in memory."""
        return np.concatenate([raw for _, raw in self._each(source, None)])

    def _score_source(self: Any, source: Source) -> float:
        """Accuracy, or R^2, by the weights of the source."""
        labels = is_classifier(self)
        right = total = 0.0
        moments, wrong = Moments(1), 0.0
        for batch, raw in self._each(source, labels):
            _require_target(source, batch)
            weight = np.ones(len(raw)) if batch.sample_weight is None else batch.sample_weight
            total += float(weight.sum())
            if labels:
                found = self._labels(raw) == _labels_of(batch.y)
                right += float(weight @ found)
            else:
                wrong += float(weight @ (batch.y - raw[:, 0]) ** 2)
                if weight.any():
                    moments.add(batch.y[:, None], weight)
        if labels:
            return right / total
        return 1.0 - wrong / (float(moments.settled(True)[1][0]) ** 2 * total)

    def _gather(self: Any, source: Source) -> Gathered:
        """The losses of all rows, with what a report says them by; in memory."""
        found: dict[str, list[Any]] = {name: [] for name in Gathered._fields}
        for batch, raw in self._each(source, is_classifier(self)):
            _require_target(source, batch)
            y = _labels_of(batch.y) if is_classifier(self) else batch.y
            found["y"].append(y)
            found["losses"].append(self.loss_.evaluate(self._encode(y), raw)[0])
            if batch.groups is not None:
                found["groups"].append(_labels_of(batch.groups))
            for name in ("sample_weight", "baseline"):
                if getattr(batch, name) is not None:
                    found[name].append(getattr(batch, name))
        joined: list[Any] = [np.concatenate(each) if each else None for each in found.values()]
        return Gathered(*joined)

    def predict_to(self: Any, source: Source, path: Any) -> int:
        """Write the predictions for a source to a Parquet file, batch by batch.

        Parameters
        ----------
        source : Source
            Needs no target.
        path : path
            What is there is replaced when the new file is whole. It has a row for each of the
            source in the same order, with the column "prediction", and for classes a column
            "probability=CLASS" for each.

        Returns
        -------
        int
            How many rows were written.
        """
        if not isinstance(source, Source):
            raise TypeError(
                f"predict_to takes a source of drago.read_parquet and its like, but "
                f"{shown(source)} ({type(source).__name__}) was given; use predict for arrays."
            )
        check_is_fitted(self)
        path = os.fsdecode(path)
        partial = f"{path}.{os.getpid()}.partial"
        try:
            count = self._write_to(partial, source)
            os.replace(partial, path)
        finally:
            with suppress(OSError):
                os.unlink(partial)
        return count

    def _write_to(self: Any, path: str, source: Source) -> int:
        """Write a new file; returns how many rows it has."""
        pyarrow, parquet = arrow(), arrow("pyarrow.parquet")
        writer, waiting, count = None, [], 0
        try:
            for _, raw in self._each(source, None):
                waiting.append(pyarrow.table(self._columns_of(raw)))
                count += len(raw)
                if writer is None:
                    writer = parquet.ParquetWriter(
                        path,
                        waiting[0].schema,
                        use_dictionary=is_classifier(self) and ["prediction"],
                    )
                if sum(table.num_rows for table in waiting) >= _ROW_GROUP:
                    writer.write_table(pyarrow.concat_tables(waiting))
                    waiting = []
            if writer is None:
                raise ValueError(f"{source!r} has no rows to predict.")
            if waiting:
                writer.write_table(pyarrow.concat_tables(waiting))
        finally:
            if writer is not None:
                writer.close()
        return count

    def _columns_of(self: Any, raw: Matrix) -> dict[str, Any]:
        """What is written of some predictions."""
        if not is_classifier(self):
            return {"prediction": raw[:, 0] if raw.shape[1] == 1 else list(raw)}
        shares = np.exp(self._log_shares(raw))
        names = [f"probability={label}" for label in self.classes_.tolist()]
        pyarrow = arrow()
        # By their numbers: text is made of each label once.
        best = pyarrow.DictionaryArray.from_arrays(
            self._best(raw), pyarrow.array(self.classes_.tolist())
        )
        return {"prediction": best.dictionary_decode(), **dict(zip(names, shares.T))}


def _labels_of(coded: Any) -> Array:
    return np.array(coded.values)[coded.codes]


def _require_target(source: Source, batch: Batch) -> None:
    if batch.y is None:
        raise ValueError(f"{source!r} has no target, which this needs: name it as target=.")


def say_sampled(source: Source, sample: Sample, what: str) -> None:
    """A warning where something rests on a part of the rows."""
    if not sample.is_whole:
        warn(
            f"{what} on {sample.words}, a uniform sample of {source!r} by random_state.",
            UserWarning,
        )


def drawn(source: Source, what: str, seed: int, task: str, **given: Any) -> Sample:
    """Rows of a source in memory for what takes no source, which is said; features are dense.

    Parameters
    ----------
    source : Source
    what : str
        What is done with them, for the message.
    seed : int
    task : str
        For "regression" the target holds numbers, else whatever it holds.
    given : what was given beside the source, which has its own
    """
    require_alone(source, **given)
    if "y" not in source.names:
        raise ValueError(f"{source!r} has no target, which this needs: name it as target=.")
    sample = source._sample(SAMPLE_ROWS, seed, labels=task != "regression")
    say_sampled(source, sample, what)
    return sample._replace(X=as_dense(sample.X))


def require_alone(source: Any, **given: Any) -> None:
    """Raise where something is given beside a source, which has its own."""
    for name, values in given.items():
        if values is not None:
            raise ValueError(
                f"{name} was given beside {source!r}, which has its own: name it where the source "
                "is made."
            )
