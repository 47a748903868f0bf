"""Data sets: the seven of the DRAGO paper, five that ship with scikit-learn, and synthetic ones.

The paper's sets are looked for in the directory named by the environment variable
``DRAGO_DATA_DIR``, then in the user cache, and are downloaded only when asked. Whatever the way,
their content is checked against a pinned SHA-256, so a name always means the same numbers.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import math
import os
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from drago.synthetic import Array, Dataset, Task, make_synthetic, require

__all__ = [
    "NAMES", "Dataset", "DatasetContentError", "DatasetDownloadError", "DatasetNotFoundError",
    "cache_dir", "load", "make_synthetic",
]  # fmt: skip

_TIMEOUT = 60.0  # seconds for a whole download
_MAX_BYTES = 32 * 2**20  # of a download, and of each file unpacked from it


class DatasetNotFoundError(FileNotFoundError):
    """The data set is in none of the places where it is looked for.

    Examples
    --------
    >>> from drago import datasets
    >>> issubclass(datasets.DatasetNotFoundError, FileNotFoundError)
    True
    """


class DatasetContentError(ValueError):
    """A file does not hold the data set it should hold.

    Examples
    --------
    >>> from drago import datasets
    >>> issubclass(datasets.DatasetContentError, ValueError)
    True
    """


class DatasetDownloadError(OSError):
    """A download failed.

    Examples
    --------
    >>> from drago import datasets
    >>> issubclass(datasets.DatasetDownloadError, OSError)
    True
    """


@dataclass(frozen=True)
class _Entry:
    task: Task
    shape: tuple[int, int]
    origin: str
    sha256: str  # of the content, see _verify
    url: str = ""  # empty where no download is known
    file: str = ""  # the file inside the archive at `url`
    target: int = -1  # the column of y in that file
    arrays: tuple[str, ...] = ("X", "y")


# fmt: off
_UCI = "https://archive.ics.uci.edu/static/public"
_PAPER = {
    "yacht": _Entry("regression", (308, 6), "UCI Yacht Hydrodynamics (CC BY 4.0).",
        "1f9d05874ba34722ea4bb87d3f863613e11d48cacbcda847ea15d2b50b86f619",
        f"{_UCI}/243/yacht+hydrodynamics.zip", "yacht_hydrodynamics.data", target=6),
    "energy": _Entry("regression", (768, 8), "UCI Energy Efficiency, cooling load (CC BY 4.0).",
        "d5ac4e5ea20faff2d1fe4e8cd126fda813940a738b268689fa5d8d2ba0ab6f57",
        f"{_UCI}/242/energy+efficiency.zip", "ENB2012_data.xlsx", target=9),
    "concrete": _Entry("regression", (1030, 8), "UCI Concrete Compressive Strength (CC BY 4.0).",
        # No download: the source is .xls, and the .csv beside it is rounded to two decimals.
        "899777cc7d11dd1b9d5a9f2afe963eb98119fb78dc5c99b9aed257e68a5a29c7"),
    "kin8nm": _Entry("regression", (8192, 8), "OpenML 189: kinematics of an 8-link robot arm.",
        "605e6e768d71c6606ebd716915813602b6fcd1c76182ef5d1f60e8cb629bf85e",
        "https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff", target=8),
    "power": _Entry("regression", (9568, 4), "UCI Combined Cycle Power Plant (CC BY 4.0).",
        "1c4c2d0d35f95c809a84b34540d5b36ba5049bbc54aed20e6d8a3089c99511b2",
        f"{_UCI}/294/combined+cycle+power+plant.zip", "Folds5x2_pp.xlsx", target=4),
    "acsincome1k": _Entry("regression", (1000, 202), "1,000 held-out rows of ACS income (PUMS).",
        "d7867852a430714b8f809c6039b505005b2e84497bd7ec27bc59dce20c561454"),
    "emotion": _Entry("multiclass", (8000, 45), "PCA of BERT features of dair-ai/emotion.",
        "dbe53de653a406058e295739d4f7f1b57542ffd55dd4138f5ea417c7acc52836",
        arrays=("X_train", "y_train", "X_val", "y_val", "X_test", "y_test")),
}
_EMBEDDED: dict[str, Task] = {
    "digits": "multiclass", "breast_cancer": "binary", "diabetes": "regression",
    "wine": "multiclass", "iris": "multiclass",
}
# fmt: on
NAMES: tuple[str, ...] = (*_PAPER, *_EMBEDDED)
"""The names that `load` knows."""


def load(name: str, *, prepare: Literal["paper"] | None = None, download: bool = False) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        One of `NAMES`: "yacht", "energy", "concrete", "kin8nm", "power", "acsincome1k" and
        "emotion" of the paper, or "digits", "breast_cancer", "diabetes", "wine" and "iris" of
        scikit-learn.
    prepare : {None, "paper"}, default=None
        None gives the data as published. "paper" prepares them as in the paper's experiments:
        the 80/20 split of ``train_test_split(random_state=42)``, features standardised on the
        training part, a regression target centred and divided by its training standard deviation
        (ddof=1). "emotion" and "acsincome1k" stay as they are, and "yacht" loses its first two
        rows, which gives the paper's n = 244.
    download : bool, default=False
        Fetch and cache a set that is not on this machine. Without it the network is not used.

    Returns
    -------
    Dataset
        Features in float64; targets in float64, or int64 for classes.

    Raises
    ------
    DatasetNotFoundError, DatasetContentError, DatasetDownloadError
        If the set is not on this machine; if a file holds anything else; if a download fails.

    Examples
    --------
    >>> from drago import datasets
    >>> data = datasets.load("wine")
    >>> data.X.shape
    (178, 13)
    """
    require(name in NAMES, "name", name, f"one of {', '.join(NAMES)}")
    require(prepare in (None, "paper"), "prepare", prepare, "None or 'paper'")
    require(isinstance(download, bool), "download", download, "True or False")
    if name in _PAPER:
        data = _load_paper(name, download)
    else:
        from sklearn import datasets

        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        data = _dataset(name, _EMBEDDED[name], (X, y), "Ships with scikit-learn.")
    return data if prepare is None else _prepare(data)


