"""The code of the README runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_there_is_code():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_runs(number, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), {})


def test_links_lead_somewhere():
    for text in (README, *(README.parent / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", text.read_text()):
            assert (text.parent / target).exists(), (text.name, target)
