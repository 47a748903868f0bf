"""The problems of the paper's experiments, in the paper's scale, by name.

The paper writes the chi2 penalty ``(nu'/2) ||q - 1/n||^2``, which is our ``shift_cost = nu'/n``,
and its ball ``1/2 ||q - 1/n||^2 <= 1/n``, which is our radius 1. No intercept; the CVaR of its
figures has the tail fraction 0.75. Data are prepared as in the paper (`drago.datasets.load`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import drago
from drago.datasets import Dataset, load, make_synthetic

REGRESSION = ("yacht", "energy", "concrete", "acsincome1k", "kin8nm", "power")
TEXT = "emotion"
TITLES = {"acsincome1k": "acsincome (1,000 of 4,000 rows)"}
# Rows of the training part in the paper's table of data sets, and which it calls small.
PAPER_ROWS = {
    "yacht": 244, "energy": 614, "concrete": 824, "acsincome1k": 4000, "kin8nm": 6553,
    "power": 7654, "emotion": 8000,
}  # fmt: skip
SMALL = 1000
# Seed of the data that are drawn.
_DRAWN = 0


@dataclass(frozen=True)
class Spec:
    """A problem by its settings, `nu` in the paper's scale.

    Parameters
    ----------
    data : str
        A name that `drago.datasets.load` knows, or ``"synthetic"``.
    uncertainty : {"cvar", "chi2"}
        CVaR with `level` as tail fraction, or a chi2 ball with `level` as radius.
    mu, nu, level : float
    rows : int, optional
        Only the first so many rows of the training part; they are in random order.
    columns : int
        Features, where the data are drawn.
    """

    data: str
    uncertainty: str = "cvar"
    mu: float = 1.0
    nu: float = 1.0
    level: float = 0.75
    rows: int | None = None
    columns: int = 0

    @property
    def title(self) -> str:
        """The name of the data, for a figure."""
        return TITLES.get(self.data, self.data)

    def size(self, n: int) -> str:
        """Whether the paper's own set is "small" or "large"; "part" if `n` is not all its rows."""
        rows = PAPER_ROWS.get(self.data)
        if n != rows:
            return "part"
        return "small" if rows <= SMALL else "large"

    def build(self) -> drago.DROProblem:
        """The problem itself."""
        data = _data(self.data, self.rows, self.columns)
        sets = {"cvar": drago.CVaR, "chi2": drago.Chi2Ball}
        return drago.DROProblem(
            data.X,
            data.y,
            loss="squared" if data.task == "regression" else "multinomial",
            uncertainty=sets[self.uncertainty](self.level),
            divergence="chi2",
            shift_cost=self.nu / data.y.size,
            l2_reg=self.mu,
        )


@cache
def _data(name: str, rows: int | None, columns: int) -> Dataset:
    if name == "synthetic":
        assert rows is not None
        return make_synthetic(rows, columns, tail_heaviness=0.2, random_state=_DRAWN)
    data = load(name, prepare="paper")
    if rows is None or rows >= data.y.size:
        return data
    return Dataset(name, data.task, data.X[:rows], data.y[:rows])


def unknowns(problem: drago.DROProblem) -> int:
    """The d of the paper: coefficients of all classes."""
    return problem.n_features * problem.n_outputs


def digest(*settings: Any) -> str:
    """A short name for settings, the same in every process."""
    text = json.dumps([asdict(s) if isinstance(s, Spec) else s for s in settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
