"""Public names in code are links to their page, in docstrings (single backticks) and on pages."""

from __future__ import annotations

import re
import types
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

import drago
from drago import datasets, plotting

NOT_DOCUMENTED = {"__version__", "NAMES", "plotting", "datasets"}
FULL = {name: f"drago.datasets.{name}" for name in datasets.__all__}
FULL |= {name: f"drago.plotting.{name}" for name in plotting.__all__}
FULL |= {
    name: f"drago.torch_engine.{name}"
    for name in ("AutogradProblem", "RobustLoss", "TensorOracle", "robust_loss")
}
FULL |= {name: f"drago.{name}" for name in drago.__all__}


def target_of(text: str) -> str | None:
    """The page of a name, called or not: `drago.solve`, `CVaR`, `CVaR(0.1)`."""
    found = re.fullmatch(
        r"(?:drago\.(?:plotting\.|datasets\.|torch_engine\.)?)?(\w+)(?:\(.*\))?", text
    )
    if found is None or found[1] in NOT_DOCUMENTED:
        return None
    # `load` and `save` alone may be anybody's.
    if found[1].islower() and "_" not in found[1] and not text.startswith("drago."):
        return None
    full = FULL.get(found[1])
    if text.startswith("drago.datasets."):
        full = f"drago.datasets.{found[1]}"
    return full


def linked(code: nodes.literal) -> nodes.Node:
    target = target_of(code.astext())
    if target is None:
        return code
    link = pending_xref(
        code.astext(), refdomain="py", reftype="obj", reftarget=target, refexplicit=False
    )
    link += code
    return link


def name_role(
    role: str, rawtext: str, text: str, *_: Any, **__: Any
) -> tuple[list[Any], list[Any]]:
    return [linked(nodes.literal(rawtext, text))], []


class Names(SphinxTransform):
    """Links for the code in the prose of pages."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        if self.env.doc2path(self.env.docname).suffix != ".md":
            return
        for code in list(self.document.findall(nodes.literal)):
            inside = code.parent
            while inside is not None and not isinstance(
                inside, nodes.title | nodes.reference | pending_xref
            ):
                inside = inside.parent
            if inside is None and target_of(code.astext()):
                code.replace_self(linked(code.deepcopy()))


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Members that scikit-learn or Python has made are left out."""
    value = obj.fget if isinstance(obj, property) else getattr(obj, "__func__", obj)
    if isinstance(value, types.MethodDescriptorType | types.BuiltinMethodType):
        return True
    if not callable(value):  # attributes are in the docstring of their class
        return True
    home = getattr(value, "__module__", None) or "drago"
    return True if not home.startswith("drago") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("name", name_role)
    app.add_transform(Names)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
