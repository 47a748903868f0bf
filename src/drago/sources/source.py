"""`Source`: a description of rows that are read when they are needed."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._progress import begin
from drago._validation import check_flag, check_integer, shown
from drago.files.archive import State
from drago.files.blocks import Blocks, Column, Held, SourceChangedError, Stamp
from drago.sources.batch import Batch, Reader
from drago.sources.cache import FORMAT, Folder, default_dir
from drago.sources.memory import as_bytes, as_text
from drago.sources.numbers import Numbers, Sample, sample_of
from drago.sources.scan import HasZeroWeightsError, Scan, part_bytes
from drago.sources.scanned import BlocksReader
from drago.sources.sink import Sink
from drago.terms.losses import as_loss

Array = npt.NDArray[Any]

_ALL = 1 << 62
# Rows that are drawn where nothing else is said.
SAMPLE_ROWS = 100_000


class Source:
    """Rows of files or of a reader, which `DROProblem` and the estimators take in place of X and y.

    Made by `drago.read_parquet`, `drago.from_arrays`, `drago.from_batches` and
    `drago.from_arrow`. Nothing but a schema is read until it is opened; then the rows are scanned
    once, and held in memory where they fit `memory_limit`. Where they do not, they are read from
    their file if they lie there row after row, and otherwise from blocks that the scan writes.

    Parameters
    ----------
    reader : Reader
    standardize : bool
        Give each feature the mean 0 and the standard deviation 1; sparse ones keep their zeros and
        are only scaled.
    shuffle : bool or int
        Whether rows that are copied to blocks are put there in a random order within each part, and
        the seed of it (True is 0). For files whose rows have an order, by class or by date, and
        DRAGO, which visits some ranges of rows at a time; a file that would be read in place is
        copied then.
        Whatever has an entry for each row is in the order of the source all the same.
    cache_dir : str, optional
        Where blocks are written: ``drago/blocks`` in the user's cache directory.
    keep_cache : bool
        Leave the blocks there for the next process.
    memory_limit : int, str or None
        Bytes, or text such as "4GB"; None is a third of what the machine or its control group has.

    Examples
    --------
    >>> import numpy as np, drago
    >>> source = drago.from_arrays(np.eye(4), [1.0, 2.0, 6.0, 3.0], standardize=True)
    >>> source.sample(2, random_state=0).X.shape
    (2, 4)
    >>> drago.DRORegressor().fit(source).coef_.shape
    (4,)
    """

    def __init__(
        self,
        reader: Any,
        *,
        standardize: bool = False,
        shuffle: bool | int = False,
        cache_dir: Any = None,
        keep_cache: bool = False,
        memory_limit: Any = None,
    ) -> None:
        self._reader: Reader = reader
        self._standardize = check_flag("standardize", standardize)
        self._shuffle = _as_seed(shuffle)
        self._keep = check_flag("keep_cache", keep_cache)
        self._limit = as_bytes(memory_limit)
        given = default_dir() if cache_dir is None else os.fsdecode(cache_dir)
        self._cache_dir = os.path.abspath(os.path.expanduser(given))
        self._lock = threading.Lock()
        self._last: tuple[bool, Any, Blocks] | None = None

    def __repr__(self) -> str:
        more = ", standardize=True" if self._standardize else ""
        more += "" if self._shuffle is None else f", shuffle={self._shuffle}"
        return f"Source({self._reader.described}{more}, memory_limit='{as_text(self._limit)}')"

    def __reduce__(self) -> Any:
        raise TypeError("a Source cannot be pickled; make it anew where it is needed.")

    # ---------------------------------------------------------------------------- opening

    def open(self, loss: Any) -> Blocks:
        """The rows, scanned: all columns are arrays where they fit the limit.

        Parameters
        ----------
        loss : Loss or its name
            Says whether the target holds labels, which become 0..k-1, or numbers.
        """
        loss = as_loss(loss)
        blocks = self.scanned(loss.is_classification)
        if blocks.classes is None:
            return blocks
        wanted = loss.check_target(np.arange(float(len(blocks.classes))), len(blocks.classes)).dtype
        y = blocks.columns["y"]
        if y.dtype == wanted or isinstance(y, Column):  # a store in files takes both
            return blocks
        return replace(blocks, columns={**blocks.columns, "y": Held(y.array.astype(wanted))})

    def scanned(self, labels: bool) -> Blocks:
        """The rows, with a target of labels or of numbers; scanned now, or as they were before."""
        with self._lock:
            identity = self._reader.identity()
            if self._last is not None and self._last[:2] == (labels, identity):
                return self._last[2]
            self._last = None  # what is held is let go before there is more
            blocks = self._open(labels, identity)
            self._last = labels, identity, blocks
            return blocks

    def _open(self, labels: bool, identity: Any) -> Blocks:
        digest = None if identity is None else self._digest(labels, identity)
        if digest is not None:
            found = self._find(digest)
            if found is not None:
                return found
        blocks, sink = self._scan(labels)
        if self._reader.identity() != identity:
            sink.abort()
            raise SourceChangedError(
                f"{self._reader.described} changed while it was read; read it again when nobody "
                "writes to it."
            )
        content = getattr(self._reader, "content", None)
        if digest is None and content is not None:
            blocks = replace(blocks, digest=self._digest(labels, content))
        elif digest is not None:
            blocks = replace(blocks, digest=digest)
        folder = sink.folder
        if self._keep and digest is not None and folder is not None and _all_in(folder, blocks):
            sink.sync()
            folder = folder.keep(self._cache_dir, digest, self._state(blocks))
            blocks = replace(blocks, keep_alive=folder, columns=_moved(blocks.columns, folder))
        return blocks

    def _scan(self, labels: bool) -> tuple[Blocks, Sink]:
        reader: Any = self._reader
        reader.prepare()
        if "y" not in reader.names:
            raise ValueError(
                f"{self!r} has no target, which a fit needs: name it as target= or give y."
            )
        place: Column | Held | None = None
        limit = self._limit
        if hasattr(reader, "in_place") and not self._standardize:
            if reader.in_memory and not reader.is_sparse:
                place, limit = Held(reader.whole()), _ALL
            else:
                place = reader.in_place()
                if place is not None and _size(place) + 64 * reader.n_rows <= limit:
                    place = None  # held, as it fits
                if self._shuffle is not None:
                    place = None  # only a copy can be in another order

        def run(limit: int, place: Column | Held | None) -> tuple[Blocks, Sink]:
            scan = Scan(
                reader,
                labels=labels,
                standardize=self._standardize,
                shuffle=self._shuffle,
                limit=limit,
                cache_dir=self._cache_dir,
                part=part_bytes(self._limit),
                in_place=place,
            )
            return scan.run()

        try:
            blocks, sink = run(limit, place)
        except HasZeroWeightsError:  # only a copy can be without the rows that have none
            blocks, sink = run(self._limit, None)
        return replace(blocks, memory_limit=self._limit), sink

    # ------------------------------------------------------------------------- kept blocks

    def _digest(self, labels: bool, identity: Any) -> str:
        settings = [FORMAT, identity, labels, self._standardize, part_bytes(self._limit)]
        settings += [str(self._reader.dtype), sorted(self._reader.names)]
        settings += [] if self._shuffle is None else ["shuffle", self._shuffle]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def _state(self, blocks: Blocks) -> State:
        arrays = {"ends": np.array(blocks.ends, dtype=np.int64)}
        for name in ("classes", "group_names", "mean", "scale"):
            if getattr(blocks, name) is not None:
                arrays[name] = getattr(blocks, name)
        for name, sums in blocks.sums.items():
            arrays[f"sums.{name}"] = np.array(sums, dtype=np.uint64)
        columns = {
            name: [os.path.basename(column.path), column.dtype.str, list(column.shape)]
            for name, column in blocks.columns.items()
            if isinstance(column, Column)
        }
        settings = {"columns": columns, "n_features": blocks.n_features}
        names = blocks.feature_names
        settings["feature_names"] = None if names is None else list(names)
        return arrays, settings | {"known": self._reader.known()}

    def _find(self, digest: str) -> Blocks | None:
        """What an earlier process has kept of the same source, where it is whole."""
        found = Folder.find(self._cache_dir, digest)
        if found is None:
            return None
        folder, (arrays, settings) = found
        try:
            columns: dict[str, Column | Held] = {}
            for name, (file, kind, shape) in settings["columns"].items():
                path, dtype = folder.file(file), np.dtype(kind)
                stamp = Stamp.of(path)
                if stamp.size != dtype.itemsize * int(np.prod(shape)):
                    raise SourceChangedError(path)
                columns[name] = Column(path, dtype, tuple(shape), 0, stamp)
        except OSError:  # a file is gone or too short
            Folder.forget(self._cache_dir, digest)
            return None
        names = settings["feature_names"]
        self._reader.prepare(settings["known"])
        sums = {
            name.removeprefix("sums."): tuple(int(total) for total in values)
            for name, values in arrays.items()
            if name.startswith("sums.")
        }
        return Blocks(
            n_samples=int(arrays["ends"][-1]),
            n_features=settings["n_features"],
            columns=columns,
            ends=tuple(arrays["ends"].tolist()),
            sums=sums,
            feature_names=None if names is None else tuple(names),
            digest=digest,
            keep_alive=folder,
            memory_limit=self._limit,
            **{name: arrays.get(name) for name in ("classes", "group_names", "mean", "scale")},
        )

    # ------------------------------------------------------------------------ for estimators

    @property
    def names(self) -> frozenset[str]:
        """Which of "y", "sample_weight", "groups" and "baseline" there are."""
        self._reader.prepare()
        return self._reader.names

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Those of the features, where they have names."""
        self._reader.prepare()
        return self._reader.feature_names

    @property
    def n_features(self) -> int:
        """How many features there are."""
        self._reader.prepare()
        return self._reader.n_features

    @property
    def coef_dtype(self) -> np.dtype[Any]:
        """That of the features; float64 where coefficients are brought back to their unit."""
        return np.dtype(np.float64) if self._standardize else self._reader.dtype

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self!r} is no array: DROProblem, DROClassifier and DRORegressor take it; give "
            "others a part of the rows that fits memory."
        )

    def known(self) -> dict[str, Any]:
        """How columns were encoded, for another source of the same ones."""
        return self._reader.known()

    def batches(self, known: dict[str, Any] | None, *, labels: bool | None) -> Iterator[Batch]:
        """All rows in their order and in their own unit, whatever their weight.

        Parameters
        ----------
        known : dict or None
            What another source knew of the same columns (`known`), whose features these are then.
        labels : bool or None
            Whether y holds labels; None for features alone.
        """
        reader = self._reader if known is None else self._reader.encoded(known)
        reader.prepare()
        return reader.batches(labels)

    def sample(self, size: int = SAMPLE_ROWS, random_state: int = 0) -> Sample:
        """A uniform sample of the rows of positive weight, in memory and in their own unit.

        Which rows are drawn depends on their numbers and on `random_state` alone.

        Parameters
        ----------
        size : int
            At most so many rows; all of them where there are fewer. No more than fill a quarter of
            the memory limit.
        random_state : int

        Returns
        -------
        Sample
            With X, y, groups, sample_weight and baseline, the `numbers` of the rows, and `n_rows`,
            how many there are in all.
        """
        return self._sample(size, random_state, labels=True)

    def _sample(self, size: int, seed: int, labels: bool) -> Sample:
        size = check_integer("size", size, low=1)
        seed = check_integer("random_state", seed, low=0)
        reader = self._reader
        reader.prepare()
        begin("sample", reader.n_rows)
        most = self.rows_that_fit(reader.n_features)
        return sample_of(reader.batches(labels), min(size, most), seed, reader.feature_names)

    def rows_that_fit(self, width: int) -> int:
        """How many rows of so many numbers fill a quarter of the memory limit; at least 1000."""
        return max(1000, self._limit // (32 * max(width, 1)))

    def part(self, labels: bool, kept: Callable[[Numbers], Array] | None, described: str) -> Source:
        """Some of the rows as a source of its own, from what the scan has made of them.

        Encoded and standardised as here; targets, where they are labels, and groups are numbers.

        Parameters
        ----------
        labels : bool
            Whether y holds labels.
        kept : callable or None
            From numbers of rows to whether they are wanted.
        described : str
            What to call it.
        """
        blocks = self.scanned(labels)
        columns = blocks.columns.values()
        held = sum(column.array.nbytes for column in columns if isinstance(column, Held))
        reader = BlocksReader(blocks, described, kept)
        return Source(
            reader,
            shuffle=False if self._shuffle is None else self._shuffle,
            cache_dir=self._cache_dir,
            memory_limit=max(self._limit - held, self._limit // 8),
        )

    def release(self) -> None:
        """Remove the blocks that this source has written and does not keep: nobody reads them."""
        with self._lock:
            last, self._last = self._last, None
        if last is not None and isinstance(last[2].keep_alive, Folder):
            last[2].keep_alive.discard()

    def original(self, coef: Any, intercept: Any = 0.0) -> tuple[Array, Any]:
        """Coefficients for features in their own unit, from those for standardised ones.

        Parameters
        ----------
        coef : array of shape (n_features,) or (n_outputs, n_features)
        intercept : float or array of shape (n_outputs,)

        Returns
        -------
        coef, intercept : as they were given, and the same where nothing was standardised
        """
        coef = np.asarray(coef, dtype=np.float64)
        if not self._standardize:
            return coef, intercept
        if self._last is None:
            raise ValueError(f"{self!r} was not scanned yet: fit or open it first.")
        blocks = self._last[2]
        coef = coef / blocks.scale
        return coef, intercept - coef @ blocks.mean


def _as_seed(shuffle: Any) -> int | None:
    """The seed of a shuffle; None for none."""
    if isinstance(shuffle, (bool, np.bool_)):
        return 0 if shuffle else None
    is_seed = isinstance(shuffle, (int, np.integer)) and 0 <= shuffle < 2**63
    if not is_seed:
        raise ValueError(
            f"shuffle must be True, False or a seed (an integer from 0 on), but {shown(shuffle)} "
            "was given."
        )
    return int(shuffle)


def _size(column: Column | Held) -> int:
    return int(np.prod(column.shape)) * column.dtype.itemsize


def _all_in(folder: Folder, blocks: Blocks) -> bool:
    """Whether no column lies elsewhere, as X in place does."""
    paths = [getattr(column, "path", "") for column in blocks.columns.values()]
    return all(os.path.dirname(path) == folder.path for path in paths)


def _moved(columns: Any, folder: Folder) -> dict[str, Column | Held]:
    """Columns of a folder that has another name now, or of one that was there before."""
    found = dict(columns)
    for name, column in columns.items():
        if isinstance(column, Column):
            path = folder.file(os.path.basename(column.path))
            found[name] = replace(column, path=path, stamp=Stamp.of(path))
    return found
