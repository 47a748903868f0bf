"""Links to examples: a file in a checkout, a page of the gallery in the site."""

from __future__ import annotations

import re

from sphinx.application import Sphinx


def to_gallery(text: str, suffix: str = ".rst") -> str:
    """An example's file becomes its page of the gallery, the list of examples the first page."""
    text = re.sub(r"\]\(\.\./examples/(plot_\w+)\.py\)", rf"](gallery/\1{suffix})", text)
    return text.replace("](../examples/README.rst)", f"](gallery/index{suffix})")


def read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = to_gallery(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
