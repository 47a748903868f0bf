"""DROProblem: what it keeps, what it computes, and its constants."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize_scalar

import drago
import reference
import twins
from cases import SETS
from drago.problem import NonFiniteLossError

N, D, K = 14, 3, 3
EPS = np.finfo(float).eps
# What a loss may differ by where its raw prediction, D products and an intercept, is summed in
# another order: D + 1 roundings, of numbers that cancel to a few hundredths.
RTOL = 1e-12
LOSSES = {
    "squared": ("squared", "squared"),
    "huber": (drago.Huber(0.6), ("huber", 0.6)),
    "logistic": ("logistic", "logistic"),
    "multinomial": ("multinomial", "multinomial"),
}
FEW_SETS = ["cvar", "extremile", "chi2_ball", "kl_ball", "simplex"]

all_losses = pytest.mark.parametrize("loss", LOSSES)


def data(loss, n=N, d=D, seed=0):
    """(X, y, coef, intercept) with values that float32 holds exactly."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32).astype(np.float64)
    X[rng.random(size=X.shape) < 0.3] = 0.0
    if loss == "multinomial":
        y = np.arange(n) % K
        return X, rng.permutation(y), rng.normal(size=(K, d)), rng.normal(size=K)
    if loss == "logistic":
        y = rng.permutation(np.arange(n) % 2).astype(float)
    else:
        y = 2 * rng.normal(size=n)
    return X, y, rng.normal(size=d), 0.4


def build(loss, X, y, **settings):
    settings = {"shift_cost": 0.2, "uncertainty": drago.CVaR(0.3), "l2_reg": 0.05, **settings}
    return drago.DROProblem(X, y, loss=LOSSES[loss][0], **settings)


def gradient(problem, coef, intercept):
    """sum q_i grad loss_i at the exact weights, (n_features, n_outputs)."""
    ev = problem.evaluate(*problem.to_internal(coef, intercept))
    return problem.rows.weighted_sum(problem.worst_case_weights(ev.losses)[:, None] * ev.dlosses)


# ------------------------------------------------------------------------ keeping the data


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_kept_without_a_copy(order, dtype):
    X = np.asarray(np.random.default_rng(0).normal(size=(N, D)), dtype=dtype, order=order)
    problem = build("squared", X, np.zeros(N))
    assert np.shares_memory(problem.X, X)
    assert problem.X.dtype == dtype
    assert not problem.X.flags.writeable
    assert X.flags.writeable
    assert np.shares_memory(build("squared", X, np.zeros(N), sample_weight=np.ones(N)).X, X)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_csr_is_kept_without_a_copy(dtype):
    X = sp.csr_array(data("squared")[0].astype(dtype))
    problem = build("squared", X, np.zeros(N))
    assert np.shares_memory(problem.X.data, X.data)
    assert problem.X.dtype == dtype


def test_arrays_of_a_problem_are_read_only():
    X, y, *_ = data("squared")
    problem = build("squared", X, y, groups=np.arange(N) % 2, sample_weight=np.arange(1.0, N + 1))
    for array in (problem.X, problem.y, problem.p, problem.groups):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_sparse_features_of_a_problem_are_read_only():
    X, y, *_ = data("squared")
    given = sp.csr_array(X)
    problem = build("squared", given, y)
    with pytest.raises(ValueError, match="read-only"):
        problem.X.data[0] = 7.0
    given.data[0] = given.data[0]  # the owner may still write


@pytest.mark.parametrize("name", ["mu", "nu", "X", "loss", "anything"])
def test_a_problem_does_not_change(name):
    X, y, *_ = data("squared")
    problem = build("squared", X, y)
    with pytest.raises(AttributeError, match=f"setting {name}"):
        setattr(problem, name, 1.0)


def test_sets_are_copied():
    X, y, *_ = data("squared")
    uncertainty = drago.CVaR(0.3)
    problem = build("squared", X, y, uncertainty=uncertainty)
    before = problem.objective(np.ones(D))
    uncertainty.tail_fraction = 0.9
    assert problem.uncertainty.tail_fraction == 0.3
    assert problem.objective(np.ones(D)) == before


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda problem: pickle.loads(pickle.dumps(problem)),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("how", COPIES)
def test_a_problem_can_be_copied_and_pickled(how, loss, sparse):
    X, y, w, b = data(loss)
    weight = np.arange(len(y)) % 4  # some rows are dropped
    groups = np.arange(len(y)) % 3
    problem = build(
        loss,
        sp.csr_array(X) if sparse else X,
        y,
        fit_intercept=True,
        sample_weight=weight,
        groups=groups,
        uncertainty=drago.Grouped(drago.CVaR(0.4)),
    )
    value, norms, reference = problem.objective(w, b), problem.row_norms, problem.reference
    other = COPIES[how](problem)
    assert other.objective(w, b) == value
    np.testing.assert_array_equal(other.row_norms, norms)
    assert other.reference[0] == reference[0]
    np.testing.assert_array_equal(other.on_all_rows(other.p), problem.on_all_rows(problem.p))
    assert repr(other) == repr(problem)
    X = (other.X.data, other.X.indices, other.X.indptr) if sparse else (other.X,)
    for array in (*X, other.y, other.p, other.groups):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError, match="does not change"):
        other.mu = 1.0
    with pytest.raises(AttributeError, match="does not change"):
        other.uncertainty.inner = "cvar"
    assert COPIES[how](other).objective(w, b) == value


