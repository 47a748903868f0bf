"""What the processes that share the rows of a problem agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OneProcess:
    """A store whose rows belong to one process: it agrees with itself.

    Where several share the rows, all of them run the same solve. What they decide comes from sums
    over all rows, which are the same everywhere, or from the first of them.
    """

    is_first: bool = True
    """Whether this is the process that reports and writes files."""
    is_shared: bool = False
    """Whether other processes have rows, too."""
    n_samples: int

    @property
    def n_given(self) -> int:
        """Rows of the vectors that a user gives to this process, and gets from it."""
        return self.n_samples

    def said(self, value: float) -> float:
        """What the first process says, whatever the others do."""
        return value

    def is_any(self, flag: bool) -> bool:
        """Whether it is so in any of the processes."""
        return flag

    def shared(self, work: Callable[[], Any]) -> Any:
        """What the first process finds: None, or arrays and settings as files hold them.

        Its errors are those of all.
        """
        return work()

    def saved(self, values: Any) -> Any:
        """A row vector of all rows for a file."""
        return self.export(values)  # type: ignore[attr-defined]

    def restored(self, array: Any) -> Any:
        """A row vector from what `saved` made of it."""
        return self.imported(array)  # type: ignore[attr-defined]
