"""`solve`: the door to all solvers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from drago._interrupts import interruptible
from drago._threads import limited
from drago._validation import check_integer, check_number, check_option, shown
from drago.certificate.search import FEASIBILITY
from drago.loop.display import narrated
from drago.loop.loop import Loop
from drago.loop.method import Method, Solver, adapted
from drago.loop.protocol import Progress, Start
from drago.loop.resume import Checkpoints
from drago.loop.threads import at_most
from drago.problem import DROProblem, check_problem
from drago.result import SolverResult
from drago.solvers.baselines import LSVRG, SGD, Prospect
from drago.solvers.choose import IN_METRIC, choose
from drago.solvers.drago.method import Drago
from drago.solvers.full_batch import AGOG, GradientDescent
from drago.solvers.lbfgs import LBFGS
from drago.solvers.newton import Newton
from drago.solvers.trivial import TrivialModel

# What a method may need of the rows, in words (`drago.rows.base.RowStore.capabilities`).
_MEANINGS = {
    "single rows": "to visit single rows",
    "whole vectors": "whole vectors of the rows",
    "compiled": "arrays that compiled code runs on",
    "responses": "to know how the weights respond to the losses",
    "tables": "to keep tables of the rows",
}

_BY_NAME: dict[str, Any] = {
    settings.name: settings
    for settings in (Drago, LBFGS, Newton, SGD, LSVRG, Prospect, GradientDescent, AGOG)
}


def as_method(solver: Any) -> Method:
    """A method from a name or a settings object."""
    if isinstance(solver, str):
        name = check_option("solver", solver, ["auto", *_BY_NAME])
        return IN_METRIC if name == "auto" else _BY_NAME[name]()
    # The second question takes longer than an iteration on a few rows.
    if isinstance(solver, Method) or (isinstance(solver, Solver) and not isinstance(solver, type)):
        return adapted(solver)
    names = ", ".join(map(repr, ["auto", *_BY_NAME]))
    raise TypeError(
        f"solver must be one of {names} or a settings object such as LBFGS(memory=20), "
        f"but {shown(solver)} was given."
    )


@interruptible
def solve(
    problem: DROProblem,
    solver: Any = "auto",
    *,
    tol: float = 1e-4,
    max_iter: int | None = None,
    time_limit: float | None = None,
    time_spent: float = 0.0,
    random_state: int = 0,
    callback: Callable[[Progress], Any] | None = None,
    warm_start: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    n_threads: int | None = None,
    verbose: int = 0,
    device: Any = None,
    process_group: Any = None,
) -> SolverResult:
    """Solve a problem to a certified relative gap.

    Parameters
    ----------
    problem : DROProblem
    solver : str or a settings object, such as `drago.Drago()`
        "auto", "drago", "lbfgs", "newton", "gd", "agog", "sgd", "lsvrg" or "prospect". "auto" takes
        what was fastest on similar problems, mostly L-BFGS whose steps are scaled by the shape of
        the data, or Newton's method on small data; the result's message says what and why.
    tol : float >= 0
        Certified relative gap at which to stop: an upper bound on
        ``(P(w) - P*) / (P_0 - P*)``, with ``P_0`` the objective at w = 0. For losses that are not
        declared convex, ``||grad P||`` relative to the start.
    max_iter : int, optional
    time_limit : float, optional
        Seconds. On a device the first solve includes compilation; to time a solve, run it a second
        time.
    time_spent : float
        Seconds of `time_limit` that are spent already, as by an estimator before it solves.
    random_state : int
        Seed of the methods that use random numbers; the same seed gives the same answer.
    callback : callable, optional
        Called with a `Progress` at each certificate; a true return value stops the solve.
    warm_start : SolverResult, array or (coef, intercept), optional
        Where to start: the answer to a similar problem. The weights of a `SolverResult` are used
        too, where they lie in the problem's set.
    checkpoint : str or path, optional
        A file to which the solve is saved as it goes on, and from which it is resumed when it is
        there: bit for bit, whatever ended it. `Drago` can be resumed, and `LBFGS` with a `metric`,
        without a box or many classes. Only the main iterations are saved. A warm-up on part of the
        rows that has not led to one, or a final phase by another solver, is repeated.
    checkpoint_every : float
        Seconds between two savings, at least.
    n_threads : int, optional
        Threads of the passes over arrays that are large enough to gain by them. By default one on
        small data, and on large data all cores that the process may use, but no more than
        ``OMP_NUM_THREADS`` and one in a worker of joblib. Their number does not change the values
        that a pass computes, not even in the last bit.
    verbose : int
        1 prints a line for each certificate, and shows how far the reading of rows in files is in
        between: a bar where the standard error is a terminal and rich is installed, else a line
        every ten seconds.
    device : None or a device of torch, such as "cuda", "mps" or "cpu"
        None is the processor, with compiled code, or the device of a problem that is made of
        tensors. On a device there are the solvers "auto", "drago", "lbfgs", "gd" and "agog".
    process_group : process group, None or False
        With a device: whose ranks share the rows (docs/torchrun.md). Every rank has the problem of
        all rows, and solves its share. None is the default group where torch.distributed is
        initialised, False this process alone. A problem made of tensors has its own group.

    Returns
    -------
    SolverResult
        Whatever the status, the best certified point. `KeyboardInterrupt` ends the solve and
        returns it too, with status ``interrupted``.

    Examples
    --------
    >>> import numpy as np, drago
    >>> X, y = np.eye(3), np.array([1.0, 2.0, 6.0])
    >>> problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.5), shift_cost=0.1, l2_reg=0.1)
    >>> result = drago.solve(problem, tol=1e-8)
    >>> result.coef.round(2)
    array([0.49, 1.41, 5.22])
    """
    began = time.perf_counter()
    problem = _on_device(check_problem(problem), device, process_group)
    tol = check_number("tol", tol, low=0)
    if max_iter is not None:
        max_iter = check_integer("max_iter", max_iter, low=1)
    if time_limit is not None:
        time_limit = check_number("time_limit", time_limit, low=0)
    time_spent = check_number("time_spent", time_spent, low=0)
    if callback is not None and not callable(callback):
        raise TypeError(
            f"callback must be a function of one argument, but {shown(callback)} was given."
        )
    random_state = check_integer("random_state", random_state, low=0)
    others: tuple[Method, ...] = ()
    why = ""
    method = as_method(solver)
    if isinstance(solver, str) and solver == "auto":
        method, others, why = choose(problem)
        if others and problem.nu == 0:
            others = (*others, TrivialModel((IN_METRIC, Newton(), LBFGS())))
    for needed in method.needs:
        if not problem.rows.has(needed):
            raise ValueError(
                f"solver {method.name!r} needs {_MEANINGS[needed]}, which the rows here do not "
                "offer: take solver='auto' or 'lbfgs', or give X as an array."
            )
    method.check(problem)
    if n_threads is not None:
        n_threads = check_integer("n_threads", n_threads, low=1)
        method = method.with_threads(n_threads)
    verbose = check_integer("verbose", verbose, low=0)
    checkpoints = None
    if checkpoint is not None:
        if not method.resumes(problem):
            where = "solver='drago', " if problem.rows.is_on_host else ""
            raise ValueError(
                f"solver {method.name!r} cannot be resumed{'' if where else ' on a device'}: give "
                f"{where}LBFGS(metric='auto') without a box or many classes, or no checkpoint."
            )
        every = check_number("checkpoint_every", checkpoint_every, low=0)
        checkpoints = Checkpoints(checkpoint, every, problem.rows.is_first)
    start = None if warm_start is None else as_start(warm_start, problem)
    spent = time_spent + time.perf_counter() - began
    left = None if time_limit is None else max(time_limit - spent, 0.0)
    telling: AbstractContextManager[Any] = nullcontext(callback)
    if verbose and not problem.rows.is_first:
        telling = nullcontext(callback or _silent)  # the first of several processes reports
    elif verbose:
        if problem.rows.notice:
            print(problem.rows.notice)
        telling = narrated(callback, problem.n_samples, left)
    with telling as told:
        loop = Loop(
            problem,
            tol,
            max_iter,
            time_limit,
            told,
            random_state,
            start,
            checkpoints,
            others,
            why,
            time_spent=spent,
        )
        with at_most(n_threads), limited(n_threads):
            return loop.run(method)


def as_start(warm_start: Any, problem: DROProblem) -> Start:
    """A start from a result, from coefficients, or from coefficients and an intercept."""
    q = None
    if isinstance(warm_start, SolverResult):
        coef, intercept = warm_start.coef, warm_start.intercept
        rows = problem.rows
        is_other = tuple(warm_start.dual_weights.shape) != (rows.n_given,)
        if not rows.is_any(is_other):
            given = rows.enter("dual_weights", warm_start.dual_weights)
            q = given if _are_weights(given, problem) else None
    elif isinstance(warm_start, tuple) and len(warm_start) == 2:
        coef, intercept = warm_start
    else:
        coef, intercept = warm_start, 0.0
    w, b = problem.to_internal(coef, intercept)
    return Start(problem.constraint.project(w), b, q)


def _are_weights(q: Any, problem: DROProblem) -> bool:
    """Whether weights of another problem may start this one."""
    if problem.uncertainty.is_users:
        return False
    if problem.divergence.is_steep and not problem.rows.extremes(q)[0] > 0:
        return False  # a weight of 0 could never grow again
    return bool(problem.violation(q) <= FEASIBILITY)


def _on_device(problem: DROProblem, device: Any, process_group: Any) -> DROProblem:
    """The problem with its rows on a device, where one is given."""
    if device is not None:
        return problem.moved(device, process_group)
    if process_group and problem.rows.is_on_host:
        raise ValueError(
            "process_group was given without a device: give device='cuda' or 'cpu', where the "
            "ranks put their shares of the rows."
        )
    return problem


def _silent(progress: Progress) -> bool:
    return False
