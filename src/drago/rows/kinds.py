"""What an operation of a store does with the parts of the rows, said where it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Operation = TypeVar("Operation", bound=Callable[..., Any])


def is_a(kind: str) -> Callable[[Operation], Operation]:
    """Say of an operation what it does with the parts of the rows."""

    def mark(operation: Operation) -> Operation:
        operation.kind = kind  # type: ignore[attr-defined]
        return operation

    return mark
