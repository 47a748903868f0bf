"""Rows in a cache on the disks of workers against the same rows in their memory: equal bits."""

import errno
import gc
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import drago
from cluster_cases import TOL, data, in_chunks, same_bits, terms

da = pytest.importorskip("dask.array", reason="needs dask and distributed")
distributed = pytest.importorskip("distributed", reason="needs dask and distributed")

from drago.rows.cluster import cache, core, disk  # noqa: E402
from drago.rows.cluster import open as opening  # noqa: E402

IN_METRIC = drago.LBFGS(metric="auto")
no_client = pytest.mark.filterwarnings("ignore:there is no Dask client")


def as_kind(X, kind):
    """Dense in double or single precision, or half of it sparse: in memory and in blocks."""
    if kind != "csr":
        X = X.astype(kind)
        return X, da.from_array(X, chunks=(700, -1))
    X = np.where(np.random.default_rng(1).uniform(size=X.shape) < 0.5, X, 0.0)
    return sp.csr_matrix(X), da.from_array(X, chunks=(700, -1)).map_blocks(sp.csr_matrix)


def in_both(X, y, solver="auto", tol=TOL, groups=None, sample_weight=None, **given):
    """The answers in memory and from the disk."""
    found = []
    for limit in ("1TB", 1):
        source = drago.from_dask(
            X, y, groups=groups, sample_weight=sample_weight, memory_limit=limit
        )
        problem = drago.DROProblem(source, **given)
        assert bool(problem.rows.notice) == (limit == 1)
        found.append(drago.solve(problem, solver, tol=tol))
    same_bits(*found)
    return found[1]


CASES = [
    ("squared", "cvar", "float64"),
    ("squared", "groups", "csr"),
    ("huber", "esrm", "float32"),
    pytest.param("huber", "chi2 ball", "float64", marks=pytest.mark.slow),
    ("logistic", "cvar", "csr"),
    ("logistic", "simplex", "float32"),
    ("multinomial", "cvar", "float64"),
    pytest.param("multinomial", "groups", "float32", marks=pytest.mark.slow),
    pytest.param("multinomial", "chi2 ball", "csr", marks=pytest.mark.slow),
]


@no_client
@pytest.mark.parametrize(("loss", "name", "kind"), CASES)
def test_answers_are_those_in_memory_bit_for_bit(loss, name, kind):
    X, y, groups = data(loss)
    X, blocks = as_kind(X, kind)
    own = groups if name == "groups" else None
    _, dy, dgroups = in_chunks(y[:, None], y, own)
    result = in_both(blocks, dy, groups=dgroups, **terms(loss, name))
    memory = drago.DROProblem(X, y, groups=own, **terms(loss, name))
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= TOL


@no_client
@pytest.mark.parametrize("kind", ["float64", "float32", "csr"])
def test_parts_of_many_windows_have_the_same_bits(kind, monkeypatch):
    """Files of megabytes, which kernels read in several pieces, and rows that are picked."""
    monkeypatch.setattr(opening, "RULE", opening._PartRule(parts=2, least=1))
    X, y, _ = data("logistic", 60_000, 21)
    _, blocks = as_kind(X, kind)
    in_both(blocks, da.from_array(y, chunks=999), IN_METRIC, **terms("logistic", "cvar"))


@no_client
def test_weights_baseline_and_other_methods_have_the_same_bits():
    X, y, _ = data("squared")
    dX, dy, _ = in_chunks(X, y)
    weight = da.from_array(np.random.default_rng(3).uniform(0.5, 2.0, size=3000), chunks=400)
    given = terms("squared", "cvar", baseline=np.linspace(0.0, 1.0, 3000))
    in_both(dX, dy, sample_weight=weight, **given)
    given = terms("squared", "cvar")
    in_both(dX, dy, "newton", **given)
    in_both(dX, dy, drago.Drago(block_size=600), tol=1e-3, **given)
    in_both(dX, dy, tol=1e-3, constraint=drago.L2Ball(0.5), **given)


