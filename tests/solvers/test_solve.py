"""What "auto" takes for which problem, what it says, and what goes on where a method stalls."""

import random
import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import cases
import drago
import reference
from drago.loop.loop import Diverged, Iterate, Loop
from drago.problem import NonFiniteLossError
from drago.solvers.choose import choose

LOSSES = ("squared", "huber", "logistic", "multinomial")
IN_METRIC = drago.LBFGS(metric="auto", progressive=True, memory=40)


def quadratic(y, raw):
    """The squared loss, as a user's."""
    return 0.5 * (raw - y) ** 2, raw - y


def softmax(y, raw):
    """Three classes, as a user's."""
    p = np.exp(raw - raw.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    onehot = np.eye(3)[y.astype(int)]
    return -np.log((p * onehot).sum(axis=1)), p - onehot


softmax.n_outputs = 3


class Own:
    """CVaR, as a user's set."""

    def worst_case(self, u, c, divergence, p):
        return drago.CVaR(0.4).worst_case(u, c, divergence, p)

    def q_max(self, p):
        return drago.CVaR(0.4).q_max(p)


def make(**settings):
    if callable(settings.get("loss")):
        loss = settings.pop("loss")
        like = cases.make("multinomial" if loss is softmax else "squared", **settings)
        return drago.DROProblem(
            like.X,
            like.y,
            loss=loss,
            uncertainty=like.uncertainty,
            shift_cost=like.nu,
            l2_reg=like.mu,
            fit_intercept=like.fit_intercept,
            constraint=like.constraint,
        )
    return cases.make(**settings)


def names(problem):
    method, others, _ = choose(problem)
    return method.name, tuple(other.name for other in others)


# ------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize("loss", [*LOSSES, quadratic])
@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.01), drago.Simplex(), drago.Extremile(2.0)])
def test_a_ball_of_coefficients_takes_what_stays_in_it(loss, uncertainty):
    problem = make(loss=loss, uncertainty=uncertainty, constraint=drago.L2Ball(0.7))
    method, others, why = choose(problem)
    own = loss is quadratic  # Newton's method does not know its curvature
    assert (method.name, len(others)) == (("drago", 0) if own else ("newton", 1))
    assert why == f"auto took {method.name}, because it stays in L2Ball(radius=0.7); "
    large = make(n=40_000, d=20, uncertainty=uncertainty, constraint=drago.L2Ball(0.7))
    method, others, _ = choose(large)
    assert method == drago.Drago() and [other.name for other in others] == ["newton"]


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("constraint", [None, drago.Box(-1.0, 1.0), drago.NonNegative()])
def test_a_thin_tail_takes_newton(loss, fit_intercept, constraint):
    """From 0.2 to 2 rows an unknown; with one more or less it is L-BFGS in a metric."""
    unknowns = 4 + fit_intercept
    settings = {"loss": loss, "fit_intercept": fit_intercept, "constraint": constraint}
    settings["divergence"] = "kl"
    thin = make(n=20 * unknowns, uncertainty=drago.CVaR(0.1), **settings)
    method, others, why = choose(thin)
    if loss == "logistic":  # not compiled, on tiny data
        assert method == IN_METRIC
        larger = make(n=2100, uncertainty=drago.CVaR(0.003), **settings)
        assert choose(larger)[0] == drago.Newton()
    else:
        assert method == drago.Newton() and others == (IN_METRIC,)
        size = f"{20 * unknowns} rows and {unknowns} coefficients"
        assert why == f"auto took newton, because there are {size}; "
    thick = make(n=20 * unknowns + 10, uncertainty=drago.CVaR(0.1), **settings)
    method, others, why = choose(thick)
    assert method == IN_METRIC
    assert why == "auto took lbfgs with scaled steps, the fastest on most problems; "
    scarce = make(n=30, uncertainty=drago.CVaR(0.02), **settings)
    assert choose(scarce)[0] == IN_METRIC


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("tail", [0.05, 0.4])
def test_compiled_steps_are_taken_on_small_data(loss, tail):
    """Up to 2^19 entries; up to 2^20 without a shift cost."""
    settings = {"loss": loss, "uncertainty": drago.CVaR(tail), "d": 16}
    for n, shift_cost in ((200, 0.2), (1 << 15, 0.2), (1 << 16, 0.0)):
        problem = make(n=n, shift_cost=shift_cost, **settings)
        assert choose(problem)[0] == drago.Newton()
        if n >= 1 << 15 and (shift_cost > 0 or loss == "logistic"):
            larger = make(n=n + 1, shift_cost=shift_cost, **settings)
            assert choose(larger)[0].name == "lbfgs"
    for other in (
        {"divergence": "kl"},
        {"constraint": drago.NonNegative()},
        {"uncertainty": drago.Simplex()},
        {"uncertainty": drago.Extremile(2.0)},
    ):
        assert choose(make(n=2000, **{**settings, **other}))[0].name == "lbfgs"
    sparse = make(n=2000, **settings)
    sparse = sparse._replace(X=sp.csr_array(sparse.X))
    assert choose(sparse)[0].name == "lbfgs"


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_kinks_take_newton_on_large_data(loss):
    """Where the Hessian of the tail costs no more than 1.5 passes: 24 features or so, for all."""
    settings = {"loss": loss, "n": 40_000, "shift_cost": 0.0}
    expected = "lbfgs" if loss == "logistic" else "newton"
    assert choose(make(d=40, uncertainty=drago.CVaR(0.1), **settings))[0].name == expected
    assert choose(make(d=40, uncertainty=drago.CVaR(0.9), **settings))[0].name == "lbfgs"


