"""Models in files that are safe to load, and come back bit for bit.

A model file is an archive (`drago.files.archive`). Its settings describe the model as a tree: None,
bool, int, float, str and lists stand for themselves, everything else is ``{kind: content}``, where
the kind is a word of this module or the name of a class, looked up in a fixed table: drago's own,
and those of scikit-learn that `drago.files.transformers` names.
"""

from __future__ import annotations

import errno
import inspect
import os
import secrets
from dataclasses import fields
from typing import Any

import numpy as np

from drago._validation import check_flag, shown
from drago._version import __version__
from drago.estimators import DROClassifier, DROClassifierCV, DRORegressor, DRORegressorCV
from drago.estimators.collapse import Skill
from drago.files import archive, transformers
from drago.files.archive import NAME, Array, FileKind, Path, discard, sync_folder
from drago.result import History, Record, SolverResult, Status
from drago.solvers.baselines import LSVRG, SGD, Prospect
from drago.solvers.drago.method import Drago
from drago.solvers.full_batch import AGOG, GradientDescent
from drago.solvers.lbfgs import LBFGS
from drago.solvers.newton import Newton
from drago.terms.constraints import Box, Everything, L2Ball, NonNegative
from drago.terms.divergences import KL, Chi2
from drago.terms.losses import Huber, Logistic, Multinomial, Squared
from drago.terms.uncertainty import ESRM, Chi2Ball, CVaR, Extremile, Grouped, KLBall, Simplex

FORMAT = 1

