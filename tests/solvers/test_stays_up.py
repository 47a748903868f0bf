"""DRAGO with its defaults on whatever may come: a certified answer, or an outcome with a name."""

import itertools
import time
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import cases
import drago
from drago.problem import NonFiniteLossError

TOL = 1e-4
LOSSES = ("squared", "huber", "logistic", "multinomial")
REGRESSIONS = ("squared", "huber")
CLASSIFICATIONS = ("logistic", "multinomial")
BOTH = (False, True)
N, D = 300, 6


def target(loss, z):
    if loss == "logistic":
        return (z > 0).astype(float)
    if loss == "multinomial":
        return np.digitize(z, [-1.0, 2.0])
    return z


def data(loss="squared", n=N, d=D, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, target(loss, X @ rng.standard_normal(d) + rng.standard_normal(n) + 1.0)


def make(loss="squared", X=None, y=None, **options):
    given = data(loss)
    X, y = given[0] if X is None else X, given[1] if y is None else y
    return drago.DROProblem(X, y, loss=options.pop("own", loss), **options)


def solve(problem, solver="drago", **kwargs):
    """The result, with a warning exactly where it is not optimal."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")  # such as NumPy's on overflow
        warnings.simplefilter("always", ConvergenceWarning)
        result = drago.solve(problem, solver, **{"tol": TOL, **kwargs})
    assert [str(w.message) for w in caught] == [result.message] * (result.status != "optimal")
    return result


def check_sound(problem, result):
    """Finite, no worse than the trivial model, and what it says of itself holds, seen afresh."""
    assert np.isfinite(result.coef).all() and np.isfinite(result.intercept).all()
    assert np.isfinite(result.dual_weights).all()
    for value in (result.primal, result.gap, result.rel_gap, result.dual):
        assert np.isfinite(value)
    assert result.gap >= 0 and result.rel_gap <= 1.0 + 1e-6
    assert problem.constraint.contains(problem.to_internal(result.coef, result.intercept)[0])
    P0 = problem.reference[0]
    assert cases.no_worse(result, P0)
    primal = drago.certify(problem, result.coef, result.intercept).primal
    assert primal == pytest.approx(result.primal, rel=1e-12, abs=1e-300)
    bound = drago.certify(problem, result.dual_coef, result.dual_intercept, result.dual_weights)
    assert bound.dual >= result.dual - 1e-13 * max(abs(P0), abs(result.dual))


def check_optimal(problem, result):
    check_sound(problem, result)
    assert result.status == "optimal" and result.rel_gap <= TOL, result.message


def check_named(problem, result):
    """For what is hard: optimal, or stalled, sound, and with a word on what to do."""
    check_sound(problem, result)
    assert result.status in ("optimal", "stalled"), result.message
    if result.status == "stalled":
        assert "no further progress" in result.message and "raise tol" in result.message


# Where the Newton steps that finish do not get to the end.
HARD = {
    ("mean", "logistic"), ("mean", "multinomial"),
    ("zero", "huber", True), (drago.Box, "huber"),
    ("of all scales, float32", "multinomial", True),
    ("of all scales, float32", "multinomial", False),
}  # fmt: skip


def check(problem, result, case):
    (check_named if case in HARD else check_optimal)(problem, result)


# ------------------------------------------------------------------------------ data of all kinds

SCALES = np.logspace(-6, 6, D)


def constant_columns(X):
    X = X.copy()
    X[:, 0], X[:, 1], X[:, 2] = 1.0, 1e4, 0.0
    return X


def zero_columns(X):
    X = X.copy()
    X[:, ::2] = 0.0
    return X


FEATURES = {
    "large": lambda X: X * 1e6,
    "small": lambda X: X * 1e-6,
    "of all scales": lambda X: X * SCALES,
    "of all scales, float32": lambda X: (X * SCALES).astype(np.float32),
    "of all scales, sparse": lambda X: sp.csr_array(X * SCALES),
    "far from 0": lambda X: X + 1e4,
    "constant columns": constant_columns,
    "zero columns": zero_columns,
    "zero": lambda X: X * 0.0,
    "zero, sparse": lambda X: sp.csr_array(X * 0.0),
    "collinear": lambda X: np.hstack([X, X, X[:, :1] * 1e3]),
    "one column": lambda X: X[:, :1],
}


@pytest.mark.parametrize("name, loss, intercept", cases.thinned(FEATURES, LOSSES, BOTH, keep=4))
def test_features(name, loss, intercept):
    problem = make(loss, FEATURES[name](data(loss)[0]), fit_intercept=intercept)
    check(problem, solve(problem), (name, loss, intercept))


@pytest.mark.parametrize("scale", [1e6, 1e-6])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_answer_does_not_depend_on_the_unit_of_the_features(loss, scale):
    X = data(loss)[0]
    here = make(loss, X, l2_reg=1e-3)
    there = make(loss, X * scale, l2_reg=1e-3 * scale**2)
    results = [solve(problem, tol=1e-8) for problem in (here, there)]
    assert {result.status for result in results} == {"optimal"}
    np.testing.assert_allclose(results[1].coef * scale, results[0].coef, atol=1e-3)


TARGETS = {
    "zero": lambda y: 0.0 * y,
    "constant": lambda y: 0.0 * y + 3.0,
    "constant, large": lambda y: 0.0 * y - 1e6,
    "large": lambda y: y * 1e8,
    "small": lambda y: y * 1e-8,
    "far from 0": lambda y: y + 1e8,
    "heavy-tailed": lambda y: y + np.random.default_rng(1).standard_cauchy(y.size),
    "one outlier": lambda y: np.where(np.arange(y.size) == 7, 1e6, y),
}


@pytest.mark.parametrize("solver", ["drago", "newton", "lbfgs", "auto"])
@pytest.mark.parametrize("seed", range(4))
def test_targets_whose_losses_add_up_to_infinity(solver, seed):
    """Each loss is a number, but hardly: an answer or a stall, and no search without end."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((100, 3))
    y = (X.sum(axis=1) + rng.standard_normal(100)) * 10.0**153.2
    settings = {"shift_cost": 0.1, "l2_reg": 0.1, "uncertainty": drago.CVaR(0.3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = drago.solve(drago.DROProblem(X, y, **settings), solver)
    assert result.status in ("optimal", "stalled")
    assert np.isfinite(result.coef).all() and 0.0 <= result.rel_gap <= 1.0
    assert (result.status == "optimal") == (result.rel_gap <= 1e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("intercept", BOTH)
@pytest.mark.parametrize("loss", REGRESSIONS)
@pytest.mark.parametrize("name", TARGETS)
def test_targets(name, loss, intercept):
    problem = make(loss, y=TARGETS[name](data(loss)[1]), fit_intercept=intercept)
    check_optimal(problem, solve(problem))


def rare(loss):
    return (np.arange(N) == 7).astype(float)


CLASSES = {
    "one rare": {"y": rare},
    "separable": {"y": lambda loss: target(loss, 2 * data(loss)[0][:, 0]), "l2_reg": 1e-8},
    "separable, hardly penalised": {
        "y": lambda loss: target(loss, 2 * data(loss)[0][:, 0]), "l2_reg": 1e-12},
    "conflicting": {"y": lambda loss: np.arange(N) % (2 + (loss == "multinomial")),
                    "X": np.repeat(data()[0][:30], 10, axis=0)},
}  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("intercept", BOTH)
@pytest.mark.parametrize("loss", CLASSIFICATIONS)
@pytest.mark.parametrize("name", CLASSES)
def test_classes(name, loss, intercept):
    options = dict(CLASSES[name])
    y = options.pop("y")(loss)
    problem = make(loss, y=y, fit_intercept=intercept, **options)
    check_optimal(problem, solve(problem))


@pytest.mark.parametrize("intercept", BOTH)
def test_a_class_without_rows(intercept):
    y = data("multinomial")[1]
    problem = make("multinomial", y=np.where(y == 1, 4, y), fit_intercept=intercept)
    result = solve(problem)
    check_optimal(problem, result)
    assert result.coef.shape == (5, D)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "loss, intercept",
    list(itertools.product(CLASSIFICATIONS, BOTH)),
)
def test_a_class_that_a_part_of_the_rows_misses(loss, intercept):
    """A part of the 9000 rows would miss the one row of class 1: there is no start on a part."""
    X, _ = data(loss, 9000)
    y = (np.arange(9000) == 1).astype(float)
    if loss == "multinomial":
        y[-1] = 2.0
    problem = make(loss, X, y, fit_intercept=intercept)
    result = solve(problem)
    check_optimal(problem, result)
    assert "started" not in result.message


@pytest.mark.parametrize("loss", CLASSIFICATIONS)
def test_one_class_alone_is_refused(loss):
    with pytest.raises(ValueError, match="at least two classes"):
        make(loss, y=np.ones(N))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("intercept", BOTH)
@pytest.mark.parametrize("loss", LOSSES)
def test_shapes(loss, intercept):
    X, y = data(loss)
    few = np.array([0.0, 1.0, 1.0])
    wide = data(loss, 20, 60)
    shapes = [
        (X[:2], few[:2]),
        (X[:3], few),
        wide,
        (np.repeat(X[:30], 10, axis=0), np.repeat(y[:30], 10)),
        (np.repeat(X[:2], 50, axis=0), np.repeat(few[:2], 50)),
    ]
    if loss in REGRESSIONS:
        shapes.append((X[:1], y[:1]))
    for rows, labels in shapes:
        problem = make(loss, rows, labels, fit_intercept=intercept)
        check_optimal(problem, solve(problem))
    problem = make(loss, *wide, fit_intercept=intercept, l2_reg=1e-9)
    check_optimal(problem, solve(problem))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@pytest.mark.parametrize("loss", LOSSES)
def test_sample_weights(loss, divergence):
    every_third = np.arange(N) % 3 == 0
    uneven = np.where(every_third, 1e-12, 1.0)
    uneven[1] = 1e6
    for weight in (uneven, np.where(every_third, 1e-180, 1.0), np.where(every_third, 1e300, 1.0)):
        problem = make(loss, sample_weight=weight, divergence=divergence)
        check_optimal(problem, solve(problem))


# --------------------------------------------------------------------------- sets of all kinds

SETS = {
    "thin tail": drago.CVaR(1e-6),
    "mean": drago.CVaR(1.0),
    "simplex": drago.Simplex(),
    "one draw": drago.Extremile(1.0),
    "many draws": drago.Extremile(1e4),
    "no aversion": drago.ESRM(1e-8),
    "great aversion": drago.ESRM(1e4),
    "tiny chi2 ball": drago.Chi2Ball(1e-6),
    "wide chi2 ball": drago.Chi2Ball(100.0),
    "tiny KL ball": drago.KLBall(1e-6),
    "wide KL ball": drago.KLBall(100.0),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SETS)
def test_sets(name, loss):
    own = SETS[name].own_divergence
    for divergence in ("chi2", "kl") if own is None else (own,):
        problem = make(loss, uncertainty=SETS[name], divergence=divergence)
        check(problem, solve(problem), (name, loss))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@pytest.mark.parametrize("loss", LOSSES)
def test_costs(loss, divergence):
    problem = make(loss, shift_cost=1e8, divergence=divergence)
    check_optimal(problem, solve(problem))
    for penalty in (1e-8, 1e8):
        problem = make(loss, l2_reg=penalty, divergence=divergence)
        check_optimal(problem, solve(problem))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cost", [1e-8, 0.0])
@pytest.mark.parametrize("divergence, intercept", [("chi2", False), ("kl", True)])
@pytest.mark.parametrize("loss", LOSSES)
def test_hardly_any_shift_cost(loss, divergence, intercept, cost):
    """A problem that is not smooth, or hardly; some of these no solver here certifies."""
    problem = make(loss, shift_cost=cost, divergence=divergence, fit_intercept=intercept)
    result = solve(problem, max_iter=400)
    check_sound(problem, result)
    assert result.status in ("optimal", "stalled", "max_iter"), result.message


@pytest.mark.parametrize("loss", LOSSES)
def test_no_penalty(loss):
    """Without a penalty the bound holds over a ball only, and the message says so."""
    problem = make(loss, l2_reg=0.0)
    result = solve(problem)
    check_sound(problem, result)
    if result.status != "optimal":
        assert result.status == "stalled" and "l2_reg is 0" in result.message


@pytest.mark.parametrize("constraint", [drago.Box(0, 0), drago.L2Ball(1e-6), drago.NonNegative()])
@pytest.mark.parametrize("loss", LOSSES)
def test_constraints(loss, constraint):
    problem = make(loss, constraint=constraint, fit_intercept=True)
    check(problem, solve(problem), (type(constraint), loss))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("size", [N - 1, N, 10 * N])
@pytest.mark.parametrize("loss", LOSSES)
def test_large_blocks(loss, size):
    problem = make(loss)
    for primal in ("auto", "blocks"):
        method = drago.Drago(block_size=size, primal=primal)
        check_optimal(problem, solve(problem, method))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_blocks_of_one_row(loss):
    problem = make(loss)
    check_optimal(problem, solve(problem, drago.Drago(block_size=1, primal="blocks")))
    few = make(loss, *data(loss, 40))
    check_optimal(few, solve(few, drago.Drago(block_size=1)))


# ---------------------------------------------------------------------------------- early ends


@pytest.mark.thinned(2)
@pytest.mark.parametrize("intercept", BOTH)
@pytest.mark.parametrize("loss", LOSSES)
def test_limits(loss, intercept):
    problem = make(loss, fit_intercept=intercept)
    for kwargs, status in [
        ({"max_iter": 1}, "max_iter"),
        ({"time_limit": 0}, "time_limit"),
        ({"time_limit": 1e-6}, "time_limit"),
    ]:
        result = solve(problem, tol=1e-14, **kwargs)
        check_sound(problem, result)
        assert result.status == status and result.n_iter <= 1
        assert f"{status}=" in result.message and f"raise {status}, or tol" in result.message


def test_a_time_limit_is_kept():
    problem = make("multinomial", shift_cost=1e-8)  # takes for ever
    solve(problem, max_iter=4)
    began = time.process_time()  # of this process alone, however busy the machine
    result = solve(problem, tol=0.0, time_limit=0.05)
    assert time.process_time() - began < 2.0
    check_sound(problem, result)
    assert result.status == "time_limit" and "raise time_limit" in result.message
    large = make("logistic", *data("logistic", 20_000, 20))
    for limit in (0.0, 0.01, 0.05):
        began = time.process_time()
        result = solve(large, tol=0.0, time_limit=limit)
        assert time.process_time() - began < 2.0
        check_sound(large, result)
        assert result.status == "time_limit"


@pytest.mark.parametrize("intercept", BOTH)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_ctrl_c_in_a_callback(after, intercept):
    seen = []

    def callback(state):
        seen.append(state.primal)
        if len(seen) > after:
            raise KeyboardInterrupt

    problem = make("logistic", fit_intercept=intercept)
    result = solve(problem, tol=1e-14, callback=callback)
    check_sound(problem, result)
    assert result.status == "interrupted" and "interrupted after" in result.message
    assert len(seen) == after + 1 and result.primal <= min(seen)


# -------------------------------------------------------------------------- code of the user's own


class Squared:
    """A user's own loss, in which something happens at one of the calls or from it on."""

    def __init__(self, call=None, event=None, on=True):
        self.call, self.event, self.on, self.calls = call, event, on, 0

    def __call__(self, y, raw):
        self.calls += 1
        losses, slopes = 0.5 * (raw - y) ** 2, raw - y
        due = self.call is not None and self.calls >= self.call
        if due and (self.on or self.calls == self.call):
            if isinstance(self.event, BaseException):
                raise self.event
            place, value = self.event
            (losses if place == "losses" else slopes)[0] = value
        return losses, slopes


# The first calls are for the reference, later ones in blocks, in certificates and in a finish.
# There are about fifty in a solve to its end; how many depends on rounding.
CALLS = (1, 2, 3, 4, 5, 7, 10, 13, 20, 30, 40)


def test_a_loss_of_ones_own():
    for own in (Squared(), lambda y, raw: (np.logaddexp(0, raw) - y * raw, np.tanh(raw / 2) / 2)):
        if not isinstance(own, Squared):
            X, y = data("logistic")
            problem = drago.DROProblem(X, y - 0.5, loss=own)
        else:
            problem = make(own=own)
        result = solve(problem)
        check_optimal(problem, result)


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_in_a_loss(call):
    """Once, as a user would press it: the best point so far is returned."""
    loss = Squared(call, KeyboardInterrupt(), on=False)
    problem = make(own=loss, shift_cost=0.1)
    result = solve(problem, tol=1e-13)
    assert result.status == "interrupted", result.message
    assert loss.calls >= call
    check_sound(problem, result)


@pytest.mark.parametrize("call", CALLS)
def test_an_error_in_a_loss_propagates(call):
    class OfMyOwn(Exception):
        pass

    problem = make(own=Squared(call, OfMyOwn("look here")), shift_cost=0.1)
    with pytest.raises(OfMyOwn, match=r"^look here$"):
        drago.solve(problem, "drago", tol=1e-13)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("event", [("losses", np.nan), ("losses", np.inf), ("slopes", np.nan),
                                   ("slopes", -np.inf)])  # fmt: skip
@pytest.mark.parametrize("call", CALLS)
def test_a_loss_that_is_not_finite(call, event):
    """From some call on, for good: an error that names the loss, the row and the prediction."""
    problem = make(own=Squared(call, event), shift_cost=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(NonFiniteLossError, match=r"the loss 'Squared' is NaN or infinite.*row"):
            drago.solve(problem, "drago", tol=1e-13)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("event", [("losses", np.nan), ("slopes", np.nan)])
@pytest.mark.parametrize("call", CALLS[4:])
def test_a_loss_that_is_not_finite_once(call, event):
    """A single slip is survived, or is an error with a name; never a wrong answer."""
    loss = Squared(call, event, on=False)
    problem = make(own=loss, shift_cost=0.1)
    try:
        result = solve(problem, tol=TOL)
    except NonFiniteLossError as error:
        assert "Squared" in str(error)
        return
    check_optimal(make(shift_cost=0.1), result)


def explosive(y, raw):
    """NaN for predictions that the optimum does not need, as overflow may make it."""
    return np.where(np.abs(raw) > 50.0, np.nan, 0.5 * (raw - y) ** 2), raw - y


def too_narrow(y, raw):
    """The same for predictions that it does."""
    return np.where(np.abs(raw) > 2.0, np.nan, 0.5 * (raw - y) ** 2), raw - y


def poisson(y, raw):
    with np.errstate(over="ignore"):
        return np.exp(raw) - y * raw, np.exp(raw) - y


def test_a_loss_that_is_not_finite_far_out():
    problem = make(own=explosive, shift_cost=0.1)
    check_optimal(problem, solve(problem))
    with pytest.raises(NonFiniteLossError, match=r"too_narrow.*scale the features"):
        drago.solve(make(own=too_narrow, shift_cost=0.1), "drago")


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_a_loss_that_grows_exponentially(scale):
    """First steps that overflow are taken back; NumPy's own warnings may be heard."""
    X, y = data()
    problem = drago.DROProblem(X * scale, np.round(np.abs(y)), loss=poisson)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = drago.solve(problem, "drago")
    check_optimal(problem, result)


class Garbage:
    """A user's own set that returns what it should not."""

    def __init__(self, weights, largest=1.0):
        self.weights, self.largest = weights, largest

    def worst_case(self, u, c, divergence, p):
        return self.weights(u, p)

    def q_max(self, p):
        return self.largest


def lottery(u, p):
    return np.random.default_rng(int(abs(u.sum()) * 1e6) % 1000).dirichlet(np.ones(p.size))


SETS_OF_OWN = {
    "NaN": (lambda u, p: p * np.nan, ValueError, "finite weights"),
    "too few": (lambda u, p: p[:-1], ValueError, "must return 300"),
    "None": (lambda u, p: None, ValueError, "must return 300"),
    "text": (lambda u, p: ["a"] * p.size, ValueError, "could not convert"),
    "negative": (lambda u, p: -p, ArithmeticError, "check its worst_case"),
    "zero": (lambda u, p: 0.0 * p, ArithmeticError, "check its worst_case"),
    "huge": (lambda u, p: 1e9 * p, ArithmeticError, "check its worst_case"),
    "at random": (lottery, ArithmeticError, "check its worst_case"),
}


@pytest.mark.parametrize("name", SETS_OF_OWN)
def test_a_set_that_returns_garbage(name):
    weights, error, message = SETS_OF_OWN[name]
    problem = make(uncertainty=Garbage(weights), shift_cost=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(error, match=message):
            drago.solve(problem, "drago", max_iter=300)


def test_a_set_that_raises():
    def fail(u, p):
        raise LookupError("no weights today")

    with pytest.raises(LookupError, match="no weights today"):
        drago.solve(make(uncertainty=Garbage(fail), shift_cost=0.1), "drago")
    wrong = Garbage(lambda u, p: p, largest=-1.0)
    with pytest.raises(ArithmeticError, match="check its worst_case"):
        drago.solve(make(uncertainty=wrong, shift_cost=0.1), "drago")
