"""The state of a solve in one file, from which it goes on bit for bit.

A checkpoint is an uncompressed ``.npz`` archive: one ``.npy`` per array, the settings as JSON,
and a last line with the version of the format and a SHA-256 of all that comes before. At every
instant the file or the one saved before it is whole, whenever the process is killed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import warnings
import zipfile
from contextlib import suppress
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from drago._validation import shown

Array = npt.NDArray[Any]
State = tuple[dict[str, Array], dict[str, Any]]
Path = str | os.PathLike[str]

FORMAT = 1
_SETTINGS = "drago-checkpoint.json"
# Later formats keep this line, so that a file can always be told by it.
_LAST_LINE = re.compile(rb"drago checkpoint (\d{1,9}) sha256 ([0-9a-f]{64})\Z")
_DIGEST_SIZE = 64
_BLOCK = 2**20


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, foreign, or of another version or problem."""


def save(path: Path, arrays: dict[str, Array], settings: dict[str, Any]) -> None:
    """Save arrays and settings; what was saved before stays beside it as ``<path>.previous``.

    Parameters
    ----------
    path : str or path
        The file, under exactly this name. One process at a time may save to it.
    arrays : dict
        Arrays of any shape and dtype but object. Names are of letters, digits, ``_ . -``.
    settings : dict
        What JSON can hold, with str as keys; tuples come back as lists.
    """
    path = os.fsdecode(path)
    arrays = {name: _storable(name, array) for name, array in arrays.items()}
    if not isinstance(settings, dict):
        raise TypeError(
            f"settings must be a dict, but {shown(settings)} ({type(settings).__name__}) was given."
        )
    _require_text_keys(settings)
    text = json.dumps(settings)
    for name in (path, _previous(path)):
        if os.path.isdir(name):  # without hard links, it would be moved out of the way
            raise IsADirectoryError(errno.EISDIR, "A checkpoint cannot replace a folder", name)
    partial, former = f"{path}.partial", f"{path}.former"
    _discard(partial, former)  # of a run that was killed
    try:
        with open(partial, "xb+") as file:
            _write(file, arrays, text)
            file.flush()
            os.fsync(file.fileno())
        _install(partial, former, path)
    finally:
        _discard(partial, former)


def load(path: Path) -> State | None:
    """The arrays and settings last saved to `path`, or None where nothing was.

    Where the file is damaged, the one saved before it is used, with a warning. Nothing in a file
    is ever unpickled or run.

    Raises
    ------
    CheckpointError
        Where there are files, but none of them can be used.
    """
    path = os.fsdecode(path)
    previous = _previous(path)
    damage = None
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except CheckpointError as error:
        damage = f"The checkpoint {path} cannot be used: {error}"
    try:
        state = _read(previous)
    except FileNotFoundError:
        if damage is None:
            return None
        raise CheckpointError(f"{damage}. Delete it to start anew.") from None
    except CheckpointError as error:
        if damage is None:
            damage = f"The checkpoint {previous} cannot be used: {error}. Delete it"
        else:
            damage += f"; nor can {previous}, saved before it: {error}. Delete both"
        raise CheckpointError(f"{damage} to start anew.") from None
    if damage is not None:
        warnings.warn(f"{damage}. {previous}, saved before it, is used.", UserWarning, stacklevel=2)
    return state