def _dataset(name: str, task: Task, arrays: Iterable[Array], description: str) -> Dataset:
    keys = ("X", "y", "X_val", "y_val", "X_test", "y_test")
    target = np.float64 if task == "regression" else np.int64
    parts = {k: a.astype(target if k[0] == "y" else np.float64) for k, a in zip(keys, arrays)}
    return Dataset(name, task, **parts, description=description)


def cache_dir() -> Path:
    """Directory of downloaded data sets: ``drago`` in the user's cache directory.

    Examples
    --------
    >>> from drago import datasets
    >>> datasets.cache_dir().is_absolute()
    True
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        windows = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
        places = {"darwin": "~/Library/Caches", "win32": windows}
        base = os.path.expanduser(places.get(sys.platform, "~/.cache"))
    return Path(base) / "drago"


def _load_paper(name: str, download: bool) -> Dataset:
    entry = _PAPER[name]
    directory = os.environ.get("DRAGO_DATA_DIR")
    folders = ([Path(directory).expanduser()] if directory else []) + [cache_dir()]
    paths = [folder / f"{name}.npz" for folder in folders]
    found = next((path for path in paths if path.is_file()), None)
    if found is not None:
        arrays = _read_npz(found, name)
    elif download and entry.url:
        arrays = _download(name, paths[-1])
    else:
        other = f"or call load({name!r}, download=True) to fetch it from {entry.url}"
        raise DatasetNotFoundError(
            f"Data set {name!r} was not found: put {name}.npz (arrays {', '.join(entry.arrays)}; "
            f"{entry.shape[0]} x {entry.shape[1]} training features) in the directory named by the "
            f"environment variable DRAGO_DATA_DIR (now {directory or 'unset'}) or in the user "
            f"cache {cache_dir()}, {other if entry.url else 'as there is no download for it'}. "
            f"Origin: {entry.origin}"
        )
    return _dataset(name, entry.task, arrays.values(), entry.origin)


def _read_npz(path: Path, name: str) -> dict[str, Array]:
    keys = _PAPER[name].arrays
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in keys}
            _verify(arrays, name)
        except Exception as error:  # a foreign file can fail in any way
            raise DatasetContentError(
                f"{path} is not the data set {name!r}, an .npz of {', '.join(keys)} ({error}); "
                "replace or remove it."
            ) from error
    return arrays


def _verify(arrays: Mapping[str, Array], name: str) -> None:
    digest = hashlib.sha256()
    for key, array in arrays.items():
        canonical = np.ascontiguousarray(array, dtype="<f8")
        digest.update(f"{key}{canonical.shape}{canonical.dtype.str}".encode())
        digest.update(canonical.tobytes())
    if digest.hexdigest() != (expected := _PAPER[name].sha256):
        raise ValueError(f"the SHA-256 of its numbers is {digest.hexdigest()}, not {expected}")


def _download(name: str, path: Path) -> dict[str, Array]:
    entry = _PAPER[name]
    try:
        content = _fetch(entry.url)
    except (OSError, http.client.HTTPException) as error:
        raise DatasetDownloadError(
            f"Data set {name!r} could not be downloaded from {entry.url} ({error}); "
            f"try again later, or put {name}.npz in DRAGO_DATA_DIR or in {path.parent}."
        ) from error
    try:
        table = _read_table(content, entry)
        arrays: dict[str, Array] = {"X": table[:, : entry.shape[1]], "y": table[:, entry.target]}
        _verify(arrays, name)
    except Exception as error:  # foreign bytes can fail in any way
        raise DatasetContentError(
            f"What {entry.url} serves is not the data set {name!r} ({error}); nothing was cached."
        ) from error
    _store(path, arrays)
    return arrays


def _fetch(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "drago"})
    deadline = time.monotonic() + _TIMEOUT
    content = bytearray()
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        expected = response.length
        # One socket read at a time, so that a server that trickles cannot outlast the deadline.
        while block := response.read1(2**16):
            content += block
            if len(content) > _MAX_BYTES:
                raise OSError(f"it is larger than the limit of {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"it took longer than {_TIMEOUT:g} seconds")
    if expected is not None and len(content) != expected:
        raise OSError(f"it broke off after {len(content)} of {expected} bytes")
    return bytes(content)


def _store(path: Path, arrays: Mapping[str, Array]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(".tmp", f".{path.stem}-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read_table(content: bytes, entry: _Entry) -> Array:
    if entry.file:
        content = _unzip(content, entry.file)
    suffix = PurePosixPath(entry.file or entry.url).suffix
    if suffix == ".xlsx":
        return _read_xlsx(content, entry.target + 1)
    text = io.StringIO(content.decode())
    if suffix == ".arff":
        from scipy.io import arff

        return np.array(arff.loadarff(text)[0].tolist(), dtype=np.float64)
    return np.loadtxt(text, ndmin=2)


def _unzip(content: bytes, file: str) -> bytes:
    """One file of a zip archive, in whichever folder it lies."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = (member for member in archive.namelist() if f"/{member}".endswith(f"/{file}"))
        with archive.open(next(found, file)) as stream:
            data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{file} is larger than the limit of {_MAX_BYTES} bytes")
    return data