def test_sizes_and_repr():
    X, y, *_ = data("multinomial")
    problem = build("multinomial", X, y)
    assert (problem.n_samples, problem.n_features, problem.n_outputs) == (N, D, K)
    assert (problem.shift_cost, problem.l2_reg) == (0.2, 0.05)
    assert not problem.is_sparse
    assert build("multinomial", sp.csr_array(X), y).is_sparse
    assert repr(problem) == (
        "DROProblem(14 x 3, loss='multinomial', uncertainty=CVaR(tail_fraction=0.3), "
        "divergence='chi2', shift_cost=0.2, l2_reg=0.05)"
    )


# ------------------------------------------------------------- float32 and sparse features


@all_losses
@pytest.mark.parametrize("kind", ["float32", "fortran", "csr", "csr32"])
def test_every_storage_gives_the_same_numbers(loss, kind, monkeypatch):
    """The features are exact in float32, so nothing but rounding in float64 may differ."""
    monkeypatch.setattr("drago.rows.array_visits._CHUNK", 4 * D)  # several chunks
    X, y, w, b = data(loss)
    settings = {"fit_intercept": True, "sample_weight": np.arange(1.0, N + 1)}
    dense = build(loss, X, y, **settings)
    given = {
        "float32": X.astype(np.float32),
        "fortran": np.asfortranarray(X.astype(np.float32)),
        "csr": sp.csr_array(X),
        "csr32": sp.csr_matrix(X.astype(np.float32)),
    }[kind]
    other = build(loss, given, y, **settings)
    np.testing.assert_allclose(other.losses(w, b), dense.losses(w, b), rtol=RTOL, atol=1e-15)
    np.testing.assert_allclose(other.objective(w, b), dense.objective(w, b), rtol=1e-13)
    np.testing.assert_allclose(gradient(other, w, b), gradient(dense, w, b), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(other.reference[0], dense.reference[0], rtol=1e-13)
    np.testing.assert_array_equal(other.rows.dense(np.array([3, 1])), X[[3, 1]])


@pytest.mark.parametrize("k", [1, 3])
def test_float32_features_are_multiplied_in_float64(k, monkeypatch):
    monkeypatch.setattr("drago.rows.array_visits._CHUNK", 1000)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 20)).astype(np.float32)
    y = np.arange(300) % 3 if k == 3 else rng.normal(size=300)
    problem = build("multinomial" if k == 3 else "squared", X, y, fit_intercept=True)
    w, b = rng.normal(size=(20, k)), rng.normal(size=k)
    exact = X.astype(np.float64) @ w + b
    raw = problem.rows.predict(w, b)
    assert raw.dtype == np.float64
    assert raw.flags.c_contiguous
    # Two sums of 20 products and an intercept, in any order: 21 roundings each.
    size = np.abs(X.astype(np.float64)) @ np.abs(w) + np.abs(b)
    assert (np.abs(raw - exact) <= 21 * EPS * size).all()
    c = rng.normal(size=(300, k))
    back = problem.rows.weighted_sum(c)
    assert back.dtype == np.float64
    np.testing.assert_allclose(back, X.astype(np.float64).T @ c, rtol=1e-13, atol=1e-13)


# -------------------------------------------------------------------------- sample weights

WEIGHT = np.array([1, 3, 2, 1, 1, 4, 1, 2, 1, 1, 5, 1, 2, 3])


@all_losses
@pytest.mark.parametrize("name", ["cvar", "extremile", "esrm", "spectrum", "chi2_ball", "kl_ball"])
def test_weight_k_is_k_copies(loss, name):
    X, y, w, b = data(loss)
    settings = {"uncertainty": SETS[name][0], "fit_intercept": True, "shift_cost": 0.3}
    weighted = build(loss, X, y, sample_weight=WEIGHT, **settings)
    copies = build(loss, np.repeat(X, WEIGHT, axis=0), np.repeat(y, WEIGHT), **settings)
    np.testing.assert_allclose(
        np.repeat(weighted.losses(w, b), WEIGHT), copies.losses(w, b), rtol=RTOL
    )
    np.testing.assert_allclose(weighted.objective(w, b), copies.objective(w, b), rtol=1e-12)
    np.testing.assert_allclose(weighted.reference[0], copies.reference[0], rtol=1e-11)
    np.testing.assert_allclose(
        gradient(weighted, w, b), gradient(copies, w, b), rtol=1e-9, atol=1e-11
    )
    q = weighted.worst_case_weights(weighted.losses(w, b))
    np.testing.assert_allclose(
        np.repeat(q / WEIGHT, WEIGHT), copies.worst_case_weights(copies.losses(w, b)), atol=1e-11
    )


