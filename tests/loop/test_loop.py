"""The loop: exits, warnings, clocks, history, certificates, and methods of one's own."""

import itertools
import warnings
from dataclasses import FrozenInstanceError, dataclass, fields
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import cases
import drago
import twins
from drago.loop import clock as clocks
from drago.loop import judge as judges
from drago.loop.loop import Iterate, Loop, Progress, Stop
from drago.problem import NonFiniteLossError
from drago.result import Record

LOSSES = ("squared", "huber", "logistic", "multinomial")
SETS = {
    "cvar": (drago.CVaR(0.3), ("cvar", 0.3)),
    "simplex": (drago.Simplex(), ("simplex",)),
    "esrm": (drago.ESRM(2.0), ("esrm", 2.0)),
    "chi2_ball": (drago.Chi2Ball(1.0), ("chi2_ball", 1.0)),
    "kl_ball": (drago.KLBall(0.5), ("kl_ball", 0.5)),
}


def data(loss="squared", n=60, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.logspace(0, -1, d)
    z = X @ rng.standard_normal(d) * 2 + rng.standard_normal(n) + 1.0
    if loss == "logistic":
        return X, (z > 0.5).astype(float)
    if loss == "multinomial":
        return X, np.argsort(np.argsort(z)) * 3 // n
    return X, z


def make(loss="squared", n=60, d=4, seed=0, **options):
    X, y = data(loss, n, d, seed)
    kwargs = {"shift_cost": 0.05, "l2_reg": 1e-2, "uncertainty": drago.CVaR(0.3), **options}
    return drago.DROProblem(X, y, loss=loss, **kwargs)


def squared(y, raw):
    """A user's own loss: the squared one."""
    return 0.5 * (raw - y) ** 2, raw - y


def quiet_solve(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return drago.solve(*args, **kwargs)


def check_sound(problem, result):
    """Finite, no worse than the trivial model, and what it says of itself is true."""
    assert np.isfinite(result.coef).all() and np.isfinite(result.intercept).all()
    for value in (result.primal, result.gap, result.rel_gap, result.dual):
        assert not np.isnan(value)
    assert cases.no_worse(result, problem.reference[0])
    value = problem.objective(result.coef, result.intercept)
    assert value == pytest.approx(result.primal, rel=1e-12, abs=1e-14)


@dataclass(frozen=True)
class GradientDescent:
    """A method in a few lines: fixed steps along the gradient of P."""

    step: float = 0.1
    name = "descent"

    def check(self, problem):
        pass

    def run(self, problem, loop):
        (w, b), oracle = loop.start, problem.dual_oracle()
        for k in range(1, 100_000):
            ev = problem.evaluate(w, b)
            weighted = oracle.weights(ev.losses, problem.nu)[:, None] * ev.dlosses
            w = w - self.step * (problem.rows.weighted_sum(weighted) + problem.mu * w)
            b = b - self.step * weighted.sum(axis=0) * problem.fit_intercept
            loop.observe(Iterate(w, b, k, float(k), k * problem.n_samples))
        return "out of iterations"


# -------------------------------------------------------------------------------------- exits


def test_optimal_never_warns():
    for loss in LOSSES:
        for intercept in (False, True):
            problem = make(loss, fit_intercept=intercept)
            result = drago.solve(problem)  # any warning is an error here
            assert result.status == "optimal" and result.rel_gap <= 1e-4
            assert "optimal after" in result.message and "tol=0.0001" in result.message
            assert result.message.startswith("auto took ") and result.message.endswith(".")
            check_sound(problem, result)


def ctrl_c(state):
    raise KeyboardInterrupt


# status: what the message says, and the arguments that lead there
EXITS = {
    "max_iter": ("raise max_iter, or tol if", {"max_iter": 1}),
    "time_limit": ("raise time_limit, or tol if", {"time_limit": 0}),
    "interrupted": ("interrupted after", {"callback": ctrl_c, "tol": 1e-9}),
    "stopped": ("stopped by the callback", {"callback": lambda state: True, "tol": 1e-9}),
    "stalled": ("What is left of the gap is rounding, which no solver can remove", {"tol": 0.0}),
}


@pytest.mark.parametrize("status", EXITS)
@pytest.mark.parametrize("intercept", [False, True])
def test_every_other_exit_warns_with_the_gap_and_what_to_change(status, intercept):
    advice, kwargs = EXITS[status]
    # With KL: what chi2 takes on small data has no certificate before the last.
    problem = make("logistic", fit_intercept=intercept, divergence="kl")
    with pytest.warns(ConvergenceWarning) as caught:
        result = drago.solve(problem, **kwargs)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert caught[0].filename == __file__  # points at the caller
    assert message == result.message and message.startswith("Not converged: ")
    assert f"certified relative gap {result.rel_gap:.2g}" in message
    assert f"tol={kwargs.get('tol', 1e-4):g}" in message
    assert advice in message
    assert result.status == status
    check_sound(problem, result)
    assert result.rel_gap > kwargs.get("tol", 1e-4) or status == "stalled"


def test_max_iter_is_kept_exactly():
    problem = make()
    for limit in (1, 2, 5):
        result = quiet_solve(problem, tol=0.0, max_iter=limit)
        assert result.n_iter == limit and result.status == "max_iter"
        assert f"max_iter={limit} reached" in result.message


def test_max_iter_reached_with_a_certified_point_is_optimal():
    problem = make()
    enough = drago.solve(problem).n_iter
    assert drago.solve(problem, max_iter=enough).status == "optimal"


def test_a_looser_tolerance_takes_no_more_iterations():
    problem = make("multinomial", fit_intercept=True)
    n_iter = [drago.solve(problem, tol=tol).n_iter for tol in (1e-1, 1e-3, 1e-6, 1e-9)]
    assert n_iter == sorted(n_iter)


def test_a_large_tolerance_is_met_by_the_first_certificate():
    result = drago.solve(make(), tol=1.0)
    assert result.status == "optimal" and len(result.history) <= 2


def test_time_limit_by_the_clock(monkeypatch):
    """The solve ends at the first iteration after the limit."""
    clock = FakeClock()
    problem, method = make(), Ticking(clock, GradientDescent(1e-3))
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=clock))
    result = quiet_solve(problem, method, tol=0.0, time_limit=10.5)
    assert result.status == "time_limit" and result.n_iter == 11
    assert "time_limit=10.5 s reached after 11 iterations" in result.message
    check_sound(problem, result)