@no_client
def test_frames_and_blocks_of_unknown_size_and_of_two_types():
    dd = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
    import pandas as pd

    X, y, _ = data("squared")
    table = dd.from_pandas(pd.DataFrame(X, columns=list("abcd")).assign(y=y), npartitions=6)
    given = terms("squared", "cvar")
    in_both(table[list("abcd")], table["y"], **given)
    in_both(table[list("abcd")].to_dask_array(), y, **given)
    halves = [da.from_array(each, chunks=(400, -1)) for each in np.split(X, 2)]
    mixed = da.concatenate([halves[0].astype(np.float32), halves[1]])
    in_both(mixed.map_blocks(lambda block: block, dtype=float), y, **given)


@no_client
@pytest.mark.parametrize("kind", ["float64", "csr"])
def test_a_checkpoint_of_rows_in_memory_goes_on_from_the_disk(tmp_path, kind):
    X, y, _ = data("squared")
    _, blocks = as_kind(X, kind)
    held, filed = (
        drago.DROProblem(drago.from_dask(blocks, y, memory_limit=limit), **terms("squared", "cvar"))
        for limit in ("1TB", 1)
    )
    path = tmp_path / "solve.ckpt"
    whole = drago.solve(held, IN_METRIC, tol=TOL)
    with pytest.warns(ConvergenceWarning):
        drago.solve(held, IN_METRIC, tol=TOL, max_iter=2, checkpoint=path, checkpoint_every=0)
    same_bits(whole, drago.solve(filed, IN_METRIC, tol=TOL, checkpoint=path))


# ------------------------------------------------------------------------------- the files


def part_of(tmp_path, X=None):
    X, y, _ = data("squared") if X is None else (X, np.zeros(X.shape[0]), None)
    block = disk.Block([X] if isinstance(X, np.ndarray) else X, str(tmp_path))
    return disk.DiskPart(block, y, np.full(y.size, 1.0 / y.size), None)


def files_of(folder):
    return sorted(str(path) for path in Path(folder).rglob("*.bin"))


@pytest.mark.parametrize("kind", ["float64", "csr"])
def test_a_part_that_is_sent_writes_files_of_its_own(tmp_path, kind):
    X, _ = as_kind(data("squared")[0], kind)
    part = part_of(tmp_path, X)
    vectors = 16 * X.shape[0]
    assert disk._size_of(part) > vectors + 8 * X.shape[0]  # what it costs to send it
    assert disk._size_of(part) == vectors  # what it takes
    here = part.at_hand().X
    mine = files_of(tmp_path)
    other = pickle.loads(pickle.dumps(part))
    assert disk._size_of(other) > vectors + 8 * X.shape[0]
    assert files_of(tmp_path) == mine  # nothing is written before it is used
    there = other.at_hand().X
    assert disk._size_of(other) == vectors
    assert len(files_of(tmp_path)) == 2 * len(mine)
    assert not abs(here - there).sum()
    again = other.with_baseline(np.ones(X.shape[0]))
    assert again.block is other.block
    del part, here
    gc.collect()
    assert not set(mine) & set(files_of(tmp_path))
    assert not abs(again.at_hand().X - there).sum()
    del other, again
    gc.collect()
    assert files_of(tmp_path) == []


