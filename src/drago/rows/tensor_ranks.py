"""The ranks of a process group: each holds some of the rows, and all take the same decisions.

Numbers of all ranks are gathered and added in the order of the ranks, by every rank for itself. So
all of them have the same bits, and so has every run with as many ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from drago._validation import shown

# Its name changed.
_GATHER: Any = next(
    (
        getattr(dist, name)
        for name in ("all_gather_single", "all_gather_into_tensor")
        if hasattr(dist, name)
    ),
    None,
)
# Whether a group of one rank talks to itself; only to measure what that costs.
ALWAYS = False


def as_group(process_group: Any) -> Any:
    """The group that is meant: None for this process alone.

    Parameters
    ----------
    process_group : process group, None or False
        None is the default group where that is initialised, False no group.
    """
    if process_group is False or not dist.is_available():
        return None
    if process_group is None:
        return dist.group.WORLD if dist.is_initialized() else None
    if not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            "process_group must be a process group of torch.distributed, None (the default group, "
            f"where there is one) or False (this process alone), but {shown(process_group)} was "
            "given."
        )
    if dist.get_rank(process_group) < 0:
        raise ValueError(
            "this process does not belong to process_group: only its ranks can share the rows."
        )
    return process_group


class Ranks:
    """The ranks that share the rows of a store.

    Parameters
    ----------
    group : process group or None
        None for this process alone.
    counts : sequence of int
        How many rows each rank has.

    Attributes
    ----------
    size, rank : int
        How many ranks there are, and which one this is.
    is_alone : bool
        Whether sums over the rows are this rank's own.
    start : int
        How many rows the ranks before this one have.
    n_samples : int
        Rows of all ranks.
    """

    def __init__(self, group: Any, counts: Any) -> None:
        self.group, self.counts = group, tuple(counts)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.is_alone = group is None or (self.size == 1 and not ALWAYS)
        self.start, self.n_samples = sum(self.counts[: self.rank]), sum(self.counts)

    @classmethod
    def of(cls, group: Any, n_here: int) -> Ranks:
        """With so many rows here; the ranks tell each other."""
        if group is None:
            return cls(None, (n_here,))
        alone = cls(group, (0,) * dist.get_world_size(group))
        return alone.anew(n_here)

    def anew(self, n_here: int) -> Ranks:
        """The same ranks with other rows."""
        if self.is_alone:
            return Ranks(self.group, (n_here,))
        found = self._all(torch.tensor([n_here], dtype=torch.int64))
        return Ranks(self.group, found[:, 0].tolist())

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self

    def __reduce__(self) -> Any:
        if self.is_alone:
            return Ranks, (None, self.counts)
        raise TypeError("rows that are shared by the ranks of a process group cannot be pickled.")

    # ------------------------------------------------------------------------- tensors

    @cached_property
    def _backends(self) -> dict[str, str]:
        pairs = str(dist.get_backend_config(self.group)).split(",")
        return dict(pair.split(":") for pair in pairs)

    def _sent(self, values: Tensor) -> Tensor:
        """Where the group can send it from."""
        known = self._backends.get(values.device.type)
        if known is not None and (known != "gloo" or values.device.type == "cpu"):
            return values
        return values.to("cpu" if "cpu" in self._backends else "cuda")

    def _all(self, values: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, below each other."""
        sent = self._sent(values).reshape(-1)
        out = sent.new_empty(self.size * sent.shape[0])
        if out.shape[0]:
            _GATHER(out, sent, group=self.group)
        return out.view(self.size, *values.shape).to(values.device)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks, in their order."""
        return values if self.is_alone else self._all(values).sum(0)

    def sums(self, *values: Tensor) -> list[Tensor]:
        """The same for several tensors in one exchange."""
        if self.is_alone:
            return list(values)
        flat = self.sum(torch.cat([each.reshape(-1) for each in values]))
        parts = flat.split([each.numel() for each in values])
        return [part.view(each.shape) for part, each in zip(parts, values)]

    def most(self, values: Tensor) -> Tensor:
        """The greatest entries of all ranks."""
        return values if self.is_alone else self._all(values).amax(0)

    def joined(self, values: Tensor, counts: Any = None) -> Tensor:
        """Vectors of all ranks, one after the other; by default those of their rows."""
        if self.is_alone:
            return values
        if counts is None:
            counts = self.counts
        more = max(counts) - int(values.shape[0])
        parts = self._all(pad(values, (0, 0) * (values.ndim - 1) + (0, more)))
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    def gathered(self, values: Tensor) -> Tensor:
        """The same for vectors of any length, which the ranks tell each other first."""
        if self.is_alone:
            return values
        return self.joined(values, self.anew(int(values.shape[0])).counts)

    def own(self, values: Any) -> Any:
        """This rank's rows of a vector of all."""
        return values if self.is_alone else values[self.start : self.start + self.counts[self.rank]]

    # ------------------------------------------------------------------- words and decisions

    def said(self, value: float) -> float:
        """What the first rank says."""
        if self.is_alone:
            return value
        return float(self._broadcast(torch.tensor([value], dtype=torch.float64))[0])

    def _broadcast(self, values: Tensor) -> Tensor:
        told = self._sent(values)
        dist.broadcast(told, dist.get_global_rank(self.group, 0), group=self.group)
        return told

    def is_any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        return flag if self.is_alone else bool(self.most(torch.tensor([float(flag)]))[0] > 0)

    def texts(self, text: str) -> list[str]:
        """The texts of all ranks."""
        if self.is_alone:
            return [text]
        letters = torch.from_numpy(np.frombuffer(text.encode() or b" ", dtype=np.uint8).copy())
        sizes = self.anew(int(letters.shape[0])).counts
        parts = self.joined(letters, sizes).split(list(sizes))
        return [bytes(part.tolist()).decode().strip() for part in parts]

    def require_alike(self, **facts: Any) -> None:
        """Raise on all ranks where they were not given the same."""
        for rank, text in enumerate(said := self.texts(json.dumps(facts))):
            if text != said[0]:
                here, there = json.loads(said[0]), json.loads(text)
                name = next(name for name in here if here[name] != there[name])
                raise ValueError(
                    f"the ranks of a process group solve one problem together, but {name} is "
                    f"{here[name]!r} on rank 0 and {there[name]!r} on rank {rank}: give all of "
                    "them the same, or process_group=False for a problem of each."
                )

    def numbers(self, labels: Any) -> Any:
        """Labels as integers 0, 1, ... in the order of the labels of all ranks."""
        distinct, place = np.unique(labels, return_inverse=True)
        if self.is_alone:
            return place.reshape(-1)
        try:
            said = [json.loads(text) for text in self.texts(json.dumps(distinct.tolist()))]
        except TypeError:
            raise TypeError(
                "groups of rows that ranks share must be numbers or texts, but are "
                f"{distinct.dtype}; number them."
            ) from None
        number = {label: k for k, label in enumerate(sorted(set().union(*said)))}
        codes = np.array([number[label] for label in distinct.tolist()], dtype=np.int64)
        return codes[place.reshape(-1)]

    def agreed(self, work: Callable[[], Any]) -> Any:
        """What `work` returns here; an error on one rank is an error on all of them."""
        found, error = None, None
        try:
            found = work()
        except Exception as caught:
            error = caught
        said = self.texts("" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(said):
            if text:
                raise ValueError(f"rank {rank} of {self.size} failed: {text}")
        return found

    def shared(self, work: Callable[[], Any]) -> Any:
        """Arrays and settings, or None, that `work` finds on the first rank, on all of them."""
        if self.is_alone:
            return work()
        state = self.agreed(work if self.rank == 0 else lambda: None)
        text = ""
        if self.rank == 0 and state is not None:
            shapes = {name: [array.dtype.str, array.shape] for name, array in state[0].items()}
            text = json.dumps([shapes, state[1]])
        text = self.texts(text)[0]
        if not text:
            return None
        shapes, settings = json.loads(text)
        arrays = {}
        for name, (kind, shape) in shapes.items():
            values = np.empty(shape, kind) if state is None else np.array(state[0][name], order="C")
            flat = torch.from_numpy(values.reshape(-1).view(np.uint8))
            if flat.shape[0]:
                flat.copy_(self._broadcast(flat))
            arrays[name] = values
        return arrays, settings
