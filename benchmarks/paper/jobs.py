"""What there is to compute, in pieces that are kept: a job is done when its file is there.

The name of the file holds a digest of all settings of the job. So a run that was broken off goes on
where it stopped, and a changed setting is computed anew. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from methods import METHODS, Limits, grid, record, with_step
from optimum import optimum
from problems import Spec, digest, unknowns

import drago

# To be raised when what a job computes has changed, so that old files do not count.
VERSION = 2
# Core seconds that a tuning may take, by a rough model of what a pass costs; the first of these
# (seeds, passes) that stays below. The first is the paper's rule.
_TUNING = 30.0
_EFFORTS = ((3, 50), (2, 30), (1, 20), (1, 8))
_LONGER = 4
_STEPS = 8  # of the grid that do not diverge at once
_A_ROW, _AN_ITERATION = 4e-8, 1e-4


@dataclass(frozen=True)
class Job:
    """Something to compute.

    Parameters
    ----------
    kind : {"optimum", "tuning", "curve", "table"}
    spec : Spec, optional
    method : str
        A name in `METHODS`; that of the table for a table.
    seed : int
    limits : Limits, optional
    options : tuple
        Further settings, pairs of a name and a value.
    effort : tuple of int, optional
        Seeds and passes of a tuning at most.
    """

    kind: str
    spec: Spec | None = None
    method: str = ""
    seed: int = 0
    limits: Limits | None = None
    options: tuple[tuple[str, Any], ...] = ()
    effort: tuple[int, int] = _EFFORTS[0]

    @property
    def title(self) -> str:
        """For the progress display."""
        parts = [self.kind]
        if self.spec is not None:
            spec = self.spec
            parts.append(f"{spec.data} {spec.uncertainty} mu={spec.mu:g} nu={spec.nu:g}")
        parts.append(METHODS[self.method].label if self.method in METHODS else self.method)
        if self.kind == "curve":
            parts.append(f"seed {self.seed}")
        return " ".join(filter(None, parts))

    def path(self, out: Path) -> Path:
        """The file of its result."""
        limits = None if self.limits is None else asdict(self.limits)
        name = digest(
            VERSION, self.kind, self.spec, self.method, self.seed, limits, self.options, self.effort
        )
        words = [self.spec.data if self.spec else "", self.method.replace("/", "-by-")]
        suffix = "parquet" if self.kind in ("curve", "table") else "json"
        return out / f"{self.kind}s" / f"{'-'.join(filter(None, words))}-{name}.{suffix}"

    def needs(self) -> list[Job]:
        """The jobs whose results it starts from."""
        if self.kind != "curve":
            return []
        first = [Job("optimum", self.spec)]
        if METHODS[self.method].tuned:
            first.append(self.tuning())
        return first

    def tuning(self) -> Job:
        """The choice of the step size for a curve."""
        source = METHODS[self.method].step_of or self.method
        return Job("tuning", self.spec, source, effort=self.effort)

    def run(self, out: Path) -> None:
        """Compute it and write its file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _RUNS[self.kind](self, out)


# --------------------------------------------------------------------------------- files


def read(job: Job, out: Path) -> dict[str, Any]:
    """The result of an optimum or a tuning."""
    return json.loads(job.path(out).read_text())


def _write(path: Path, write: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    write(part)
    os.replace(part, path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write(path, lambda part: part.write_text(json.dumps(content, indent=1)))


def write_table(path: Path, columns: dict[str, Any]) -> None:
    """Columns of equal length, or single values to be repeated, as a Parquet file."""
    size = max(len(value) for value in columns.values() if isinstance(value, (list, np.ndarray)))
    whole = {
        name: value if isinstance(value, (list, np.ndarray)) else [value] * size
        for name, value in columns.items()
    }
    _write(path, lambda part: pq.write_table(pa.table(whole), part))


# ----------------------------------------------------------------------------- the kinds


def _run_optimum(job: Job, out: Path) -> None:
    assert job.spec is not None
    _write_json(job.path(out), asdict(job.spec) | optimum(job.spec))


def _effort(problem: drago.DROProblem, method: Any, most: tuple[int, int]) -> tuple[int, int]:
    """Seeds and passes: the paper's rule where that is affordable, less of the same elsewhere."""
    n = problem.n_samples
    iterations = {"drago": lambda: method.n_blocks(problem) / 3.0, "prospect": lambda: float(n)}
    a_pass = iterations.get(method.name, lambda: 1.0)() * (_A_ROW * n + _AN_ITERATION)
    a_pass += 3e-9 * n * unknowns(problem)
    if method.name == "prospect":
        a_pass -= n * _AN_ITERATION  # its steps are compiled
    for seeds, passes in _EFFORTS:
        if _STEPS * seeds * passes * a_pass <= _TUNING:
            break
    return min(seeds, most[0]), min(passes, most[1])


def _run_tuning(job: Job, out: Path) -> None:
    assert job.spec is not None
    problem = job.spec.build()
    method = METHODS[job.method].make(problem)
    seeds, passes = _effort(problem, method, job.effort)
    began = time.perf_counter()
    found: dict[str, Any] = {"method": job.method, "seeds": seeds, "step_size": None}
    # Where no step size comes back from DRAGO's wild start in time, there is a second, longer try.
    for tried in (passes, _LONGER * passes):
        found["passes"] = tried
        try:
            tuning = drago.tune(
                problem, method, grid=grid(job.spec.data), seeds=range(seeds), n_passes=tried
            )
        except ValueError as error:  # every one diverges: that is a result, too
            found["message"] = str(error)
            continue
        found["step_size"] = tuning.step_size
        found["trials"] = [[trial.step_size, trial.objective] for trial in tuning.trials]
        break
    _write_json(job.path(out), asdict(job.spec) | found | {"seconds": time.perf_counter() - began})


def _run_curve(job: Job, out: Path) -> None:
    assert job.spec is not None and job.limits is not None
    problem, entry = job.spec.build(), METHODS[job.method]
    method, step, tuning_seconds = entry.make(problem), np.nan, 0.0
    if entry.tuned:
        tuning = read(job.tuning(), out)
        tuning_seconds = tuning["seconds"]
        step = np.nan if tuning["step_size"] is None else tuning["step_size"]
    best = read(Job("optimum", job.spec), out)
    columns: dict[str, Any] = {
        "calls": [0], "iterations": [0], "seconds": [0.0], "objective": [best["reference"]],
        "suboptimality": [1.0], "end": "no step size",
    }  # fmt: skip
    if not entry.tuned or np.isfinite(step):
        method = with_step(method, step) if entry.tuned else method
        curve = record(entry, method, problem, job.seed, job.limits, best["value"])
        columns = {name: getattr(curve, name) for name in columns}
    spec = asdict(job.spec)
    del spec["columns"], spec["rows"]
    about: dict[str, Any] = spec | {
        "n": problem.n_samples,
        "d": unknowns(problem),
        "method": job.method,
        "label": entry.label,
        "seed": job.seed,
        "step_size": float(step),
        "tuning_seconds": tuning_seconds,
    }
    write_table(job.path(out), about | columns)


def _run_table(job: Job, out: Path) -> None:
    from sweeps import TABLES

    rows = TABLES[job.method](**dict(job.options))
    write_table(job.path(out), {name: [row[name] for row in rows] for name in rows[0]})


_RUNS = {
    "optimum": _run_optimum,
    "tuning": _run_tuning,
    "curve": _run_curve,
    "table": _run_table,
}
