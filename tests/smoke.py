"""Wheels and sdists in empty environments, tried out: ``python tests/smoke.py dist/*``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

TRY = """
import os, tempfile
import numpy as np
import drago

assert "site-packages" in drago.__file__, drago.__file__
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
y = X @ [1.0, -1.0, 0.5] + rng.standard_t(3, 200)
model = drago.DRORegressor(drago.CVaR(0.2)).fit(X, y)
assert model.result_.status == "optimal" and model.result_.rel_gap <= 1e-4
labels = np.where(y > 0, "yes", "no")
assert drago.DROClassifier("worst_group").fit(X, labels, groups=X[:, 0] > 0).score(X, labels) > 0.7
for solver in ("drago", "lbfgs", "newton"):
    problem = drago.DROProblem(X, y, uncertainty=drago.KLBall(0.1))
    assert drago.solve(problem, solver).status == "optimal", solver
path = os.path.join(tempfile.mkdtemp(), "model.drago")
drago.save(model, path)
assert (drago.load(path).predict(X) == model.predict(X)).all()
from importlib.metadata import version
assert version("drago") == drago.__version__
assert os.path.exists(os.path.join(os.path.dirname(drago.__file__), "py.typed"))
print("drago", drago.__version__, "with numpy", np.__version__, "is well")
"""


def try_out(artefact: Path) -> None:
    """Raise where it cannot be installed, or does not work."""
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        venv.create(name, with_pip=True)
        python = str(Path(name) / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", str(artefact)]
        subprocess.run(install, check=True)
        installed = time.perf_counter() - began
        subprocess.run([python, "-I", "-c", TRY], check=True, cwd=name)
        print(f"{artefact.name}: installed in {installed:.0f} s, tried out", flush=True)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        try_out(Path(given).resolve())