@all_losses
def test_weight_k_is_k_copies_of_the_constants(loss):
    """A thin enough tail caps every row alike, so kappa_q is the same too."""
    X, y, *_ = data(loss)
    weighted = build(loss, X, y, sample_weight=WEIGHT, shift_cost="auto", fit_intercept=True)
    repeated = np.repeat(X, WEIGHT, axis=0), np.repeat(y, WEIGHT)
    copies = build(loss, *repeated, shift_cost="auto", fit_intercept=True)
    assert weighted.kappa_q == pytest.approx(copies.kappa_q, rel=1e-14)
    assert weighted.kappa_q == pytest.approx(1 / 0.3)
    assert weighted.nu == pytest.approx(copies.nu, rel=1e-10)
    assert weighted.smoothness == copies.smoothness
    assert weighted.lipschitz == pytest.approx(copies.lipschitz, rel=1e-9)


@all_losses
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_rows_of_weight_zero_are_dropped(loss, container):
    X, y, w, b = data(loss)
    weight = WEIGHT * (np.arange(N) % 5 != 0)
    kept = weight > 0
    labels = np.array(list("abcdefg" * 2))
    settings = {"uncertainty": drago.Grouped("cvar"), "fit_intercept": True}
    one = build(loss, container(X), y, sample_weight=weight, groups=labels, **settings)
    other = build(
        loss,
        container(X[kept]),
        y[kept],
        sample_weight=weight[kept],
        groups=labels[kept],
        **settings,
    )
    assert one.n_samples == kept.sum()
    np.testing.assert_array_equal(one.p, other.p)
    np.testing.assert_array_equal(one.groups, other.groups)
    np.testing.assert_array_equal(one.losses(w, b), other.losses(w, b))
    assert one.objective(w, b) == other.objective(w, b)
    assert one.reference[0] == other.reference[0]


def test_scale_of_the_weights_does_not_matter():
    X, y, w, _ = data("squared")
    plain = build("squared", X, y, sample_weight=WEIGHT)
    for scale in (1e-300, 1e-8, 1e8, 1e307):
        scaled = build("squared", X, y, sample_weight=scale * WEIGHT)
        np.testing.assert_allclose(scaled.p, plain.p, rtol=1e-14)
        np.testing.assert_allclose(scaled.objective(w), plain.objective(w), rtol=1e-13)
    assert plain.p.sum() == pytest.approx(1.0, abs=N * EPS)  # N quotients and N - 1 sums


# ------------------------------------------------------------------------------ objective


@pytest.mark.thinned(2)
@all_losses
@pytest.mark.parametrize("name", FEW_SETS)
@pytest.mark.parametrize("nu", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_objective_against_the_witness(loss, name, nu, weighted):
    X, y, w, b = data(loss, seed=3)
    uncertainty, tuple_ = SETS[name]
    weight = WEIGHT if weighted else None
    p = WEIGHT / WEIGHT.sum() if weighted else None
    problem = build(
        loss,
        X,
        y,
        uncertainty=uncertainty,
        shift_cost=nu,
        sample_weight=weight,
        fit_intercept=True,
    )
    expected = reference.primal_value(
        X, y, LOSSES[loss][1], tuple_, problem.divergence.name, nu, 0.05, p, w, b
    )
    np.testing.assert_allclose(problem.objective(w, b), expected, rtol=1e-11)
    np.testing.assert_allclose(
        problem.losses(w, b), twins.losses(LOSSES[loss][1], y, X @ w.T + b), rtol=1e-12
    )


def test_objective_of_groups_with_names():
    X, y, w, _ = data("squared", seed=4)
    labels = np.array(["low", "high", "mid", "high", "low"] * 3)[:N]
    for inner in ("cvar", drago.KLBall(0.2)):
        tuple_ = ("cvar", 0.1) if inner == "cvar" else ("kl_ball", 0.2)
        problem = build("squared", X, y, uncertainty=drago.Grouped(inner), groups=labels)
        expected = reference.primal_value(
            X,
            y,
            "squared",
            ("grouped", tuple_, labels),
            problem.divergence.name,
            0.2,
            0.05,
            None,
            w,
        )
        np.testing.assert_allclose(problem.objective(w), expected, rtol=1e-11)
    numbers = np.unique(labels, return_inverse=True)[1]
    same = build("squared", X, y, uncertainty=drago.Grouped(inner), groups=numbers)
    assert same.objective(w) == problem.objective(w)
    assert problem.groups.tolist() == numbers.tolist()


def test_worst_case_weights_attain_the_objective():
    X, y, w, _ = data("squared")
    problem = build("squared", X, y)
    losses = problem.losses(w)
    q = problem.worst_case_weights(losses)
    value = q @ losses - 0.2 * problem.divergence.value(q, problem.p) + 0.025 * w @ w
    assert problem.objective(w) == pytest.approx(value, rel=1e-14)
    assert problem.uncertainty.violation(q, problem.p) < 1e-12


def test_divergence_of_a_set():
    X, y, *_ = data("squared")
    assert build("squared", X, y).divergence.name == "chi2"
    assert build("squared", X, y, uncertainty="kl_ball").divergence.name == "kl"
    assert build("squared", X, y, uncertainty="chi2_ball").divergence.name == "chi2"
    assert build("squared", X, y, divergence="kl").divergence.name == "kl"
    grouped = drago.Grouped("kl_ball")
    assert build("squared", X, y, uncertainty=grouped, groups=y > 0).divergence.name == "kl"


# ------------------------------------------------------------------------ the reference P_0


def best_by_search(problem):
    """min over b of objective(0, b), by a search on the line."""
    zero = np.zeros(problem.n_features)
    if problem.loss.name == "logistic":
        low, high = -15.0, 15.0
    else:
        low, high = problem.y.min(), problem.y.max()
    found = minimize_scalar(
        lambda b: problem.objective(zero, b),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-10 * (high - low), "maxiter": 1000},
    )
    return found.fun


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("name", ["cvar", "cvar_thin", "cvar_mean", "esrm", "chi2_ball", "kl_ball"])
@pytest.mark.parametrize("nu", [0.0, 1e-3, 0.3])
def test_reference_is_the_best_intercept(loss, name, nu):
    X, y, *_ = data(loss, seed=5)
    y = y if loss != "logistic" else (np.arange(N) % 5 == 0).astype(float)
    problem = build(
        loss,
        X,
        y,
        uncertainty=SETS[name][0],
        shift_cost=nu,
        fit_intercept=True,
        sample_weight=WEIGHT,
    )
    value, b = problem.reference
    assert value == pytest.approx(problem.objective(np.zeros(D), b), rel=1e-12)
    assert value == pytest.approx(best_by_search(problem), rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("nu", [0.0, 0.3])
@pytest.mark.parametrize("outlier", [1e3, -1e6])
def test_reference_with_an_outlier(loss, nu, outlier):
    X, y, *_ = data(loss, n=60, seed=6)
    y[7] = outlier
    problem = build(loss, X, y, shift_cost=nu, fit_intercept=True)
    assert problem.reference[0] == pytest.approx(best_by_search(problem), rel=1e-7)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["cvar", "cvar_mean", "extremile", "chi2_ball", "kl_ball"])