@pytest.mark.parametrize("limit", range(2, 40))
def test_no_moment_ends_a_solve_without_a_certificate(monkeypatch, limit):
    """Time may run out anywhere; here it goes on with every look at the clock."""
    looks = itertools.count()
    problem = make()
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: float(next(looks))))
    result = quiet_solve(problem, GradientDescent(1e-3), tol=0.0, time_limit=limit + 0.5)
    assert result.status == "time_limit" and np.isfinite([result.gap, result.rel_gap]).all()
    check_sound(problem, result)


def test_stalled_names_the_reason_of_the_method():
    class GivesUp(GradientDescent):
        def run(self, problem, loop):
            loop.observe(Iterate(*loop.start, 1, 1.0, 1))
            return "the dog ate it"

    problem = make()
    with pytest.warns(ConvergenceWarning, match="no further progress after 1 iter.*the dog ate it"):
        result = drago.solve(problem, GivesUp())
    assert result.status == "stalled"
    check_sound(problem, result)


def test_a_method_that_observes_nothing_still_gives_a_certified_answer():
    class Lazy(GradientDescent):
        def run(self, problem, loop):
            return "too lazy"

    problem = make(fit_intercept=True)
    with pytest.warns(ConvergenceWarning, match="too lazy"):
        result = drago.solve(problem, Lazy())
    assert result.status == "stalled" and result.n_iter == 0
    assert not result.coef.any() and np.isfinite(result.gap)
    assert result.primal == pytest.approx(problem.reference[0], rel=1e-14)