def test_logistic_losses_in_balls_take_newton_on_tiny_data():
    for uncertainty in (drago.Chi2Ball(1.0), drago.KLBall(0.5)):
        settings = {"uncertainty": uncertainty, "d": 32}
        assert choose(make(loss="logistic", n=1 << 10, **settings))[0] == drago.Newton()
        assert choose(make(loss="logistic", n=(1 << 10) + 1, **settings))[0] == IN_METRIC
        assert choose(make(loss="huber", n=1 << 10, **settings))[0] == IN_METRIC


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_many_unknowns_never_take_newton_first(fit_intercept):
    """250 with the intercept are few."""
    few = make(
        n=240, d=250 - fit_intercept, uncertainty=drago.CVaR(0.5), fit_intercept=fit_intercept
    )
    assert choose(few)[0] == drago.Newton()
    many = make(
        n=240, d=251 - fit_intercept, uncertainty=drago.CVaR(0.5), fit_intercept=fit_intercept
    )
    assert choose(many)[0] == drago.Drago()  # there are fewer rows than features


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_fewer_rows_than_features_take_no_metric(loss):
    assert choose(make(loss=loss, n=299, d=300, divergence="kl"))[0] == drago.LBFGS()
    assert choose(make(loss=loss, n=300, d=300, divergence="kl"))[0] == IN_METRIC


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_fewer_rows_than_features_take_drago_where_it_is_compiled(loss):
    """A CVaR with chi2 and a shift cost, up to 2^19 entries; logistic losses with l2_reg >= 0.1."""

    def name(n=299, d=300, **settings):
        return choose(make(loss=loss, n=n, d=d, **settings))[0].name

    assert name(l2_reg=0.1) == "drago"
    assert name(l2_reg=0.09) == ("lbfgs" if loss == "logistic" else "drago")
    others = ({"shift_cost": 0.0}, {"divergence": "kl"}, {"uncertainty": drago.Extremile(2.0)})
    for settings in (*others, {"n": 300}, {"d": 1800}, {"constraint": drago.Box(-1.0, 1.0)}):
        assert name(**settings) == "lbfgs"


def test_a_million_well_conditioned_rows_are_started_on_a_part_of_them():
    rng = np.random.default_rng(0)
    for n, taken in ((500_000, drago.LBFGS()), (500_001, IN_METRIC)):
        X = rng.standard_normal((n, 2))
        assert choose(drago.DROProblem(X, X[:, 0], shift_cost=0.1))[0] == taken


@pytest.mark.parametrize(
    "uncertainty",
    [
        drago.Extremile(50.0),
        drago.ESRM(20.0),
        drago.Chi2Ball(20.0),
        drago.KLBall(2.0),
        drago.Spectrum(integral=cases.kink),
    ],
)
def test_other_sets_take_lbfgs_in_a_metric(uncertainty):
    """However few rows have most of the weight."""
    for loss in LOSSES:
        if loss != "logistic":
            assert choose(make(loss=loss, uncertainty=uncertainty))[0] == IN_METRIC
    grouped = make(uncertainty=drago.Grouped(drago.CVaR(0.01)), groups=np.arange(37) % 3)
    assert choose(grouped)[0] == IN_METRIC


