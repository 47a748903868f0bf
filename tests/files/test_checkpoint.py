"""Checkpoints: bit for bit, whole at every instant, safe to load; and fingerprints."""

import errno
import hashlib
import io
import json
import math
import os
import pickle
import random
import re
import socket
import stat
import subprocess
import sys
import textwrap
import warnings
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import drago
from drago.files import checkpoint
from drago.files.checkpoint import CheckpointError, fingerprint, load, save


def same_array(a, b):
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


def same(state, arrays, settings):
    """Equal to the last bit and with the same types; NaN equals NaN."""
    return (
        state is not None
        and list(state[0]) == list(arrays)
        and all(same_array(state[0][name], np.asarray(arrays[name])) for name in arrays)
        and repr(state[1]) == repr(settings)
    )


def numbered(k):
    """A small state that is known by its number."""
    return {"w": np.arange(3.0) + k, "k": np.array(k)}, {"k": k}


def number(state):
    k = state[1]["k"]
    assert same(state, *numbered(k))
    return k


def sealed(members, version=1, compression=zipfile.ZIP_STORED):
    """An archive with the last line of a checkpoint: what anyone could forge."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = f"drago checkpoint {version} sha256 ".encode() + b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.ckpt"


def beside(path, ending):
    return path.with_name(path.name + ending)


# ---------------------------------------------------------------------------------- round trips

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
DTYPES = hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.array_dtypes(max_size=3)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(NAMES, ARRAYS, max_size=4), st.dictionaries(st.text(), JSON, max_size=4))
@example({}, {})
@example({"file": np.zeros(2), "allow_pickle": np.ones(1), "drago-checkpoint.json": np.ones(3)}, {})
@example({"a": np.array([-0.0, np.nan, -np.nan, np.inf, 5e-324])}, {"a": [math.nan, -0.0, 1e-323]})
@example({"a": np.array([0x7FF0000000000001, 0xFFF8DEADBEEF0001], dtype=np.uint64).view(float)}, {})
@example({"a": np.zeros((0, 3), dtype=np.int64), "b": np.array(True)}, {"a": -math.inf})
@example({"a": np.zeros(3, dtype="U0"), "b": np.zeros(2, dtype=[])}, {"\ud800": "\0"})
def test_a_state_comes_back_bit_for_bit(folder, arrays, settings):
    save(folder / "state", arrays, settings)
    assert same(load(folder / "state"), arrays, settings)


@pytest.mark.parametrize("order", ["C", "F"])
def test_long_arrays_go_where_there_is_room_for_them(path, order):
    rng = np.random.default_rng(0)
    arrays = {
        "long": rng.normal(size=200_000),
        "wide": np.asarray(rng.normal(size=(60_000, 3)), order=order),
        "whole": np.arange(300_000),
        "short": np.ones(3),
    }
    made = []

    def room(size):
        made.append(np.full(size + 1, 7.0)[:-1])
        return made[-1]

    save(path, arrays, {})
    found = load(path, room)
    assert same(found, arrays, {})
    assert [each.size for each in made] == [200_000, 180_000]
    assert np.shares_memory(found[0]["long"], made[0])
    assert np.shares_memory(found[0]["wide"], made[1])


@pytest.mark.parametrize("view", [np.asfortranarray, np.transpose, lambda a: a[::-2, 1::2]])
def test_views_and_layouts(path, view):
    array = view(np.arange(20.0).reshape(4, 5))
    array.flags.writeable = False
    save(path, {"a": array}, {})
    back = load(path)[0]["a"]
    assert np.array_equal(back, array) and back.flags.writeable


def test_a_generator_goes_on_where_it_was(path):
    rng = np.random.default_rng(7)
    rng.normal(size=5)
    save(path, {}, {"rng": rng.bit_generator.state, "big": -(10**1000)})
    settings = load(path)[1]
    other = np.random.default_rng()
    other.bit_generator.state = settings["rng"]
    assert settings["big"] == -(10**1000)
    assert np.array_equal(rng.normal(size=9), other.normal(size=9))


def test_arrays_larger_than_a_block(path):
    array = np.random.default_rng(0).normal(size=400_000)
    save(path, {"a": array}, {})
    assert same(load(path), {"a": array}, {})


def test_the_file_is_an_npz_under_exactly_its_name(path):
    save(path, *numbered(1))
    save(str(path), *numbered(2))
    assert sorted(os.listdir(path.parent)) == ["state.ckpt", "state.ckpt.previous"]
    with np.load(path) as archive:
        assert archive["w"].tolist() == [2.0, 3.0, 4.0]
    assert number(load(str(path))) == 2 and number(load(beside(path, ".previous"))) == 1


def test_the_same_state_is_the_same_bytes(path):
    save(path, *numbered(1))
    save(path, *numbered(1))
    assert path.read_bytes() == beside(path, ".previous").read_bytes()


def test_a_name_without_a_folder(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    save("here", *numbered(3))
    assert number(load("here")) == 3


def test_nothing_was_saved(path):
    assert load(path) is None
    assert load(path / "in" / "no" / "folder") is None


# ------------------------------------------------------------------------- what save refuses


class Word(str):
    pass


@pytest.mark.parametrize(
    ("arrays", "settings", "error", "message"),
    [
        ({"a": np.array([None])}, {}, TypeError, "a has dtype object"),
        ({"a": np.zeros(2, dtype=[("x", "O")])}, {}, TypeError, "plain dtypes, but a has"),
        ({"a/b": np.zeros(1)}, {}, ValueError, "'a/b' was given"),
        ({"": np.zeros(1)}, {}, ValueError, "1 to 100 letters"),
        ({3: np.zeros(1)}, {}, ValueError, "but 3 was given"),
        ({}, [], TypeError, r"must be a dict, but \[\] \(list\)"),
        ({}, {"a": np.zeros(1)}, TypeError, "not JSON serializable"),
        ({}, {"a": [({1: 2},)]}, TypeError, r"str as keys, but 1 \(int\)"),
        ({}, {"a": {None: 2}}, TypeError, "str as keys, but None"),
        ({}, {"a": 10**5000}, ValueError, "4300"),
    ],
)
def test_what_cannot_come_back_is_refused_before_a_file_is_touched(
    path, arrays, settings, error, message
):
    save(path, *numbered(1))
    with pytest.raises(error, match=message):
        save(path, arrays, settings)
    assert os.listdir(path.parent) == [path.name] and number(load(path)) == 1


def test_words_of_a_str_subclass_and_tuples(path):
    save(path, {}, {Word("a"): (Word("b"), 1)})
    assert load(path)[1] == {"a": ["b", 1]}


@pytest.mark.parametrize("ending", ["", ".previous"])
def test_a_folder_is_not_replaced(path, ending):
    beside(path, ending).mkdir()
    with pytest.raises(IsADirectoryError, match="cannot replace a folder"):
        save(path, *numbered(1))
    assert beside(path, ending).is_dir() and len(os.listdir(path.parent)) == 1


def test_a_folder_that_is_not_there(path):
    with pytest.raises(FileNotFoundError):
        save(path / "state", *numbered(1))


def test_a_stale_link_is_not_written_through(path):
    precious = path.parent / "precious"
    precious.write_text("keep")
    beside(path, ".partial").symlink_to(precious)
    os.link(precious, beside(path, ".former"))
    save(path, *numbered(1))
    assert number(load(path)) == 1 and precious.read_text() == "keep"
    assert sorted(os.listdir(path.parent)) == ["precious", path.name]


def test_links_are_followed_and_stay(path):
    """The file that a link names is replaced; what lies beside it for a while lies there."""
    there = path.parent / "elsewhere"
    there.mkdir()
    (there / "state").write_text("old")
    for link, target in ((path, there / "next"), (there / "next", there / "state")):
        link.symlink_to(target)
    save(path, *numbered(1))
    save(path, *numbered(2))
    assert path.is_symlink() and (there / "next").is_symlink()
    assert number(load(path)) == number(load(there / "state")) == 2
    assert sorted(os.listdir(there)) == ["next", "state", "state.previous"]
    assert sorted(os.listdir(path.parent)) == ["elsewhere", path.name]
    (there / "state").unlink()
    assert number(load(path)) == 1  # the one before, beside the file that is gone


def test_a_dangling_link_gets_its_file(path):
    target = path.parent / "target"
    path.symlink_to(target.name)
    assert load(path) is None
    save(path, *numbered(1))
    assert path.is_symlink() and not target.is_symlink() and number(load(target)) == 1


def test_a_ring_of_links_is_refused(path):
    other = path.parent / "other"
    path.symlink_to(other)
    other.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        save(path, *numbered(1))
    assert path.is_symlink() and other.is_symlink() and len(os.listdir(path.parent)) == 2


def occupy(path, kind):
    """Put something that is no file there."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(os.path.relpath(path))  # the name of a socket has to be short
    elif kind == "link to a device":
        path.symlink_to(os.devnull)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except OSError:
            pytest.skip("only the superuser makes devices")


