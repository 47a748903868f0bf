"""Rows larger than the memory of a Dask cluster: a solve from the cache on the workers' disks.

    python benchmarks/bench_disk.py solve --rows 1400000 --features 200 --memory 500MB
    python benchmarks/bench_disk.py cost --rows 2000000 --features 50

solve  rows that take so many times the memory of two workers with low limits: what the making of
       the problem and a certified solve took, the peak of each worker's resident memory, the bytes
       on the disks, and whether Dask killed or paused a worker
cost   the same rows held in memory and from the disks, in turn, in a cluster with room for both:
       seconds, rounds, and whether the answers have the same bits

Rows are made on the workers, in blocks of `--block` bytes, and never all at once anywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench_cluster

import drago
from drago.sources.memory import as_text


def resident() -> tuple[int, int]:
    """The number of this process and the peak of its resident memory, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return os.getpid(), 1024 * int(found[1]) if found else 0


def ready() -> tuple[int, int]:
    """The same when all that a solve needs is imported."""
    import scipy.sparse  # noqa: F401

    import drago.rows.cluster.cache  # noqa: F401

    return resident()


def on_disk(folder: str) -> int:
    paths = [os.path.join(here, name) for here, _, names in os.walk(folder) for name in names]
    return sum(os.path.getsize(path) for path in paths if path.endswith(".bin"))


@contextmanager
def cluster_of(memory: str, folder: str) -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=memory,
            local_directory=folder, silence_logs=40,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


def bits(result: Any) -> bytes:
    return result.coef.tobytes() + repr((result.intercept, result.gap, result.n_iter)).encode()


def solve(asked: Any, folder: str) -> int:
    with cluster_of(asked.memory, folder) as client:
        began = client.run(ready)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        total = sum(each["memory_limit"] for each in workers)
        size = 8 * asked.rows * asked.features
        before = as_text(max(peak for _, peak in began.values()))
        print(f"X {as_text(size)}, {size / total:.2f} times the workers' {as_text(total)}")
        print(f"a worker takes {before} before there are rows", flush=True)
        clock = time.perf_counter()
        X, y = bench_cluster.collections(asked.rows, asked.features, asked.loss)
        problem = drago.DROProblem(X, y, **bench_cluster.terms(asked.loss))
        made = time.perf_counter()
        print(f"{problem.rows!r}\nmade in {made - clock:.1f} s, {as_text(on_disk(folder))} on disk",
              flush=True)  # fmt: skip
        result = drago.solve(problem, tol=asked.tol, verbose=1)
        took = time.perf_counter() - made
        print(f"{result.status}, relative gap {result.rel_gap:.1e}, {took:.1f} s, "
              f"{result.n_rounds} rounds, {result.n_passes:.1f} passes")  # fmt: skip
        found = client.run(resident)
        for name, (_, peak) in found.items():
            print(f"{name}: peak of resident memory {as_text(peak)}")
        killed = {name: pid for name, (pid, _) in began.items()} != {
            name: pid for name, (pid, _) in found.items()
        }
        lines = [line for each in client.get_worker_logs().values() for _, line in each]
        paused = sum("Pausing worker" in line for line in lines)
        print(f"killed: {'yes' if killed else 'none'}, paused: {paused} times")
    left = on_disk(folder)
    print(f"left on the disk after the cluster: {left} bytes")
    return int(killed or paused > 0 or left > 0 or result.status != "optimal")


def cost(asked: Any, folder: str) -> int:
    """In turn, three times."""
    with cluster_of(asked.memory, folder) as client:
        X, y = bench_cluster.collections(asked.rows, asked.features, asked.loss)
        found: dict[str, Any] = {}
        for name, limit in (("memory", "1TB"), ("disk", "1MB")):
            clock = time.perf_counter()
            source = drago.from_dask(X, y, client=client, memory_limit=limit)
            problem = drago.DROProblem(source, **bench_cluster.terms(asked.loss))
            found[name] = problem, time.perf_counter() - clock, []
        results = {}
        for _ in range(3):
            for name, (problem, _, seconds) in found.items():
                clock = time.perf_counter()
                results[name] = drago.solve(problem, tol=asked.tol)
                seconds.append(time.perf_counter() - clock)
        for name, (problem, making, seconds) in found.items():
            print(f"{name}: made in {making:.2f} s, solved in {statistics.median(seconds):.2f} s, "
                  f"{results[name].n_rounds // 3} rounds in {len(problem.rows.layout.bundles)} "
                  "tasks each")  # fmt: skip
        same = bits(results["memory"]) == bits(results["disk"])
        print("the same bits" if same else "OTHER BITS")
    return int(not same)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=("solve", "cost"))
    parser.add_argument("--rows", type=int, default=1_400_000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--loss", default="squared", choices=("squared", "logistic"))
    parser.add_argument("--memory", default="500MB", help="of each worker")
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--block", type=int, default=16 << 20)
    parser.add_argument("--folder", help="where the workers' directories are made")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    bench_cluster.BLOCK = asked.block
    code = 0
    for what in asked.what:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            code |= {"solve": solve, "cost": cost}[what](asked, folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