@pytest.mark.parametrize("nu", [0.0, 0.2])
def test_reference_of_several_classes(name, nu):
    rng = np.random.default_rng(7)
    n = 12
    y = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
    weight = rng.integers(1, 4, n).astype(float)
    uncertainty, tuple_ = SETS[name]
    problem = drago.DROProblem(
        rng.normal(size=(n, 2)),
        y,
        loss="multinomial",
        uncertainty=uncertainty,
        shift_cost=nu,
        fit_intercept=True,
        sample_weight=weight,
    )
    best, _, _ = reference.solve_problem(
        np.zeros((n, 1)),
        y,
        "multinomial",
        tuple_,
        problem.divergence.name,
        nu,
        1.0,
        problem.p,
        fit_intercept=True,
    )
    value, b = problem.reference
    assert b.shape == (3,)
    assert value == pytest.approx(problem.objective(np.zeros((3, 2)), b), rel=1e-12)
    assert value == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("nu", [0.0, 1e-6])
@pytest.mark.parametrize("counts", [[1, 2, 4, 8], [1, 2, 3, 4, 5], [1, 1, 1, 1, 1, 20]])
def test_reference_of_several_classes_without_a_shift_cost(counts, nu):
    """The largest of k losses at a common intercept is least where all are log k: a kink."""
    y = np.repeat(np.arange(len(counts)), counts)
    problem = drago.DROProblem(
        np.zeros((y.size, 1)),
        y,
        loss="multinomial",
        uncertainty=drago.CVaR(0.01),
        shift_cost=nu,
        fit_intercept=True,
    )
    assert problem.reference[0] == pytest.approx(np.log(len(counts)), rel=1e-4)


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("nu", [0.0, 0.2])
def test_reference_of_groups(loss, nu):
    X, y, *_ = data(loss, seed=8)
    y = np.array([0, 0, 0, 0, 1, 0, 0, 1, 2, 0, 2, 0, 0, 1]) if loss == "multinomial" else y
    labels = np.array(["a", "b", "c", "a", "b", "a", "a"] * 2)
    problem = build(
        loss,
        X,
        y,
        uncertainty=drago.Grouped(drago.CVaR(0.5)),
        groups=labels,
        shift_cost=nu,
        fit_intercept=True,
    )
    best, _, _ = reference.solve_problem(
        np.zeros((N, 1)),
        y,
        LOSSES[loss][1],
        ("grouped", ("cvar", 0.5), labels),
        "chi2",
        nu,
        1.0,
        problem.p,
        fit_intercept=True,
    )
    assert problem.reference[0] == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("nu", [0.0, 0.3])
def test_reference_does_not_see_a_shift_of_the_target(nu):
    X, y, *_ = data("squared", n=40)
    near = build("squared", X, y, shift_cost=nu, fit_intercept=True).reference
    far = build("squared", X, y + 1e6, shift_cost=nu, fit_intercept=True).reference
    assert far[0] == pytest.approx(near[0], rel=1e-8)
    assert far[1][0] - 1e6 == pytest.approx(near[1][0], abs=1e-6)


