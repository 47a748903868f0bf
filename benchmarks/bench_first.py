"""The first fit of a new process: how long people wait before they see anything.

    python benchmarks/bench_first.py first limit --csv FOLDER

Each fit is made in a process of its own, which has imported the estimators and the data before. The
second fit of the same process stands beside it, and whether both gave the same bits. `limit`
asks for an answer within a second (`time_limit=1`) and tells when it came.
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


def fits(data: str, model: str) -> tuple[float, float, bool]:
    """Seconds of the first and of the second fit in a new process, and whether they are equal."""
    program = PROGRAM.format(data=data, model=model)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    first, second, same = json.loads(done.stdout)
    return first, second, same


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


def limit(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds until the first fit with `time_limit=1` and `tol=1e-13` returns."""
    table = Table({"rows": "9d", "solver": "8s", "seconds": "8.2f"})
    for n in (2_000, 200_000, 1_000_000):
        for solver in ("auto", "drago"):
            model = f"drago.DRORegressor({SETTING}, tol=1e-13, time_limit=1, solver={solver!r})"
            spent = fits(LARGE.format(n=n), model)[0]
            table.add({"rows": n, "solver": solver, "seconds": spent})
    return table.rows


TABLES = {"first": first, "limit": limit}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each case")
    make_tables(TABLES, parser.parse_args())


if __name__ == "__main__":
    main()
