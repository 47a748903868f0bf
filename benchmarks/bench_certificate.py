"""How tight is the certificate? Certified against true relative suboptimality.

At points whose true relative suboptimality is 1e-6 (the optimum, perturbed in random directions),
prints the certified one divided by the true one, for each loss, set, l2_reg and shift_cost.

    python benchmarks/bench_certificate.py [--quick] [--csv FILE]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from tables import write_csv

import drago

SETS = {
    "CVaR 0.5": drago.CVaR(0.5),
    "CVaR 0.1": drago.CVaR(0.1),
    "extremile 2": drago.Extremile(2.0),
    "chi2 ball 1": drago.Chi2Ball(1.0),
    "KL ball 0.5": drago.KLBall(0.5),
}
TRUE = 1e-6


def data(loss: str, rng: np.random.Generator, n: int = 400, d: int = 8) -> tuple[Any, Any]:
    X = rng.standard_normal((n, d)) * np.logspace(0, -1, d)
    z = X @ rng.standard_normal(d) * 3
    if loss in ("squared", "huber"):
        return X, z + rng.standard_t(4, n)
    if loss == "logistic":
        return X, (z + rng.logistic(size=n) > 0).astype(float)
    return X, np.digitize(z + rng.standard_normal(n), [-0.7, 0.7])


def perturbed(problem: drago.DROProblem, rng: np.random.Generator) -> tuple[Any, Any, float]:
    """A point whose true relative suboptimality is `TRUE`, and the true optimal value.

    The value is NaN where the solver did not come close enough to the optimum to tell.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = drago.solve(problem, tol=1e-11, max_iter=20000)
    optimum = best.dual + 0.5 * best.gap
    if best.rel_gap > 1e-2 * TRUE:
        return best.coef, best.intercept, np.nan
    span = problem.reference[0] - optimum
    direction = rng.standard_normal(np.shape(best.coef))
    shift = rng.standard_normal(np.shape(best.intercept)) if problem.fit_intercept else 0.0

    def excess(t: float) -> float:
        return problem.objective(best.coef + t * direction, best.intercept + t * shift) - optimum

    low, high = 0.0, 1.0
    while excess(high) < TRUE * span:
        high *= 2
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) < TRUE * span else (low, middle)
    return best.coef + low * direction, best.intercept + low * shift, optimum


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    losses = ["squared", "logistic"] if quick else ["squared", "huber", "logistic", "multinomial"]
    shift_costs = [0.1, 1e-3] if quick else [0.1, 1e-2, 1e-3, 1e-4, 1e-5]
    for loss in losses:
        for name, uncertainty in SETS.items():
            for intercept in (False, True):
                for shift_cost in shift_costs:
                    for l2_reg in [1.0, 1e-6] if quick else [1.0, 1e-2, 1e-4, 1e-6]:
                        rng = np.random.default_rng(0)
                        X, y = data(loss, rng)
                        problem = drago.DROProblem(
                            X,
                            y,
                            loss=loss,
                            uncertainty=uncertainty,
                            shift_cost=shift_cost,
                            l2_reg=l2_reg,
                            fit_intercept=intercept,
                        )
                        coef, b, optimum = perturbed(problem, rng)
                        found = drago.certify(problem, coef, b)
                        true = (found.primal - optimum) / (problem.reference[0] - optimum)
                        yield {
                            "loss": loss,
                            "set": name,
                            "intercept": intercept,
                            "shift_cost": shift_cost,
                            "l2_reg": l2_reg,
                            "true": true,
                            "certified": found.rel_gap,
                            "ratio": found.rel_gap / true,
                            "bound": found.bound,
                        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--csv")
    options = parser.parse_args()
    table = list(rows(options.quick))
    print("certified / true relative suboptimality, worst over l2_reg and intercept")
    costs = sorted({row["shift_cost"] for row in table}, reverse=True)
    print(f"{'loss':12} {'set':12} " + " ".join(f"nu={cost:<8g}" for cost in costs))
    for loss, name in dict.fromkeys((row["loss"], row["set"]) for row in table):
        cells = []
        for cost in costs:
            key = (loss, name, cost)
            found = [r for r in table if (r["loss"], r["set"], r["shift_cost"]) == key]
            ratios = [r["ratio"] for r in found if np.isfinite(r["ratio"])]
            unknown = "*" if len(ratios) < len(found) else ""
            cells.append(f"{max(ratios):.2f}{unknown}" if ratios else "*")
        print(f"{loss:12} {name:12} " + " ".join(f"{cell:<11}" for cell in cells))
    print("* optimum not known well enough to tell in some of the cases")
    write_csv(options.csv, table)


if __name__ == "__main__":
    sys.exit(main())
