"""Builds the compiled kernels by CMake, for a wheel or into the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src") / "drago" / "kernels"


class Kernels(BuildHookInterface):
    """An editable installation has its extension beside the sources, as Python's own files.

    ``DRAGO_LEVELS=all`` builds one for every level of x86-64, for wheels that run elsewhere; by
    default there is one for this machine.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        levels = os.environ.get("DRAGO_LEVELS", "here")
        build = root / "build" / f"{sysconfig.get_config_var('SOABI')}-{levels}"
        run("-S", root, "-B", build, "-G", "Ninja", f"-DDRAGO_LEVELS={levels}",
            f"-DPython_EXECUTABLE={sys.executable}")  # fmt: skip
        run("--build", build)
        home = root / KERNELS if version == "editable" else build / "wheel"
        run("--install", build, "--prefix", home)
        build_data["pure_python"], build_data["infer_tag"] = False, True
        if version != "editable":
            for file in home.iterdir():
                build_data["force_include"][str(file)] = f"drago/kernels/{file.name}"


def run(*arguments: Any) -> None:
    """CMake, with what it says on an error."""
    command = ["cmake", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"drago's kernels could not be built; a C++17 compiler (g++ or clang++) is needed. "
            f"{' '.join(command)} said:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
