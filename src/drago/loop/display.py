"""Progress on the way: passes, rows a second, the certified gap, and what is left of the time.

A bar of rich where that is installed and the standard error is a terminal; lines elsewhere. Nothing
is computed for it, and on arrays nothing is told in the middle of a pass.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from drago._progress import begin, heard_by, listener
from drago.loop.protocol import Progress

# Seconds between two lines, and between two pictures of a bar.
_LINES, _PICTURES = 10.0, 0.1


class Display:
    """What is shown while rows are read.

    Parameters
    ----------
    out : file
        Where lines go.
    now : callable, optional
        Tells the time in seconds.

    Attributes
    ----------
    what : str
        What is being read, such as "scan" or "solve".
    passes : float
        How often all rows were read since that has begun.
    rel_gap : float
        The certified relative gap so far; infinite where there is none.
    """

    pause = _LINES

    def __init__(self, out: TextIO, now: Callable[[], float] = time.perf_counter) -> None:
        self._out, self._now = out, now
        self._ends: float | None = None
        self.begin("rows", None)

    def begin(self, what: str, total: int | None) -> None:
        """Something else is read from now on."""
        self.what, self._total, self._rows = what, total, 0
        self.passes, self.rel_gap = 0.0, math.inf
        self._began = self._shown = self._now()

    def limit(self, seconds: float | None) -> None:
        """There are so many seconds left."""
        self._ends = None if seconds is None else self._now() + seconds

    def add(self, rows: int) -> None:
        """So many more rows are read."""
        self._rows += rows
        if self._total:
            self.passes = self._rows / self._total
        if self._now() - self._shown >= self.pause:
            self.show()

    def certified(self, progress: Progress) -> None:
        """A certificate was made."""
        self.rel_gap = progress.rel_gap
        if not self._rows:  # nobody tells of rows in memory
            self.passes = progress.n_passes

    @property
    def rate(self) -> float:
        """Rows a second since it has begun."""
        rows = self._rows or self.passes * (self._total or 0)
        return rows / max(self._now() - self._began, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds to the time limit, where there is one."""
        return None if self._ends is None else max(self._ends - self._now(), 0.0)

    def words(self) -> list[str]:
        """All that is known, in a few words each."""
        if self.what != "solve":
            done = f"{self._rows} rows"
            if self._total:
                done = f"{min(self.passes, 1.0):.0%} of {self._total} rows"
            return [done, f"{self.rate:.3g} rows/s"]
        found = [f"{self.passes:.1f} passes", f"{self.rate:.3g} rows/s"]
        found.append("no certificate yet" if math.isinf(self.rel_gap) else
                     f"certified relative gap {self.rel_gap:.1e}")  # fmt: skip
        if self.left is not None:
            found.append(f"{self.left:.0f} s left")
        return found

    def show(self) -> None:
        """Show it now."""
        self._shown = self._now()
        print(f"{self.what}: {', '.join(self.words())}", file=self._out, flush=True)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to put away."""


class Bar(Display):
    """The same as a bar at the lower end of a terminal: how far the reading of the rows is.

    Parameters
    ----------
    console : rich.console.Console
    """

    pause = _PICTURES

    def __init__(self, console: Any, now: Callable[[], float] = time.perf_counter) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        # What is printed meanwhile goes above the bar, unless it goes elsewhere.
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._task = self._bars.add_task("rows", words="", total=1.0)
        super().__init__(console.file, now)

    def begin(self, what: str, total: int | None) -> None:
        super().begin(what, total)
        self.show()

    def certified(self, progress: Progress) -> None:
        super().certified(progress)
        self.show()

    def show(self) -> None:
        self._shown = self._now()
        self._bars.update(
            self._task,
            description=self.what,
            completed=self.passes % 1.0 if self.what == "solve" else min(self.passes, 1.0),
            words=" · ".join(self.words()),
        )
        self._bars.refresh()

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


def new_display() -> Display:
    """A bar where there can be one."""
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            return Bar(Console(file=sys.stderr))
    return Display(sys.stderr or sys.stdout)


@contextmanager
def displayed(verbose: Any = 1) -> Iterator[Display | None]:
    """Show what is read inside, where that is wanted; by what shows it already, if something does.

    Parameters
    ----------
    verbose : int
        0 shows nothing.
    """
    found = listener()
    if isinstance(found, Display) or not verbose:
        yield found if isinstance(found, Display) else None
        return
    with new_display() as display, heard_by(display):
        yield display


@contextmanager
def narrated(
    callback: Callable[[Progress], Any] | None, n_rows: int, left: float | None
) -> Iterator[Callable[[Progress], Any]]:
    """`callback`, with a line printed for each certificate and a display in between.

    Parameters
    ----------
    callback : callable or None
    n_rows : int
    left : float or None
        Seconds to the time limit.
    """
    with displayed() as display:
        assert display is not None
        begin("solve", n_rows)
        display.limit(left)
        print(
            f"{'passes':>8}  {'primal':>14}  {'dual':>14}  {'gap':>8}  {'relative':>8}  "
            f"{'time':>8}  {'rows/s':>8}" + ("" if left is None else f"  {'left':>8}")
        )

        def narrate(now: Progress) -> Any:
            display.certified(now)
            rest = "" if display.left is None else f"  {display.left:6.1f} s"
            print(
                f"{now.n_passes:8.1f}  {now.primal:14.8g}  {now.dual:14.8g}  {now.gap:8.1e}  "
                f"{now.rel_gap:8.1e}  {now.time:6.2f} s  {display.rate:8.1e}{rest}",
                flush=True,
            )
            return None if callback is None else callback(now)

        yield narrate
