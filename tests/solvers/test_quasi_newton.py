"""L-BFGS in a metric: its directions, its searches along lines, and what an iteration costs."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import cases
import drago
from drago.loop.loop import Loop, Stop
from drago.problem import NonFiniteLossError
from drago.rows.memory import ArrayRows
from drago.solvers.quasi_newton import Line, Memory

LOSSES = ("squared", "huber", "logistic", "multinomial")


# ------------------------------------------------------------------------------------- directions


def inverse_bfgs(pairs):
    """The inverse of the approximate Hessian, one dense update a pair."""
    step, change = pairs[-1]
    eye = np.eye(step.size)
    H = (step @ change) / (change @ change) * eye
    for s, y in pairs:
        r = 1.0 / (s @ y)
        H = (eye - r * np.outer(s, y)) @ H @ (eye - r * np.outer(y, s)) + r * np.outer(s, s)
    return H


def draw_pairs(rng, n, count):
    """Steps, and changes of gradients whose Hessian is another one each time."""
    pairs = []
    for _ in range(count):
        root = rng.standard_normal((n, n)) / np.sqrt(n)
        step = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal(n)
        pairs.append((step, root @ root.T @ step + 0.3 * step))
    return pairs


def check_direction(memory, pairs, rng):
    kept = pairs[-memory.size :]
    assert memory.count == len(kept)
    H = inverse_bfgs(kept)
    for _ in range(3):
        slope = rng.standard_normal(H.shape[0])
        expected = -H @ slope
        found = memory.direction(slope)
        assert np.linalg.norm(found - expected) <= 1e-9 * np.linalg.norm(H, 2) * np.sqrt(slope.size)
        assert slope @ found < 0


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    size=st.integers(1, 6),
    count=st.integers(1, 15),
)
def test_direction_is_that_of_dense_updates(seed, n, size, count):
    """With fewer pairs than are kept, as many, and more, whose oldest are dropped."""
    rng = np.random.default_rng(seed)
    memory, pairs = Memory(size, n), draw_pairs(rng, n, count)
    for k, pair in enumerate(pairs, start=1):
        memory.add(*pair)
        if k in (1, size, size + 1, count):
            check_direction(memory, pairs[:k], rng)


def test_a_pair_of_a_quadratic_is_reproduced():
    """The secant equation: the change of the last pair leads back to its step."""
    rng = np.random.default_rng(0)
    memory = Memory(5, 8)
    for step, change in draw_pairs(rng, 8, 7):
        memory.add(step, change)
        np.testing.assert_allclose(-memory.direction(change), step, rtol=1e-9)


def test_without_pairs_it_is_the_slope():
    slope = np.array([1.0, -2.0, 0.5])
    np.testing.assert_array_equal(Memory(4, 3).direction(slope), -slope)


@pytest.mark.parametrize("size", [1, 3])
def test_pairs_without_curvature_are_not_kept(size):
    """Among them a change of 0, which would make the scale infinite."""
    rng = np.random.default_rng(1)
    memory, pairs = Memory(size, 5), draw_pairs(rng, 5, 4)
    for step, change in pairs:
        memory.add(step, change)
        across = rng.standard_normal(5)
        across -= (across @ step) / (step @ step) * step
        across -= (across @ step) / (step @ step) * step
        memory.add(step, -change)
        memory.add(step, np.zeros(5))
        memory.add(np.zeros(5), change)
        memory.add(step, np.full(5, np.nan))
        memory.add(np.eye(5)[0], np.eye(5)[1])
        memory.add(step, across - 1e-12 * step)
    check_direction(memory, pairs, rng)


def test_clear_forgets_every_pair():
    rng = np.random.default_rng(2)
    memory, slope = Memory(3, 6), rng.standard_normal(6)
    for pair in draw_pairs(rng, 6, 5):
        memory.add(*pair)
    memory.clear()
    assert memory.count == 0
    np.testing.assert_array_equal(memory.direction(slope), -slope)
    pairs = draw_pairs(rng, 6, 2)
    for pair in pairs:
        memory.add(*pair)
    check_direction(memory, pairs, rng)


def test_the_callers_arrays_are_copied():
    rng = np.random.default_rng(3)
    memory, pairs = Memory(3, 4), draw_pairs(rng, 4, 2)
    for step, change in pairs:
        given_step, given_change = step.copy(), change.copy()
        memory.add(given_step, given_change)
        given_step[:], given_change[:] = 7.0, 7.0
    check_direction(memory, pairs, rng)


# ------------------------------------------------------------------------------ along lines


def value_and_slope(problem, w, b, dw, db):
    """P, and its slope along (dw, db), from the exact weights."""
    ev = problem.evaluate(w, b)
    g = problem.gradient(ev, problem.dual_oracle().weights(ev.losses, problem.nu))
    slope = np.vdot(g.w + problem.mu * w, dw) + np.dot(g.b, db)
    return problem.objective(*problem.to_public(w, b)), float(slope)


def make_line(problem, w, b, dw, db):
    value, slope = value_and_slope(problem, w, b, dw, db)
    assert slope < 0
    start = problem.evaluate(w, b)
    return Line(problem, problem.dual_oracle(), start, value, slope, dw, db)


def draw_line(problem, rng, size):
    """From a random point along a random direction of descent."""
    shape = (problem.n_features, problem.n_outputs)
    w, dw = 0.7 * rng.standard_normal(shape), rng.standard_normal(shape)
    b, db = rng.standard_normal((2, problem.n_outputs)) * problem.fit_intercept
    if value_and_slope(problem, w, b, dw, db)[1] > 0:
        dw, db = -dw, -db
    return make_line(problem, w, b, size * dw, size * db)


def check_wolfe(line, found):
    """The conditions, with the objective and the slope computed afresh.

    Either as they are in the books, or in a form that rounding does not break: not higher than the
    start, and no steeper upwards.
    """
    assert found is not None and found.t > 0
    w, b = line.start.w + found.t * line.dw, line.start.b + found.t * line.db
    np.testing.assert_array_equal(found.evaluation.w, w)
    np.testing.assert_array_equal(found.evaluation.b, b)
    here = line.problem.evaluate(w, b)
    scale = np.abs(here.raw).max() + np.abs(line.start.raw).max()
    np.testing.assert_allclose(found.evaluation.raw, here.raw, rtol=0, atol=1e-12 * scale)
    value, slope = value_and_slope(line.problem, w, b, line.dw, line.db)
    at_start, falling = line.origin.value, line.origin.slope
    assert found.value == pytest.approx(value, rel=1e-11)
    rounding = 1e-11 * abs(at_start)
    fallen = value <= at_start + 1e-4 * found.t * falling + rounding
    assert fallen or (value <= at_start + rounding and slope <= 0.8 * abs(falling) * (1 + 1e-4))
    assert abs(slope) <= 0.6 * abs(falling) * (1 + 1e-4)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("guess", [1.0, 1e-4, 1e4])
@pytest.mark.parametrize("nu", [1e-4, 1e-2, 10.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_search_meets_the_conditions_of_wolfe(loss, nu, guess):
    """Lengths of the direction far apart, too: the guess is then far off on either side."""
    rng = np.random.default_rng(4)
    names = ("cvar", "simplex", "extremile", "chi2_ball", "kl_ball")
    for k, name in enumerate(names):
        problem = cases.make(
            loss,
            uncertainty=cases.SETS[name][0],
            shift_cost=nu,
            fit_intercept=bool(k % 2),
            sample_weight=rng.uniform(0.2, 3.0, 37),
            seed=k,
        )
        for size in (1e-2, 1.0, 30.0):
            line = draw_line(problem, rng, size)
            check_wolfe(line, line.search(guess))
            assert line.error is None
            assert 1 <= line.n_trials <= 25


def test_a_point_that_meets_the_conditions_is_taken_at_once():
    problem = cases.make("logistic", shift_cost=1.0)
    line = draw_line(problem, np.random.default_rng(5), 1.0)
    t = line.search(1.0).t
    again = make_line(problem, line.start.w, line.start.b, line.dw, line.db)
    assert again.search(t).t == t
    assert again.n_trials == 1


def test_an_optimum_next_to_a_kink_at_the_start():
    """From w = 0 all losses are equal, and the tail forms within a thousandth of the guess."""
    problem = cases.make(
        "logistic", n=400, d=6, uncertainty=drago.CVaR(0.5), shift_cost=1e-3, l2_reg=1e-3
    )
    w, b = np.zeros((6, 1)), np.zeros(1)
    ev = problem.evaluate(w, b)
    downhill = -problem.gradient(ev, problem.p).w
    # So long that the slope is 0 at 5e-3.
    low, high = 0.0, 1e3
    for _ in range(200):
        middle = 0.5 * (low + high)
        rises = value_and_slope(problem, middle * downhill, b, downhill, b)[1] > 0
        low, high = (low, middle) if rises else (middle, high)
    dw = high / 5e-3 * downhill
    assert value_and_slope(problem, w, b, dw, b)[1] < 0
    assert value_and_slope(problem, 0.02 * dw, b, dw, b)[1] > 0
    line = make_line(problem, w, b, dw, b)
    found = line.search(1.0)
    check_wolfe(line, found)
    assert found.t < 0.02
    assert line.n_trials < 25


def separable(shift_cost=0.1):
    """Two clouds, without a penalty: the better the farther, all the way."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((30, 3))
    X[:, 0] = np.where(np.arange(30) % 2, 1.0, -1.0) * rng.uniform(1, 2, 30)
    return drago.DROProblem(
        X, np.arange(30) % 2, loss="logistic", l2_reg=0.0, shift_cost=shift_cost
    )


