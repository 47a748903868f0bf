"""Problems on tensors: every visit to the data, the certificate and whole solves."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import subprocess
import sys
import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cases
import drago
from drago.result import Status
from drago.rows.device import TensorRows
from drago.rows.tensor_losses import on_tensors as as_tensor_loss
from drago.rows.tensors import to_host

LOSSES = ("squared", "huber", "logistic", "multinomial")
PAIRS = [
    ("cvar", "chi2"),
    ("cvar", "kl"),
    ("esrm", "chi2"),
    ("chi2_ball", "chi2"),
    ("kl_ball", "kl"),
]
# On a CUDA device: test_cuda.py, which does without arrays and kernels.
on_devices = pytest.mark.parametrize("device", ["cpu"])


def make(loss="squared", name="cvar", divergence="chi2", n=150, **settings):
    weight = np.random.default_rng(5).uniform(0.1, 2.0, size=n)
    common = {"sample_weight": weight, "fit_intercept": True, "divergence": divergence}
    return cases.make(loss, n=n, uncertainty=cases.SETS[name][0], **(common | settings))


def point(problem, seed=0):
    rng = np.random.default_rng(seed)
    w = 0.3 * rng.standard_normal((problem.n_features, problem.n_outputs))
    b = 0.2 * rng.standard_normal(problem.n_outputs) if problem.fit_intercept else 0.0 * w[0]
    return w, b


def close(found, expected, tolerance=1e-12):
    size = np.abs(expected).max() + 1e-300
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)


def test_a_problem_on_tensors_can_be_copied_and_pickled():
    import copy
    import pickle

    problem = make("squared").moved("cpu")
    w, b = point(problem)
    value = float(problem.evaluate(w, b).losses.sum())
    for other in (
        copy.copy(problem),
        copy.deepcopy(problem),
        pickle.loads(pickle.dumps(problem)),
    ):
        assert float(other.evaluate(w, b).losses.sum()) == value
        assert other.reference[0] == problem.reference[0]
        assert drago.solve(other).primal == drago.solve(problem).primal
        with pytest.raises(AttributeError, match="does not change"):
            other.mu = 1.0


# ------------------------------------------------------------------------------- the parts


@on_devices
@pytest.mark.parametrize("loss", LOSSES)
def test_visits_to_the_data(loss, device):
    problem = make(loss)
    other = problem.moved(device)
    w, b = point(problem)
    here, there = problem.evaluate(w, b), other.evaluate(w, b)
    for name in ("raw", "losses", "dlosses"):
        close(to_host(getattr(there, name)), getattr(here, name))
    q = problem.worst_case_weights(here.losses)
    weights = other.rows.enter("q", q)
    for found, expected in zip(other.gradient(there, weights), problem.gradient(here, q)):
        close(found, expected)
    close(other.primal(w, there.losses, weights), problem.primal(w, here.losses, q))
    for intercept in (False, True):
        sums = [each.rows.gram(each.rows.heaviest(x, 9), x, intercept)
                for each, x in ((other, weights), (problem, q))]  # fmt: skip
        close(*sums)
        root = np.random.default_rng(1).normal(size=sums[0].shape)
        found, expected = (
            np.sort(np.asarray(each.rows.leverages(each.rows.heaviest(x, 9), root, intercept)))
            for each, x in ((other, weights), (problem, q))
        )
        close(found, expected)
    close(other.row_norms.cpu(), problem.row_norms)
    assert other.smoothness == pytest.approx(problem.smoothness, rel=1e-12)
    assert other.lipschitz == pytest.approx(problem.lipschitz, rel=1e-9)
    assert other.kappa_q == pytest.approx(problem.kappa_q, rel=1e-12)
    assert other.q_max == pytest.approx(problem.q_max, rel=1e-12)
    assert other.n_classes == problem.n_classes


@on_devices
@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_of_zero_sum(loss, device):
    """What the certificate of an intercept rests on, also where a class has no weight."""
    problem = make(loss)
    other = problem.moved(device)
    w, b = point(problem)
    here, there = problem.evaluate(w, b), other.evaluate(w, b)
    for q in (problem.p, problem.worst_case_weights(here.losses), (problem.y > 0) / 100.0):
        q = q / q.sum()
        alpha, young = problem.loss.balance(problem.y, here.raw, q)
        found, terms = as_tensor_loss(other.loss).balance(
            other.y, there.raw, other.rows.enter("q", q)
        )
        close(to_host(found), alpha)
        close(to_host(terms), young, 1e-11)
        np.testing.assert_allclose(q @ to_host(found), 0.0, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES[:3])
def test_losses_far_away(loss):
    problem = make(loss)
    other = problem.moved("cpu")
    raw = np.linspace(-800.0, 800.0, problem.n_samples)[:, None]
    losses, slopes = problem.loss.evaluate(problem.y, raw)
    found = as_tensor_loss(other.loss).evaluate(other.y, torch.from_numpy(raw))
    np.testing.assert_allclose(found[0], losses, rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(found[1], slopes, rtol=1e-14, atol=1e-300)
    second = as_tensor_loss(other.loss).second(other.y, torch.from_numpy(raw))
    np.testing.assert_allclose(second, problem.loss.second(problem.y, raw), rtol=1e-13, atol=1e-300)


def test_classes_far_apart():
    problem = make("multinomial")
    other = problem.moved("cpu")
    raw = (
        np.random.default_rng(0).normal(size=(problem.n_samples, 3))
        * 10.0 ** np.linspace(-6, 3, problem.n_samples)[:, None]
    )
    for found, expected in zip(
        as_tensor_loss(other.loss).evaluate(other.y, torch.from_numpy(raw)),
        problem.loss.evaluate(problem.y, raw),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


@on_devices
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_reference(loss, weighted, device):
    problem = make(loss) if weighted else make(loss, sample_weight=None)
    other = problem.moved(device)
    assert other.rows.is_uniform != weighted
    assert other.reference[0] == pytest.approx(problem.reference[0], rel=1e-9)


@on_devices
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_weights_outside_of_the_set_are_told(name, divergence, device):
    problem = make(name=name, divergence=divergence)
    other = problem.moved(device)
    rng = np.random.default_rng(1)
    inside = problem.worst_case_weights(rng.exponential(size=problem.n_samples))
    assert other.violation(other.rows.enter("q", inside)) <= 1e-10
    for q in (1.1 * inside, inside - 0.001, np.eye(1, problem.n_samples)[0]):
        expected = problem.violation(q)
        assert expected > 1e-6
        assert other.violation(other.rows.enter("q", q)) == pytest.approx(expected, rel=1e-9)


# --------------------------------------------------------------------------- the certificate


@pytest.mark.thinned(2)
@on_devices
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_the_same_certificate(loss, name, divergence, device):
    problem = make(loss, name, divergence)
    best = drago.solve(problem, tol=1e-6)
    other = problem.moved(device)
    settings = {"intercept": best.intercept, "dual_weights": best.dual_weights}
    expected = drago.certify(problem, best.coef, **settings)
    found = drago.certify(other, best.coef, **settings)
    assert found.primal == pytest.approx(expected.primal, rel=1e-12)
    # Predictions by Newton steps are the arrays' alone, so its gap may be smaller.
    assert expected.gap <= found.gap * (1 + 1e-6) + 1e-14
    assert found.rel_gap <= 1.1e-6
    assert isinstance(found.dual_weights, np.ndarray)


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_a_certificate_is_never_too_small(divergence):
    for seed in range(20):
        problem = make("logistic", divergence=divergence, seed=seed)
        other = problem.moved("cpu")
        w, b = point(problem, seed)
        coef, intercept = problem.to_public(w, b)
        least = drago.solve(problem, tol=1e-10).primal
        found = drago.certify(other, coef, intercept)
        assert found.gap >= (found.primal - least) * (1 - 1e-9)


# ---------------------------------------------------------------------------------- solves


@pytest.mark.thinned(2)
@on_devices
@pytest.mark.parametrize("solver", ["auto", "drago", "lbfgs"])
@pytest.mark.parametrize("loss", LOSSES)
def test_solves_are_certified(loss, solver, device):
    problem = make(loss)
    result = drago.solve(problem, solver, tol=1e-7, device=device)
    assert result.status is Status.OPTIMAL, result.message
    assert isinstance(result.dual_weights, np.ndarray)
    found = drago.certify(problem, result.coef, result.intercept)
    assert found.rel_gap <= 1e-6
    expected = drago.solve(problem, tol=1e-10)
    assert result.primal - expected.primal <= 1.1e-7 * (problem.reference[0] - expected.primal)


@on_devices
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_every_set(name, divergence, device):
    problem = make("logistic", name, divergence)
    result = drago.solve(problem, "drago", tol=1e-6, device=device)
    assert result.status is Status.OPTIMAL, result.message
    assert drago.certify(problem, result.coef, result.intercept).rel_gap <= 1e-5


@on_devices
def test_tensors_stay_tensors(device):
    problem = make(sample_weight=None)
    X, y = (torch.as_tensor(array.copy()).to(device) for array in (problem.X, problem.y))
    on_tensors = drago.DROProblem(
        X, y, uncertainty=drago.CVaR(0.3), shift_cost=0.2, l2_reg=0.1, fit_intercept=True
    )
    assert isinstance(on_tensors.rows, TensorRows)
    assert on_tensors.X.data_ptr() == X.data_ptr()  # not copied
    result = drago.solve(on_tensors, "drago", tol=1e-7)
    assert result.dual_weights.device.type == device
    assert result.dual_weights.dtype == torch.float64
    assert isinstance(result.coef, np.ndarray)
    expected = drago.solve(problem, tol=1e-9)
    np.testing.assert_allclose(result.coef, expected.coef, atol=1e-3)
    again = drago.solve(on_tensors, "drago", tol=1e-7, warm_start=result)
    assert again.n_passes < result.n_passes
    found = drago.certify(on_tensors, result.coef, result.intercept, result.dual_weights)
    assert isinstance(found.dual_weights, torch.Tensor)
    assert found.rel_gap <= 1e-6


def test_weights_and_groups_as_tensors():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    weight, groups = rng.integers(0, 3, size=60), rng.integers(0, 4, size=60)
    settings = {"uncertainty": drago.Grouped("cvar"), "shift_cost": 0.1, "l2_reg": 0.1}
    expected = drago.DROProblem(X, y, sample_weight=weight, groups=groups, **settings)
    found = drago.DROProblem(
        *map(torch.from_numpy, (X, y)),
        sample_weight=torch.from_numpy(weight),
        groups=torch.from_numpy(groups),
        **settings,
    )
    assert found.n_samples == expected.n_samples < 60
    a, b = drago.solve(found, "lbfgs", tol=1e-9), drago.solve(expected, "lbfgs", tol=1e-9)
    assert a.primal == pytest.approx(b.primal, rel=1e-8)
    on_all = found.on_all_rows(a.dual_weights)
    assert on_all.shape == (60,)
    assert (on_all[weight == 0] == 0).all()


def test_automatic_shift_cost():
    for loss in LOSSES:
        expected = make(loss, shift_cost="auto")
        X, y = (torch.as_tensor(np.array(array)) for array in (expected.X, expected.y))
        found = drago.DROProblem(
            X, y, loss=loss, sample_weight=torch.as_tensor(np.array(expected.p)), fit_intercept=True
        )
        assert found.shift_cost == pytest.approx(expected.shift_cost, rel=1e-8)


@on_devices
@pytest.mark.parametrize("solver", ["drago", "lbfgs"])
def test_single_precision_features(solver, device):
    """Sums are in float64: features of float32 lose nothing."""
    problem = make("logistic")
    problem = problem._replace(X=problem.X.astype(np.float32))
    result = drago.solve(problem, solver, tol=1e-8, device=device)
    assert result.status is Status.OPTIMAL
    assert drago.certify(problem, result.coef, result.intercept).rel_gap <= 1e-7


@pytest.mark.parametrize("tol", [1e-4, 1e-12])
def test_a_device_without_float64(monkeypatch, tol):
    """It reaches what it can; the certificate is in float64 all the same and tells the truth."""
    for module in ("rows.device", "oracles.tensors"):
        monkeypatch.setattr(f"drago.{module}.working_dtype", lambda device: torch.float32)
    problem = make("logistic", sample_weight=None)
    on_tensors = problem.moved("cpu")
    assert on_tensors.X.dtype == on_tensors.p.dtype == torch.float32
    with pytest.warns(UserWarning) if tol < 1e-10 else _nothing():
        result = drago.solve(on_tensors, drago.Drago(finish="none"), tol=tol, time_limit=20.0)
    assert (result.status is Status.OPTIMAL) == (tol == 1e-4), result.message
    monkeypatch.undo()
    rounded = problem._replace(X=problem.X.astype(np.float32).astype(float))
    least = drago.solve(rounded, tol=1e-12).primal
    assert result.primal - least <= result.gap * (1 + 1e-6) + 1e-13
    if tol == 1e-4:
        assert drago.certify(rounded, result.coef, result.intercept).rel_gap <= 1e-4


def _nothing():
    from contextlib import nullcontext

    return nullcontext()


# ------------------------------------------------------------------- settings and statuses


def test_statuses():
    problem = make("logistic").moved("cpu")
    with pytest.warns(UserWarning, match="max_iter=3 reached"):
        result = drago.solve(problem, "drago", tol=1e-12, max_iter=3)
    assert result.status is Status.MAX_ITER
    assert result.n_iter == 3
    with pytest.warns(UserWarning, match="time_limit=0 s reached"):
        assert drago.solve(problem, "drago", tol=0.0, time_limit=0.0).status is Status.TIME_LIMIT
    with pytest.warns(UserWarning, match="stopped by the callback"):
        stopped = drago.solve(problem, "drago", tol=1e-9, callback=lambda state: True)
    assert stopped.status is Status.STOPPED

    def interrupt(state):
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        result = drago.solve(problem, "drago", tol=1e-9, callback=interrupt)
    assert result.status is Status.INTERRUPTED
    assert np.isfinite(result.coef).all()


@pytest.mark.parametrize(
    "settings",
    [
        drago.Drago(primal="blocks", refresh=False, finish="none"),
        drago.Drago(primal="support", block_size=30, progressive=False, finish="none"),
        drago.Drago(block_size="n/d", metric="diagonal"),
        drago.Drago(step_size=0.02, block_size=16),
        drago.Drago(step_size=0.02, start="paper", metric="euclidean"),
        drago.Drago(step_size=0.02, start="paper", tables="lagged", metric="euclidean"),
        drago.LBFGS(metric="auto", progressive=True),
    ],
    ids=str,
)
def test_settings_of_the_methods(settings):
    problem = make("logistic", l2_reg=1.0, fit_intercept=False)
    result = drago.solve(problem, settings, tol=1e-5, device="cpu", time_limit=20.0)
    assert result.status is Status.OPTIMAL, result.message
    expected = drago.solve(problem, settings, tol=1e-5)
    assert result.n_iter == pytest.approx(expected.n_iter, abs=8, rel=0.3)


@pytest.mark.parametrize(
    "changes", [{"l2_reg": 0.0}, {"shift_cost": 0.0}, {"constraint": drago.L2Ball(0.2)}], ids=str
)
def test_harder_problems(changes):
    problem = make("logistic", **changes)
    result = drago.solve(problem, "drago", tol=1e-3, device="cpu")
    assert result.status is Status.OPTIMAL, result.message
    least = drago.solve(problem, tol=1e-8).primal
    assert result.primal - least <= 1.1e-3 * (problem.reference[0] - least)
    # The bound, judged anew on arrays where its weights attain it.
    at = result.dual_coef, result.dual_intercept, result.dual_weights
    assert drago.certify(problem, *at).dual >= result.dual - 1e-9 * abs(result.dual)


def test_large_problems_are_started_on_a_part():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 15)).astype(np.float32)
    y = X @ rng.normal(size=15) + rng.standard_t(3, size=40_000)
    problem = drago.DROProblem(X, y, shift_cost=0.05)
    result = drago.solve(problem, "drago", device="cpu")
    assert result.status is Status.OPTIMAL
    assert "started from" in result.message
    assert drago.certify(problem, result.coef).rel_gap <= 1e-4


@pytest.mark.parametrize("estimator", [drago.DRORegressor, drago.DROClassifier])
def test_estimators(estimator):
    problem = make("squared" if estimator is drago.DRORegressor else "multinomial")
    settings = {"uncertainty": drago.CVaR(0.3), "tol": 1e-8}
    expected = estimator(**settings).fit(problem.X, problem.y)
    found = estimator(**settings, device="cpu").fit(problem.X, problem.y)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=2e-3)
    assert "device" in found.result_.message
    np.testing.assert_allclose(found.dual_weights_.sum(), 1.0)
    assert found.predict(problem.X).shape == problem.y.shape


def test_an_interrupt_inside_a_round(monkeypatch):
    """What it returns belongs together, whatever was being written."""
    from drago.solvers.drago.iterations import Iterations

    problem = make("logistic")
    take_down, calls = Iterations.take_down, []

    def interrupted(self, summary):
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        take_down(self, summary)

    monkeypatch.setattr(Iterations, "take_down", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        result = drago.solve(problem, drago.Drago(finish="none"), tol=1e-12, device="cpu")
    assert result.status is Status.INTERRUPTED
    assert problem.objective(result.coef, result.intercept) == pytest.approx(result.primal)
    least = drago.solve(problem, tol=1e-10).primal
    assert result.primal - least <= result.gap * (1 + 1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("solver", ["drago", "lbfgs"])
@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        ("squared", {}),
        ("squared", {"shift_cost": 0.0}),
        ("squared", {"l2_reg": 0.0}),
        ("logistic", {"l2_reg": 0.0}),
        ("multinomial", {}),
        ("multinomial", {"shift_cost": 0.0}),
    ],
    ids=str,
)
def test_no_tensor_becomes_an_array_by_itself(monkeypatch, loss, solver, changes):
    """On a processor NumPy reads tensors without being asked; from a card it cannot."""
    problem = make(loss, **changes).moved("cpu")

    def refuse(self, *args, **settings):
        raise TypeError("can't convert a tensor of a device to numpy")

    monkeypatch.setattr(torch.Tensor, "__array__", refuse)
    result = drago.solve(problem, solver, tol=1e-3)
    assert result.status is Status.OPTIMAL, result.message
    drago.certify(problem, result.coef, result.intercept, torch.from_numpy(result.dual_weights))


ROWS = 4001


@pytest.fixture
def brought(monkeypatch):
    """The shapes of all tensors that become arrays or lists, whichever way."""
    shapes = []

    def spied(name):
        way = getattr(torch.Tensor, name)

        def spy(self, *args, **settings):
            shapes.append(tuple(self.shape))
            return way(self, *args, **settings)

        monkeypatch.setattr(torch.Tensor, name, spy)

    for name in ("cpu", "numpy", "tolist", "item", "__array__"):
        spied(name)
    return shapes


@pytest.mark.parametrize("solver", ["auto", "drago"])
@pytest.mark.parametrize(
    "loss, name, fit_intercept",
    cases.thinned(LOSSES, [*cases.SETS, "grouped"], [False, True], keep=5),
)
def test_no_vector_of_the_rows_comes_to_the_host(loss, name, fit_intercept, solver, brought):
    """Such copies cost more than passes on a card: within a solve there are none."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=ROWS)
    if loss == "logistic":
        y = (y > 0).astype(float)
    elif loss == "multinomial":
        y = np.digitize(y, [-1.0, 1.0])
    given = drago.Grouped("cvar") if name == "grouped" else cases.SETS[name][0]
    problem = drago.DROProblem(
        torch.from_numpy(X), y, loss=loss, uncertainty=given, shift_cost=0.1,
        groups=rng.integers(0, 5, ROWS), fit_intercept=fit_intercept,
    )  # fmt: skip
    brought.clear()
    result = drago.solve(problem, solver, tol=1e-3)
    assert brought, "the spy sees nothing"
    assert [shape for shape in brought if shape[:1] == (ROWS,)] == []
    assert result.status is Status.OPTIMAL, result.message