def test_a_method_that_ends_at_a_certified_point_is_optimal():
    """The last point is certified with all effort before the loop gives up on it."""
    problem = make()
    answer = drago.solve(problem, tol=1e-10)

    class Knows(GradientDescent):
        def run(self, other, loop):
            if other.n_samples == problem.n_samples:
                loop.observe(Iterate(*loop.start, 1, 1.0, 1))
                loop.observe(Iterate(*problem.to_internal(answer.coef), 2, 2.0, 2))
            return "done"

    result = drago.solve(problem, Knows(), tol=1e-8)
    assert result.status == "optimal" and result.coef.tobytes() == answer.coef.tobytes()


# ---------------------------------------------------------------------------------- interrupts


class InterruptedLoss:
    """The squared loss; its call number `at` is interrupted by Ctrl-C, once."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def __call__(self, y, raw):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return squared(y, raw)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 8, 12, 16])  # of more than twenty calls
def test_interrupt_inside_a_users_loss(at, intercept):
    """At the reference, before the first certificate, in the middle: an answer in any case."""
    X, y = data()
    kwargs = {"shift_cost": 0.05, "l2_reg": 1e-2, "fit_intercept": intercept}
    problem = drago.DROProblem(X, y, loss=InterruptedLoss(at), **kwargs)
    with pytest.warns(ConvergenceWarning, match="interrupted after"):
        result = drago.solve(problem, tol=1e-12)
    assert result.status == "interrupted"
    assert np.isfinite(result.gap) and len(result.history) >= 1
    check_sound(problem, result)


def test_interrupt_loses_nothing():
    """The point that was certified before Ctrl-C is the one that is returned, or a better one."""
    problem, seen = make("multinomial", fit_intercept=True), []

    def interrupt(state):
        seen.append(state)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        result = drago.solve(problem, GradientDescent(), tol=1e-12, callback=interrupt)
    assert result.status == "interrupted" and len(seen) == 4
    assert result.n_iter == seen[-1].n_iter
    assert result.coef.tobytes() == seen[-1].coef.tobytes()
    assert result.primal == seen[-1].primal and result.gap == seen[-1].gap
    assert len(result.history) == 4


def test_interrupt_between_certificates_keeps_the_last_point():
    """The last observed point has not been certified yet when Ctrl-C comes: it is, then."""

    class Interrupted(GradientDescent):
        def run(self, problem, loop):
            observed = loop.observe

            def observe(iterate):
                observed(iterate)
                if iterate.n_iter == 37:
                    raise KeyboardInterrupt

            loop.observe = observe
            return super().run(problem, loop)

    problem = make()
    with pytest.warns(ConvergenceWarning, match="interrupted after 37 iterations"):
        result = drago.solve(problem, Interrupted(), tol=1e-12)
    assert result.status == "interrupted" and result.history.n_iter[-1] == 37
    same = quiet_solve(problem, GradientDescent(), tol=1e-12, max_iter=37)
    assert result.coef.tobytes() == same.coef.tobytes()


def test_an_interrupt_is_never_swallowed():
    """Even where the point was certified: whoever pressed Ctrl-C wants to hear of it."""
    problem = make()

    def interrupt(state):
        if state.rel_gap <= 1e-4:
            raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="interrupted after"):
        result = drago.solve(problem, callback=interrupt)
    assert result.status == "interrupted" and result.rel_gap <= 1e-4


def test_interrupt_while_compiling_is_not_ignored():
    """Ctrl-C during the small solve that compiles the kernels must end the solve as well."""

    runs = []

    class Once(GradientDescent):
        def run(self, problem, loop):
            runs.append(problem.n_samples)
            if len(runs) == 1:
                raise KeyboardInterrupt
            return super().run(problem, loop)

    try:
        result = quiet_solve(make(), Once(), max_iter=50)
    except KeyboardInterrupt:
        return
    assert result.status == "interrupted"


# ----------------------------------------------------------------------- never worse than w = 0


@pytest.mark.parametrize(
    "loss, intercept, name", cases.thinned(LOSSES, [False, True], SETS, keep=4)
)
def test_never_worse_than_the_trivial_model(loss, intercept, name):
    for constraint in (None, drago.NonNegative(), drago.Box(0.1, 0.2)):
        for l2_reg in (1e-2, 1e3):
            problem = make(
                loss, n=20, fit_intercept=intercept, uncertainty=SETS[name][0],
                constraint=constraint, l2_reg=l2_reg,
            )  # fmt: skip
            for kwargs in ({"max_iter": 1}, {"max_iter": 2}, {"time_limit": 0}, {}):
                result = quiet_solve(problem, **kwargs)
                check_sound(problem, result)
                w, _ = problem.to_internal(result.coef, result.intercept)
                assert problem.constraint.contains(w)


def test_the_trivial_model_is_said_to_be_optimal_where_it_is():
    X, _ = data()
    result = drago.solve(drago.DROProblem(X, np.zeros(60), shift_cost=0.1))
    assert result.status == "optimal" and not result.coef.any()
    assert "the trivial model (coefficients 0) is optimal" in result.message
    result = drago.solve(drago.DROProblem(X, np.full(60, 7.0), shift_cost=0.1, fit_intercept=True))
    assert result.status == "optimal" and "trivial model" in result.message
    assert result.intercept == pytest.approx(7.0, rel=1e-9)
    assert "trivial" not in drago.solve(make()).message


# ------------------------------------------------------------------------------------- history


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("options", [{}, {"fit_intercept": True}, {"shift_cost": 0.0}])
@pytest.mark.parametrize("solver", ["lbfgs", GradientDescent(0.05)], ids=["lbfgs", "descent"])
def test_history(loss, options, solver):
    problem = make(loss, **options)
    result = quiet_solve(problem, solver, tol=1e-9, max_iter=300)
    history = result.history
    columns = {field.name: getattr(history, field.name) for field in fields(Record)}
    assert len(history) >= 2
    for column in columns.values():
        assert column.shape == (len(history),) and np.isfinite(column).all()
    for name in ("n_iter", "n_passes", "n_oracle_calls", "time", "solver_time"):
        assert (np.diff(columns[name]) >= 0).all() and (columns[name] >= 0).all(), name
    assert (history.solver_time <= history.time).all()
    rounding = 1e-14 * np.abs(history.primal).max()
    assert (np.diff(history.primal) <= cases.LEVEL * np.abs(history.primal[1:])).all()
    assert (np.diff(history.gap) <= rounding).all()
    assert (np.diff(history.dual) >= -rounding).all()
    assert (history.gap >= 0).all()
    assert history.primal - history.dual == pytest.approx(history.gap, rel=1e-9, abs=rounding)
    P0 = problem.reference[0]
    expected = history.gap / np.maximum(P0 - history.dual, 1e-6 * abs(P0))
    assert history.rel_gap == pytest.approx(expected, rel=1e-9)
    # The last line is the result.
    for name in ("n_iter", "n_passes", "n_oracle_calls", "primal", "dual", "gap", "rel_gap"):
        assert columns[name][-1] == getattr(result, name), name
    assert columns["time"][-1] <= result.time
    assert columns["solver_time"][-1] <= result.solver_time


def test_certificates_are_sparse_in_a_long_run():
    """The number of certificates grows like the logarithm of the iterations."""
    result = quiet_solve(make(), GradientDescent(1e-3), tol=0.0, max_iter=3000)
    assert result.n_iter == 3000
    assert 8 <= len(result.history) <= 40
    assert result.history.n_iter[-1] == 3000


def test_passes_include_the_certificates():
    problem = make()
    result = quiet_solve(problem, GradientDescent(), max_iter=20, tol=0.0)
    assert result.n_passes >= 20 + len(result.history)  # half to evaluate, half for the gradient
    assert result.n_oracle_calls == 20 * problem.n_samples


# -------------------------------------------------------------------------------------- clocks


class FakeClock:
    """A clock that goes only when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Ticking:
    """A method whose every observed iteration takes a second."""

    name = "ticking"

    def __init__(self, clock, inner):
        self.clock, self.inner = clock, inner

    def check(self, problem):
        pass

    def run(self, problem, loop):
        observed = loop.observe

        def observe(iterate):
            self.clock.now += 1.0
            observed(iterate)

        loop.observe = observe
        return self.inner.run(problem, loop)


