"""What the command says: tables and sentences for people, one JSON document for machines.

Answers go to the standard output, notes, progress and errors to the standard error.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any, TextIO, cast

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

FINE, FAILED, USAGE, UNCERTIFIED, BUG, INTERRUPTED = 0, 1, 2, 3, 70, 130
"""Exit codes; `USAGE` is typer's own."""


class Out:
    """What a command has to say.

    Parameters
    ----------
    as_json : bool
        Whether all of it is one JSON document on the standard output.

    Attributes
    ----------
    found : dict
        What the JSON document holds beside "notes".
    """

    def __init__(self, command: str, as_json: bool) -> None:
        self.as_json = as_json
        self.found: dict[str, Any] = {"command": command, "ok": True}
        self._notes: list[str] = []
        self._answers = Console(soft_wrap=True, highlight=False, markup=False)
        self._errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def note(self, text: str) -> None:
        """Something to know, beside the answer; once."""
        text = on_command_line(text)
        if text in self._notes:
            return
        self._notes.append(text)
        if not self.as_json:
            self._errors.print(Text.assemble(("note: ", "yellow"), text))

    def say(self, text: str = "") -> None:
        """A sentence of the answer."""
        if not self.as_json:
            self._answers.print(text)

    def facts(self, facts: dict[str, Any], title: str | None = None) -> None:
        """Names and values, one a line."""
        grid = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            grid.add_row(Text(name, style="cyan"), Text(as_text(value)))
        self._show(grid, title)

    def table(self, columns: dict[str, Any], title: str | None = None, most: int = 20) -> None:
        """Columns of one length."""
        lines = list(zip(*columns.values()))
        table = Table(box=None, pad_edge=False)
        for name, values in columns.items():
            number = all(isinstance(value, (int, float, np.number)) for value in values)
            table.add_column(Text(name), justify="right" if number else "left", header_style="cyan")
        for line in lines[:most]:
            table.add_row(*(Text(as_text(value)) for value in line))
        self._show(table, title)
        if len(lines) > most:
            self.say(f"and {len(lines) - most} more")

    def _show(self, table: Table, title: str | None) -> None:
        if self.as_json:
            return
        if title is not None:
            self._answers.print(Text(f"\n{title}", style="bold"))
        if self._answers.is_terminal:
            self._answers.print(table)
            return
        # A file or a pipe has no width: nothing is wrapped or padded there.
        wide = Console(file=io.StringIO(), width=100_000)
        with wide.capture() as text:
            wide.print(table)
        for line in text.get().splitlines():
            print(line.rstrip())

    @contextmanager
    def working(self, what: str, reads_rows: bool = False) -> Iterator[None]:
        """Show that something is being done, where somebody looks; warnings become notes.

        What is printed inside, such as the folds of an audit, is progress.

        Parameters
        ----------
        what : str
        reads_rows : bool
            Whether rows of files are read, of which a bar tells more.
        """
        tell: Any = None
        with ExitStack() as stack:
            told = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            for kind in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", kind)
            if self.as_json:
                pass
            elif reads_rows:
                from drago.loop.display import displayed

                stack.enter_context(displayed())
            elif self._errors.is_terminal:
                status = stack.enter_context(self._errors.status(Text(what)))
                tell = status.update
            else:
                tell = self._errors.print
            stack.enter_context(redirect_stdout(cast(TextIO, _Lines(tell))))
            yield
        for each in told:
            self.note(str(each.message))

    def end(self, code: int = FINE) -> None:
        """The JSON document, where one is wanted, and the exit code."""
        if self.as_json:
            self.found["notes"] = self._notes
            print(json.dumps(plain(self.found), indent=2, ensure_ascii=False))
        if code != FINE:
            raise typer.Exit(code)

    def fail(self, code: int, kind: str, message: str) -> None:
        """Say what is wrong, and end."""
        message = on_command_line(message)
        self.found = {"command": self.found["command"], "ok": False, "error": kind,
                      "message": message}  # fmt: skip
        if not self.as_json:
            self._errors.print(Text.assemble(("drago: ", "bold red"), message))
        self.end(code)


class _Lines:
    """A file whose lines are given to somebody, or to nobody."""

    encoding = "utf-8"

    def __init__(self, tell: Any) -> None:
        self._tell, self._left = tell, ""

    def write(self, text: str) -> int:
        *lines, self._left = (self._left + text).split("\n")
        for line in lines:
            if line and self._tell is not None:
                self._tell(line)
        return len(text)

    def flush(self) -> None:
        """There is nothing to wait for."""

    def isatty(self) -> bool:
        return False


@contextmanager
def answering(command: str, as_json: bool) -> Iterator[Out]:
    """Run a command: what goes wrong ends in a message and an exit code, never in a traceback."""
    out = Out(command, as_json)
    if os.environ.get("DRAGO_TRACEBACK"):
        yield out
        return
    try:
        yield out
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        sys.stderr.close()
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        out.fail(INTERRUPTED, "KeyboardInterrupt", "interrupted; nothing was written.")
    except MemoryError as error:
        out.fail(
            FAILED,
            "MemoryError",
            f"there is not enough memory ({error}); give Parquet files and --memory-limit.",
        )
    except (ValueError, TypeError, OSError, ImportError, KeyError) as error:
        out.fail(FAILED, type(error).__name__, sentence(error))
    except Exception as error:
        out.fail(
            BUG,
            type(error).__name__,
            f"something went wrong that should not have ({type(error).__name__}: {error}). Set "
            "DRAGO_TRACEBACK=1 to see where, and please report it.",
        )


def sentence(error: BaseException) -> str:
    """What an error says, in a line or few."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, (ValueError, TypeError, OSError)) else f"{error!r}"


# Arguments of Python, and the options that they are here.
_OPTIONS = (
    "shift_cost", "time_limit", "time_budget", "memory_limit", "tail_fraction", "l2_reg",
    "max_categories", "uncertainty", "baseline", "tol",
)  # fmt: skip
_NO_WORDS = ("uncertainty", "baseline", "tol")
_ARGUMENT = re.compile(rf"(?<![\w.'\"\-])({'|'.join(_OPTIONS)})(=(?:'([^']*)')?|(?![\w(]))")


def on_command_line(text: str) -> str:
    """A message of the library with its arguments as options of the command."""

    def option(found: re.Match[str]) -> str:
        name, given, value = found[1], found[2], found[3]
        if not given and name in _NO_WORDS[:2]:
            return found[0]  # a word like any other
        if name == "baseline":
            return "a fitted baseline" if value else "a baseline"
        is_set = given == "=" and text[found.end() : found.end() + 1].isdigit()
        after = f" {value}" if value else "=" if is_set else ""
        return f"--{name.replace('_', '-')}{after}"

    return _ARGUMENT.sub(option, text)


def as_text(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, (float, np.floating)):
        return "" if math.isnan(value) else f"{value:.4g}"
    return "" if value is None else str(value)


def plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinity are null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
