"""Builds the kernels with the system's C++ compiler, for a wheel or into the source tree."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMON = (
    "-std=gnu++17", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing",
    "-fno-stack-protector",
)  # fmt: skip
# Sums are split over the lanes of a vector only where a loop says so (`omp simd`); nobody looks at
# errno and at floating-point exceptions.
OF_KERNELS = (
    "-Wall", "-Wextra", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-pthread",
)  # fmt: skip
# What takes longest comes first, so that all cores are busy to the end.
LONGEST = (
    "bind_visits.cpp", "bind_rows.cpp", "bind_files.cpp", "bind_stochastic.cpp",
    "bind_classes.cpp", "bind_steps.cpp", "nb_combined.cpp", "bind_oracles.cpp",
)  # fmt: skip
# What is as fast with less optimisation, and compiled in half of the time.
MILDER = {"bind_stochastic.cpp": "-O2"}
# The levels of x86-64, the best first; "plain" is for every processor.
LEVELS = {"v4": 4, "v3": 3, "plain": 1}
ENDING = sysconfig.get_config_var("EXT_SUFFIX")


class Kernels(BuildHookInterface):
    """An editable installation has its extension beside the sources.

    ``DRAGO_LEVELS=all`` builds one for every level of x86-64, for wheels that run elsewhere; by
    default there is one for this machine, and with ``none`` whoever asks builds it otherwise. What
    is newer than its sources is not built again.
    ``CXX``, ``CXXFLAGS`` and ``LDFLAGS`` are those of the compiler.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root, levels = Path(self.root), os.environ.get("DRAGO_LEVELS", "here")
        home = root / "build" / f"kernels-{levels}"
        if version == "editable":
            home = root / "src" / "drago" / "kernels"
        bring_up_to_date(root, levels, home)
        build_data["pure_python"], build_data["infer_tag"] = False, True
        if version != "editable":
            for built in home.glob(f"_*{ENDING}"):
                build_data["force_include"][str(built)] = f"drago/kernels/{built.name}"


def bring_up_to_date(root: Path, levels: str, home: Path) -> None:
    """Build the extensions where they are older than their sources."""
    if levels == "none":
        return
    sources = root / "src" / "drago" / "kernels"
    newest = max(text.stat().st_mtime for text in [Path(__file__), *sources.glob("*pp")])
    if not any(built.stat().st_mtime > newest for built in home.glob(f"_*{ENDING}")):
        build(sources, levels, home)


def build(sources: Path, levels: str, home: Path) -> None:
    """Compile and link the extensions, in parallel."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        chosen = levels_for(sources, levels, folder)
        jobs = [nanobind_job(folder)]
        for level in chosen:
            jobs += [kernel_job(text, level, folder) for text in sorted(sources.glob("*.cpp"))]
        jobs.sort(key=lambda job: LONGEST.index(job[0]) if job[0] in LONGEST else len(LONGEST))
        run_all(pool, [command for _, command in jobs])
        home.mkdir(parents=True, exist_ok=True)
        run_all(pool, [link_command(level, folder) for level in chosen])
        for level in chosen:
            # Moved into its place: an extension that is in use must not change.
            moved = home / f".{level}{ENDING}"
            shutil.copy2(folder / f"_{level}{ENDING}", moved)
            os.replace(moved, home / f"_{level}{ENDING}")


def compiler() -> list[str]:
    """The compiler with the user's flags."""
    found = shlex.split(os.environ.get("CXX", ""))
    if not found:
        names = (name for name in ("c++", "g++", "clang++") if shutil.which(name))
        found = [next(names, "c++")]
    return found + shlex.split(os.environ.get("CXXFLAGS", ""))


def levels_for(sources: Path, levels: str, folder: Path) -> list[str]:
    """Which extensions to build: the best one that this machine runs, or all."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["plain"]
    if levels == "all":
        return list(LEVELS)
    probe = folder / "probe.cpp"
    probe.write_text('#include "level.hpp"\nint main() { return drago::is_supported() ? 0 : 1; }\n')
    for level, number in LEVELS.items():
        program = folder / f"probe_{level}"
        command = [*compiler(), f"-DDRAGO_LEVEL={number}", f"-I{sources}", probe, "-o", program]
        if level == "plain" or (is_well(command) and is_well([program])):
            break
    return [level]


def nanobind_job(folder: Path) -> tuple[str, list[Any]]:
    """nanobind in one file: its own rules compile a dozen, which takes several times as long."""
    import nanobind

    text = Path(nanobind.source_dir()) / "nb_combined.cpp"
    flags = [*COMMON, "-O1", "-DNB_COMPACT_ASSERTIONS", *includes()]
    return text.name, [*compiler(), *flags, "-c", text, "-o", folder / "nanobind.o"]


def kernel_job(text: Path, level: str, folder: Path) -> tuple[str, list[Any]]:
    """One file of the kernels for one level."""
    flags = [*COMMON, *OF_KERNELS, MILDER.get(text.name, "-O3")]
    flags += [f"-DDRAGO_LEVEL={LEVELS[level]}", f"-DDRAGO_MODULE=_{level}"]
    if level != "plain":
        flags += [f"-march=x86-64-{level}", "-mprefer-vector-width=256"]
    if text.name == "module.cpp" and platform.machine() in ("x86_64", "AMD64"):
        # Whether a processor has what the others need is asked by code for all of them.
        flags.append("-march=x86-64")
    out = folder / f"{text.stem}_{level}.o"
    return text.name, [*compiler(), *flags, *includes(), "-c", text, "-o", out]


def includes() -> list[str]:
    """The headers of Python, NumPy and nanobind, whose warnings are not ours."""
    import nanobind
    import numpy

    robin_map = Path(nanobind.__file__).parent / "ext" / "robin_map" / "include"
    python = (sysconfig.get_path("include"), sysconfig.get_path("platinclude"))
    homes = (nanobind.include_dir(), robin_map, *python, numpy.get_include())
    return [f"-isystem{home}" for home in homes]


def link_command(level: str, folder: Path) -> list[Any]:
    """From the objects of a level to its extension."""
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    objects = [*sorted(folder.glob(f"*_{level}.o")), folder / "nanobind.o"]
    flags = shlex.split(os.environ.get("LDFLAGS", ""))
    return [*compiler(), "-pthread", *shared, *objects, "-o", folder / f"_{level}{ENDING}", *flags]


def is_well(command: list[Any]) -> bool:
    """Whether a program ends without an error."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run_all(pool: ThreadPoolExecutor, commands: Iterable[list[Any]]) -> None:
    """Run all of them, or say what was wrong with one."""
    for future in [pool.submit(run, command) for command in commands]:
        try:
            future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def run(command: list[Any]) -> None:
    """One command, with what it says on an error."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        failed, said = done.returncode != 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    except OSError as error:
        failed, said = True, str(error)
    if failed:
        raise SystemExit(
            "drago's kernels could not be built; that takes a C++17 compiler (g++ or clang++, or "
            f"what CXX names). {' '.join(words)} said:\n{said}"
        )


if __name__ == "__main__":  # into the source tree, before or while pip installs the rest
    here = Path(__file__).resolve().parent
    bring_up_to_date(here, os.environ.get("DRAGO_LEVELS", "here"), here / "src/drago/kernels")
