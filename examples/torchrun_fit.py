"""One fit on several processes or cards, each with rows of its own.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_fit.py [--rows 200000] [--small]
    python examples/torchrun_fit.py       # the same by one process

Each rank draws its own rows and keeps them on its card, or in memory where there is none. All ranks
solve one problem together, and have the same answer; the first one reports. The solve is saved to a
checkpoint: with `--max-restarts` torchrun starts the ranks anew when one of them is lost, and they
go on from there (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` lets them meet in a new store).
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import drago

FEATURES = 20


def draw_rows(rank: int, n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a rank; in practice it reads its own files."""
    generator = torch.Generator().manual_seed(rank)
    X = torch.randn(n, FEATURES, generator=generator)
    noise = torch.randn(n, generator=generator)
    hard = torch.rand(n, generator=generator) < 0.1  # rows with noise of their own
    y = X @ torch.linspace(1.0, -1.0, FEATURES) + torch.where(hard, 5.0 * noise, noise)
    return X.to(device), y.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of each rank")
    parser.add_argument("--checkpoint", help="a file, in a folder that outlives the ranks")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    rank, device = int(os.environ.get("RANK", "0")), torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    X, y = draw_rows(rank, 2_000 if asked.small else asked.rows, device)

    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.1), fit_intercept=True)
    path = asked.checkpoint or Path(tempfile.gettempdir()) / f"torchrun_fit.{os.getppid()}.drago"
    result = drago.solve(
        problem, drago.LBFGS(metric="auto", progressive=True), tol=1e-6, checkpoint=path, verbose=1
    )

    if rank == 0:
        print(f"{problem.n_samples} rows, {result.message}")
        print("coefficients", result.coef.round(3)[:5], "...")
        if asked.checkpoint is None:
            for each in Path(path).parent.glob(Path(path).name + "*"):
                each.unlink()
    print(f"rank {rank} holds the weights of its {len(result.dual_weights)} rows")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
