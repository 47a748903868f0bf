"""The folder of blocks: kept or removed, shared, full, read-only, damaged, abandoned."""

import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import drago
from drago.sources import cache, memory
from drago.sources.cache import CacheError
from source_checks import SMALL, Sliced, features, files_in, whole

RNG = np.random.default_rng(3)
N, D = 3000, 7
X, Y = RNG.normal(size=(N, D)), RNG.normal(size=N)


def stored(tmp_path):
    """X in a file that cannot be read in place."""
    path = tmp_path / "x.npy"
    if not path.exists():
        np.save(path, np.asfortranarray(X))
        np.save(tmp_path / "y.npy", Y)
    return path, tmp_path / "y.npy"


def kept(tmp_path, **settings):
    x, y = stored(tmp_path)
    settings = {"keep_cache": True, "memory_limit": SMALL, **settings}
    return drago.from_arrays(x, y, cache_dir=tmp_path / "c", **settings)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_kept_blocks_are_found_again(tmp_path, monkeypatch):
    first = kept(tmp_path, standardize=True).open("squared")
    gc.collect()
    (name,) = names_in(tmp_path / "c")
    assert name.startswith("kept-") and name == f"kept-{first.digest[:32]}"
    monkeypatch.setattr("drago.sources.source.Scan", None)  # nobody scans
    again = kept(tmp_path, standardize=True).open("squared")
    assert again.sums == first.sums and again.ends == first.ends and again.digest == first.digest
    np.testing.assert_array_equal(features(again), features(first))
    np.testing.assert_array_equal(again.mean, first.mean)
    # who does not ask for it to be kept takes it as well, and leaves it
    third = kept(tmp_path, standardize=True, keep_cache=False)
    np.testing.assert_array_equal(features(third.open("squared")), features(first))
    del third
    gc.collect()
    assert names_in(tmp_path / "c") == [name]


def test_what_is_read_in_place_is_not_kept(tmp_path):
    np.save(tmp_path / "c_order.npy", X)
    np.save(tmp_path / "y.npy", Y)
    for _ in range(2):
        source = drago.from_arrays(
            tmp_path / "c_order.npy", tmp_path / "y.npy", keep_cache=True, memory_limit=SMALL,
            cache_dir=tmp_path / "c",
        )  # fmt: skip
        blocks = source.open("squared")
        np.testing.assert_array_equal(features(blocks), X)
        np.testing.assert_array_equal(whole(blocks)["y"], Y)
    del source, blocks
    assert names_in(tmp_path / "c") == []


def test_other_settings_are_other_blocks(tmp_path):
    for settings in ({}, {"standardize": True}, {"dtype": "float32"}):
        kept(tmp_path, **settings).open("squared")
    x, _ = stored(tmp_path)
    labels = RNG.choice(["a", "b"], N)
    np.save(tmp_path / "labels.npy", labels)
    for loss in ("logistic", "multinomial"):
        source = drago.from_arrays(
            x, tmp_path / "labels.npy", keep_cache=True, memory_limit=SMALL,
            cache_dir=tmp_path / "c",
        )  # fmt: skip
        blocks = source.open(loss)
        assert blocks.classes.tolist() == ["a", "b"]
        np.testing.assert_array_equal(blocks.classes[whole(blocks)["y"].astype(int)], labels)
    gc.collect()
    assert len(names_in(tmp_path / "c")) == 4


@pytest.mark.parametrize("damage", ["cut", "gone", "meta"])
def test_damaged_blocks_are_made_anew(tmp_path, damage):
    kept(tmp_path).open("squared")
    (folder,) = (tmp_path / "c").iterdir()
    if damage == "cut":
        os.truncate(folder / "X.bin", 100)
    elif damage == "gone":
        (folder / "y.bin").unlink()
    else:
        (folder / "blocks.npz").write_bytes(b"something else")
    if damage == "meta":
        with pytest.warns(UserWarning, match=r"cannot be used .* it is made anew"):
            blocks = kept(tmp_path).open("squared")
    else:
        blocks = kept(tmp_path).open("squared")
    np.testing.assert_array_equal(features(blocks), X)


def test_blocks_are_removed_with_the_source(tmp_path):
    source = drago.from_arrays(Sliced(X), Y, memory_limit=SMALL, cache_dir=tmp_path)
    blocks = source.open("squared")
    del source
    gc.collect()
    assert features(blocks).shape == (N, D)  # they live as long as somebody has them
    del blocks
    gc.collect()
    assert names_in(tmp_path) == []


def child(code, *arguments, **settings):
    """Run code in a process of its own."""
    header = "import sys, numpy as np, drago\n"
    return subprocess.run(
        [sys.executable, "-c", header + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, **settings,
    )  # fmt: skip


OPEN = """
    x, y, folder, keep = sys.argv[1:]
    source = drago.from_arrays(
        x, y, memory_limit=100_000, cache_dir=folder, keep_cache=keep == "keep"
    )
    blocks = source.open("squared")
    print(float(blocks.columns["X"].read(0, 3000).sum()), len(blocks.ends))
"""


def test_blocks_are_removed_at_the_end_of_the_process(tmp_path):
    done = child(OPEN, *stored(tmp_path), tmp_path / "c", "remove")
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "c") == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    code = OPEN + "\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)"
    child(code, *stored(tmp_path), tmp_path / "c", "remove")
    left = names_in(tmp_path / "c")
    assert len(left) == 1 and left[0].startswith("temp-")
    mine = drago.from_arrays(Sliced(X), Y, memory_limit=SMALL, cache_dir=tmp_path / "c")
    mine.open("squared")
    assert left[0] not in names_in(tmp_path / "c")
    done = child(OPEN, *stored(tmp_path), tmp_path / "c", "remove")  # and mine is not
    assert done.returncode == 0, done.stderr
    assert len(names_in(tmp_path / "c")) == 1


