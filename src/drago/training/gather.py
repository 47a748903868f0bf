"""One batch from those of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad


def gather(group: Any, equal: bool, *columns: Tensor | None) -> tuple[list[Tensor | None], int]:
    """The columns of all ranks, one after the other, and where this rank's rows begin.

    All ranks have to give the same columns. With `equal` the number of rows is not exchanged.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            "this process does not belong to process_group: only the ranks of a group can form a "
            "batch together."
        )
    first = columns[0]
    assert first is not None
    sizes = [int(first.shape[0])] * world
    if not equal:
        own = torch.tensor(sizes[:1], device=first.device)
        sizes = torch.cat(_all(group, world, own)).tolist()
    most = max(sizes)
    joined: list[Tensor | None] = []
    for column in columns:
        if column is None:
            joined.append(None)
            continue
        parts = _all(group, world, pad(column, (0, most - int(column.shape[0]))))
        joined.append(torch.cat([part[:size] for part, size in zip(parts, sizes)]))
    return joined, sum(sizes[:rank])


def _all(group: Any, world: int, column: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(column) for _ in range(world)]
    dist.all_gather(parts, column.contiguous(), group=group)
    return parts