def test_tensors_of_all_kinds_are_taken():
    problem = make(fit_intercept=False, sample_weight=None)
    X, y = (torch.as_tensor(array.copy()) for array in (problem.X, problem.y))
    on_tensors = drago.DROProblem(X, y[:, None], shift_cost=0.1)
    weight = torch.nn.Parameter(torch.ones(X.shape[1], dtype=torch.float64))
    assert np.isfinite(drago.certify(on_tensors, weight).gap)
    assert drago.solve(on_tensors, warm_start=weight).status is Status.OPTIMAL
    spectral = drago.DROProblem(X, y, uncertainty=drago.ESRM(1.0), shift_cost=0.1)
    with pytest.raises(ValueError, match="how the weights respond"):
        drago.solve(spectral, drago.Drago(finish="newton"))


def test_moved_to_a_device_without_float64(monkeypatch):
    problem = make("logistic").moved("cpu")
    monkeypatch.setattr("drago.rows.device.working_dtype", lambda device: torch.float32)
    moved = problem._replace(rows=problem.rows.moved(torch.device("cpu")))
    assert moved.X.dtype == moved.p.dtype == moved.y.dtype == torch.float32
    assert moved.in_float64.p.dtype == torch.float64


# ---------------------------------------------------------------------------------- errors


def test_what_is_not_taken():
    problem = make()
    with pytest.raises(TypeError, match="takes dense features"):
        drago.solve(cases.make(sparse=True), device="cpu")
    with pytest.raises(TypeError, match="AutogradProblem"):
        drago.solve(cases.make(loss=lambda y, raw: (0.5 * (raw - y) ** 2, raw - y)), device="cpu")
    with pytest.raises(ValueError, match="'sgd' needs to visit single rows"):
        drago.solve(problem, "sgd", device="cpu")
    with pytest.raises(ValueError, match="device must be None"):
        drago.solve(problem, device="nowhere")
    with pytest.raises(ValueError, match="cannot be resumed"):
        drago.solve(problem, "drago", device="cpu", checkpoint="somewhere")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no such device"):
            drago.solve(problem, device="cuda")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": torch.ones(3)}, "X must have shape"),
        ({"X": torch.full((4, 2), float("nan"))}, "8 NaN or infinite entries, the first at"),
        ({"X": torch.ones(4, 2, dtype=torch.complex64)}, "real numbers"),
        ({"y": torch.ones(3)}, "one entry for each row"),
        ({"y": torch.tensor([1.0, 2.0, float("inf"), 0.0])}, "1 NaN or infinite"),
        ({"loss": "logistic", "y": torch.arange(4.0)}, "0 and 1"),
        ({"loss": "logistic", "y": torch.ones(4)}, "at least two classes"),
        ({"loss": "multinomial", "y": torch.tensor([0.0, 0.5, 1.0, 1.0])}, "integers 0..k-1"),
        ({"sample_weight": -torch.ones(4)}, "nonnegative"),
        ({"shift_cost": "many"}, "shift_cost must be"),
        ({"uncertainty": drago.Grouped("cvar")}, "needs to know the group"),
    ],
)
def test_bad_tensors(changes, message):
    given = {"X": torch.ones(4, 2), "y": torch.arange(4.0)} | changes
    with pytest.raises(ValueError, match=message):
        drago.DROProblem(given.pop("X"), given.pop("y"), **given)