# What can be saved, and be a part of what is.
_ESTIMATORS: tuple[type, ...] = (DRORegressor, DROClassifier, DRORegressorCV, DROClassifierCV)
# What is known by the arguments it was made with. A Spectrum is not: these are functions.
_OBJECTS: tuple[type, ...] = (
    *(CVaR, Simplex, Extremile, ESRM, Chi2Ball, KLBall, Grouped),
    *(Squared, Huber, Logistic, Multinomial),
    *(Chi2, KL),
    *(Everything, Box, NonNegative, L2Ball),
    *(Drago, LBFGS, Newton, SGD, LSVRG, Prospect, GradientDescent, AGOG),
    *(SolverResult, Record, Skill),
)
_CLASSES = {cls.__name__: cls for cls in (*_ESTIMATORS, *_OBJECTS, History, Status)}
_SCALARS = {
    name: np.dtype(name).type
    for name in (
        *("bool", "str", "float16", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}
# Types that a parameter such as `dtype` may be.
_TYPES = {**_SCALARS, "python.float": float, "python.int": int, "python.bool": bool,
          "python.str": str, "python.object": object}  # fmt: skip
_TYPE_NAMES = {cls: name for name, cls in _TYPES.items()}
_PARTS = ("params", "fitted", "requests")
# Attributes and fields with an entry for each training row.
_OF_ROWS = ("dual_weights_", "baseline_", "dual_weights")
_MAX_DEPTH = 64


class ModelFileError(ValueError):
    """A model file that cannot be used: damaged, foreign, or of another version of drago.

    Examples
    --------
    >>> import drago
    >>> issubclass(drago.ModelFileError, ValueError)
    True
    """


_KIND = FileKind("model", FORMAT, ModelFileError)


def save(model: Any, path: Path, *, include_weights: bool = False) -> None:
    """Save a model, fitted or not, to a file that is safe to load.

    The file holds arrays, numbers and text, and never code. An existing file is
    replaced only once the new one is complete.

    Parameters
    ----------
    model : estimator or pipeline
        One of drago's own, or a `Pipeline` of scikit-learn with it and the usual transformers:
        scalers, encoders, imputers, `ColumnTransformer`, `FeatureUnion`.
    path : str or path
        The file, under exactly this name. An existing one is replaced. A symbolic link is followed.
    include_weights : bool
        Whether to store what has an entry for each training row: `dual_weights_` (also that of
        `result_`) and `baseline_`. They make the file larger and can reveal training data. If
        False, these attributes are empty after `load`.

    Raises
    ------
    TypeError
        Where the model holds what only pickle can store: functions and classes of one's own, a
        `Spectrum`, a RandomState, other transformers.

    See Also
    --------
    load

    Examples
    --------
    >>> import os, tempfile
    >>> import drago
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.drago")
    ...     drago.save(drago.DRORegressor(drago.CVaR(0.2)), path)
    ...     drago.load(path)
    DRORegressor(uncertainty=CVaR(tail_fraction=0.2))
    """
    write(model, path, include_weights=include_weights)


def write(
    model: Any, path: Path, *, include_weights: bool = False, notes: dict[str, Any] | None = None
) -> None:
    """Save a model as `save` does, with notes about it.

    Parameters
    ----------
    model, path, include_weights : see `save`
    notes : dict, optional
        What JSON can hold.
    """
    if not _is_model(model):
        own = ", ".join(cls.__name__ for cls in _ESTIMATORS)
        raise TypeError(
            f"model must be a {own} or a Pipeline, but {shown(model)} "
            f"({type(model).__name__}) was given; use pickle or joblib for others."
        )
    path = _name(path)
    encoder = _Encoder(check_flag("include_weights", include_weights))
    tree = encoder.encode(model, (type(model).__name__,))
    settings = {"drago": __version__, "sklearn": transformers.version(), "model": tree}
    if notes is not None:
        settings["notes"] = notes
    content = _KIND.check(encoder.arrays, settings)
    path = _KIND.place(path)
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise FileNotFoundError(errno.ENOENT, "There is no folder for the model", path)
    partial = f"{path}.{secrets.token_hex(4)}.partial"
    try:
        _KIND.write(partial, content)
        os.replace(partial, path)
        sync_folder(path)
    finally:
        discard(partial)


def load(path: Path) -> Any:
    """The model that was saved to a file.

    Nothing in the file is ever unpickled or run, and nothing is imported because of it.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    model : estimator or pipeline
        With all parameters and fitted attributes that it had, but for weights of rows that were
        not stored.

    Raises
    ------
    ModelFileError
        Where the file is damaged, foreign, or of a later version.

    Warns
    -----
    InconsistentVersionWarning
        Where another version of scikit-learn wrote a pipeline.

    See Also
    --------
    save

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, drago
    >>> model = drago.DRORegressor().fit(np.eye(3), [1.0, 2.0, 6.0])
    >>> path = os.path.join(tempfile.mkdtemp(), "model.drago")
    >>> drago.save(model, path)
    >>> bool((drago.load(path).coef_ == model.coef_).all())
    True
    """
    return read(path)[0]


def read(path: Path) -> tuple[Any, dict[str, Any]]:
    """The model that was saved to a file, and the notes about it; see `load`."""
    path = _name(path)
    try:
        arrays, settings = _KIND.read(path)
        model = _model(arrays, settings)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "There is no model file", path) from None
    except ModelFileError as error:
        raise ModelFileError(
            f"The model file {path} cannot be used: {error}. Give a whole file that "
            "drago.save wrote."
        ) from error
    if type(model) not in _ESTIMATORS:
        transformers.warn_of_version(type(model).__name__, settings.get("sklearn"))
    notes = settings.get("notes")
    return model, notes if isinstance(notes, dict) else {}


def _is_model(value: Any) -> bool:
    return type(value) in _ESTIMATORS or type(value) is transformers.known()["Pipeline"]


def _name(path: Path) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be the path of a file, but {shown(path)} was given.")
    return os.fsdecode(path)


# ------------------------------------------------------------------------------------- writing


class _Encoder:
    """From a model to a tree, with the arrays beside it.

    The way to a value is a tuple, from the name of the model's class on: messages show it, and it
    names the arrays.
    """

    def __init__(self, include_weights: bool) -> None:
        self._include_weights = include_weights
        self._nothing = np.empty(0)
        self.arrays: dict[str, Array] = {}
        self._names: dict[int, str] = {}

    def encode(self, value: Any, way: tuple[str, ...]) -> Any:
        """The tree of a value."""
        cls = type(value)
        if len(way) > _MAX_DEPTH:
            raise ValueError(
                f"{''.join(way[:4])}[...] is nested more than {_MAX_DEPTH} levels deep, or holds "
                "itself; give it fewer levels."
            )
        if value is None or cls in (bool, int, float, str):
            return value
        if cls is list:
            return self._items(value, way)
        if cls.__name__ == "_RemainderColsList":  # of scikit-learn 1.6, which warns its readers
            return self._items(value.data, way)
        if cls is tuple:
            return {"tuple": self._items(value, way)}
        if cls is dict:
            return {"dict": [self._pair(key, item, way) for key, item in value.items()]}
        if isinstance(value, np.generic):
            return self._scalar(value, way)
        if cls in (np.ndarray, np.memmap):
            return self._array(value, way)
        if cls is Status:
            return {"Status": value.value}
        if cls is History:
            return {"History": self._columns(value, way)}
        if cls in _ESTIMATORS or cls in transformers.known().values():
            return {cls.__name__: self._estimator(value, way)}
        if cls is slice:
            return {"slice": self._items((value.start, value.stop, value.step), way)}
        if cls is type and value in _TYPE_NAMES:
            return {"type": _TYPE_NAMES[value]}
        if isinstance(value, np.dtype):
            return self._dtype(value, way)
        if cls in _OBJECTS:
            names = inspect.signature(cls).parameters
            return {cls.__name__: self._fields({k: getattr(value, k) for k in names}, way)}
        raise _refusal(value, way)

    def _items(self, values: Any, way: tuple[str, ...]) -> list[Any]:
        return [self.encode(value, (*way, f"[{k}]")) for k, value in enumerate(values)]

    def _fields(self, values: dict[str, Any], way: tuple[str, ...]) -> dict[str, Any]:
        return {name: self._field(name, value, way) for name, value in values.items()}

    def _field(self, name: str, value: Any, way: tuple[str, ...]) -> Any:
        if name in _OF_ROWS and isinstance(value, np.ndarray) and not self._include_weights:
            value = self._nothing
        return self.encode(value, (*way, f".{name}"))

    def _pair(self, key: Any, value: Any, way: tuple[str, ...]) -> list[Any]:
        if type(key) not in (bool, int, float, str) and not isinstance(key, np.generic):
            raise TypeError(
                f"{''.join(way)} has the key {shown(key)} ({type(key).__name__}), but drago.save "
                "takes numbers, bool and str as keys; use pickle or joblib for this model instead."
            )
        return [self.encode(key, way), self.encode(value, (*way, f"[{shown(key)}]"))]

    def _scalar(self, value: Any, way: tuple[str, ...]) -> dict[str, Any]:
        name = "str" if isinstance(value, np.str_) else value.dtype.name
        if name not in _SCALARS:
            raise _refusal(value, way)
        return {name: value.item()}

    def _dtype(self, dtype: np.dtype[Any], way: tuple[str, ...]) -> dict[str, Any]:
        if dtype.kind not in "biufUO" or dtype.names is not None:
            raise _refusal(dtype, way)
        return {"dtype": dtype.str}

    def _array(self, array: Array, way: tuple[str, ...]) -> dict[str, Any]:
        if array.dtype == object:
            items = array.ravel().tolist()
            if not all(_is_plain(item) for item in items):
                raise TypeError(
                    f"{''.join(way)} is an array of objects, but drago.save takes these of str, "
                    "numbers, bool and None only; convert it, or use pickle or joblib for this "
                    "model instead."
                )
            return {"objects": {"shape": list(array.shape), "items": self._items(items, way)}}
        if array.dtype.kind not in "biufU":
            raise TypeError(
                f"{''.join(way)} is an array of dtype {array.dtype}, but drago.save takes bool, "
                "numbers and str; convert it, or use pickle or joblib for this model instead."
            )
        if id(array) not in self._names:  # one that is there twice is stored once
            name = "".join(way[1:]).removeprefix(".")
            if name in self.arrays or not NAME.fullmatch(name):
                name = f"array-{len(self.arrays)}"
            self.arrays[name] = array
            self._names[id(array)] = name
        return {"array": self._names[id(array)]}

    def _columns(self, history: History, way: tuple[str, ...]) -> dict[str, Any]:
        """The records by column: of floats as an array, of others as a list."""
        columns: dict[str, Any] = {}
        for field in fields(Record):
            column = [getattr(record, field.name) for record in history.records]
            floats = all(type(value) is float for value in column)
            columns[field.name] = np.array(column, dtype=np.float64) if floats else column
        return self._fields(columns, way)

    def _estimator(self, model: Any, way: tuple[str, ...]) -> dict[str, Any]:
        params = model.get_params(deep=False)
        fitted = {name: value for name, value in vars(model).items() if name not in params}
        routing = fitted.pop("_metadata_request", None)
        requests = {}
        if routing is not None:
            methods = [name for name in vars(routing) if hasattr(model, f"set_{name}_request")]
            requests = {name: dict(getattr(routing, name).requests) for name in methods}
        if type(model) not in _ESTIMATORS:
            try:
                transformers.check_parts(type(model), params, fitted)
            except ValueError as error:
                raise TypeError(
                    f"{''.join(way)} cannot be stored: {error}; use pickle, joblib or skops for "
                    "this model instead."
                ) from None
        parts = (params, fitted, requests)
        return {name: self._fields(part, way) for name, part in zip(_PARTS, parts)}


def _refusal(value: Any, way: tuple[str, ...]) -> TypeError:
    """Why a value cannot be saved, and what to do."""
    name = "".join(way)
    if isinstance(value, np.random.RandomState):
        return TypeError(
            f"{name} is a RandomState, which drago.save does not store; give an int, as with "
            "set_params(random_state=0)."
        )
    if "._skl_callbacks" in way:
        return TypeError(
            f"{way[0]} has the callback {shown(value)}, which drago.save does not store; take the "
            "callbacks off with set_callbacks()."
        )
    return TypeError(
        f"{name} is {shown(value)} ({type(value).__name__}), which drago.save does not store: it "
        "takes numbers, str, lists, tuples, dicts, arrays, drago's own objects and the usual "
        "transformers of scikit-learn, but no functions and no other classes; use pickle, joblib "
        "or skops for this model instead."
    )


# ------------------------------------------------------------------------------------- reading


def _model(arrays: dict[str, Array], settings: dict[str, Any]) -> Any:
    """The model of an archive; the sum was right, but anyone can compute one."""
    try:
        archive.require_shallow(
            settings["model"], 4 * _MAX_DEPTH
        )  # a value takes four levels at most
        model = _decode(settings["model"], arrays)
    except Exception as error:  # what a constructor says to a wrong tree can be anything
        writer = shown(settings.get("drago"))
        raise ModelFileError(
            f"drago {__version__} cannot make a model of it, which drago {writer} wrote "
            f"({type(error).__name__}: {shown(str(error))})"
        ) from error
    if not _is_model(model):
        raise ModelFileError(f"it holds no model, but {shown(model)}")
    return model


def _decode(tree: Any, arrays: dict[str, Array]) -> Any:
    """The value of a tree."""
    if isinstance(tree, list):
        return [_decode(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tuple":
        return tuple(_decode(item, arrays) for item in content)
    if kind == "dict":
        return {_decode(key, arrays): _decode(value, arrays) for key, value in content}
    if kind == "array":
        return arrays[content]
    if kind == "objects":
        return _objects(content["shape"], _decode(content["items"], arrays))
    if kind == "slice":
        return slice(*(_decode(item, arrays) for item in content))
    if kind == "type":
        return _TYPES[content]
    if kind == "dtype":
        return transformers.dtype_of(content)
    if kind in _SCALARS:
        return _SCALARS[kind](content)
    if kind not in _CLASSES and kind not in transformers.known():
        raise ValueError(f"it holds a {kind}, which is not known")
    cls = _CLASSES.get(kind) or transformers.known()[kind]
    if cls is Status:
        return Status(content)
    if cls in _ESTIMATORS or cls in transformers.known().values():
        return _estimator(cls, *(_values(content[part], arrays) for part in _PARTS))
    values = _values(content, arrays)
    return _history(values) if cls is History else cls(**values)


def _values(trees: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: _decode(tree, arrays) for name, tree in trees.items()}


def _is_plain(item: Any) -> bool:
    return item is None or isinstance(item, (str, bool, int, float, np.generic))


def _objects(shape: list[int], items: list[Any]) -> Array:
    array = np.empty(len(items), dtype=object)
    for k, item in enumerate(items):
        if not _is_plain(item):
            raise TypeError("an array of objects holds str, numbers, bool and None only")
        array[k] = item
    return array.reshape(shape)


def _history(columns: dict[str, Any]) -> History:
    lists = [
        column.astype(np.float64).tolist() if isinstance(column, np.ndarray) else column
        for column in columns.values()
    ]
    rows = zip(*lists, strict=True)
    return History(tuple(Record(**dict(zip(columns, row))) for row in rows))


def _estimator(cls: type, params: Any, fitted: Any, requests: Any) -> Any:
    model = cls(**params)
    if cls not in _ESTIMATORS:
        transformers.check_parts(cls, params, fitted)
    else:
        for name in fitted:  # nothing that would hide a method
            if hasattr(cls, name) or (not name.endswith("_") and not name.startswith("_sklearn_")):
                raise ValueError(f"{name!r} is no attribute of a fitted {cls.__name__}")
    vars(model).update(fitted)
    if requests:
        from sklearn import config_context

        with config_context(enable_metadata_routing=True):  # else requests cannot be set
            for method, request in requests.items():
                getattr(model, f"set_{method}_request")(**request)
    return model
