"""The certificate is never wrong, and it is tight."""

import warnings

import numpy as np
import pytest
from scipy.special import expit

import drago
import reference
import twins
from cases import DIVERGENCES
from drago.certificate import bounds
from drago.certificate.certify import judge

LOSSES = ("squared", ("huber", 0.7), "logistic", "multinomial")
CONSTRAINTS = {
    "none": (None, None),
    "box": (drago.Box(-0.4, 0.3), ("box", -0.4, 0.3)),
    "nonnegative": (drago.NonNegative(), ("nonnegative",)),
    "l2_ball": (drago.L2Ball(0.5), ("l2_ball", 0.5)),
}
SETS = (
    (drago.CVaR(0.3), ("cvar", 0.3)),
    (drago.CVaR(0.05), ("cvar", 0.05)),
    (drago.Simplex(), ("simplex",)),
    (drago.Extremile(2.0), ("extremile", 2.0)),
    (drago.ESRM(1.0), ("esrm", 1.0)),
    (drago.Chi2Ball(1.0), ("chi2_ball", 1.0)),
    (drago.KLBall(0.5), ("kl_ball", 0.5)),
    (drago.Grouped(drago.CVaR(0.5)), ("grouped", ("cvar", 0.5), None)),
)


class Case:
    """A random problem, its reference optimum and its object."""

    def __init__(
        self,
        seed,
        *,
        nus=(0.3, 0.01, 0.0),
        mus=(1.0, 1e-1, 1e-3),
        constraints=CONSTRAINTS,
        baseline=0.0,
    ):
        rng = np.random.default_rng(seed)
        self.rng = rng
        loss = LOSSES[seed % 4]
        uncertainty, set_ = SETS[(seed // 4) % len(SETS)]
        divergence = uncertainty.match("auto").name
        if uncertainty.own_divergence is None and not isinstance(uncertainty, drago.Grouped):
            divergence = DIVERGENCES[rng.integers(2)]
        n, d = int(rng.integers(6, 9)), int(rng.integers(1, 4))
        X = rng.standard_normal((n, d)) * np.exp(rng.standard_normal(d))
        z = X @ rng.standard_normal(d) + rng.standard_normal(n)
        y = {
            "squared": z,
            "logistic": (z > np.median(z)).astype(float),
            "multinomial": np.argsort(np.argsort(z)) * 3 // n,
        }.get(loss if isinstance(loss, str) else "squared")
        weight = rng.exponential(size=n) + 0.05 if rng.random() < 0.5 else None
        groups = rng.integers(0, 3, n) if set_[0] == "grouped" else None
        if groups is not None:
            set_ = (*set_[:2], groups)
        self.nu, self.mu = float(rng.choice(nus)), float(rng.choice(mus))
        constraint, constraint_tuple = constraints[rng.choice(list(constraints))]
        self.intercept = bool(rng.integers(2))
        # What is attainable: anything from nothing to more than the losses.
        excess = baseline * rng.exponential(size=n) if baseline else None
        self.problem = drago.DROProblem(
            X,
            y,
            loss=drago.Huber(loss[1]) if isinstance(loss, tuple) else loss,
            uncertainty=uncertainty,
            divergence=divergence,
            shift_cost=self.nu,
            l2_reg=self.mu,
            sample_weight=weight,
            groups=groups,
            fit_intercept=self.intercept,
            constraint=constraint,
            baseline=excess,
        )
        p = None if weight is None else weight / weight.sum()
        self.optimum, self.w, self.b = reference.solve_problem(
            X, y, loss, set_, divergence, self.nu, self.mu, p, self.intercept, constraint_tuple,
            excess,
        )  # fmt: skip
        self.scale = max(1.0, abs(self.optimum), baseline)

    def point(self, spread):
        """A point of W around the optimum."""
        coef = np.asarray(self.w) + spread * self.rng.standard_normal(np.shape(self.w))
        w, _ = self.problem.to_internal(coef)
        coef, _ = self.problem.to_public(self.problem.constraint.project(w), np.zeros(w.shape[1]))
        b = 0.0
        if self.intercept:
            b = np.asarray(self.b) + spread * self.rng.standard_normal(np.shape(self.b))
        return coef, b

    def weights(self):
        """Some weights of the set: exact ones at random losses, mixed with the nominal ones."""
        oracle = self.problem.dual_oracle()
        q = oracle.weights(
            self.rng.exponential(size=self.problem.n_samples), self.rng.exponential()
        )
        share = self.rng.random()
        return share * q + (1 - share) * self.problem.p


def check_sandwich(case):
    for spread in (0.0, 1e-3, 0.1, 1.0):
        coef, b = case.point(spread)
        for q in (None, case.weights()):
            found = drago.certify(case.problem, coef, b, q)
            assert found.primal - case.optimum >= -1e-7 * case.scale
            assert case.optimum - found.dual >= -1e-7 * case.scale
            assert found.gap >= 0
            assert found.primal - found.dual == pytest.approx(found.gap, rel=1e-9, abs=1e-12)
            assert (
                case.problem.uncertainty.violation(
                    found.dual_weights, case.problem.p, case.problem.groups
                )
                < 1e-9
            )


# Each loss with each set; the others are like them.
SEEDS = range(32)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_never_wrong(seed):
    """primal >= optimum >= dual, for every loss, set, constraint, with and without intercept."""
    check_sandwich(Case(seed))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(32, 576, 32))
def test_never_wrong_on_many(start):
    for seed in range(start, start + 32):
        check_sandwich(Case(seed))


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(32, 224, 32))]
)
@pytest.mark.parametrize("baseline", [0.5, pytest.param(30.0, marks=pytest.mark.slow)])
def test_never_wrong_with_a_baseline(start, baseline):
    """Losses below 0, objectives of any sign."""
    for seed in range(start, start + 32):
        case = Case(seed, baseline=baseline)
        check_sandwich(case)
        solver = "drago" if isinstance(case.problem.constraint, drago.L2Ball) else "auto"
        with warnings.catch_warnings():
            # A baseline of 30 takes all weight from some classes, whose intercepts then run away.
            warnings.simplefilter("ignore" if baseline > 1 else "error")
            result = drago.solve(case.problem, solver, tol=1e-6)
        assert abs(result.primal - case.optimum) <= result.gap + 1e-7 * case.scale


