"""Solves of several ranks, in each of which one is killed: does torchrun recover, to the same bits?

    python benchmarks/kill_ranks.py --kills 10 --fork

`torchrun --max-restarts` starts the ranks (gloo, one thread each). Each draws its own rows and
solves the same problem again and again, each time with a checkpoint of its own. In each solve a
rank, in turn, is killed (SIGKILL) after an iteration of its first half, in the middle of the next;
torchrun starts all ranks anew, which go on from the file, finish, and begin the next solve. What
every rank has found (coefficients, weights, iterations) is compared with the answer of a first
solve that nobody disturbed.

With --fork torchrun's launcher is called from a process that has imported everything, and starts
the ranks as forks of it: an import of torch takes longer than all the rest. Without it the command
`torchrun` is run.

Restarts use a new store for the ranks to meet in: torchrun's own is that of the ranks which were
killed, and meetings in it fail. `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


class Killer:
    """Kills this process some iterations after the start of a solve, in the middle of one."""

    def __init__(self, iterations: int, seconds: float, mark: Path) -> None:
        self.left, self.seconds, self.mark = iterations, seconds, mark

    def watch(self) -> None:
        from drago.loop.loop import Loop

        observe = Loop.observe

        def counted(loop: Any, iterate: Any) -> None:
            self.left -= 1
            if self.left == 0:
                threading.Timer(self.seconds, self.kill).start()
            observe(loop, iterate)

        Loop.observe = counted  # type: ignore[method-assign]

    def kill(self) -> None:
        self.mark.write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def work(asked: Any, folder: Path) -> None:
    """What a rank does."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import drago
    import drago.loop.resume

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rng = np.random.default_rng(rank)
    # Each feature is much like the last one, which a diagonal metric does not help.
    X = rng.normal(size=(asked.rows, asked.features)).cumsum(1)
    z = X[:, ::3].sum(1) - X[:, 1::3].sum(1) + rng.logistic(size=asked.rows)
    problem = drago.DROProblem(
        torch.from_numpy(X),
        torch.from_numpy((z > 1.0).astype(float)),
        loss="logistic",
        uncertainty=drago.CVaR(0.1),
        shift_cost=0.003,
        l2_reg=1e-5,
        fit_intercept=True,
    )
    drago.loop.resume._SHARE = float("inf")  # as often as it can be saved, whatever that costs
    for k in range(-1, asked.kills):  # the first is not disturbed
        path, mark = folder / f"found-{k}-{rank}.json", folder / f"killed-{k}"
        if path.exists():
            continue
        if k >= 0 and rank == k % asked.ranks and not mark.exists():
            known = json.loads((folder / f"found--1-{rank}.json").read_text())
            draw, count = random.Random(k), known["n_iter"]
            each = known["seconds"] / count
            Killer(draw.randrange(1, count // 2), draw.uniform(0.0, each), mark).watch()
        began = time.perf_counter()
        result = drago.solve(
            problem,
            drago.LBFGS(metric="diagonal"),
            tol=asked.tol,
            checkpoint=folder / f"solve-{k}.drago",
            checkpoint_every=0.0,
        )
        took = time.perf_counter() - began
        digest = hashlib.sha256()
        for values in (result.coef, np.float64(result.intercept)):
            digest.update(np.ascontiguousarray(values).tobytes())
        own = hashlib.sha256(result.dual_weights.numpy().tobytes()).hexdigest()
        found = {"digest": digest.hexdigest(), "n_iter": result.n_iter, "weights": own}
        found |= {"status": str(result.status), "gap": result.rel_gap, "attempt": attempt}
        found |= {"seconds": took, "ended": time.time()}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found))
        os.replace(part, path)
        dist.barrier()


def launch(asked: Any, folder: Path) -> int:
    """Start the ranks and wait: what `torchrun` does, with forks of this process."""
    import torch.distributed.launcher.api as launcher
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    import drago.solvers.solve
    import drago.torch_engine  # noqa: F401

    logging.getLogger("torch").setLevel(logging.CRITICAL)  # which tells of each kill at length
    config = launcher.LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=asked.ranks, max_restarts=asked.kills + 1,
        monitor_interval=0.1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork",
        run_id="kills", logs_specs=DefaultLogsSpecs(str(folder / "logs"), redirects=Std.ALL),
    )  # fmt: skip
    launcher.elastic_launch(config, work)(asked, folder)
    return 0


