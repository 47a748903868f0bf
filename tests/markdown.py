"""Code blocks of Markdown files.

A block of ```` ```python ```` or ```` ```sh ```` is run as it stands, the Python blocks of a page
one after another in one namespace. One that cannot be run has a comment with the reason in the line
before it: ``<!-- not run: it needs a cluster -->``; one that another test runs has
``<!-- run by tests/... -->``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?:<!-- (?P<said>.*?) -->\n)?^(?P<fence>```+|:::+)(?P<language>[^\n]*)\n(?P<code>.*?)"
    r"^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
# What is shown and not run: output, and directives of the site.
SHOWN = re.compile(r"|text|json|html|console|toml|\{.*")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    said: str
    line: int

    @property
    def is_run(self) -> bool:
        return not self.said.startswith(("not run: ", "run by "))


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a file, those of included languages alone."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        language = match["language"].strip()
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(language, match["code"], match["said"] or "", line))
    return found
