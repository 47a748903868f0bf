"""The torch engine on a CUDA device, against the same engine on the processor.

Neither kernels nor scikit-learn are needed. On the processor the engine is held against the arrays
by the other tests here.
"""

# ruff: noqa: E402  (nothing below can be imported without torch)

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from torch import nn

import drago
from drago.metric import make_metric
from drago.result import Status
from drago.rows.tables.tensors import LinearTensorTables
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import Steps
from drago.solvers.drago.variants import SupportIterations
from drago.torch_engine import AutogradProblem

KINDS = {"blocks": Iterations, "support": SupportIterations}
LOSSES = ("squared", "huber", "logistic", "multinomial")
SETS = [
    (drago.CVaR(0.2), "chi2"),
    (drago.CVaR(0.2), "kl"),
    (drago.Simplex(), "kl"),
    (drago.ESRM(2.0), "chi2"),
    (drago.Extremile(2.0), "kl"),
    (drago.Chi2Ball(0.5), "chi2"),
    (drago.KLBall(0.3), "kl"),
    (drago.Grouped("cvar"), "chi2"),
]
all_losses = pytest.mark.parametrize("loss", LOSSES)
all_sets = pytest.mark.parametrize(("uncertainty", "divergence"), SETS, ids=str)


def make(
    loss="squared", uncertainty=None, divergence="chi2", n=300, d=5, weighted=False, **settings
):
    """The same problem on the processor and on the device."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d)) * np.linspace(0.3, 2.0, d) + 0.2
    z = X @ rng.normal(size=d) + rng.standard_t(3, size=n)
    y = {"logistic": (z > 0) * 1.0, "multinomial": np.digitize(z, [-1.0, 1.0]) * 1.0}.get(loss, z)
    common = {"shift_cost": 0.05, "l2_reg": 1e-2, "fit_intercept": True}
    if isinstance(uncertainty, drago.Grouped):
        common["groups"] = rng.integers(0, 6, size=n)
    if weighted:
        common["sample_weight"] = rng.uniform(0.2, 2.0, size=n)
    kind = settings.pop("dtype", np.float64)
    problem = drago.DROProblem(
        torch.from_numpy(X.astype(kind)),
        torch.from_numpy(y),
        loss=loss,
        uncertainty=uncertainty or drago.CVaR(0.2),
        divergence=divergence,
        **(common | settings),
    )
    return problem, problem.moved("cuda")


def close(found, expected, tolerance=1e-12):
    found, expected = (np.asarray(torch.as_tensor(x).cpu()) for x in (found, expected))
    size = np.abs(expected).max() + 1e-300
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)


def point(problem):
    rng = np.random.default_rng(0)
    w = 0.3 * rng.standard_normal((problem.n_features, problem.n_outputs))
    return w, 0.1 * rng.standard_normal(problem.n_outputs) * problem.fit_intercept


# ----------------------------------------------------------------------------------- parts


@all_losses
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [5, 130])
def test_visits_to_the_data(loss, dtype, d):
    here, there = make(loss, d=d, dtype=dtype, weighted=True)
    assert there.rows.device.type == "cuda"
    assert (there.rows.kernels_for(there.loss) is not None) == (loss != "multinomial")
    w, b = point(here)
    a, c = here.evaluate(w, b), there.evaluate(w, b)
    for name in ("raw", "losses", "dlosses"):
        close(getattr(c, name), getattr(a, name), 1e-11)
    q = here.dual_oracle().weights(a.losses, here.nu)
    on_device = there.dual_oracle().weights(c.losses, there.nu)
    close(on_device, q, 1e-10)
    for found, expected in zip(there.gradient(c, q.cuda()), here.gradient(a, q)):
        close(found, expected, 1e-11)
    close(there.rows.predict(w, b), here.rows.predict(w, b), 1e-11)
    close(there.reference[0], here.reference[0], 1e-9)
    sums = [each.rows.gram(each.rows.heaviest(each.p, 99), each.p, True) for each in (there, here)]
    close(*sums, 1e-11)
    assert there.kappa_q == pytest.approx(here.kappa_q)


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
@all_sets
def test_the_same_certificate(loss, uncertainty, divergence):
    here, there = make(loss, uncertainty, divergence)
    result = drago.solve(here, "lbfgs", tol=1e-6)
    found = drago.certify(there, result.coef, result.intercept, result.dual_weights)
    expected = drago.certify(here, result.coef, result.intercept, result.dual_weights)
    assert found.primal == pytest.approx(expected.primal, rel=1e-11)
    assert found.gap == pytest.approx(expected.gap, rel=1e-4, abs=1e-13)


# ------------------------------------------------------------------------------ iterations


def run(problem, kind, count, n_iter, refresh=False):
    """In rounds of four iterations; the very first of a kind is not recorded."""
    mean = problem.rows.centre() if problem.fit_intercept else None
    # The best intercept is known to about 1e-8, where the objective is level: a round one is equal.
    start = np.zeros((problem.n_features, problem.n_outputs)), np.round(problem.reference[1], 5)
    state = KINDS[kind](
        problem,
        problem.rows.tables(problem, kind, count, None),
        make_metric(problem, "auto", mean),
        mean,
        problem.evaluate(*start),
        "exact",
    )
    state.steps = Steps(0.01, 0.01, True)
    pairs = np.random.default_rng(0).integers(0, count, size=(n_iter // 4, 4, 2))
    for some in pairs.tolist():
        here = state.round(some, refresh)
        assert (here is not None) == refresh
    return state


def assert_agree(here, there, tolerance=1e-9, again=0):
    close(there.w, here.w, tolerance)
    close(there.b, here.b, tolerance * (1 + np.abs(here.w).max() / (np.abs(here.b).max() + 1e-9)))
    close(there.weights(), here.weights(), tolerance)
    close(np.array(there.estimates()), np.array(here.estimates()), 1e-6)
    # What counts as weight rounds; recorded iterations visit again what is known.
    assert 0.99 * here.visits <= there.visits <= 1.01 * here.visits + again


def recorded(state):
    return state.recorder is not None and len(state.recorder.graphs) > 0


@all_sets
@pytest.mark.parametrize(
    ("loss", "kind", "refresh"),
    [
        ("squared", "blocks", False),
        ("huber", "blocks", True),
        ("logistic", "support", True),
        ("multinomial", "blocks", False),
    ],
)
def test_rounds(loss, uncertainty, divergence, kind, refresh):
    problems = make(loss, uncertainty, divergence, l2_reg=0.1)
    here, there = (run(problem, kind, 7, 60, refresh) for problem in problems)
    assert_agree(here, there, again=15 * here.problem.n_samples if kind == "support" else 0)
    assert recorded(there) == (loss != "multinomial")


def test_200_iterations():
    here, there = (run(problem, "blocks", 7, 200) for problem in make())
    assert_agree(here, there)
    assert recorded(there)


@pytest.mark.parametrize("can", [True, False])
def test_recorded_or_not(monkeypatch, can):
    if not can:
        monkeypatch.setattr(LinearTensorTables, "recorder", lambda self, iterations: None)
    problems = make("logistic", weighted=True, n=2000)
    here, there = (run(problem, "blocks", 5, 60) for problem in problems)
    assert_agree(here, there)
    assert recorded(there) == can


def test_groups_of_rows(monkeypatch):
    monkeypatch.setattr("drago.rows.tables.array_blocks.SMALL", 0)
    monkeypatch.setattr("drago.rows.tables.tensor_blocks.SMALL", 0)
    problems = make("squared", n=5003)
    for kind in ("blocks", "support"):
        here, there = (run(problem, kind, 3, 100, kind == "support") for problem in problems)
        assert there.tables.blocks.group > 1
        assert_agree(here, there, again=25 * 5003 if kind == "support" else 0)


# ---------------------------------------------------------------------------------- solves


@all_losses
@pytest.mark.parametrize("solver", ["auto", "drago", "lbfgs"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_solves_are_certified(loss, solver, dtype):
    here, there = make(loss, dtype=dtype)
    result = drago.solve(there, solver, tol=1e-7)
    assert result.status is Status.OPTIMAL, result.message
    assert result.dual_weights.device.type == "cuda"
    assert drago.certify(here, result.coef, result.intercept).rel_gap <= 1e-6


@all_sets
def test_every_set(uncertainty, divergence):
    here, there = make("squared", uncertainty, divergence)
    result = drago.solve(there, "drago", tol=1e-6)
    assert result.status is Status.OPTIMAL, result.message
    assert drago.certify(here, result.coef, result.intercept).rel_gap <= 1e-5


def test_large():
    """A start on a part, thin tails, groups of rows, recorded iterations."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    X = torch.randn((1 << 21, 20), generator=generator, device="cuda")
    noise = torch.randn(1 << 21, generator=generator, device="cuda")
    y = X.sum(1) + noise * (1.0 + noise.abs())
    problem = drago.DROProblem(X, y, shift_cost=0.05)
    result = drago.solve(problem, "drago")
    assert result.status is Status.OPTIMAL, result.message
    again = drago.solve(problem, "lbfgs", tol=1e-6)
    worth = problem.reference[0] - again.primal
    assert result.primal - again.primal <= 1e-4 * worth