@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.01), drago.Simplex()])
@pytest.mark.parametrize("loss", ["multinomial", softmax])
def test_several_outputs_never_take_newton_first(loss, uncertainty):
    for fit_intercept in (False, True):
        problem = make(loss=loss, uncertainty=uncertainty, fit_intercept=fit_intercept)
        assert problem.n_outputs == 3
        assert choose(problem)[0].name == "lbfgs"


@pytest.mark.parametrize("l2_reg, n, metric", [(0.01, 200, "euclidean"), (0.01, 220, "auto"),
                                               (0.2, 200, "auto")])  # fmt: skip
def test_several_outputs_and_few_rows_take_plain_lbfgs(l2_reg, n, metric):
    """Fewer than 10 rows for each of the 21 coefficients, and little l2_reg; not compiled."""
    problem = make(loss="multinomial", n=n, d=7, l2_reg=l2_reg)
    assert choose(problem)[0].metric == "auto"
    assert choose(problem._replace(X=np.asfortranarray(problem.X)))[0].metric == metric


def test_several_outputs_and_very_few_unknowns_take_newton():
    for settings, expected in (
        ({"d": 6, "l2_reg": 0.09}, "newton"),
        ({"d": 6, "l2_reg": 0.1}, "lbfgs"),
        ({"d": 6, "l2_reg": 0.09, "fit_intercept": True}, "lbfgs"),
    ):
        problem = make(loss="multinomial", n=100, **settings)
        assert choose(problem)[0].name == "lbfgs"  # compiled
        assert choose(problem._replace(X=np.asfortranarray(problem.X)))[0].name == expected


def test_kinks_take_newton_on_tiny_data():
    """For any divergence: up to 2^13 entries, with a shift cost of 1% of P_0."""
    settings = {"d": 8, "uncertainty": drago.CVaR(0.5), "divergence": "kl"}
    for n, share, expected in (
        (1 << 10, 0.0099, "newton"),
        ((1 << 10) + 1, 0.0099, "lbfgs"),
        (1 << 10, 0.02, "lbfgs"),
    ):
        reference = make(n=n, shift_cost=0.0, **settings).reference[0]
        assert choose(make(n=n, shift_cost=share * reference, **settings))[0].name == expected


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_well_conditioned_features_take_plain_lbfgs(loss):
    """Where there are many rows, few features and constant curvature."""
    constant = loss != "logistic"
    settings = {"loss": loss, "divergence": "kl"}
    many = make(n=5000, **settings)
    assert choose(many)[0].metric == ("euclidean" if constant else "auto")
    assert choose(make(n=4999, **settings))[0].metric == "auto"
    wide = make(n=5000, d=101, **settings)
    assert choose(wide)[0].metric == "auto"
    scaled = many._replace(X=many.X * [1.0, 1.0, 1.0, 4.0])
    assert choose(scaled)[0].metric == "auto"


@pytest.mark.parametrize("loss", [quadratic, softmax])
@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.01), drago.CVaR(0.9), drago.Simplex()])
def test_a_users_loss_has_no_others(loss, uncertainty):
    assert choose(make(loss=loss, uncertainty=uncertainty))[:2] == (IN_METRIC, ())


def test_a_users_set_has_no_newton():
    for loss in LOSSES:
        method, others, _ = choose(make(loss=loss, uncertainty=Own()))
        assert method == IN_METRIC and others == (drago.LBFGS(),)


def test_newton_goes_on_where_its_steps_are_cheap():
    assert names(make(n=300, d=5, divergence="kl")) == ("lbfgs", ("newton", "lbfgs"))
    rng = np.random.default_rng(0)
    wide = drago.DROProblem(
        sp.csr_array(np.where(rng.random((500, 900)) < 0.01, 1.0, 0.0)),
        rng.standard_normal(500),
        uncertainty=drago.CVaR(0.5),
        shift_cost=0.1,
    )
    assert names(wide) == ("lbfgs", ("lbfgs",))


def refused(function):
    """An error in this thread; others, as those of a cluster of another test, go on."""
    here = threading.get_ident()

    def call(*args, **kwargs):
        if threading.get_ident() == here:
            raise AssertionError("the choice looks at the clock, or draws")
        return function(*args, **kwargs)

    return call


