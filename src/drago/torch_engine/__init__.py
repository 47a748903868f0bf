"""The torch engine: robust losses for training with autograd, on any device.

It needs PyTorch (``pip install "drago[torch]"``), and neither compiled kernels nor scikit-learn::

    from drago import CVaR
    from drago.torch_engine import RobustLoss

    criterion = RobustLoss(CVaR(0.1), shift_cost=0.05)
    loss = criterion(cross_entropy(model(x), y, reduction="none"))
    loss.backward()

Names other than these two are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from drago.training.robust_loss import RobustLoss, robust_loss
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "drago.torch_engine needs PyTorch, which is not installed: pip install 'drago[torch]'.",
        name="torch",
    ) from error

if TYPE_CHECKING:
    from drago.oracles.tensors import TensorOracle as TensorOracle
    from drago.training.autograd import AutogradProblem as AutogradProblem

_HOME = {"AutogradProblem": "training.autograd", "TensorOracle": "oracles.tensors"}

__all__ = ["AutogradProblem", "RobustLoss", "TensorOracle", "robust_loss"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'drago.torch_engine' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"drago.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