def identity(path):
    """Which thing lies there, and when it was last changed; reading may move the time of access."""
    there = os.lstat(path)
    return there.st_dev, there.st_ino, there.st_mode, there.st_rdev, there.st_mtime_ns


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a device"])
@pytest.mark.parametrize("ending", ["", ".previous", ".partial", ".former"])
def test_pipes_sockets_and_devices_are_not_replaced(path, kind, ending, monkeypatch):
    monkeypatch.chdir(path.parent)
    name = beside(path, ending)
    occupy(name, kind)
    before = identity(name)
    if "link" in kind and ending in (".partial", ".former"):
        save(path, *numbered(1))  # a link of a run that was killed goes, not what it names
        assert number(load(path)) == 1 and os.listdir(path.parent) == [path.name]
        return
    with pytest.raises(FileExistsError, match="cannot replace a device, a pipe or a socket"):
        save(path, *numbered(1))
    assert identity(name) == before and os.listdir(path.parent) == [name.name]


def test_the_null_device_has_no_place_for_a_checkpoint():
    with pytest.raises(FileExistsError, match=rf"cannot replace a device.*: '{os.devnull}'"):
        checkpoint.place(os.devnull)  # and not `save`: a mistake would cost the device


# ------------------------------------------------------------------------------ damaged files


