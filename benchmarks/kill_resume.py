"""A solve on rows in files that is killed again and again: is its answer the same, bit for bit?

    python benchmarks/kill_resume.py --solver lbfgs --kills 20

A child process ingests batches, and solves with a checkpoint. It is killed (SIGKILL) at moments
drawn uniformly over the time that an undisturbed one takes, the scan and the writing of checkpoints
included, and begun anew each time, until it has been killed so often; then it may finish. What it
has found (coefficients, weights, iterations) is compared with the undisturbed answer. Prints when
it was killed, what was there of a checkpoint, and what was left behind in the folders.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import drago
import drago.loop.resume

SETS = {"cvar": drago.CVaR(0.1), "chi2": drago.Chi2Ball(0.5), "group": drago.Grouped("simplex")}


def solve(asked: Any, folder: Path, checkpoint: bool) -> None:
    """What the child does."""
    rows = asked.rows // 20

    def batches() -> Any:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(rows, asked.features)) * np.geomspace(1, 30, asked.features)
            y = X[:, 0] + 0.1 * X[:, -1] + rng.standard_t(3, rows)
            yield {"X": X, "y": y, "groups": rng.integers(0, 4, rows)}

    source = drago.from_batches(batches, cache_dir=folder / "cache", memory_limit=asked.limit)
    problem = drago.DROProblem(source, uncertainty=SETS[asked.set], fit_intercept=True)
    # As often as it can be saved, whatever that costs.
    drago.loop.resume._SHARE = float("inf")
    solver = {"lbfgs": drago.LBFGS(metric="auto"), "drago": drago.Drago()}[asked.solver]
    more = {"checkpoint": folder / "solve.drago", "checkpoint_every": 0.0} if checkpoint else {}
    result = drago.solve(problem, solver, tol=asked.tol, **more)
    digest = hashlib.sha256()
    for values in (result.coef, np.float64(result.intercept), result.dual_weights):
        digest.update(np.ascontiguousarray(values).tobytes())
    found = {"digest": digest.hexdigest(), "n_iter": result.n_iter, "status": str(result.status)}
    print(json.dumps({**found, "rel_gap": result.rel_gap}), flush=True)


def child(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *sys.argv[1:], "--child", str(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"a child ended with {process.returncode}: {out}")
    return json.loads(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solver", choices=["lbfgs", "drago"], default="lbfgs")
    parser.add_argument("--set", choices=sorted(SETS), default="cvar")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--features", type=int, default=30)
    parser.add_argument("--limit", default="20MB")
    parser.add_argument("--tol", type=float, default=1e-10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where the files go; a temporary folder by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--undisturbed", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        solve(asked, Path(asked.child), not asked.undisturbed)
        return
    home = Path(tempfile.mkdtemp(prefix="kill-", dir=asked.folder))
    try:
        began = time.perf_counter()
        expected = ended(child(home, "--undisturbed"))
        whole = time.perf_counter() - began
        print(f"undisturbed: {whole:.1f} s, {expected['n_iter']} iterations, {expected['status']}, "
              f"rel_gap {expected['rel_gap']:.1e}")  # fmt: skip
        rng = np.random.default_rng(asked.seed)
        killed = 0
        while killed < asked.kills:
            process = child(home)
            wait = rng.uniform(0.0, whole)
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                killed += 1
                files = {path.name: path.stat().st_size for path in home.glob("solve.drago*")}
                temporary = len(list((home / "cache").glob("temp-*")))
                print(
                    f"kill {killed:2d} after {wait:5.1f} s: {files}, {temporary} folders of blocks"
                )
                continue
            print(f"it had ended before {wait:.1f} s; the next one begins anew")
            if ended(process)["digest"] != expected["digest"]:
                raise SystemExit("another answer")
            for path in home.glob("solve.drago*"):
                path.unlink()
        found = ended(child(home))
        left = sorted(os.listdir(home)) + sorted(os.listdir(home / "cache"))
        print(f"after {killed} kills: {found['n_iter']} iterations, {found['status']}, the same "
              f"answer: {found['digest'] == expected['digest']}; left behind: {left}")  # fmt: skip
        if found["digest"] != expected["digest"] or found["n_iter"] != expected["n_iter"]:
            raise SystemExit("another answer")
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
