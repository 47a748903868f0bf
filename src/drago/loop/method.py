"""What a solver is: what it has to supply, and what it may declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from drago.files.archive import State
from drago.metric import Metric
from drago.problem import DROProblem

if TYPE_CHECKING:
    from drago.loop.loop import Iterate, Loop

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Method:
    """A solver: its settings, its iterations, and what it can do.

    Subclasses are frozen dataclasses of settings with a `name` and `run`. The rest has defaults,
    which say that a method can do nothing special.

    Attributes
    ----------
    name : str
        What messages and results call it.
    can_resume : bool
        Whether it goes on from a checkpoint, by `resume`; where that hangs on the problem,
        `resumes` says so.
    progressive : bool
        Whether large problems are first solved on a part of their rows, to start from there.
    metric : str or None
        The norm in which it moves, as `drago.metric.make_metric` takes it; None where it knows no
        other than its own.
    has_threads : bool
        Whether it has threads of its own, as many as `with_threads` says: then BLAS gets one.
    needs : tuple of str
        What a row store has to offer for it (`drago.rows.base.RowStore.capabilities`).
    layout : int
        The version of what `resume` takes: a checkpoint of another one is refused.
    """

    name: str = ""
    can_resume: bool = False
    progressive: bool = False
    metric: str | None = None
    has_threads: bool = False
    needs: tuple[str, ...] = ()
    layout: int = 1

    @property
    def settings(self) -> Any:
        """The object whose fields are the settings."""
        return self

    def check(self, problem: DROProblem) -> None:
        """Raise ValueError, in one sentence, if the problem is not for this method."""

    def resumes(self, problem: DROProblem) -> bool:
        """Whether a solve of this problem goes on from a checkpoint."""
        return self.can_resume

    def run(self, problem: DROProblem, loop: Loop) -> str:
        """Iterate, calling ``loop.observe``; return why no further progress is possible."""
        raise NotImplementedError(f"solver {self.name!r} has no `run`.")

    def resume(self, problem: DROProblem, loop: Loop, saved: State) -> Callable[[], str]:
        """What goes on from a checkpoint, as `run` does from the start."""
        raise NotImplementedError(f"solver {self.name!r} cannot be resumed.")

    def with_threads(self, n_threads: int | None) -> Method:
        """The same with so many threads; itself where it has none of its own."""
        return self

    def metric_at(
        self, part: DROProblem, at: Iterate, error: float
    ) -> tuple[Metric, Vector] | None:
        """The metric for all rows and their centre, from a part of them and its optimum.

        None where the metric in which the part was solved serves for all rows as well.
        """
        return None


@runtime_checkable
class Solver(Protocol):
    """What a solver object has to have at least, whatever it inherits from."""

    @property
    def name(self) -> str: ...

    def check(self, problem: DROProblem) -> None: ...

    def run(self, problem: DROProblem, loop: Loop) -> str: ...


class Adapted(Method):
    """Makes a method of an object that has no more than `Solver` asks for.

    Parameters
    ----------
    given : Solver
    """

    def __init__(self, given: Solver) -> None:
        self._given, self.name = given, given.name

    def __repr__(self) -> str:
        return repr(self._given)

    @property
    def settings(self) -> Any:
        return self._given

    def check(self, problem: DROProblem) -> None:
        self._given.check(problem)

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return self._given.run(problem, loop)


def adapted(given: Solver) -> Method:
    """The object as a method; itself where it is one."""
    return given if isinstance(given, Method) else Adapted(given)