def damaged(problem):
    """Change a byte of a part, unseen by whoever looks at the file's size and time."""
    (path,) = {each.block.features.columns[0].path for each in problem.rows.layout.bundles[1]}
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(-3, 2)
        byte = file.read(1)
        file.seek(-3, 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path


def on_disk(loss="squared", name="cvar", **more):
    dX, dy, _ = in_chunks(*data(loss))
    source = drago.from_dask(dX, dy, memory_limit=1, **more)
    return drago.DROProblem(source, **terms(loss, name))


@no_client
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_a_damaged_block_is_a_named_error(tmp_path, loss):
    """Where kernels read windows, and where all rows are read."""
    problem = on_disk(loss, cache_dir=tmp_path)
    damaged(problem)
    with pytest.raises(drago.SourceChangedError, match=r"damaged.*make the problem anew"):
        drago.solve(problem, IN_METRIC)
    # As the error says.
    assert drago.solve(on_disk(loss, cache_dir=tmp_path)).status == "optimal"


@no_client
def test_a_file_that_is_gone_is_a_named_error(tmp_path):
    problem = on_disk(cache_dir=tmp_path)
    os.remove(files_of(tmp_path)[0])
    with pytest.raises(drago.SourceChangedError, match="is gone"):
        drago.solve(problem)


@no_client
def test_a_full_disk_is_a_named_error_and_leaves_nothing(tmp_path, monkeypatch):
    write = disk._write

    def full(path, arrays):
        write(path, [each[:10] for each in arrays])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "_write", full)
    with pytest.raises(drago.CacheError, match=r"disk is full.*cache_dir="):
        on_disk(cache_dir=tmp_path)
    assert files_of(tmp_path) == []
    monkeypatch.setattr(disk, "_write", write)
    monkeypatch.setattr(cache, "require_room", _no_room)
    with pytest.raises(drago.CacheError, match="no room"):
        on_disk(cache_dir=tmp_path)


def _no_room(cache_dir, size):
    raise drago.CacheError("no room")


# ------------------------------------------------------------------------------- on workers


def scratch(client):
    return set(client.run(lambda dask_worker: dask_worker.local_directory).values())


def test_rows_go_to_disks_by_themselves_where_memory_is_short(client, monkeypatch, capsys):
    X, y, _ = data("logistic")
    given = terms("logistic", "cvar")
    dX, dy, _ = in_chunks(X, y)
    first = drago.DROProblem(dX, dy, **given)
    assert first.rows.notice == ""
    held = drago.solve(first, IN_METRIC, tol=TOL)
    monkeypatch.setattr(cache, "SHARE", 1e-9)
    second = drago.DROProblem(dX, dy, **given)
    found = drago.solve(second, IN_METRIC, tol=TOL, verbose=1)
    same_bits(held, found)
    assert "cache on the workers' disks" in capsys.readouterr().out
    assert "features on disk" in repr(second.rows)
    folders = scratch(client)
    assert sum(len(files_of(folder)) for folder in folders) >= len(second.rows.parts)
    del second, found
    gc.collect()
    for _ in range(200):
        left = [path for folder in folders for path in files_of(folder)]
        if not left:
            break
        time.sleep(0.05)
    assert left == []


def test_workers_without_a_limit_hold_the_rows(monkeypatch):
    monkeypatch.setattr(cache, "SHARE", 1e-9)
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, dashboard_address=":0", memory_limit=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        dX, dy, _ = in_chunks(*data("squared"))
        assert drago.DROProblem(dX, dy).rows.notice == ""


def test_vectors_that_do_not_fit_are_told(monkeypatch):
    X = da.ones((1_000_000, 3), chunks=(100_000, 3))
    blocks = X.to_delayed().ravel().tolist()
    monkeypatch.setattr(cache, "memory_of", lambda engine: 10**9)
    assert cache.cache_for(None, X, blocks, None, None) is None
    assert cache.cache_for(None, X, blocks, 10**6, None).limit == 10**6
    monkeypatch.setattr(cache, "memory_of", lambda engine: 10**8)
    with pytest.warns(UserWarning, match="120 MB of the workers' 100 MB"):
        found = cache.cache_for(None, X, blocks, None, "/var/tmp")
    assert (found.size, found.limit, found.cache_dir) == (88 * 10**6, 3 * 10**7, "/var/tmp")


