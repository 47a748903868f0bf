"""LSVRG, as in `methods`."""

from benchmark_utils import PaperSolver


class Solver(PaperSolver):
    name = "LSVRG"
    method = "lsvrg"
    parameters = {"seed": [0]}  # noqa: RUF012
