"""Rows that ranks share: what a second rank gains, and what a process group costs.

    python benchmarks/bench_ranks.py cores [--rows 4e6] [--features 50]
    python benchmarks/bench_ranks.py card [--rows 4e6] [--features 100]

`cores` starts two processes (gloo, one thread each). In turn, the first one solves all rows as the
only rank of a group, while the other waits, and both solve them with half of the rows each.

`card` needs one card and no launcher. In turn it solves without a group; with a group of one rank
(NCCL), which needs nobody's numbers and exchanges none; and with that group made to exchange what
several ranks would. The last one is what a process group costs before there is a second card.

Squared loss, CVaR 0.1, heavy tails, certified to 1e-5. Times are medians of solves in turn after a
first one of each kind. Rows are drawn before, and are not in the times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import drago
from drago.rows import tensor_ranks

BLOCK = 1 << 18


def draw(first: int, last: int, d: int, device: str, dtype: torch.dtype) -> Any:
    """The rows from `first` to `last`, the same for whoever draws them."""
    X = torch.empty((last - first, d), dtype=dtype, device=device)
    y = torch.empty(last - first, dtype=torch.float64, device=device)
    scale = torch.logspace(0.0, -1.5, d, device=device)
    truth = torch.linspace(1.0, -1.0, d, device=device) / scale / d**0.5
    for k in range(first // BLOCK, -(-last // BLOCK)):
        generator = torch.Generator(device=device).manual_seed(k)
        part = torch.randn((BLOCK, d), generator=generator, device=device) * scale
        noise = torch.randn((BLOCK, 4), generator=generator, device=device)
        # Student's t with 3 degrees of freedom.
        z = part @ truth + noise[:, 0] / (noise[:, 1:] ** 2).mean(1).sqrt()
        low, high = max(first, k * BLOCK), min(last, (k + 1) * BLOCK)
        here, mine = slice(low - first, high - first), slice(low - k * BLOCK, high - k * BLOCK)
        X[here], y[here] = part[mine].to(dtype), z[mine].double()
    return X, y


class Exchanges:
    """How often the ranks have exchanged numbers."""

    count = 0

    def __init__(self) -> None:
        plain = tensor_ranks.Ranks._all

        def counted(ranks: Any, values: Any) -> Any:
            Exchanges.count += 1
            return plain(ranks, values)

        tensor_ranks.Ranks._all = counted  # type: ignore[method-assign]


def solve(X: Any, y: Any, group: Any) -> tuple[float, Any, int]:
    """Seconds from tensors to a certified answer, the answer, and exchanges."""
    if X.is_cuda:
        torch.cuda.synchronize()
    Exchanges.count, began = 0, time.perf_counter()
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.1), process_group=group)
    result = drago.solve(problem, tol=1e-5)
    return time.perf_counter() - began, result, Exchanges.count


def show(rows: dict[str, list[Any]]) -> None:
    print(f"{'':34}{'seconds':>9}{'least':>9}{'passes':>8}{'gap':>10}{'exchanges':>11}{'ratio':>7}")
    first = None
    for name, found in rows.items():
        times = [seconds for seconds, *_ in found]
        median, (_, result, count) = statistics.median(times), found[-1]
        first = median if first is None else first
        print(
            f"{name:34}{median:9.4f}{min(times):9.4f}{result.n_passes:8.1f}"
            f"{result.rel_gap:10.1e}{count:11d}{median / first:7.2f}",
            flush=True,
        )


def cores(asked: Any) -> None:
    """What the two processes do."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{asked.store}/store",
                            rank=asked.rank, world_size=2)  # fmt: skip
    single = dist.new_group([0])
    n, middle = int(asked.rows), int(asked.rows) // 2
    first, last = (0, n) if asked.rank == 0 else (middle, n)
    X, y = draw(first, last, asked.features, "cpu", torch.float64)
    half = slice(0, middle) if asked.rank == 0 else slice(0, n - middle)
    Exchanges()
    found: dict[str, list[Any]] = {"one rank": [], "two ranks": []}
    for turn in range(asked.solves + 1):
        dist.barrier()
        if asked.rank == 0:
            one = solve(X, y, single)
        dist.barrier()
        two = solve(X[half], y[half], dist.group.WORLD)
        if asked.rank == 0 and turn:
            found["one rank"].append(one)
            found["two ranks"].append(two)
    if asked.rank == 0:
        show(found)
        one, two = (statistics.median(s for s, *_ in each) for each in found.values())
        print(f"two ranks are {one / two:.2f} times as fast as one")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def card(asked: Any) -> None:
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1,
            device_id=torch.device("cuda", 0),
        )  # fmt: skip
        X, y = draw(0, int(asked.rows), asked.features, "cuda", torch.float32)
        Exchanges()
        ways: dict[str, tuple[Any, bool]] = {
            "no group": (False, False),
            "a group of one rank": (dist.group.WORLD, False),
            "the same, exchanging": (dist.group.WORLD, True),
        }
        found: dict[str, list[Any]] = {name: [] for name in ways}
        for turn in range(asked.solves + 1):
            for name, (group, always) in ways.items():
                tensor_ranks.ALWAYS = always
                one = solve(X, y, group)
                if turn:
                    found[name].append(one)
        print(torch.cuda.get_device_name(0), "torch", torch.__version__)
        show(found)
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cores", "card"])
    parser.add_argument("--rows", type=float, default=4e6)
    parser.add_argument("--features", type=int)
    parser.add_argument("--solves", type=int, default=5)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.features = asked.features or (50 if asked.what == "cores" else 100)
    if asked.what == "card":
        card(asked)
    elif asked.rank is not None:
        cores(asked)
    else:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--store", folder]
            processes = [
                subprocess.Popen([*command, "--rank", str(rank)], env=environment)
                for rank in range(2)
            ]
            codes = [process.wait() for process in processes]
            if any(codes):
                raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
