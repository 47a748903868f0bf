"""Problems of sources: in files, the same certified optimum as in memory."""

import numpy as np
import pytest
import scipy.sparse

import drago
from drago.files.blocks import SourceChangedError
from source_checks import Sliced, files_in

RNG = np.random.default_rng(4)
N, D = 6000, 12
X = RNG.normal(size=(N, D))
Z = X @ RNG.normal(size=D) / np.sqrt(D)
TARGETS = {
    "squared": Z + RNG.standard_t(4, N),
    "huber": Z + RNG.standard_t(2, N),
    "logistic": np.where(Z + RNG.logistic(size=N) > 0, "yes", "no"),
    "multinomial": np.digitize(Z + RNG.normal(size=N), [-0.5, 0.5]),
}
SETTINGS = {"uncertainty": drago.CVaR(0.2), "shift_cost": 0.1, "fit_intercept": True}
LIMIT = 200_000  # a third of what X takes


def codes(y):
    return np.unique(y, return_inverse=True)[1].astype(float)


@pytest.mark.parametrize("kind", ["memory map", "slices", "CSR"])
@pytest.mark.parametrize("loss", TARGETS)
def test_the_same_optimum_as_in_memory(tmp_path, loss, kind):
    np.save(tmp_path / "x.npy", X)
    sparse = scipy.sparse.csr_matrix(X * (np.abs(X) > 0.7))
    given = {"memory map": tmp_path / "x.npy", "slices": Sliced(X), "CSR": sparse}[kind]
    y = TARGETS[loss]
    source = drago.from_arrays(given, y, memory_limit=LIMIT, cache_dir=tmp_path / "c")
    problem = drago.DROProblem(source, loss=loss, **SETTINGS)
    assert type(problem.rows).__name__ == "FileRows"
    target = y if loss in ("squared", "huber") else codes(y)
    there = drago.DROProblem(sparse if kind == "CSR" else X, target, loss=loss, **SETTINGS)
    found, expected = drago.solve(problem, tol=1e-6), drago.solve(there, tol=1e-6)
    assert found.status == "optimal"
    np.testing.assert_allclose(found.primal, expected.primal, rtol=2e-6)
    own = drago.certify(there, found.coef, found.intercept)
    assert own.rel_gap <= 2e-6
    again = drago.certify(problem, found.coef, found.intercept)
    np.testing.assert_allclose(again.primal, own.primal, rtol=1e-10)


def test_weights_groups_and_a_baseline(tmp_path):
    more = {
        "sample_weight": RNG.integers(0, 3, N).astype(float),
        "groups": RNG.choice(["a", "b", "c"], N),
        "baseline": RNG.uniform(size=N),
    }
    settings = {**SETTINGS, "uncertainty": drago.Grouped(drago.CVaR(0.5))}
    source = drago.from_arrays(
        Sliced(X), TARGETS["squared"], **more, memory_limit=LIMIT, cache_dir=tmp_path
    )
    found = drago.solve(drago.DROProblem(source, **settings), tol=1e-6)
    there = drago.DROProblem(X, TARGETS["squared"], **more, **settings)
    assert drago.certify(there, found.coef, found.intercept).rel_gap <= 2e-6


def test_standardised_coefficients_in_their_own_unit(tmp_path):
    far = X * 10.0 ** np.linspace(-2, 2, D) + 3.0
    source = drago.from_arrays(
        Sliced(far), TARGETS["squared"], standardize=True, memory_limit=LIMIT, cache_dir=tmp_path
    )
    found = drago.solve(drago.DROProblem(source, **SETTINGS), tol=1e-6)
    scaled = (far - far.mean(axis=0)) / far.std(axis=0)
    there = drago.DROProblem(scaled, TARGETS["squared"], **SETTINGS)
    assert drago.certify(there, found.coef, found.intercept).rel_gap <= 2e-6
    coef, intercept = source.original(found.coef, found.intercept)
    expected = scaled @ found.coef + found.intercept
    np.testing.assert_allclose(far @ coef + intercept, expected, atol=1e-9)


def test_blocks_live_as_long_as_the_problem(tmp_path):
    problem = drago.DROProblem(
        drago.from_arrays(Sliced(X), TARGETS["squared"], memory_limit=LIMIT, cache_dir=tmp_path),
        **SETTINGS,
    )
    assert drago.solve(problem).status == "optimal"
    del problem


def test_blocks_that_vanish_between_passes(tmp_path):
    source = drago.from_arrays(
        Sliced(X), TARGETS["squared"], memory_limit=LIMIT, cache_dir=tmp_path
    )
    problem = drago.DROProblem(source, **SETTINGS)
    (path,) = [path for path in files_in(tmp_path) if path.name == "X.bin"]
    path.unlink()
    with pytest.raises(SourceChangedError, match=r"X\.bin is gone"):
        drago.solve(problem)


def test_labels_that_do_not_go_with_the_loss(tmp_path):
    for limit in (LIMIT, "1GB"):
        source = drago.from_arrays(
            Sliced(X), TARGETS["multinomial"], memory_limit=limit, cache_dir=tmp_path
        )
        with pytest.raises(ValueError, match="y must hold 0 and 1 for the logistic loss"):
            drago.DROProblem(source, loss="logistic")
        one = drago.from_arrays(Sliced(X), np.ones(N), memory_limit=limit, cache_dir=tmp_path)
        with pytest.raises(ValueError, match="at least two classes"):
            drago.DROProblem(one, loss="logistic")


@pytest.mark.parametrize("kind", ["parquet", "batches"])
def test_a_solve_goes_on_with_the_same_source_made_anew(tmp_path, monkeypatch, kind):
    """As after a process was killed: other blocks of the same rows, the same bits."""
    pa = pytest.importorskip("pyarrow", reason="sources of tables need pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("drago.loop.resume._SHARE", np.inf)  # saved at every iteration
    unit = np.geomspace(1.0, 30.0, D)
    columns = {f"x{j}": X[:, j] * unit[j] for j in range(D)}
    pq.write_table(pa.table({**columns, "y": TARGETS["squared"]}), tmp_path / "rows.parquet")
    pieces = [slice(k, k + 700) for k in range(0, N, 700)]
    method = drago.LBFGS(metric="auto")

    def problem(folder):
        if kind == "batches":
            given = [(X[rows] * unit, TARGETS["squared"][rows]) for rows in pieces]
            source = drago.from_batches(given, memory_limit=LIMIT, cache_dir=tmp_path / folder)
        else:
            source = drago.read_parquet(
                tmp_path / "rows.parquet", "y", memory_limit=LIMIT, cache_dir=tmp_path / folder
            )
        return drago.DROProblem(source, **SETTINGS)

    whole = drago.solve(problem("a"), method, tol=1e-9)
    saved = tmp_path / "solve.checkpoint"
    with pytest.warns(Warning, match="max_iter"):
        drago.solve(problem("b"), method, tol=1e-9, max_iter=2, checkpoint=saved)
    again = drago.solve(problem("c"), method, tol=1e-9, checkpoint=saved)
    assert whole.n_iter == again.n_iter > 2
    np.testing.assert_array_equal(again.coef, whole.coef)
    assert again.primal == whole.primal and again.dual == whole.dual
