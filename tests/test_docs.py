"""The code of the docs runs as it stands, links lead somewhere, and what is said is so."""

import ast
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import drago
from markdown import SHOWN, blocks

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
# The README's code is run by tests/test_readme.py, which also looks at what it prints.
RUN = [page for page in DOCS if any(b.language == "python" and b.is_run for b in blocks(page))]
NEEDS = {
    "torch.md": ("torch",),
    "torchrun.md": ("torch",),
    "larger_than_memory.md": ("pyarrow",),
    "cluster.md": ("distributed",),
    "command.md": ("typer",),
}


@pytest.mark.parametrize("page", RUN, ids=[page.name for page in RUN])
@pytest.mark.filterwarnings("ignore:.*is not the same as the cache")
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    for package in ("pandas", "matplotlib", *NEEDS.get(page.name, ())):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    # A module, so that what is defined on the page can be found by its name.
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python" and block.is_run:
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(page), "exec"), names)
    if "pyplot" in str(sys.modules.get("matplotlib.pyplot")):
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_block_is_run_or_says_why_not(page, tmp_path):
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        assert block.language in ("python", "sh") or SHOWN.fullmatch(block.language), where
        if block.said.startswith("run by "):
            assert (ROOT / block.said.removeprefix("run by ").split()[0]).exists(), where
        if block.language == "sh" and block.is_run:
            done = subprocess.run(
                ["bash", "-e", "-c", block.code], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, (where, done.stderr)


def test_the_guide_has_code():
    names = {page.name for page in RUN}
    assert names >= {"start.md", "choosing.md", "certificate.md", "estimators.md"}
    assert names >= {"problems.md", "larger_than_memory.md", "torch.md", "extending.md", "peers.md"}


def test_links_lead_somewhere():
    """Files and headings; `docs/_ext/links.py` asks the same of the built site."""
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path) if path else page
            if path.startswith("gallery/"):  # written when the site is built
                example = ROOT / "examples" / (Path(path).stem + ".py")
                assert Path(path).stem == "index" or example.exists(), (page.name, target)
                continue
            assert file.exists(), (page.name, target)
            if anchor:
                heads = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
                assert anchor in slugs, (page.name, target)


def test_every_page_is_in_the_site():
    listed = set()
    for page in DOCS:
        for block in blocks(page):
            if block.language.startswith("{toctree}"):
                listed |= {line.rpartition("<")[2].strip("> ") for line in block.code.splitlines()}
    assert {page.stem for page in DOCS} - {"index"} <= listed


def test_every_public_name_is_in_the_reference():
    from drago import datasets, plotting

    text = (ROOT / "docs" / "api.md").read_text()
    lines = re.findall(r"^   (\w+)$", text, re.MULTILINE)
    listed = set(lines)
    assert len(lines) == len(listed) + 1  # `load` of models and of data sets
    public = {*drago.__all__, *plotting.__all__, *datasets.__all__}
    modules = {name for name in public if inspect.ismodule(getattr(drago, name, None))}
    assert public - modules - {"__version__", "NAMES"} <= listed
    assert {"RobustLoss", "robust_loss", "AutogradProblem", "TensorOracle"} <= listed


def test_the_glossary_has_the_words():
    words = set(
        re.findall(r"^([a-zA-Z][\w ]*)$", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    )
    assert words >= {"weight", "level", "shift cost", "certificate", "relative gap", "metric"}


def test_the_table_of_defaults_is_true():
    """Each line against the signatures of those that have such a parameter."""
    text = (ROOT / "docs" / "choosing.md").read_text()
    table = text[text.index("| | default |") :].split("\n\n")[0]
    said = dict(re.findall(r"^\| (.*?) \| `?([^`:,; ]+)", table, re.M))
    estimators = drago.DRORegressor, drago.DROClassifier
    everyone = *estimators, drago.DROProblem, drago.robust_path
    of = {
        "`uncertainty` of `DRORegressor`, `DROClassifier`": ("uncertainty", estimators),
        "`uncertainty` of `DROProblem`": ("uncertainty", [drago.DROProblem]),
        "`baseline`": ("baseline", everyone),
        "`divergence`": ("divergence", everyone),
        "`shift_cost`": ("shift_cost", everyone[:3]),
        "`l2_reg`": ("l2_reg", everyone[:3]),
        "`fit_intercept`": ("fit_intercept", (*estimators, drago.robust_path)),
        "`tol`": ("tol", (*estimators, drago.solve, drago.robust_path)),
        "Huber's `delta`": ("delta", [drago.Huber]),
    }
    assert list(said) == ["", *of] or list(said) == list(of)
    for line, (name, owners) in of.items():
        for owner in owners:
            default = inspect.signature(owner).parameters[name].default
            assert default == ast.literal_eval(said[line]), (name, owner)
    assert inspect.signature(drago.DROProblem).parameters["fit_intercept"].default is False


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda q, n: 0.5 * np.sum((q - 1 / n) ** 2), lambda n: 1 / n),  # the paper
        (lambda q, n: 0.5 * n * np.sum((q - 1 / n) ** 2), lambda n: 1.0),  # fast-dro
        (lambda q, n: n * np.sum((q - 1 / n) ** 2), lambda n: 2.0),  # drlearn
        (lambda q, n: np.sum((q - 1 / n) ** 2) / (2 * n), lambda n: 1 / n**2),  # sqwash
    ],
)
def test_the_table_of_scales_is_true(theirs, ours):
    n = 7
    q = np.random.default_rng(0).dirichlet(np.ones(n))
    problem = drago.DROProblem(np.eye(n), np.zeros(n), uncertainty="simplex", shift_cost=1.0)
    assert theirs(q, n) == pytest.approx(ours(n) * problem.distance(q))


def test_the_demo_prints_what_the_docs_say(capsys):
    """Up to what rounding on another machine may do to a fit with a tolerance of 1e-4."""
    runpy.run_path(str(ROOT / "examples" / "demo.py"), run_name="__main__")

    def table(text):
        rows = re.findall(
            r"^ *(mean|CVaR 0\.\d) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)%", text, re.M
        )
        return {name: [float(value) for value in values] for name, *values in rows}

    printed = table(capsys.readouterr().out)
    written = table((ROOT / "docs" / "when_it_helps.md").read_text())
    assert list(printed) == list(written) == ["mean", "CVaR 0.5", "CVaR 0.2", "CVaR 0.1"]
    for name, values in printed.items():
        assert values == pytest.approx(written[name], rel=0.02), name
