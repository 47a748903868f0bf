"""Who runs the tasks: the workers of a Dask cluster, or threads of this process."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import Any

from drago._interrupts import poll
from drago._validation import shown

# Seconds between two looks at whether somebody wants to interrupt, and at the cluster's health.
_LOOK, _EXAMINE = 0.1, 1.0
# Tasks of a round for each thread of the cluster: a worker that is slow, or joins, leaves or takes
# some of them.
_TASKS_PER_THREAD = 2


class ClusterError(RuntimeError):
    """The cluster cannot go on: its scheduler or all of its workers are gone, or it gave up.

    Examples
    --------
    >>> import drago
    >>> issubclass(drago.ClusterError, RuntimeError)
    True
    """


class Engine:
    """Runs a function over columns of inputs; results stay where they were made until asked for.

    Attributes
    ----------
    received : int
        Bytes of arrays that came from the workers.
    """

    received = 0

    @property
    def tasks_at_once(self) -> int:
        """About how many tasks a round should have."""
        raise NotImplementedError

    def map(
        self, function: Callable[..., Any], *columns: Sequence[Any], name: str, **given: Any
    ) -> list[Any]:
        """The handles of ``function(*row, **given)`` for each row of the columns."""
        raise NotImplementedError

    def gather(self, handles: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
        """The values behind some handles; where that ends early, they and `others` are dropped."""
        raise NotImplementedError

    def blocks(self, delayed: Sequence[Any]) -> list[Any]:
        """The handles of Dask objects, which are computed."""
        raise NotImplementedError

    def delayed(self, handle: Any) -> Any:
        """A handle as a Dask object, for collections that are made of them."""
        raise NotImplementedError


class LocalEngine(Engine):
    """Threads of this process; handles are the values themselves."""

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        self._threads = cores or os.cpu_count() or 1

    def __repr__(self) -> str:
        return f"{self._threads} threads of this process"

    @property
    def tasks_at_once(self) -> int:
        return _TASKS_PER_THREAD * self._threads

    def map(
        self, function: Callable[..., Any], *columns: Sequence[Any], name: str, **given: Any
    ) -> list[Any]:
        with ThreadPoolExecutor(self._threads) as pool:
            waiting = [pool.submit(function, *row, **given) for row in zip(*columns)]
            found = []
            for each in waiting:
                poll()
                found.append(each.result())
        return found

    def gather(self, handles: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
        poll()
        return list(handles)

    def blocks(self, delayed: Sequence[Any]) -> list[Any]:
        import dask

        return list(dask.compute(*delayed, scheduler="threads"))

    def delayed(self, handle: Any) -> Any:
        from dask import delayed

        return delayed(handle, pure=False, traverse=False)


class ClusterEngine(Engine):
    """The workers of a cluster.

    Parameters
    ----------
    client : distributed.Client

    Attributes
    ----------
    patience : float
        Seconds without any worker, or without a scheduler, after which it is given up.
    """

    patience = 60.0

    def __init__(self, client: Any) -> None:
        self.client, self._address = client, client.scheduler.address
        self._token, self._count = uuid.uuid4().hex[:8], itertools.count()

    def __repr__(self) -> str:
        return f"the cluster at {self._address}"

    def __reduce__(self) -> Any:
        raise TypeError(
            "rows on a cluster cannot be pickled or copied to another process: pickle the result "
            "or the fitted model, which hold no rows."
        )

    @property
    def tasks_at_once(self) -> int:
        threads = sum(self.client.nthreads().values())
        return _TASKS_PER_THREAD * max(threads, 1)

    def map(
        self, function: Callable[..., Any], *columns: Sequence[Any], name: str, **given: Any
    ) -> list[Any]:
        number = next(self._count)
        keys = [f"drago-{name}-{self._token}-{number}-{k}" for k in range(len(columns[0]))]
        self._require()
        return self.client.map(function, *map(list, columns), key=keys, pure=False, **given)

    def _require(self) -> None:
        if self.client.status not in ("running", "connecting"):
            raise ClusterError(
                f"the client of {self!r} is {self.client.status}: make a new one, and the problem "
                "with it; a solve with checkpoint= goes on from its file."
            )

    def gather(self, handles: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
        waiting = asyncio.run_coroutine_threadsafe(
            self.client.gather(list(handles), asynchronous=True), self.client.loop.asyncio_loop
        )
        examined = lost = time.monotonic()
        try:
            while True:
                poll()
                try:
                    found = waiting.result(timeout=_LOOK)
                    break
                except TimeoutError:
                    if waiting.done():
                        raise
                now = time.monotonic()
                if now - examined > _EXAMINE:
                    examined = now
                    trouble = self._trouble()
                    lost = lost if trouble else now
                    if trouble and now - lost > self.patience:
                        raise ClusterError(trouble)
        except BaseException as error:
            self._drop([*handles, *others])
            named = self._named(error)
            if named is error:
                raise
            raise named from error
        self.received += _size(found)
        return found

    def _trouble(self) -> str:
        """What is wrong with the cluster, as far as this side knows; nothing mostly."""
        remedy = "Start them again, and give the new client; checkpoint= goes on from its file."
        if self.client.status != "running":
            return f"the scheduler of {self!r} has not answered for {self.patience:g} s. {remedy}"
        if not self.client.scheduler_info(n_workers=-1)["workers"]:
            return f"all workers of {self!r} have been gone for {self.patience:g} s. {remedy}"
        return ""

    def _named(self, error: BaseException) -> BaseException:
        """An error of Dask's as one of ours, which says what to do."""
        kind = type(error).__name__
        if kind == "KilledWorker":
            return ClusterError(
                f"{self!r} gave up: {error} Mostly a worker had too little memory for its share of "
                "the rows: give the workers more, or have more of them."
            )
        if kind in ("FutureCancelledError", "CancelledError", "CommClosedError"):
            return ClusterError(
                f"{self!r} has lost what was computed there ({error}): its scheduler went away, or "
                "somebody cancelled it. Make a new client, and the problem with it; a solve with "
                "checkpoint= goes on from its file."
            )
        return error

    def _drop(self, futures: Sequence[Any]) -> None:
        """Leave no task behind."""
        if self.client.status == "running":
            coroutine = self.client.cancel(list(futures), asynchronous=True)
            asyncio.run_coroutine_threadsafe(coroutine, self.client.loop.asyncio_loop)

    def blocks(self, delayed: Sequence[Any]) -> list[Any]:
        self._require()
        return list(self.client.compute(list(delayed)))

    def delayed(self, handle: Any) -> Any:
        from dask.delayed import Delayed

        return Delayed(handle.key, {handle.key: handle})


def as_engine(client: Any) -> Engine:
    """The engine of a client; of None, that of the current one, or threads where there is none."""
    if isinstance(client, Engine):
        return client
    try:
        from distributed import Client, default_client
    except ImportError:
        if client is None:
            return LocalEngine()
        raise
    if client is None:
        try:
            client = default_client()
        except ValueError:
            return LocalEngine()
    if not isinstance(client, Client):
        raise TypeError(
            f"client must be a distributed.Client or None, but {shown(client)} was given."
        )
    if client.asynchronous:
        raise ValueError(
            "client= is asynchronous, but drago waits for its answers: give "
            "Client(..., asynchronous=False)."
        )
    return ClusterEngine(client)


def _size(value: Any) -> int:
    """Bytes of the arrays in something that was gathered."""
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 8))
