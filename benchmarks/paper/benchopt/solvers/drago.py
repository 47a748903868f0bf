"""DRAGO with several block sizes, the paper's second listing, and this library's default."""

from benchmark_utils import PaperSolver


class Solver(PaperSolver):
    """`block` is a block size, "n/d", "lagged" (Algorithm 2, n/d) or "auto" (nothing to tune)."""

    name = "DRAGO"
    parameters = {"block": [1, 16, 64, "n/d", "lagged", "auto"], "seed": [0]}  # noqa: RUF012

    @property
    def method(self):
        return f"drago-{self.block}"
