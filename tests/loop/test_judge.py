"""What is said of a method's points: what is believed, what it costs, and in which numbers."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import cases
import drago
from drago.certificate.search import AMPLE
from drago.loop.budget import Budget
from drago.loop.judge import Judge
from drago.loop.protocol import Iterate


@pytest.fixture(params=[False, True], ids=["no intercept", "intercept"])
def problem(request):
    return cases.make("logistic", n=60, fit_intercept=request.param)


def made(problem, tol=1e-6):
    budget = Budget(problem.n_entries)
    return Judge(problem, tol, budget), budget


def point(problem, seed=0):
    rng = np.random.default_rng(seed)
    w = 0.1 * rng.standard_normal((problem.n_features, problem.n_outputs))
    return w, np.full(problem.n_outputs, 0.1 * problem.fit_intercept)


def at(problem, **known):
    return Iterate(*point(problem), 1, 1.0, 1, **known)


def test_a_certificate_is_that_of_certify(problem):
    judge, budget = made(problem)
    certificate, w, b = judge.certify(at(problem), AMPLE)
    expected = drago.certify(problem, *problem.to_public(w, b))
    assert certificate.primal == pytest.approx(expected.primal, rel=1e-14)
    assert certificate.dual <= expected.primal and np.isfinite(certificate.gap)
    np.testing.assert_array_equal(w, point(problem)[0])
    np.testing.assert_array_equal(b, point(problem)[1])
    assert budget.looks == 0  # the loop's to count


def test_what_the_method_has_computed_saves_half_a_pass(problem):
    costs = []
    for ev in (None, problem.evaluate(*point(problem))):
        judge, budget = made(problem)
        certificate, *_ = judge.certify(at(problem, evaluation=ev), 4.0)
        costs.append(budget.passes - certificate.n_passes)
    assert costs == pytest.approx([0.5, 0.0], abs=1e-12)


@pytest.mark.parametrize("off", [0.0, 1e-14, 1e-6])
@pytest.mark.parametrize("is_sum", [False, True])
def test_sums_of_steps_are_believed_where_a_few_rows_agree(problem, off, is_sum):
    judge, _ = made(problem)
    ev = problem.evaluate(*point(problem))
    ev = ev._replace(raw=ev.raw + off)
    found = judge.trusted(at(problem, evaluation=ev, is_sum=is_sum))
    assert found is (None if is_sum and off == 1e-6 else ev)


def test_nothing_computed_is_nothing_to_trust(problem):
    judge, _ = made(problem)
    assert judge.trusted(at(problem, is_sum=True)) is None
    assert judge.objective(at(problem)) is None


def test_the_objective_of_a_start_has_no_bound(problem):
    judge, budget = made(problem)
    certificate, w, b = judge.objective(at(problem, evaluation=problem.evaluate(*point(problem))))
    value = problem.objective(*problem.to_public(w, b))
    assert certificate.primal == pytest.approx(value, rel=1e-14)
    assert certificate.gap == np.inf and budget.passes == 0.0


def test_the_first_candidate_is_the_trivial_model(problem):
    certificate, w, b = made(problem)[0].reference()
    assert certificate.primal == problem.reference[0] and certificate.gap == np.inf
    assert certificate.stationarity is None and not w.any()
    np.testing.assert_array_equal(b, problem.origin[1])


def test_less_than_float64_is_not_believed(problem, monkeypatch):
    """Where the method works on fewer digits, neither its losses nor its weights are used."""
    twin = problem._replace(nu=problem.nu)
    monkeypatch.setattr(type(problem), "in_float64", property(lambda self: twin))
    judge, budget = made(problem)
    assert judge.exact is twin and twin is not problem
    ev = problem.evaluate(*point(problem))
    wrong = ev._replace(losses=2.0 * ev.losses)
    value = problem.objective(*problem.to_public(*point(problem)))
    here = at(problem, evaluation=wrong, q=np.full(60, np.nan))
    certificate, *_ = judge.certify(here, 4.0)
    assert certificate.primal == pytest.approx(value, rel=1e-14) and np.isfinite(certificate.gap)
    assert budget.passes == pytest.approx(0.5 + certificate.n_passes)
    assert judge.objective(here)[0].primal == pytest.approx(value, rel=1e-14)


def test_only_the_first_look_on_large_data_foresees():
    """The others have to tell what they can, and so has the first if it is the last."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((70_000, 8))
    w = rng.standard_normal((8, 1))
    y = (X @ w).ravel() + rng.standard_normal(70_000)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.5), shift_cost=0.5, l2_reg=1e-3)
    judge, budget = made(problem)
    assert budget.is_first_look
    near = Iterate(w, np.zeros(1), 1, 1.0, 1)
    last, *_ = judge.certify(near, budget.credit(1.0), is_last=True)
    assert last.foreseen == np.inf
    look, *_ = judge.certify(near, budget.credit(1.0))
    assert last.gap < 0.5 * look.gap
    budget.looked(1)
    later, *_ = judge.certify(near, AMPLE)
    assert later.foreseen == np.inf
    assert 0.5 * later.gap < look.foreseen < 1.5 * later.gap


def test_a_solve_that_ends_with_its_first_certificate_spares_nothing():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((70_000, 8))
    y = X @ rng.standard_normal(8) + rng.standard_normal(70_000)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.5), shift_cost=0.5, l2_reg=1e-3)
    for method in ("lbfgs", drago.Drago(), drago.LBFGS(metric="auto", progressive=True)):
        with pytest.warns(ConvergenceWarning):
            result = drago.solve(problem, method, tol=1e-12, max_iter=1)
        best = drago.certify(problem, result.coef)
        assert result.status == "max_iter"
        assert result.rel_gap < 2.5 * best.rel_gap
