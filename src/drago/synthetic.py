"""What a data set is, and drawn ones; `drago.datasets` has the public names."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

Task = Literal["regression", "binary", "multiclass"]
Array = NDArray[Any]

_CHUNK_ROWS = 8192  # rows that make_synthetic draws at a time


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Features and targets of one data set.

    Attributes
    ----------
    name, task : str
        Its name, and its kind: "regression", "binary" or "multiclass".
    X : ndarray or CSR array of shape (n_samples, n_features)
        Training features.
    y : ndarray of shape (n_samples,)
        Training targets; classes are the integers 0, 1, ...
    X_val, y_val, X_test, y_test : array or None
        Validation and test parts, where there are any.
    groups : ndarray of shape (n_samples,) or None
        Group of each training row, where there are any.
    description : str
        Where the data come from and how they were prepared.

    Examples
    --------
    >>> from drago import datasets
    >>> data = datasets.load("diabetes")
    >>> data.X.shape, data.y.shape
    ((442, 10), (442,))
    """

    name: str
    task: Task
    X: Any
    y: Array
    X_val: Any = None
    y_val: Array | None = None
    X_test: Any = None
    y_test: Array | None = None
    groups: Array | None = None
    description: str = ""

    def __repr__(self) -> str:
        n_rows, n_columns = self.X.shape
        return f"Dataset({self.name!r}, {self.task}, {n_rows} x {n_columns})"


def make_synthetic(
    n_samples: int,
    n_features: int,
    *,
    task: Task = "regression",
    n_classes: int = 3,
    condition_number: float = 1.0,
    tail_heaviness: float = 0.0,
    subgroup_fraction: float = 0.0,
    noise: float = 1.0,
    density: float | None = None,
    dtype: DTypeLike = np.float64,
    random_state: Any = 0,
) -> Dataset:
    """Draw a linear problem with heavy tails, bad conditioning and a hidden subgroup at will.

    The target is ``x @ coef + noise * e``, where ``x @ coef`` has variance 1; a binary target is
    its sign (0 or 1), a multiclass one the largest of `n_classes` such values. The rows of the
    subgroup follow other coefficients, whose scores are not positively correlated with the first.

    Parameters
    ----------
    n_samples, n_features : int
        Size of the data.
    task : {"regression", "binary", "multiclass"}, default="regression"
        Kind of target.
    n_classes : int, default=3
        Number of classes of a multiclass problem.
    condition_number : float, default=1.0
        Condition number of the features' covariance, whose eigenvalues have mean 1 and even steps
        in logarithm, in random directions (for sparse features along the axes).
    tail_heaviness : float in [0, 1], default=0.0
        Tail index of the noise: Gaussian at 0, else Student's t with ``1 / tail_heaviness``
        degrees of freedom; no variance from 0.5 on, no mean at 1.
    subgroup_fraction : float in [0, 1], default=0.0
        Fraction of rows in the subgroup; `Dataset.groups` is 1 there and 0 elsewhere.
    noise : float, default=1.0
        Scale of the noise, its standard deviation if Gaussian.
    density : float in (0, 1] or None, default=None
        Expected fraction of nonzero features of a CSR array; None gives a dense array.
    dtype : {float64, float32}, default=float64
        Type of the features and of a regression target.
    random_state : int, None, SeedSequence or Generator, default=0
        Seed. The features do not depend on the arguments of the target.

    Returns
    -------
    Dataset
        With `groups` and without a test part.

    Examples
    --------
    >>> from drago import datasets
    >>> data = datasets.make_synthetic(n_samples=100, n_features=5, random_state=0)
    >>> data.X.shape
    (100, 5)
    """
    require(task in get_args(Task), "task", task, f"one of {', '.join(get_args(Task))}")
    _require_number("n_samples", n_samples, 1)
    _require_number("n_features", n_features, 1)
    _require_number("n_classes", n_classes, 2)
    _require_number("condition_number", condition_number, 1)
    _require_number("tail_heaviness", tail_heaviness, 0, 1)
    _require_number("subgroup_fraction", subgroup_fraction, 0, 1)
    _require_number("noise", noise, 0)
    if density is not None:
        _require_number("density", density, 0, 1)
        require(density > 0, "density", density, "None or a number in (0, 1]")
    dtypes = (np.float64, np.float32, "float64", "float32")
    require(dtype in dtypes, "dtype", dtype, "float64 or float32")
    try:
        features, coefs, members, errors = np.random.default_rng(random_state).spawn(4)
    except (TypeError, ValueError) as error:
        allowed = "None, a non-negative integer, a SeedSequence or a Generator"
        raise type(error)(f"random_state must be {allowed}; got {random_state!r}.") from error

    # Covariance = root.T @ root; root is kept as a vector where it is diagonal.
    root = np.geomspace(1.0, condition_number**-0.5, n_features)
    root *= math.sqrt(n_features / (root @ root))
    if density is not None:
        X = _draw_sparse(features, n_samples, root, density, np.dtype(dtype))
    else:
        if condition_number > 1:
            basis = np.linalg.qr(features.standard_normal((n_features, n_features)))[0]
            root = root[:, None] * basis
        X = np.empty((n_samples, n_features), dtype)
        for rows in _chunks(n_samples):
            features.standard_normal(dtype=X.dtype, out=X[rows])
            if root.ndim == 2:
                X[rows] = X[rows] @ root.astype(dtype, copy=False)

    coef = coefs.standard_normal((2, n_features, n_classes if task == "multiclass" else 1))
    spread = root @ coef if root.ndim == 2 else root[:, None] * coef
    coef /= np.linalg.norm(spread, axis=1, keepdims=True)
    coef[1] *= -np.sign((spread[0] * spread[1]).sum(axis=0))
    coef = coef.astype(dtype)
    groups = np.zeros(n_samples, np.int64)
    groups[members.permutation(n_samples)[: round(subgroup_fraction * n_samples)]] = 1
    y = np.empty(n_samples, dtype if task == "regression" else np.int64)
    for rows in _chunks(n_samples):
        scores = X[rows] @ coef[0]
        if subgroup_fraction > 0:
            scores = np.where(groups[rows, None] == 1, X[rows] @ coef[1], scores)
        if tail_heaviness > 0:
            scores += noise * errors.standard_t(1 / tail_heaviness, scores.shape)
        else:
            scores += noise * errors.standard_normal(scores.shape)
        if task == "multiclass":
            y[rows] = scores.argmax(axis=1)
        else:
            y[rows] = scores[:, 0] if task == "regression" else scores[:, 0] > 0
    return Dataset("synthetic", task, X, y, groups=groups, description="Drawn by make_synthetic.")


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK_ROWS) for start in range(0, n, _CHUNK_ROWS))


