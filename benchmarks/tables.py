"""What the benchmarks have in common: tables, printed as they come and written as CSV; turns."""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Tables = dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]]


def parser_of(doc: str | None, tables: Tables) -> argparse.ArgumentParser:
    """The options that every command with several tables has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", choices=tables, metavar="TABLE")
    parser.add_argument("--csv", metavar="FOLDER", help="write TABLE.csv there")
    parser.add_argument("--quick", action="store_true", help="smaller or fewer problems")
    return parser


@contextmanager
def folder_for(options: argparse.Namespace) -> Iterator[None]:
    """A new `options.folder` on the disk where none was given, removed at the end."""
    made = None if options.folder else tempfile.mkdtemp(dir="/var/tmp")
    options.folder = options.folder or made
    try:
        yield
    finally:
        if made is not None:
            shutil.rmtree(made)


def make_tables(tables: Tables, options: argparse.Namespace) -> None:
    """Make and print what was asked for, and write it where that was asked for too."""
    if options.csv is not None:
        Path(options.csv).mkdir(parents=True, exist_ok=True)
    for name in options.tables:
        make = tables[name]
        assert make.__doc__ is not None
        print(f"\n{name}: {make.__doc__.splitlines()[0]}\n", flush=True)
        table = make(options)
        write_csv(None if options.csv is None else f"{options.csv}/{name}.csv", table)


def write_csv(path: str | None, table: list[dict[str, Any]]) -> None:
    """Write the rows of a table; nothing where no file was asked for."""
    if path is None:
        return
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        writer.writerows(table)


class Table:
    """Rows with named columns; each is printed, aligned, when it is added.

    Parameters
    ----------
    columns : dict
        Name and format (``"12s"``, ``"8.1f"``) of the columns to print. A row may have others,
        which only the CSV file shows; and text or None in place of a number.
    """

    def __init__(self, columns: dict[str, str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._columns: list[tuple[str, int, str]] = []
        heads = []
        for name, form in columns.items():
            found = re.match(r"(\d+)(.*)", form)
            assert found is not None
            head = name.replace("_", " ")
            width = max(int(found[1]), len(head))
            self._columns.append((name, width, found[2]))
            heads.append(f"{head:{'<' if found[2] == 's' else '>'}{width}}")
        print(" ".join(heads).rstrip(), flush=True)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        cells = []
        for name, width, kind in self._columns:
            value = row.get(name)
            if kind == "s":
                cells.append(f"{value!s:<{width}}")
            elif value is None or isinstance(value, str):
                cells.append(f"{value or '-':>{width}}")
            else:
                cells.append(f"{value:>{width}{kind}}")
        print(" ".join(cells).rstrip(), flush=True)


def medians_in_turn(what: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """The median time of each, in seconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(runs):
        for name, work in what.items():
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in times.items()}
