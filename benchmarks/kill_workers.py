"""Kill workers with SIGKILL in random rounds of a solve, and compare the answers bit for bit.

    python benchmarks/kill_workers.py --solves 20 --workers 2

Each solve is on the same rows on a cluster of processes on this machine, whose nannies start killed
workers again. A kill comes at most 20 ms after the start of a round that is drawn from all but the
last one of an undisturbed solve, so that it falls into the middle of a solve. It prints what every
kill cost: the seconds of the solve beside those of one without. With --disk the features lie in the
cache on the workers' disks.
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
from drago.rows.cluster import core
from drago.rows.cluster import open as opening
from drago.rows.cluster.engine import ClusterEngine


class Killer:
    """Kills a worker, or all of them, in the middle of a round of a solve.

    Parameters
    ----------
    client : Client
    number : int
        Of the round, from 1 on; 0 counts rounds alone.
    everybody : bool
    """

    def __init__(self, client: Client, number: int = 0, everybody: bool = False) -> None:
        self.client, self.number, self.everybody = client, number, everybody
        self.count = self.n_killed = 0
        self.timer = threading.Timer(random.uniform(0.0, 0.02), self.kill)

    def __enter__(self) -> Killer:
        self.pids: list[int] = []
        while not self.pids:  # a worker that has just come back may not answer yet
            with suppress(OSError):
                self.pids = sorted(self.client.run(os.getpid).values())
        time.sleep(2.0)  # a nanny does not start a worker again that dies while it starts it
        self._run = run = core.RemoteRows._run

        def counted(rows: Any, *given: Any) -> Any:
            self.count += 1
            if self.count == self.number:
                self.timer.start()
            return run(rows, *given)

        core.RemoteRows._run = counted  # type: ignore[method-assign]
        return self

    def kill(self) -> None:
        for pid in random.sample(self.pids, len(self.pids)):
            with suppress(ProcessLookupError):  # Dask has replaced it meanwhile
                os.kill(pid, signal.SIGKILL)
                self.n_killed += 1
                if not self.everybody:
                    return

    def __exit__(self, *_: object) -> None:
        core.RemoteRows._run = self._run  # type: ignore[method-assign]
        if self.number:
            self.timer.join()


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
    parser.add_argument("--disk", action="store_true", help="rows in the cache on disks")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    random.seed(0)
    ClusterEngine.patience = 300.0  # on a busy machine new workers take long to come
    opening.RULE = opening._PartRule(parts=8, least=1)  # several parts of few rows
    patience = {"deploy.lost-worker-timeout": "120s", "comm.timeouts.connect": "120s"}
    dask.config.set({f"distributed.{name}": value for name, value in patience.items()})
    with (
        LocalCluster(
            n_workers=given.workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        limit = 1 if given.disk else None
        source = drago.from_dask(
            *collections(given.rows, given.features, "logistic"), memory_limit=limit
        )
        problem = drago.DROProblem(source, **terms("logistic"))
        plain = []
        for _ in range(3):
            with Killer(client) as rounds:
                began = time.perf_counter()
                result = drago.solve(problem, tol=given.tol)
            plain.append(time.perf_counter() - began)
        usual, wanted = statistics.median(plain[1:]), bits(result)
        print(f"{problem.rows!r}\nwithout a kill {usual:.2f} s, {rounds.count} rounds", flush=True)
        del result
        same, costs = 0, []
        for k in range(given.solves):
            client.wait_for_workers(given.workers)
            number = random.randrange(1, rounds.count)
            with Killer(client, number, given.all) as killer:
                began = time.perf_counter()
                found = bits(drago.solve(problem, tol=given.tol))
                spent = time.perf_counter() - began
            same += found == wanted and killer.n_killed > 0
            costs.append(spent - usual)
            print(
                f"{k + 1}: {killer.n_killed} killed in round {number} of {rounds.count}: "
                f"{'the same bits' if found == wanted else 'OTHER BITS'}, {spent:.2f} s, "
                f"{spent - usual:+.2f} s",
                flush=True,
            )
        print(
            f"{same} of {given.solves} answers are the same bits; a kill cost "
            f"{statistics.median(costs):.2f} s in the median and {max(costs):.2f} s at most"
        )
    sys.exit(same != given.solves)


if __name__ == "__main__":
    main()
