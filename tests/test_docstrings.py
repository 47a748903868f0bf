"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import drago

# Kernels have none, and what is for torch is tested with it.
ELSEWHERE = (
    *("drago.kernels", "drago.torch_engine", "drago.training", "drago.oracles"),
    *("drago.rows.device", "drago.rows.tensor", "drago.rows.fused"),
)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(drago.__path__, "drago.")
    if not module.name.startswith(ELSEWHERE)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_some():
    finder = doctest.DocTestFinder()
    found = [
        test
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert len(found) >= 5
