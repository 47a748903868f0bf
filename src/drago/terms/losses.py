"""Losses as functions of the raw prediction ``z = x'w + b``.

Squared      1/2 (z - y)^2
Huber        1/2 r^2 for |r| <= delta, delta (|r| - delta/2) beyond, r = z - y
Logistic     log(1 + exp(-z)) for y = 1, log(1 + exp(z)) for y = 0
Multinomial  log sum_c exp(z_c) - z_y, y in 0..k-1

A user's own loss is a vectorised function ``loss(y, raw) -> (losses, derivatives)``, convex and
differentiable in the raw prediction. It may carry attributes: ``n_outputs`` (default 1; with more,
`raw` and the derivatives have shape (n, n_outputs)), ``curvature`` (an upper bound on the second
derivative) and ``lipschitz`` (an upper bound on the norm of the derivative), both infinite when
absent. Everything works with it except the certificate's curvature bounds, which need to know the
loss's second derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import vector_threads
from drago._validation import (
    LEAST_SQUARE,
    check_number,
    check_option,
    check_vector,
    require_target_scale,
    sum_of_squares,
)
from drago.terms.sums import binary_masses, shrink_heavier, signed_sums

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
_NO_WEIGHTS = np.empty(0)
# Rows that tell the scale of a target, unless all of them are nearly 0.
_SOME = 1 << 12


class Loss:
    """Base of the losses. `raw` and derivatives have shape (n, n_outputs), losses (n,).

    A loss has to have `evaluate`. What it knows besides makes solves faster and certificates
    tighter: the constants, ``second(y, raw)`` with the second derivatives of a loss of one output
    (together with `concordance`), and `balance`.
    """

    name: str
    """What messages call it: the name of the class, unless it says otherwise."""
    code: int | None = None
    """What the kernels know a built-in loss by; None where there are no kernels for it."""
    curvature: float = np.inf
    """Upper bound on the second derivative with respect to the raw prediction."""
    lipschitz: float = np.inf
    """Upper bound on the norm of the derivative; infinite where there is none."""
    concordance: float = np.inf
    """M with ``|third derivative| <= M second derivative``; infinite where none is known."""
    quadratic_within: float = 0.0
    """How far from y the loss is ``(z - y)^2 / 2``: infinitely for the squared loss."""
    is_classification: bool = False
    """Whether y holds classes 0, 1, ..., of which there have to be two."""
    is_of_residuals: bool = False
    """Whether it is a function of ``z - y`` with its minimum at 0."""
    is_users: bool = False
    """Whether it is a user's own function."""
    has_class_hessian: bool = False
    """Whether its Hessian is ``diag(pi) - pi pi'`` with its `probabilities` pi."""

    def __init_subclass__(cls) -> None:
        if not (hasattr(cls, "name") or cls.__name__.startswith("_")):
            cls.name = cls.__name__.lower()

    @property
    def is_quadratic(self) -> bool:
        """Whether it is the squared loss, whose curvature is 1 everywhere."""
        return self.quadratic_within == np.inf

    @property
    def is_bent(self) -> bool:
        """Whether it is quadratic near y, and linear beyond."""
        return 0.0 < self.quadratic_within < np.inf

    @property
    def has_kernels(self) -> bool:
        """Whether compiled code knows the loss; where not, `evaluate` is called."""
        return self.code is not None

    @property
    def parameter(self) -> float:
        """The number that goes with the code."""
        return 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def check_target(self, y: Any, n: int) -> Array:
        """The target in the form that the loss takes, or an error."""
        return check_vector("y", y, n)

    def n_outputs(self, y: Array) -> int:
        """Raw predictions per row."""
        return 1

    def evaluate(self, y: Array, raw: Matrix) -> tuple[Vector, Matrix]:
        """Losses and their derivatives."""
        raise NotImplementedError  # pragma: no cover

    def evaluate_into(self, y: Array, raw: Matrix, losses: Vector, dlosses: Matrix) -> None:
        """The same, written to arrays."""
        losses[:], dlosses[:] = self.evaluate(y, raw)

    has_conjugate: bool = False
    """Whether `balance_sums` and `balance_with` are known."""

    def balance(self, y: Array, raw: Matrix, q: Vector) -> tuple[Matrix, Vector] | None:
        """Slopes ``alpha`` near the derivatives with ``sum_i q_i alpha_i = 0`` exactly.

        Returns them with the Fenchel-Young terms ``l_i + l_i*(alpha_i) - alpha_i z_i >= 0``, or
        None where the loss knows no conjugate. The certificate of a fit with an unpenalised
        intercept rests on these.
        """
        if not self.has_conjugate:
            return None
        masses = None
        if self.has_class_hessian:
            masses = np.bincount(y, weights=q, minlength=raw.shape[1]).astype(np.float64)
        return self.balance_with(y, raw, q, self.balance_sums(y, raw, q, masses), masses)

    def balance_sums(self, y: Array, raw: Matrix, q: Vector, masses: Vector | None) -> Vector:
        """What `balance_with` needs to know of all rows: sums over them.

        `masses` are the weights ``q`` of the classes, for a loss of several outputs.
        """
        raise NotImplementedError  # pragma: no cover

    def balance_with(
        self, y: Array, raw: Matrix, q: Vector, sums: Vector, masses: Vector | None
    ) -> tuple[Matrix, Vector]:
        """`balance` for some of the rows, from the sums over all of them."""
        raise NotImplementedError  # pragma: no cover


