"""An extra of pyproject.toml is there for something that uses it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# What is not imported: commands and plugins, by what calls them; a solver, by who asks for it.
CALLED = {
    "ruff": ("Makefile", "ruff check"),
    "mypy": ("Makefile", "/mypy"),
    "pytest-xdist": ("Makefile", "pytest -n"),
    "clarabel": ("tests/reference.py", "cp.CLARABEL"),
    "sphinx": ("Makefile", "-m sphinx"),
    "pydata-sphinx-theme": ("docs/conf.py", "pydata_sphinx_theme"),
    "numpydoc": ("docs/conf.py", "numpydoc"),
    "sphinx-gallery": ("docs/conf.py", "sphinx_gallery"),
    "myst-parser": ("docs/conf.py", "myst_parser"),
    "sphinx-design": ("docs/conf.py", "sphinx_design"),
    "latex2mathml": ("docs/_ext/formulas.py", "from latex2mathml"),
    "build": ("Makefile", "-m build"),
    "twine": ("Makefile", "twine check"),
}


def names(requirements):
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


IMPORTS = re.compile(
    r"""^[ \t]*(?:from|import)\s+(\w+)|(?:importorskip|import_module)\(["'](\w+)""", re.MULTILINE
)


def imported():
    """Top-level names of the packages that anything in the repository imports."""
    found = set()
    for folder in ("src", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= {a or b for a, b in IMPORTS.findall(path.read_text())}
    return found


def test_every_package_of_an_extra_is_used():
    found = imported()
    for extra, requirements in EXTRAS.items():
        if extra == "all":
            continue
        for name in names(requirements):
            if name in CALLED:
                file, text = CALLED[name]
                assert text in (ROOT / file).read_text(), (extra, name)
            else:
                assert name in found, (extra, name)


def test_all_is_every_extra():
    inside = re.fullmatch(r"drago\[(.*)\]", EXTRAS["all"][0])[1].split(",")
    assert set(inside) == set(EXTRAS) - {"all"}