def fingerprint(*parts: Any) -> str:
    """A SHA-256 of arrays, CSR matrices, str, int, float, bool and None, as a hex string.

    It tells apart types, dtypes, shapes and bits (-0.0 is not 0.0), but not the layout in memory:
    a transposed or strided view has the fingerprint of its copy.
    """
    digest = hashlib.sha256()

    def add_text(kind: str, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{kind} {len(data)} ".encode())
        digest.update(data)

    def add_array(array: Array) -> None:
        if array.dtype.hasobject:
            raise TypeError(
                "fingerprint takes arrays of numbers, but one of dtype object was given; "
                "convert it to float first."
            )
        add_text("array", f"{npy.dtype_to_descr(array.dtype)} {array.shape}")
        if array.nbytes == 0:
            return
        blocks = np.nditer(
            array,
            flags=["external_loop", "buffered"],
            order="C",
            buffersize=max(1, _BLOCK // array.itemsize),
        )
        for block in blocks:  # views where the array is contiguous
            digest.update(np.ascontiguousarray(block).view(np.uint8).data)

    for part in parts:
        if isinstance(part, str):
            add_text("str", part)
        elif part is None or isinstance(part, bool):
            add_text("constant", str(part))
        elif isinstance(part, int):
            add_text("int", f"{part:x}")
        elif isinstance(part, float):
            add_text("float", float(part).hex())
        elif isinstance(part, (np.ndarray, np.generic)):
            add_array(np.asarray(part))
        elif getattr(part, "format", None) == "csr":
            add_text("csr", str(tuple(map(int, part.shape))))
            for array in (part.data, part.indices, part.indptr):
                add_array(array)
        else:
            raise TypeError(
                "fingerprint takes arrays, CSR matrices, str, int, float, bool and None, but "
                f"{shown(part)} ({type(part).__name__}) was given."
            )
    return digest.hexdigest()


# ------------------------------------------------------------------------------------- writing


def _previous(path: str) -> str:
    return f"{path}.previous"


def _storable(name: str, array: Array) -> Array:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
        raise ValueError(
            "The name of an array in a checkpoint must be 1 to 100 letters, digits, '_', '.' or "
            f"'-', but {shown(name)} was given."
        )
    array = np.asarray(array)
    if array.dtype.hasobject or npy.descr_to_dtype(npy.dtype_to_descr(array.dtype)) != array.dtype:
        raise TypeError(
            f"A checkpoint holds arrays of plain dtypes, but {name} has dtype {array.dtype}, "
            "which only pickle could store; convert it first."
        )
    return array


def _require_text_keys(value: Any) -> None:
    """JSON would turn other keys to str without a word."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    "The settings of a checkpoint must have str as keys, but "
                    f"{shown(key)} ({type(key).__name__}) was given."
                )
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        _require_text_keys(item)


def _write(file: IO[bytes], arrays: dict[str, Array], text: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        # A ZipInfo of its own has a fixed date: the same state is the same bytes.
        archive.writestr(zipfile.ZipInfo(_SETTINGS), text)
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, array, version=(3, 0), allow_pickle=False)
        archive.comment = f"drago checkpoint {FORMAT} sha256 {'0' * _DIGEST_SIZE}".encode()
    digest = _digest(file)
    file.seek(-_DIGEST_SIZE, os.SEEK_END)
    file.write(digest)


def _digest(file: IO[bytes]) -> bytes:
    """The SHA-256 of a file but for the digest at its end."""
    digest = hashlib.sha256()
    left = file.seek(0, os.SEEK_END) - _DIGEST_SIZE
    file.seek(0)
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


def _install(partial: str, former: str, path: str) -> None:
    """Put the new file in its place and the one that was there in the place of the previous one.

    The previous one goes last: should the file at `path` be damaged, it is the only whole one
    until the new file is in place.
    """
    previous = _previous(path)
    try:
        os.link(path, former)
    except FileNotFoundError:
        pass  # nothing was saved so far
    except OSError:  # a file system without hard links
        with suppress(FileNotFoundError, CheckpointError):
            _read(path)
            os.replace(path, previous)
    os.replace(partial, path)
    _sync_folder(path)
    with suppress(FileNotFoundError):
        os.replace(former, previous)


def _sync_folder(path: str) -> None:
    with suppress(OSError):  # not every system can open a folder
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _discard(*names: str) -> None:
    for name in names:
        with suppress(OSError):
            os.unlink(name)


# ------------------------------------------------------------------------------------- reading


def _read(path: str) -> State:
    """The content of a file; `CheckpointError` says what is wrong, without the name."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would block
            raise CheckpointError("it is not a regular file")
        with open(path, "rb") as file:
            _verify(file)
            return _unpack(file)
    except (FileNotFoundError, CheckpointError):
        raise
    except OSError as error:
        raise CheckpointError(f"it cannot be read ({error.strerror or error})") from error
    except Exception as error:  # those who parse zip, npy and JSON raise almost anything
        raise CheckpointError(
            f"it is not a checkpoint ({type(error).__name__}: {shown(str(error))})"
        ) from error


def _verify(file: IO[bytes]) -> None:
    start = file.read(30 + len(_SETTINGS))
    file.seek(max(0, file.seek(0, os.SEEK_END) - 128))
    line = _LAST_LINE.search(file.read())
    if line is None:
        # The first entry of the archive: its signature, and its name from byte 30 on.
        ours = b"PK\x03\x04".startswith(start[:4]) and _SETTINGS.encode().startswith(start[30:])
        raise CheckpointError("it is truncated" if ours else "it is not a checkpoint")
    if _digest(file) != line[2]:
        raise CheckpointError("it was changed: its SHA-256 does not match")
    if int(line[1]) != FORMAT:
        raise CheckpointError(
            f"it was written by format version {int(line[1])}, but this version of drago reads "
            f"{FORMAT}: use the drago that wrote it"
        )


def _unpack(file: IO[bytes]) -> State:
    size = file.seek(0, os.SEEK_END)
    arrays, settings = {}, None
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        # Anyone can compute a SHA-256: an archive that swells when unpacked is none of ours.
        stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not stored or sum(member.file_size for member in members) > size:
            raise CheckpointError("it is not a checkpoint (it is compressed)")
        for member in members:
            with archive.open(member) as content:
                if member.filename == _SETTINGS:
                    settings = json.loads(content.read())
                else:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = npy.read_array(content, allow_pickle=False)
    if not isinstance(settings, dict):
        raise CheckpointError("it is not a checkpoint (it has no settings)")
    return arrays, settings