def test_clocks(monkeypatch):
    """Certificates count in `time` alone."""
    clock = FakeClock()
    judge = judges.judge

    def slow_judge(*args, **kwargs):
        clock.now += 100.0
        return judge(*args, **kwargs)

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(judges, "judge", slow_judge)
    method = Ticking(clock, GradientDescent())
    result = quiet_solve(make(), method, max_iter=12, tol=0.0)
    assert result.n_iter == 12
    assert result.solver_time == 12.0
    assert result.time == 12.0 + 100.0 * len(result.history)
    assert result.history.solver_time.tolist() == result.history.n_iter.astype(float).tolist()
    seconds = result.history.n_iter + 100.0 * np.arange(1, len(result.history) + 1)
    assert result.history.time.tolist() == seconds.tolist()


def test_users_functions_are_not_called_for_compilation():
    sizes = []

    def loss(y, raw):
        sizes.append(len(y))
        return squared(y, raw)

    class Half:
        def worst_case(self, u, c, divergence, p):
            sizes.append(len(u))
            return np.asarray(p)

        def q_max(self, p):
            return float(np.max(p))

    X, y = data()
    drago.solve(drago.DROProblem(X, y, loss=loss, shift_cost=0.1, l2_reg=0.1))
    drago.solve(drago.DROProblem(X, y, uncertainty=Half(), shift_cost=0.1, l2_reg=0.1))
    assert set(sizes) == {60}


