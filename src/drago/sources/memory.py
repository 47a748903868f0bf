"""How much memory the rows of a source may take."""

from __future__ import annotations

import numbers
import os
import re
from pathlib import Path
from typing import Any

from drago._validation import shown

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{letter}I": 1024 ** (k + 1) for k, letter in enumerate("KMGT")}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
# Where Linux says how much a process and its relatives may use.
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# What is taken of it where nobody says otherwise.
_SHARE = 3


def as_bytes(value: Any) -> int:
    """A number of bytes, from a number or from text such as "4GB" or "512 MiB".

    None is a third of what the machine has, or of what its control group allows.
    """
    if value is None:
        return available() // _SHARE
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found is not None and found[2].upper() in _UNITS:
            value = int(float(found[1]) * _UNITS[found[2].upper()])
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 1 <= value < 2**63:
        raise ValueError(
            "memory_limit must be a number of bytes (at least 1) or text such as '4GB' or "
            f"'512MiB', but {shown(value)} was given."
        )
    return int(value)


def available() -> int:
    """The memory of this machine, or what the control group of this process may use of it."""
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in _CGROUP:
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits, default=4 * 10**9)


def as_text(size: float) -> str:
    """A number of bytes, for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
