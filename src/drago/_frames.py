"""Tables as frames of pandas, which is not needed otherwise."""

from __future__ import annotations

import importlib
from typing import Any


def as_frame(columns: dict[str, Any]) -> Any:
    """A frame of some columns, or how to get pandas."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(
            f"a frame needs pandas, which could not be imported ({error}): pip install pandas"
        ) from error
    return pandas.DataFrame(columns)
