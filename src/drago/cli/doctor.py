"""What this machine has, for whoever wants to know why something is slow or does not work."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from drago._version import __version__
from drago.datasets import cache_dir
from drago.sources.memory import as_bytes, as_text, available

NEEDED = ("numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl")
OPTIONAL = ("typer", "rich", "pandas", "pyarrow", "matplotlib", "torch", "dask", "skl2onnx")


def examine() -> dict[str, dict[str, Any]]:
    """Facts by their titles."""
    return {
        "versions": _versions(),
        "threads": _threads(),
        "memory and caches": _places(),
        "graphics card": _card(),
        "solve": _solve(),
    }


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "drago": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    for name in (*NEEDED, *OPTIONAL):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _threads() -> dict[str, Any]:
    from drago import kernels
    from drago._threads import threads_for

    kernels.__getattr__("checksum")  # loads them
    loaded = [name for name in sys.modules if name.startswith("drago.kernels._")]
    return {
        "cores": os.cpu_count(),
        "threads for large data": threads_for(1 << 40),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "compiled kernels": ", ".join(name.rpartition("._")[2] for name in loaded),
    }


def _places() -> dict[str, Any]:
    folder = cache_dir()
    there = [file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()]
    parent = folder
    while not parent.exists():
        parent = parent.parent
    return {
        "memory": as_text(available()),
        "default memory limit (--memory-limit)": as_text(as_bytes(None)),
        "cache": f"{folder} ({as_text(sum(there))} in {len(there)} files)",
        "cache can be written": "yes" if os.access(parent, os.W_OK) else "no",
    }


def _card() -> dict[str, Any]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken installation raises anything
        return {"torch": f"none ({type(error).__name__}): fits run on the processor"}
    if torch.cuda.is_available():
        return {"cuda": torch.cuda.get_device_name(0)}
    return {"cuda": "none: fits run on the processor"}


def _solve() -> dict[str, Any]:
    from drago.problem import DROProblem
    from drago.solvers.solve import solve
    from drago.terms.uncertainty import CVaR

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 50))
    y = X @ rng.normal(size=50) + rng.standard_t(3, size=20_000)
    began = time.perf_counter()
    problem = DROProblem(X, y, uncertainty=CVaR(0.2), shift_cost=0.1, fit_intercept=True)
    found = solve(problem)
    return {
        "problem": "20000 rows, 50 features, CVaR 0.2",
        "status": str(found.status),
        "rel_gap": found.rel_gap,
        "seconds": time.perf_counter() - began,
    }
