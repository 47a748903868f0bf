"""Does the jobs of a plan on two processes, with a line of progress; what is done stays done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from jobs import Job

WORKERS = 2


def run(jobs: list[Job], out: Path, workers: int | None = None) -> dict[str, float]:
    """Do what is not done yet; returns counts and seconds.

    Parameters
    ----------
    jobs : list of Job
        In the order in which they are to be done, as far as what they need allows.
    out : Path
    workers : int, optional
        0 is this process. By default 2, or as many as there are cores.
    """
    if workers is None:
        workers = min(WORKERS, len(os.sched_getaffinity(0)))
    left = [job for job in jobs if not job.path(out).exists()]
    display = Display(len(jobs), len(jobs) - len(left))
    began, computed = time.perf_counter(), len(left)
    if workers == 0:
        for job in left:
            display.show(job)
            job.run(out)
            display.done += 1
    elif left:
        _in_parallel(left, out, workers, display)
    display.end()
    seconds = time.perf_counter() - began
    return {
        "jobs": len(jobs),
        "computed": computed,
        "workers": workers,
        "seconds": seconds,
        "total": _total(out, seconds if computed else 0.0),
    }


def _total(out: Path, seconds: float) -> float:
    """Seconds of all calls so far."""
    path = out / "seconds.txt"
    total = seconds + (float(path.read_text()) if path.exists() else 0.0)
    path.write_text(f"{total:.3f}\n")
    return total


def _in_parallel(left: list[Job], out: Path, workers: int, display: Display) -> None:
    # A process that was forked after threads were started may hang: spawn.
    context = multiprocessing.get_context("spawn")
    running: dict[Future[None], Job] = {}
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_to_parent) as pool:
        try:
            while left or running:
                while left and len(running) < workers:
                    job = _next(left, out)
                    if job is None:
                        break
                    left.remove(job)
                    running[pool.submit(job.run, out)] = job
                    display.show(job)
                finished, _ = wait(running, timeout=5.0, return_when=FIRST_COMPLETED)
                for future in finished:
                    job = running.pop(future)
                    future.result()
                    display.done += 1
                display.show()
        except BaseException:
            # What they are at is not written before it is done, so it is not half there.
            for child in multiprocessing.active_children():
                child.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _leave_to_parent() -> None:
    """Interrupts are for the process that gives out the jobs; a solver takes one for its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _next(left: list[Job], out: Path) -> Job | None:
    """The first whose needs are met."""
    return next((job for job in left if all(n.path(out).exists() for n in job.needs())), None)


class Display:
    """One line that is written over on a terminal, and a line now and then elsewhere."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.before, self.done = total, done, done
        self._began = self._written = time.perf_counter()
        self._title = ""
        self._live = sys.stderr.isatty()
        if done:
            self._write(f"{done} of {total} are there already")

    def show(self, job: Job | None = None) -> None:
        if job is not None:
            self._title = job.title
        now = time.perf_counter()
        if not self._live and now - self._written < 15.0:
            return
        self._written = now
        spent, new = now - self._began, self.done - self.before
        left = f", about {_clock(spent / new * (self.total - self.done))} left" if new else ""
        self._write(f"[{self.done}/{self.total}] {_clock(spent)}{left}  {self._title}"[:110])

    def _write(self, text: str) -> None:
        end = "" if self._live else "\n"
        start = "\r\x1b[K" if self._live else ""
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        spent = _clock(time.perf_counter() - self._began)
        self._write(f"[{self.done}/{self.total}] {spent}  done")
        if self._live:
            print(file=sys.stderr)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
