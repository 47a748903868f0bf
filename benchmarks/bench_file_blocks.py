"""DRAGO beside L-BFGS on rows in files: seconds, and how often the features are read.

    python benchmarks/bench_file_blocks.py solve --rows 2000000 --features 50 --folder /var/tmp

solve    certified solves by L-BFGS and by DRAGO with several numbers of blocks, in turn; medians
         of the seconds, those of the processor in the last solve, and the bytes of features that
         were read, by all of them. "auto" is DRAGO's own number of blocks

The files are those of `bench_files.py`, in float32; removed unless --folder is given. The memory
limit is a quarter of X where none is given, so that nothing is held.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from bench_files import make_blocks
from tables import Table, folder_for, make_tables, medians_in_turn, parser_of

import drago

BLOCKS = (4, 16, 32)
SETS = {
    "cvar": (drago.CVaR(0.1), "chi2"),
    "cvar kl": (drago.CVaR(0.1), "kl"),
    "ball": (drago.Chi2Ball(1.0), "auto"),
}


def methods(n: int) -> dict[str, Any]:
    found: dict[str, Any] = {"lbfgs": "lbfgs", "auto": drago.Drago()}
    return found | {f"{count}": drago.Drago(block_size=-(-n // count)) for count in BLOCKS}


def solve(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Solves by both methods."""
    table = Table(
        {"rows": "9d", "features": "8d", "set": "8s", "tol": "7.0e", "blocks": "7s"}
        | {
            "seconds": "8.2f",
            "processor": "9.2f",
            "readings": "8.2f",
            "iterations": "10d",
            "status": "8s",
        }
    )
    n, d = options.rows, options.features
    blocks = make_blocks(options.folder, n, d, options.limit or n * d)
    for name, (uncertainty, divergence) in SETS.items():
        results: dict[str, Any] = {}

        def go(key: str, method: Any, results: Any = results, given: Any = None) -> None:
            problem = drago.DROProblem(
                blocks, uncertainty=given[0], divergence=given[1], shift_cost=0.05, l2_reg=1e-3
            )
            began = time.process_time()
            result = drago.solve(problem, method, tol=options.tol)
            results[key] = result, problem.rows, time.process_time() - began

        given = uncertainty, divergence
        what = {
            key: lambda key=key, method=method, go=go, given=given: go(key, method, given=given)
            for key, method in methods(n).items()
        }
        found = medians_in_turn(what, options.runs)
        for key, seconds in found.items():
            result, rows, processor = results[key]
            table.add(
                {"rows": n, "features": d, "set": name, "tol": options.tol, "blocks": key}
                | {"seconds": seconds, "processor": processor, "readings": rows.readings}
                | {"iterations": result.n_iter, "status": str(result.status)}
            )
    return table.rows


TABLES = {"solve": solve}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--folder", help="where the files are made; kept where it is given")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--runs", type=int, default=1, help="of each, for the median")
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--limit", type=int, help="memory_limit in bytes")
    options = parser.parse_args()
    with folder_for(options):
        make_tables(TABLES, options)


if __name__ == "__main__":
    main()