@pytest.mark.parametrize("start", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (32, 64))])
def test_every_bound_holds_by_itself(start):
    """Tangent and curvature bounds, each at random weights, against the minimum over w."""
    for seed in range(start, start + 32):
        case = Case(seed, nus=(0.3,))
        problem, q = case.problem, case.weights()
        fixed = _at_fixed_weights(problem, q)
        lowest = drago.solve(fixed, tol=1e-10, max_iter=5000).primal if fixed else None
        coef, b = case.point(0.2)
        ev = problem.evaluate(*problem.to_internal(coef, b))
        g = problem.gradient(ev, q)
        value = float(q @ ev.losses) + 0.5 * problem.mu * float(np.vdot(ev.w, ev.w))
        for bound in (
            bounds.tangent_bound(problem, ev, q, g),
            bounds.curvature_bound(problem, ev, q, g, n_rows=problem.n_samples),
            bounds.curvature_bound(problem, ev, q, g, n_rows=problem.n_samples // 2),
        ):
            assert bound >= 0
            if lowest is not None:
                assert value - bound <= lowest + 1e-8 * max(1.0, abs(lowest))


def _at_fixed_weights(problem, q):
    """The plain weighted problem whose nominal weights are q; None where L-BFGS has no answer."""
    if isinstance(problem.constraint, drago.L2Ball):
        return None
    return drago.DROProblem(
        problem.X,
        problem.y,
        loss=problem.loss,
        uncertainty=drago.CVaR(1.0),
        shift_cost=1.0,
        l2_reg=problem.mu,
        sample_weight=np.maximum(q, 0),
        fit_intercept=problem.fit_intercept,
        constraint=problem.constraint,
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(32, 48))]
)
def test_relative_gap_at_the_answer_of_lbfgs(seed):
    boxes = {k: v for k, v in CONSTRAINTS.items() if k != "l2_ball"}
    case = Case(seed, nus=(0.3, 0.05), mus=(1.0, 1e-3), constraints=boxes)
    result = drago.solve(case.problem, solver="lbfgs", tol=1e-9)
    assert result.status == "optimal"
    assert drago.certify(case.problem, result.coef, result.intercept).rel_gap < 1e-8
    assert abs(result.primal - case.optimum) <= 1e-7 * case.scale


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(32, 40))]
)
def test_a_planted_wrong_point_is_never_certified(seed):
    case = Case(seed)
    span = case.problem.reference[0] - case.optimum
    for spread in (0.03, 0.3, 3.0):
        coef, b = case.point(spread)
        found = drago.certify(case.problem, coef, b)
        true = found.primal - case.optimum
        assert found.gap >= true - 1e-7 * case.scale
        if span > 1e-6 * case.scale and true > 1e-4 * case.scale:
            assert found.rel_gap >= 0.99 * min(true / span, 1.0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("shift_cost", [0.1, 1e-2, 1e-3])
@pytest.mark.parametrize("l2_reg", [1.0, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("intercept", [False, True])
def test_tight(loss, shift_cost, l2_reg, intercept):
    """Where the true relative suboptimality is 1e-6, the certified one is at most 1e-5."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 6)) * np.logspace(0, -1, 6)
    z = X @ rng.standard_normal(6) * 3
    y = z + rng.standard_t(4, 300) if loss == "squared" else (z + rng.logistic(size=300) > 0) * 1.0
    for uncertainty in (drago.CVaR(0.1), drago.Extremile(2.0), drago.Chi2Ball(1.0)):
        problem = drago.DROProblem(
            X, y, loss=loss, uncertainty=uncertainty, shift_cost=shift_cost, l2_reg=l2_reg,
            fit_intercept=intercept,
        )  # fmt: skip
        best = drago.solve(problem, tol=1e-9)
        span = problem.reference[0] - best.dual
        direction, shift = rng.standard_normal(6), rng.standard_normal() * intercept

        def at(t, best=best, direction=direction, shift=shift):
            return best.coef + t * direction, best.intercept + t * shift

        low, high = 0.0, 10.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            excess = problem.objective(*at(middle)) - best.primal
            low, high = (middle, high) if excess < 1e-6 * span else (low, middle)
        found = drago.certify(problem, *at(low))
        assert (found.primal - best.dual) / span == pytest.approx(1e-6, rel=1e-2)
        assert found.rel_gap <= 1e-5


def test_user_loss_gets_the_tangent_bound():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)

    def squared(y, raw):
        return 0.5 * (raw - y) ** 2, raw - y

    for intercept in (False, True):
        kwargs = {"shift_cost": 0.1, "l2_reg": 0.1, "fit_intercept": intercept}
        mine = drago.DROProblem(X, y, loss=squared, **kwargs)
        theirs = drago.DROProblem(X, y, loss="squared", **kwargs)
        best = drago.solve(theirs, tol=1e-10)
        for shift in (0.0, 0.01, 1.0):
            b = best.intercept + shift if intercept else 0.0
            found = drago.certify(mine, best.coef + shift, b)
            assert found.bound == "tangent"
            assert found.dual <= best.primal + 1e-12
        assert drago.certify(mine, best.coef, best.intercept).rel_gap < 1e-7


def test_without_regularisation_the_gap_is_restricted_to_a_stated_ball():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 2)), (rng.random(30) > 0.5) * 1.0

    def logistic(y, raw):
        margin = np.where(y > 0, raw, -raw)
        return np.logaddexp(0, -margin), np.where(y > 0, -1, 1) / (1 + np.exp(margin))

    problem = drago.DROProblem(X, y, loss=logistic, shift_cost=0.1, l2_reg=0.0)
    found = drago.certify(problem, np.array([0.1, 0.2]))
    assert found.restricted_to == 1.0 and "||w|| <= 1" in found.bound
    inside = rng.standard_normal((200, 2))
    inside /= np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1.0)
    assert found.dual <= min(problem.objective(w) for w in inside)


def test_curvature_bound_makes_zero_regularisation_certifiable():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.standard_normal(60)
    for intercept in (False, True):
        problem = drago.DROProblem(X, y, shift_cost=0.1, l2_reg=0.0, fit_intercept=intercept)
        result = drago.solve(problem, tol=1e-8)
        assert result.status == "optimal" and result.bound == "curvature"
        assert drago.certify(problem, result.coef, result.intercept).restricted_to is None


def test_infeasible_weights_are_refused():
    problem = drago.DROProblem(np.eye(4), np.arange(4.0), uncertainty=drago.CVaR(0.5))
    with pytest.raises(ValueError, match=r"dual_weights are not allowed by CVaR"):
        drago.certify(problem, np.zeros(4), dual_weights=np.array([1.0, 0, 0, 0]))
    with pytest.raises(ValueError, match="constraint"):
        bounded = drago.DROProblem(np.eye(4), np.arange(4.0), constraint=drago.NonNegative())
        drago.certify(bounded, -np.ones(4))


def test_gap_keeps_falling_below_the_rounding_of_the_objective():
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((50, 3)), 1e3 + rng.standard_normal(50)
    problem = drago.DROProblem(X, y, shift_cost=1.0, l2_reg=1.0)
    best = drago.solve(problem, tol=1e-12)
    gaps = [drago.certify(problem, best.coef + t).gap for t in (1e-6, 1e-8, 1e-10)]
    assert gaps[0] > 50 * gaps[1] > 2500 * gaps[2] or gaps[2] < 1e-14 * best.primal


def test_reported_weights_attain_the_bound():
    case = Case(5)
    coef, b = case.point(0.1)
    found = drago.certify(case.problem, coef, b)
    again = drago.certify(case.problem, coef, b, found.dual_weights)
    assert again.gap <= found.gap * (1 + 1e-9)


def test_judge_stops_at_its_target():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 3)), rng.standard_normal(200)
    problem = drago.DROProblem(X, y, shift_cost=0.1, l2_reg=1.0)
    ev = problem.evaluate(np.zeros((3, 1)), np.zeros(1))
    easy, hard = judge(problem, ev, target=10.0), judge(problem, ev)
    assert easy.n_passes < hard.n_passes
    assert easy.bound == "tangent" and hard.gap <= easy.gap


@pytest.mark.parametrize("distance", [1e-3, 1e-1])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_look_ends_early_only_where_it_would_fail(loss, distance):
    """The heaviest rows tell about what all of them would give, where the loss is quadratic."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40_000, 8))
    y = X @ rng.standard_normal(8) + rng.logistic(size=40_000)
    if loss == "logistic":
        y = (y > 0).astype(float)
    given = {"loss": loss, "uncertainty": drago.CVaR(0.5), "shift_cost": 0.5, "l2_reg": 1e-3}
    problem = drago.DROProblem(X, y, **given)
    best = drago.solve(problem, tol=1e-9).coef.reshape(-1, 1)
    ev = problem.evaluate(best + distance * rng.standard_normal(best.shape), np.zeros(1))
    whole = judge(problem, ev, predictions=0)
    for share in (0.5, 1.01, 2.0):
        target = share * whole.rel_gap
        found = judge(problem, ev, target=target, predictions=0, is_look=True)
        without = judge(problem, ev, target=target, predictions=0)
        if loss == "squared" and share < 1:
            assert 0.5 * whole.gap < found.foreseen < 1.1 * whole.gap
            assert found.rel_gap > target and without.rel_gap > target
            assert found.n_passes < 0.7 * without.n_passes
        else:
            assert found.foreseen == without.foreseen == np.inf
            assert (found.gap, found.n_passes) == (without.gap, without.n_passes)


@pytest.mark.parametrize("share", [0.75, 1.01])
def test_a_look_with_a_loose_target_ends_early_only_where_it_would_fail(share):
    """Far from the optimum the relative gap is far from the gap by what there is to gain."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40_000, 8))
    y = X @ rng.standard_normal(8) + rng.logistic(size=40_000)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.5), shift_cost=0.5, l2_reg=1e-3)
    best = drago.solve(problem, tol=1e-9).coef.reshape(-1, 1)
    ev = problem.evaluate(0.3 * best, np.zeros(1))
    whole = judge(problem, ev, predictions=0)
    assert 0.3 < whole.rel_gap < 0.7
    found = judge(problem, ev, target=share * whole.rel_gap, predictions=0, is_look=True)
    assert (found.rel_gap <= share * whole.rel_gap) == (share > 1)
    assert np.isfinite(found.foreseen) == (share < 1)


def test_a_look_without_hope_for_the_exact_weights_tries_the_others():
    """Weights of a method may be near the optimal ones where those of the losses are not."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40_000, 8))
    y = X @ rng.standard_normal(8) + rng.logistic(size=40_000)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.1), shift_cost=1e-3, l2_reg=1e-3)
    optimum = drago.solve(problem, tol=1e-10)
    w = optimum.coef.reshape(-1, 1) + 1e-2 * rng.standard_normal((8, 1))
    ev, q = problem.evaluate(w, np.zeros(1)), optimum.dual_weights
    alone = judge(problem, ev, target=0.0, predictions=0).rel_gap
    others = judge(problem, ev, q, target=0.0, predictions=0).rel_gap
    assert others < 0.8 * alone
    target = np.sqrt(others * alone)
    found = judge(problem, ev, q, target=target, predictions=0, is_look=True)
    assert np.isfinite(found.foreseen) and found.rel_gap <= target


def test_intercept_certificate_does_not_depend_on_the_origin_of_y():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.standard_normal(80)
    gaps = []
    for shift in (0.0, 1e6):
        problem = drago.DROProblem(X, y + shift, shift_cost=0.1, fit_intercept=True)
        gaps.append(drago.certify(problem, [1.0, -1.0, 0.4], shift).rel_gap)
    assert gaps[1] == pytest.approx(gaps[0], rel=1e-4)


def test_twins_agree_on_the_primal_value():
    case = Case(9)
    coef, b = case.point(0.3)
    found = drago.certify(case.problem, coef, b)
    problem = case.problem
    losses = problem.losses(coef, b)
    q = problem.worst_case_weights(losses)
    value = q @ losses - problem.nu * twins.divergence_value(problem.divergence.name, q, problem.p)
    assert found.primal == pytest.approx(value + 0.5 * problem.mu * np.sum(coef**2), rel=1e-12)


def test_no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case = Case(2)
        drago.certify(case.problem, *case.point(10.0))


def test_rel_gap_is_relative_to_what_there_is_to_gain_however_little():
    """A gain of 1e-9 of P_0 is still a gain: nothing is called trivial because P_0 is large."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    X -= X.mean(axis=0)
    y = 1e4 + 0.5 * X[:, 0]
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(1.0), shift_cost=1.0, l2_reg=1e-6)
    result = drago.solve(problem, tol=1e-4)
    best = np.linalg.solve(X.T @ X / 200 + 1e-6 * np.eye(2), X.T @ y / 200)
    # P - P* as a quadratic form; the difference of the objectives would be rounding.
    quadratic = X.T @ X / 200 + 1e-6 * np.eye(2)
    excess = 0.5 * (result.coef - best) @ quadratic @ (result.coef - best)
    assert result.rel_gap >= 0.99 * excess / (0.5 * best @ quadratic @ best)


def test_a_gap_over_a_ball_is_not_called_optimal():
    rng = np.random.default_rng(0)
    X = 1e-12 * rng.standard_normal((40, 2))
    y = (X[:, 0] > 0).astype(float)

    def logistic(y, raw):
        margin = np.where(y > 0, raw, -raw)
        return np.logaddexp(0, -margin), np.where(y > 0, -1, 1) * expit(-margin)

    with pytest.warns(Warning, match="only"):
        problem = drago.DROProblem(X, y, loss=logistic, shift_cost=0.1, l2_reg=0.0)
        result = drago.solve(problem)
    assert result.status == "stalled"


def test_weights_given_for_a_set_of_ones_own_must_be_checkable():
    class Mine:
        def worst_case(self, u, c, divergence, p):
            return drago.Chi2Ball(0.2).worst_case(u, c, divergence, p)

        def q_max(self, p):
            return drago.Chi2Ball(0.2).q_max(p)

    X, y = np.eye(4), np.arange(4.0)
    problem = drago.DROProblem(X, y, uncertainty=Mine(), divergence="chi2", shift_cost=0.1)
    outside = drago.Chi2Ball(0.6).worst_case(y, 0.0, "chi2", problem.p)
    with pytest.raises(ValueError, match="violation"):
        drago.certify(problem, np.zeros(4), dual_weights=outside)
    Mine.violation = lambda self, q, p: drago.Chi2Ball(0.2).violation(q, p)
    with pytest.raises(ValueError, match="are not allowed by"):
        drago.certify(problem, np.zeros(4), dual_weights=outside)


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-6, 1e-7])
def test_collinear_features_without_regularisation(distance):
    """Curvature bounds at ill-conditioned Hessians allow for their rounding."""
    rng = np.random.default_rng(2)
    base = rng.standard_normal(30)
    X = base[:, None] + distance * rng.standard_normal((30, 3))
    y = base + rng.standard_normal(30)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(1.0), shift_cost=1.0, l2_reg=0.0)
    U, _, _ = np.linalg.svd(X, full_matrices=False)
    optimum = 0.5 * np.sum((y - U @ (U.T @ y)) ** 2) / 30
    for _ in range(20):
        found = drago.certify(problem, rng.standard_normal(3))
        if found.restricted_to is None:
            assert found.dual <= optimum * (1 + 1e-9)


def test_multinomial_without_regularisation_is_certified_by_curvature():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    y = np.digitize(X[:, 0] + rng.standard_normal(80) * 2, [-0.7, 0.7])
    for intercept in (False, True):
        problem = drago.DROProblem(
            X, y, loss="multinomial", shift_cost=0.3, l2_reg=0.0, fit_intercept=intercept
        )
        result = drago.solve(problem, tol=1e-6)
        assert result.status == "optimal" and result.bound == "curvature"


@pytest.mark.parametrize("kind", [drago.CVaR(0.2), drago.Chi2Ball(0.5), drago.KLBall(0.5)], ids=str)
def test_data_that_can_be_fitted_exactly(kind):
    """Losses and slopes vanish together; what is left of them is rounding, and no contradiction."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((20, 3))
        problem = drago.DROProblem(
            X, X @ [1.0, 2.0, 3.0], uncertainty=kind, l2_reg=1e-8, shift_cost=1.0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = drago.solve(problem, "drago", tol=0.0, max_iter=200)
        assert result.rel_gap <= 1e-6


# ------------------------------------------------------------------------------------- far away


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "multinomial"])
def test_a_point_far_away_proves_nothing_that_is_false(loss, intercept):
    """Objective and gap are both huge there, and their difference is rounding."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = X @ np.ones(3) + rng.standard_normal(60)
    if loss in ("logistic", "multinomial"):
        y = np.digitize(y, [0.0] if loss == "logistic" else [-1.0, 1.0])
    problem = drago.DROProblem(
        X, y, loss=loss, uncertainty=drago.CVaR(0.3), shift_cost=0.1, l2_reg=1e-2,
        fit_intercept=intercept,
    )  # fmt: skip
    best = drago.solve(problem, tol=1e-9)
    k = problem.n_outputs
    for power in np.linspace(0.0, 140.0, 29):
        for size, far in ((10.0**power, 1.0), (1.0, 10.0**power)):
            coef = size * rng.standard_normal((k, 3))
            b = far * rng.standard_normal(k) if intercept else np.zeros(k)
            found = drago.certify(problem, coef[0] if k == 1 else coef, b)
            assert found.dual <= best.primal * (1 + 1e-9)
            assert found.gap >= (found.primal - best.primal) * (1 - 1e-9)