@all_losses
def test_reference_without_an_intercept_is_the_objective_at_zero(loss):
    X, y, w, _ = data(loss)
    problem = build(loss, X, y)
    value, b = problem.reference
    assert not b.any()
    # The weight of a class is the sum of those of its rows: so many roundings, twice.
    rounding = 2 * y.size * np.finfo(float).eps
    assert value == pytest.approx(problem.objective(np.zeros_like(w)), rel=rounding)


def test_reference_lies_in_the_constraint():
    """w = 0 is projected onto W, and the penalty of what remains is paid."""
    X, y, *_ = data("squared")
    problem = build("squared", X, y, constraint=drago.Box(0.5, 2.0))
    assert problem.reference[0] == pytest.approx(problem.objective(np.full(D, 0.5)), rel=1e-14)
    shifted = build("squared", X, y, constraint=drago.Box(0.5, 2.0), fit_intercept=True)
    search = minimize_scalar(
        lambda b: shifted.objective(np.full(D, 0.5), b), bracket=(-5, 5), tol=1e-10
    )
    assert shifted.reference[0] == pytest.approx(search.fun, rel=1e-9)


def test_reference_of_one_row_and_of_a_constant_target():
    one = build("squared", np.ones((1, 2)), [3.0], fit_intercept=True)
    assert one.reference[0] == 0.0
    assert one.reference[1].tolist() == [3.0]
    flat = build("huber", np.ones((5, 2)), np.full(5, -2.0), fit_intercept=True)
    assert flat.reference[0] == 0.0


# ----------------------------------------------------------------------- shift_cost="auto"


def test_automatic_shift_cost_is_a_tenth_of_the_mean_loss():
    X, y, *_ = data("squared")
    p = WEIGHT / WEIGHT.sum()
    settings = {"shift_cost": "auto", "sample_weight": WEIGHT}
    plain = build("squared", X, y, **settings)
    assert plain.nu == pytest.approx(0.1 * p @ (0.5 * y**2), rel=1e-13)
    centred = build("squared", X, y, fit_intercept=True, **settings)
    assert centred.nu == pytest.approx(0.05 * p @ (y - p @ y) ** 2, rel=1e-10)
    moved = build("squared", X, y + 1e4, fit_intercept=True, **settings)
    assert moved.nu == pytest.approx(centred.nu, rel=1e-8)


