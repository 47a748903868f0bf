"""Columns in files: what is read, and what is said when a file is not what it was."""

import os

import numpy as np
import pytest

from drago.files.blocks import Blocks, Column, Held, SourceChangedError, Stamp, checksum


def column(folder, array, name="x.bin", header=b""):
    path = str(folder / name)
    with open(path, "wb") as file:
        file.write(header)
        file.write(np.ascontiguousarray(array).tobytes())
    return Column(path, array.dtype, array.shape, len(header), Stamp.of(path))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 0), (0, 3)])
def test_rows_come_back(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    for given in (column(tmp_path, array, header=b"a head"), Held(array)):
        assert given.dtype == array.dtype and given.shape == array.shape
        given.check()
        n = shape[0]
        for start, stop in [(0, n), (0, 0), (n // 2, n), (n // 3, n // 2)]:
            np.testing.assert_array_equal(given.read(start, stop), array[start:stop])
            out = np.empty((stop - start, *shape[1:]), dtype)
            assert given.read(start, stop, out) is out
            np.testing.assert_array_equal(out, array[start:stop])


def test_what_does_not_fit_is_refused(tmp_path):
    array = np.arange(12.0).reshape(6, 2)
    for given in (column(tmp_path, array), Held(array)):
        for out in (np.empty((3, 2)), np.empty((2, 2), np.float32), np.empty((2, 2)).T[::1, ::-1]):
            with pytest.raises(ValueError, match="out must be a C-contiguous array of shape"):
                given.read(1, 3, out)
        for start, stop in [(-1, 2), (3, 2), (0, 7)]:
            with pytest.raises(IndexError, match="but there are 6 rows"):
                given.read(start, stop, np.empty((2, 2)))


def test_what_is_expected_may_be_missing(tmp_path):
    given = column(tmp_path, np.ones((4, 2)))
    for each in (given, Held(np.ones((4, 2)))):
        each.expect(0, 4)
        each.expect(2, 2)
    os.remove(given.path)
    given.expect(0, 4)


def test_long_reads_take_several_calls(tmp_path, monkeypatch):
    monkeypatch.setattr("drago.files.blocks._AT_ONCE", 10)
    array = np.arange(50.0).reshape(25, 2)
    np.testing.assert_array_equal(column(tmp_path, array).read(3, 25), array[3:])


def test_a_file_that_is_gone(tmp_path):
    given = column(tmp_path, np.ones(4))
    os.remove(given.path)
    for look in (given.check, lambda: given.read(0, 2)):
        with pytest.raises(SourceChangedError, match=r"x\.bin is gone"):
            look()


def test_a_file_that_was_changed(tmp_path):
    given = column(tmp_path, np.ones(4))
    with open(given.path, "r+b") as file:
        file.write(np.zeros(1).tobytes())
    os.utime(given.path, ns=(1, 1))
    for look in (given.check, lambda: given.read(0, 2)):
        with pytest.raises(SourceChangedError, match=r"x\.bin was changed since it was scanned"):
            look()


def test_a_file_that_was_cut_short(tmp_path):
    given = column(tmp_path, np.ones(4))
    os.truncate(given.path, 20)
    with pytest.raises(SourceChangedError, match=r"had 32 bytes and has 20"):
        given.check()
    unstamped = Column(given.path, given.dtype, given.shape)
    with pytest.raises(SourceChangedError, match="ends at byte 20, where 12 bytes more"):
        unstamped.read(0, 4)
    np.testing.assert_array_equal(unstamped.read(0, 2), [1.0, 1.0])


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(SourceChangedError, match="cannot be read any more"):
        Column(str(tmp_path), np.dtype(float), (3,)).read(0, 1)


def test_check_sums_tell_bytes_apart():
    rng = np.random.default_rng(0)
    array = rng.normal(size=(1 << 17) + 3)
    whole = checksum(array)
    assert 0 <= whole < 2**64
    assert checksum(array.copy().reshape(-1, 1)) == whole
    for place in (0, 5, 1 << 17, array.size - 1):
        other = array.copy()
        other.view(np.uint8)[8 * place + 3] ^= 16
        assert checksum(other) != whole
    assert checksum(array[:-1]) != whole
    pieces = [checksum(array[a : a + 1001], 2 * a) for a in range(0, array.size, 1001)]
    assert sum(pieces) % 2**64 == whole
    halves = array.astype(np.float32)
    pieces = [checksum(halves[a : a + 1001], a) for a in range(0, halves.size, 1001)]
    assert sum(pieces) % 2**64 == checksum(halves)
    ragged = np.arange(13, dtype=np.uint8)
    assert checksum(ragged) != checksum(ragged[::-1])
    assert checksum(ragged[:0]) == 0


def slow_checksum(data, start):
    """The formula, in Python's integers."""
    total = 0
    for k in range(0, len(data), 4):
        word, own = divmod(start + k // 4, 2)
        keys = (0x9E3779B9 + word * 0x7F4A7C16) % 2**32, (0x85EBCA6B + word * 0xC2B2AE3E) % 2**32
        total += (int.from_bytes(data[k : k + 4], "little") ^ keys[own]) * keys[1 - own]
    return total % 2**64


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24, 31, 32, 33, 40, 1003])
@pytest.mark.parametrize("start", [0, 1, 3, 2**40 + 1])
def test_check_sums_are_those_of_the_formula(size, start):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert checksum(data, start) == slow_checksum(data.tobytes(), start)
    # Wherever in memory the bytes begin.
    moved = np.empty(size + 8, dtype=np.uint8)[3 : 3 + size]
    moved[:] = data
    assert checksum(moved, start) == checksum(data, start)


@pytest.mark.parametrize("kind", ["normal", "flags", "float32"])
def test_check_sums_tell_words_that_change_places(kind):
    """Rows and pages; also those of few different numbers, whose low bits are all 0."""
    rng = np.random.default_rng(1)
    array = rng.normal(size=(1 << 13, 8)) if kind == "normal" else rng.integers(0, 2, (1 << 13, 8))
    array = array.astype(np.float32 if kind == "float32" else np.float64)
    whole = checksum(array)
    for size in (1, 16, 64):
        for a, b in rng.integers(0, array.shape[0] // size, (200, 2)) * size:
            other = array.copy()
            other[a : a + size], other[b : b + size] = (
                array[b : b + size], array[a : a + size],
            )  # fmt: skip
            assert (checksum(other) == whole) == (other == array).all()


@pytest.mark.parametrize("ends", [(), (3,), (4, 3), (2, 2, 4), (0, 4)])
def test_parts_end_where_the_rows_do(ends):
    columns = {"X": Held(np.ones((4, 2))), "y": Held(np.ones(4))}
    with pytest.raises(ValueError, match="ends must rise to n_samples=4"):
        Blocks(4, 2, columns, ends)


def test_columns_are_named():
    X, y = Held(np.ones((4, 2))), Held(np.ones(4))
    for columns in ({"X": X}, {"y": y}, {"X": X, "data": X, "y": y}):
        with pytest.raises(ValueError, match="columns must hold 'y' and either 'X' or"):
            Blocks(4, 2, columns, (4,))
    assert not Blocks(4, 2, {"X": X, "y": y}, (4,)).is_sparse


def test_a_look_at_all_columns(tmp_path):
    X = column(tmp_path, np.ones((4, 2)))
    blocks = Blocks(4, 2, {"X": X, "y": Held(np.ones(4))}, (1, 4))
    blocks.check()
    os.utime(X.path, ns=(1, 1))
    with pytest.raises(SourceChangedError, match=r"x\.bin was changed"):
        blocks.check()
