"""The first scan of Parquet files: its time and its memory.

    python benchmarks/bench_ingest.py speed memory --folder /var/tmp --csv FOLDER
    python benchmarks/bench_ingest.py fit --gb 20 --limit 2GB --hard-limit 3GiB --folder /var/tmp

speed    the scan that writes the blocks of a source, beside the decoding of the same columns by
         pyarrow alone (all of its threads, batches of its own size) and a plain write of as many
         bytes as the blocks have, in turn; medians. `ratio` is the time of the scan over the sum of
         the other two
memory   the same in a process of its own, of which RssAnon + RssShmem is sampled
fit      a certified fit of --gb of Parquet (100 features of float32, CVaR 0.1) with --limit as its
         memory_limit, in a process under RLIMIT_DATA (--hard-limit), of which RssAnon + RssShmem is
         sampled; then the decoding and the plain write as for speed. `readings` are the bytes of
         features that the solve has read, by all of them. Needs twice the room on the disk

The files are made here, without compression and with snappy; removed at the end unless --folder is
given, and used again then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from tables import Table, make_tables, parser_of

import drago
from drago.sources.memory import as_bytes

SAMPLED = 0.01
LIMIT = "200MB"
GROUP = 100_000
# Rows, numbers, columns of words, and dtype.
KINDS = {
    "100 x float32": (2_500_000, 100, 0, np.float32),
    "100 x float64": (1_250_000, 100, 0, np.float64),
    "10 x float64": (12_500_000, 10, 0, np.float64),
    "20 x float64, 3 of words": (2_500_000, 20, 3, np.float64),
}


def parquet(folder: str, name: str, compression: str, quick: bool) -> str:
    """Four files of a kind; made where they are not there yet."""
    n, d, words, dtype = KINDS[name]
    n = n // 4 if quick else n
    place = Path(folder) / f"{name.replace(' ', '_').replace(',', '')}_{n}_{compression}"
    if place.exists():
        return str(place)
    made = place.with_suffix(".made")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for k in range(4):
        rng, rows = np.random.default_rng(k), n // 4
        columns = {f"x{j}": rng.standard_normal(rows).astype(dtype) for j in range(d)}
        for j in range(words):
            columns[f"word{j}"] = np.array(["red", "green", "blue", "grey"])[
                rng.integers(0, 4, rows)
            ]
        columns["y"] = rng.standard_normal(rows)
        pq.write_table(
            pa.table(columns), made / f"{k}.parquet", row_group_size=GROUP, compression=compression
        )
    made.rename(place)
    return str(place)


def decode(path: str) -> None:
    """All columns, by pyarrow alone."""
    for _ in ds.dataset(path).to_batches():
        pass


def write(path: str, size: int) -> None:
    """So many bytes to a new file, from one buffer."""
    buffer = np.ones(16 << 20, np.uint8).data
    with open(path, "wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(buffer[: min(left, len(buffer))])


def ingest(path: str, folder: str) -> int:
    """The first scan; returns how many bytes of blocks it made."""
    blocks = drago.read_parquet(path, "y", memory_limit=LIMIT, cache_dir=folder).open("squared")
    return sum(os.path.getsize(column.path) for column in blocks.columns.values())  # type: ignore[union-attr]


def timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of the scan, of pyarrow's decoding, and of a plain write of the same bytes."""
    table = Table(
        {"kind": "26s", "compression": "12s", "GB": "6.2f", "decode": "8.2f", "write": "8.2f",
         "scan": "8.2f", "ratio": "7.2f"}
    )  # fmt: skip
    for name in KINDS:
        for compression in ("none", "snappy"):
            path = parquet(options.place, name, compression, options.quick)
            folder, plain = f"{options.place}/cache", f"{options.place}/plain.bin"
            size = ingest(path, folder)
            decoding, writing, scanning = [], [], []
            for _ in range(options.repeats):
                decoding.append(timed(lambda path=path: decode(path)))
                writing.append(timed(lambda plain=plain, size=size: write(plain, size)))
                os.unlink(plain)
                scanning.append(timed(lambda path=path, folder=folder: ingest(path, folder)))
            a, b, c = map(statistics.median, (decoding, writing, scanning))
            table.add(
                {"kind": name, "compression": compression, "GB": size / 1e9, "decode": a,
                 "write": b, "scan": c, "ratio": c / (a + b)}
            )  # fmt: skip
    return table.rows