def test_a_problem_does_not_change():
    problem = drago.DROProblem(torch.ones(4, 2), torch.arange(4.0))
    with pytest.raises(AttributeError, match="does not change"):
        problem.nu = 3.0
    assert "DROProblem(4 x 2" in repr(problem)


@pytest.mark.slow
def test_lives_without_kernels_and_scikit_learn():
    """From tensors to a certified answer, and to a warning."""
    code = """
        import sys, warnings
        kernels = [f"drago.kernels._{level}" for level in ("v4", "v3", "plain")]
        for name in (*kernels, "sklearn", "threadpoolctl", "joblib"):
            sys.modules[name] = None
        import numpy as np, torch
        import drago
        generator = torch.Generator().manual_seed(0)
        X = torch.randn(300, 4, generator=generator)
        z = X @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + torch.randn(300, generator=generator)
        for loss, y in (("squared", z), ("huber", z), ("logistic", (z > 0).float()),
                        ("multinomial", (z > 0).long() + (z > 1).long())):
            for uncertainty, solver in ((drago.CVaR(0.2), "drago"), (drago.ESRM(2.0), "auto"),
                                        (drago.Chi2Ball(0.5), "lbfgs"), (drago.KLBall(0.3), "auto"),
                                        (drago.Simplex(), "lbfgs"), (drago.Extremile(2.0), "auto")):
                problem = drago.DROProblem(
                    X, y, loss=loss, uncertainty=uncertainty, fit_intercept=True)
                result = drago.solve(problem, solver)
                assert result.status == "optimal", result.message
                found = drago.certify(problem, result.coef, result.intercept)
                assert found.rel_gap <= 1e-3
        on_arrays = drago.DROProblem(X.numpy(), z.numpy(), shift_cost=0.1)
        assert drago.solve(on_arrays, device="cpu").status == "optimal"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            drago.solve(problem, "drago", tol=0.0, max_iter=2)
        print(len(caught), caught[0].category.__name__)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1 UserWarning"