def test_the_same_answer_twice():
    """No sum depends on the order in which threads finish."""
    _, problem = make("logistic", n=20_000, weighted=True)
    first, second = (drago.solve(problem, "drago", tol=1e-6) for _ in range(2))
    np.testing.assert_array_equal(first.coef, second.coef)
    assert torch.equal(first.dual_weights, second.dual_weights)


# -------------------------------------------------------------------------------- by autograd


def logistic(scores, targets):
    return nn.functional.binary_cross_entropy_with_logits(scores[:, 0], targets, reduction="none")


def quantile(predictions, targets):
    rest = targets - predictions[:, 0]
    return torch.where(rest > 0, 0.9, 0.1) * nn.functional.huber_loss(
        rest, torch.zeros_like(rest), reduction="none"
    )


def by_autograd(device, loss=logistic, module=None, n=500, **settings):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn((n, 4), generator=generator, dtype=torch.float64)
    z = X @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=X.dtype)
    z = z + torch.randn(n, generator=generator, dtype=X.dtype)
    y = (z > 0).double() if loss is logistic else z
    module = module or nn.Linear(4, 1)
    given = {"convex": True, "uncertainty": drago.CVaR(0.2), "shift_cost": 0.05, "l2_reg": 0.01}
    data = (X.to(device), y.to(device))
    return AutogradProblem(module.to(device), data, loss, **(given | settings))


