"""The first fit of a new process: how long people wait before they see anything.

    python benchmarks/bench_first.py first overhead limit --csv FOLDER

Each fit is made in a process of its own, which has imported the estimators and the data before. The
second fit of the same process stands beside it, and whether both gave the same bits. `overhead`
compares later fits with the solves inside them, in time of the processor: what other programs take
from a fit of few milliseconds would say more of them. `limit` asks for an answer within a second
(`time_limit=1`) and tells when it came.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from tables import Table, make_tables, parser_of

SETTING = "uncertainty=drago.CVaR(0.1)"
DIABETES = "X, y = load_diabetes(return_X_y=True)"
CASES = {
    "diabetes": (DIABETES, f"drago.DRORegressor({SETTING})"),
    "diabetes, drago": (DIABETES, f"drago.DRORegressor({SETTING}, solver='drago')"),
    "diabetes, extremile": (DIABETES, "drago.DRORegressor(uncertainty=drago.Extremile(2.0))"),
    "breast cancer": (
        "X, y = load_breast_cancer(return_X_y=True); X = (X - X.mean(0)) / X.std(0)",
        f"drago.DROClassifier({SETTING})",
    ),
    "wine": (
        "X, y = load_wine(return_X_y=True); X = (X - X.mean(0)) / X.std(0)",
        f"drago.DROClassifier({SETTING})",
    ),
    "200,000 x 20": (
        "rng = np.random.default_rng(0); X = rng.normal(size=(200_000, 20)); "
        "y = X @ np.ones(20) + rng.standard_t(3, size=200_000)",
        f"drago.DRORegressor({SETTING})",
    ),
}
SPARSE = (
    "from scipy import sparse; rng = np.random.default_rng(0); n, d = {n}, 20_000; "
    "places = np.sort(rng.integers(0, d, size=(n, 50)), axis=1).reshape(-1); "
    "X = sparse.csr_array((rng.normal(size=n * 50), places, 50 * np.arange(n + 1)), shape=(n, d)); "
    "X.sum_duplicates(); y = X @ rng.normal(size=d) + rng.standard_t(3, size=n)"
)
LARGE = (
    "rng = np.random.default_rng(0); X = rng.normal(size=({n}, 50)) * np.logspace(0, 2, 50); "
    "y = X @ np.ones(50) + rng.standard_t(3, size={n})"
)
PROGRAM = """
import json, time, warnings
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
import drago
drago.DRORegressor, drago.DROClassifier
warnings.simplefilter("ignore")
{data}
fits, times = [], []
for _ in range(2):
    model = {model}
    began = time.perf_counter()
    model.fit(X, y)
    times.append(time.perf_counter() - began)
    fits.append(np.asarray(model.coef_).tobytes())
print(json.dumps([*times, fits[0] == fits[1]]))
"""


# Fits in turns: as they are, and without the check for collapse; with the solve that is in them.
OVERHEAD = """
import json, statistics, time, warnings
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
import drago
from drago.estimators import base
from drago.estimators.collapse import Skill
warnings.simplefilter("ignore")
{data}
model = {model}
found, solve, measure = [], base.solve, base.measure_skill
unknown = Skill(np.nan, np.nan)
def timed(function, *arguments, **settings):
    began = time.process_time()
    out = function(*arguments, **settings)
    times.append(time.process_time() - began)
    return out
base.solve = lambda *arguments, **settings: timed(solve, *arguments, **settings)
for k in range(2 * {count}):
    times = []
    base.measure_skill = (lambda *_: unknown) if k % 2 else measure
    timed(model.fit, X, y)
    found.append(times)
inside, fit = zip(*found[4:])
median = statistics.median
print(json.dumps([median(fit[::2]), median(fit[1::2]), median(inside)]))
"""


def fits(data: str, model: str) -> tuple[float, float, bool]:
    """Seconds of the first and of the second fit in a new process, and whether they are equal."""
    first, second, same = told_by(PROGRAM.format(data=data, model=model))
    return first, second, same


def told_by(program: str) -> Any:
    """What a program in a new process prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout)


def first(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The first fit of a new process and the second; medians of the processes."""
    table = Table({"case": "22s", "first": "8.3f", "second": "8.3f", "same_bits": "9s"})
    for name, (data, model) in CASES.items():
        found = [fits(data, model) for _ in range(options.repeats)]
        table.add(
            {
                "case": name,
                "first": statistics.median(one[0] for one in found),
                "second": statistics.median(one[1] for one in found),
                "same_bits": str(all(one[2] for one in found)),
            }
        )
    return table.rows


def overhead(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a fit, of one without the check for collapse, and of the solve in it."""
    columns = {"case": "22s", "fit": "8.2f", "unchecked": "9.2f", "solve": "8.2f"}
    table = Table({**columns, "ratio": "6.2f", "unchecked_ratio": "15.2f"})
    for name in ("diabetes", "breast cancer", "wine"):
        data, model = CASES[name]
        count = 20 if options.quick else 150
        fit, unchecked, inside = told_by(OVERHEAD.format(data=data, model=model, count=count))
        table.add(
            {
                "case": name,
                "fit": 1e3 * fit,
                "unchecked": 1e3 * unchecked,
                "solve": 1e3 * inside,
                "ratio": fit / inside,
                "unchecked_ratio": unchecked / inside,
            }
        )
    return table.rows


def limit(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds until the first fit with `time_limit=1` and `tol=1e-13` returns; medians."""
    table = Table({"rows": "9d", "features": "8s", "solver": "8s", "seconds": "8.2f"})
    few, most = ("auto", "drago"), ("auto", "drago", "lbfgs", "gd", "sgd", "lsvrg", "prospect")
    cases = [(LARGE, n, few) for n in (2_000, 200_000)]
    cases += [(LARGE, 1_000_000, (*most, "newton")), (SPARSE, 1_000_000, most)]
    for data, n, solvers in cases[:2] if options.quick else cases:
        for solver in solvers:
            model = f"drago.DRORegressor({SETTING}, tol=1e-13, time_limit=1, solver={solver!r})"
            found = [fits(data.format(n=n), model)[0] for _ in range(options.repeats)]
            spent = statistics.median(found)
            kind = "dense" if data is LARGE else "sparse"
            table.add({"rows": n, "features": kind, "solver": solver, "seconds": spent})
    return table.rows


TABLES = {"first": first, "overhead": overhead, "limit": limit}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each case")
    make_tables(TABLES, parser.parse_args())


if __name__ == "__main__":
    main()