def test_users_functions_inside_a_grouped_set_are_not_called_for_compilation():
    sizes = []

    class Nominal:
        def worst_case(self, u, c, divergence, p):
            sizes.append(len(u))
            return np.asarray(p)

        def q_max(self, p):
            return float(np.max(p))

    problem = make(uncertainty=drago.Grouped(Nominal()), groups=np.arange(60) % 5)
    drago.solve(problem, tol=1e-3)
    assert set(sizes) == {5}


# ------------------------------------------------------------------------------------ callback


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("intercept", [False, True])
def test_callback_sees_the_best_point_in_public_shape(loss, intercept):
    problem, seen = make(loss, fit_intercept=intercept), []
    result = drago.solve(problem, tol=1e-8, callback=seen.append)
    assert len(seen) == len(result.history) and result.status == "optimal"
    shape = (3, 4) if loss == "multinomial" else (4,)
    for state, record in zip(seen, result.history.records):
        assert isinstance(state, Progress) and state.coef.shape == shape
        assert np.shape(state.intercept) == ((3,) if loss == "multinomial" else ())
        for name in ("n_iter", "n_passes", "time", "primal", "dual", "gap", "rel_gap"):
            assert getattr(state, name) == getattr(record, name), name
        value = problem.objective(state.coef, state.intercept)
        assert value == pytest.approx(state.primal, rel=1e-12)
    assert seen[-1].coef.tobytes() == result.coef.tobytes()
    with pytest.raises(FrozenInstanceError):
        seen[0].gap = 0.0


@pytest.mark.parametrize("answer", [None, False, 0, ""])
def test_a_callback_that_returns_nothing_true_goes_on(answer):
    assert drago.solve(make(), callback=lambda state: answer).status == "optimal"


def test_a_callback_that_stops_at_a_certified_point_is_optimal():
    result = drago.solve(make(), tol=1e-4, callback=lambda state: state.rel_gap <= 1e-4)
    assert result.status == "optimal"


def test_an_error_in_a_callback_is_the_users():
    def broken(state):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        drago.solve(make(), callback=broken)