def anonymous(pid: int) -> int:
    """Bytes of memory that are no pages of files."""
    found = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon", "RssShmem")):
                found += 1024 * int(line.split()[1])
    except OSError:
        pass
    return found


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The most memory that a scan takes, beside that of the imports."""
    table = Table({"kind": "26s", "compression": "12s", "blocks_GB": "9.2f", "peak_MB": "8.0f"})
    for name in KINDS:
        path = parquet(options.place, name, "snappy", options.quick)
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import bench_ingest as b; "
            "print(b.ingest(sys.argv[2], sys.argv[3]))"
        )
        here = str(Path(__file__).parent)
        child = subprocess.Popen(
            [sys.executable, "-c", code, here, path, f"{options.place}/cache"],
            stdout=subprocess.PIPE,
            text=True,
        )
        peak = 0
        while child.poll() is None:
            peak = max(peak, anonymous(child.pid))
            time.sleep(SAMPLED)
        size = int(child.communicate()[0])
        table.add(
            {"kind": name, "compression": "snappy", "blocks_GB": size / 1e9, "peak_MB": peak / 1e6}
        )
    return table.rows


def many_files(folder: str, gb: float) -> str:
    """Files of half a gigabyte with 100 features of float32; made where they are not there yet."""
    place = Path(folder) / f"fit_{gb:g}_GB"
    made = place.with_suffix(".made")
    if place.exists():
        return str(place)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    rows = 1_250_000
    left = max(1, round(gb * 1e9 / (4 * 101)))
    scales = np.geomspace(0.3, 3.0, 100).astype(np.float32)
    for k in range(-(-left // rows)):
        rng, size = np.random.default_rng(k), min(rows, left - k * rows)
        X = rng.standard_normal((100, size), dtype=np.float32) * scales[:, None]
        y = X[0] - X[50] / 2 + 0.1 * X[99] + rng.standard_t(4, size).astype(np.float32)
        columns = {f"x{j}": X[j] for j in range(100)}
        pq.write_table(
            pa.table({**columns, "y": y}), made / f"{k:04d}.parquet", row_group_size=GROUP,
            compression="snappy", use_dictionary=False,
        )  # fmt: skip
    made.rename(place)
    return str(place)


def fit_child(path: str, folder: str, limit: str, hard: int, tol: float) -> None:
    """One fit, told in a line of JSON; what has been allocated before counts too."""
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    began = time.perf_counter()
    source = drago.read_parquet(path, "y", memory_limit=limit, cache_dir=folder)
    problem = drago.DROProblem(source, uncertainty=drago.CVaR(0.1), fit_intercept=True)
    scanned = time.perf_counter()
    result = drago.solve(problem, tol=tol)
    rows: Any = problem.rows
    told = {
        "scan": scanned - began,
        "solve": time.perf_counter() - scanned,
        "rows": problem.n_samples,
        "bytes": getattr(getattr(rows, "source", None), "size", 0),
        "readings": getattr(rows, "readings", 0.0),
        "rel_gap": result.rel_gap,
        "status": str(result.status),
    }
    print(json.dumps(told), flush=True)


def fit(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Peak of memory and seconds of a certified fit of many files, under a hard limit."""
    table = Table(
        {"GB": "6.2f", "rows": "10d", "limit": "8s", "hard_GB": "8.2f", "peak_GB": "8.2f",
         "scan": "8.1f", "decode": "8.1f", "write": "8.1f", "ratio": "6.2f", "solve": "8.1f",
         "readings": "9.2f", "rel_gap": "8.1e", "status": "10s"}
    )  # fmt: skip
    path, folder = many_files(options.place, options.gb), f"{options.place}/cache"
    given = [path, folder, options.limit, options.hard_limit, options.tol]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import bench_ingest as b; "
        "path, folder, limit, hard, tol = sys.argv[2:]; "
        "b.fit_child(path, folder, limit, int(hard), float(tol))"
    )
    here = str(Path(__file__).parent)
    child = subprocess.Popen(
        [sys.executable, "-c", code, here, *map(str, given)], stdout=subprocess.PIPE, text=True
    )
    peak = 0
    while child.poll() is None:
        peak = max(peak, anonymous(child.pid))
        time.sleep(SAMPLED)
    out = child.communicate()[0]
    if child.returncode:
        raise SystemExit(f"the fit ended with {child.returncode}: {out}")
    told = json.loads(out)
    plain = f"{options.place}/plain.bin"
    decoding = timed(lambda: decode(path))
    writing = timed(lambda: write(plain, told["bytes"]))
    os.unlink(plain)
    size = sum(file.stat().st_size for file in Path(path).iterdir())
    table.add(
        {**told, "GB": size / 1e9, "limit": options.limit, "hard_GB": options.hard_limit / 1e9,
         "peak_GB": peak / 1e9, "decode": decoding, "write": writing,
         "ratio": told["scan"] / (decoding + writing)}
    )  # fmt: skip
    return table.rows


TABLES = {"speed": speed, "memory": memory, "fit": fit}


def main() -> None:
    parser = parser_of(__doc__, TABLES)
    parser.add_argument("--folder", help="where the files are made, and left")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gb", type=float, default=1.0, help="of Parquet, for fit")
    parser.add_argument("--limit", default="100MB", help="memory_limit of fit")
    parser.add_argument("--hard-limit", type=as_bytes, default="3GiB", help="RLIMIT_DATA of fit")
    parser.add_argument("--tol", type=float, default=1e-4)
    options = parser.parse_args()
    options.place = options.folder or tempfile.mkdtemp(prefix="bench_ingest_")
    try:
        make_tables(TABLES, options)
    finally:
        if options.folder is None:
            shutil.rmtree(options.place, ignore_errors=True)


if __name__ == "__main__":
    main()
