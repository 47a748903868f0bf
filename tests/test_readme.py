"""The README is one screen, for somebody who has five minutes. tests/test_docs.py runs its code."""

import re
from pathlib import Path

import pytest

import drago
from markdown import blocks

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text()


def test_it_is_short():
    lines = TEXT.splitlines()
    assert len(lines) <= 85 and max(len(line) for line in lines) <= 400


def test_it_shows_what_before_how():
    picture, install, code = (TEXT.index(mark) for mark in ("![", "```sh", "```python"))
    assert picture < install < code < TEXT.index("## When not to use it")


def test_its_code_is_ten_lines():
    (code,) = [block.code for block in blocks(README) if block.language == "python"]
    lines = [line for line in code.splitlines() if line and "import" not in line]
    assert len(lines) <= 10


def test_it_links_to_every_guide():
    linked = set(re.findall(r"\]\(docs/(\w+)\.md\)", TEXT))
    assert linked >= {"start", "choosing", "estimators", "certificate", "larger_than_memory"}
    assert linked >= {
        "torch",
        "extending",
        "peers",
        "glossary",
        "faq",
        "theory",
        "benchmarks",
        "paper",
    }


def test_what_it_says_of_its_code_is_so():
    """The losses by class and the mean, as they are printed."""
    pytest.importorskip("pandas")
    (code,) = [block.code for block in blocks(README) if block.language == "python"]
    names = {}
    exec(compile(code.replace("print(", "found = ("), "README", "exec"), names)
    found = names["found"]
    assert isinstance(found, drago.Comparison)
    loss = {(g, m): v for g, m, v in zip(*(found.groups[k] for k in ("group", "model", "loss")))}
    said = re.search(
        r"malignant class falls from (\S+) to (\S+), that of the benign one rises from\s+(\S+) to "
        r"(\S+), and the mean goes from (\S+) to (\S+)\. ",
        TEXT,
    )
    assert said, "the sentence below the code"
    order = [(0, "plain"), (0, "robust"), (1, "plain"), (1, "robust")]
    assert [loss[key] for key in order] == pytest.approx(
        [float(x) for x in said.groups()[:4]], abs=0.01
    )
    assert found.table["mean_loss"] == pytest.approx([float(said[5]), float(said[6])], abs=0.01)
