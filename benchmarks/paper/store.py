"""The results of a plan, read back from its files, and the questions that claims ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from jobs import Job, read
from plan import Plan
from problems import Spec

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Run:
    """One run of one method on one problem.

    Attributes
    ----------
    calls, seconds, iterations, suboptimality : arrays
        A value for each noted point.
    end : str
        "target", "filled" (both axes of the figure), "limit" (of time), "diverged", "stopped" (the
        method itself gave up) or "no step size".
    """

    spec: Spec
    method: str
    seed: int
    n: int
    d: int
    step_size: float
    tuning_seconds: float
    end: str
    calls: Vector
    seconds: Vector
    iterations: Vector
    suboptimality: Vector

    def reach(self, target: float, axis: str = "seconds") -> float:
        """Where it first is at most `target`; infinite where it never is."""
        below = np.flatnonzero(self.suboptimality <= target)
        return float(getattr(self, axis)[below[0]]) if below.size else np.inf

    def at(self, place: float, axis: str = "seconds") -> float:
        """Its suboptimality at the last noted point up to there."""
        before = np.flatnonzero(getattr(self, axis) <= place)
        return float(self.suboptimality[before[-1] if before.size else 0])


class Results:
    """Everything that was computed.

    Parameters
    ----------
    plan : Plan
    out : Path
    effort : dict
        What the run cost.
    """

    def __init__(self, plan: Plan, out: Path, effort: dict[str, Any]) -> None:
        self.plan, self.out, self.effort = plan, out, effort
        self._runs: dict[tuple[Spec, str], list[Run]] = {}
        for job in dict.fromkeys(job for group in plan.groups() for job in plan.curves(group)):
            assert job.spec is not None
            self._runs.setdefault((job.spec, job.method), []).append(_read_run(job, out))

    def runs(self, spec: Spec, method: str) -> list[Run]:
        """One for each seed."""
        return self._runs[spec, method]

    def all_runs(self) -> list[Run]:
        return [run for runs in self._runs.values() for run in runs]

    def by_seeds(self) -> list[list[Run]]:
        """The runs of each method on each problem."""
        return list(self._runs.values())

    def reach(self, spec: Spec, method: str, target: float, axis: str = "seconds") -> float:
        """The median over seeds of where it first is at most `target`."""
        return float(np.median([run.reach(target, axis) for run in self.runs(spec, method)]))

    def at(self, spec: Spec, method: str, place: float, axis: str = "seconds") -> float:
        """The median over seeds of its suboptimality at a place."""
        return float(np.median([run.at(place, axis) for run in self.runs(spec, method)]))

    def least(self, spec: Spec, method: str) -> float:
        """The least suboptimality that it showed, median over seeds."""
        return float(np.median([run.suboptimality.min() for run in self.runs(spec, method)]))

    @cached_property
    def optima(self) -> list[dict[str, Any]]:
        return [read(job, self.out) for job in self.plan.optima()]

    @cached_property
    def tunings(self) -> list[tuple[Job, dict[str, Any]]]:
        """Each choice of a step size, and what was found."""
        jobs = [job for job in self.plan.jobs() if job.kind == "tuning"]
        return [(job, read(job, self.out)) for job in jobs]

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of one of the tables of `sweeps`."""
        return pq.read_table(self.plan.table(name).path(self.out)).to_pylist()


def _read_run(job: Job, out: Path) -> Run:
    table = pq.read_table(job.path(out))
    columns = {name: table[name].to_numpy() for name in ("calls", "seconds", "iterations")}
    names = ("n", "d", "step_size", "tuning_seconds", "end")
    first = {name: table[name][0].as_py() for name in names}
    assert job.spec is not None
    return Run(
        job.spec,
        job.method,
        job.seed,
        suboptimality=table["suboptimality"].to_numpy(),
        **columns,
        **first,
    )


def collect(plan: Plan, out: Path, effort: dict[str, Any]) -> Results:
    """Read the results, and put the curves of each group together in one Parquet file."""
    for group in plan.groups():
        tables = [pq.read_table(job.path(out)) for job in plan.curves(group)]
        pq.write_table(pa.concat_tables(tables), out / f"{group}.parquet")
    return Results(plan, out, effort)
