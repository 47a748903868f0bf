"""SGD, as in `methods`."""

from benchmark_utils import PaperSolver


class Solver(PaperSolver):
    name = "SGD"
    method = "sgd"
    parameters = {"seed": [0]}  # noqa: RUF012
