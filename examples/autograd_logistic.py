"""Logistic regression written as a network of one layer: the same answer as DROClassifier.

`AutogradProblem` takes any model of PyTorch and a loss of its predictions, and differentiates them
by autograd. Of a linear model and a convex loss the losses are convex in the parameters; where that
is declared, the answer comes with a certificate, and it is the one that `DROClassifier` finds with
formulas of its own. Breast cancer, the ten mean measurements of a cell nucleus; the two fits are
compared coefficient by coefficient, and the answer is written back into the module.

    python examples/autograd_logistic.py [--small]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import drago
from drago import CVaR, DROClassifier
from drago.datasets import load
from drago.torch_engine import AutogradProblem

SETTINGS = {"uncertainty": CVaR(0.2), "shift_cost": 0.05, "l2_reg": 1e-2}
TOL = 1e-12


def logistic(scores: Tensor, y: Tensor) -> Tensor:
    """One loss a row."""
    return binary_cross_entropy_with_logits(scores.squeeze(-1), y, reduction="none")


def main(small: bool = False) -> None:
    data = load("breast_cancer")
    X, y = data.X[:, :10], data.y.astype(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    if small:
        X, y = X[:200], y[:200]
    print(f"breast cancer: {y.size} patients, {X.shape[1]} features, CVaR 0.2, tol={TOL:g}\n")

    classifier = DROClassifier(**SETTINGS, fit_intercept=False, tol=TOL).fit(X, y)
    torch.manual_seed(0)
    module = nn.Linear(X.shape[1], 1, bias=False)
    rows = torch.from_numpy(X), torch.from_numpy(y)
    problem = AutogradProblem(module, rows, logistic, convex=True, **SETTINGS)
    print(f"{problem}\n")
    print(f"{'':22}{'objective':>14}{'certified gap':>16}{'passes':>8}{'time':>9}")
    answers = {
        "DROClassifier": classifier.result_,
        "nn.Module, lbfgs": drago.solve(problem, "lbfgs", tol=TOL),
        "nn.Module, drago": drago.solve(problem, "drago", tol=TOL),
    }
    for name, result in answers.items():
        print(
            f"{name:22}{result.primal:14.10f}{result.rel_gap:16.1e}{result.n_passes:8.0f}"
            f"{result.time:7.2f} s"
        )

    result = answers["nn.Module, lbfgs"]
    apart = np.abs(result.coef - classifier.coef_[0]).max()
    print(f"\nlargest difference of a coefficient: {apart:.1e}")
    problem.load_into(module, result.coef)
    with torch.no_grad():
        scores = module.double()(rows[0]).squeeze(-1).numpy()
    same = np.mean((scores > 0) == (classifier.decision_function(X) > 0))
    print(f"written into the module, which decides as the classifier on {same:.1%} of the patients")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Logistic regression as an nn.Module.")
    parser.add_argument("--small", action="store_true", help="200 patients")
    main(**vars(parser.parse_args()))
