"""The paper's experiments by one command.

    DRAGO_DATA_DIR=... python benchmarks/paper --size full --out results/paper
    DRAGO_DATA_DIR=... python benchmarks/paper --size quick --out results/paper-quick

Runs what is not there yet (`jobs`), then draws the figures, and writes the curves as Parquet and
the claims as `report.md`. With --docs the page `docs/paper.md` is written from the same results.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"  # one thread a worker, as in the paper
os.environ.setdefault("MPLBACKEND", "Agg")
sys.path.insert(0, str(Path(__file__).parent))

from plan import SIZES  # noqa: E402
from report import write_docs, write_report  # noqa: E402
from run import run  # noqa: E402
from store import collect  # noqa: E402

from drago.datasets import DatasetNotFoundError  # noqa: E402


def main() -> int | str:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--out", type=Path, default=None, help="default: results/paper-SIZE")
    parser.add_argument("--workers", type=int, help="processes; 0 is none but this one")
    parser.add_argument("--docs", type=Path, help="the docs folder, to write paper.md there")
    parser.add_argument("--redraw", action="store_true", help="figures, though nothing is new")
    parser.add_argument("--list", action="store_true", help="count the jobs and stop")
    options = parser.parse_args()
    plan = SIZES[options.size]()
    out = options.out or Path(f"results/paper-{options.size}")
    jobs = plan.jobs()
    if options.list:
        for job in jobs:
            print("done" if job.path(out).exists() else "    ", job.title)
        return 0
    out.mkdir(parents=True, exist_ok=True)
    try:
        for spec in {spec.data: spec for spec in plan.specs()}.values():
            spec.build()
    except DatasetNotFoundError as error:
        return str(error)
    try:
        effort = run(jobs, out, options.workers)
    except KeyboardInterrupt:
        return "Stopped. The same command goes on from here."
    results = collect(plan, out, effort)
    text = write_report(results, out, redraw=options.redraw or effort["computed"] > 0)
    if options.docs is not None:
        write_docs(results, options.docs)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