class _Compiled(Loss):
    """What the losses with kernels share. The kernels compare the lengths, at no cost."""

    def evaluate(self, y: Array, raw: Matrix) -> tuple[Vector, Matrix]:
        losses, dlosses = np.empty(raw.shape[:1]), np.empty(raw.shape)
        self.evaluate_into(y, raw, losses, dlosses)
        return losses, dlosses

    def evaluate_into(self, y: Array, raw: Matrix, losses: Vector, dlosses: Matrix) -> None:
        try:
            fits = y.ndim == losses.ndim == 1 and raw.ndim == dlosses.ndim == 2
            fits = fits and self._fill(*self._taken(y, raw), losses, dlosses)
        except (SystemError, ImportError):  # an interrupt; no kernels
            raise
        except Exception as error:  # no arrays, or not of numbers
            raise self._refusal(y, raw) from error
        if not fits:
            raise self._refusal(y, raw)

    def _taken(self, y: Array, raw: Matrix) -> tuple[Array, Matrix]:
        """The arrays as kernels take them: one type, one order. As they are where that is so."""
        if not raw.flags.c_contiguous or raw.dtype != np.float64:
            raw = np.ascontiguousarray(raw, np.float64)
        kind = np.int64 if self.has_class_hessian else np.float64
        if not y.flags.c_contiguous or y.dtype != kind:
            y = np.ascontiguousarray(y).astype(kind, casting="safe")
        return y, raw

    def _fill(self, y: Array, raw: Matrix, losses: Vector, dlosses: Matrix) -> bool:
        """Fill the arrays where they fit together; returns whether they do."""
        raise NotImplementedError  # pragma: no cover

    def _refusal(self, y: Any, raw: Any, *weights: Any) -> Exception:
        """Why these arrays are not taken."""
        given = [np.asarray(values) for values in (y, raw, *weights)]
        kinds = "".join(values.dtype.kind for values in given)
        several = self.has_class_hessian
        numbers = set(kinds) <= set("biuf") and not (several and kinds[0] not in "iu")
        labels = " of integers in [0, n_outputs)" if several else ""
        return (ValueError if numbers else TypeError)(
            f"{self!r} takes arrays of numbers: y of shape (n,){labels}, raw predictions of shape "
            f"(n, {'n_outputs' if several else 1}), and weights or losses of shape (n,); but given "
            f"were {', '.join(f'{values.dtype} of shape {values.shape}' for values in given)}."
        )

    def _require_rows(self, y: Array, raw: Matrix, q: Vector) -> None:
        """An error where the arrays are of different numbers of rows."""
        if not (y.ndim == 1 and raw.ndim == 2 and y.shape == q.shape and len(raw) == len(y)):
            raise self._refusal(y, raw, q)


