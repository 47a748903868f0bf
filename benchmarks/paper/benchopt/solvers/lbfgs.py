"""L-BFGS, as in `methods`."""

from benchmark_utils import PaperSolver


class Solver(PaperSolver):
    name = "L-BFGS"
    method = "lbfgs"
    parameters = {"seed": [0]}  # noqa: RUF012
