"""The examples in docstrings are true, and every public name has one."""

import doctest
import importlib
import inspect
import pkgutil

import matplotlib
import matplotlib.pyplot
import pytest

import drago
from drago import datasets, plotting

matplotlib.use("Agg")

# Kernels have none, and the modules for torch are listed below.
ELSEWHERE = (
    *("drago.kernels", "drago.torch_engine", "drago.training", "drago.oracles"),
    *("drago.rows.device", "drago.rows.tensor", "drago.rows.fused"),
)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(drago.__path__, "drago.")
    if not module.name.startswith(ELSEWHERE)
)
ON_TORCH = ("drago.training.robust_loss", "drago.training.autograd", "drago.oracles.tensors")
PUBLIC = {
    f"{home.__name__}.{name}": getattr(home, name)
    for home in (drago, plotting, datasets)
    for name in home.__all__
    if callable(getattr(home, name))
}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.skip("needs torch")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", ON_TORCH)
def test_examples_on_torch(name):
    pytest.importorskip("torch")
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert failed == 0 and attempted > 0


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name):
    text = inspect.getdoc(PUBLIC[name])
    assert "Examples\n--------\n" in text and ">>> " in text


def test_the_torch_engine_has_examples():
    pytest.importorskip("torch")
    import drago.torch_engine as engine

    for name in ("AutogradProblem", "RobustLoss", "TensorOracle", "robust_loss"):
        assert ">>> " in inspect.getdoc(getattr(engine, name)), name