def test_automatic_shift_cost_scales_with_the_loss():
    X, y, *_ = data("squared")
    one = build("squared", X, y, shift_cost="auto", fit_intercept=True)
    ten = build("squared", X, 10 * y, shift_cost="auto", fit_intercept=True)
    assert ten.nu == pytest.approx(100 * one.nu, rel=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_automatic_shift_cost_of_classes_is_a_tenth_of_their_entropy(loss):
    X, y, *_ = data(loss)
    k = 3 if loss == "multinomial" else 2
    share = np.bincount(y.astype(int), weights=WEIGHT) / WEIGHT.sum()
    settings = {"shift_cost": "auto", "sample_weight": WEIGHT}
    assert build(loss, X, y, **settings).nu == pytest.approx(0.1 * np.log(k), rel=1e-13)
    with_intercept = build(loss, X, y, fit_intercept=True, **settings)
    assert with_intercept.nu == pytest.approx(-0.1 * share @ np.log(share), rel=1e-9)


def test_automatic_shift_cost_of_huber():
    X, y, *_ = data("huber")
    problem = build("huber", X, y, shift_cost="auto", fit_intercept=True)
    mean = minimize_scalar(
        lambda b: twins.losses(("huber", 0.6), y, np.full(N, b)).mean(),
        bounds=(y.min(), y.max()),
        method="bounded",
        options={"xatol": 1e-11},
    )
    assert problem.nu == pytest.approx(0.1 * mean.fun, rel=1e-9)


def test_automatic_is_the_default_shift_cost():
    X, y, *_ = data("squared")
    assert drago.DROProblem(X, y).nu == build("squared", X, y, shift_cost="auto").nu


# -------------------------------------------------------------------------------- constants


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_row_norms(container, dtype, fit_intercept):
    """In float64 whatever the storage: float32 would round a bound down, or overflow."""
    X, y, *_ = data("squared")
    X[3] *= 1e25
    given = container(X.astype(dtype))
    X = X.astype(dtype).astype(np.float64)
    problem = build("squared", given, y, fit_intercept=fit_intercept)
    wide = np.hstack([X, np.ones((N, 1))]) if fit_intercept else X
    np.testing.assert_allclose(problem.row_norms, np.linalg.norm(wide, axis=1), rtol=1e-14)


def gradients(problem, coef, intercept):
    """The gradient of each loss in (coef, intercept), one row each."""
    ev = problem.evaluate(*problem.to_internal(coef, intercept))
    X = problem.rows.dense(np.arange(problem.n_samples))
    X = np.hstack([X, np.ones((len(X), 1))]) if problem.fit_intercept else X
    return (ev.dlosses[:, :, None] * X[:, None, :]).reshape(len(X), -1)


@all_losses
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_smoothness_and_lipschitz_bound_the_gradients(loss, fit_intercept):
    X, y, w, b = data(loss)
    problem = build(loss, X, y, fit_intercept=fit_intercept)
    factor = {"squared": 1.0, "huber": 1.0, "logistic": 0.25, "multinomial": 0.5}[loss]
    largest = (X**2).sum(axis=1).max() + fit_intercept
    assert problem.smoothness == pytest.approx(factor * largest, rel=1e-14)
    rng = np.random.default_rng(9)
    b = b if fit_intercept else 0.0
    for size in (1e-3, 0.1, 1.0, 10.0):
        step = size * rng.normal(size=w.shape)
        shift = size * rng.normal(size=np.shape(b)) if fit_intercept else 0.0 * np.asarray(b)
        here, there = gradients(problem, w, b), gradients(problem, w + step, b + shift)
        moved = np.sqrt(np.sum(step**2) + np.sum(shift**2))
        assert np.linalg.norm(here - there, axis=1).max() <= problem.smoothness * moved * (1 + 1e-9)
        if loss != "squared":
            assert np.linalg.norm(there, axis=1).max() <= problem.lipschitz * (1 + 1e-12)


def test_lipschitz_of_the_squared_loss_holds_on_the_level_set():
    """||w||^2 <= 2 P(0)/mu: nothing better than w = 0 lies outside; mu = 0 leaves no bound."""
    X, y, *_ = data("squared")
    problem = build("squared", X, y)
    radius = np.sqrt(2 * problem.reference[0] / problem.mu)
    rng = np.random.default_rng(10)
    for direction in [*rng.normal(size=(50, D)), *X]:
        w = radius * direction / np.linalg.norm(direction)
        for sign in (1, -1):
            norms = np.linalg.norm(gradients(problem, sign * w, 0.0), axis=1)
            assert norms.max() <= problem.lipschitz * (1 + 1e-12)
    assert build("squared", X, y, l2_reg=0.0).lipschitz == np.inf


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [name for name in SETS if name != "cvar_thin"])
@pytest.mark.parametrize("weighted", [False, True])
def test_largest_weights_against_the_oracle(name, weighted):
    """kappa_q and q_max are attained by putting all the loss on one row."""
    X, y, *_ = data("squared")
    uncertainty, tuple_ = SETS[name]
    problem = build(
        "squared", X, y, uncertainty=uncertainty, sample_weight=WEIGHT if weighted else None
    )
    assert problem.kappa_q == pytest.approx(twins.kappa_q(tuple_, problem.p), rel=1e-8)
    alone = [
        twins.worst_case(tuple_, np.eye(N)[i], 0.0, problem.divergence.name, problem.p)[i]
        for i in range(N)
    ]
    assert problem.q_max == pytest.approx(max(alone), rel=1e-8)
    for seed in range(5):  # and no other losses get more
        u = np.random.default_rng(seed).exponential(size=N) ** 3
        q = twins.worst_case(tuple_, u, 0.0, problem.divergence.name, problem.p)
        assert q.max() <= problem.q_max * (1 + 1e-9)
        assert (q / problem.p).max() <= problem.kappa_q * (1 + 1e-9)


def test_largest_weights_of_groups():
    X, y, *_ = data("squared")
    labels = np.array([0, 1, 2, 0, 1, 0, 0] * 2)
    problem = build("squared", X, y, uncertainty=drago.Grouped(drago.CVaR(0.5)), groups=labels)
    tuple_ = ("grouped", ("cvar", 0.5), labels)
    assert problem.kappa_q == pytest.approx(twins.kappa_q(tuple_, problem.p), rel=1e-9)
    assert problem.q_max == pytest.approx(problem.kappa_q / N, rel=1e-12)


@pytest.mark.parametrize("name", SETS)
def test_one_row_has_all_the_weight(name):
    problem = build("squared", np.ones((1, 2)), [1.0], uncertainty=SETS[name][0])
    assert problem.kappa_q == pytest.approx(1.0)
    assert problem.q_max == pytest.approx(1.0)
    assert problem.worst_case_weights([5.0]).tolist() == pytest.approx([1.0])


# ------------------------------------------------------------------------ shapes and relatives


def test_shapes_of_one_output():
    X, y, w, _ = data("squared")
    problem = build("squared", X, y, fit_intercept=True)
    for given in (w, w[None, :], w[:, None], w.tolist()):
        inside, b = problem.to_internal(given, 2.0)
        assert inside.shape == (D, 1)
        assert b.tolist() == [2.0]
    coef, intercept = problem.to_public(inside, b)
    assert coef.shape == (D,)
    assert isinstance(intercept, float)
    np.testing.assert_array_equal(coef, w)
    coef[0] = 99.0
    assert inside[0, 0] == w[0]