class _SingleOutput(_Compiled):
    def _fill(self, y: Array, raw: Matrix, losses: Vector, dlosses: Matrix) -> bool:
        arrays = y, raw, losses, dlosses
        return kernels.single_output(self.code, self.parameter, *arrays, vector_threads(y.size))

    def second(self, y: Array, raw: Matrix) -> Vector:
        """Second derivatives."""
        return self._weighted_second(y, raw, _NO_WEIGHTS)

    def _weighted_second(self, y: Array, raw: Matrix, q: Vector) -> Vector:
        """The same, times `q` if there are weights."""
        if y.ndim != 1 or raw.shape != (y.size, 1):
            raise self._refusal(y, raw)
        arrays = *self._taken(y, raw), q, vector_threads(y.size)
        return kernels.second_single_output(self.code, self.parameter, *arrays)


class _Regression(_SingleOutput):
    is_of_residuals = True

    def check_target(self, y: Any, n: int) -> Array:
        y = check_vector("y", y, n)
        # The squares of the first rows are nearly always enough.
        if sum_of_squares(y[:_SOME]) < LEAST_SQUARE * n > sum_of_squares(y):
            require_target_scale(float(np.abs(y).max()))
        return y


class Squared(_Regression):
    """Half the squared error, ``1/2 (z - y)^2``, with the prediction z.

    Examples
    --------
    >>> import numpy as np, drago
    >>> losses, slopes = drago.Squared().evaluate(np.array([1.0, 1.0]), np.array([[1.0], [3.0]]))
    >>> losses
    array([0., 2.])
    """

    name, code, curvature, concordance = "squared", 0, 1.0, 0.0
    quadratic_within = np.inf

    has_conjugate = True

    def balance_sums(self, y: Array, raw: Matrix, q: Vector, masses: Vector | None) -> Vector:
        self._require_rows(y, raw, q)
        return np.array([np.dot(q, raw[:, 0] - y), q.sum()])

    def balance_with(
        self, y: Array, raw: Matrix, q: Vector, sums: Vector, masses: Vector | None
    ) -> tuple[Matrix, Vector]:
        mean = sums[0] / sums[1]
        return (raw[:, 0] - y - mean)[:, None], np.full(y.shape[0], 0.5 * mean * mean)


class Huber(_Regression):
    """Squared for small errors ``r = z - y``, linear for large ones.

    ``1/2 r^2`` for ``|r| <= delta``, ``delta (|r| - delta/2)`` beyond.

    Parameters
    ----------
    delta : float > 0
        Where the loss turns from quadratic to linear, in the unit of the target.

    Examples
    --------
    >>> import numpy as np, drago
    >>> y, raw = np.zeros(3), np.array([[0.5], [1.0], [4.0]])
    >>> drago.Huber(delta=1.0).evaluate(y, raw)[0]
    array([0.125, 0.5  , 3.5  ])
    """

    name, code, curvature = "huber", 1, 1.0

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = check_number("delta", delta, low=0, open_low=True)
        self.lipschitz = self.delta

    def __repr__(self) -> str:
        return f"Huber(delta={self.delta:g})"

    @property
    def quadratic_within(self) -> float:  # type: ignore[override]
        return self.delta

    @property
    def parameter(self) -> float:
        return self.delta

    has_conjugate = True

    def balance_sums(self, y: Array, raw: Matrix, q: Vector, masses: Vector | None) -> Vector:
        self._require_rows(y, raw, q)
        return signed_sums(np.clip(raw[:, 0] - y, -self.delta, self.delta), q)

    def balance_with(
        self, y: Array, raw: Matrix, q: Vector, sums: Vector, masses: Vector | None
    ) -> tuple[Matrix, Vector]:
        r = raw[:, 0] - y
        slopes = np.clip(r, -self.delta, self.delta)
        alpha, _ = shrink_heavier(slopes, sums)
        size, a = np.abs(r), np.abs(alpha)
        beyond = (self.delta - a) * (size - 0.5 * (self.delta + a))
        young = np.where(size > self.delta, beyond, 0.5 * (alpha - slopes) ** 2)
        return alpha[:, None], young