@pytest.mark.parametrize("guess", [1.0, 1e-4, 1e4])
def test_a_line_without_an_end_that_grows_level(guess):
    problem, b = separable(), np.zeros(1)
    w, dw = np.zeros((3, 1)), np.array([[1.0], [0.0], [0.0]])
    line = make_line(problem, w, b, dw, b)
    found = line.search(guess)
    check_wolfe(line, found)
    assert found.value < line.origin.value


def linear(y, raw):
    """Not bounded below, and of the same slope everywhere."""
    return raw - y, np.ones_like(raw)


def test_a_line_that_falls_for_ever_ends_at_the_longest_step():
    problem = drago.DROProblem(
        np.ones((4, 1)), np.zeros(4), loss=linear, l2_reg=0.0, shift_cost=0.1
    )
    line = make_line(problem, np.zeros((1, 1)), np.zeros(1), np.array([[-1.0]]), np.zeros(1))
    found = line.search(1.0)
    assert 1e8 < found.t < 1e10
    assert found.value == pytest.approx(-found.t, rel=1e-12)
    assert line.n_trials < 25


def test_a_line_that_only_rises_leads_nowhere():
    """A slope at the start that is wrong: nothing higher than the start is returned."""
    problem = cases.make("squared")
    line = draw_line(problem, np.random.default_rng(8), 1.0)
    value, slope = line.origin.value, line.origin.slope
    uphill = (-line.dw, -line.db)
    wrong = Line(problem, line.oracle, line.start, value, slope, *uphill)
    found = wrong.search(1.0)
    assert found is None or (found.value <= value and found.t < 1e-12)
    assert wrong.n_trials <= 25