def _draw_sparse(rng: np.random.Generator, n: int, root: Array, density: float, dtype: Any) -> Any:
    from scipy.sparse import csr_array

    # Gaps between the nonzeros of a Bernoulli pattern are geometric: no n x d mask is needed.
    n_cells = n * len(root)
    mean = density * n_cells
    cells = np.cumsum(rng.geometric(density, int(mean + 10 * math.sqrt(mean) + 10))) - 1
    rows, columns = np.divmod(cells[: np.searchsorted(cells, n_cells)], len(root))
    values = rng.standard_normal(len(rows), dtype=dtype)
    values *= (root / math.sqrt(density)).astype(dtype)[columns]
    starts = np.searchsorted(rows, np.arange(n + 1))
    index = np.int32 if max(len(rows), len(root)) < 2**31 else np.int64
    return csr_array((values, columns.astype(index), starts.astype(index)), (n, len(root)))


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} must be {allowed}; got {value!r}.")


def _require_number(name: str, value: Any, low: int, high: float = math.inf) -> None:
    whole = name.startswith("n_")
    allowed = f"{'an integer' if whole else 'a number'} of at least {low}"
    allowed += f" and at most {high}" if high < math.inf else ""
    if isinstance(value, bool) or not isinstance(
        value, numbers.Integral if whole else numbers.Real
    ):
        raise TypeError(f"{name} must be {allowed}; got {value!r}.")
    require(low <= float(value) <= high and value != math.inf, name, value, allowed)
