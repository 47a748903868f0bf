"""Rows in another order in files: what has an entry for each row is in the order of the source."""

import numpy as np
import pytest
import scipy.sparse as sp

import drago
from source_checks import SMALL, check_sums, features, whole

N, D = 6000, 4
SETTINGS = {"loss": "logistic", "uncertainty": drago.CVaR(0.3), "shift_cost": 0.1}


def data(sparse=False):
    """Sorted by class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)).astype(np.float32)
    y = (X @ np.ones(D) + rng.normal(size=N) > 0).astype(float)
    order = np.argsort(y, kind="stable")
    more = {"sample_weight": rng.uniform(0.5, 2.0, N), "groups": rng.integers(0, 5, N),
            "baseline": rng.uniform(0.0, 0.1, N)}  # fmt: skip
    X = X[order]
    if sparse:
        X = sp.csr_array(X * (rng.uniform(size=X.shape) < 0.7))
    return {"X": X, "y": y[order], **more}


def source_of(given, folder, shuffle, limit=SMALL, **more):
    def batches():
        for start in range(0, N, 1000):
            yield {name: values[start : start + 1000] for name, values in given.items()}

    return drago.from_batches(
        batches, shuffle=shuffle, memory_limit=limit, cache_dir=folder, **more
    )


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("standardize", [False, True])
def test_blocks_are_a_permutation_within_parts(tmp_path, sparse, standardize):
    given = data(sparse)
    plain = source_of(given, tmp_path, False, standardize=standardize).open("logistic")
    blocks = source_of(given, tmp_path, 3, standardize=standardize).open("logistic")
    assert len(blocks.ends) > 1 and "order" not in plain.columns
    check_sums(blocks)
    found, expected = whole(blocks), whole(plain)
    order = found["order"]
    for a, b in zip((0, *blocks.ends), blocks.ends):
        assert sorted(order[a:b]) == list(range(b - a))
        assert (np.diff(order[a:b]) != 1).mean() > 0.9
        order[a:b] += a
    assert blocks.ends == plain.ends
    for name in ("y", "sample_weight", "groups", "baseline"):
        np.testing.assert_array_equal(found[name], expected[name][order])
    np.testing.assert_allclose(features(blocks), features(plain)[order], rtol=1e-6)
    again = source_of(given, tmp_path, 3, standardize=standardize).open("logistic")
    np.testing.assert_array_equal(whole(again)["order"], whole(blocks)["order"])
    assert again.digest == blocks.digest != plain.digest
    other = source_of(given, tmp_path, 4, standardize=standardize).open("logistic")
    assert (whole(other)["order"] != whole(blocks)["order"]).any()
    assert other.digest != blocks.digest


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_results_are_in_the_order_of_the_source(tmp_path, sparse):
    given = data(sparse)
    X, y = given["X"], given["y"]
    more = {name: given[name] for name in ("sample_weight", "baseline")}
    problem = drago.DROProblem(X, y, **more, **SETTINGS)
    mixed = drago.DROProblem(source_of(given, tmp_path, True), **SETTINGS)
    coef = np.linspace(-1.0, 1.0, D)
    np.testing.assert_allclose(mixed.losses(coef), problem.losses(coef), rtol=0, atol=1e-6)
    for solver in ("lbfgs", "drago"):
        here, there = (drago.solve(each, solver, tol=1e-6) for each in (problem, mixed))
        assert there.status == "optimal"
        q = here.dual_weights
        np.testing.assert_allclose(there.dual_weights, q, rtol=0, atol=1e-2 * q.max())
        certificate = drago.certify(
            problem, there.coef, dual_weights=there.dual_weights / there.dual_weights.sum()
        )
        assert certificate.rel_gap <= 1e-6 * (1 + 1e-3)
        back = drago.certify(mixed, there.coef, dual_weights=there.dual_weights)
        assert back.rel_gap <= 1e-6 * (1 + 1e-3)


def test_a_baseline_that_is_given_besides(tmp_path):
    given = data()
    baseline = given.pop("baseline")
    mixed = drago.DROProblem(source_of(given, tmp_path, True), baseline=baseline, **SETTINGS)
    plain = drago.DROProblem(source_of(given, tmp_path, False), baseline=baseline, **SETTINGS)
    coef = np.linspace(-1.0, 1.0, D)
    np.testing.assert_allclose(mixed.losses(coef), plain.losses(coef), rtol=0, atol=1e-12)
    assert mixed.objective(coef) == pytest.approx(plain.objective(coef), rel=1e-12)


def test_estimators(tmp_path):
    given = data()
    del given["baseline"]
    models = [
        drago.DROClassifier(drago.CVaR(0.3), solver="drago", tol=1e-6).fit(source)
        for source in (source_of(given, tmp_path, False), source_of(given, tmp_path, True))
    ]
    plain, mixed = models
    q = plain.dual_weights_
    np.testing.assert_allclose(mixed.dual_weights_, q, rtol=0, atol=1e-2 * q.max())
    source = source_of(given, tmp_path, True)
    np.testing.assert_array_equal(mixed.predict(source), mixed.predict(given["X"]))
    reports = [mixed.worst_case_report(source_of(given, tmp_path, each)) for each in (0, False)]
    assert str(reports[0]) == str(reports[1])


def test_a_checkpoint_goes_on(tmp_path):
    given = data()
    method = drago.Drago(primal="blocks", block_size=500, progressive=False, finish="none")

    def solved(count, path=None):
        problem = drago.DROProblem(source_of(given, tmp_path, True), **SETTINGS)
        with pytest.warns(UserWarning, match="max_iter"):
            return drago.solve(problem, method, tol=1e-14, max_iter=count, checkpoint=path,
                               checkpoint_every=0.0)  # fmt: skip

    whole, path = solved(12), tmp_path / "solve"
    solved(5, path)
    result = solved(12, path)
    np.testing.assert_array_equal(result.coef, whole.coef)
    np.testing.assert_array_equal(result.dual_weights, whole.dual_weights)


def test_a_file_in_place_is_copied_and_kept(tmp_path):
    given = data()
    path = tmp_path / "X.npy"
    np.save(path, given["X"])
    np.save(tmp_path / "y.npy", given["y"])
    settings = {"memory_limit": SMALL, "cache_dir": tmp_path / "cache", "keep_cache": True}

    def opened(**more):
        source = drago.from_arrays(path, tmp_path / "y.npy", **settings, **more)
        return source.open("logistic")

    assert opened().columns["X"].path == str(path)
    blocks, again = opened(shuffle=5), opened(shuffle=5)
    assert str(path) != blocks.columns["X"].path == again.columns["X"].path
    order = whole(again)["order"]
    for a, b in zip((0, *again.ends), again.ends):
        order[a:b] += a
    np.testing.assert_array_equal(whole(again)["X"], given["X"][order])
    assert opened(shuffle=6).columns["X"].path != blocks.columns["X"].path
    np.testing.assert_array_equal(np.load(path), given["X"])


def test_rows_in_memory_keep_their_order(tmp_path):
    given = data()
    blocks = source_of(given, tmp_path, True, limit="1GB").open("logistic")
    assert "order" not in blocks.columns
    np.testing.assert_array_equal(whole(blocks)["X"], given["X"])


def test_complaints(tmp_path):
    for wrong in (-1, "yes", 0.5, None):
        with pytest.raises(ValueError, match="shuffle must be True, False or a seed"):
            drago.from_arrays(np.eye(3), np.ones(3), shuffle=wrong)
    given = data()
    given["X"][4321, 2] = np.nan  # the row's number is that of the source
    with pytest.raises(ValueError, match="column 2 of row 4321"):
        source_of(given, tmp_path, True).open("logistic")
    assert "shuffle=7" in repr(drago.from_arrays(np.eye(3), np.ones(3), shuffle=7))