def _read_xlsx(content: bytes, width: int) -> Array:
    """Rows of the first sheet whose first `width` cells are all numbers."""
    sheet = _unzip(content, "worksheets/sheet1.xml").decode()
    if "<!DOCTYPE" in sheet:  # where entities would be declared; a sheet has none
        raise ValueError("the sheet has a document type declaration")
    columns = {letter: j for j, letter in enumerate("ABCDEFGHIJ"[:width])}
    rows = []
    for row in ElementTree.fromstring(sheet).iterfind(".//{*}row"):
        values = [math.nan] * width
        for cell in row.iterfind("{*}c"):
            column = columns.get(cell.get("r", "").rstrip("0123456789"))
            if column is not None and cell.get("t", "n") == "n":
                values[column] = float(cell.findtext("{*}v") or "nan")
        if not any(map(math.isnan, values)):
            rows.append(values)
    return np.array(rows).reshape(-1, width)


def _prepare(data: Dataset) -> Dataset:
    if data.X_test is not None or data.name == "acsincome1k":
        return data
    drop = 2 if data.name == "yacht" else 0
    X, y = data.X[drop:], data.y[drop:]
    # The draw of scikit-learn's train_test_split(test_size=0.2, random_state=42).
    order = np.random.RandomState(42).permutation(len(y))
    test, train = np.split(order, [math.ceil(0.2 * len(y))])
    shift, scale = _location_scale(X[train], ddof=0)
    X = (X - shift) / scale
    if data.task == "regression":
        shift, scale = _location_scale(y[train], ddof=1)
        y = (y - shift) / scale
    parts = {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test]}
    how = "without its first two rows, split 80/20" if drop else "split 80/20"
    return replace(data, **parts, description=f"{data.description} Standardised, {how}.")


def _location_scale(values: Array, ddof: int) -> tuple[Array, Array]:
    """Mean and standard deviation by column, with scale 1 for a constant column."""
    constant = values.max(axis=0) == values.min(axis=0)
    return values.mean(axis=0), np.where(constant, 1.0, values.std(axis=0, ddof=ddof))