def test_shapes_of_several_outputs():
    X, y, w, b = data("multinomial")
    problem = build("multinomial", X, y, fit_intercept=True)
    inside, intercept = problem.to_internal(w, b)
    assert inside.shape == (D, K)
    assert inside.flags.c_contiguous
    np.testing.assert_array_equal(inside, w.T)
    np.testing.assert_array_equal(intercept, b)
    coef, back = problem.to_public(inside, intercept)
    np.testing.assert_array_equal(coef, w)
    np.testing.assert_array_equal(back, b)
    assert problem.to_internal(w, 1.5)[1].tolist() == [1.5] * K
    assert problem.losses(w, b).shape == (N,)
    ev = problem.evaluate(inside, intercept)
    assert ev.raw.shape == ev.dlosses.shape == (N, K)


@pytest.mark.parametrize(
    ("coef", "intercept"),
    [
        (np.zeros(D + 1), 0.0),
        (np.zeros((D, D)), 0.0),
        (np.zeros(D), [0.0, 0.0]),
        ([0.0, np.inf, 0.0], 0.0),
        (np.zeros(D), np.nan),
    ],
)
def test_shapes_that_do_not_fit(coef, intercept):
    X, y, *_ = data("squared")
    problem = build("squared", X, y, fit_intercept=True)
    with pytest.raises(ValueError, match="coef|intercept"):  # noqa: RUF043
        problem.losses(coef, intercept)


def test_a_zero_intercept_may_be_given_where_none_is_fitted():
    X, y, w, _ = data("squared")
    problem = build("squared", X, y)
    assert problem.objective(w, 0.0) == problem.objective(w)


@all_losses
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_take_is_the_problem_on_those_rows(loss, container):
    X, y, w, b = data(loss)
    labels = np.array(list("abcdefg" * 2))
    settings = {"fit_intercept": True, "uncertainty": drago.Grouped("cvar")}
    problem = build(loss, container(X), y, sample_weight=WEIGHT, groups=labels, **settings)
    rows = np.array([0, 1, 2, 4, 7, 9, 12, 13])
    part = problem.take(rows)
    alone = build(
        loss,
        container(X[rows]),
        y[rows],
        sample_weight=WEIGHT[rows],
        groups=labels[rows],
        **settings,
    )
    # Normalised twice or once: two sums of 8 weights and three quotients.
    np.testing.assert_allclose(part.p, alone.p, rtol=20 * EPS)
    np.testing.assert_array_equal(part.groups, alone.groups)
    np.testing.assert_allclose(part.objective(w, b), alone.objective(w, b), rtol=RTOL)
    np.testing.assert_allclose(part.reference[0], alone.reference[0], rtol=1e-10)
    assert (part.nu, part.mu, part.n_outputs) == (problem.nu, problem.mu, problem.n_outputs)
    assert problem.n_samples == N
    with pytest.raises(AttributeError):
        part.mu = 1.0


def test_take_keeps_the_classes():
    X, y, w, _ = data("multinomial")
    problem = build("multinomial", X, y)
    part = problem.take(np.flatnonzero(y == 0))
    assert part.n_outputs == K
    np.testing.assert_allclose(part.losses(w), problem.losses(w)[y == 0], rtol=RTOL)


# ----------------------------------------------------------------------- a loss of one's own


def quadratic(y, raw):
    return 0.5 * (raw - y) ** 2, raw - y


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_loss_of_ones_own_equals_the_built_in_one(fit_intercept):
    X, y, w, b = data("squared")
    b = b if fit_intercept else 0.0
    settings = {"uncertainty": drago.CVaR(0.3), "shift_cost": 0.2, "fit_intercept": fit_intercept}
    ours = drago.DROProblem(X, y, **settings)
    own = drago.DROProblem(X, y, loss=quadratic, **settings)
    np.testing.assert_allclose(own.losses(w, b), ours.losses(w, b), rtol=RTOL)
    assert own.objective(w, b) == pytest.approx(ours.objective(w, b), rel=1e-14)
    assert own.reference[0] == pytest.approx(ours.reference[0], rel=1e-10)
    np.testing.assert_allclose(gradient(own, w, b), gradient(ours, w, b), rtol=RTOL)
    auto = drago.DROProblem(X, y, loss=quadratic, fit_intercept=fit_intercept)
    assert auto.nu == pytest.approx(
        drago.DROProblem(X, y, fit_intercept=fit_intercept).nu, rel=1e-10
    )
    assert own.smoothness == own.lipschitz == np.inf


def test_a_loss_of_ones_own_is_solved():
    X, y, *_ = data("squared", n=50)
    settings = {"uncertainty": drago.CVaR(0.3), "shift_cost": 0.2, "l2_reg": 0.1}
    ours = drago.solve(drago.DROProblem(X, y, **settings), tol=1e-8)
    own = drago.solve(drago.DROProblem(X, y, loss=quadratic, **settings), tol=1e-8)
    assert own.status == "optimal"
    np.testing.assert_allclose(own.coef, ours.coef, atol=1e-4)