@pytest.fixture
def two(path):
    """Two saves, and the bytes of the second."""
    save(path, *numbered(1))
    save(path, *numbered(2))
    return path.read_bytes()


def damages(content):
    """Every length a file could be cut to, every byte changed, and something added."""
    rng = random.Random(0)
    for length in range(len(content)):
        yield content[:length], "it is truncated"
    for place in range(len(content)):
        byte = content[place] ^ (1 << rng.randrange(8))
        yield (
            content[:place] + bytes([byte]) + content[place + 1 :],
            "it is truncated|its SHA-256 does not match",
        )
    yield content + b"\0", "it is truncated"
    yield content[:100] + content[101:], "it was changed: its SHA-256 does not match"


def test_any_damage_is_found(path, two):
    beside(path, ".previous").unlink()
    for content, reason in damages(two):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"state.ckpt cannot.*({reason})\. Delete it to"):
            load(path)


def test_the_previous_file_stands_in_with_a_warning(path, two):
    for content, reason in list(damages(two))[::7]:
        path.write_bytes(content)
        with pytest.warns(UserWarning, match=rf"({reason})\. .*\.previous, saved before it, is"):
            assert number(load(path)) == 1


def test_the_previous_file_stands_in_silently_where_the_file_is_missing(path, two):
    path.unlink()
    assert number(load(path)) == 1


def test_a_damaged_previous_file_does_not_matter_while_the_file_is_whole(path, two):
    beside(path, ".previous").write_bytes(b"junk")
    assert number(load(path)) == 2


def test_both_are_damaged(path, two):
    path.write_bytes(two[:-1])
    beside(path, ".previous").write_bytes(b"junk" * 20)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert re.fullmatch(
        r"The checkpoint \S+state.ckpt cannot be used: it is truncated; nor can "
        r"\S+state.ckpt.previous, saved before it: it is not a checkpoint. "
        r"Delete both to start anew.",
        str(caught.value),
    )
    path.unlink()
    with pytest.raises(CheckpointError, match=r"\.previous cannot be used: it is not a check"):
        load(path)


def test_a_version_of_the_future(path):
    path.write_bytes(sealed({"drago-checkpoint.json": "{}"}, version=12))
    with pytest.raises(CheckpointError, match=r"format version 12, but .* drago reads 1: use"):
        load(path)
    path.write_bytes(sealed({"drago-checkpoint.json": "{}"}))
    assert load(path) == ({}, {})


# ------------------------------------------------------------------------------ foreign files


@given(st.binary(max_size=300))
@example(b"PK\x03\x04" + b"\0" * 200)
@example(b"PK\x05\x06" + b"\0" * 18)
@example(b"\x93NUMPY" + b"\xff" * 100)
@example(b"drago checkpoint 1 sha256 " + b"0" * 64)
def test_any_bytes(folder, content):
    (folder / "any").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"truncated|not a checkpoint|changed"):
        load(folder / "any")


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_any_bytes_with_a_right_sum(folder, body, content):
    """Behind the SHA-256, too, nothing but a `CheckpointError` comes out."""
    line = b"drago checkpoint 1 sha256 "
    forged = sealed({"drago-checkpoint.json": "{}", "a.npy": content})
    body += line
    for content in (forged, body + hashlib.sha256(body).hexdigest().encode()):
        (folder / "any").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"not a checkpoint|cannot be read"):
            load(folder / "any")