def test_a_worker_that_is_killed_changes_no_bit(client, monkeypatch):
    monkeypatch.setattr(cache, "SHARE", 1e-9)
    dX, dy, _ = in_chunks(*data("logistic"))
    problem = drago.DROProblem(dX, dy, **terms("logistic", "cvar"))
    before = drago.solve(problem, IN_METRIC, tol=TOL)
    pid, place = next(
        iter(client.run(lambda dask_worker: (os.getpid(), dask_worker.local_directory)).values())
    )
    assert files_of(place)
    run, count = core.RemoteRows._run, [0]

    def counted(self, *given):
        count[0] += 1
        if count[0] == 9:
            os.kill(pid, signal.SIGKILL)
        return run(self, *given)

    monkeypatch.setattr(core.RemoteRows, "_run", counted)
    after = drago.solve(problem, IN_METRIC, tol=TOL)
    assert pid not in client.run(os.getpid).values()
    same_bits(before, after)
    assert files_of(place) == []  # Dask removes what a killed worker has left


@pytest.mark.slow
def test_workers_read_their_files_to_their_disks(client, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    X, y, _ = data("squared")
    for k, rows in enumerate(np.split(np.arange(3000), 3)):
        table = {f"x{j}": X[rows, j] for j in range(4)} | {"y": y[rows]}
        pq.write_table(pa.table(table), tmp_path / f"{k}.parquet")
    found = []
    for limit in ("1TB", 1):
        source = drago.read_parquet(tmp_path, "y", client=client, memory_limit=limit)
        problem = drago.DROProblem(source, **terms("squared", "cvar"))
        assert bool(problem.rows.notice) == (limit == 1)
        found.append(drago.solve(problem, IN_METRIC, tol=1e-3))
    same_bits(*found)


@no_client
def test_estimators_take_such_a_source():
    dX, dy, _ = in_chunks(*data("logistic"))
    labels = da.where(dy > 0, "late", "in time")
    model = drago.DROClassifier(drago.CVaR(0.5))
    source = drago.from_dask(dX, labels, memory_limit=1)
    coef = model.fit(source).coef_
    assert coef.tobytes() == model.fit(dX, labels).coef_.tobytes()
    assert model.score(source) == model.score(dX, labels)
    frame_like = drago.from_dask(dX, np.asarray(dy), memory_limit="1GB")
    assert drago.DRORegressor(drago.CVaR(0.5)).fit(frame_like).coef_.shape == (4,)


def test_what_is_given_is_checked():
    with pytest.raises(TypeError, match="collection of Dask"):
        drago.from_dask(np.eye(3), np.ones(3))
    with pytest.raises(ValueError, match="memory_limit must be"):
        drago.from_dask(da.ones((3, 3)), memory_limit="much")


@pytest.mark.slow
def test_rows_of_twice_the_workers_memory(monkeypatch, tmp_path):
    """No worker is killed or paused, and the answer is that in memory."""
    from dask import delayed

    monkeypatch.setattr(opening, "RULE", opening._PartRule())
    n, d, count = 6_000, 300, 85

    def made(k, which):
        rng = np.random.default_rng([4, k])
        X = rng.standard_normal((n, d))
        return X[:, 0] - X[:, 1] + rng.standard_t(4, n) if which == "y" else X

    blocks = [delayed(made)(k, "X") for k in range(count)]
    X = da.concatenate([da.from_delayed(block, (n, d), float) for block in blocks])
    targets = [delayed(made)(k, "y") for k in range(count)]
    y = da.concatenate([da.from_delayed(block, (n,), float) for block in targets])
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0",
            memory_limit="300MB", local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        before = client.run(os.getpid)
        assert 8 * n * d * count > 2 * 600e6
        problem = drago.DROProblem(X, y, **terms("squared", "cvar"))
        assert problem.rows.notice
        result = drago.solve(problem, tol=1e-4)
        assert client.run(os.getpid) == before
        lines = [line for each in client.get_worker_logs().values() for _, line in each]
        assert not any("Pausing worker" in line for line in lines)
        assert result.status == "optimal"
    whole = [np.concatenate([made(k, which) for k in range(count)]) for which in "Xy"]
    memory = drago.DROProblem(*whole, **terms("squared", "cvar"))
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= 1e-4