def test_a_loss_of_ones_own_with_several_outputs():
    def softmax(y, raw):
        shifted = raw - raw.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=1))
        onehot = np.eye(K)[y.astype(int)]
        losses = log_sum - (onehot * shifted).sum(axis=1)
        return losses, np.exp(shifted - log_sum[:, None]) - onehot

    softmax.n_outputs = K
    X, y, w, b = data("multinomial")
    settings = {"uncertainty": drago.CVaR(0.3), "shift_cost": 0.2, "fit_intercept": True}
    own = drago.DROProblem(X, y, loss=softmax, **settings)
    ours = drago.DROProblem(X, y, loss="multinomial", **settings)
    assert own.n_outputs == K
    np.testing.assert_allclose(own.losses(w, b), ours.losses(w, b), rtol=1e-13)
    assert own.objective(w, b) == pytest.approx(ours.objective(w, b), rel=1e-13)
    assert own.reference[0] == pytest.approx(ours.reference[0], rel=1e-9)


@pytest.mark.parametrize("where", ["losses", "derivatives"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_named_with_its_row(where, value):
    def broken(y, raw):
        losses, slopes = quadratic(y, raw)
        (losses if where == "losses" else slopes)[[4, 6]] = value
        return losses, slopes

    X, y, w, _ = data("squared")
    problem = drago.DROProblem(X, y, loss=broken, shift_cost=0.1)
    with pytest.raises(NonFiniteLossError) as caught:
        problem.losses(w)
    message = str(caught.value)
    assert "'broken'" in message
    assert "2 rows" in message
    assert "row 4" in message
    assert "\n" not in message
    assert message.endswith(".")
    assert isinstance(caught.value, (ValueError, ArithmeticError))


def test_losses_that_overflow_are_named():
    X, y, *_ = data("squared")
    problem = build("squared", X, y)
    with pytest.raises(NonFiniteLossError, match="'squared' is NaN or infinite"):
        problem.losses(np.full(D, 1e200))


def test_a_loss_that_breaks_in_the_course_of_a_solve_is_an_error():
    calls = []

    def breaks(y, raw):
        calls.append(1)
        losses, slopes = quadratic(y, raw)
        return (losses * np.nan if len(calls) > 5 else losses), slopes

    X, y, *_ = data("squared")
    problem = drago.DROProblem(X, y, loss=breaks, uncertainty=drago.CVaR(0.3), shift_cost=0.1)
    with pytest.raises(NonFiniteLossError, match="'breaks'"):
        drago.solve(problem, tol=1e-12)


# ----------------------------------------------------------------- products with large matrices


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_few_rows_of_a_large_matrix(order, dtype):
    """As all of them; where rows lie in one piece, those without weight are not even visited."""
    n, d = 70_001, 60
    assert n * d > 2**22
    rng = np.random.default_rng(11)
    X = rng.standard_normal((n, d), dtype=np.float32)
    given = np.asarray(X, dtype=dtype, order=order)
    problem = build("squared", given, np.zeros(n))
    poisoned = given.copy(order="K")
    kept = rng.permutation(n)[:1003]
    poisoned[np.setdiff1d(np.arange(n), kept)] = np.nan
    poisoned = problem._replace(X=poisoned)
    poisoned.rows.unread = False  # as if it had been found to be finite
    # How many there are is judged by every 61st, of which the last ones leave out all.
    between = np.flatnonzero(np.arange(n) % 61)
    for rows in (kept, kept[:4], kept[:1], kept[:0], between, np.arange(n)):
        c = np.zeros((n, 1))
        c[rows, 0] = rng.standard_normal(rows.size)
        expected = X[rows].astype(np.float64).T @ c[rows]
        found = problem.rows.weighted_sum(c)
        assert found.shape == (d, 1) and found.dtype == np.float64
        scale = np.abs(c).sum()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * scale)
        if order == "C" and rows.size < 2000:
            np.testing.assert_array_equal(poisoned.rows.weighted_sum(c), found)
    # Of several columns, too.
    c = np.zeros((n, 2))
    c[kept] = rng.standard_normal((1003, 2))
    expected = X[kept].astype(np.float64).T @ c[kept]
    np.testing.assert_allclose(problem.rows.weighted_sum(c), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("outputs", [1, K])
def test_the_trivial_model_does_not_touch_the_features(container, dtype, outputs):
    """NaN times 0 would be NaN."""
    X, y, *_ = data("squared")
    problem = build("squared", container(X.astype(dtype)), y)
    nan = problem._replace(X=container(np.full((N, D), np.nan, dtype=dtype)))
    b = np.arange(1.0, outputs + 1)
    for given in (b, np.zeros(outputs)):
        raw = nan.rows.predict(np.zeros((D, outputs)), given)
        assert raw.shape == (N, outputs) and raw.dtype == np.float64
        np.testing.assert_array_equal(raw, np.broadcast_to(given, (N, outputs)))
        raw[0] = 7.0  # it is the caller's own
        np.testing.assert_array_equal(given, b if given is b else 0.0)
    w = np.zeros((D, outputs))
    w[1, -1] = 1e-300
    assert np.isnan(nan.rows.predict(w, b)).any()
