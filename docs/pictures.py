"""Draw the pictures of the README and the pages anew: ``python docs/pictures.py``."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
NAMES = ("plot_before_after", "plot_tail_risk", "plot_simplex", "plot_path")

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*non-interactive")
    for name in sys.argv[1:] or NAMES:
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        path = ROOT / "docs" / "images" / f"{name}.png"
        pyplot.savefig(path, dpi=130)
        pyplot.close("all")
        print(path.relative_to(ROOT))