# Raw predictions from which on a user's loss is no number.
BORDER = 1.5


def bordered(y, raw):
    """The squared loss, and NaN beyond the border."""
    error = raw - y
    return np.where(raw > BORDER, np.nan, 0.5 * error**2), error


@pytest.mark.parametrize("guess", [1.0, 100.0, 1e6])
def test_a_loss_that_becomes_nan_on_the_line(guess):
    """The optimum at 1 lies before the border at 1.5, most of the trials beyond."""
    problem = drago.DROProblem(
        np.ones((4, 1)), np.full(4, 1.0), loss=bordered, l2_reg=1e-9, shift_cost=0.1
    )
    w, b, dw = np.zeros((1, 1)), np.zeros(1), np.ones((1, 1))
    line = make_line(problem, w, b, 2.0 * dw, b)
    there = line.at(1.0)
    assert there.value == there.slope == np.inf
    assert there.evaluation is None and there.q is None
    line.error = None
    found = line.search(guess)
    check_wolfe(line, found)
    assert isinstance(line.error, NonFiniteLossError)
    assert "'bordered'" in str(line.error)
    assert 2.0 * found.t < BORDER


def test_an_optimum_beyond_the_border_is_not_reached():
    """What lies before it is not flat: the best length on this side, and the error."""
    problem = drago.DROProblem(
        np.ones((4, 1)), np.full(4, 9.0), loss=bordered, l2_reg=1e-9, shift_cost=0.1
    )
    line = make_line(problem, np.zeros((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    found = line.search(1e3)
    assert isinstance(line.error, NonFiniteLossError)
    assert 0 < found.t <= BORDER
    assert found.value < line.origin.value
    with pytest.raises(NonFiniteLossError, match="'bordered'"):
        drago.solve(problem, drago.LBFGS(metric="auto"), tol=1e-10)


def test_without_an_error_none_is_kept():
    problem = drago.DROProblem(
        np.ones((4, 1)), np.full(4, 1.0), loss=bordered, l2_reg=1e-9, shift_cost=0.1
    )
    line = make_line(problem, np.zeros((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    check_wolfe(line, line.search(1.0))
    assert line.error is None


# ------------------------------------------------------------------------------------ answers


def settings_of(kind):
    rng = np.random.default_rng(9)
    return {
        "plain": {},
        "intercept": {"fit_intercept": True},
        "weights": {"fit_intercept": True, "sample_weight": rng.uniform(0.1, 4.0, 60)},
        "csr": {"fit_intercept": True, "sparse": True},
    }[kind]


def assert_near(problem, result, expected, most):
    """By strong convexity both lie as near to the optimum as their gaps say."""
    far = sum(np.sqrt(2.0 * each.gap / problem.mu) for each in (result, expected))
    assert np.linalg.norm(result.coef - expected.coef) <= far <= most


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["plain", "intercept", "weights", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_metric_leads_to_the_same_answer(loss, kind):
    for seed, uncertainty in enumerate((drago.CVaR(0.4), drago.KLBall(0.3))):
        problem = cases.make(
            loss, n=60, d=5, seed=seed, uncertainty=uncertainty, **settings_of(kind)
        )
        expected = drago.solve(problem, drago.LBFGS(), tol=1e-12)
        for metric in ("auto", "diagonal", "full"):
            result = drago.solve(problem, drago.LBFGS(metric=metric), tol=1e-8)
            assert result.status == "optimal" and result.rel_gap <= 1e-8
            assert result.solver == "lbfgs" and "finished by" not in result.message
            assert drago.certify(problem, result.coef, result.intercept).rel_gap <= 1e-8
            assert result.dual <= expected.primal * (1 + 1e-12)
            assert_near(problem, result, expected, 5e-3)
            found, intercept = np.asarray(result.intercept), np.asarray(expected.intercept)
            if loss == "multinomial":  # the mean of the intercepts is free
                found, intercept = found - found.mean(), intercept - intercept.mean()
            np.testing.assert_allclose(found, intercept, atol=5e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_metric_without_a_shift_cost(loss, fit_intercept):
    problem = cases.make(loss, n=60, d=5, seed=3, shift_cost=0.0, fit_intercept=fit_intercept)
    expected = drago.solve(problem, drago.LBFGS(), tol=1e-6)
    for metric in ("auto", "diagonal", "full"):
        result = drago.solve(problem, drago.LBFGS(metric=metric), tol=1e-6)
        assert result.status == "optimal" and result.rel_gap <= 1e-6
        assert_near(problem, result, expected, 5e-2)
        assert abs(result.primal - expected.primal) <= max(result.gap, expected.gap)


@pytest.mark.parametrize("constraint", [drago.Box(-0.3, 0.4), drago.NonNegative()])
def test_a_box_is_handled_in_a_diagonal_metric(constraint):
    problem = cases.make("squared", constraint=constraint, fit_intercept=True)
    expected = drago.solve(problem, drago.LBFGS(), tol=1e-12)
    for metric in ("auto", "diagonal"):
        result = drago.solve(problem, drago.LBFGS(metric=metric), tol=1e-8)
        assert result.status == "optimal"
        np.testing.assert_allclose(result.coef, expected.coef, atol=1e-4)
    with pytest.raises(ValueError, match=r"metric='diagonal' or 'euclidean'"):
        drago.solve(problem, drago.LBFGS(metric="full"))


# -------------------------------------------------------------------------------------- costs


class Recorder(Loop):
    """Keeps each iterate, beside half the number of products with X so far; judges nothing."""

    def __init__(self, problem, products, iterations):
        super().__init__(problem, tol=0.0, quiet=True)
        self.products, self.iterations, self.seen = products, iterations, []

    def observe(self, iterate):
        self.seen.append((iterate.n_iter, iterate.n_passes, 0.5 * len(self.products)))
        if iterate.n_iter >= self.iterations:
            raise Stop


def count_products(monkeypatch):
    """Halves of passes; a visit is two of them, and what it calls is part of it."""
    products, within = [], []
    for name in ("visit", "evaluate", "predict", "gradient", "weighted_sum"):
        operation = getattr(ArrayRows, name)

        def counted(self, *args, operation=operation, name=name):
            # From predictions that are known, losses cost no visit.
            free = within or (name == "evaluate" and args[-1] is not None)
            if not free:
                products.extend([name] * (2 if name == "visit" else 1))
                within.append(name)
            try:
                return operation(self, *args)
            finally:
                if not free:
                    within.pop()

        monkeypatch.setattr(ArrayRows, name, counted)
    return products


@pytest.mark.thinned(2)
@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("storage", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("by_visit", [False, True])
def test_an_iteration_costs_one_pass(monkeypatch, metric, fit_intercept, storage, by_visit):
    """However many lengths it tries, but for a fresh evaluation every 50 iterations.

    By visits it is half a pass more where the first length is not taken: the gradient there is of
    no use.
    """
    if not by_visit:
        monkeypatch.setattr(ArrayRows, "visits_once", lambda *_: False)
    rng = np.random.default_rng(10)
    X = rng.standard_normal((300, 40)) @ rng.standard_normal((40, 40))
    y = (X @ rng.standard_normal(40) + 5 * rng.standard_normal(300) > 0).astype(float)
    problem = drago.DROProblem(
        storage(X),
        y,
        loss="logistic",
        uncertainty=drago.CVaR(0.2),
        shift_cost=1e-3,
        l2_reg=1e-4,
        fit_intercept=fit_intercept,
    )
    assert np.isfinite(problem.reference[0])  # kept from now on: none of the method's passes
    products = count_products(monkeypatch)
    loop = Recorder(problem, products, 120)
    with pytest.raises(Stop):
        drago.LBFGS(memory=3, metric=metric).run(problem, loop)
    n_iter, n_passes, half_products = np.array(loop.seen).T
    np.testing.assert_array_equal(n_iter, np.arange(121))
    np.testing.assert_array_equal(n_passes, half_products)
    overhead = 1.0 + 0.5 * fit_intercept  # the first evaluation, and the centre of the features
    if by_visit:
        more = np.diff(n_passes - n_iter)
        assert n_passes[0] == overhead
        assert set(more) <= {0.0, 0.5, 1.0}
        assert np.mean(more == 0.0) > 0.5
    else:
        np.testing.assert_array_equal(n_passes - n_iter, overhead + 0.5 * (n_iter // 50))


def test_trials_are_counted_as_calls_of_the_oracle(monkeypatch):
    """They cost no pass, but they are not hidden either."""
    trials, at = [], Line.at

    def counted(self, t):
        trials.append(t)
        return at(self, t)

    monkeypatch.setattr(Line, "at", counted)
    problem = cases.make("logistic", n=200, uncertainty=drago.CVaR(0.2), shift_cost=1e-3)
    loop = Loop(problem, tol=1e-8, quiet=True)  # compiles nothing, which would make trials, too
    result = loop.run(drago.LBFGS(metric="auto"))
    assert result.status == "optimal"
    assert result.n_iter < len(trials)
    assert result.n_oracle_calls == 200 * (1 + len(trials))