def test_the_choice_is_made_by_the_problem_alone(monkeypatch):
    """The same for an equal problem; no clock is read and nothing drawn."""
    kinds = [
        {"loss": loss, "uncertainty": uncertainty, "constraint": constraint, "n": n}
        for loss in LOSSES
        for uncertainty in (drago.CVaR(0.15), drago.CVaR(0.6), drago.KLBall(0.3))
        for constraint in (None, drago.L2Ball(1.0), drago.NonNegative())
        for n in (20, 500)
    ]
    first = [choose(make(**kind)) for kind in kinds]
    problems = [make(**kind) for kind in kinds]
    with monkeypatch.context() as patch:
        for clock in ("perf_counter", "time", "monotonic", "process_time", "perf_counter_ns"):
            patch.setattr(time, clock, refused(getattr(time, clock)))
        patch.setattr(np.random, "default_rng", refused(np.random.default_rng))
        patch.setattr(random, "random", refused(random.random))
        again = [choose(problem) for problem in problems]
    assert again == first
    assert len({method.name for method, _, _ in first}) == 2


# --------------------------------------------------------------------------- what is said


SAID = {
    "drago": (
        {"constraint": drago.L2Ball(0.7), "loss": quadratic},
        "auto took drago, because it stays in L2Ball",
    ),
    "newton": (
        {"uncertainty": drago.CVaR(0.1)},
        "auto took newton, because there are 60 rows and 4 coefficients; newton: optimal after ",
    ),
    "lbfgs": (
        {"divergence": "kl"},
        "auto took lbfgs with scaled steps, the fastest on most problems; lbfgs: optimal after ",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_the_message_says_what_was_taken_and_why(name):
    settings, said = SAID[name]
    result = drago.solve(make(n=60, **settings))
    assert result.status == "optimal" and result.solver == name
    assert result.message.startswith(said)
    assert f"; {name}: optimal after " in result.message
    # A solver that was asked for needs no reason.
    asked = drago.solve(make(n=60, **settings), name)
    assert asked.message.startswith(f"{name}: ") and asked.solver == name


def test_a_start_on_a_part_is_said():
    problem = make(loss="logistic", n=8000, d=3, fit_intercept=True, divergence="kl")
    result = drago.solve(problem, tol=1e-8)
    assert result.status == "optimal"
    assert "problems; lbfgs (started from 2000 of 8000 rows)" in result.message
    assert drago.certify(problem, result.coef, result.intercept).rel_gap <= 1e-8


# ------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_ball_is_certified(loss, fit_intercept):
    problem = make(loss=loss, constraint=drago.L2Ball(0.4), fit_intercept=fit_intercept)
    result = drago.solve(problem)
    assert result.status == "optimal" and result.rel_gap <= 1e-4
    assert np.linalg.norm(result.coef) <= 0.4 * (1 + 1e-12)
    assert drago.certify(problem, result.coef, result.intercept).rel_gap <= 1.01e-4


@pytest.mark.thinned(2)
@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize(
    ("constraint", "described"),
    [(drago.Box(-0.2, 0.3), ("box", -0.2, 0.3)), (drago.NonNegative(), ("nonnegative",))],
)
def test_boxes_against_cvxpy(loss, constraint, described, thin):
    tail = 0.1 if thin else 0.9
    problem = make(loss=loss, n=30, uncertainty=drago.CVaR(tail), constraint=constraint)
    newton = thin and loss == "squared"
    assert choose(problem)[0].name == ("newton" if newton else "lbfgs")
    result = drago.solve(problem, tol=1e-8)
    assert result.status == "optimal" and result.rel_gap <= 1e-8
    optimum, w, _ = reference.solve_problem(
        problem.X, problem.y, loss, ("cvar", tail), "chi2", 0.2, 0.1, None, False, described
    )
    assert result.primal == pytest.approx(optimum, rel=1e-6)
    assert result.coef == pytest.approx(w, abs=2e-3)
    assert problem.constraint.contains(problem.to_internal(result.coef)[0])


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    "constraint", [None, drago.Box(-0.2, 0.3), drago.NonNegative(), drago.L2Ball(0.4)], ids=repr
)
def test_a_users_loss_is_solved_as_the_built_in_one(constraint, fit_intercept):
    settings = {"constraint": constraint, "fit_intercept": fit_intercept}
    own = drago.solve(make(loss=quadratic, **settings), tol=1e-6)
    built_in = drago.solve(make(loss="squared", **settings), tol=1e-9)
    assert own.status == "optimal"
    assert abs(own.primal - built_in.primal) <= own.gap + built_in.gap
    assert np.linalg.norm(own.coef - built_in.coef) <= 1e-2


@pytest.mark.parametrize("constraint", [None, drago.Box(-0.2, 0.3), drago.L2Ball(0.4)], ids=repr)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_users_set_is_solved_as_the_built_in_one(loss, constraint):
    own = drago.solve(make(loss=loss, uncertainty=Own(), constraint=constraint), tol=1e-6)
    built_in = drago.solve(make(loss=loss, constraint=constraint), tol=1e-9)
    assert own.status == "optimal"
    assert abs(own.primal - built_in.primal) <= own.gap + built_in.gap
    assert np.linalg.norm(own.coef - built_in.coef) <= 1e-2


@pytest.mark.parametrize("tail", [0.1, 0.5])
@pytest.mark.parametrize("loss", LOSSES)
def test_weight_k_is_k_copies(loss, tail):
    problem = make(loss=loss, n=40, fit_intercept=True)
    k = np.random.default_rng(1).integers(1, 4, 40)
    settings = {
        "loss": loss,
        "uncertainty": drago.CVaR(tail),
        "shift_cost": 0.2,
        "l2_reg": 0.1,
        "fit_intercept": True,
    }
    weighted = drago.DROProblem(problem.X, problem.y, sample_weight=k, **settings)
    copied = drago.DROProblem(np.repeat(problem.X, k, 0), np.repeat(problem.y, k), **settings)
    first, second = (drago.solve(each, tol=1e-10) for each in (weighted, copied))
    for result in (first, second):
        assert result.status == "optimal" and result.message.startswith("auto took ")
    assert first.primal == pytest.approx(second.primal, rel=1e-9)
    assert first.coef == pytest.approx(second.coef, abs=1e-7)
    assert first.intercept == pytest.approx(second.intercept, abs=1e-7)


# ------------------------------------------------------------------------------ the fallback


class Stub:
    """A method that makes a few steps downhill, and then does as it is told."""

    name = "stub"

    def __init__(self, end, steps=0, name="stub"):
        self.end, self.steps, self.name, self.reached = end, steps, name, None

    def check(self, problem):
        pass

    def run(self, problem, loop):
        (w, b), oracle = loop.start, problem.dual_oracle()
        for k in range(1, self.steps + 1):
            ev = problem.evaluate(w, b)
            weighted = oracle.weights(ev.losses, problem.nu)[:, None] * ev.dlosses
            w = w - 0.1 * (problem.rows.weighted_sum(weighted) + problem.mu * w)
            loop.observe(Iterate(w, b, k, float(k), k * problem.n_samples))
            self.reached = w
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


class Refuses(Stub):
    def check(self, problem):
        raise ValueError("not for me.")


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_another_method_goes_on_where_one_gives_up(loss, steps):
    problem = make(loss=loss)
    loop = Loop(problem, tol=1e-8, others=(drago.LBFGS(),), why="because; ")
    result = loop.run(Stub("the dog ate it", steps))
    assert result.status == "optimal" and result.rel_gap <= 1e-8
    assert result.solver == "stub"
    assert result.message.startswith(f"because; stub (finished by lbfgs from iteration {steps} on)")
    assert result.n_iter > steps and result.n_passes > steps
    alone = drago.solve(problem, drago.LBFGS(), tol=1e-8)
    assert abs(result.primal - alone.primal) <= result.gap + alone.gap


def test_no_other_method_is_asked_where_one_is_done():
    problem = make()
    other = Stub("never asked", 1)
    result = Loop(problem, tol=1e-6, others=(other,)).run(drago.LBFGS())
    assert result.status == "optimal" and "finished by" not in result.message
    assert other.reached is None
    # Nor where it ended by giving up at a point that turns out to be good enough.
    result = Loop(problem, tol=0.9, others=(other,)).run(Stub("that will do", 40))
    assert result.status == "optimal" and other.reached is None


@pytest.mark.parametrize(
    "error", [NonFiniteLossError("the loss is NaN on row 3"), Diverged("far away")], ids=repr
)
@pytest.mark.parametrize("steps", [0, 5])
def test_another_method_that_breaks_does_not_hide_the_answer(error, steps):
    problem, first = make(), Stub("the dog ate it", 20)
    broken = Stub(error, steps, "broken")
    loop = Loop(problem, tol=1e-12, others=(broken,))
    with pytest.warns(ConvergenceWarning, match="no further progress.*the dog ate it"):
        result = loop.run(first)
    assert result.status == "stalled" and result.solver == "stub"
    best = first.reached if steps == 0 else broken.reached
    np.testing.assert_array_equal(result.coef, best[:, 0])
    assert result.primal == pytest.approx(problem.objective(result.coef), rel=1e-14)
    assert np.isfinite(result.gap)
    # The one after it has its turn nevertheless.
    others = (Stub(error, steps, "broken"), drago.LBFGS())
    result = Loop(problem, tol=1e-8, others=others).run(Stub("the dog ate it", 20))
    assert result.status == "optimal"
    assert (
        f"finished by broken from iteration 20 on, finished by lbfgs from iteration {20 + steps}"
        in (result.message)
    )


def test_another_method_that_refuses_the_problem_is_passed_over():
    problem = make()
    others = (Refuses("never run", 1, "refuses"), drago.LBFGS())
    result = Loop(problem, tol=1e-8, others=others).run(Stub("the dog ate it", 2))
    assert result.status == "optimal"
    assert "finished by lbfgs" in result.message and "refuses" not in result.message


def breaks(y, raw):
    """The squared loss, where raw predictions are small."""
    losses, slopes = quadratic(y, raw)
    return np.where(np.abs(raw) > 0.5, np.nan, losses), slopes


def test_a_users_loss_that_breaks_is_not_hidden():
    """It has no others, and its error is the caller's to see."""
    with pytest.raises(NonFiniteLossError, match="'breaks'"):
        drago.solve(make(loss=breaks), tol=1e-8)


def poisson(y, raw):
    """No number where the rate 1 + raw is not positive."""
    rate = np.where(raw > -1.0, 1.0 + raw, np.nan)
    return rate - y * np.log(rate), 1.0 - y / rate


def test_a_users_loss_with_a_border_is_solved_where_the_optimum_lies_inside():
    """Steps that cross the border are cut, and nothing is said of it."""
    rng = np.random.default_rng(2)
    X, y = rng.uniform(0.0, 2.0, (40, 3)), rng.uniform(0.02, 0.3, 40)
    crossed = []

    def watched(y, raw):
        crossed.append((raw <= -1.0).any())
        return poisson(y, raw)

    problem = drago.DROProblem(
        X, y, loss=watched, uncertainty=drago.CVaR(0.7), shift_cost=0.5, l2_reg=1e-2
    )
    result = drago.solve(problem, tol=1e-6)
    assert result.status == "optimal" and any(crossed)
    # No point near it is better.
    for step in rng.standard_normal((50, 3)):
        for size in (1e-2, 1e-3):
            nearby = result.coef + size * step
            if (X @ nearby > -1.0).all():
                assert problem.objective(nearby) >= result.dual


@pytest.mark.parametrize("scale, name", [(1.0, "plain"), (30.0, "metric")])
def test_without_a_shift_cost_it_depends_on_the_features(scale, name):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 4)) * [1.0, 1.0, 1.0, scale]
    settings = {"uncertainty": drago.CVaR(0.5), "divergence": "kl", "shift_cost": 0.0}
    problem = drago.DROProblem(X, X.sum(axis=1), **settings)
    method, others, why = choose(problem)
    assert method.metric == ("euclidean" if name == "plain" else "auto")
    assert ("well-conditioned" in why) == (name == "plain")
    assert others
    assert drago.solve(problem, tol=1e-6).status == "optimal"
    ball = drago.DROProblem(X, X.sum(axis=1), uncertainty=drago.Chi2Ball(1.0), shift_cost=0.0)
    assert choose(ball)[0].metric == "auto"


# ------------------------------------------------------- where nothing is to be learnt


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("uncertainty", ["cvar", "extremile", "simplex", "chi2_ball", "kl_ball"])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_trivial_model_is_certified_without_a_shift_cost(loss, uncertainty, balanced):
    """All losses are equal there: only weights that balance the gradient tell that it is best."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 3))
    y = np.arange(40) % 4 if balanced else rng.integers(0, 4, 40)
    y = y % 2 if loss == "logistic" else y
    problem = drago.DROProblem(
        X, y, loss=loss, uncertainty=uncertainty, shift_cost=0.0, fit_intercept=True
    )
    result = drago.solve(problem)  # without a warning
    assert result.status == "optimal"
    # And of what it says the parts can be checked: no point is better than the bound.
    best = drago.certify(problem, result.dual_coef, result.dual_intercept, result.dual_weights)
    assert best.dual >= result.dual - 1e-12 * abs(result.primal)
    for _ in range(20):
        coef = result.coef + 1e-4 * rng.normal(size=result.coef.shape)
        assert problem.objective(coef, result.intercept) >= result.dual
