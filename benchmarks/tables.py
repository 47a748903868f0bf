"""What the benchmarks have in common: a table of rows, written as CSV."""

from __future__ import annotations

import csv
from typing import Any


def write_csv(path: str | None, table: list[dict[str, Any]]) -> None:
    """Write the rows of a table; nothing where no file was asked for."""
    if path is None:
        return
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        writer.writerows(table)
