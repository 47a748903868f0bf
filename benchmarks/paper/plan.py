"""Which problems and methods make which figure, in three sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobs import Job
from methods import METHODS, Limits
from problems import REGRESSION, TEXT, Spec

TARGET = 1e-10
SEEDS = (0, 1)

# The methods of each figure, in the order of its legend.
DRAGOS = ("drago-1", "drago-16", "drago-64", "drago-n/d", "drago-lagged", "drago-auto")
BASELINES = ("sgd", "lsvrg", "prospect", "lbfgs")
ON_BALLS = ("sgd", "lbfgs", "drago-1", "drago-16", "drago-64", "drago-n/d", "drago-auto")
BLOCKS = ("steady-1", "steady-16", "steady-64", "steady-256", "steady-n/d")
ABLATION = (
    "drago-n/d", "drago-lagged", "drago-auto", "published", "sorting", "stationary", "metric",
    "automatic", "support", "blocks",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What one size of the reproduction consists of.

    Parameters
    ----------
    size : {"full", "quick", "tiny"}
    regression, text : sequences of Spec
        The text ones by falling nu.
    balls, batch, ablation : sequences of Spec
    limits, text_limits : Limits
        Of the runs on regression data, and on text.
    tables : dict
        Settings of the tables of `sweeps`.
    checks : sequence of Spec
        Problems of which only the optimum is wanted, for the sake of cvxpy.
    effort : tuple of int
        Seeds and passes of a tuning, at most.
    shown : float
        Calls by n that the figures show.
    seeds : sequence of int
    """

    size: str
    regression: Sequence[Spec]
    text: Sequence[Spec]
    balls: Sequence[Spec]
    batch: Sequence[Spec]
    ablation: Sequence[Spec]
    limits: Limits
    text_limits: Limits
    tables: dict[str, dict[str, Any]]
    checks: Sequence[Spec] = ()
    effort: tuple[int, int] = (3, 50)
    shown: float = 100.0
    seeds: Sequence[int] = SEEDS

    def groups(self) -> dict[str, tuple[Sequence[Spec], Sequence[str]]]:
        """The problems and methods of each group of curves."""
        return {
            "regression": (self.regression, (*BASELINES, *DRAGOS)),
            "text": (self.text, (*BASELINES, *DRAGOS)),
            "chi2": (self.balls, ON_BALLS),
            "batch": (self.batch, BLOCKS),
            "ablation": (self.ablation, ABLATION),
        }

    def curves(self, group: str) -> Iterator[Job]:
        """The runs of a group; a run may belong to several."""
        specs, methods = self.groups()[group]
        for spec in specs:
            limits = self.text_limits if spec.data in (TEXT, _TEXT_OF_TINY) else self.limits
            for method in methods:
                for seed in self.seeds if METHODS[method].stochastic else self.seeds[:1]:
                    yield Job("curve", spec, method, seed, limits, effort=self.effort)

    def table(self, name: str) -> Job:
        return Job("table", method=name, options=tuple(sorted(self.tables[name].items())))

    def specs(self) -> list[Spec]:
        """Every problem, once."""
        specs = [spec for group in self.groups().values() for spec in group[0]]
        return list(dict.fromkeys([*specs, *self.checks]))

    def optima(self) -> list[Job]:
        return [Job("optimum", spec) for spec in self.specs()]

    def jobs(self) -> list[Job]:
        """All there is to do, what takes long first, so that no worker waits at the end."""
        curves = [job for group in self.groups() for job in self.curves(group)]
        tunings = [job.tuning() for job in curves if METHODS[job.method].tuned]
        tables = [self.table(name) for name in self.tables]
        every = dict.fromkeys([*self.optima(), *tunings, *tables, *curves])
        return sorted(every, key=_rank)


def _rank(job: Job) -> tuple[int, int]:
    """Optima, then tunings of many small steps, then the rest in order."""
    slow = ("drago-1", "steady-1", "prospect", "drago-16", "steady-16")
    kinds = {"optimum": 0, "tuning": 1, "table": 2, "curve": 3}
    return kinds[job.kind], slow.index(job.method) if job.method in slow else len(slow)


_TEXT_OF_TINY = "iris"


