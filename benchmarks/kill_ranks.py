"""A solve of several ranks, of which one is killed: does torchrun recover it, to the same bits?

    python benchmarks/kill_ranks.py --kills 10

`torchrun --max-restarts` starts the ranks (gloo, one thread each). Each draws its own rows and
solves with a checkpoint. A rank, in turn, is killed (SIGKILL) at a moment drawn uniformly over the
time that the solve of an undisturbed run takes; torchrun starts all of them anew, and they go on
from the file. What every rank has found (coefficients, weights, iterations) is compared with the
undisturbed answer.

Restarts use a new store for the ranks to meet in: torchrun's own is that of the ranks which were
killed, and meetings in it fail. `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def work(asked: Any, folder: Path) -> None:
    """What a rank does."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import drago
    import drago.loop.resume

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
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
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    (folder / f"began-{rank}-{attempt}").touch()
    began = time.perf_counter()
    result = drago.solve(
        problem,
        drago.LBFGS(metric="diagonal"),
        tol=asked.tol,
        checkpoint=folder / "solve.drago",
        checkpoint_every=0.0,
    )
    took = time.perf_counter() - began
    digest = hashlib.sha256()
    for values in (result.coef, np.float64(result.intercept)):
        digest.update(np.ascontiguousarray(values).tobytes())
    own = hashlib.sha256(result.dual_weights.numpy().tobytes()).hexdigest()
    found = {"digest": digest.hexdigest(), "n_iter": result.n_iter, "status": str(result.status)}
    found |= {"weights": own, "seconds": took, "attempt": int(attempt), "gap": result.rel_gap}
    (folder / f"found-{rank}.part").write_text(json.dumps(found))
    os.replace(folder / f"found-{rank}.part", folder / f"found-{rank}.json")
    dist.barrier()
    os._exit(0)


def run(asked: Any, folder: Path, victim: int | None = None, after: float = 0.0) -> list[Any]:
    """Start the ranks, kill one of them some seconds after its solve began, and wait."""
    folder.mkdir(exist_ok=True)
    settings = ["--rows", str(asked.rows), "--features", str(asked.features)]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node",
        str(asked.ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        "--max-restarts", "3", "--monitor-interval", "0.1",
        __file__, "--rank-in", str(folder), *settings, "--tol", repr(asked.tol),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        if victim is not None:
            mark = folder / f"began-{victim}-0"
            while not mark.exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(after)
            with suppress(ProcessLookupError):  # it was done already
                os.kill(int((folder / f"pid-{victim}").read_text()), signal.SIGKILL)
        code = process.wait(timeout=600)
    if code:
        raise RuntimeError(f"torchrun ended with {code}: {(folder / 'log').read_text()[-3000:]}")
    paths = [folder / f"found-{rank}.json" for rank in range(asked.ranks)]
    return [json.loads(path.read_text()) for path in paths]


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
    parser.add_argument("--rows", type=int, default=5_000, help="of each rank")
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--tol", type=float, default=1e-10)
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.rank_in is not None:
        work(asked, asked.rank_in)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as base:
        known = run(asked, Path(base) / "undisturbed")
        seconds = known[0]["seconds"]
        print(f"undisturbed: {known[0]['n_iter']} iterations, {seconds:.2f} s, "
              f"relative gap {known[0]['gap']:.1e}", flush=True)  # fmt: skip
        equal = 0
        for k in range(asked.kills):
            after, began = draw.uniform(0.0, seconds), time.perf_counter()
            found = run(asked, Path(base) / str(k), k % asked.ranks, after)
            is_same = same(found, known)
            equal += is_same
            print(
                f"kill {k}: rank {k % asked.ranks} after {after:.2f} s, restarts "
                f"{found[0]['attempt']}, then {found[0]['seconds']:.2f} s to the end, "
                f"{time.perf_counter() - began:.1f} s in all, "
                f"{'the same bits' if is_same else 'OTHER BITS'}",
                flush=True,
            )
    print(f"{equal} of {asked.kills} recoveries to the same bits")
    return int(equal != asked.kills)


if __name__ == "__main__":
    raise SystemExit(main())
