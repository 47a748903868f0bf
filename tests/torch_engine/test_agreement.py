"""The torch engine and the compiled one, iteration by iteration."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cases
import drago
from drago.metric import make_metric
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import LaggedSteps, Steps, UnregularisedSteps
from drago.solvers.drago.variants import LaggedIterations, SupportIterations

KINDS = {"blocks": Iterations, "support": SupportIterations, "lagged": LaggedIterations}
N, D = 157, 4
LOSSES = ("squared", "huber", "logistic", "multinomial")
SETS = [*cases.PAIRS, ("grouped", "chi2"), ("grouped", "kl")]


def make_problem(loss, name="cvar", divergence="chi2", weighted=False, **settings):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, D)) * np.array([1.0, 3.0, 0.3, 1.0]) + 0.5
    z = X @ np.array([1.0, -0.5, 2.0, 0.0]) + rng.standard_t(3, size=N)
    y = {"logistic": (z > 0).astype(float), "multinomial": np.digitize(z, [-1.0, 1.0])}.get(loss, z)
    uncertainty = drago.Grouped("cvar") if name == "grouped" else cases.SETS[name][0]
    if name == "grouped":
        settings["groups"] = rng.integers(0, 7, size=N)
    if weighted:
        settings["sample_weight"] = rng.uniform(0.2, 2.0, size=N)
    common = {"shift_cost": 0.05, "l2_reg": 1e-2}
    return drago.DROProblem(
        X, y, loss=loss, uncertainty=uncertainty, divergence=divergence, **(common | settings)
    )


def run_both(problem, kind, steps, count=8, n_iter=200, metric="auto"):
    """Both engines after the same iterations, from the same start."""
    other = problem.moved("cpu")
    mean = problem.rows.centre() if problem.fit_intercept else None
    in_metric = make_metric(problem, metric, mean)
    zero = np.zeros((problem.n_features, problem.n_outputs)), problem.reference[1]
    weights = "nominal" if kind == "lagged" else "exact"
    on_arrays, on_tensors = (
        KINDS[kind](
            one, one.rows.tables(one, kind, count, 1), in_metric, mean, one.evaluate(*zero), weights
        )
        for one in (problem, other)
    )
    on_arrays.steps, on_tensors.steps = steps(), steps()
    for i, j in np.random.default_rng(0).integers(0, count, size=(n_iter, 2)).tolist():
        on_arrays.step(i, j)
        on_tensors.step(i, j)
    return on_arrays, on_tensors


def assert_agree(on_arrays, on_tensors, tolerance=1e-9):
    size = np.abs(on_arrays.w).max()
    assert size > 0
    np.testing.assert_allclose(on_tensors.w, on_arrays.w, rtol=0, atol=tolerance * size)
    np.testing.assert_allclose(on_tensors.b, on_arrays.b, rtol=0, atol=tolerance * (1 + size))
    q = on_arrays.weights()
    np.testing.assert_allclose(on_tensors.weights().numpy(), q, rtol=0, atol=tolerance * q.max())
    found, expected = on_tensors.estimates(), on_arrays.estimates()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-10 * abs(expected[1]))


@pytest.mark.parametrize(("loss", "name", "divergence"), cases.thinned(LOSSES, SETS, keep=4))
def test_all_losses_and_sets(loss, name, divergence):
    problem = make_problem(loss, name, divergence)
    assert_agree(*run_both(problem, "blocks", lambda: Steps(0.01, 0.01, True), n_iter=60))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["blocks", "support"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_with_intercept_and_weights(loss, weighted, kind):
    problem = make_problem(loss, fit_intercept=True, weighted=weighted)
    found = run_both(problem, kind, lambda: Steps(0.05, 0.08, True), count=5, n_iter=60)
    assert_agree(*found)


@pytest.mark.parametrize("count", [1, 3, N])
def test_any_number_of_blocks(count):
    found = run_both(make_problem("squared"), "blocks", lambda: Steps(0.02, 0.02, True), count)
    assert_agree(*found)
    assert found[1].visits == found[0].visits
    assert found[1].n_calls == found[0].n_calls


@pytest.mark.thinned(2)
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "full"])
@pytest.mark.parametrize("kind", ["blocks", "lagged"])
def test_as_in_the_paper(kind, metric):
    problem = make_problem("squared", l2_reg=1.0)
    rule = LaggedSteps(0.02) if kind == "lagged" else Steps(0.02, 0.02, False)
    assert_agree(*run_both(problem, kind, lambda: rule, metric=metric))


def test_the_variant_without_regularisation():
    problem = make_problem("logistic", l2_reg=0.0)
    found = run_both(problem, "blocks", lambda: UnregularisedSteps(8, 0.0, 3.0, 5.0))
    assert_agree(*found)
    for on_tensors, on_arrays in zip(found[1].average(), found[0].average()):
        np.testing.assert_allclose(on_tensors, on_arrays, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "constraint", [drago.NonNegative(), drago.Box(-0.1, 0.3), drago.L2Ball(0.5)]
)
def test_constraints(constraint):
    problem = make_problem("squared", constraint=constraint)
    assert_agree(*run_both(problem, "blocks", lambda: Steps(0.05, 0.05, True)))


def test_groups_of_rows(monkeypatch):
    """Blocks of larger data are made of groups of rows, and a rest."""
    monkeypatch.setattr("drago.rows.tables.array_blocks.SMALL", 0)
    monkeypatch.setattr("drago.rows.tables.tensor_blocks.SMALL", 0)
    monkeypatch.setattr("drago.rows.tables.array_blocks._PLENTY", 4)
    for kind in ("blocks", "support"):
        found = run_both(make_problem("squared"), kind, lambda: Steps(0.05, 0.05, True), count=3)
        assert found[1].tables.blocks.group > 1
        assert_agree(*found)


def test_single_precision_data():
    """float32 features are the same numbers to both."""
    problem = make_problem("logistic")
    problem = problem._replace(X=problem.X.astype(np.float32))
    assert_agree(*run_both(problem, "blocks", lambda: Steps(0.05, 0.05, True)))


# --------------------------------------------------------------- whole rounds, as on a card


class PlainPasses:
    """What `drago.rows.fused` does, in plain torch: rounds can run on a processor."""

    class Rows:
        def __init__(self, starts, n_blocks, group, largest):
            self.starts, self.n_blocks, self.group = starts, n_blocks, group

        def of(self, block):
            k = int(block)
            place = torch.arange(int(self.starts[k + 1] - self.starts[k]))
            return (k + place // self.group * self.n_blocks) * self.group + place % self.group

    @staticmethod
    def _losses(X, y, w, b, index, code, parameter):
        from drago.rows import tensor_losses as losses

        kinds = (losses.TensorSquared, losses.TensorHuber, losses.TensorLogistic)
        loss = kinds[code](parameter) if code == 1 else kinds[code]()
        raw = X[index].double() @ w[:, None] + b
        return *loss.evaluate(y[index], raw), raw

    @classmethod
    def evaluate(cls, X, y, w, b, rows, block, losses, slopes, raw=None, *, code, parameter=0.0):
        index = rows.of(block)
        found = cls._losses(X, y, w, b, index, code, parameter)
        losses[: index.numel()], slopes[: index.numel()] = found[0], found[1][:, 0]
        if raw is not None:
            raw[: index.numel()] = found[2][:, 0]

    @classmethod
    def visit(cls, X, y, w, b, q, minus, rows, block, *, code, parameter=0.0, negligible=0.0):
        index = rows.of(block)
        c = q[index] * cls._losses(X, y, w, b, index, code, parameter)[1][:, 0]
        c = torch.where(q[index] > negligible, c, 0.0)
        c = c if minus is None else c - minus[index]
        return X[index].double().T @ c, c.sum()[None]

    @staticmethod
    def accumulate(X, c, rows, block):
        index = rows.of(block)
        c = c[: index.numel()]
        return X[index].double().T @ c, c.sum()[None]


class Forgetful(set):
    """Nothing counts as compiled, so that nothing is recorded."""

    def add(self, item):
        pass


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", LOSSES[:3])
@pytest.mark.parametrize(
    ("kind", "refresh"), [("blocks", False), ("blocks", True), ("support", True)]
)
def test_whole_rounds(loss, kind, refresh, monkeypatch):
    """A round with blocks that only the device knows takes the same steps."""
    monkeypatch.setattr("drago.rows.tables.recorded._COMPILED", Forgetful())
    found = []
    for kernels in (None, PlainPasses):
        problem = make_problem(loss, fit_intercept=True, weighted=True).moved("cpu")
        problem.rows.__dict__["kernels"] = kernels
        mean = problem.rows.centre()
        start = problem.evaluate(np.zeros((D, 1)), problem.reference[1])
        metric = make_metric(problem, "auto", mean)
        tables = problem.rows.tables(problem, kind, 5, None)
        state = KINDS[kind](problem, tables, metric, mean, start)
        state.steps = Steps(0.02, 0.02, True)
        pairs = np.random.default_rng(0).integers(0, 5, size=(8, 4, 2))
        visits = [state.round(some, refresh) for some in pairs.tolist()]
        assert (state.recorder is not None) == (kernels is not None)
        found.append((state, visits[-1]))
    (plain, here), (fused, there) = found
    np.testing.assert_allclose(fused.w, plain.w, rtol=0, atol=1e-11 * np.abs(plain.w).max())
    np.testing.assert_allclose(
        fused.weights(), plain.weights(), rtol=0, atol=1e-11 * plain.weights().max()
    )
    np.testing.assert_allclose(fused.estimates(), plain.estimates(), rtol=1e-8)
    # The gradient of the first iteration is known, and computed again as all others are.
    again = len(pairs) * N if kind == "support" else 0
    assert plain.visits <= fused.visits <= plain.visits + again
    if refresh:
        np.testing.assert_allclose(there.losses, here.losses, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(there.w, fused.w)