@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_a_foreign_npz(path, writer):
    with open(path, "wb") as file:
        writer(file, w=np.zeros(10))
    with pytest.raises(CheckpointError, match="it is not a checkpoint"):
        load(path)


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_a_pickle_is_never_run(path):
    target = path.parent / "touched"
    payload = np.array([Payload(target)], dtype=object)
    content = npy(payload, allow_pickle=True)
    np.lib.format.read_array(io.BytesIO(content), allow_pickle=True)[0].close()
    target.unlink()  # it would have worked

    with open(path, "wb") as file:
        np.savez(file, w=payload)
    with pytest.raises(CheckpointError):
        load(path)
    for members in (
        {"drago-checkpoint.json": "{}", "w.npy": content},
        {"drago-checkpoint.json": "{}", "w.npy": pickle.dumps(Payload(target))},
        {"drago-checkpoint.json": pickle.dumps(Payload(target))},
    ):
        path.write_bytes(sealed(members))
        with pytest.raises(CheckpointError, match="it is not a checkpoint"):
            load(path)
    assert not target.exists()


def header(descr, shape):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


FORGED = {
    "no settings": {"w.npy": npy(np.zeros(3))},
    "settings that are a list": {"drago-checkpoint.json": "[]"},
    "settings that are not JSON": {"drago-checkpoint.json": "{'a': 1}"},
    "settings that are not text": {"drago-checkpoint.json": b"\xff\xfe\xfd"},
    "deep settings": {"drago-checkpoint.json": "[" * 200_000},
    "long integers": {"drago-checkpoint.json": '{"a": ' + "1" * 5000 + "}"},
    "no array": {"drago-checkpoint.json": "{}", "w.npy": b"hello"},
    "an array that ends early": {"drago-checkpoint.json": "{}", "w.npy": npy(np.zeros(99))[:-1]},
    "a huge array": {"drago-checkpoint.json": "{}", "w.npy": header("<f8", (10**18,))},
    "a huger array": {"drago-checkpoint.json": "{}", "w.npy": header("<f8", (10**30, 10**30))},
    "a negative shape": {"drago-checkpoint.json": "{}", "w.npy": header("<f8", (-3,))},
    "an unknown dtype": {"drago-checkpoint.json": "{}", "w.npy": header("<q99", (3,))},
    "a long header": {"drago-checkpoint.json": "{}", "w.npy": header("(" * 20_000, (3,))},
}


@pytest.mark.parametrize("members", FORGED.values(), ids=FORGED.keys())
def test_forged_files(path, members):
    path.write_bytes(sealed(members))
    with pytest.raises(CheckpointError, match="it is not a checkpoint"):
        load(path)


def test_a_bomb_is_not_unpacked(path):
    settings = {"drago-checkpoint.json": json.dumps({"a": "x" * 10**6})}
    path.write_bytes(sealed(settings, compression=zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 10_000
    with pytest.raises(CheckpointError, match="it is compressed"):
        load(path)


def test_no_regular_file(path):
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"it is not a regular file\. Delete it"):
        load(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        load(path)
    path.unlink()
    path.write_text("")
    with pytest.raises(CheckpointError, match="it cannot be read"):
        load(path / "below a file")
    with pytest.raises(CheckpointError, match="null"):
        load("a\0b")


def test_a_file_that_may_not_be_read(path, two, monkeypatch):
    """Raised by hand: the superuser may read everything."""

    def refuse(name, *args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(CheckpointError, match=r"it cannot be read \(Permission denied\)"):
        load(path)


# ------------------------------------------------------------------------------ sudden deaths

CALLS = ("fsync", "link", "replace", "unlink", "open", "close")


class Killed(BaseException):
    pass


class Machine:
    """System calls that are counted, and fail from a given one on (or at that one only)."""

    def __init__(self, monkeypatch, *, stop=math.inf, error=None, links=True):
        self.calls, self.stop, self.error = [], stop, error
        for name in CALLS:
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name), links))

    def watched(self, name, call, links):
        def replacement(*args, **options):
            self.calls.append(name)
            if len(self.calls) == self.stop and self.error is not None:
                raise self.error
            if len(self.calls) >= self.stop and self.error is None:
                raise Killed
            if name == "link" and not links:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            return call(*args, **options)

        return replacement


