"""Nothing to tune: with every default, DRAGO certifies the grid of the paper's data to 1e-5."""

import itertools
import os

import pytest

import drago
from drago.datasets import load

SETS = [
    (drago.CVaR(0.75), ("chi2", "kl")),
    (drago.CVaR(0.1), ("chi2", "kl")),
    (drago.Extremile(2.0), ("chi2", "kl")),
    (drago.ESRM(1.0), ("chi2", "kl")),
    (drago.Chi2Ball(1.0), ("chi2",)),
    (drago.KLBall(0.5), ("kl",)),
]
here = pytest.mark.skipif("DRAGO_DATA_DIR" not in os.environ, reason="DRAGO_DATA_DIR is not set")


def uncertified(name, l2_regs, shift_costs, solver="drago"):
    """The cases of the grid that a solver does not certify; all of them, to be seen at once."""
    data = load(name, prepare="paper")
    loss = "multinomial" if data.task == "multiclass" else "squared"
    found = []
    for l2_reg, shift_cost, (uncertainty, divergences) in itertools.product(
        l2_regs, shift_costs, SETS
    ):
        for divergence in divergences:
            cost = 1.0 / data.y.size if shift_cost == "1/n" else shift_cost
            problem = drago.DROProblem(
                data.X,
                data.y,
                loss=loss,
                uncertainty=uncertainty,
                divergence=divergence,
                shift_cost=cost,
                l2_reg=l2_reg,
            )
            result = drago.solve(problem, solver, tol=1e-5)
            if result.status != "optimal" or not result.rel_gap <= 1e-5:
                found.append((l2_reg, shift_cost, repr(uncertainty), divergence, result.message))
    return found


@here
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "name", ["yacht", "energy", pytest.param("concrete", marks=pytest.mark.slow)]
)
def test_the_small_sets(name):
    assert uncertified(name, (1.0, 1e-2, 1e-4), ("1/n", 1e-3, 0.1)) == []


@here
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["kin8nm", "power", "acsincome1k"])
def test_the_larger_sets(name):
    assert uncertified(name, (1.0, 1e-2, 1e-4), ("1/n", 1e-3, 0.1)) == []


@here
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_text_classification():
    assert uncertified("emotion", (1.0, 1e-2), (1e-3, 0.1)) == []


@here
def test_without_a_finish():
    """The iterations alone do most of it; what they do not is what the finish is for."""
    alone = drago.Drago(finish="none")
    assert uncertified("yacht", (1.0, 1e-2), (0.1,), alone) == []
