"""Rows that ranks share: the same answers as in memory, the same bits on all ranks."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import itertools
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("no torch.distributed", allow_module_level=True)

import drago
import ranks_pool
from cases import SETS_OF_STORES, thinned

N, D = 240, 4
LOSSES = ("squared", "huber", "logistic", "multinomial")


@pytest.fixture(scope="module")
def pool():
    found = ranks_pool.Pool()
    yield found
    found.close()


def data_for(loss, n=N, d=D, seed=0, weighted=False):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)
    y = {"logistic": (z > 0).astype(float), "multinomial": np.argsort(np.argsort(z)) * 3 // n}
    out = {"X": X, "y": y.get(loss, z)}
    if weighted:
        out["sample_weight"] = rng.uniform(0.5, 2.0, n)
    return out


def certified(data, settings, found):
    """The certificate in memory, on all rows."""
    settings = dict(settings)
    if "set" in settings:
        settings["uncertainty"], settings["divergence"] = SETS_OF_STORES[settings.pop("set")]
    whole = drago.DROProblem(**data, **settings)
    q = found["q"] / found["q"].sum()
    exact = drago.certify(whole, found["coef"], found["intercept"])
    given = drago.certify(whole, found["coef"], found["intercept"], q)
    return min(exact.rel_gap, given.rel_gap)


def agree(found):
    """All ranks have the same bits; returns what the first one found."""
    for other in found[1:]:
        for name in ("bits", "gap", "n_iter", "status", "message"):
            assert other[name] == found[0][name], name
        np.testing.assert_array_equal(other["q"], found[0]["q"])
    return found[0]


def check(pool, data, settings, tol=1e-6, **more):
    """The same model from 1 to 4 ranks, which the certificate in memory confirms."""
    models = []
    for size in range(1, ranks_pool.WORLD + 1):
        found = agree(pool.run(ranks_pool.solved, size, data, settings, {"tol": tol, **more}))
        assert found["status"] == "optimal"
        assert certified(data, settings, found) <= tol
        models.append(np.append(found["coef"], found["intercept"]))
    for model in models[1:]:
        np.testing.assert_allclose(model, models[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("loss", "name"), thinned(LOSSES, SETS_OF_STORES, keep=4))
def test_all_losses_and_sets(pool, loss, name):
    data = data_for(loss, weighted=loss == "huber")
    data["groups"] = np.arange(N) * 7 % 11
    settings = {"loss": loss, "set": name, "shift_cost": 0.1, "l2_reg": 0.01}
    check(pool, data, {**settings, "fit_intercept": loss != "huber"})


@pytest.mark.parametrize("name", ["cvar", "chi2 ball", "kl ball", "simplex"])
def test_no_shift_cost(pool, name):
    settings = {"loss": "squared", "set": name, "shift_cost": 0.0, "l2_reg": 0.01}
    check(pool, data_for("squared"), settings)


@pytest.mark.parametrize(
    ("solver", "loss"),
    [("LBFGS", "squared"), ("GradientDescent", "squared"), ("Newton", "logistic")],
)
def test_solvers(pool, solver, loss):
    settings = {"loss": loss, "uncertainty": drago.CVaR(0.3), "shift_cost": 0.1, "l2_reg": 0.1}
    data = data_for(loss)
    alone = drago.solve(drago.DROProblem(**data, **settings), tol=1e-9)
    for size in (1, 3):
        found = agree(pool.run(ranks_pool.solved_by, size, data, settings, (solver, {})))
        assert certified(data, settings, found) <= 1e-6
        np.testing.assert_allclose(found["coef"], alone.coef, atol=1e-3)


def test_a_part_of_the_rows_is_shared_too(pool):
    """A start on a part, a metric from its Hessian, and a certificate of some rows."""
    data = data_for("logistic", n=40_000, d=6)
    settings = {"loss": "logistic", "uncertainty": drago.Chi2Ball(0.5), "fit_intercept": True}
    check(pool, data, settings | {"shift_cost": 0.05, "l2_reg": 1e-3}, tol=1e-5)


def test_shares_of_any_size(pool):
    """A rank with two rows, and one whose rows have no weight."""
    data = data_for("squared", n=12_000, weighted=True)
    data["sample_weight"][2:3000] = 0.0
    settings = {"uncertainty": drago.CVaR(0.2), "shift_cost": 0.1, "fit_intercept": True}
    whole = drago.solve(drago.DROProblem(**data, **settings), tol=1e-8)
    for cuts in ((2, 3000, 7000), (100, 101, 11_999)):
        found = agree(pool.run(ranks_pool.solved, 4, data, settings, {"tol": 1e-8}, cuts))
        np.testing.assert_allclose(found["coef"], whole.coef, rtol=1e-5)
    found = pool.run(ranks_pool.solved, 4, data, settings, {"tol": 1e-8}, (2, 3000, 7000))
    assert [each["own"] for each in found] == [2, 0, 4000, 5000]


def test_labels_of_groups_are_those_of_all_ranks(pool):
    data = data_for("squared")
    data["groups"] = np.array(["b", "a", "d", "c"])[np.arange(N) * 4 // N]  # one on each rank
    settings = {"set": "groups", "shift_cost": 0.1, "l2_reg": 0.01}
    check(pool, data, settings)


def test_mean_of_the_losses_is_that_of_scikit_learn(pool):
    linear_model = pytest.importorskip("sklearn.linear_model")
    for loss, n in (("squared", 3001), ("logistic", 3001)):
        data = data_for(loss, n=n)
        settings = {"loss": loss, "uncertainty": drago.CVaR(1.0), "shift_cost": 0.1}
        settings |= {"l2_reg": 0.01, "fit_intercept": True}
        if loss == "squared":
            known = linear_model.Ridge(alpha=0.01 * n).fit(data["X"], data["y"])
        else:
            known = linear_model.LogisticRegression(C=1 / (0.01 * n), tol=1e-12, max_iter=1000)
            known.fit(data["X"], data["y"])
        for size in (1, 2, 3, 4):
            found = agree(pool.run(ranks_pool.solved, size, data, settings, {"tol": 1e-14}))
            np.testing.assert_allclose(found["coef"], known.coef_.reshape(-1), atol=1e-6)
            np.testing.assert_allclose(found["intercept"], known.intercept_, atol=1e-6)


# ------------------------------------------------------------------------------------- weights


def losses_of(kind, n, rng):
    return {
        "spread": lambda: rng.exponential(size=n),
        "ties": lambda: rng.integers(0, 3, n).astype(float),
        "heavy": lambda: np.abs(rng.standard_cauchy(n)),
        "equal": lambda: np.full(n, 2.0),
        "far": lambda: 1e6 + rng.standard_normal(n),
    }[kind]()


SEARCHED = (
    (drago.CVaR(0.1), "chi2"),
    (drago.CVaR(0.1), "kl"),
    (drago.Simplex(), "chi2"),
    (drago.Simplex(), "kl"),
    (drago.Chi2Ball(1.0), "auto"),
    (drago.Chi2Ball(0.01), "auto"),
    (drago.KLBall(0.5), "auto"),
    (drago.KLBall(1e-4), "auto"),
    (drago.CVaR(1.0), "chi2"),
)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["spread", "ties", "heavy", "equal", "far"])
@pytest.mark.parametrize(("uncertainty", "divergence"), SEARCHED)
def test_weights_are_those_in_memory(pool, kind, uncertainty, divergence):
    """With few rows that may be gathered, so that there are rounds; one oracle, call after call."""
    rng = np.random.default_rng(7)
    u = losses_of(kind, 9001, rng)
    settings = {"uncertainty": uncertainty, "divergence": divergence}
    weights = (None, rng.uniform(0.1, 2.0, u.size))
    cases = [
        (u, weight, c, settings)
        for weight, c in itertools.product(weights, (0.0, 1e-7, 0.05, 2.0, 100.0))
    ]
    found = pool.run(ranks_pool.weighed, 3, 40, cases)
    for (_, weight, c, _), here, there in zip(cases, found[0], found[2], strict=True):
        whole = drago.DROProblem(
            np.zeros((u.size, 1)), u, sample_weight=weight, shift_cost=c, **settings
        )
        for k, q in enumerate(here):
            np.testing.assert_array_equal(q, there[k])
            losses = u * (1.0 + 0.01 * k)
            exact = whole.worst_case_weights(losses)
            assert whole.violation(q) <= 1e-11
            value = whole.rows.primal(whole.divergence, c, losses, exact)
            near = whole.rows.primal(whole.divergence, c, losses, q)
            assert near == pytest.approx(value, rel=1e-11, abs=1e-11)
            if kind != "far":
                assert np.abs(q - exact).sum() <= 1e-8


# ---------------------------------------------------------------------- files, clocks and words


def test_a_solve_is_resumed_bit_for_bit(pool, tmp_path):
    data, settings = data_for("logistic", n=900, d=6), {"loss": "logistic", "shift_cost": 0.02}
    settings |= {"uncertainty": drago.CVaR(0.2), "l2_reg": 1e-3, "fit_intercept": True}
    whole = pool.run(ranks_pool.resumed, 3, data, settings, str(tmp_path / "once"), None)
    once = agree([last for _, last, _ in whole])
    parts = pool.run(ranks_pool.resumed, 3, data, settings, str(tmp_path / "twice"), 4)
    assert agree([first for first, _, _ in parts])["status"] == "max_iter"
    twice = agree([last for _, last, _ in parts])
    assert twice["bits"] == once["bits"] and twice["gap"] == once["gap"]
    np.testing.assert_array_equal(twice["q"], once["q"])
    assert [is_there for *_, is_there in parts] == [True, False, False]


def test_a_file_belongs_to_its_ranks(pool, tmp_path):
    data, settings = data_for("squared"), {"shift_cost": 0.1, "uncertainty": drago.CVaR(0.3)}
    path = str(tmp_path / "file")
    pool.run(ranks_pool.resumed, 2, data, settings, path, 2)
    for _, error, _ in pool.run(ranks_pool.resumed, 2, data, settings, path, None, (100,)):
        assert "belongs to another problem" in error


def test_a_solve_on_one_device_is_resumed(tmp_path):
    data = {name: torch.from_numpy(values) for name, values in data_for("logistic").items()}
    problem = drago.DROProblem(
        **data, loss="logistic", uncertainty=drago.CVaR(0.2), shift_cost=0.02, fit_intercept=True
    )
    method, path = drago.LBFGS(metric="auto"), tmp_path / "file"
    once = drago.solve(problem, method, tol=1e-9)
    with pytest.warns(UserWarning, match="max_iter"):
        drago.solve(problem, method, tol=1e-9, max_iter=3, checkpoint=path, checkpoint_every=0)
    twice = drago.solve(problem, method, tol=1e-9, checkpoint=path)
    assert twice.coef.tobytes() == once.coef.tobytes() and twice.n_iter == once.n_iter
    with pytest.raises(ValueError, match="'drago' cannot be resumed on a device"):
        drago.solve(problem, "drago", checkpoint=path)


def test_the_first_rank_decides(pool):
    """On time limits, callbacks and interrupts: no rank goes on alone."""
    settings = {"uncertainty": drago.CVaR(0.3), "shift_cost": 1e-3, "l2_reg": 1e-6}
    found = pool.run(ranks_pool.limited, 3, data_for("squared", n=6000, d=8), settings)
    late, stopped, calls, interrupted = zip(*found)
    assert agree(late)["status"] == "time_limit"
    assert agree(stopped)["status"] == "stopped"
    assert calls == (1, 0, 0)
    assert agree(interrupted)["status"] == "interrupted"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({1: {"X": np.full((20, 3), np.nan)}}, "X contains 60 NaN"),
        ({2: {"X": np.zeros((20, 4))}}, "n_features is 3 on rank 0 and 4 on rank 2"),
        ({0: {"sample_weight": np.ones(20)}}, "sample_weight is True on rank 0"),
        ({1: {"groups": np.arange(19)}}, "groups must have one label per row"),
        ({1: {"loss": "huber"}}, "loss is"),
        ({k: {"sample_weight": np.zeros(20)} for k in range(3)}, "not 0 on all rows"),
    ],
)
def test_an_error_of_one_rank_is_one_of_all(pool, changes, error):
    data = {"X": np.random.default_rng(0).standard_normal((20, 3)), "y": np.arange(20.0)}
    settings = {"shift_cost": 0.1, "loss": "squared"}
    for found in pool.run(ranks_pool.refused, 3, data, settings, {}, changes):
        assert error in found


def test_what_needs_one_process_is_refused(pool):
    data = {"X": np.random.default_rng(0).standard_normal((20, 3)), "y": np.arange(20.0)}
    for found in pool.run(
        ranks_pool.refused, 2, data, {"shift_cost": 0.1}, {"solver": "drago"}, {}
    ):
        assert "solver 'drago' needs to keep tables of the rows" in found
    with pytest.raises(TypeError, match="process_group must be"):
        drago.DROProblem(torch.zeros(3, 1), torch.zeros(3), process_group="gloo")
    with pytest.raises(ValueError, match="X is no tensor"):
        drago.DROProblem(np.zeros((3, 1)), np.zeros(3), process_group="gloo")
    with pytest.raises(ValueError, match="without a device"):
        drago.solve(drago.DROProblem(np.eye(3), np.arange(3.0)), process_group="gloo")


# ----------------------------------------------------------------------------- arrays, estimators


def test_arrays_are_shared_out(pool):
    data = data_for("squared", n=5001)
    settings = {"uncertainty": drago.CVaR(0.2), "shift_cost": 0.1}
    found = pool.run(ranks_pool.moved, 3, data["X"], data["y"], settings)
    for together, again, alone in found:
        for here, first in zip(together, found[0][0]):
            np.testing.assert_array_equal(here, first)
        np.testing.assert_allclose(together[0], alone[0], rtol=1e-6)
        assert len(together[2]) == 5001
        np.testing.assert_allclose(together[2], alone[2], atol=1e-7)
        assert again[3] <= 1


@pytest.mark.parametrize("kind", ["DRORegressor", "DROClassifier"])
def test_estimators(pool, kind):
    estimators = pytest.importorskip("drago.estimators")
    loss = "squared" if kind == "DRORegressor" else "multinomial"
    data = data_for(loss, n=1001)
    y = data["y"] if kind == "DRORegressor" else np.array(["c", "a", "b"])[data["y"]]
    settings = {"uncertainty": drago.CVaR(0.3), "tol": 1e-8}
    alone = getattr(estimators, kind)(**settings).fit(data["X"], y)
    for size in (1, 3):
        found = pool.run(ranks_pool.fitted, size, kind, data["X"], y, settings)
        for coef, intercept, q, message in found:
            np.testing.assert_array_equal(coef, found[0][0])
            np.testing.assert_allclose(coef, alone.coef_, atol=1e-3)
            np.testing.assert_allclose(intercept, alone.intercept_, atol=1e-3)
            assert q.shape == (1001,) and "on a device" in message


@pytest.mark.slow
def test_torchrun_recovers_a_rank_that_is_killed(monkeypatch, capsys):
    """By SIGKILL, in the middle of a solve: the same bits on all ranks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import kill_ranks

    assert kill_ranks.main(["--kills", "1", "--rows", "2000"]) == 0
    assert "1 of 1 recoveries to the same bits" in capsys.readouterr().out