def set_up(path, case):
    """Files as a run may find them, and the number that `load` returns for them."""
    if case != "nothing":
        save(path, *numbered(1))
        save(path, *numbered(2))
    if case == "the first":
        beside(path, ".previous").unlink()
    if case == "no file but the previous":
        path.unlink()
    if case == "a damaged one":
        path.write_bytes(path.read_bytes()[:-5])
    if case == "stale files":
        beside(path, ".partial").write_bytes(path.read_bytes()[:200])
        os.link(path, beside(path, ".former"))
    return {"nothing": None, "no file but the previous": 1, "a damaged one": 1}.get(case, 2)


def found(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        state = load(path)
    return None if state is None else number(state)


CASES = [
    "nothing", "the first", "two", "no file but the previous", "a damaged one", "stale files",
]  # fmt: skip


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_killed_between_any_two_system_calls(tmp_path, monkeypatch, case, links):
    for stop in range(1, 100):
        path = tmp_path / f"{stop}" / "state"
        path.parent.mkdir()
        before = set_up(path, case)
        with monkeypatch.context() as patch:
            machine = Machine(patch, stop=stop, links=links)
            try:
                save(path, *numbered(3))
                died = False
            except Killed:
                died = True
        assert found(path) in ((before, 3) if died else (3,)), stop
        save(path, *numbered(4))  # the next run clears up
        assert found(path) == 4
        left = {name.name for name in path.parent.iterdir()}
        assert left <= {"state", "state.previous"}
        if not died:
            break
    assert not died and len(machine.calls) >= 8


@pytest.mark.thinned(2)
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_an_error_at_any_system_call(tmp_path, monkeypatch, case, links, error):
    """It comes through, or does not matter; no damage, and no partial file stays."""
    raised = 0
    for stop in range(1, 100):
        path = tmp_path / f"{stop}" / "state"
        path.parent.mkdir()
        before = set_up(path, case)
        with monkeypatch.context() as patch:
            machine = Machine(patch, stop=stop, error=error, links=links)
            try:
                save(path, *numbered(3))
                expected = {3}
            except type(error):
                expected = {before, 3}
                raised += 1
        assert found(path) in expected, stop
        if len(machine.calls) < stop:
            break
        if machine.calls[stop - 1] != "unlink":
            assert not beside(path, ".partial").exists() and not beside(path, ".former").exists()
    assert len(machine.calls) < stop and raised >= 2


def test_the_new_file_is_on_the_disk_before_the_old_one_is_touched(path, two, monkeypatch):
    machine = Machine(monkeypatch)
    save(path, *numbered(3))
    assert [call for call in machine.calls if call != "unlink"] == [
        "fsync", "link", "replace", "open", "fsync", "close", "replace",
    ]  # fmt: skip


def test_a_full_disk(path, two, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, *numbered(3))
    assert sorted(os.listdir(path.parent)) == ["state.ckpt", "state.ckpt.previous"]
    assert number(load(path)) == 2


RUN = """
    import itertools, sys
    import numpy as np
    from drago.files.checkpoint import load, save

    state = load(sys.argv[1])
    first = 0 if state is None else state[1]["k"]
    for k in itertools.count(first + 1):
        save(sys.argv[1], {"w": np.full(20_000 + k % 9, k), "k": np.array(k)}, {"k": k})
        print(k, flush=True)
"""


def test_a_disk_that_is_full_leaves_what_was_saved_before(small_disk):
    path = small_disk / "state.ckpt"
    save(path, *numbered(1))
    with pytest.raises(OSError, match="No space left") as found:
        save(path, {"w": np.zeros(50_000)}, {})
    assert found.value.errno == errno.ENOSPC
    assert number(load(path)) == 1 and os.listdir(small_disk) == ["state.ckpt"]
    save(path, *numbered(2))
    assert number(load(path)) == 2


def test_a_solve_goes_on_where_its_checkpoint_finds_no_room(small_disk):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 3))
    problem = drago.DROProblem(X, X[:, 0] + rng.normal(size=20_000), fit_intercept=True)
    path = small_disk / "state.ckpt"
    method = drago.LBFGS(metric="auto")
    with pytest.warns(UserWarning, match="could not be saved .*No space left") as found:
        result = drago.solve(problem, method, tol=1e-8, checkpoint=path, checkpoint_every=0.0)
    assert sum("could not be saved" in str(each.message) for each in found) == 1
    assert result.status == "optimal" and os.listdir(small_disk) == []


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_for_real(path, times):
    rng = random.Random(1)
    last = 0
    for _ in range(times):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RUN), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            reports = [process.stdout.readline()]
            try:
                process.wait(rng.uniform(0, 0.05))
            except subprocess.TimeoutExpired:
                process.kill()
            output, complaints = process.communicate()
        assert complaints == ""
        reports += output.splitlines()
        arrays, settings = load(path)
        k = settings["k"]
        assert int(reports[0]) == last + 1 and k - int(reports[-1]) in (0, 1)
        assert same((arrays, settings), {"w": np.full(20_000 + k % 9, k), "k": k}, {"k": k})
        endings = {name.removeprefix(path.name) for name in os.listdir(path.parent)}
        assert endings <= {"", ".previous", ".partial", ".former"}
        last = k


