"""Room for vectors: what is counted, what goes to files, and what is used again."""

import gc
import os

import numpy as np
import pytest

from drago.rows import room
from drago.rows.room import Room


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(room, "_FILE", 1 << 16)


def test_vectors_are_in_memory_up_to_the_limit(tmp_path):
    given = Room(1000, str(tmp_path))
    first = given.empty(100)
    assert given.held == 800 and given.spilled == 0
    second = given.empty((50, 2))
    assert second.shape == (50, 2) and given.held == 800 and given.spilled == 1 << 16
    view = first[10:20][:, None]
    del first
    gc.collect()
    assert given.held == 800  # a view keeps it
    del view
    gc.collect()
    assert given.held == 0
    assert os.listdir(tmp_path) == []  # files have no name


def test_space_in_files_is_used_again_when_nobody_looks_at_it(tmp_path):
    given = Room(0, str(tmp_path))
    arrays = [given.empty(64, np.float64) for _ in range(8)]
    for k, array in enumerate(arrays):
        array[:] = k
    before, view = given.spilled, arrays[3].reshape(8, 8)[2:, None]
    del arrays[3], array
    gc.collect()
    others = [given.empty(64) for _ in range(6)]
    for other in others:
        other[:] = -1.0
    np.testing.assert_array_equal(view, 3.0)
    np.testing.assert_array_equal([each[0] for each in arrays], [0, 1, 2, 4, 5, 6, 7])
    del view
    gc.collect()
    for _ in range(20):
        given.empty(64)[:] = 7.0
    np.testing.assert_array_equal(others, -1.0)
    assert given.spilled == before


def test_what_was_made_elsewhere_is_kept_once(tmp_path):
    given = Room(100, str(tmp_path))
    array = np.arange(10.0)
    assert given.kept(array) is array and given.held == 80
    assert given.kept(array[:, None]).base is array and given.held == 80
    large = np.arange(100.0)
    kept, number = given.kept((large, 3))
    assert kept is not large and number == 3
    np.testing.assert_array_equal(kept, large)
    assert given.kept(kept) is kept and given.held == 80
    assert given.kept(None) is None
    assert given.empty(0).size == 0


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="has no room for 65536 bytes of vectors") as caught:
        Room(0, str(tmp_path)).empty(10)
    assert caught.value.errno == 28
    assert os.listdir(tmp_path) == []


def test_folders_in_memory_are_told(tmp_path):
    assert not room.is_in_memory("/proc/self")
    assert isinstance(room.is_in_memory(str(tmp_path)), bool)
    assert os.path.isdir(room.scratch_folder())
