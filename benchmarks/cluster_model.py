"""What a solve on a cluster costs, simulated from constants that were measured.

    python benchmarks/bench_cluster.py constants          # prints the constants of this machine
    python benchmarks/cluster_model.py --workers 100 --rows 1e9 --features 100

A solve is a number of rounds. In each the scheduler hands out tasks one after the other, two for
each thread; every thread works on its tasks in turn, each for the time of its rows, times a random
factor for what is slow that day; what they tell goes back through the scheduler, one after the
other; then the next round begins. There are three kinds of rounds: a visit reads X once and makes
the losses, a gradient reads the rows of the tail again, and a sum goes over vectors alone.
"""

from __future__ import annotations

import argparse
import heapq
import math
from typing import NamedTuple

import numpy as np


class Constants(NamedTuple):
    """Seconds, as `bench_cluster.py constants` prints them."""

    pass_per_entry: float
    vector_per_row: float
    latency: float
    per_task: float
    straggle: float


class Solve(NamedTuple):
    """What a solve does."""

    visits: int
    gradients: int
    sums: int
    tail: float


def simulate(
    c: Constants,
    solve: Solve,
    rows: float,
    features: int,
    workers: int,
    threads: int,
    seed: int = 0,
) -> dict[str, float]:
    """The seconds of a solve, and where they go."""
    rng = np.random.default_rng(seed)
    n_threads = workers * threads
    tasks = 2 * n_threads
    share = rows / tasks
    work = {
        "visit": share * (features * c.pass_per_entry + 8 * c.vector_per_row),
        "gradient": share * (solve.tail * features * c.pass_per_entry + 6 * c.vector_per_row),
        "sum": share * 4 * c.vector_per_row,
    }
    counts = {"visit": solve.visits, "gradient": solve.gradients, "sum": solve.sums}
    # A round that leaves vectors on the workers has a second small task for each, which tells.
    messages = {"visit": 2, "gradient": 1, "sum": 1}
    total = busy = 0.0
    n_tasks = 0
    for kind, count in counts.items():
        for _ in range(count):
            factors = np.exp(rng.normal(0.0, c.straggle, tasks))
            total += _round(work[kind] * factors, n_threads, messages[kind] * c.per_task, c.latency)
            busy += float(work[kind] * factors.sum()) / n_threads
            n_tasks += messages[kind] * tasks
    rounds = sum(counts.values())
    return {
        "seconds": total,
        "computing": busy,
        "rounds": rounds,
        "passes": solve.visits + solve.tail * solve.gradients,
        "tasks a second": n_tasks / total,
        "seconds a round": total / rounds,
    }


def _round(times: np.ndarray, n_threads: int, per_task: float, latency: float) -> float:
    """When the last task has told what it found."""
    free = [0.0] * n_threads
    ended = []
    for k, needed in enumerate(times):
        begins = max(heapq.heappop(free), (k + 1) * per_task)
        heapq.heappush(free, begins + needed)
        ended.append(begins + needed)
    now = 0.0
    for end in sorted(ended):
        now = max(now, end) + per_task
    return now + latency


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--threads", type=int, default=4, help="of each worker")
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=8, help="of an entry of X: 4 for float32")
    parser.add_argument("--visits", type=int, default=12)
    parser.add_argument("--gradients", type=int, default=16)
    parser.add_argument("--sums", type=int, default=40)
    parser.add_argument("--tail", type=float, default=0.1, help="share of rows with weight")
    parser.add_argument("--pass-per-entry", type=float, default=2.0e-9)
    parser.add_argument("--vector-per-row", type=float, default=4.0e-9)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--per-task", type=float, default=2.5e-4)
    parser.add_argument("--straggle", type=float, default=0.2)
    given = parser.parse_args()
    constants = Constants(
        given.pass_per_entry, given.vector_per_row, given.latency, given.per_task, given.straggle
    )
    solve = Solve(given.visits, given.gradients, given.sums, given.tail)
    found = simulate(constants, solve, given.rows, given.features, given.workers, given.threads)
    # Targets, weights, and about ten vectors that a solve keeps at a time.
    memory = given.rows * (given.features * given.bytes + 8 * 12) / given.workers
    print(
        f"{given.rows:g} x {given.features} on {given.workers} workers of {given.threads} threads: "
        f"{found['seconds']:.0f} s, of which {found['computing']:.0f} s all threads compute; "
        f"{found['passes']:.1f} passes, {found['rounds']:.0f} rounds of "
        f"{found['seconds a round']:.2f} s, {found['tasks a second']:.0f} tasks a second; "
        f"{memory / 1e9:.1f} GB of a worker's memory"
    )
    if not math.isfinite(found["seconds"]):
        raise SystemExit("the constants are no numbers")


if __name__ == "__main__":
    main()
