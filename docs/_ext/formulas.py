"""Formulas as MathML, which browsers draw by themselves: no script, no network."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx

HOME = "http://www.w3.org/1998/Math/MathML"
BELOW = {f"{{{HOME}}}msub": f"{{{HOME}}}munder", f"{{{HOME}}}msubsup": f"{{{HOME}}}munderover"}
OPERATORS = {"min", "max", "∑"}


def with_limits(formula: str) -> str:
    """What is written below min, max and sums belongs below them where there is room."""
    root = ElementTree.fromstring(formula)
    for node in root.iter():
        if node.tag in BELOW and node[0].text in OPERATORS:
            node.tag = BELOW[node.tag]
            node[0].set("movablelimits", "false")
    ElementTree.register_namespace("", HOME)
    return ElementTree.tostring(root, encoding="unicode")


def inline(translator: Any, node: Any) -> None:
    translator.body.append(f'<span class="math">{convert(node.astext())}</span>')
    raise SkipNode


def display(translator: Any, node: Any) -> None:
    formula = with_limits(convert(node.astext(), display="block"))
    translator.body.append(f'<div class="math">{formula}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
