"""Prospect, as in `methods`."""

from benchmark_utils import PaperSolver


class Solver(PaperSolver):
    name = "Prospect"
    method = "prospect"
    parameters = {"seed": [0]}  # noqa: RUF012