class Logistic(_SingleOutput):
    """The log loss of two classes: ``log(1 + exp(-z))`` for y = 1, ``log(1 + exp(z))`` for y = 0.

    Examples
    --------
    >>> import numpy as np, drago
    >>> y, raw = np.array([1.0, 0.0]), np.array([[2.0], [2.0]])
    >>> drago.Logistic().evaluate(y, raw)[0].round(3)
    array([0.127, 2.127])
    """

    name, code = "logistic", 2
    curvature, lipschitz, concordance = 0.25, 1.0, 1.0
    is_classification = True

    def check_target(self, y: Any, n: int) -> Array:
        y = check_vector("y", y, n)
        if binary_masses(y, y)[2] > 0:
            raise ValueError(
                f"y must hold 0 and 1 for the logistic loss, but holds {np.unique(y)[:5]}; "
                "encode the labels."
            )
        return y

    has_conjugate = True

    def balance_sums(self, y: Array, raw: Matrix, q: Vector, masses: Vector | None) -> Vector:
        self._require_rows(y, raw, q)
        return signed_sums(self.evaluate(y, raw)[1][:, 0], q)

    def balance_with(
        self, y: Array, raw: Matrix, q: Vector, sums: Vector, masses: Vector | None
    ) -> tuple[Matrix, Vector]:
        losses, dlosses = self.evaluate(y, raw)
        alpha, scale = shrink_heavier(dlosses[:, 0], sums)
        a = np.abs(alpha)
        # KL divergence between the Bernoulli laws of a and of |derivative| = a / scale, whose
        # complement is exp(-loss).
        with np.errstate(divide="ignore", invalid="ignore"):
            young = np.where(a > 0, a * np.log(scale), 0.0)
            young += np.where(scale < 1, (1.0 - a) * (np.log1p(-a) + losses), 0.0)
        return alpha[:, None], np.maximum(young, 0.0)


