"""Sources of a user's own reader: a function that gives batches, or a sequence of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drago._validation import shown
from drago.files.blocks import SourceChangedError
from drago.sources.arrays import as_feature_names
from drago.sources.batch import Batch, as_batch, as_features, feature_dtype

_NAMES = ("X", "y", "sample_weight", "groups", "baseline")


class BatchesReader:
    """Batches of rows, asked for anew for each reading.

    Parameters
    ----------
    batches : callable without arguments, or sequence
        Gives ``(X, y)``, ``(X, y, sample_weight)`` or a dict with the names of `drago.from_arrays`.
    feature_names : sequence of str, optional
    dtype : dtype, optional
    """

    n_rows: int | None = None
    once = False
    is_sparse = False

    def __init__(self, batches: Any, feature_names: Any = None, dtype: Any = None) -> None:
        self._given: Callable[[], Any] | Sequence[Any]
        if callable(batches):
            name = getattr(batches, "__qualname__", type(batches).__name__)
            self.described = f"batches of {name}()"
        elif isinstance(batches, Sequence) and not isinstance(batches, (str, bytes)):
            self.described = f"{len(batches)} batches"
        else:
            raise TypeError(
                "batches must be a function that gives them anew each time, or a sequence, but "
                f"{shown(batches)} ({type(batches).__name__}) was given; for a generator, give the "
                "function that makes it."
            )
        self._given = batches
        self._asked_names, self._asked_dtype = feature_names, dtype
        self._digest: str | None = None
        self._is_prepared = False
        self.names: frozenset[str] = frozenset(("y",))

    def prepare(self, known: dict[str, Any] | None = None) -> None:
        """Look at the first batch."""
        if self._is_prepared:
            return
        first = next(iter(self._parts()), None)
        if first is None:
            raise ValueError(f"{self.described} has no rows; give it some.")
        X = first["X"]
        self.is_sparse = hasattr(X, "indptr")
        self.n_features = int(X.shape[1])
        self._kind = X.dtype
        self.dtype = feature_dtype(X.dtype) if self._asked_dtype is None else self._asked_dtype
        self.names = frozenset(name for name in first if name != "X")
        self.feature_names = as_feature_names(
            self._asked_names or first.get("columns"), self.n_features
        )
        self.names -= {"columns"}
        self._is_prepared = True

    def known(self) -> dict[str, Any]:
        return {}

    def encoded(self, known: dict[str, Any]) -> Any:
        return self

    def identity(self) -> Any:
        return None

    @property
    def content(self) -> str | None:
        """A digest of the rows, once they were read."""
        return self._digest

    def batches(self, labels: bool | None) -> Iterator[Batch]:
        """All rows; an error in the end where they are not those of the first reading."""
        self.prepare()
        digests: dict[str, Any] = {}
        count = 0
        for k, part in enumerate(self._parts()):
            part.pop("columns", None)
            X = part["X"]
            self._require_alike(k, part)
            if self.is_sparse:
                X = part["X"] = X.astype(self.dtype, copy=False)
            for name, values in part.items():
                _add(digests, name, values)
            count += X.shape[0]
            yield as_batch(**part, labels=labels)
        found = " ".join(f"{name} {digests[name].hexdigest()}" for name in sorted(digests))
        if self._digest is not None and found != self._digest:
            raise SourceChangedError(
                f"{self.described} gave other rows than the first time (their digests differ); "
                "it has to give the same rows in the same batches each time."
            )
        self._digest, self.n_rows = found, count

    def _parts(self) -> Iterator[dict[str, Any]]:
        given = self._given() if callable(self._given) else self._given
        for k, batch in enumerate(given):
            part = _as_dict(k, batch)
            if hasattr(part["X"], "columns") and hasattr(part["X"], "to_numpy"):
                part["columns"] = [str(name) for name in part["X"].columns]
                part["X"] = part["X"].to_numpy()
            part["X"] = as_features(part["X"])
            if part["X"].shape[0]:
                yield part

    def _require_alike(self, k: int, part: dict[str, Any]) -> None:
        X = part["X"]
        if X.shape[1] != self.n_features or hasattr(X, "indptr") != self.is_sparse:
            raise ValueError(
                f"batch {k} of {self.described} must have {self.n_features} features in a "
                f"{'sparse matrix' if self.is_sparse else 'dense array'} as the first one, but has "
                f"shape {X.shape} in a {type(X).__name__}."
            )
        if self._asked_dtype is None and feature_dtype(X.dtype) != self.dtype:
            raise ValueError(
                f"batch {k} of {self.described} has dtype {X.dtype}, the first one {self._kind}; "
                "give them all in one, or dtype=."
            )
        names = frozenset(part) - {"X"}
        if names != self.names:
            raise ValueError(
                f"batch {k} of {self.described} has {sorted(names)} beside X, the first one "
                f"{sorted(self.names)}; give the same in all of them."
            )


def _as_dict(k: int, batch: Any) -> dict[str, Any]:
    """A batch by the names of what is in it."""
    if isinstance(batch, Mapping):
        found = {name: values for name, values in batch.items() if values is not None}
        if "X" in found and set(found) <= set(_NAMES):
            return found
    elif isinstance(batch, (tuple, list)) and 1 <= len(batch) <= 3:
        return {name: values for name, values in zip(_NAMES, batch) if values is not None}
    raise ValueError(
        f"batch {k} must be (X, y), (X, y, sample_weight) or a dict with some of {_NAMES}, X among "
        f"them, but {shown(batch)} was given."
    )


def _add(digests: dict[str, Any], name: str, values: Any) -> None:
    """Bring the values of a batch into the digest of their column, whatever the batches are."""
    if hasattr(values, "indptr"):
        for part in ("data", "indices"):
            _add(digests, f"{name}.{part}", getattr(values, part))
        _add(digests, f"{name}.rows", np.diff(values.indptr).astype(np.int64))
        return
    array = np.ascontiguousarray(values)
    digest = digests.setdefault(name, hashlib.sha256())
    if array.dtype.kind in "OU":
        digest.update("".join(f"{value!r}, " for value in array.tolist()).encode())
    else:
        digest.update(array.view(np.uint8).data if array.size else b"")
