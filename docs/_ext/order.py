"""The order of the gallery: from the question to the details."""

from __future__ import annotations

from typing import Any

ORDER = (
    "plot_before_after", "plot_groups", "plot_found_groups", "plot_tail_risk", "plot_path",
    "plot_sorted_losses", "plot_weights", "plot_simplex", "plot_convergence", "plot_dask",
)  # fmt: skip


class InTurn:
    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __call__(self, filename: str) -> tuple[int, Any]:
        stem = filename.removesuffix(".py")
        return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)
