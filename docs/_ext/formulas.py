"""Formulas as MathML, which browsers draw by themselves: no script, no network."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(translator: Any, node: Any) -> None:
    translator.body.append(f'<span class="math">{convert(node.astext())}</span>')
    raise_skip()


def display(translator: Any, node: Any) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>')
    raise_skip()


def raise_skip() -> None:
    from docutils.nodes import SkipNode

    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