@pytest.mark.parametrize("loss", [logistic, quantile])
@pytest.mark.parametrize("solver", ["auto", "drago", "lbfgs"])
def test_autograd_is_certified(loss, solver):
    here, there = (by_autograd(device, loss) for device in ("cpu", "cuda"))
    result = drago.solve(there, solver, tol=1e-6)
    assert result.status is Status.OPTIMAL, result.message
    assert result.dual_weights.device.type == "cuda"
    assert drago.certify(here, result.coef).rel_gap <= 1e-5


@pytest.mark.parametrize("tables", ["blocks", "ring", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autograd_iterations(tables, dtype):
    settings = {"tables": tables, "dtype": dtype}
    here, there = (by_autograd(device, **settings) for device in ("cpu", "cuda"))
    method = drago.Drago(step_size=0.02, block_size=100, finish="none")
    with pytest.warns(Warning, match="max_iter=100 reached"):
        found = [drago.solve(problem, method, tol=0.0, max_iter=100) for problem in (here, there)]
    close(found[1].coef, found[0].coef, 1e-9 if dtype == torch.float64 else 1e-4)


def test_autograd_without_convexity():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    problem = by_autograd("cuda", module=module, convex=None, l2_reg=0.1)
    result = drago.solve(problem, tol=1e-3)
    assert result.status is Status.STATIONARY, result.message
    assert result.gap == np.inf
    problem.load_into(module, result.coef)
    assert next(module.parameters()).device.type == "cuda"
