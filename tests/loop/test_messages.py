"""What a solve says at its end."""

import numpy as np
import pytest

import drago
from drago.loop.loop import Loop
from drago.loop.method import Method
from drago.loop.protocol import Iterate

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class At(Method):
    """A method that looks at one point and gives up."""

    name = "at"

    def __init__(self, w):
        self.w = w

    def check(self, problem):
        pass

    def run(self, problem, loop):
        loop.observe(Iterate(self.w[:, None], np.zeros(1), 1, 1.0, 1))
        return "it is tired"


def problem(**settings):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    return drago.DROProblem(
        X, X[:, 0] + rng.standard_t(3, 60), **{"shift_cost": 0.1, "l2_reg": 1e-2, **settings}
    )


@pytest.mark.parametrize("solver", ["auto", "lbfgs", "newton", "drago", "gd", "sgd"])
@pytest.mark.parametrize("given", [{"max_iter": 1}, {"time_limit": 1e-9}], ids=str)
def test_cause_and_remedy_come_first(solver, given):
    said = drago.solve(problem(), solver, tol=1e-14, **given).message
    (name,) = given
    assert said.startswith(f"Not converged: {name}=")
    assert f"To mend it, raise {name}, or tol if this is good enough. (Solver: " in said
    assert said.endswith(".)") and said.count(solver) == 1


def test_who_ends_a_solve_needs_no_remedy():
    said = drago.solve(problem(), "gd", tol=1e-14, callback=lambda *_: True).message
    assert said.startswith("Not converged: stopped by the callback after ")
    assert "To mend it" not in said and said.endswith("(Solver: gd.)")


def test_a_stalled_solve_says_what_would_help():
    said = Loop(problem(), tol=1e-8).run(At(np.array([0.5, 0.0, 0.0, 0.0]))).message
    assert said.startswith("Not converged: no further progress after 1 iteration (it is tired), ")
    assert "To mend it, raise tol, l2_reg or shift_cost, or scale the features." in said
    assert "rounding" not in said


def test_a_gap_of_rounding_is_called_so():
    given = problem()
    best = drago.solve(given, tol=1e-12)
    assert best.gap <= 1e-12 * best.primal
    said = Loop(given, tol=1e-300).run(At(best.coef)).message
    assert ". What is left of the gap is rounding, which no solver can remove. To mend" in said
    assert "To mend it, raise tol. (Solver: at.)" in said


@pytest.mark.parametrize("metric", ["auto", "euclidean"])
def test_no_words_of_scipy(metric):
    given = problem(uncertainty="simplex", divergence="kl", constraint=drago.Box(-0.1, 0.1))
    found = drago.solve(given, drago.LBFGS(metric=metric), tol=1e-300)
    assert found.status == "stalled"
    assert "iterations (the objective does not fall any more), " in found.message
