"""Fit a folder of Parquet files that is larger than the memory that the fit may use.

    python examples/larger_than_memory.py [--folder DIR] [--gigabytes 2] [--limit 500MB]

It makes the files itself (they are left in DIR where that is given, and used again), fits a
classifier for the town that is served worst, writes its predictions to another Parquet file, and
says what each step took.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import drago
from drago import DROClassifier

COLUMNS, ROWS = 30, 250_000  # of a file: some 61 MB
TOWNS = np.array(["north", "south", "island", "harbour"])


def make_files(folder: Path, count: int) -> None:
    """Files of loans; made where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = np.random.default_rng(1).normal(size=COLUMNS) / np.sqrt(COLUMNS)
    for k in range(count):
        path = folder / f"part-{k:03}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng([2, k])
        X = rng.normal(size=(ROWS, COLUMNS))
        town = rng.choice(4, ROWS, p=[0.4, 0.3, 0.2, 0.1])
        sign = np.where(town == 3, -0.5, 1.0)  # the harbour is another world
        late = sign * (X @ truth) + rng.logistic(size=ROWS) > 1.0
        unit = np.logspace(0, 3, COLUMNS)
        columns = {f"x{j}": X[:, j] * unit[j] + unit[j] for j in range(COLUMNS)}
        columns |= {"town": TOWNS[town], "late": np.where(late, "late", "paid")}
        pq.write_table(pa.table(columns), f"{path}.made", row_group_size=50_000)
        Path(f"{path}.made").rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--limit", default="500MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = (options.folder or Path(scratch)) / "loans"
        began = time.perf_counter()
        make_files(folder, max(1, round(options.gigabytes * 1e9 / 61e6)))
        size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
        say(f"{size / 1e9:.2f} GB of Parquet in {folder}", began)

        source = drago.read_parquet(
            folder,
            target="late",
            groups="town",
            standardize=True,
            memory_limit=options.limit,
            cache_dir=scratch,
        )
        print(source)
        began = time.perf_counter()
        blocks = source.open("logistic")  # fit would do it
        say(f"scan of {blocks.n_samples} rows, {blocks.n_features} features", began)

        began = time.perf_counter()
        model = DROClassifier("worst_group", verbose=1).fit(source)
        say(f"fit, {model.result_.status}, certified to {model.result_.rel_gap:.1e}", began)

        began = time.perf_counter()
        count = model.predict_to(source, Path(scratch) / "predictions.parquet")
        say(f"{count} predictions", began)
        began = time.perf_counter()
        say(f"accuracy {model.score(source):.3f}", began)


def say(what: str, began: float) -> None:
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
