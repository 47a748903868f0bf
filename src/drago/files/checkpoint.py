"""The state of a solve in one file, from which it goes on bit for bit.

A checkpoint is an archive (`drago.files.archive`): arrays, settings and a SHA-256. At every instant
the file or the one saved before it is whole, whenever the process is killed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.lib import format as npy

from drago._validation import shown
from drago.files.archive import BLOCK, Array, FileKind, Path, Room, discard, sync_folder
from drago.files.archive import State as State

FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, foreign, or of another version or problem.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> path = os.path.join(tempfile.mkdtemp(), "run.npz")
    >>> with open(path, "w") as file:
    ...     _ = file.write("not a checkpoint")
    >>> try:
    ...     drago.solve(problem, "drago", checkpoint=path)
    ... except drago.CheckpointError as error:
    ...     print("refused")
    refused
    """


_KIND = FileKind("checkpoint", FORMAT, CheckpointError)


def save(path: Path, arrays: dict[str, Array], settings: dict[str, Any]) -> None:
    """Save arrays and settings; what was saved before stays beside it as ``<path>.previous``.

    Parameters
    ----------
    path : str or path
        The file, under exactly this name. One process at a time may save to it. A link stays, and
        the file that it names is replaced.
    arrays : dict
        Arrays of any shape and dtype but object. Names are of letters, digits, ``_ . -``.
    settings : dict
        What JSON can hold, with str as keys; tuples come back as lists.
    """
    content = _KIND.check(arrays, settings)
    path = place(path)
    partial, former = f"{path}.partial", f"{path}.former"
    discard(partial, former)  # of a run that was killed
    try:
        _KIND.write(partial, content)
        _install(partial, former, path)
    finally:
        discard(partial, former)


def place(path: Path) -> str:
    """The file that `save` writes: where a link leads, else the name itself.

    Raises
    ------
    OSError
        Where a folder, a device, a pipe or a socket is in its place, or in that of the files that
        lie beside it for a while.
    """
    path = _KIND.place(os.fsdecode(path))
    _KIND.refuse_others(_previous(path))  # without hard links, it would be moved out of the way
    for ending in ("partial", "former"):
        _KIND.refuse_others(f"{path}.{ending}", follow=False)
    return path


def load(path: Path, room: Room | None = None) -> State | None:
    """The arrays and settings last saved to `path`, or None where nothing was.

    Where the file is damaged, the one saved before it is used, with a warning. Nothing in a file
    is ever unpickled or run.

    Parameters
    ----------
    path : str or path
    room : callable, optional
        From a number of entries to an array of float64 for them: where arrays of more than a
        megabyte go.

    Raises
    ------
    CheckpointError
        Where there are files, but none of them can be used.
    """
    path = os.fsdecode(path)
    previous = _previous(os.path.realpath(path) if os.path.islink(path) else path)
    damage = None
    try:
        return _KIND.read(path, room)
    except FileNotFoundError:
        pass
    except CheckpointError as error:
        damage = f"The checkpoint {path} cannot be used: {error}"
    try:
        state = _KIND.read(previous, room)
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
            buffersize=max(1, BLOCK // array.itemsize),
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


def _previous(path: str) -> str:
    return f"{path}.previous"


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
            _KIND.read(path)
            os.replace(path, previous)
    os.replace(partial, path)
    sync_folder(path)
    with suppress(FileNotFoundError):
        os.replace(former, previous)