def full() -> Plan:
    """The paper's experiments."""
    text = [Spec(TEXT, nu=nu) for nu in (1.0, 0.01, 0.001)]
    balls = [Spec(name, "chi2", level=1.0) for name in (*REGRESSION, TEXT)]
    return Plan(
        "full",
        regression=[Spec(name) for name in REGRESSION],
        text=text,
        balls=balls,
        batch=[
            Spec(name, mu=mu, nu=nu)
            for name in ("kin8nm", "power")
            for mu, nu in ((1.0, 1.0), (1.0, 0.01), (0.1, 1.0), (0.1, 0.01))
        ],
        ablation=[Spec("kin8nm"), Spec("acsincome1k"), Spec("concrete", mu=1e-2), Spec(TEXT)],
        limits=Limits(TARGET, passes=300.0, seconds=2.0, most_seconds=15.0),
        text_limits=Limits(TARGET, passes=300.0, seconds=4.0, most_seconds=20.0),
        tables={
            "rates": {
                "n": 1000,
                "d": 10,
                "points": (
                    ("nu", (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3)),
                    ("mu", (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)),
                    ("kappa", (1.1, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0)),
                    ("b", (1, 3, 10, 30, 100, 300, 1000)),
                ),
            },
            "linear": {"n": 300, "d": 5, "nus": (1e4, 1e2, 1.0, 1e-2), "passes": 6000.0},
            "bias": {
                "cases": (
                    *((name, None, 1.0) for name in REGRESSION),
                    *((TEXT, None, nu) for nu in (1.0, 0.01, 0.001)),
                ),
                "batches": 10_000,
            },
            "theorem": {
                "n": 20,
                "d": 2,
                "nus": (1e2, 1e4, 1e6),
                "lengths": 5.0,
                "seeds": 2,
            },
            "costs": {
                "cases": tuple(
                    (n, d, b)
                    for n in (10_000, 30_000, 100_000, 300_000)
                    for d in (10, 50)
                    for b in (100, 1000, 10_000)
                ),
                "seconds": 0.5,
            },
            "memory": {"n": 20_000, "d": 50},
            "kappas": {
                "sizes": (10, 100, 1000, 10_000),
                "levels": (0.75, 0.5, 0.1),
                "radii": (0.5, 1.0, 2.0),
            },
        },
        checks=[Spec(TEXT, rows=300, nu=nu) for nu in (1.0, 0.01, 0.001)],
    )


def quick() -> Plan:
    """The same on at most 500 rows a data set, with short runs."""
    rows = 500
    text = [Spec(TEXT, nu=nu, rows=rows) for nu in (1.0, 0.001)]
    return Plan(
        "quick",
        regression=[Spec(name, rows=rows) for name in REGRESSION],
        text=text,
        balls=[Spec(name, "chi2", level=1.0, rows=rows) for name in ("yacht", "kin8nm", TEXT)],
        batch=[Spec(name, mu=mu, rows=rows) for name in ("kin8nm", "power") for mu in (1.0, 0.1)],
        ablation=[Spec("kin8nm", rows=rows), Spec("concrete", mu=1e-2, rows=rows), text[0]],
        limits=Limits(TARGET, passes=50.0, seconds=0.05, most_seconds=0.7),
        text_limits=Limits(TARGET, passes=50.0, seconds=0.1, most_seconds=1.0),
        tables={
            "rates": {
                "n": 200,
                "d": 4,
                "points": (
                    ("nu", (1e2, 1.0, 1e-2)),
                    ("mu", (10.0, 1.0, 0.1)),
                    ("kappa", (1.1, 2.0, 10.0)),
                    ("b", (2, 10, 50, 200)),
                ),
            },
            "linear": {"n": 100, "d": 4, "nus": (1e4, 1e-1), "passes": 500.0},
            "bias": {
                "cases": (*((name, rows, 1.0) for name in REGRESSION), (TEXT, rows, 0.001)),
                "batches": 2000,
            },
            "theorem": {"n": 20, "d": 2, "nus": (1e2, 1e6), "lengths": 1.0, "seeds": 1},
            "costs": {
                "cases": tuple(
                    (n, d, b) for n in (10_000, 40_000) for d in (10, 50) for b in (100, 2000)
                ),
                "seconds": 0.1,
            },
            "memory": {"n": 12_000, "d": 50},
            "kappas": {"sizes": (10, 100, 1000), "levels": (0.75, 0.1), "radii": (1.0,)},
        },
        effort=(1, 15),
        shown=50.0,
    )


def tiny() -> Plan:
    """A few seconds on data that need no files: for the tests."""
    plan, row = quick(), 60
    return replace(
        plan,
        size="tiny",
        regression=[Spec("diabetes", rows=row)],
        text=[Spec(_TEXT_OF_TINY, nu=nu, rows=row) for nu in (1.0, 0.01)],
        balls=[Spec("diabetes", "chi2", level=1.0, rows=row)],
        batch=[Spec("diabetes", rows=row)],
        ablation=[Spec("diabetes", rows=row)],
        limits=Limits(TARGET, passes=5.0, seconds=0.0, most_seconds=0.02),
        text_limits=Limits(TARGET, passes=5.0, seconds=0.0, most_seconds=0.02),
        tables={
            "rates": {"n": 60, "d": 2, "points": (("nu", (10.0, 1.0)), ("b", (10, 30)))},
            "linear": {"n": 40, "d": 2, "nus": (1e4, 1.0), "passes": 5.0},
            "bias": {"cases": (("diabetes", row, 1.0),), "batches": 50},
            "theorem": {"n": 6, "d": 2, "nus": (1e6,), "lengths": 0.5, "seeds": 1},
            "costs": {
                "cases": tuple((n, d, 100) for n in (500, 1000) for d in (2, 20)),
                "seconds": 0.005,
            },
            "memory": {"n": 300, "d": 4},
            "kappas": {"sizes": (10, 100), "levels": (0.5,), "radii": (1.0,)},
        },
        effort=(1, 2),
        seeds=(0, 1),
    )


SIZES = {"full": full, "quick": quick, "tiny": tiny}
