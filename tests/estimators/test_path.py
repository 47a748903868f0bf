"""`robust_path`."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import drago
from drago.scorers import worst_group_mean

TAILS, COSTS, REGS = (0.2, 1.0, 0.5), ("auto", 0.1), (1e-3, 1.0)


def data(task="regression", n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    raw = X @ rng.normal(size=d) + 0.5
    if task == "regression":
        return X, raw + rng.standard_t(3, n)
    if task == "two":
        return X, (raw + rng.logistic(size=n) > 0).astype(float)
    return X, np.digitize(raw + rng.normal(size=n), [-1.0, 1.0])


# ------------------------------------------------------------------------------ robust_path


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss, task", [("squared", "regression"), ("multinomial", "three")])
@pytest.mark.parametrize("sparse", [False, True])
def test_each_model_is_the_one_solved_by_itself(loss, task, sparse):
    X, y = data(task)
    X = sp.csr_array(X) if sparse else X
    weight = np.random.default_rng(1).integers(0, 4, y.size)
    path = drago.robust_path(
        X,
        y,
        tail_fractions=TAILS,
        shift_costs=COSTS,
        l2_regs=REGS,
        loss=loss,
        sample_weight=weight,
        tol=1e-9,
    )
    assert len(path) == 12
    levels = list(itertools.product(TAILS, COSTS, REGS))
    for k, (tail, cost, reg) in enumerate(levels):
        problem = drago.DROProblem(
            X,
            y,
            loss=loss,
            uncertainty=drago.CVaR(tail),
            shift_cost=cost,
            l2_reg=reg,
            sample_weight=weight,
            fit_intercept=True,
        )
        assert (path.tail_fractions[k], path.l2_regs[k]) == (tail, reg)
        assert path.shift_costs[k] == problem.shift_cost
        result = path.results[k]
        np.testing.assert_array_equal(result.coef, path.coefs[k])
        np.testing.assert_array_equal(result.intercept, path.intercepts[k])
        assert result.status == "optimal"
        assert drago.certify(problem, path.coefs[k], path.intercepts[k]).rel_gap <= 2e-9
        # Weights are those of all rows that were given.
        assert result.dual_weights.shape == y.shape
        assert (result.dual_weights[weight == 0] == 0).all()
        assert result.dual_weights.sum() == pytest.approx(1.0)


def test_other_sets_vary_by_shift_cost_and_l2_reg():
    X, y = data()
    path = drago.robust_path(X, y, uncertainty="kl_ball", shift_costs=[0.1, 1.0], l2_regs=0.1)
    assert np.isnan(path.tail_fractions).all()
    np.testing.assert_array_equal(path.shift_costs, [0.1, 1.0])
    assert path.coefs.shape == (2, 4)


def test_levels_of_groups():
    X, y = data()
    groups = np.arange(y.size) % 5
    path = drago.robust_path(
        X, y, tail_fractions=[1.0, 0.4], uncertainty=drago.Grouped("cvar"), groups=groups
    )
    problem = drago.DROProblem(
        X, y, uncertainty=drago.Grouped(drago.CVaR(0.4)), groups=groups, fit_intercept=True
    )
    assert drago.certify(problem, path.coefs[1], path.intercepts[1]).rel_gap <= 2e-4


def test_neighbours_save_passes():
    """On a fine grid, against the same models from nothing."""
    X, y = data("two", n=2000, d=20)
    regs = np.geomspace(1.0, 1e-3, 10)
    path = drago.robust_path(X, y, l2_regs=regs, loss="logistic", solver="lbfgs")
    alone = 0.0
    for reg in regs:
        problem = drago.DROProblem(X, y, loss="logistic", l2_reg=reg, fit_intercept=True)
        alone += drago.solve(problem, "lbfgs").n_passes
    # Three quarters, of some ten passes a model; rounding may cost one of them an iteration more.
    assert sum(result.n_passes for result in path.results) < 0.9 * alone


def test_a_time_limit_is_for_all_of_it():
    X, y = data(n=2000, d=30)
    with pytest.warns(ConvergenceWarning, match="time_limit"):
        path = drago.robust_path(X, y, tail_fractions=TAILS, time_limit=0.0)
    assert np.isfinite(path.coefs).all()


def test_an_interrupt_is_passed_on():
    X, y = data()

    def interrupted(y, raw):
        interrupted.calls += 1
        if interrupted.calls == 6:
            raise KeyboardInterrupt
        return 0.5 * (raw - y) ** 2, raw - y

    interrupted.calls = 0
    with pytest.warns(ConvergenceWarning), pytest.raises(KeyboardInterrupt, match="interrupted"):
        drago.robust_path(X, y, l2_regs=REGS, loss=interrupted, shift_costs=0.1)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tail_fractions": []}, "tail_fractions must hold at least one value"),
        ({"tail_fractions": [0.0]}, "tail_fraction must be a number in"),
        ({"l2_regs": [-1.0]}, "an entry of l2_regs must be"),
        ({"shift_costs": ["some"]}, "an entry of shift_costs must be"),
        ({"l2_regs": ["auto"]}, "an entry of l2_regs must be"),
        ({"tail_fractions": [0.5], "uncertainty": "kl_ball"}, "has no tail fraction"),
    ],
)
def test_bad_levels_are_named(settings, message):
    X, y = data()
    with pytest.raises((ValueError, TypeError), match=message):
        drago.robust_path(X, y, **settings)


def test_a_path_of_excess_losses_and_its_table():
    X, y = data("two")
    own = np.random.default_rng(0).exponential(size=y.size)
    path = drago.robust_path(X, y, tail_fractions=TAILS, loss="logistic", baseline=own)
    problem = drago.DROProblem(
        X, y, loss="logistic", uncertainty=drago.CVaR(0.2), fit_intercept=True, baseline=own
    )
    assert drago.certify(problem, path.coefs[0], path.intercepts[0]).rel_gap <= 2e-4
    table = path.to_frame()
    assert table["tail_fraction"].tolist() == list(TAILS) and (table["status"] == "optimal").all()


# ----------------------------------------------------------------------- what they rest on


def test_worst_group_mean_is_weighted():
    losses, p = np.array([1.0, 3.0, 2.0]), np.array([0.5, 0.25, 0.25])
    assert worst_group_mean(losses, p, ["a", "a", "b"]) == 2.0
    assert worst_group_mean(losses, p, ["a", "b", "b"]) == 2.5