def run(asked: Any, folder: Path) -> None:
    """Start the ranks, tell of each recovery, and wait."""
    if asked.fork:
        teller = threading.Thread(target=tell_all, args=(asked, folder, lambda: None), daemon=True)
        teller.start()
        launch(asked, folder)
        teller.join()
        return
    settings = ["--rows", str(asked.rows), "--features", str(asked.features)]
    settings += ["--kills", str(asked.kills), "--ranks", str(asked.ranks)]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node",
        str(asked.ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        "--max-restarts", str(asked.kills + 1), "--monitor-interval", "0.1",
        __file__, "--rank-in", str(folder), *settings, "--tol", repr(asked.tol),
    ]  # fmt: skip
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        tell_all(asked, folder, process.poll)
        process.wait()
    if process.returncode:
        text = (folder / "log").read_text()[-3000:]
        raise RuntimeError(f"torchrun ended with {process.returncode}: {text}")


def paths(asked: Any, folder: Path, k: int) -> list[Path]:
    return [folder / f"found-{k}-{rank}.json" for rank in range(asked.ranks)]


def found_in(asked: Any, folder: Path, k: int) -> list[Any]:
    return [json.loads(path.read_text()) for path in paths(asked, folder, k)]


def tell_all(asked: Any, folder: Path, code: Any) -> None:
    """Print what becomes of each solve, until there is no more to come."""
    for k in range(-1, asked.kills):
        while not all(path.exists() for path in paths(asked, folder, k)):
            if code() is not None:
                return
            time.sleep(0.05)
        tell(asked, folder, k)


def tell(asked: Any, folder: Path, k: int) -> None:
    """Print what became of a solve."""
    known, found = found_in(asked, folder, -1), found_in(asked, folder, k)
    seconds = known[0]["seconds"]
    if k < 0:
        print(f"undisturbed: {known[0]['n_iter']} iterations, {seconds:.2f} s, "
              f"relative gap {known[0]['gap']:.1e}", flush=True)  # fmt: skip
        return
    mark = folder / f"killed-{k}"
    if not mark.exists():
        print(f"kill {k}: NOT KILLED", flush=True)
        return
    cost = found[0]["ended"] - float(mark.read_text())
    print(
        f"kill {k}: rank {k % asked.ranks} in the middle of the solve, restart "
        f"{found[0]['attempt']}, {cost:.1f} s from the kill to the answer, "
        f"{'the same bits' if same(found, known) else 'OTHER BITS'}",
        flush=True,
    )


def same(found: list[Any], known: list[Any]) -> bool:
    """Whether all ranks have found the same, and each its own weights."""
    names = ("digest", "n_iter", "status")
    alike = all(one[name] == known[0][name] for one in found for name in names)
    return alike and all(one["weights"] == old["weights"] for one, old in zip(found, known))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_000, help="of each rank")
    parser.add_argument("--features", type=int, default=12)
    parser.add_argument("--tol", type=float, default=1e-9)
    parser.add_argument("--fork", action="store_true", help="ranks are forks of one process")
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if asked.rank_in is not None:
        work(asked, asked.rank_in)
        os._exit(0)
    with tempfile.TemporaryDirectory() as base:
        folder, began = Path(base), time.perf_counter()
        run(asked, folder)
        known = found_in(asked, folder, -1)
        equal, costs = 0, []
        for k in range(asked.kills):
            mark, found = folder / f"killed-{k}", found_in(asked, folder, k)
            equal += mark.exists() and same(found, known)
            costs.append(found[0]["ended"] - float(mark.read_text()) if mark.exists() else 0.0)
        print(
            f"{time.perf_counter() - began:.0f} s in all; from a kill to the answer "
            f"{statistics.median(costs):.1f} s in the median, {max(costs):.1f} s at most"
        )
    print(f"{equal} of {asked.kills} recoveries to the same bits")
    return int(equal != asked.kills)


if __name__ == "__main__":
    raise SystemExit(main())