class Multinomial(_Compiled):
    """The log loss of several classes, ``log sum_c exp(z_c) - z_y``.

    Examples
    --------
    >>> import numpy as np, drago
    >>> drago.Multinomial().evaluate(np.array([2]), np.array([[2.0, 0.0, 0.0]]))[0].round(2)
    array([2.24])
    """

    name, code, curvature, lipschitz = "multinomial", 3, 0.5, float(np.sqrt(2.0))
    is_classification = has_class_hessian = True

    def check_target(self, y: Any, n: int) -> Array:
        y = check_vector("y", y, n)
        if (y != np.round(y)).any() or y.min() < 0:
            raise ValueError(
                "y must hold the integers 0..k-1 for the multinomial loss, but holds "
                f"{np.unique(y)[:5]}; encode the labels."
            )
        if y.max() >= max(n, 2):
            raise ValueError(
                "y must hold the integers 0..k-1 for the multinomial loss, with no more classes "
                f"than rows, but holds the label {y.max():.0f} on {n} rows; encode the labels."
            )
        return y.astype(np.int64)

    def n_outputs(self, y: Array) -> int:
        return int(y.max()) + 1

    def _fill(self, y: Array, raw: Matrix, losses: Vector, dlosses: Matrix) -> bool:
        return kernels.multinomial(y, raw, losses, dlosses)

    def probabilities(self, raw: Matrix) -> Matrix:
        """Softmax of each row."""
        if np.ndim(raw) != 2:
            raise ValueError(f"raw must have shape (n, n_outputs), but has shape {np.shape(raw)}.")
        e = np.exp(raw - raw.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    has_conjugate = True

    @staticmethod
    def _restricted(raw: Matrix, there: Array) -> Matrix:
        """The probabilities of the classes that have weight, among these."""
        inside = raw if there.all() else raw[:, there]
        found = inside - inside.max(axis=1, keepdims=True)
        np.exp(found, out=found)
        found /= found.sum(axis=1, keepdims=True)
        return found

    def balance_sums(self, y: Array, raw: Matrix, q: Vector, masses: Vector | None) -> Vector:
        self._require_rows(y, raw, q)
        assert masses is not None
        return q @ self._restricted(raw, masses > 0)

    def balance_with(
        self, y: Array, raw: Matrix, q: Vector, sums: Vector, masses: Vector | None
    ) -> tuple[Matrix, Vector]:
        assert masses is not None
        mass, mean, there = masses, sums, masses > 0
        restricted = self._restricted(raw, there)
        with np.errstate(divide="ignore"):
            keep = min(1.0, float((mass[there] / mean).min()))
        if keep < 1.0:
            rest = (mass[there] - keep * mean) / (1.0 - keep)
            restricted = keep * restricted + (1.0 - keep) * np.maximum(rest, 0.0)
        top = raw.max(axis=1, keepdims=True)
        log_all = raw - (top + np.log(np.exp(raw - top).sum(axis=1, keepdims=True)))
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = restricted * (np.log(restricted) - log_all[:, there])
        young = np.where(restricted > 0, terms, 0.0).sum(axis=1)
        alpha = np.zeros(raw.shape)
        alpha[:, there] = restricted
        alpha[np.arange(y.shape[0]), y] -= 1.0
        return alpha, np.maximum(young, 0.0)

    def balance(self, y: Array, raw: Matrix, q: Vector) -> tuple[Matrix, Vector] | None:
        """Compiled where all classes have weight."""
        self._require_rows(y, raw, q)
        masses = np.bincount(y, weights=q, minlength=raw.shape[1]).astype(np.float64)
        if not (masses > 0).all():
            return super().balance(y, raw, q)
        losses, alpha = self.evaluate(y, raw)
        mean, young = q @ alpha + masses, np.zeros(losses.shape)
        keep = min(1.0, float((masses / np.maximum(mean, np.finfo(float).tiny)).min()))
        if keep < 1.0:
            rest = np.maximum((masses - keep * mean) / (1.0 - keep), 0.0)
            y, raw = self._taken(y, raw)
            if not kernels.class_balance(y, raw, losses, keep, rest, alpha, young):
                raise self._refusal(y, raw)
        return alpha, young


class UserLoss(Loss):
    """Adapter of a user's own function ``loss(y, raw) -> (losses, derivatives)``."""

    is_users = True

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.curvature = float(getattr(function, "curvature", np.inf))
        self.lipschitz = float(getattr(function, "lipschitz", np.inf))
        self._n_outputs = int(getattr(function, "n_outputs", 1))

    def __repr__(self) -> str:
        return f"UserLoss({self.name})"

    def n_outputs(self, y: Array) -> int:
        return self._n_outputs

    def evaluate(self, y: Array, raw: Matrix) -> tuple[Vector, Matrix]:
        out = self.function(y, raw[:, 0] if self._n_outputs == 1 else raw)
        if not isinstance(out, tuple) or len(out) != 2:
            raise ValueError(
                f"the loss {self.name} must return the pair (losses, derivatives), "
                f"but returned {type(out).__name__}."
            )
        losses = np.ascontiguousarray(out[0], dtype=np.float64)
        dlosses = np.ascontiguousarray(out[1], dtype=np.float64)
        if losses.shape != (raw.shape[0],) or dlosses.size != raw.size:
            raise ValueError(
                f"the loss {self.name} must return losses of shape {(raw.shape[0],)} and "
                f"derivatives of shape {raw.shape}, "
                f"but returned {losses.shape} and {dlosses.shape}."
            )
        return losses, dlosses.reshape(raw.shape)


_BY_NAME: dict[str, type[Loss]] = {
    "squared": Squared,
    "huber": Huber,
    "logistic": Logistic,
    "multinomial": Multinomial,
}


def as_loss(loss: Any) -> Loss:
    """A loss from an object, a name or a user's own function."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) or not callable(loss) or isinstance(loss, type):
        return _BY_NAME[check_option("loss", loss, _BY_NAME)]()
    return UserLoss(loss)
