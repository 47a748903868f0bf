"""The folder in which the blocks of a source lie while they are needed, or longer.

Blocks are written to a folder of their own with a name that starts with ``temp-``. One that is to
be kept is renamed to ``kept-<digest>`` when it is whole, so that no reader ever sees half of one,
and of two processes that write the same one the second takes what the first has made. The others
are removed when nobody needs them any more; what a killed process has left is removed by the next
one, which knows it by a lock that nobody holds.
"""

from __future__ import annotations

import os
import shutil
import uuid
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from drago import datasets
from drago.files.archive import FileKind, State
from drago.files.disk import is_in_memory
from drago.sources.memory import as_text

FORMAT = 2
_FULL = "the disk is full"
_ERRNO = {28: _FULL, 122: "the disk quota is spent", 27: "files may not become that large"}


class CacheError(OSError):
    """The blocks of a source cannot be written to their folder.

    Examples
    --------
    >>> import drago
    >>> issubclass(drago.CacheError, OSError)
    True
    """


class _DamagedError(ValueError):
    """A kept folder that cannot be used."""


_KIND = FileKind("blocks", FORMAT, _DamagedError)
_META = "blocks.npz"


def default_dir() -> str:
    """``drago/blocks`` in the user's cache directory."""
    return str(datasets.cache_dir() / "blocks")


class Folder:
    """A folder of blocks that this process has made or found.

    Parameters
    ----------
    path : str
    owned : bool
        Whether it is removed with this object, or at the end of the process.
    lock : int, optional
        The open file that says whose it is.
    """

    def __init__(self, path: str, owned: bool, lock: int | None = None) -> None:
        self.path, self._lock = path, lock
        self._finalizer = weakref.finalize(self, _remove, path, self._lock, os.getpid())
        self._finalizer.atexit = owned
        if not owned:
            self._finalizer.detach()

    @classmethod
    def new(cls, cache_dir: str, warns: bool = True) -> Folder:
        """A new folder, which is this process's until it is kept."""
        name = uuid.uuid4().hex
        path, unlocked = (os.path.join(cache_dir, f"{kind}-{name}") for kind in ("temp", "new"))
        try:
            os.makedirs(cache_dir, exist_ok=True)
            _sweep(cache_dir)
            os.mkdir(unlocked, 0o700)
            lock = _locked(os.path.join(unlocked, "lock"))
            os.rename(unlocked, path)  # before it is locked, others might sweep it
        except OSError as error:
            raise failed(cache_dir, error) from error
        if warns and is_in_memory(cache_dir):
            warnings.warn(
                f"the block cache {cache_dir} lies in memory (tmpfs), where it takes what it was "
                "meant to spare; give cache_dir= a folder on a disk.",
                UserWarning,
                stacklevel=2,
            )
        return cls(path, True, lock)

    def file(self, name: str) -> str:
        """The path of one of its files."""
        return os.path.join(self.path, name)

    def discard(self) -> None:
        """Remove it, where it is this process's."""
        self._finalizer()

    def keep(self, cache_dir: str, digest: str, state: State) -> Folder:
        """This folder under a name by which it is found again, or the one that was there first."""
        target = _kept(cache_dir, digest)
        try:
            _KIND.write(self.file(_META), _KIND.check(*state))
            try:
                os.rename(self.path, target)
            except OSError:
                if not os.path.isfile(os.path.join(target, _META)):
                    raise
                self.discard()
                return Folder(target, owned=False)
        except OSError as error:
            self.discard()
            raise failed(cache_dir, error) from error
        self._finalizer.detach()
        with suppress(OSError):
            os.unlink(os.path.join(target, "lock"))
        _unlock(self._lock)
        return Folder(target, owned=False)

    @staticmethod
    def find(cache_dir: str, digest: str) -> tuple[Folder, State] | None:
        """What was kept under this name, where it is there and whole."""
        path = _kept(cache_dir, digest)
        try:
            return Folder(path, owned=False), _KIND.read(os.path.join(path, _META))
        except FileNotFoundError:
            return None
        except _DamagedError as error:
            warnings.warn(
                f"the block cache {path} cannot be used ({error}); it is made anew.",
                UserWarning,
                stacklevel=2,
            )
            Folder.forget(cache_dir, digest)
            return None

    @staticmethod
    def forget(cache_dir: str, digest: str) -> None:
        """Remove what was kept under this name."""
        shutil.rmtree(_kept(cache_dir, digest), ignore_errors=True)


def require_room(cache_dir: str, size: int) -> None:
    """An error where a disk has less room than is about to be written."""
    place = Path(cache_dir)
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size:
        raise CacheError(
            f"the block cache needs {as_text(size)}, but {cache_dir} has room for "
            f"{as_text(free)}; give cache_dir= a folder on a larger disk, fewer features=, or "
            "dtype='float32' where that is enough."
        )


def failed(cache_dir: str, error: OSError) -> CacheError:
    """The error to raise where a folder cannot be written to."""
    reason = _ERRNO.get(error.errno or 0, error.strerror or str(error))
    return CacheError(
        f"the block cache in {cache_dir} could not be written: {reason}. Nothing of it was left "
        "there; give cache_dir= a folder on a disk with room that you may write to."
    )


def _kept(cache_dir: str, digest: str) -> str:
    return os.path.join(cache_dir, f"kept-{digest[:32]}")


def _locked(path: str) -> int | None:
    """A file that is locked as long as this process lives; None where that cannot be done."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    handle = None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _unlock(handle)
        return None
    return handle


def _unlock(handle: int | None) -> None:
    if handle is not None:
        with suppress(OSError):
            os.close(handle)


def _remove(path: str, lock: int | None, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that needs it
        return
    shutil.rmtree(path, ignore_errors=True)
    _unlock(lock)


def _sweep(cache_dir: str) -> None:
    """Remove folders of processes that were killed."""
    for entry in os.scandir(cache_dir):
        lock = os.path.join(entry.path, "lock")
        if not entry.name.startswith("temp-") or not os.path.isfile(lock):
            continue
        handle: Any = _locked(lock)
        if handle is not None:
            shutil.rmtree(entry.path, ignore_errors=True)
            _unlock(handle)