# -------------------------------------------------------------------------------- fingerprints


@given(ARRAYS)
def test_the_fingerprint_of_an_array_is_that_of_its_values(array):
    expected = fingerprint(array)
    assert re.fullmatch("[0-9a-f]{64}", expected)
    for other in (array.copy(order="F"), array[...], np.repeat(array[..., None], 2, -1)[..., 0]):
        other.flags.writeable = False
        assert fingerprint(other) == expected


def test_large_and_strided_arrays():
    array = np.random.default_rng(0).normal(size=(3, 500, 700))
    for view in (array, array.T, array[:, ::-1, 3:], np.broadcast_to(array[:, :1], array.shape)):
        assert fingerprint(view) == fingerprint(view.copy())
    changed = array.copy()
    changed[-1, -1, -1] = np.nextafter(changed[-1, -1, -1], 9)
    assert fingerprint(changed) != fingerprint(array)


A = np.array([1.0, 2.0, 3.0, 4.0])
DISTINCT = [
    (), (None,), (None, None), (True,), (False,), (0,), (1,), (-1,), (10,), (1, 0), (2**200,),
    (0.0,), (-0.0,), (1.0,), (math.inf,), (math.nan,), ("",), ("", ""), ("None",), ("1",),
    ("ab",), ("a", "b"), ("str 1 a",), ("ü",), ("\ud800",), (A,), (A, A), (A[:3], A[3:]),
    (A[::-1],), (A.reshape(2, 2),), (A.reshape(2, 2).T,), (A.reshape(4, 1),),
    (A.astype(np.float32),), (A.astype(">f8"),), (A.view(np.int64),), (A.tobytes().hex(),),
    (A[:0],), (A[:0].reshape(0, 3),), (np.zeros((3, 0)),), (np.array(1),), (np.array(1.0),),
    (np.array([1.0]),), (np.array([-0.0]),), (np.array([0.0]),), (np.array([True]),),
    (np.array([1], dtype=np.uint8),),
    (sp.csr_matrix(np.eye(2)),), (sp.csr_matrix(np.eye(3)),), (sp.csr_matrix((2, 2)),),
    (sp.csr_matrix(np.eye(2, 3)),), (sp.csr_matrix(np.eye(2)[::-1]),), (np.eye(2),),
]  # fmt: skip


def test_fingerprints_tell_parts_apart():
    prints = [fingerprint(*parts) for parts in DISTINCT]
    assert len(set(prints)) == len(prints)
    assert prints == [fingerprint(*parts) for parts in DISTINCT]


def test_equal_parts_have_equal_fingerprints():
    assert fingerprint(np.float64(0.1)) == fingerprint(0.1)
    assert fingerprint(np.int64(3)) == fingerprint(np.array(3, dtype=np.int64))
    assert fingerprint(sp.csr_array(np.eye(3))) == fingerprint(sp.csr_matrix(np.eye(3)))


def test_a_fingerprint_is_the_same_in_every_version():
    """Else a new version would refuse the checkpoints of the old one."""
    parts = (np.arange(3.0), sp.csr_matrix(np.eye(2)), "cvar", 3, 0.5, None, True)
    expected = "c3b70d026501ac457d142014bbfb5bd391aa51d733e6176b06875332eb7a1530"
    assert fingerprint(*parts) == expected


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ([1.0], r"but \[1.0\] \(list\) was given"),
        (b"ab", r"\(bytes\)"),
        (1j, r"\(complex\)"),
        (sp.csc_matrix(np.eye(2)), "csc"),
        (np.array(["a", None], dtype=object), "dtype object was given; convert it"),
    ],
)
def test_other_parts_are_refused(part, message):
    with pytest.raises(TypeError, match=message):
        fingerprint(part)
