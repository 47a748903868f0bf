"""DRAGO: the primal-dual variance-reduced method of Mehta, Diakonikolas and Harchaoui (2024).

Here are its settings. The iteration is in `drago.solvers.drago.iterations`, and what makes it run
by itself in `drago.solvers.drago.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from drago._validation import check_flag, check_integer, check_number, check_option
from drago.files.checkpoint import State
from drago.loop.loop import Loop
from drago.loop.method import Method
from drago.problem import DROProblem
from drago.solvers.drago.constants import require_constants
from drago.solvers.drago.run import Run, is_small, is_unregularised
from drago.solvers.newton import Newton

# Blocks under block_size="auto", for large data, and for small data where it is not one.
_BLOCKS = 8
_FEW_BLOCKS = 2


@dataclass(frozen=True)
class Drago(Method):
    """Settings of DRAGO.

    Parameters
    ----------
    step_size : float, "auto" or "theory"
        The alpha of the paper, ``a_t / a_{t-1} = 1 + alpha``. "auto" starts at
        ``min(1.2 / (M sqrt(sum q^2/p)), 0.4)`` with the first weights q (twice that with `refresh`,
        ``0.8 / M`` with primal="support"), and is cut when the method does not converge. With
        one block, as small data are, it follows the curvature that the steps meet (`SecantSteps`);
        not so with start="paper", primal="blocks", a `dual_step_size`, an `L2Ball`, mu = 0 or
        nu = 0, and on tensors.
        "theory" is the step of the paper's theorem with the constants of its lemmas::

            1/4 min{ 1/(32 M), mu/(24 e L kappa_Q), sqrt(mu nu)/(36 e^2 M G) }

        with L and G from `DROProblem.smoothness` and `DROProblem.lipschitz` (for the squared loss
        G is taken over the level set of w = 0), and nu / kappa_Q in place of nu for KL. A number
        and "theory" are taken as they are: no safeguard, no finish.
    dual_step_size : float, optional
        The alpha of the dual steps, where it shall differ.
    block_size : int, "auto" or "n/d"
        Rows a block; "n/d" is the paper's. "auto" makes 8 blocks; of small data one, or two where
        the steps cannot be learnt (see `step_size`); one too of somewhat larger data with squared
        or Huber losses, where the iterations are compiled (`drago.solvers.drago.one_block`).
    metric : {"auto", "euclidean", "diagonal", "full"}
        How the length of the primal steps is measured: "euclidean", as in the paper, or by the
        curvature of the data, so that one step size serves every scaling of the features.
    start : {"stationary", "paper"}
        "stationary" runs the recursions as if from long ago, ``A_{t-1}/a_t = 1/alpha``, from the
        exact weights at the starting point; "paper" is ``A_0 = 0`` from the nominal weights.
    tables : {"exact", "lagged"}
        "exact" is the paper's Algorithm 1, "lagged" its Algorithm 2 (with start="paper"), whose
        tables are a cycle older: for study.
    primal : {"auto", "blocks", "support"}
        The primal gradient: "blocks" estimates it from the tables and a random block, as in the
        paper; "support" computes it from the rows that carry weight. "auto" is "support" where
        these are few at the start and on small data, under step_size="auto".
    refresh : bool
        Whether all tables are filled anew every few iterations, on large data and under
        step_size="auto": stale tables are the noise that forces small steps, and a visit to all
        rows serves the certificate as well.
    progressive : bool
        Whether large problems are first solved on a part of their rows, to start from there.
    finish : {"auto", "newton", "lbfgs", "none"}
        What takes over where thin tails make the method slow, under step_size="auto"; "auto" is
        "newton" where its steps are cheap, otherwise "lbfgs" in the same metric, followed by
        "newton" where that is slow too and its steps are affordable.
    n_threads : int, optional
        Default: all cores, where a block has work for them. The result does not depend on it.

    Notes
    -----
    With mu = 0 or nu = 0 the step sizes are those of the paper's appendix, with L and G in the
    metric from 2000 rows at the start ("theory") or 100 times smaller ("auto"), and the mean of the
    iterates is a candidate beside the last one.

    With primal="support" and with `refresh` the method is no longer Algorithm 1: the primal
    gradient has no noise, and at a refreshment the weights are set to the exact ones.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> drago.solve(problem, drago.Drago(metric="euclidean", finish="none")).solver
    'drago'
    """

    step_size: float | str = "auto"
    dual_step_size: float | None = None
    block_size: int | str = "auto"
    metric: str = "auto"
    start: str = "stationary"
    tables: str = "exact"
    primal: str = "auto"
    refresh: bool = True
    progressive: bool = True
    finish: str = "auto"
    n_threads: int | None = None
    name = "drago"
    needs = ("tables",)
    can_resume = has_threads = True
    layout = 6  # of what is saved: a checkpoint with another one is refused

    def resumes(self, problem: DROProblem) -> bool:
        """Its tables are saved where they are arrays."""
        return problem.rows.is_on_host

    def __post_init__(self) -> None:
        if isinstance(self.step_size, str):
            check_option("step_size", self.step_size, ("auto", "theory"))
        else:
            step = check_number("step_size", self.step_size, low=0, open_low=True)
            object.__setattr__(self, "step_size", step)
        if self.dual_step_size is not None:
            check_number("dual_step_size", self.dual_step_size, low=0, open_low=True)
        if isinstance(self.block_size, str):
            check_option("block_size", self.block_size, ("auto", "n/d"))
        else:
            check_integer("block_size", self.block_size, low=1)
        check_option("metric", self.metric, ("auto", "euclidean", "diagonal", "full"))
        check_option("start", self.start, ("stationary", "paper"))
        check_option("tables", self.tables, ("exact", "lagged"))
        check_option("primal", self.primal, ("auto", "blocks", "support"))
        check_flag("refresh", self.refresh)
        check_flag("progressive", self.progressive)
        check_option("finish", self.finish, ("auto", "newton", "lbfgs", "none"))
        if self.n_threads is not None:
            check_integer("n_threads", self.n_threads, low=1)
        if self.tables == "lagged" and (self.start != "paper" or self.step_size == "auto"):
            raise ValueError(
                "tables='lagged' is the paper's Algorithm 2: it takes start='paper' and a number "
                "or 'theory' for step_size."
            )
        if self.tables == "lagged" and (self.primal == "support" or self.dual_step_size):
            raise ValueError(
                "tables='lagged' is the paper's Algorithm 2: it takes no dual_step_size, and "
                "primal='blocks' only."
            )
        if self.start == "paper" or self.step_size != "auto":
            object.__setattr__(self, "progressive", False)

    def check(self, problem: DROProblem) -> None:
        if self.step_size == "theory":
            require_constants(problem)
        if self.finish == "newton":
            Newton().check(problem)
        if problem.fit_intercept and self.start == "paper":
            raise ValueError("solver 'drago' fits an intercept only with start='stationary'.")
        if not is_unregularised(problem):
            return
        if self.dual_step_size is not None:
            raise ValueError(
                f"with l2_reg={problem.mu:g} and shift_cost={problem.nu:g}, solver 'drago' takes "
                "no dual_step_size: the step sizes follow from the constants."
            )
        if self.start == "paper" or not isinstance(self.step_size, str):
            raise ValueError(
                f"with l2_reg={problem.mu:g} and shift_cost={problem.nu:g}, solver 'drago' takes "
                "start='stationary' and step_size='auto' or 'theory' (the variant of the paper's "
                "appendix, where the step sizes follow from the constants)."
            )

    def n_blocks(self, problem: DROProblem) -> int:
        """The number M of blocks."""
        n = problem.n_samples
        if self.block_size == "auto":
            if not is_small(problem):
                return min(_BLOCKS, n)
            return 1 if self.learns_its_steps(problem) else min(_FEW_BLOCKS, n)
        if self.block_size == "n/d":
            return min(n, problem.n_features)
        return -(-n // min(int(self.block_size), n))

    def learns_its_steps(self, problem: DROProblem) -> bool:
        """Whether small data are one block, visited with `SecantSteps`.

        Not on other engines: to look at each gradient is to wait for the device. Nor in a ball,
        which bends the steps: there they shrink to nothing.
        """
        plain = self.step_size == "auto" and self.start == "stationary" and self.primal != "blocks"
        plain = plain and self.dual_step_size is None
        plain = plain and problem.constraint.has_bounds
        return plain and problem.rows.has("compiled") and not is_unregularised(problem)

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return Run(self, problem, loop).run()

    def resume(self, problem: DROProblem, loop: Loop, saved: State) -> Callable[[], str]:
        """What goes on from a checkpoint, as `run` does from the start."""
        return Run(self, problem, loop, saved).run

    def with_threads(self, n_threads: int | None) -> Drago:
        return replace(self, n_threads=n_threads)
