"""The problem that every solver, engine and benchmark minimises.

Conventions
-----------
Inside the library the coefficients are ``w`` of shape (n_features, n_outputs) and the intercept is
kept apart as ``b`` of shape (n_outputs,), zeros when none is fitted. In public they have
scikit-learn's shapes, (n_features,) and a float for one output, (n_outputs, n_features) and
(n_outputs,) otherwise. ``p`` are the sample weights normalised to sum 1; rows of weight 0 are
dropped at the door.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._html import shows
from drago._interrupts import interruptible
from drago._validation import check_flag, check_number, numeric, shown
from drago.intercept import best_intercept
from drago.rows.base import Evaluation as Evaluation
from drago.rows.base import Gradient as Gradient
from drago.rows.base import NonFiniteLossError as NonFiniteLossError
from drago.rows.base import RowStore
from drago.rows.base import Visit as Visit
from drago.rows.open import on_device, open_rows, with_baseline
from drago.terms.constraints import as_constraint
from drago.terms.divergences import Divergence
from drago.terms.losses import as_loss
from drago.terms.uncertainty import CVaR, as_uncertainty

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class DROProblem:
    """Penalised distributionally robust learning with a linear model.

    The model is fitted for the weights q of the rows that the set Q allows and that hurt it most:

    ``min over w in W  max over q in Q  sum_i q_i (l_i(w) - b_i) - nu D(q || p) + (mu/2) ||w||^2``

    with losses l_i, a baseline b_i (0 unless given), normal weights p, and D, which says how far q
    is from p. The problem never changes, and keeps `X` without a copy where it can.

    Parameters
    ----------
    X : array, sparse matrix or torch tensor of shape (n, n_features), or a source
        float32 or float64 (all else becomes float64), CSR if sparse. Large ones are found to be
        finite, or not, when first read. A tensor stays on its device, and so do the vectors of the
        result (`drago.torch_engine`). A source (`drago.read_parquet`, ...) has its own y (with any
        labels), weights, groups and baseline.
    y : array of shape (n,), or None for a source
        Numbers for regression, {0, 1} for "logistic", 0..k-1 for "multinomial".
    loss : {"squared", "huber", "logistic", "multinomial"}, Loss or callable
    uncertainty : {"cvar", "extremile", "esrm", "chi2_ball", "kl_ball", "simplex"} or a set
    divergence : {"auto", "chi2", "kl"} or Divergence
        How far q is from p is measured by it. "auto": "kl" for `KLBall`, otherwise "chi2".
    shift_cost : float >= 0 or "auto"
        The nu of the formula, in the unit of the loss. 0 allows every reweighting in the set at no
        cost; larger values keep the fit closer to an ordinary one. "auto": 0.1 times the mean loss
        with all coefficients 0 (1.0 times for `Grouped` without a baseline).
    l2_reg : float >= 0
        The mu of the formula.
    sample_weight : array of shape (n,), optional
        Weight k equals k copies of the row. Rows of weight 0 are dropped, and nowhere counted.
    groups : array of shape (n,), optional
        Labels for `Grouped` sets.
    fit_intercept : bool
        The intercept is neither penalised nor constrained.
    constraint : L2Ball, Box, NonNegative or None
        The set W of the coefficients.
    baseline : float or array of shape (n,), optional
        Subtracted from the losses: an estimate of what is attainable on each row, from a model that
        has not seen the row, so that the worst case is about what could be done better.
    process_group : process group, None or False
        Whose ranks share the rows, each with tensors of its own; None is the default group.

    Examples
    --------
    >>> import numpy as np, drago
    >>> X, y = np.eye(3), np.array([1.0, 2.0, 6.0])
    >>> problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.5), shift_cost=0.1)
    >>> problem.worst_case_weights(problem.losses(np.zeros(3))).round(3)
    array([0.   , 0.333, 0.667])
    """

    rows: RowStore
    """Where the rows are, and all that is done with them."""
    _kept: Any = None  # which of the given rows have weight, where some have none

    @interruptible
    def __init__(
        self,
        X: Any,
        y: Any = None,
        *,
        loss: Any = "squared",
        uncertainty: Any = "cvar",
        divergence: Any = "auto",
        shift_cost: float | str = "auto",
        l2_reg: float = 1e-3,
        sample_weight: Any = None,
        groups: Any = None,
        fit_intercept: bool = False,
        constraint: Any = None,
        baseline: Any = None,
        process_group: Any = None,
    ) -> None:
        self.loss = copy.copy(as_loss(loss))
        given = {"sample_weight": sample_weight, "groups": groups, "process_group": process_group}
        self.rows, self._kept, self.n_outputs = open_rows(X, y, loss=self.loss, **given)
        if baseline is not None:
            self.rows = with_baseline(self.rows, baseline, self._kept)
        if self.loss.is_classification and self.n_classes < 2:
            only = int(np.argmax(self.class_masses))
            raise ValueError(
                "y must hold at least two classes among the rows of positive weight, but holds "
                f"only {only}."
            )
        self._settle(fit_intercept, constraint, uncertainty, divergence, l2_reg, shift_cost)

    def _settle(
        self,
        fit_intercept: bool,
        constraint: Any,
        uncertainty: Any,
        divergence: Any,
        l2_reg: float,
        shift_cost: float | str,
    ) -> None:
        """Everything but the rows, and no change from now on."""
        self.fit_intercept = check_flag("fit_intercept", fit_intercept)
        self.constraint = copy.deepcopy(as_constraint(constraint))
        self.constraint.bounds((self.n_features, self.n_outputs))
        self.uncertainty = copy.deepcopy(as_uncertainty(uncertainty))
        self.uncertainty.lock()
        if self.uncertainty.needs_groups and self.rows.groups is None:
            raise ValueError(
                f"{self.uncertainty!r} needs to know the group of each row: give groups=."
            )
        self.divergence: Divergence = self.uncertainty.match(divergence)
        self.mu = check_number("l2_reg", l2_reg, low=0)
        if isinstance(shift_cost, str):
            if shift_cost != "auto":
                raise ValueError(
                    "shift_cost must be a number in [0, inf) or 'auto', "
                    f"but {shift_cost!r} was given."
                )
            share = self.uncertainty.auto_cost(self.baseline is not None)
            self.nu = self.trivial_loss * share
        else:
            self.nu = check_number("shift_cost", shift_cost, low=0)
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen"):
            raise AttributeError(
                f"a DROProblem does not change: make a new one instead of setting {name}."
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle is made of; what was computed from it is computed again."""
        kept = {name: self.__dict__.get(name) for name in self._KEPT}
        return kept if self._kept is None else {**kept, "_kept": self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.__dict__[name] = value
        self.__dict__["_frozen"] = True

    def __repr__(self) -> str:
        return (
            f"DROProblem({self.n_samples} x {self.n_features}, loss={self.loss.name!r}, "
            f"uncertainty={self.uncertainty!r}, divergence={self.divergence.name!r}, "
            f"shift_cost={self.nu:g}, l2_reg={self.mu:g})"
        )

    _repr_html_ = shows("n_samples n_features loss uncertainty divergence shift_cost l2_reg")

    # ---------------------------------------------------------------- sizes and constants

    @property
    def X(self) -> Any:
        return self.rows.X  # type: ignore[attr-defined]

    @property
    def y(self) -> Any:
        return self.rows.y

    @property
    def p(self) -> Any:
        """The sample weights with sum 1, as a vector of the store."""
        return self.rows.p

    @property
    def groups(self) -> Any:
        return self.rows.groups

    @property
    def baseline(self) -> Any:
        """What is subtracted from the losses, as a vector of the store."""
        return self.rows.baseline

    # Kept, because they are asked for all the time.

    @cached_property
    def n_samples(self) -> int:
        return self.rows.n_samples

    @cached_property
    def n_features(self) -> int:
        return self.rows.n_features

    @cached_property
    def n_entries(self) -> int:
        """Numbers that a visit to all rows reads."""
        return self.rows.n_entries

    @cached_property
    def is_sparse(self) -> bool:
        return self.rows.is_sparse

    @cached_property
    def class_masses(self) -> Vector:
        """The nominal weight of each class, for a loss of classes."""
        return self.rows.class_masses(self.p, max(self.n_outputs, 2))

    @property
    def n_classes(self) -> int:
        """Classes among the rows; 1 for regression."""
        return int((self.class_masses > 0).sum()) if self.loss.is_classification else 1

    @property
    def row_norms(self) -> Any:
        """Euclidean norms of the rows, the intercept's 1 included."""
        return self.rows.row_norms(self.fit_intercept)  # type: ignore[attr-defined]

    @property
    def is_convex(self) -> bool:
        """Whether the losses are convex in w: without that there is no certificate."""
        return True

    @property
    def reference_slope(self) -> float:
        """``||grad P||`` where a solve starts, for a problem without certificate."""
        return np.nan

    @cached_property
    def in_float64(self) -> DROProblem:
        """The problem in float64, for certificates."""
        rows = self.rows.in_float64
        return self if rows is self.rows else self._replace(rows=rows)

    @property
    def shift_cost(self) -> float:
        return self.nu

    @property
    def l2_reg(self) -> float:
        return self.mu

    @cached_property
    def smoothness(self) -> float:
        """L: upper bound on the Lipschitz constant of each loss's gradient in w."""
        longest = self.rows.longest(self.fit_intercept)
        return self.loss.curvature * longest**2 if longest > 0 else 0.0

    @cached_property
    def lipschitz(self) -> float:
        """G: upper bound on ``||grad loss_i||``.

        The squared loss has none on all of space; there the bound is over the level set of the
        starting point, ``(mu/2) ||w||^2 <= P(0) + sum_i p_i baseline_i``, and infinite when
        mu = 0.
        """
        if np.isfinite(self.loss.lipschitz) or not self.loss.is_quadratic:
            longest = self.rows.longest(self.fit_intercept)
            return self.loss.lipschitz * longest if longest > 0 else 0.0
        value, b = self.reference
        if self.mu == 0:
            return np.inf
        if self.baseline is not None:
            value += self.rows.dot(self.p, self.baseline)
        radius = np.sqrt(2.0 * max(value, 0.0) / self.mu)
        return self.rows.steepest(float(b[0]), float(radius), self.fit_intercept)

    @cached_property
    def q_max(self) -> float:
        """The largest weight that the set allows a row."""
        return self.rows.q_max(self.uncertainty)

    @cached_property
    def kappa_q(self) -> float:
        """The largest ``q_i / p_i`` that the set allows."""
        return self.rows.kappa_q(self.uncertainty)

    def smoothing(self, error: float) -> float:
        """A shift cost that lowers the maximum over q by at most `error`; for kappa_q > 1.

        ``D(q || p)`` is at most ``(kappa_q - 1) / 2`` (chi2) or ``log kappa_q`` (KL) on the set.
        """
        return error / self.divergence._largest(self.kappa_q)

    # ---------------------------------------------------------------- losses at a point

    def evaluate(self, w: Matrix, b: Vector, raw: Any = None) -> Evaluation:
        """Losses and derivatives at ``(w, b)``; one pass over X, none where `raw` is given."""
        return self.rows.evaluate(self.loss, w, b, raw)

    def gradient(self, ev: Evaluation, q: Any) -> Gradient:
        """``X' (q s)`` and ``q' s``, the gradient of ``sum_i q_i l_i`` in w and b; one pass."""
        return self.rows.gradient(ev.dlosses, q)

    def visit(self, w: Matrix, b: Vector, oracle: Any) -> Visit:
        """Losses, worst-case weights and the gradient with these at ``(w, b)``."""
        return self.rows.visit(self.loss, w, b, oracle, self.nu)

    def dual_oracle(self) -> Any:
        """A new oracle for the weights; it starts each search where its last one ended."""
        return self.rows.oracle(self.uncertainty, self.divergence)

    def violation(self, q: Any) -> float:
        """How far weights are from the set, in mass."""
        return self.rows.violation(self.uncertainty, q)

    def distance(self, q: Any) -> float:
        """``D(q || p)``."""
        return self.rows.distance(self.divergence, q)

    def primal(self, w: Matrix, losses: Any, q: Any) -> float:
        """``sum q l - nu D(q || p) + (mu/2) ||w||^2``."""
        value = self.rows.primal(self.divergence, self.nu, losses, q)
        return float(value + 0.5 * self.mu * np.vdot(w, w))

    # ---------------------------------------------------------------- public functions of coef

    def to_internal(self, coef: Any, intercept: Any = 0.0) -> tuple[Matrix, Vector]:
        """``(w, b)`` from arrays of scikit-learn's shapes."""
        d, k = self.n_features, self.n_outputs
        coef = numeric("coef", coef).astype(np.float64)
        if coef.size != d * k or (k > 1 and coef.shape != (k, d)):
            expected = (d,) if k == 1 else (k, d)
            raise ValueError(f"coef must have shape {expected}, but has shape {coef.shape}.")
        b = numeric("intercept", intercept).astype(np.float64).reshape(-1)
        if b.size == 1 and k > 1:
            b = np.repeat(b, k)
        if b.size != k:
            raise ValueError(f"intercept must have {k} entries, but has shape {b.shape}.")
        if not (np.isfinite(coef).all() and np.isfinite(b).all()):
            raise ValueError("coef and intercept must be finite, but hold NaN or infinity.")
        if b.any() and not self.fit_intercept:
            raise ValueError(
                f"intercept={shown(intercept)} was given, but the problem has fit_intercept=False."
            )
        return np.ascontiguousarray(coef.reshape(k, d).T), b

    def to_public(self, w: Matrix, b: Vector) -> tuple[Vector, Any]:
        """``coef`` and ``intercept`` of scikit-learn's shapes."""
        if self.n_outputs == 1:
            return w[:, 0].copy(), float(b[0])
        return w.T.copy(), b.copy()

    def losses(self, coef: Any, intercept: Any = 0.0) -> Vector:
        """The loss of each row, less its baseline; shape (n,)."""
        return self.rows.export(self.evaluate(*self.to_internal(coef, intercept)).losses)

    def worst_case_weights(self, losses: Any) -> Vector:
        """``argmax over q in Q of sum_i q_i losses_i - nu D(q || p)``."""
        losses = self.rows.enter("losses", losses)
        return self.rows.export(self.dual_oracle().weights(losses, self.nu))

    def on_all_rows(self, weights: Vector) -> Vector:
        """Weights of the problem's rows as weights of all rows that were given."""
        if np.shape(weights) != (self.rows.n_given,):
            raise ValueError(
                f"weights must have one entry per row of positive weight, shape "
                f"({self.rows.n_given},), but has shape {np.shape(weights)}."
            )
        if self._kept is None:
            return weights
        return self.rows.spread(weights, self._kept)

    def objective(self, coef: Any, intercept: Any = 0.0) -> float:
        """``P(w)``, the value that is minimised (coef is not checked against W)."""
        w, b = self.to_internal(coef, intercept)
        losses = self.evaluate(w, b).losses
        return self.primal(w, losses, self.dual_oracle().weights(losses, self.nu))

    # ---------------------------------------------------------------- the reference point

    @property
    def origin(self) -> tuple[Matrix, Vector]:
        """The trivial model: w = 0 (projected onto W) with its best intercept."""
        w = self.constraint.project(np.zeros((self.n_features, self.n_outputs)))
        return w, self.reference[1]

    @property
    def reference(self) -> tuple[float, Vector]:
        """``P_0`` and its intercept: the objective at w = 0 (projected onto W), best intercept."""
        return self._trivial[:2]

    @property
    def scale(self) -> float:
        """The size of what the objective is made of at the trivial model."""
        return self.size_of(self._trivial[0])

    @property
    def cancelling(self) -> float:
        """The size of what cancels in the objective of the trivial model.

        The greatest ``|loss_i - baseline_i|``, and 0 for losses without a baseline.
        """
        return self._trivial[2]

    def size_of(self, value: float) -> float:
        """The size of what an objective of this value is made of, for its rounding."""
        return max(abs(value), self.cancelling)

    @cached_property
    def _trivial(self) -> tuple[float, Vector, float]:
        """``P_0``, its intercept, and the size of what cancels in it."""
        problem, w = self._at_zero
        b = np.zeros(self.n_outputs)
        raw = problem.rows.predict(w, b)
        if self.fit_intercept:
            b = best_intercept(problem, raw)
            raw = problem.rows.shift(raw, b)
        losses = problem.evaluate(w, b, raw).losses
        value = problem.primal(w, losses, problem.dual_oracle().weights(losses, self.nu))
        cancelling = 0.0
        if self.baseline is not None:
            cancelling = max(abs(end) for end in self.rows.extremes(losses))
        return value, b, cancelling

    @property
    def _at_zero(self) -> tuple[DROProblem, Matrix]:
        """The problem and w = 0 (projected onto W); one row a class where that will do."""
        w = self.constraint.project(np.zeros((self.n_features, self.n_outputs)))
        if w.any() or not self.loss.is_classification or self.uncertainty.is_users:
            return self, w
        few = self.rows.condensed(max(self.n_outputs, 2))
        if few is None:
            return self, w
        return self._replace(rows=few), np.zeros((1, self.n_outputs))

    @cached_property
    def trivial_loss(self) -> float:
        """The mean of the plain losses of the trivial model."""
        rows = self.rows if self.baseline is None else self.rows.with_baseline(None)
        mean = CVaR(1.0)
        plain = self._replace(rows=rows, uncertainty=mean, divergence=mean.match("auto"), nu=1.0)
        problem, w = plain._at_zero
        raw = problem.rows.predict(w, np.zeros(self.n_outputs))
        if self.fit_intercept:
            raw = problem.rows.shift(raw, best_intercept(problem, raw))
        losses = problem.evaluate(w, np.zeros(self.n_outputs), raw).losses
        return float(problem.rows.dot(problem.p, losses))

    # ---------------------------------------------------------------- smaller relatives

    _KEPT: tuple[str, ...] = (
        "rows", "loss", "n_outputs", "fit_intercept", "constraint", "uncertainty", "divergence",
        "mu", "nu",
    )  # fmt: skip

    def _replace(self, **changes: Any) -> DROProblem:
        names = ("X", "y", "p", "groups", "baseline")
        data = {name: changes.pop(name) for name in names if name in changes}
        if data:
            changes["rows"] = self.rows.replaced(**data)  # type: ignore[attr-defined]
        other = object.__new__(type(self))
        kept = {key: self.__dict__.get(key) for key in self._KEPT}
        other.__dict__.update(kept, **changes, _frozen=True)
        return other

    def take(self, index: Array) -> DROProblem:
        """The problem on some of the rows, their weights normalised anew."""
        return self._replace(rows=self.rows.take(index))

    def moved(self, device: Any, process_group: Any = None) -> DROProblem:
        """The problem with its rows on a device of torch, shared by the ranks of a group."""
        rows = on_device(self.rows, device, self.loss, self.uncertainty, process_group)
        return self if rows is self.rows else self._replace(rows=rows, _kept=self._kept)


def check_problem(problem: Any) -> DROProblem:
    """`problem`, if it is one."""
    if not isinstance(problem, DROProblem):
        raise TypeError(
            f"problem must be a DROProblem, but a {type(problem).__name__} was given; "
            "for arrays use DROProblem(X, y, ...)."
        )
    return problem