def test_processes_share_a_folder(tmp_path):
    stored(tmp_path)
    command = [sys.executable, "-c", "import sys, numpy as np, drago\n" + textwrap.dedent(OPEN)]
    arguments = [*map(str, stored(tmp_path)), str(tmp_path / "c"), "keep"]
    running = [
        subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=300) for process in running}
    assert len(answers) == 1 and next(iter(answers))[1] == b""
    (name,) = names_in(tmp_path / "c")
    assert name.startswith("kept-")
    assert sorted(path.name for path in files_in(tmp_path / "c")) == [
        "X.bin", "blocks.npz", "y.bin",
    ]  # fmt: skip


def test_the_second_to_finish_takes_what_the_first_has_made(tmp_path):
    source = kept(tmp_path)
    plain = source._scan

    def overtaken(labels):
        kept(tmp_path).open("squared")
        return plain(labels)

    source._scan = overtaken
    blocks = source.open("squared")
    np.testing.assert_array_equal(features(blocks), X)
    assert len(names_in(tmp_path / "c")) == 1


# ------------------------------------------------------------------------------------ faults


def test_a_disk_that_is_known_to_be_too_small(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage)
    with pytest.raises(CacheError, match=r"needs 192 kB, but .* has room for 10 kB"):
        drago.from_arrays(Sliced(X), Y, memory_limit=SMALL, cache_dir=tmp_path / "c").open(
            "squared"
        )
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_disk_that_becomes_full(tmp_path, monkeypatch, code, after):
    calls, plain = [], drago.sources.sink._write_all

    def write(file, array):
        calls.append(1)
        if len(calls) > after:
            raise OSError(code, os.strerror(code))
        plain(file, array)

    monkeypatch.setattr("drago.sources.sink._write_all", write)
    source = kept(tmp_path)
    with pytest.raises(CacheError, match=r"could not be written: .* Nothing of it was left"):
        source.open("squared")
    assert names_in(tmp_path / "c") == []
    monkeypatch.undo()
    np.testing.assert_array_equal(features(source.open("squared")), X)  # the source is as it was


def test_files_that_may_not_become_that_large(tmp_path):
    code = OPEN.replace(
        "    blocks = ",
        "    import resource\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n    blocks = ",
    )
    done = child(code, *stored(tmp_path), tmp_path / "c", "keep")
    assert "CacheError" in done.stderr and "files may not become that large" in done.stderr
    assert names_in(tmp_path / "c") == []
    assert resource.RLIMIT_FSIZE is not None


def test_a_small_file_system(tmp_path, small_disk):
    batches = [(X, Y)] * 10  # of whose size nobody knows
    source = drago.from_batches(batches, memory_limit=SMALL, cache_dir=small_disk / "c")
    with (
        pytest.warns(UserWarning, match="lies in memory"),
        pytest.raises(CacheError, match="the disk is full"),
    ):
        source.open("squared")
    assert names_in(small_disk / "c") == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    source = drago.from_arrays(Sliced(X), Y, memory_limit=SMALL, cache_dir=tmp_path / "file" / "c")
    with pytest.raises(CacheError, match="give cache_dir= a folder"):
        source.open("squared")


def test_a_read_only_file_system(small_disk):
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    source = drago.from_batches([(X, Y)], memory_limit=SMALL, cache_dir=small_disk / "c")
    with pytest.raises(CacheError, match="Read-only file system"):
        source.open("squared")


def test_memory_that_is_called_a_disk_is_said_aloud(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "is_in_memory", lambda path: True)
    with pytest.warns(UserWarning, match=r"lies in memory \(tmpfs\)"):
        drago.from_arrays(Sliced(X), Y, memory_limit=SMALL, cache_dir=tmp_path).open("squared")


# ------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "text, size",
    [("4GB", 4 * 10**9), ("512 MiB", 512 << 20), ("1.5k", 1500), ("7", 7), (2e9, 2 * 10**9),
     ("2gb", 2 * 10**9), (".5TB", 5 * 10**11)],
)  # fmt: skip
def test_sizes(text, size):
    assert memory.as_bytes(text) == size


@pytest.mark.parametrize("wrong", ["", "GB", "-1GB", "4 giraffes", 0, -5, True, float("nan"), []])
def test_sizes_that_are_none(wrong):
    with pytest.raises(ValueError, match="memory_limit must be a number of bytes"):
        memory.as_bytes(wrong)


def test_a_third_of_the_machine(tmp_path, monkeypatch):
    assert memory.as_bytes(None) == memory.available() // 3
    (tmp_path / "max").write_text("3000000\n")
    monkeypatch.setattr(memory, "_CGROUP", (str(tmp_path / "max"), str(tmp_path / "none")))
    assert memory.as_bytes(None) == 1_000_000
    (tmp_path / "max").write_text("max\n")
    assert memory.available() > 10**8
