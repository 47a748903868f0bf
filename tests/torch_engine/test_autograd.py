"""Problems by autograd: passes, iterations, certificates, answers, and what is said without one."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import doctest
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.functional import cross_entropy, softplus

import cases
import drago
from drago.metric import make_metric
from drago.problem import NonFiniteLossError
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import Steps
from drago.solvers.drago.variants import SupportIterations
from drago.torch_engine import AutogradProblem, RobustLoss
from drago.training import autograd
from drago.training.curvature import curvature_metric
from drago.training.tables import AutogradBlocks

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
N, D = 45, 4
TABLES = ("blocks", "ring", "full")
KINDS = {"blocks": Iterations, "support": SupportIterations}
SETS = {
    "cvar": drago.CVaR(0.4),
    "esrm": drago.ESRM(2.0),
    "chi2_ball": drago.Chi2Ball(0.5),
    "grouped": drago.Grouped(drago.CVaR(0.5)),
}
PAIRS = [
    ("cvar", "chi2"),
    ("cvar", "kl"),
    ("esrm", "chi2"),
    ("esrm", "kl"),
    ("chi2_ball", "chi2"),
    ("grouped", "kl"),
]


def linear(w, x):
    return x @ w


def squared(prediction, target):
    return 0.5 * (prediction.reshape(target.shape) - target) ** 2


def logistic(score, target):
    return softplus(-(2.0 * target - 1.0) * score.reshape(target.shape), threshold=1e9)


def multinomial(scores, target):
    return cross_entropy(scores, target, reduction="none")


LOSSES = {"squared": squared, "logistic": logistic, "multinomial": multinomial}


def data(loss="squared", n=N, d=D, seed=7):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)
    if loss == "logistic":
        return X, (z > 0).astype(float)
    return X, np.argsort(np.argsort(z)) * 3 // n if loss == "multinomial" else z


def tensors(*arrays):
    return tuple(torch.from_numpy(array) for array in arrays)


def make(loss="squared", n=N, d=D, model=linear, parameters=None, **settings):
    """A problem whose model is linear in its parameters, and convex."""
    X, y = data(loss, n, d)
    if parameters is None and model is linear:
        parameters = torch.zeros((d, 3) if loss == "multinomial" else d)
    settings = {"shift_cost": 0.2, "l2_reg": 0.5, "convex": True} | settings
    return AutogradProblem(model, tensors(X, y), LOSSES[loss], parameters=parameters, **settings)


def on_arrays(loss="squared", n=N, d=D, **settings):
    X, y = data(loss, n, d)
    return drago.DROProblem(X, y, loss=loss, **({"shift_cost": 0.2, "l2_reg": 0.5} | settings))


def mlp(seed=0, **settings):
    """A small network that is not convex in its parameters."""
    torch.manual_seed(seed)
    X, y = data(n=120)
    module = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 1))
    settings = {"shift_cost": 0.1, "l2_reg": 1e-2, "dtype": torch.float64} | settings
    return module, AutogradProblem(module, tensors(X, np.sin(y)), squared, **settings)


# ------------------------------------------------------------------------------------- passes


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_on_arrays(loss, weighted):
    rng = np.random.default_rng(0)
    settings = {"uncertainty": drago.CVaR(0.3)}
    if weighted:
        settings["sample_weight"] = rng.integers(0, 4, size=N).astype(float)
    ours, theirs = make(loss, **settings), on_arrays(loss, **settings)
    assert ours.n_samples == theirs.n_samples
    w = rng.standard_normal((D, 3 if loss == "multinomial" else 1))
    ev = theirs.evaluate(w, np.zeros(w.shape[1]))
    mine = ours.evaluate(w.reshape(-1, 1), np.zeros(1))
    assert mine.losses.numpy() == pytest.approx(ev.losses, rel=1e-12)
    q = theirs.dual_oracle().weights(ev.losses, 0.2)
    found = ours.gradient(mine, torch.from_numpy(q))[0]
    assert found[:, 0] == pytest.approx(theirs.gradient(ev, q)[0].reshape(-1), rel=1e-10)
    public = w[:, 0] if w.shape[1] == 1 else w.T
    assert ours.objective(w.reshape(-1)) == pytest.approx(theirs.objective(public), rel=1e-12)
    assert ours.reference[0] == pytest.approx(theirs.reference[0], rel=1e-12)
    assert ours.shift_cost == theirs.shift_cost
    auto = [kind(loss, **settings, shift_cost="auto").nu for kind in (make, on_arrays)]
    assert auto[0] == pytest.approx(auto[1], rel=1e-12)


def test_gradient_is_the_slope_of_the_objective():
    _, problem = mlp()
    rng = np.random.default_rng(1)
    w, direction = problem.start, rng.standard_normal(problem.n_features)
    step = 1e-6
    slope = (problem.objective(w + step * direction) - problem.objective(w - step * direction)) / (
        2 * step
    )
    ev = problem.evaluate(*problem.to_internal(w))
    q = problem.dual_oracle().weights(ev.losses, problem.nu)
    grad = problem.gradient(ev, q)[0][:, 0] + problem.mu * w
    assert slope == pytest.approx(grad @ direction, rel=1e-6)
    assert problem.stationarity(w) == pytest.approx(np.linalg.norm(grad), rel=1e-12)


def test_objective_is_that_of_the_robust_loss():
    """Autograd through `RobustLoss` is another way to the same value and gradient."""
    module, problem = mlp(uncertainty=drago.ESRM(2.0), divergence="kl")
    rows = problem.flat.data
    criterion = RobustLoss(drago.ESRM(2.0), "kl", 0.1)
    module.double()
    loss = criterion(squared(module(rows[0]), rows[1]))
    loss = loss + 0.5 * 1e-2 * sum((p**2).sum() for p in module.parameters())
    loss.backward()
    w = problem.flatten(dict(module.named_parameters()))
    assert problem.objective(w) == pytest.approx(loss.item(), rel=1e-12)
    slope = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    assert problem.stationarity(w) == pytest.approx(slope.norm().item(), rel=1e-10)


def test_gradients_of_single_rows():
    _, problem = mlp()
    table = problem.sample_gradients(problem.start)
    assert table.shape == (problem.n_samples, problem.n_features)
    rng = np.random.default_rng(0)
    q = torch.from_numpy(rng.random(problem.n_samples))
    ev = problem.evaluate(*problem.origin)
    assert problem.gradient(ev, q)[0][:, 0] == pytest.approx((q @ table).numpy(), rel=1e-10)
    # Few rows carry weight: the others are not visited.
    q[5:] = 0.0
    assert problem.gradient(ev, q)[0][:, 0] == pytest.approx((q @ table).numpy(), rel=1e-10)


@pytest.mark.parametrize("tables", TABLES)
def test_chunks_change_nothing_and_bound_what_the_model_sees(tables):
    seen = []

    def model(w, x):
        seen.append(x.shape[0])
        return x @ w

    whole = make(tables=tables)
    parts = make(tables=tables, model=model, parameters=torch.zeros(D), chunk_size=4)
    runs = []
    for problem in (whole, parts):
        seen.clear()
        it = begin(problem, 3)
        go(it, 3, 20)
        q = it.weights()
        runs.append((it.w, q.numpy(), problem.gradient(problem.evaluate(it.w, it.b), q)[0]))
    assert 1 <= max(seen) <= 4
    for ours, theirs in zip(*runs):
        assert ours == pytest.approx(theirs, rel=1e-10, abs=1e-12)


def test_weight_k_is_k_copies():
    rng = np.random.default_rng(5)
    weight = rng.integers(0, 4, size=N)
    X, y = data()
    one = AutogradProblem(
        linear, tensors(X, y), squared, parameters=torch.zeros(D), convex=True,
        sample_weight=weight, shift_cost=0.2,
    )  # fmt: skip
    many = AutogradProblem(
        linear, tensors(np.repeat(X, weight, axis=0), np.repeat(y, weight)), squared,
        parameters=torch.zeros(D), convex=True, shift_cost=0.2,
    )  # fmt: skip
    w = rng.standard_normal(D)
    assert one.objective(w) == pytest.approx(many.objective(w), rel=1e-12)
    found = [drago.solve(problem, tol=1e-12).coef for problem in (one, many)]
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    weights = one.on_all_rows(one.worst_case_weights(one.losses(w)))
    assert weights.shape == (N,) and bool((weights[torch.from_numpy(weight) == 0] == 0).all())


# --------------------------------------------------------------------------------- iterations


def begin(problem, count, kind="blocks", metric="euclidean", alpha=0.05, q="exact"):
    metric = curvature_metric(problem, metric)[0] if isinstance(metric, str) else metric
    start = problem.evaluate(np.zeros((problem.n_features, 1)), np.zeros(1))
    tables = problem.rows.tables(problem, kind, count, None)
    it = KINDS[kind](problem, tables, metric, None, start, q)
    it.steps = Steps(alpha, alpha, True)
    return it


def go(it, count, n_iter, seed=0):
    for i, j in np.random.default_rng(seed).integers(0, count, size=(n_iter, 2)).tolist():
        it.step(i, j)


def both(loss, tables, count, kind="blocks", alpha=0.05, **settings):
    """The same iterations, drawn alike, by autograd and on arrays."""
    ours, theirs = make(loss, tables=tables, **settings), on_arrays(loss, **settings)
    k = theirs.n_outputs
    zero = theirs.evaluate(np.zeros((D, k)), np.zeros(k))
    of_arrays = theirs.rows.tables(theirs, kind, count, 1)
    reference = KINDS[kind](theirs, of_arrays, make_metric(theirs, "euclidean"), None, zero)
    reference.steps = Steps(alpha, alpha, True)
    return begin(ours, count, kind, alpha=alpha), reference


def assert_equal(ours, theirs, counts=True):
    assert ours.w[:, 0] == pytest.approx(theirs.w.reshape(-1), abs=1e-9)
    assert ours.weights().numpy() == pytest.approx(theirs.weights(), abs=1e-9)
    assert ours.estimates() == pytest.approx(theirs.estimates(), rel=1e-6, abs=1e-9)
    assert ours.t == theirs.t
    assert ours.n_calls == theirs.n_calls or not counts


@pytest.mark.parametrize(
    ("tables", "name", "divergence", "count"), cases.thinned(TABLES, PAIRS, [1, 3, 7], keep=5)
)
def test_iterations_are_those_on_arrays(tables, name, divergence, count):
    """7 does not divide the 45 rows."""
    rng = np.random.default_rng(2)
    settings = {"uncertainty": SETS[name], "divergence": divergence}
    settings["sample_weight"] = rng.uniform(0.5, 2.0, size=N) if count == 7 else None
    settings["groups"] = np.arange(N) % 4 if name == "grouped" else None
    loss = {1: "squared", 3: "multinomial", 7: "logistic"}[count]
    ours, theirs = both(loss, tables, count, **settings)
    for n_iter in (3, 27, 70):  # in the beginning, on the way and in the end
        for it in (ours, theirs):
            go(it, count, n_iter, seed=n_iter)
        assert_equal(ours, theirs)
    assert (ours.visits > theirs.visits) == (tables == "ring")


@pytest.mark.parametrize("tables", TABLES)
def test_tables_filled_anew(tables):
    ours, theirs = both("logistic", tables, 5, alpha=0.2)
    for n_iter in (4, 3, 17):
        for it in (ours, theirs):
            go(it, 5, n_iter, seed=n_iter)
            it.refresh(it.problem.evaluate(it.w, it.b))
        assert_equal(ours, theirs)
    for it in (ours, theirs):
        go(it, 5, 12)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("name", ["cvar", "chi2_ball"])
def test_support_iterations_are_those_on_arrays(name):
    ours, theirs = both("squared", "auto", 4, "support", alpha=0.1, uncertainty=SETS[name])
    for n_iter in (3, 60):
        for it in (ours, theirs):
            go(it, 4, n_iter, seed=n_iter)
        # Rows of blocks that were just visited are visited again.
        assert_equal(ours, theirs, counts=False)


@pytest.mark.parametrize("metric", ["auto", "full"])
def test_iterations_in_a_metric_are_those_on_arrays(metric):
    ours, theirs = both("squared", "auto", 4)
    found = curvature_metric(ours.problem, metric)[0]
    ours = begin(ours.problem, 4, metric=found)
    zero = theirs.problem.evaluate(np.zeros((D, 1)), np.zeros(1))
    of_arrays = theirs.problem.rows.tables(theirs.problem, "blocks", 4, 1)
    theirs = Iterations(theirs.problem, of_arrays, found, None, zero)
    theirs.steps = ours.steps
    for it in (ours, theirs):
        go(it, 4, 50)
    assert_equal(ours, theirs)


def test_counts_are_carried_on_and_a_point_is_not_changed_behind_ones_back():
    problem = make()
    it = begin(problem, 3)
    go(it, 3, 10)
    here = it.iterate()
    w, q = here.w.copy(), here.q.clone()
    go(it, 3, 10)
    assert (here.w == w).all() and bool((here.q == q).all())
    other = begin(problem, 3)
    other.continue_count(it)
    assert other.n_iter == 20 and other.iterate().n_passes > it.iterate().n_passes
    assert (other.average()[0] == other.w).all()


def test_tables_are_chosen_by_memory():
    need = 2 * 8 * D * 8  # two vectors a block
    assert make().tables_for(8) == "blocks"
    assert make(memory_limit=need).tables_for(8) == "blocks"
    assert make(memory_limit=need - 1).tables_for(8) == "ring"
    assert make(tables="full").tables_for(8) == "full"
    with pytest.raises(MemoryError, match=r"tables='full' needs .* memory_limit=1000; raise it"):
        make(tables="full", memory_limit=1000).tables_for(8)


# ------------------------------------------------------------------------- answers, certified


@pytest.mark.parametrize("solver", ["auto", "lbfgs", "drago"])
def test_logistic_regression_as_a_module_is_that_of_the_library(solver):
    X, y = data("logistic", n=200)
    settings = {"uncertainty": drago.CVaR(0.3), "shift_cost": 0.1, "l2_reg": 0.1}
    model = drago.DROClassifier(**settings, fit_intercept=False, tol=1e-13).fit(X, y)
    torch.manual_seed(0)
    module = nn.Linear(D, 1, bias=False)
    problem = AutogradProblem(module, tensors(X, y), logistic, convex=True, **settings)
    result = drago.solve(problem, solver, tol=1e-10)
    assert result.status == "optimal" and 0 <= result.rel_gap <= 1e-10
    assert result.coef == pytest.approx(model.coef_.reshape(-1), abs=1e-6)
    assert result.primal == pytest.approx(model.result_.primal, rel=1e-10)
    assert result.bound == "tangent" and result.stationarity is None
    assert result.dual_weights.numpy() == pytest.approx(model.dual_weights_, abs=1e-5)
    assert len(result.history) and result.n_passes > 0
    for q in (None, result.dual_weights):
        assert drago.certify(problem, result.coef, dual_weights=q).rel_gap <= 1e-9
    # The module is as it was, until it is told.
    before = [p.clone() for p in module.parameters()]
    assert not torch.allclose(before[0].double()[0], torch.from_numpy(result.coef))
    assert problem.load_into(module, result.coef) is module
    assert module.weight.detach().double().numpy()[0] == pytest.approx(result.coef, rel=1e-6)


def test_the_mean_of_squares_is_ridge_regression():
    X, y = data()
    problem = make(uncertainty=drago.CVaR(1.0), l2_reg=0.1)
    exact = np.linalg.solve(X.T @ X / N + 0.1 * np.eye(D), X.T @ y / N)
    for solver in ("lbfgs", "drago"):
        assert drago.solve(problem, solver, tol=1e-13).coef == pytest.approx(exact, abs=1e-6)


def quantile_huber(prediction, target, level=0.8, delta=0.5):
    r = target - prediction
    size = r.abs()
    h = torch.where(size <= delta, 0.5 * r**2, delta * (size - 0.5 * delta))
    return torch.where(r >= 0, level, 1.0 - level) * h / delta


def quantile_huber_optimum(X, y, mu, nu, tail, level=0.8, delta=0.5):
    """min over w of max over q, the maximum by its dual: min over s of s + mean h(loss - s)."""
    w, s = cp.Variable(X.shape[1]), cp.Variable()
    r = y - X @ w
    above, below = cp.huber(cp.pos(r), delta), cp.huber(cp.neg(r), delta)
    losses = (level * above + (1.0 - level) * below) / (2.0 * delta)
    h = cp.huber(cp.pos(losses - s + nu), nu / tail) / (2.0 * nu) - nu / 2.0
    value = s + cp.sum(h) / len(y) + 0.5 * mu * cp.sum_squares(w)
    problem = cp.Problem(cp.Minimize(value))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return w.value, problem.value


@pytest.mark.parametrize("tail", [0.2, 0.6])
def test_a_loss_of_ones_own_against_cvxpy(tail):
    X, y = data(n=80)
    w, value = quantile_huber_optimum(X, y, 0.1, 0.05, tail)
    problem = AutogradProblem(
        linear, tensors(X, y), quantile_huber, parameters=torch.zeros(D), convex=True,
        uncertainty=drago.CVaR(tail), shift_cost=0.05, l2_reg=0.1,
    )  # fmt: skip
    for solver, tol in (("auto", 1e-11), ("lbfgs", 1e-11), ("drago", 1e-8)):
        result = drago.solve(problem, solver, tol=tol)
        assert result.status == "optimal"
        assert result.primal == pytest.approx(value, rel=1e-7)
        assert result.dual <= value + 1e-8 and result.primal >= value - 1e-8
        if tol < 1e-8:
            assert result.coef == pytest.approx(w, abs=1e-6)
    with_noise = result.coef + 0.1
    certificate = drago.certify(problem, with_noise)
    assert certificate.gap >= problem.objective(with_noise) - value
    assert certificate.bound == "tangent"


def test_the_gap_bounds_the_suboptimality_anywhere():
    problem = make("logistic", uncertainty=drago.ESRM(2.0), divergence="kl", l2_reg=0.05)
    best = drago.solve(problem, tol=1e-12).primal
    rng = np.random.default_rng(0)
    for scale in (1e-4, 1e-2, 1.0):
        w = scale * rng.standard_normal(D)
        certificate = drago.certify(problem, w)
        assert certificate.gap >= problem.objective(w) - best - 1e-12
        assert certificate.dual <= best + 1e-12


@pytest.mark.parametrize("solver", ["auto", "lbfgs"])
def test_without_a_shift_cost(solver):
    settings = {"uncertainty": drago.CVaR(0.4), "shift_cost": 0.0}
    result = drago.solve(make(**settings), solver, tol=1e-5)
    exact = drago.solve(on_arrays(**settings), tol=1e-8)
    assert result.status == "optimal"
    assert result.primal == pytest.approx(exact.primal, rel=1e-5)


def test_drago_keeps_what_was_declared():
    """A number for the step is taken as it is; groups, weights and tables reach the iterations."""
    settings = {
        "uncertainty": SETS["grouped"],
        "groups": np.arange(N) % 5,
        "sample_weight": np.linspace(0.5, 1.5, N),
    }
    exact = drago.solve(on_arrays(**settings), tol=1e-10)
    for tables in TABLES:
        solver = drago.Drago(0.1, block_size=8, metric="euclidean")
        result = drago.solve(make(**settings, tables=tables), solver, tol=1e-7)
        assert result.status == "optimal" and result.solver == "drago"
        assert result.primal == pytest.approx(exact.primal, rel=1e-6)
    result = drago.solve(make(**settings), drago.Drago(0.1, primal="support"), tol=1e-7)
    assert result.status == "optimal"


def test_a_start_and_a_part_of_the_rows():
    problem = make(n=300)
    result = drago.solve(problem, tol=1e-9)
    again = drago.solve(problem, tol=1e-9, warm_start=result)
    assert again.status == "optimal" and again.n_iter <= 1
    part = problem.take(np.arange(0, 300, 3))
    assert part.n_samples == 100 and float(part.p.sum()) == pytest.approx(1.0)
    X, y = data(n=300)
    w = np.ones(D)
    assert part.losses(w).numpy() == pytest.approx(0.5 * (X[::3] @ w - y[::3]) ** 2)


def test_many_rows_are_begun_with_a_part_of_them():
    result = drago.solve(make(n=8000), tol=1e-8)
    assert result.status == "optimal" and "started from 2000 of 8000 rows" in result.message


def test_without_l2_reg_the_bound_is_over_a_ball():
    with pytest.warns(UserWarning, match=r"only \(l2_reg is 0\)"):
        result = drago.solve(make(l2_reg=0.0), "lbfgs", tol=1e-9)
    exact = drago.solve(on_arrays(l2_reg=0.0), tol=1e-9)
    assert result.primal == pytest.approx(exact.primal, rel=1e-6)
    with pytest.raises(ValueError, match="'drago' with l2_reg > 0 and shift_cost > 0"):
        drago.solve(make(l2_reg=0.0), drago.Drago(metric="euclidean"))


def test_float32_iterations_are_certified_in_float64():
    problem = make("logistic", dtype=torch.float32)
    result = drago.solve(problem, "drago", tol=1e-9)
    exact = drago.solve(make("logistic"), "drago", tol=1e-9)
    assert problem.evaluate(*problem.origin).losses.dtype == torch.float64
    assert result.primal - exact.primal <= max(result.gap, 1e-9)


def test_moved_to_a_device():
    """There is one here; the numbers are the same."""
    _, problem = mlp(uncertainty=SETS["grouped"], groups=np.arange(120) % 4)
    moved = problem._replace(rows=problem.rows.moved(torch.device("cpu")))
    assert moved.rows is not problem.rows and moved.objective(problem.start) == pytest.approx(
        problem.objective(problem.start), rel=1e-12
    )
    convex = make("logistic")
    assert convex.in_float64 is convex
    narrow = convex._replace(p=convex.p.float())  # as on a device without float64
    assert narrow.in_float64.p.dtype == torch.float64
    w = np.arange(D) / D
    assert narrow.in_float64.objective(w) == pytest.approx(convex.objective(w), rel=1e-7)


# ------------------------------------------------------------------------------ the metric


def test_the_metric_is_the_hessian():
    X, _ = data()
    problem = make("squared", l2_reg=0.3)
    metric, passes = curvature_metric(problem, "full")
    H = (metric.basis * metric.eigenvalues) @ metric.basis.T
    np.testing.assert_allclose(H, X.T @ X / N + 0.3 * np.eye(D), atol=1e-12)
    assert passes == pytest.approx(D + 1)
    plain, passes = curvature_metric(problem, "euclidean")
    assert (plain.eigenvalues == 0.3).all() and passes == 0
    curved = make("squared", l2_reg=0.3, convex=False)
    assert curvature_metric(curved, "auto")[0].eigenvalues == pytest.approx(
        np.linalg.eigvalsh(X.T @ X / N).max() + 0.3, rel=1e-2
    )


def test_losses_without_curvature_leave_the_euclidean_metric():
    X, _ = data()
    for loss in (None, lambda out: out):
        problem = AutogradProblem(
            linear, torch.from_numpy(X), loss, parameters=torch.zeros(D), convex=True, l2_reg=0.3,
            shift_cost=0.1,
        )  # fmt: skip
        assert (curvature_metric(problem, "auto")[0].eigenvalues == 0.3).all()
        result = drago.solve(problem, tol=1e-8)
        assert result.status == "optimal"
    with pytest.raises(ValueError, match="'full' for an AutogradProblem, but 'diagonal'"):
        curvature_metric(problem, "diagonal")


# --------------------------------------------------------------------------- without convexity


@pytest.mark.parametrize("solver", ["auto", "drago", "lbfgs"])
def test_without_convexity_there_is_no_certificate(solver):
    _, problem = mlp()
    result = drago.solve(problem, solver, tol=1e-2)
    assert result.status == "stationary"
    assert "there is no certificate, because the losses are not declared convex" in result.message
    assert result.gap == result.rel_gap == np.inf and result.dual == -np.inf
    assert result.bound == "none: the losses are not declared convex"
    assert result.stationarity == pytest.approx(problem.stationarity(result.coef), rel=1e-6)
    start = problem.stationarity(problem.start)
    assert result.stationarity <= 1e-2 * start
    assert f"{result.stationarity:.3g}" in result.message
    assert result.primal == pytest.approx(problem.objective(result.coef), rel=1e-10)
    assert result.primal < problem.objective(problem.start)
    q = problem.worst_case_weights(problem.losses(result.coef))
    assert bool(torch.isclose(result.dual_weights, q).all())
    certificate = drago.certify(problem, result.coef)
    assert certificate.gap == np.inf and certificate.stationarity == pytest.approx(
        result.stationarity, rel=1e-6
    )


def test_a_limit_without_convexity_says_how_flat_it_is():
    _, problem = mlp(convex=False)
    with pytest.warns(UserWarning, match=r"max_iter=3 reached, \|\|grad P\|\| = "):
        result = drago.solve(problem, "lbfgs", tol=1e-8, max_iter=3)
    assert result.status == "max_iter" and "no certificate" in result.message


def test_a_start_that_is_stationary_already():
    exact = drago.solve(make(), tol=1e-13).coef
    problem = make(convex=None, parameters=torch.from_numpy(exact))
    with pytest.warns(UserWarning, match=r"\|\|grad P\|\| = "):
        result = drago.solve(problem, "lbfgs", tol=1e-9, max_iter=20)
    assert result.stationarity <= problem.reference_slope <= 1e-5
    assert result.coef == pytest.approx(exact, abs=1e-5)


def test_without_convexity_the_start_is_the_modules_own():
    module, problem = mlp(seed=3)
    assert problem.origin[0][:, 0] == pytest.approx(
        torch.cat([p.reshape(-1) for p in module.parameters()]).detach().double().numpy()
    )
    assert problem.reference[0] == problem.objective(problem.start)
    assert (make().origin[0] == 0).all()
    assert "not known to be convex" in repr(problem) and ", convex," in repr(make())


def test_a_network_in_float32():
    module, problem = mlp(dtype=None)
    assert problem.dtype == torch.float32
    with torch.no_grad():
        losses = squared(module(problem.flat.data[0].float()), problem.flat.data[1].float())
    assert problem.losses(problem.start).float().numpy() == pytest.approx(losses.numpy())
    result = drago.solve(problem, "drago", tol=0.05)
    assert result.status == "stationary"
    problem.load_into(module, result.coef)
    loaded = problem.flatten(dict(module.named_parameters()))
    assert loaded == pytest.approx(result.coef, rel=1e-5, abs=1e-7)


# ------------------------------------------------------------------- models, parameters, data


def test_parameters_of_any_arrangement():
    X, y = data()
    parameters = {"a": [torch.ones(D), torch.zeros((2, 1))], "b": torch.tensor(0.5)}

    def model(p, x):
        return x @ p["a"][0] + p["b"] + p["a"][1].sum()

    problem = AutogradProblem(model, tensors(X, y), squared, parameters=parameters, convex=True)
    assert problem.n_features == D + 3
    assert problem.start == pytest.approx([*np.ones(D), 0.0, 0.0, 0.5])
    result = drago.solve(problem, tol=1e-8)
    found = problem.parameters(result.coef)
    assert found["a"][1].shape == (2, 1) and found["b"].shape == ()
    assert problem.flatten(found) == pytest.approx(result.coef, rel=1e-6)
    assert bool((problem.parameters(torch.from_numpy(result.coef))["b"] == found["b"]).all())
    prediction = model(found, torch.from_numpy(X).float())
    losses = squared(prediction, torch.from_numpy(y).float())
    assert problem.losses(result.coef).numpy() == pytest.approx(losses.numpy(), abs=1e-5)
    with pytest.raises(ValueError, match=r"arranged as those of the problem, \{'a': \["):
        problem.flatten({"a": torch.ones(D)})


def test_frozen_parameters_and_buffers_stay():
    """A linear head on features that are not learned is a convex problem."""
    X, y = data("logistic", n=80)
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(D, 7), nn.BatchNorm1d(7), nn.Dropout(0.5), nn.Tanh())
    body(torch.from_numpy(X).float())  # moves the running statistics
    module = nn.Sequential(body, nn.Linear(7, 1, bias=False)).eval()
    body.requires_grad_(False)
    problem = AutogradProblem(module, tensors(X, y), logistic, convex=True, shift_cost=0.1)
    assert problem.n_features == 7 and set(problem.parameters(problem.start)) == {"1.weight"}
    with torch.no_grad():
        features = body.double()(torch.from_numpy(X)).numpy()
    exact = drago.solve(drago.DROProblem(features, y, loss="logistic", shift_cost=0.1), tol=1e-11)
    result = drago.solve(problem, tol=1e-11)
    assert result.coef == pytest.approx(exact.coef, abs=1e-4)
    assert result.primal == pytest.approx(exact.primal, rel=1e-9)
    module.train()  # is no matter of the problem
    assert problem.objective(result.coef) == pytest.approx(result.primal, rel=1e-12)


def test_tied_parameters_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x))).sum(-1)

    X, y = data()
    problem = AutogradProblem(Tied(), tensors(X, y), squared, shift_cost=0.1)
    assert problem.n_features == D * D
    assert np.isfinite(problem.objective(problem.start))


def test_several_inputs_one_tensor_and_losses_by_the_model():
    X, y = data()
    several = tensors(X[:, :2], X[:, 2:], y)

    def two(w, a, b):
        return a @ w[:2] + b @ w[2:]

    def own(w, x, target):
        return squared(x @ w, target)

    settings = {"parameters": torch.zeros(D), "convex": True, "shift_cost": 0.2, "l2_reg": 0.5}
    w, exact = np.arange(D) / D, make()
    for problem in (
        AutogradProblem(two, several, squared, **settings),
        AutogradProblem(own, tensors(X, y), **settings),
        AutogradProblem(
            lambda w, rows: rows[:, :D] @ w - rows[:, D],
            torch.from_numpy(np.column_stack([X, y])),
            lambda residual: 0.5 * residual**2,
            **settings,
        ),
    ):
        assert problem.objective(w) == pytest.approx(exact.objective(w), rel=1e-12)


# ------------------------------------------------------------------------------------ errors


def refused(kind, match, *arguments, **settings):
    with pytest.raises(kind, match=match):
        AutogradProblem(*arguments, **settings)


def test_losses_that_are_not_one_a_row():
    X, y = data()
    rows, zero = tensors(X, y), torch.zeros(D)
    mean = nn.MSELoss()
    refused(ValueError, r"one loss per row, shape \(3,\).* shape \(\); take reduction='none'",
            linear, rows, mean, parameters=zero)  # fmt: skip
    module = nn.Linear(D, 1)
    refused(ValueError, r"shape \(3, 1\) and a target of shape \(3,\) were broadcast; squeeze",
            module, rows, lambda a, b: (a - b) ** 2)  # fmt: skip
    refused(ValueError, r"returned shape \(3, 4\); where a row has several, take their mean",
            lambda w, x, y: x * w, rows, parameters=zero)  # fmt: skip
    refused(ValueError, "must return a tensor of 3 losses, but returned 1.0",
            linear, rows, lambda a, b: 1.0, parameters=zero)  # fmt: skip
    refused(ValueError, r"shape \(1,\) for 1 rows, but returned shape \(\).*squeeze\(-1\), not",
            module, rows, lambda a, b: (a.squeeze() - b.squeeze()) ** 2)  # fmt: skip


def test_models_whose_rows_are_not_alone():
    X, y = data()
    module = nn.Sequential(nn.Linear(D, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 1))
    refused(ValueError, r"1 \(BatchNorm1d\), 2 \(Dropout\) behaves differently.*module.eval\(\)",
            module, tensors(X, y), squared)  # fmt: skip
    refused(ValueError, r"the loss of a row depends on the other rows of its batch: .* alone",
            lambda w, x: (x - x.mean(0)) @ w, tensors(X, y), squared,
            parameters=torch.ones(D))  # fmt: skip
    refused(ValueError, "two evaluations of the same rows gave different losses",
            lambda w, x: x @ w + torch.rand(x.shape[0]), tensors(X, y), squared,
            parameters=torch.ones(D))  # fmt: skip


def test_losses_without_a_gradient():
    X, y = data()
    refused(ValueError, "do not depend on the parameters by differentiable operations",
            lambda w, x: x @ w.detach(), tensors(X, y), squared,
            parameters=torch.ones(D))  # fmt: skip
    frozen = nn.Linear(D, 1).requires_grad_(False)
    refused(ValueError, "Linear has no parameter with requires_grad=True", frozen,
            tensors(X, y), squared)  # fmt: skip
    problem = AutogradProblem(
        lambda w, x: torch.sqrt((x @ w) ** 2), tensors(X, y), squared,
        parameters=torch.ones(D), convex=True, shift_cost=0.1,
    )  # fmt: skip
    with pytest.raises(NonFiniteLossError, match="finite, but their gradient is not, at param"):
        drago.certify(problem, np.zeros(D))


def test_losses_that_are_not_convex_after_all():
    """Where a certificate meets a contradiction there is none."""
    X, y = data()

    def cauchy(prediction, target):
        return torch.log1p((prediction - target) ** 2)

    problem = AutogradProblem(
        linear, tensors(X, y), cauchy, parameters=torch.zeros(D), convex=True, shift_cost=0.1
    )
    match = r"but the losses are not convex: .* tangents lie above them at 0, .* give convex=False"
    with pytest.raises(ValueError, match=match):
        drago.certify(problem, np.full(D, 50.0))


def test_losses_that_are_no_numbers():
    X, y = data()
    y[7] = np.nan
    problem = AutogradProblem(
        linear, tensors(X, y), squared, parameters=torch.zeros(D), convex=True, shift_cost=0.1
    )
    with pytest.raises(NonFiniteLossError, match=r"'squared' is NaN or infinite on 1 rows, first "
                                                 r"on row 7, at parameters of norm 0"):  # fmt: skip
        drago.solve(problem)
    with pytest.raises(NonFiniteLossError):
        make(model=lambda w, x: torch.log(x @ w), parameters=torch.zeros(D), shift_cost="auto")


def test_what_is_given_is_named():
    X, y = data()
    rows, zero = tensors(X, y), torch.zeros(D)
    module = nn.Linear(D, 1)
    refused(TypeError, r"data must be a tensor or a tuple of tensors.* but array", linear,
            (X, rows[1]), squared, parameters=zero)  # fmt: skip
    refused(ValueError, r"the same number of rows.* shapes \(45, 4\), \(40,\)", linear,
            (rows[0], rows[1][:40]), squared, parameters=zero)  # fmt: skip
    refused(TypeError, "give its parameters to start from", linear, rows, squared)
    refused(TypeError, "a module brings its own", module, rows, squared, parameters=zero)
    refused(TypeError, "model must be an nn.Module or a function", "linear", rows, squared)
    refused(TypeError, "model must be an nn.Module or a function", nn.Linear, rows, squared)
    refused(TypeError, "loss must be a function of a prediction", linear, rows, "squared",
            parameters=zero)  # fmt: skip
    refused(TypeError, "parameters must be a tensor.*int64 was given", linear, rows, squared,
            parameters=torch.zeros(D, dtype=torch.int64))  # fmt: skip
    refused(TypeError, "parameters must be a tensor.*none was given", linear, rows, squared,
            parameters={})  # fmt: skip
    refused(ValueError, "parameters must be finite", linear, rows, squared,
            parameters=zero + np.nan)  # fmt: skip
    refused(ValueError, "parameters must hold at least one number", linear, rows, squared,
            parameters=torch.zeros(0))  # fmt: skip
    for settings, kind, match in (
        ({"convex": "yes"}, TypeError, "convex must be True, False or None"),
        ({"dtype": torch.float16}, ValueError, "dtype must be torch.float32 or torch.float64"),
        ({"tables": "all"}, ValueError, "tables must be one of 'auto', 'blocks'"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be an integer >= 1"),
        ({"memory_limit": -1}, ValueError, "memory_limit must be a number"),
        ({"sample_weight": -np.ones(N)}, ValueError, "sample_weight must be nonnegative"),
        ({"uncertainty": drago.Grouped("cvar")}, ValueError, "give groups="),
        ({"shift_cost": "some"}, ValueError, "shift_cost must be a number"),
    ):
        refused(kind, match, linear, rows, squared, parameters=zero, **settings)

    class Own:
        def worst_case(self, u, c, divergence, p):
            return p

        q_max = 1.0

    refused(TypeError, "the torch engine takes the built-in sets", linear, rows,
            squared, parameters=zero, uncertainty=Own())  # fmt: skip


def test_models_that_want_another_dtype():
    X, y = data()

    def model(w, x):
        return x @ w + torch.zeros(1, D, dtype=torch.float32) @ w.float().double()

    refused(TypeError, r"could not be computed in torch.float64 .* the dtype of its inputs",
            model, tensors(X, y), squared, parameters=torch.ones(D), convex=True)  # fmt: skip


def test_methods_for_linear_models_alone():
    problem = make()
    for call in (lambda: problem.X, lambda: problem.rows.sample(np.arange(2)),
                 lambda: problem.rows.predict(np.zeros((D, 1)), np.zeros(1)),
                 lambda: problem.rows.weighted_sum(problem.p)):  # fmt: skip
        with pytest.raises(ValueError, match="has no features, which this method works with"):
            call()
    with pytest.raises(ValueError, match="tables='lagged' is for linear models"):
        drago.solve(problem, drago.Drago(0.01, tables="lagged", start="paper", metric="euclidean"))
    with pytest.raises(ValueError, match="coef must have shape"):
        problem.objective(np.zeros(D + 1))
    with pytest.raises(AttributeError, match="does not change"):
        problem.mu = 1.0
    with pytest.raises(ValueError, match="does not have the parameters of this problem"):
        problem.load_into(nn.Linear(D, 1), np.zeros(D))
    with pytest.raises(TypeError, match="module must be an nn"):
        problem.load_into(None, np.zeros(D))


def test_models_that_cannot_be_mapped():
    def model(w, x):
        return x @ w * (1.0 if float(x[0, 0]) > 1e9 else 2.0)  # looks at a value

    problem = make(model=model, parameters=torch.zeros(D), tables="full")
    with pytest.raises(RuntimeError, match=r"could not map the model .* tables='blocks' does"):
        begin(problem, 3)
    assert begin(make(model=model, parameters=torch.zeros(D)), 3).t == 0


# ------------------------------------------------------------------------ processes, examples


@pytest.mark.slow
def test_lives_without_kernels_and_scikit_learn():
    code = """
        import sys
        for level in ("v4", "v3", "plain"):
            sys.modules[f"drago.kernels._{level}"] = None
        sys.modules["sklearn"] = None
        import warnings
        import torch
        import drago
        from drago.torch_engine import AutogradProblem

        torch.manual_seed(0)
        X = torch.randn(60, 3, dtype=torch.float64)
        y = X.sum(1) + torch.randn(60, dtype=torch.float64)
        for uncertainty in (drago.CVaR(0.3), drago.ESRM(), drago.Chi2Ball(), drago.KLBall()):
            problem = AutogradProblem(
                torch.nn.Linear(3, 1, bias=False), (X, y), convex=True, uncertainty=uncertainty,
                loss=lambda a, b: 0.5 * (a.squeeze(-1) - b) ** 2,
            )
            for solver in ("auto", "lbfgs", "drago"):
                assert drago.solve(problem, solver).status == "optimal"
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
        problem = AutogradProblem(net, (X, y), lambda a, b: (a.squeeze(-1) - b) ** 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(drago.solve(problem, tol=0.05).status)
            drago.solve(problem, tol=0.0, max_iter=2)
            print(len(caught))
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stationary", "1"]


def test_the_same_every_time():
    found = [drago.solve(make("logistic"), "drago", tol=1e-8, random_state=3) for _ in range(2)]
    assert (found[0].coef == found[1].coef).all() and found[0].n_iter == found[1].n_iter


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(autograd)
    assert tried >= 5 and failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", ["autograd_logistic", "custom_loss"])
def test_scripts(script, monkeypatch, capsys):
    path = EXAMPLES / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--small"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "certified" in printed
    if script == "autograd_logistic":
        assert "decides as the classifier on 100.0% of the patients" in printed


def test_blocks_are_the_rows():
    blocks = AutogradBlocks(make().rows, 4)
    assert sum(blocks.sizes) == N
    rows = torch.cat([blocks.take(torch.arange(N), k) for k in range(4)])
    assert sorted(rows.tolist()) == list(range(N))
