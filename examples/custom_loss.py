"""A loss of one's own, solved with a certificate: robust quantiles of the progress of diabetes.

How bad can it get? The 80% quantile of the disease's progress, a year ahead, as a linear function
of ten measurements. The quantile loss has a kink; the quantile-Huber loss is rounded there, so that
it is smooth, and stays convex:

    loss(r) = |tau - [r < 0]| h(r) / delta        r = target - prediction
    h(r)    = r^2 / 2 for |r| <= delta, delta (|r| - delta / 2) beyond

It is written in four lines of PyTorch, autograd does the rest, and the certificate tells how far
from the optimum the answer can be at most. The parameters are a dict. Each model is fitted on half
of the patients and judged on the other, mean and standard error over random splits.

    python examples/custom_loss.py [--small]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

import drago
from drago import CVaR
from drago.datasets import load
from drago.torch_engine import AutogradProblem

LEVEL, DELTA = 0.8, 0.1
MODELS = {"mean": 1.0, "CVaR 0.5": 0.5, "CVaR 0.2": 0.2}


def line(parameters: dict[str, Tensor], X: Tensor) -> Tensor:
    return X @ parameters["slopes"] + parameters["offset"]


def quantile_huber(prediction: Tensor, target: Tensor) -> Tensor:
    residual = target - prediction
    size = residual.abs()
    rounded = torch.where(size <= DELTA, 0.5 * residual**2, DELTA * (size - 0.5 * DELTA))
    return torch.where(residual < 0, 1.0 - LEVEL, LEVEL) * rounded / DELTA


def judged(losses: Tensor) -> list[float]:
    """Mean loss, and mean of the largest tenth."""
    tail = losses.sort().values[-len(losses) // 10 :]
    return [losses.mean().item(), tail.mean().item()]


def main(small: bool = False) -> None:
    data = load("diabetes")
    X = torch.from_numpy((data.X - data.X.mean(axis=0)) / data.X.std(axis=0))
    y = torch.from_numpy((data.y - data.y.mean()) / data.y.std())
    splits = 2 if small else 10
    n, d = X.shape
    zero = {"slopes": torch.zeros(d), "offset": torch.zeros(())}
    print(f"diabetes: {n} patients, {d} features; quantile {LEVEL}, {splits} splits\n")
    print(
        f"{'':10}{'mean loss':>18}{'worst 10%':>18}{'below':>8}{'certified gap':>16}{'passes':>8}"
    )
    for name, tail_fraction in MODELS.items():
        found, below, gaps, passes = [], [], [], []
        for seed in range(splits):
            order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
            fit, judge = order[: n // 2], order[n // 2 :]
            problem = AutogradProblem(
                line,
                (X[fit], y[fit]),
                quantile_huber,
                parameters=zero,
                convex=True,
                uncertainty=CVaR(tail_fraction),
                shift_cost=0.1,
                l2_reg=1e-3,
            )
            result = drago.solve(problem, tol=1e-6)
            assert result.status == "optimal", result.message
            parameters = {
                key: value.double() for key, value in problem.parameters(result.coef).items()
            }
            prediction = line(parameters, X[judge])
            found.append(judged(quantile_huber(prediction, y[judge])))
            below.append((y[judge] <= prediction).double().mean().item())
            gaps.append(result.rel_gap)
            passes.append(result.n_passes)
        mean = np.mean(found, axis=0)
        error = np.std(found, axis=0, ddof=1) / np.sqrt(splits)
        cells = "".join(f"{f'{m:.3f} +- {e:.3f}':>18}" for m, e in zip(mean, error))
        print(f"{name:10}{cells}{np.mean(below):8.0%}{max(gaps):16.1e}{np.mean(passes):8.0f}")
    print(f"\nthe last answer: {result.message}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A convex loss of one's own, certified.")
    parser.add_argument("--small", action="store_true", help="two splits")
    main(**vars(parser.parse_args()))
