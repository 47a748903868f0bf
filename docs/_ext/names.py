"""Names between single backticks: a link where the name is public, code elsewhere."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import drago
from drago import datasets, plotting

MODULES = {"drago": drago, "drago.plotting": plotting, "drago.datasets": datasets}
FULL = {
    name: f"{home}.{name}"
    for home, module in MODULES.items()
    for name in module.__all__
    if name not in ("__version__", "NAMES", "plotting", "datasets")
}
FULL |= {
    name: f"drago.torch_engine.{name}"
    for name in ("AutogradProblem", "RobustLoss", "TensorOracle", "robust_loss")
}


def name_role(role: str, rawtext: str, text: str, *_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
    code = nodes.literal(rawtext, text)
    short = text.rpartition(".")[2].rstrip("()")
    target = FULL.get(short)
    if target is None or text.rstrip("()") not in (short, target):
        return [code], []
    link = pending_xref(
        rawtext, code, refdomain="py", reftype="obj", reftarget=target, refexplicit=False
    )
    return [link], []


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Members that scikit-learn or Python has made, and those without a word, are left out."""
    value = obj.fget if isinstance(obj, property) else getattr(obj, "__func__", obj)
    home = getattr(value, "__module__", None) or "drago"
    return True if not home.startswith("drago") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("name", name_role)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
