"""From an empty folder with a CSV to an HTML report: three commands, timed one by one.

    python benchmarks/first_report.py [--wheel drago.whl]

The wheel is built before the clock starts unless one is given. Packages come from pip's cache if
they are there: the second run tells the time without downloads. On a busy machine the seconds of
processors tell more than those of the clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
DATA = """
from sklearn.datasets import load_breast_cancer
frame = load_breast_cancer(as_frame=True).frame
frame["target"] = frame["target"].map({0: "malignant", 1: "benign"})
frame.to_csv("patients.csv", index=False)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", help="that of drago; built here where it is not given")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "empty"
        folder.mkdir()
        subprocess.run([sys.executable, "-c", DATA], cwd=folder, check=True)
        wheel = told.wheel or built(Path(place))
        # As a user's shell is, not as this one: the packages installed are the ones that count.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        here = ".venv/bin" if os.name == "posix" else ".venv/Scripts"
        total = np.zeros(2)
        print(f"{'':15} {'clock':>8} {'processor':>12}")
        for name, words in {
            "an environment": [sys.executable, "-m", "venv", ".venv"],
            "1. install": [f"{here}/python", "-m", "pip", "install", "-q", f"{wheel}[cli]"],
            "2. fit": [f"{here}/drago", "fit", "patients.csv", "--target", "target", "--model",
                       "patients.drago"],
            "3. report": [f"{here}/drago", "report", "patients.drago", "patients.csv", "--out",
                          "report.html"],
        }.items():  # fmt: skip
            began = now()
            subprocess.run(words, cwd=folder, env=clean, check=True, stdout=subprocess.DEVNULL)
            spent = now() - began
            total += spent
            print(f"{name:15} {spent[0]:6.1f} s {spent[1]:10.1f} s", flush=True)
        print(f"{'together':15} {total[0]:6.1f} s {total[1]:10.1f} s")
        size = (folder / "report.html").stat().st_size
        print(f"report.html: {size / 1e3:.0f} kB")


def now() -> np.ndarray:
    """The time, and what processors have done for commands that have ended."""
    spent = os.times()
    return np.array([time.perf_counter(), spent.children_user + spent.children_system])


def built(place: Path) -> str:
    """The wheel of this checkout."""
    words = ["wheel", "-q", "--no-deps", "--wheel-dir", str(place / "wheel"), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return str(next((place / "wheel").glob("*.whl")))


if __name__ == "__main__":
    main()
