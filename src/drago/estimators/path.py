"""`robust_path`: a grid of levels, each solved from its neighbour's answer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._frames import as_frame
from drago._html import MOST_LINES, card, table
from drago._interrupts import interruptible
from drago._validation import check_features, check_number, shown
from drago.problem import DROProblem
from drago.result import SolverResult, Status
from drago.solvers.solve import solve
from drago.terms.uncertainty import CVaR, Grouped, UncertaintySet, as_uncertainty

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RobustPath:
    """Models along a grid of levels.

    Attributes
    ----------
    tail_fractions, shift_costs, l2_regs : arrays of shape (n_models,)
        The levels of each model, in the order in which they were given, the last one changing
        fastest. `tail_fractions` are NaN where they were not varied.
    coefs : array of shape (n_models, n_features) or (n_models, n_classes, n_features)
    intercepts : array of shape (n_models,) or (n_models, n_classes)
    results : tuple of SolverResult
        One a model, with its certificate and its weights.
    time : float
        Seconds for all of them.
    loss : Loss

    Examples
    --------
    >>> import numpy as np, drago
    >>> X = np.arange(10.0).reshape(-1, 1)
    >>> path = drago.robust_path(X, X[:, 0] ** 2, tail_fractions=[1.0, 0.5])
    >>> path.tail_fractions
    array([1. , 0.5])
    >>> path.coefs.shape
    (2, 1)
    """

    tail_fractions: Vector
    shift_costs: Vector
    l2_regs: Vector
    coefs: Vector
    intercepts: Vector
    results: tuple[SolverResult, ...]
    time: float
    loss: Any = None

    def __len__(self) -> int:
        return len(self.results)

    def to_frame(self) -> Any:
        """A line for each model, as a frame of pandas: levels, objective, gap, time."""
        return as_frame(self._columns())

    def _columns(self) -> dict[str, Any]:
        names = ("primal", "gap", "rel_gap", "n_iter", "n_passes", "time")
        return {
            "tail_fraction": self.tail_fractions,
            "shift_cost": self.shift_costs,
            "l2_reg": self.l2_regs,
            **{name: [getattr(each, name) for each in self.results] for name in names},
            "status": [str(each.status) for each in self.results],
        }

    def _repr_html_(self) -> str:
        return card(repr(self), table(self._columns(), most=MOST_LINES))

    def __repr__(self) -> str:
        passes = sum(result.n_passes for result in self.results)
        worst = max(result.rel_gap for result in self.results)
        return (
            f"RobustPath({len(self)} models, largest rel_gap={worst:.2g}, n_passes={passes:.0f}, "
            f"time={self.time:.3g} s)"
        )


def with_tail(uncertainty: Any, tail_fraction: float) -> UncertaintySet:
    """The set at another level: of a `CVaR`, or of one over groups."""
    found = as_uncertainty(uncertainty)
    if found.ungrouped.tail_share is None:
        raise ValueError(
            f"tail_fractions were given, but {shown(uncertainty)} has no tail fraction; give "
            "uncertainty='cvar', or tail_fractions=None and vary shift_costs and l2_regs."
        )
    level = CVaR(tail_fraction)
    return Grouped(level) if found.needs_groups else level


def levels_of(name: str, values: Any, default: Any = None) -> list[Any]:
    """The values of a level as a list; the default alone where there are none."""
    if values is None:
        return [default]
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    found = list(values)
    if not found:
        raise ValueError(f"{name} must hold at least one value, but is empty.")
    for value in found:
        if not (name == "shift_costs" and isinstance(value, str) and value == "auto"):
            check_number(f"an entry of {name}", value, low=0)
    return found


@interruptible
def robust_path(
    X: Any,
    y: Any = None,
    *,
    tail_fractions: Any = None,
    shift_costs: Any = None,
    l2_regs: Any = None,
    loss: Any = "squared",
    uncertainty: Any = "cvar",
    divergence: Any = "auto",
    sample_weight: Any = None,
    groups: Any = None,
    baseline: Any = None,
    fit_intercept: bool = True,
    constraint: Any = None,
    solver: Any = "auto",
    tol: float = 1e-4,
    max_iter: int | None = None,
    time_limit: float | None = None,
    random_state: int | None = None,
    n_threads: int | None = None,
    verbose: int = 0,
    device: Any = None,
) -> RobustPath:
    """Fit models for a grid of settings, each starting from the one before.

    The easy ones come first (large tails, shift costs and `l2_regs`); what is returned is in the
    order given.

    Parameters
    ----------
    X, y : the data, as for `DROProblem`
        Or a source alone; one that standardises gives models for standardised features.
    tail_fractions : array, optional
        Levels of a `CVaR`, or of one over groups; without them `uncertainty` as it is.
    shift_costs : array, optional
        Numbers or "auto"; "auto" alone by default.
    l2_regs : array, optional
        1e-3 alone by default.
    loss, uncertainty, divergence, sample_weight, groups, baseline, constraint : as for `DROProblem`
    fit_intercept : bool
        True here, as in the estimators.
    solver, tol, max_iter, random_state, n_threads, verbose, device : as for `drago.solve`
    time_limit : float, optional
        Seconds for all of the models together.

    Returns
    -------
    RobustPath

    Examples
    --------
    >>> import numpy as np, drago
    >>> X = np.arange(10.0).reshape(-1, 1)
    >>> y = np.where(X[:, 0] < 9, X[:, 0], 14.0)
    >>> path = drago.robust_path(X, y, tail_fractions=[1.0, 0.5, 0.1], shift_costs=0.01)
    >>> path.coefs.ravel().round(2)
    array([1.27, 1.3 , 1.55])
    """
    began = time.perf_counter()
    grid = [
        levels_of("tail_fractions", tail_fractions),
        levels_of("shift_costs", shift_costs, "auto"),
        levels_of("l2_regs", l2_regs, 1e-3),
    ]
    problem = DROProblem(
        X,
        y,
        loss=loss,
        uncertainty=uncertainty,
        divergence=divergence,
        sample_weight=sample_weight,
        groups=groups,
        baseline=baseline,
        fit_intercept=fit_intercept,
        constraint=constraint,
    )
    auto = problem.shift_cost
    tails = [None if t is None else with_tail(problem.uncertainty, t) for t in grid[0]]
    costs = [auto if isinstance(c, str) else float(c) for c in grid[1]]
    regs = [float(r) for r in grid[2]]
    found: dict[tuple[int, ...], SolverResult] = {}
    for place, neighbour in _easy_first(grid[0], costs, regs):
        t, c, r = place
        changes: dict[str, Any] = {"nu": costs[c], "mu": regs[r]}
        level = tails[t]
        if level is not None:
            level.lock()
            changes |= {"uncertainty": level, "divergence": level.match(divergence)}
        left = None if time_limit is None else time_limit - (time.perf_counter() - began)
        found[place] = solve(
            problem._replace(**changes),
            solver,
            tol=tol,
            max_iter=max_iter,
            time_limit=None if left is None else max(left, 0.0),
            random_state=0 if random_state is None else random_state,
            warm_start=found.get(neighbour),
            n_threads=n_threads,
            verbose=verbose,
            device=device,
        )
        if found[place].status is Status.INTERRUPTED:
            raise KeyboardInterrupt(found[place].message)
    order = list(itertools.product(*(range(len(values)) for values in grid)))
    results = tuple(
        replace(found[place], dual_weights=problem.on_all_rows(found[place].dual_weights))
        for place in order
    )
    return RobustPath(
        tail_fractions=np.array(
            [np.nan if grid[0][t] is None else float(grid[0][t]) for t, _, _ in order]
        ),
        shift_costs=np.array([costs[c] for _, c, _ in order]),
        l2_regs=np.array([regs[r] for _, _, r in order]),
        coefs=np.array([result.coef for result in results]),
        intercepts=np.array([result.intercept for result in results]),
        results=results,
        time=time.perf_counter() - began,
        loss=problem.loss,
    )


def losses_on(path: RobustPath, X: Any, y: Any) -> Vector:
    """The losses of some rows under each model of a path, of shape (n_models, n)."""
    X = check_features(X)
    target = path.loss.check_target(y, X.shape[0])
    found = []
    for coef, intercept in zip(path.coefs, path.intercepts):
        raw = np.asarray(X @ np.atleast_2d(coef).T + intercept, dtype=np.float64)
        found.append(path.loss.evaluate(target, np.ascontiguousarray(raw))[0])
    return np.array(found)


def _easy_first(
    tails: list[Any], costs: list[float], regs: list[float]
) -> Iterator[tuple[tuple[int, int, int], tuple[int, ...]]]:
    """Places in the grid from the easiest on, each with a neighbour that came before it."""
    orders = []
    for values in (tails, costs, regs):
        keys = [0.0 if value is None else -float(value) for value in values]
        orders.append([int(k) for k in np.argsort(keys, kind="stable")])
    for i, j, k in itertools.product(*(range(len(order)) for order in orders)):
        before = (i, j, k - 1) if k else ((i, j - 1, 0) if j else (i - 1, 0, 0))
        place = (orders[0][i], orders[1][j], orders[2][k])
        first = min(before) < 0
        yield place, () if first else tuple(o[b] for o, b in zip(orders, before))
