"""What a row store is: the only code that touches a vector with an entry for each row.

Everywhere else such a vector is opaque: it comes from a store, and can be handed back to it. What a
solver or the judge wants from the rows is an operation of the store. Each is a map over the parts
of the rows (an array, a card, a file, a worker) or a sum over them, in their order:

*map*       vectors in, a vector out, row by row
*sum*       vectors in, small arrays out: the sum over the rows
*greatest*  vectors in, a number out: the maximum over the rows
*choose*    vectors in, a selection out: some of the rows, opaque like a vector

Coefficients, gradients and matrices of the features are small, and NumPy arrays everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from drago.rows.evaluation import Evaluation as Evaluation
from drago.rows.evaluation import Gradient as Gradient
from drago.rows.evaluation import NonFiniteLossError as NonFiniteLossError
from drago.rows.evaluation import Visit as Visit
from drago.rows.factor import Factor
from drago.rows.kinds import is_a as is_a
from drago.rows.processes import OneProcess

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
RowVector = Any
"""A vector with an entry for each row (or a matrix with a row for each): opaque."""
Selection = Any
"""Some of the rows: opaque."""
Index = npt.NDArray[np.int64]
"""Numbers of a few rows."""
Kept = npt.NDArray[np.bool_] | None
"""Which of the rows that were given have weight; None for all of them."""


class RowStore(OneProcess):
    """The rows of a problem, wherever they are.

    Attributes
    ----------
    n_samples, n_features : int
    n_entries : int
        Numbers that a visit to all rows reads.
    is_sparse : bool
    p : row vector
        The nominal weights: positive, with sum 1.
    y, groups, baseline : row vectors
        `groups` and `baseline` may be None. Losses of a store are those of the model less it.
    """

    n_samples: int
    n_features: int
    n_entries: int
    p: RowVector
    y: RowVector
    groups: RowVector | None
    baseline: RowVector | None = None

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What solvers may need: "single rows" (steps on one of them), "whole vectors" (sets of a
    user's own), "compiled" (arrays for that), "responses" (how weights move with losses), "tables"
    (for DRAGO), "witnesses" (of all rows), "bounds" (rows without weight need not be read)."""
    own_metric: Callable[..., Any] | None = None
    """``(problem, kind, floor) -> (Metric, passes)`` where there is no X to make a metric from."""
    is_linear: bool = True
    """Whether predictions are ``X w + b``."""
    is_on_host: bool = True
    """Whether the rows are in the memory of this machine's processor, and visits end at once: on a
    device a visit that is broken off may still write to its vectors."""
    is_sparse: bool = False
    is_uniform: bool = False
    """Whether all nominal weights are known to be equal."""
    n_rounds: int = 0
    notice: str = ""  # where the rows are, if that is worth a word to whoever watches
    least_part: int = 2000
    most_part: int = 1 << 62
    """Rows below which a smaller problem takes no less time, and those that `take` has room for."""
    thin: float = 0.4
    """The share of rows below which DRAGO visits these alone, and not a block: it is exact then."""
    small: int = 1 << 19
    """Entries of X below which a visit costs less than what goes with it."""

    def has(self, capability: str) -> bool:
        """Whether the store can do this."""
        return capability in self.capabilities

    def responds(self, uncertainty: Any, n_outputs: int) -> bool:
        """Whether "responses" are about weights of this set."""
        return True

    def has_cheap_gram(self, loss: Any) -> bool:
        """Whether the Gram matrix of all rows takes no longer than that of a few."""
        return False

    def visits_once(self, loss: Any, n_outputs: int) -> bool:
        """Whether `visit` reads X once, and little more of it."""
        return False

    @property
    def in_float64(self) -> RowStore:
        """The same rows in float64, for certificates."""
        return self

    # ------------------------------------------------------------------------ in and out

    def export(self, values: RowVector) -> Any:
        """A row vector for the user, in the form in which the rows were given."""
        raise NotImplementedError

    def content(self) -> tuple[Any, ...]:
        """The arrays that the rows are made of, to tell them from others."""
        raise NotImplementedError

    def imported(self, array: Any) -> RowVector:
        """A row vector (or matrix) from what `export` made of it."""
        raise NotImplementedError

    def enter(self, name: str, values: Any, kept: Kept = None) -> RowVector:
        """A row vector that a user has given; for all rows, of which these were kept."""
        raise NotImplementedError

    def spread(self, weights: Any, kept: npt.NDArray[np.bool_]) -> Any:
        """Exported weights as weights of all rows that were given, of which these were kept."""
        out = np.zeros(kept.size)
        out[kept] = weights
        return out

    def take(self, index: Index) -> RowStore:
        """Some of the rows, in a store of the same kind; their weights sum to 1."""
        raise NotImplementedError

    def sample(self, index: Index) -> Any:
        """A few of the rows as arrays (`drago.rows.memory.ArrayRows`); their weights sum to 1."""
        raise NotImplementedError

    def with_baseline(self, baseline: RowVector | None) -> RowStore:
        """The same rows, with this subtracted from their losses."""
        raise NotImplementedError

    def condensed(self, n_classes: int) -> RowStore | None:
        """One row of zeros for each class (and group), with its weight: at w = 0 it is the same.

        None where these are hardly fewer than the rows, or a baseline tells rows of a class apart.
        """
        raise NotImplementedError

    def oracle(self, uncertainty: Any, divergence: Any) -> Any:
        """A new oracle for the weights; it starts each search where its last one ended."""
        raise NotImplementedError

    def tables(self, problem: Any, kind: str, count: int, n_threads: int | None) -> Any:
        """Tables for DRAGO (`drago.rows.tables.base`), for the terms of a problem on these rows."""
        raise NotImplementedError

    # ------------------------------------------------------------------------ visits to X

    @is_a("map")
    def predict(self, w: Matrix, b: Vector) -> RowVector:
        """``X w + b`` in float64, of shape (n, n_outputs); no visit for w = 0."""
        raise NotImplementedError

    def evaluate(self, loss: Any, w: Matrix, b: Vector, raw: RowVector = None) -> Evaluation:
        """Losses less the baseline, and derivatives; no visit to X where `raw` is given."""
        raise NotImplementedError

    def visit(self, loss: Any, w: Matrix, b: Vector, oracle: Any, nu: float) -> Visit:
        """Losses, the weights of an oracle at the shift cost `nu`, and the gradient with these."""
        ev = self.evaluate(loss, w, b)
        q = oracle.weights(ev.losses, nu)
        return Visit(ev, q, self.gradient(ev.dlosses, q))

    @is_a("map")
    def apply(self, loss: Any, raw: RowVector) -> tuple[RowVector, RowVector]:
        """Losses, less the baseline, and derivatives at raw predictions, finite or not."""
        raise NotImplementedError

    @is_a("sum")
    def gradient(self, dlosses: RowVector, q: RowVector) -> Gradient:
        """``X' (q s)`` and ``q' s`` with the slopes s."""
        raise NotImplementedError

    @is_a("sum")
    def weighted_sum(self, c: RowVector) -> Matrix:
        """``X' c`` for `c` of shape (n, columns)."""
        raise NotImplementedError

    @is_a("sum")
    def centre(self) -> Vector:
        """``X' p``, the mean of the features."""
        raise NotImplementedError

    @is_a("sum")
    def weighted_squares(self, q: RowVector) -> Vector:
        """``sum_i q_i x_i^2``, feature by feature."""
        raise NotImplementedError

    @is_a("greatest")
    def longest(self, intercept: bool) -> float:
        """The greatest norm of a row, with a last 1 for an intercept."""
        raise NotImplementedError

    @is_a("greatest")
    def steepest(self, b: float, radius: float, intercept: bool) -> float:
        """The greatest ``(|y - b| + radius ||x||) ||x||``."""
        raise NotImplementedError

    @is_a("greatest")
    def steepest_of(self, dlosses: RowVector, index: Index, lengths: Vector) -> float:
        """The greatest ``||s_i|| length_i`` of a few rows."""
        raise NotImplementedError

    @is_a("greatest")
    def drift(self, loss: Any, ev: Evaluation, index: Index, scale: float) -> float:
        """How far losses of some rows may be off, because their predictions are sums of steps.

        Relative to themselves, or to `scale` where that is greater.
        """
        raise NotImplementedError

    # ------------------------------------------------------------- the curvature of some rows

    @is_a("map")
    def curvature(self, loss: Any, raw: RowVector, q: RowVector) -> RowVector:
        """``q_i l_i''``; with several outputs ``q_i`` times its upper bound."""
        raise NotImplementedError

    def heaviest(self, weight: RowVector, size: int) -> Selection:
        """Rows of the greatest weight; where more of them weigh about the same, some of these."""
        raise NotImplementedError

    @is_a("sum")
    def size(self, chosen: Selection) -> int:
        """How many rows there are in a selection."""
        raise NotImplementedError

    @is_a("sum")
    def total(self, values: RowVector, chosen: Selection = None) -> float:
        """The sum over all rows, or over a selection."""
        raise NotImplementedError

    @is_a("sum")
    def gram(self, chosen: Selection, weight: RowVector, intercept: bool) -> Matrix:
        """``sum_i weight_i f_i f_i'`` over a selection, f with a last 1 for an intercept."""
        raise NotImplementedError

    def factor(self, H: Matrix) -> Factor:
        """A Cholesky factor of a matrix of the unknowns."""
        return Factor(H)

    @is_a("map")
    def leverages(self, chosen: Selection, root: Any, intercept: bool) -> RowVector:
        """``||root f_i||`` for the rows of a selection."""
        raise NotImplementedError

    @is_a("greatest")
    def leverage_bound(self, chosen: Selection, root: Any, intercept: bool) -> float:
        """What no entry of `leverages` exceeds, if that is known without a visit."""
        return np.inf

    @is_a("greatest")
    def greatest(self, values: RowVector) -> float:
        """The greatest value; minus infinity where there is none."""
        raise NotImplementedError

    @is_a("choose")
    def narrow(self, chosen: Selection, values: RowVector, most: float) -> Selection:
        """The rows of a selection whose value is at most this."""
        raise NotImplementedError

    @is_a("choose")
    def unbent(self, chosen: Selection, raw: RowVector, step: Gradient, delta: float) -> Selection:
        """The rows of a selection whose residual stays within `delta` after a step."""
        raise NotImplementedError

    @is_a("sum")
    def class_hessian(
        self, loss: Any, chosen: Selection, raw: RowVector, q: RowVector, intercept: bool
    ) -> Matrix:
        """``sum_i q_i (diag(pi_i) - pi_i pi_i') (x) f_i f_i'`` over a selection, class-major."""
        raise NotImplementedError

    @is_a("sum")
    def class_diagonal(
        self, loss: Any, chosen: Selection, raw: RowVector, q: RowVector, intercept: bool
    ) -> Matrix:
        """``sum_i q_i x_i^2 pi_i (1 - pi_i)`` over a selection, of shape (n_features, k).

        `intercept` is that of the other operations, so that rows are gathered once for all of them.
        """
        raise NotImplementedError

    @is_a("map")
    def class_leverages(self, chosen: Selection, inverse: Matrix, intercept: bool) -> RowVector:
        """The root of the largest ``(e_a - e_c)' M (e_a - e_c)`` over pairs of classes.

        ``M_ac = f' inverse_ac f`` for the blocks of `inverse` (k x m x k x m). What is no less
        will do, such as the root of ``2 (M_aa + M_cc)``.
        """
        raise NotImplementedError

    def hessian(
        self, loss: Any, ev: Evaluation, q: RowVector, response: Any, intercept: bool
    ) -> Matrix | None:
        """``sum_i q_i l_i'' + Z' (dq/dl) Z`` with Z the gradients of the losses, class-major.

        None where that is not known.
        """
        raise NotImplementedError

    def hessian_rows(self, q: RowVector = None) -> int:
        """How many rows `hessian` reads with these weights, or at most."""
        return self.n_samples if q is None else self.count(q)

    # ------------------------------------------------------------------- vectors of the rows

    @is_a("map")
    def add(self, x: RowVector, y: RowVector, t: float = 1.0) -> RowVector:
        """``x + t y``."""
        raise NotImplementedError

    @is_a("map")
    def scaled(self, x: RowVector, t: float) -> RowVector:
        """``t x``."""
        raise NotImplementedError

    @is_a("map")
    def mix(self, x: RowVector, y: RowVector, share: float) -> RowVector:
        """``(1 - share) x + share y``."""
        raise NotImplementedError

    @is_a("map")
    def relative(self, q: RowVector) -> RowVector:
        """``q / p``."""
        raise NotImplementedError

    @is_a("sum")
    def second_moment(self, x: RowVector) -> float:
        """``sum_i p_i x_i^2``."""
        raise NotImplementedError

    @is_a("map")
    def shift(self, raw: RowVector, b: Vector) -> RowVector:
        """``raw + b``."""
        raise NotImplementedError

    @is_a("map")
    def by_class(self, values: Vector) -> RowVector:
        """The value of each row's class."""
        raise NotImplementedError

    @is_a("sum")
    def class_masses(self, weights: RowVector, n_classes: int) -> Vector:
        """The weight of each class."""
        raise NotImplementedError

    @is_a("sum")
    def dot(self, x: RowVector, y: RowVector) -> float:
        """``sum_i x_i y_i``."""
        raise NotImplementedError

    @is_a("sum")
    def count(self, q: RowVector, above: float = 0.0) -> int:
        """How many rows weigh more than this."""
        raise NotImplementedError

    @is_a("sum")
    def slope_along(self, q: RowVector, dlosses: RowVector, step: RowVector) -> float:
        """``sum_i q_i <s_i, step_i>``."""
        raise NotImplementedError

    @is_a("sum")
    def slope_sums(self, q: RowVector, dlosses: RowVector) -> tuple[Vector, Vector]:
        """``sum_i q_i s_i`` and ``sum_i q_i |s_i|``, by output."""
        raise NotImplementedError

    @is_a("sum")
    def distance(self, divergence: Any, q: RowVector) -> float:
        """``D(q || p)``."""
        raise NotImplementedError

    def primal(self, divergence: Any, nu: float, losses: RowVector, q: RowVector) -> float:
        """``sum_i q_i l_i - nu D(q || p)``."""
        value = float(self.dot(q, losses))
        return value - nu * self.distance(divergence, q) if nu > 0 else value

    # --------------------------------------------------------------- what weights are worth

    @is_a("sum")
    def slack_sums(
        self, is_kl: bool, nu: float, losses: RowVector, exact: RowVector, q: RowVector
    ) -> Vector:
        """``sum exact mirror(exact)``, the sum of the losses, and rows where q alone has weight."""
        raise NotImplementedError

    @is_a("sum")
    def slack_terms(
        self,
        is_kl: bool,
        nu: float,
        losses: RowVector,
        exact: RowVector,
        q: RowVector,
        mean: float,
        centre: float,
    ) -> Vector:
        """The sums of `slack`: optimality condition, Bregman divergence, ``|exact - q|``."""
        raise NotImplementedError

    @is_a("greatest")
    def slack_scale(self, is_kl: bool, nu: float, exact: RowVector, centre: float) -> float:
        """The greatest ``nu |mirror(exact) - centre|``."""
        raise NotImplementedError

    def slack(
        self, divergence: Any, nu: float, losses: RowVector, exact: RowVector, q: RowVector
    ) -> float | None:
        """``L(w, exact) - L(w, q)`` as a sum of two nonnegative terms.

        ``<exact - q, l - nu grad Omega(exact)>`` is the optimality condition of the exact weights,
        the rest a Bregman divergence. None where that is infinite; minus infinity where the exact
        weights are beaten by more than rounding.
        """
        is_kl = divergence.name == "kl"
        centre, total, alone = self.slack_sums(is_kl, nu, losses, exact, q)
        if is_kl and nu > 0 and alone > 0:
            return None
        # Centred, so that the sums have no large parts to cancel.
        mean = total / self.n_samples
        first, bregman, moved = self.slack_terms(is_kl, nu, losses, exact, q, mean, centre)
        scale = self.slack_scale(is_kl, nu, exact, centre)
        # Where losses and slopes vanish together, the slopes are what rounding leaves of two terms.
        rounding = 4.0 * np.finfo(float).eps * moved * (scale + nu * (1.0 + abs(centre)))
        scale += max(abs(end) for end in self.extremes(losses))
        if first < -1e-8 * (scale + 1e-300) - rounding:
            return -np.inf
        return float(max(first, 0.0) + nu * max(bregman, 0.0))

    def extremes(self, values: RowVector) -> tuple[float, float]:
        """The least and the greatest of its entries."""
        raise NotImplementedError

    def violation(self, uncertainty: Any, q: RowVector) -> float:
        """How far weights are from the set, in mass."""
        raise NotImplementedError

    def q_max(self, uncertainty: Any) -> float:
        """The largest weight that the set allows a row."""
        mass, heaviest = self._masses(uncertainty)
        inner = uncertainty._inner if uncertainty.needs_groups else uncertainty
        return float((inner._max_ratios(mass, None) * heaviest).max())

    def kappa_q(self, uncertainty: Any) -> float:
        """The largest ``q_i / p_i`` that the set allows."""
        inner = uncertainty._inner if uncertainty.needs_groups else uncertainty
        return float(inner._max_ratios(self._masses(uncertainty)[0], None).max())

    def _masses(self, uncertainty: Any) -> tuple[Vector, Vector]:
        """Masses that decide on the largest ratios, and the largest weight with each of them.

        A ratio falls with the mass of the row (or group), and the weight rises with it.
        """
        if uncertainty.needs_groups:
            return self.group_masses()
        ends = np.array(self.extremes(self.p))
        return ends, ends

    def group_masses(self) -> tuple[Vector, Vector]:
        """The nominal weight of each group, and that of its heaviest row."""
        raise NotImplementedError

    # ----------------------------------------------------------------------- the intercept

    def balance(
        self, loss: Any, raw: RowVector, q: RowVector, n_outputs: int
    ) -> tuple[RowVector, float] | None:
        """Slopes with ``sum_i q_i alpha_i = 0``, and what they cost (`Loss.balance`), or None."""
        raise NotImplementedError

    @is_a("sum")
    def tangent_excess(
        self, q: RowVector, here: RowVector, losses: RowVector, dlosses: RowVector, shift: float
    ) -> float:
        """``sum_i q_i max(here_i - losses_i + s_i shift, 0)``: tangents at other intercepts."""
        raise NotImplementedError

    @is_a("sum")
    def moments(self, raw: RowVector) -> Vector:
        """The sums of all raw predictions and of their squares."""
        raise NotImplementedError

    def offsets(self, raw: RowVector) -> tuple[float, float, float]:
        """The least, the greatest and the weighted mean of ``y - raw``, for one output."""
        raise NotImplementedError