@pytest.mark.parametrize(("loss", "d"), [("squared", 4), ("multinomial", 4), ("multinomial", 1)])
def test_a_callback_cannot_spoil_the_answer(loss, d):
    problem = make(loss, d=d, fit_intercept=True)
    plain = drago.solve(problem)

    def scribble(state):
        state.coef[...] = np.nan
        if loss == "multinomial":
            state.intercept[...] = np.nan

    result = drago.solve(problem, callback=scribble)
    assert result.coef.tobytes() == plain.coef.tobytes()
    assert result.primal == plain.primal


# -------------------------------------------------------------------------------- certificates


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("intercept", [False, True])
def test_the_result_can_be_certified_again(loss, name, intercept):
    uncertainty, set_ = SETS[name]
    problem = make(
        loss, n=30, uncertainty=uncertainty, fit_intercept=intercept,
        sample_weight=np.random.default_rng(1).exponential(size=30) + 0.1,
    )  # fmt: skip
    for kwargs in ({}, {"tol": 1e-8}, {"max_iter": 3}):
        result = quiet_solve(problem, **kwargs)
        rounding = 1e-13 * max(1.0, abs(result.primal))
        assert result.primal - result.dual == pytest.approx(result.gap, rel=1e-9, abs=rounding)
        found = drago.certify(problem, result.coef, result.intercept)
        assert found.primal == pytest.approx(result.primal, rel=1e-13)
        assert found.rel_gap <= result.rel_gap * (1 + 1e-6) + 1e-12 or kwargs == {"max_iter": 3}
        assert found.dual <= result.primal + rounding
        again = drago.certify(problem, result.dual_coef, result.dual_intercept, result.dual_weights)
        assert again.dual >= result.dual - rounding
        assert twins.feasibility(set_, result.dual_weights, problem.p) <= 1e-9
        P0 = problem.reference[0]
        assert result.rel_gap == pytest.approx(
            result.gap / max(P0 - result.dual, 1e-6 * abs(P0)), rel=1e-9
        )


