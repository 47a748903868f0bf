"""A Markdown copy of each page beside it, and llms.txt, the list of them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from gallery_links import to_gallery
from sphinx.application import Sphinx
from sphinx.util.inspect import safe_getattr

ORDER = (
    "index", "start", "guide", "gallery/index", "theory", "api", "benchmarks", "paper", "peers",
    "faq", "glossary", "contributing", "changelog",
)  # fmt: skip


def of_object(full: str) -> str:
    """The page of a public name: what it is called with, and its docstring."""
    home, _, name = full.rpartition(".")
    thing = safe_getattr(importlib.import_module(home), name)
    try:
        signature = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(thing)))
    except (TypeError, ValueError):
        signature = ""
    parts = [f"# {full}", f"```python\n{full}{signature}\n```", inspect.getdoc(thing) or ""]
    if inspect.isclass(thing):
        for key, value in sorted(vars(thing).items()):
            text = inspect.getdoc(value)
            if not key.startswith("_") and text and (callable(value) or hasattr(value, "__func__")):
                parts.append(f"## {name}.{key}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def of_example(path: Path) -> str:
    """The page of an example: its words, and its code in blocks."""
    text = path.read_text()
    parts = []
    head = re.match(r'"""\n(.*?)\n=+\n\n(.*?)"""\n', text, re.DOTALL)
    assert head, path
    parts += [f"# {head[1]}", head[2].strip()]
    for cell in re.split(r"^# %%\n", text[head.end() :], flags=re.MULTILINE):
        words = re.match(r"(?:#.*\n)*", cell)
        assert words
        prose = re.sub(r"^# ?", "", words[0], flags=re.MULTILINE).strip()
        code = cell[words.end() :].strip()
        parts += [piece for piece in (prose, f"```python\n{code}\n```" if code else "") if piece]
    return "\n\n".join(parts) + "\n"


def of_page(app: Sphinx, name: str) -> str | None:
    source = Path(app.env.doc2path(name))
    if name.startswith("api/"):
        return of_object(name.removeprefix("api/"))
    if name.startswith("gallery/plot_"):
        return of_example(Path(app.srcdir).parent / "examples" / f"{source.stem}.py")
    if source.suffix != ".md":
        return None
    text = to_gallery(source.read_text(), ".md")
    included = re.search(r"```\{include\} (\S+)", text)
    return (source.parent / included[1]).read_text() if included else text


def first_sentence(text: str) -> str:
    """Of the first paragraph that is one."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    plain = re.sub(r"^(```|:::).*?^\1 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in plain.split("\n\n"):
        words = " ".join(paragraph.split()).replace("**", "")
        if words and not words.startswith(("#", "|", "!", ":", "(", "+++", "- ", ">", "*")):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)|\{[a-z]+\}`([^`<]*)[^`]*`", r"\1\2", words)
            return re.split(r"(?<=[.?])\s", words)[0][:200]
    return ""


def turn(name: str) -> tuple[int, str]:
    """Pages in the order of the site, each followed by those below it."""
    top = "api" if name.startswith("api/") else name
    top = "gallery/index" if name.startswith("gallery/") else top
    return (ORDER.index(top) if top in ORDER else ORDER.index("guide"), name)


def write(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.name != "html":
        return
    lines = [
        "# drago",
        "",
        "> A Python library for models that stay good on the worst-served part of the data",
        "> (distributionally robust learning), in the manner of scikit-learn, with a certificate.",
        "",
        "Each line is a page of the documentation as Markdown.",
        "",
    ]
    for name in sorted(app.env.found_docs, key=turn):
        text = of_page(app, name)
        if text is None:
            continue
        path = Path(app.outdir) / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        title = app.env.titles[name].astext()
        about = first_sentence(text)
        lines.append(f"- [{title}]({name}.md)" + (f": {about}" if about else ""))
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def link(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], _: Any) -> None:
    if pagename in app.env.found_docs and of_page(app, pagename) is not None:
        context["copy_of_page"] = f"{pagename.rpartition('/')[2]}.md"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
