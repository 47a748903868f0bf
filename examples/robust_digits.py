"""Robust training of a small network: handwritten digits, of which two are rare.

A network with one hidden layer is trained on half of scikit-learn's digits, with nine of ten eights
and nines left out. The mean loss hardly sees those. `RobustLoss` takes its place in the training
loop and nothing else changes: over the samples, which needs no word about what is rare, or over the
classes, given as groups. The other half, where all digits count alike, is the judge. Mean and
standard error over random splits and starts, at two points of the training.

At the first the robust losses serve the worst class much better, and all classes a little. At the
second the network has learned its training images by heart: every loss is then nearly 0, whichever
rows it comes from, there is little left to reweight, and the difference is within the error. A
robust loss is worth most while the model cannot fit everything.

    python examples/robust_digits.py [--small]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from drago import CVaR, Grouped, KLBall
from drago.torch_engine import RobustLoss

RARE, KEPT = (8, 9), 0.1
BATCH = 128
CRITERIA = {
    "mean": RobustLoss(CVaR(1.0)),
    "CVaR 0.5": RobustLoss(CVaR(0.5), shift_cost=0.1),
    "CVaR 0.2": RobustLoss(CVaR(0.2), shift_cost=0.1),
    "KL ball 0.5": RobustLoss(KLBall(0.5)),
    "classes, CVaR 0.2": RobustLoss(Grouped(CVaR(0.2)), shift_cost=0.1),
}


def split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random halves; the first without most of the rare digits."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(y.size)
    fit, judge = order[: y.size // 2], order[y.size // 2 :]
    fit = fit[~np.isin(y[fit], RARE) | (rng.random(fit.size) < KEPT)]
    X = torch.tensor(X / 16.0, dtype=torch.float32)
    y = torch.tensor(y)
    return X[fit], y[fit], X[judge], y[judge]


def train(
    criterion: RobustLoss, X: Tensor, y: Tensor, seed: int, epochs: tuple[int, int]
) -> Iterator[nn.Module]:
    """The model after each of the given numbers of epochs."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, max(epochs) + 1):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            losses = cross_entropy(model(X[rows]), y[rows], reduction="none")
            groups = y[rows] if criterion.oracle.grouped else None
            criterion(losses, groups=groups).backward()
            optimizer.step()
        if epoch in epochs:
            yield model


@torch.no_grad()
def judged(model: nn.Module, X: Tensor, y: Tensor) -> list[float]:
    """Accuracy, accuracy of the worst class, mean loss, mean of the largest tenth of the losses."""
    scores = model(X)
    right = (scores.argmax(1) == y).float()
    classes = [right[y == digit].mean().item() for digit in range(10)]
    losses = cross_entropy(scores, y, reduction="none")
    tail = losses.sort().values[-len(y) // 10 :]
    return [right.mean().item(), min(classes), losses.mean().item(), tail.mean().item()]


def main(small: bool = False) -> None:
    seeds, epochs = (2, (5, 10)) if small else (5, (40, 120))
    torch.set_num_threads(1)
    found: dict[str, list[list[list[float]]]] = {}
    times = {}
    for name, criterion in CRITERIA.items():
        began = time.perf_counter()
        found[name] = []
        for seed in range(seeds):
            X_fit, y_fit, X_judge, y_judge = split(seed)
            models = train(criterion, X_fit, y_fit, seed, epochs)
            found[name].append([judged(model, X_judge, y_judge) for model in models])
        times[name] = (time.perf_counter() - began) / seeds
    print(f"digits, {seeds} splits, batches of {BATCH};")
    print(f"of {RARE[0]} and {RARE[1]}, {KEPT:.0%} are left in the training images")
    columns = ["accuracy", "worst class", "mean loss", "worst 10%"]
    for k, epoch in enumerate(epochs):
        print(f"\n{f'{epoch} epochs':18}" + "".join(f"{column:>18}" for column in columns))
        for name, runs in found.items():
            values = np.array(runs)[:, k]
            mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(seeds)
            cells = [f"{m:.1%} +- {e:.1%}" for m, e in zip(mean[:2], error[:2])]
            cells += [f"{m:.3f} +- {e:.3f}" for m, e in zip(mean[2:], error[2:])]
            print(f"{name:18}" + "".join(f"{cell:>18}" for cell in cells))
    print("\ntime of a training: " + ", ".join(f"{n} {t:.1f} s" for n, t in times.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Worst-class accuracy of a robust network.")
    parser.add_argument("--small", action="store_true", help="two splits, few epochs")
    main(**vars(parser.parse_args()))
