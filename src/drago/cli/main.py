"""Where the command begins."""

from __future__ import annotations

import importlib.util
import sys

# What the command needs beside the library.
NEEDED = ("typer", "rich", "pandas", "pyarrow")


def main() -> None:
    """Run the command, or say how to install what it needs."""
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            print(
                f"drago: the command needs {name}, which is not installed: "
                "pip install 'drago[cli]'",
                file=sys.stderr,
            )
            raise SystemExit(1)
    from drago.cli.app import app

    app(prog_name="drago")