def test_a_gap_over_a_ball_holds_over_the_ball_that_is_stated():
    """l2_reg = 0 and a loss of unknown curvature: bounds over different balls do not compare."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 1))
    y = 10 * x[:, 0] + 0.1 * rng.standard_normal(50)
    kwargs = {"shift_cost": 0.01, "l2_reg": 0.0}
    best = drago.solve(drago.DROProblem(x, y, **kwargs), tol=1e-10)
    problem = drago.DROProblem(x, y, loss=squared, **kwargs)
    for limit in (1, 2, 3, 4, 6, None):
        result = quiet_solve(problem, max_iter=limit)
        radius = float(result.bound.partition("<= ")[2])
        assert f"over ||w|| <= {radius:.3g} only (l2_reg is 0)" in result.message
        assert np.linalg.norm(result.coef) <= 1.01 * radius
        lowest = problem.objective(np.clip(best.coef, -0.99 * radius, 0.99 * radius))
        assert result.dual <= lowest + 1e-9
        assert result.gap >= result.primal - lowest - 1e-9


# ------------------------------------------------------------------------------- deterministic


@pytest.mark.parametrize("loss", LOSSES)
def test_two_solves_are_bit_equal(loss):
    problem = make(loss, fit_intercept=True, uncertainty=drago.KLBall(0.5))
    first = drago.solve(problem, tol=1e-6)
    quiet_solve(problem, tol=0.0, max_iter=30)  # other solves of the same object leave no trace
    quiet_solve(problem, drago.LBFGS(memory=2), max_iter=3)
    drago.certify(problem, first.coef, first.intercept)
    for other in (problem, make(loss, fit_intercept=True, uncertainty=drago.KLBall(0.5))):
        again = drago.solve(other, tol=1e-6)
        for name in ("coef", "dual_weights", "dual_coef"):
            assert getattr(again, name).tobytes() == getattr(first, name).tobytes(), name
        for name in ("primal", "gap", "n_iter", "n_passes", "n_oracle_calls", "bound", "message"):
            assert getattr(again, name) == getattr(first, name), name
        assert np.array_equal(again.history.gap, first.history.gap)


# ----------------------------------------------------------------------- methods of one's own


@pytest.mark.parametrize("loss", LOSSES)
def test_a_method_of_ones_own_is_certified(loss):
    problem = make(loss, fit_intercept=True, shift_cost=0.3, l2_reg=0.1)
    result = drago.solve(problem, GradientDescent(0.1), tol=1e-6)
    assert result.status == "optimal" and result.solver == "descent"
    assert result.message.startswith("descent: optimal after")
    check_sound(problem, result)
    best = drago.solve(problem, tol=1e-10)
    assert result.primal - best.dual <= 2e-6 * (problem.reference[0] - best.dual)
    assert result.coef == pytest.approx(best.coef, abs=1e-2)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("step", [3.0, 1e4, 1e150])
def test_a_method_that_diverges_gives_the_best_point_it_saw(loss, step):
    """Infinite losses on the way (squared) or iterates that end in NaN: a warning, not an error."""
    problem = make(loss, fit_intercept=True, l2_reg=2.0)
    with np.errstate(all="ignore"), pytest.warns(ConvergenceWarning):
        result = drago.solve(problem, GradientDescent(step), max_iter=2000, tol=1e-12)
    assert result.status in ("stalled", "max_iter")
    check_sound(problem, result)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("after", [1, 5])
def test_iterates_that_are_not_finite(bad, after):
    class Diverges(GradientDescent):
        def run(self, problem, loop):
            w, b = loop.start
            for k in range(1, 10):
                loop.observe(Iterate(w + (bad if k >= after else 0.0), b, k, float(k), k))
            return ""

    problem = make()
    with pytest.warns(ConvergenceWarning, match="diverged to NaN or infinity"):
        result = drago.solve(problem, Diverges())
    assert result.status == "stalled"
    check_sound(problem, result)
    assert np.isfinite(result.gap)


def test_observe_ends_a_run_by_stop():
    problem = make()
    loop = Loop(problem, tol=0.0, max_iter=3, quiet=True)

    class Sees(GradientDescent):
        def run(self, problem, loop):
            try:
                return super().run(problem, loop)
            except Stop:
                stops.append(loop.status)
                raise

    stops = []
    assert loop.run(Sees()).status == "max_iter"  # quiet: no warning
    assert stops == ["max_iter"]


def test_weights_of_a_method_may_certify_its_point():
    """shift_cost = 0: the exact weights at a point are a vertex, a method's own can do better."""
    problem = make(shift_cost=0.0)
    best = drago.solve(problem, tol=1e-6)

    class Knows(GradientDescent):
        def run(self, other, loop):
            if other.n_samples == problem.n_samples:
                w, b = problem.to_internal(best.coef)
                loop.observe(Iterate(w, b, 1, 1.0, 1, q=best.dual_weights))
            return "done"

    result = drago.solve(problem, Knows(), tol=1e-5)
    assert result.status == "optimal" and result.n_iter == 1


# ------------------------------------------------------------------------------ losses with NaN


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["losses", "derivatives"])
@pytest.mark.parametrize("start", [1, 4])
def test_a_users_loss_that_is_not_finite_is_named(bad, where, start):
    calls = []

    def broken_loss(y, raw):
        calls.append(0)
        losses, slopes = squared(y, raw)
        if len(calls) >= start:
            (losses if where == "losses" else slopes)[7] = bad
        return losses, slopes

    X, y = data()
    problem = drago.DROProblem(X, y, loss=broken_loss, shift_cost=0.1)
    with pytest.raises(NonFiniteLossError, match=r"'broken_loss' is NaN .* 1 rows, first on row 7"):
        drago.solve(problem)
    assert issubclass(NonFiniteLossError, ValueError)


