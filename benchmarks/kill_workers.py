"""Kill workers with SIGKILL at random moments of a solve, and compare the answers bit for bit.

    python benchmarks/kill_workers.py --solves 20 --workers 2

Each solve is on the same rows on a cluster of processes on this machine, whose nannies start killed
workers again. It prints what every kill cost: the seconds of the solve beside those of one without.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

import dask
from bench_cluster import collections, terms
from distributed import Client, LocalCluster

import drago
from drago.rows.cluster import open as opening


def kill_later(client: Client, after: float, everybody: bool) -> threading.Thread:
    """Kill a worker, or all of them, in so many seconds."""
    pids: list[int] = []
    while not pids:  # a worker that has just come back may not answer yet
        with suppress(OSError):
            pids = sorted(client.run(os.getpid).values())

    def go() -> None:
        time.sleep(after)
        for pid in pids if everybody else random.sample(pids, 1):
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=go)
    thread.start()
    return thread


def bits(result: Any) -> bytes:
    return result.coef.tobytes() + repr((result.intercept, result.gap, result.n_iter)).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--solves", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--all", action="store_true", help="kill all workers at once")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    random.seed(0)
    opening.RULE = opening._PartRule(parts=8, least=1)  # several parts of few rows
    dask.config.set({"distributed.deploy.lost-worker-timeout": "120s"})
    with (
        LocalCluster(
            n_workers=given.workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        problem = drago.DROProblem(
            *collections(given.rows, given.features, "logistic"), **terms("logistic")
        )
        plain = []
        for _ in range(3):
            began = time.perf_counter()
            result = drago.solve(problem, tol=given.tol)
            plain.append(time.perf_counter() - began)
        usual, wanted = statistics.median(plain[1:]), bits(result)
        print(f"without a kill {usual:.2f} s, {result.n_rounds} rounds", flush=True)
        del result
        same = 0
        for k in range(given.solves):
            client.wait_for_workers(given.workers)
            after = random.uniform(0.0, usual)
            thread = kill_later(client, after, given.all)
            began = time.perf_counter()
            found = bits(drago.solve(problem, tol=given.tol))
            spent = time.perf_counter() - began
            thread.join()
            same += found == wanted
            print(
                f"{k + 1}: killed after {after:.2f} s: "
                f"{'the same bits' if found == wanted else 'OTHER BITS'}, {spent:.2f} s, "
                f"{spent - usual:+.2f} s",
                flush=True,
            )
        print(f"{same} of {given.solves} answers are the same bits")
    sys.exit(same != given.solves)


if __name__ == "__main__":
    main()
