"""Arrays and settings in one file: what checkpoints and model files are made of.

An archive is an uncompressed ``.npz``: one ``.npy`` per array, the settings as JSON, and a last
line with the kind of file, the version of its format and a SHA-256 of all that comes before.
Nothing in it is ever unpickled or run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from drago._validation import shown

Array = npt.NDArray[Any]
State = tuple[dict[str, Array], dict[str, Any]]
"""What a file gives back: its arrays by name, and its settings."""
Content = tuple[dict[str, Array], str]
"""The same as it is written: the settings are JSON."""
Path = str | os.PathLike[str]
Room = Callable[[int], Array]
"""From a number of entries to an array of float64 for them."""

NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
"""What an array may be called."""
BLOCK = 2**20
# Bytes from which on an array is long.
_LONG = 2**20
# Later formats keep this line, so that a file can always be told by it.
_LAST_LINE = re.compile(rb"drago ([a-z]{1,20}) (\d{1,9}) sha256 ([0-9a-f]{64})\Z")
_DIGEST_SIZE = 64


@dataclass(frozen=True)
class FileKind:
    """One kind of file: what it is called, the version of its format, and its error.

    Parameters
    ----------
    label : str
        A word in lower case.
    version : int
    error : class of ValueError
        Raised for a file that cannot be used.
    """

    label: str
    version: int
    error: type[ValueError]

    # ---------------------------------------------------------------- writing

    def check(self, arrays: dict[str, Array], settings: dict[str, Any]) -> Content:
        """Arrays and settings in the form in which they are written, or an error.

        Parameters
        ----------
        arrays : dict
            Arrays of any shape and dtype but object, under names that match `NAME`.
        settings : dict
            What JSON can hold, with str as keys; tuples come back as lists.
        """
        arrays = {name: self._storable(name, array) for name, array in arrays.items()}
        if not isinstance(settings, dict):
            raise TypeError(
                f"settings must be a dict, but {shown(settings)} "
                f"({type(settings).__name__}) was given."
            )
        self._require_text_keys(settings)
        return arrays, json.dumps(settings)

    def place(self, path: str) -> str:
        """Where a file of this name is to be written: a link stays, and what it names is replaced.

        Raise where anything but a file is there.
        """
        self.refuse_others(path)
        return os.path.realpath(path) if os.path.islink(path) else path

    def refuse_others(self, path: str, follow: bool = True) -> None:
        """Raise where what has this name is no file, and with `follow` not a link to one either."""
        try:
            mode = os.stat(path, follow_symlinks=follow).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, f"A {self.label} cannot replace a folder", path)
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FileExistsError(
                errno.EEXIST, f"A {self.label} cannot replace a device, a pipe or a socket", path
            )

    def write(self, path: str, content: Content) -> None:
        """Write a new file, down to the disk."""
        arrays, text = content
        with open(path, "xb+") as file:
            with zipfile.ZipFile(file, "w") as archive:
                # A ZipInfo of its own has a fixed date: the same content is the same bytes.
                archive.writestr(zipfile.ZipInfo(self._settings), text)
                for name, array in arrays.items():
                    entry = zipfile.ZipInfo(f"{name}.npy")
                    with archive.open(entry, "w", force_zip64=True) as member:
                        npy.write_array(member, array, version=(3, 0), allow_pickle=False)
                line = f"drago {self.label} {self.version} sha256 {'0' * _DIGEST_SIZE}"
                archive.comment = line.encode()
            digest = _digest(file)
            file.seek(-_DIGEST_SIZE, os.SEEK_END)
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())

    @property
    def _settings(self) -> str:
        return f"drago-{self.label}.json"

    def _storable(self, name: str, array: Array) -> Array:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"The name of an array in a {self.label} must be 1 to 100 letters, digits, '_', "
                f"'.' or '-', but {shown(name)} was given."
            )
        array = np.asarray(array)
        dtype = array.dtype
        if dtype.hasobject or npy.descr_to_dtype(npy.dtype_to_descr(dtype)) != dtype:
            raise TypeError(
                f"A {self.label} holds arrays of plain dtypes, but {name} has dtype {dtype}, "
                "which only pickle could store; convert it first."
            )
        return array

    def _require_text_keys(self, value: Any) -> None:
        """JSON would turn other keys to str without a word."""
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(
                        f"The settings of a {self.label} must have str as keys, but "
                        f"{shown(key)} ({type(key).__name__}) was given."
                    )
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            return
        for item in value:
            self._require_text_keys(item)

    # ---------------------------------------------------------------- reading

    def read(self, path: str, room: Room | None = None) -> State:
        """The content of a file; an error of this kind says what is wrong, without the name.

        Parameters
        ----------
        path : str
        room : callable, optional
            From a number of entries to an array of float64 for them: where long ones go.
        """
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would block
                raise self.error("it is not a regular file")
            with open(path, "rb") as file:
                self._verify(file)
                return self._unpack(file, room)
        except (FileNotFoundError, self.error):
            raise
        except OSError as error:
            raise self.error(f"it cannot be read ({error.strerror or error})") from error
        except Exception as error:  # those who parse zip, npy and JSON raise almost anything
            raise self.error(
                f"it is not a {self.label} ({type(error).__name__}: {shown(str(error))})"
            ) from error

    def _verify(self, file: IO[bytes]) -> None:
        start = file.read(30 + len(self._settings))
        file.seek(max(0, file.seek(0, os.SEEK_END) - 128))
        line = _LAST_LINE.search(file.read())
        if line is None:
            # The first entry of the archive: its signature, and its name from byte 30 on.
            signed = b"PK\x03\x04".startswith(start[:4])
            ours = signed and self._settings.encode().startswith(start[30:])
            raise self.error("it is truncated" if ours else f"it is not a {self.label}")
        label, version = line[1].decode(), int(line[2])
        if _digest(file) != line[3]:
            raise self.error("it was changed: its SHA-256 does not match")
        if label != self.label:
            raise self.error(f"it is not a {self.label} but a {label} of drago")
        if version != self.version:
            raise self.error(
                f"it was written by format version {version}, but this version of drago reads "
                f"{self.version}: use the drago that wrote it"
            )

    def _unpack(self, file: IO[bytes], room: Room | None) -> State:
        size = file.seek(0, os.SEEK_END)
        arrays, settings = {}, None
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            # Anyone can compute a SHA-256: an archive that swells when unpacked is none of ours.
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            if not stored or sum(member.file_size for member in members) > size:
                raise self.error(f"it is not a {self.label} (it is compressed)")
            for member in members:
                with archive.open(member) as content:
                    if member.filename == self._settings:
                        settings = json.loads(content.read())
                    else:
                        name = member.filename.removesuffix(".npy")
                        is_long = room is not None and member.file_size > _LONG
                        arrays[name] = _array(content, room if is_long else None)
        if not isinstance(settings, dict):
            raise self.error(f"it is not a {self.label} (it has no settings)")
        return arrays, settings


def _array(content: IO[bytes], room: Room | None) -> Array:
    """An array of an archive; one of float64 in the room, where there is one."""
    if room is not None:
        npy.read_magic(content)
        # That of version 3, whose text differs for names of fields alone.
        shape, by_columns, dtype = npy.read_array_header_2_0(content)
        if dtype == np.float64:
            out = room(int(np.prod(shape)))
            left = out.view(np.uint8).data
            while left:
                block = content.read(min(len(left), BLOCK))
                if not block:
                    raise ValueError("an array ends too early")
                left[: len(block)] = block
                left = left[len(block) :]
            return out.reshape(shape[::-1]).T if by_columns else out.reshape(shape)
        content.seek(0)
    return npy.read_array(content, allow_pickle=False)


def _digest(file: IO[bytes]) -> bytes:
    """The SHA-256 of a file but for the digest at its end."""
    digest = hashlib.sha256()
    left = file.seek(0, os.SEEK_END) - _DIGEST_SIZE
    file.seek(0)
    while left > 0 and (block := file.read(min(left, BLOCK))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


def sync_folder(path: str) -> None:
    """Have the name of a file on the disk, where the system can do that."""
    with suppress(OSError):  # not every system can open a folder
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def discard(*names: str) -> None:
    """Delete files, where they are there."""
    for name in names:
        with suppress(OSError):
            os.unlink(name)


def require_shallow(tree: Any, most: int) -> None:
    """Raise where dicts and lists are nested more than so many levels deep."""
    here = [tree]
    for _ in range(most):
        lists = [list(node.values()) if isinstance(node, dict) else node for node in here]
        here = [item for items in lists if isinstance(items, list) for item in items]
    if here:
        raise ValueError(f"it is nested more than {most} levels deep")