# ----------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"tol": -1e-3}, ValueError, r"tol must be a number in \[0, inf\), but -0.001"),
        ({"tol": np.nan}, ValueError, "tol must be"),
        ({"tol": np.inf}, ValueError, "tol must be"),
        ({"tol": "small"}, TypeError, "tol must be a number"),
        ({"tol": None}, TypeError, "tol must be a number"),
        ({"max_iter": 0}, ValueError, "max_iter must be an integer >= 1, but 0 was given"),
        ({"max_iter": -5}, ValueError, "max_iter must be"),
        ({"max_iter": 10.0}, TypeError, r"max_iter must be an integer .* 10.0 \(float\)"),
        ({"max_iter": True}, TypeError, "max_iter must be"),
        ({"time_limit": -1}, ValueError, r"time_limit must be a number in \[0, inf\)"),
        ({"time_limit": np.nan}, ValueError, "time_limit must be"),
        ({"time_limit": "1s"}, TypeError, "time_limit must be"),
        ({"callback": 3}, TypeError, "callback must be a function of one argument, but 3"),
        ({"solver": "simplex"}, ValueError, "solver must be one of 'auto', .*'lbfgs'.*'simplex'"),
        ({"solver": 3}, TypeError, "solver must be one of 'auto'.* settings object"),
        ({"solver": None}, TypeError, "solver must be one of"),
        ({"solver": drago.LBFGS}, TypeError, "solver must be one of"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_in_a_sentence(kwargs, error, match):
    with pytest.raises(error, match=match):
        drago.solve(make(), **kwargs)


def test_something_that_is_no_problem_is_refused():
    with pytest.raises(TypeError, match=r"DROProblem, but a ndarray was given.*DROProblem\(X, y"):
        drago.solve(np.eye(3))


def test_numpy_scalars_are_taken():
    result = quiet_solve(
        make(), tol=np.float32(1e-3), max_iter=np.int64(50), time_limit=np.float64(60.0)
    )
    assert result.status == "optimal"


def test_limits_are_keyword_only():
    with pytest.raises(TypeError):
        drago.solve(make(), "lbfgs", 1e-3)


def test_solver_names_and_settings():
    problem = make()
    named = [drago.solve(problem, name) for name in ("lbfgs", drago.LBFGS(), drago.LBFGS(20))]
    assert all(result.solver == "lbfgs" for result in named)
    assert len({result.coef.tobytes() for result in named}) == 1
    assert drago.solve(problem, "auto").status == "optimal"
    assert drago.solve(problem).coef.tobytes() == drago.solve(problem, "auto").coef.tobytes()
    short = drago.solve(problem, drago.LBFGS(memory=1), tol=1e-8)
    assert short.status == "optimal"
    assert short.coef.tobytes() != drago.solve(problem, tol=1e-8).coef.tobytes()


def test_settings_of_lbfgs():
    settings = drago.LBFGS()
    assert settings.memory == 20 and settings == drago.LBFGS(memory=20)
    assert repr(settings).startswith("LBFGS(memory=20, ")
    assert hash(settings) == hash(drago.LBFGS(20))
    with pytest.raises(FrozenInstanceError):
        settings.memory = 3
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"memory must be an integer >= 1, but {bad} was"):
            drago.LBFGS(memory=bad)
    for bad in (2.5, "many", None, True):
        with pytest.raises(TypeError, match="memory must be an integer >= 1"):
            drago.LBFGS(memory=bad)


# --------------------------------------------------------------- the objective at the coefficients


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sparse", [False, True])
def test_predictions_that_have_lost_their_digits_are_not_believed(loss, sparse):
    """A sum of huge steps may say that a point is good where the point itself is far off."""

    class Drifts(GradientDescent):
        def run(self, problem, loop):
            w, b = loop.start
            ev = problem.evaluate(w, b)
            step = problem.evaluate(w - 1e-3, b)
            better = ev._replace(w=w + 1e22, losses=0.5 * ev.losses, raw=step.raw)
            loop.observe(Iterate(better.w, b, 1, 1.0, 1, better, milestone=True, is_sum=True))
            return "it is done"

    problem = make(loss)
    if sparse:
        X, y = data(loss)
        problem = drago.DROProblem(sp.csr_array(X), y, loss=loss, shift_cost=0.05)
    result = quiet_solve(problem, Drifts())
    assert result.primal == pytest.approx(problem.objective(result.coef), rel=1e-12)
    assert result.primal <= problem.reference[0]
