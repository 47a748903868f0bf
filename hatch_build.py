"""Builds the compiled kernels by CMake, for a wheel or into the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    """An editable installation has its extension beside the sources.

    ``DRAGO_LEVELS=all`` builds one for every level of x86-64, for wheels that run elsewhere; by
    default there is one for this machine. What is newer than its sources is not built again.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root, levels = Path(self.root), os.environ.get("DRAGO_LEVELS", "here")
        sources = root / "src" / "drago" / "kernels"
        home = sources if version == "editable" else root / "build" / f"kernels-{levels}"
        ending = sysconfig.get_config_var("EXT_SUFFIX")
        texts = [root / "CMakeLists.txt", *sources.glob("*pp")]
        newest = max(text.stat().st_mtime for text in texts)
        if not any(built.stat().st_mtime > newest for built in home.glob(f"_*{ending}")):
            build(root, levels, home)
        build_data["pure_python"], build_data["infer_tag"] = False, True
        if version != "editable":
            for built in home.glob(f"_*{ending}"):
                build_data["force_include"][str(built)] = f"drago/kernels/{built.name}"


def build(root: Path, levels: str, home: Path) -> None:
    """In a folder of its own: pip's tools lie elsewhere each time, which CMake would remember."""
    with tempfile.TemporaryDirectory() as folder:
        run("-S", root, "-B", folder, "-G", "Ninja", f"-DDRAGO_LEVELS={levels}",
            f"-DPython_EXECUTABLE={sys.executable}")  # fmt: skip
        run("--build", folder)
        run("--install", folder, "--prefix", home)


def run(*arguments: Any) -> None:
    """CMake, with what it says on an error."""
    command = ["cmake", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            "drago's kernels could not be built; that takes a C++17 compiler (g++ or clang++). "
            f"{' '.join(command)} said:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
