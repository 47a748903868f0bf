"""Parquet files that the workers of a cluster read."""

import numpy as np
import pytest

import drago

pytest.importorskip("dask.array", reason="needs dask and distributed")
distributed = pytest.importorskip("distributed", reason="needs dask and distributed")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows")
    for k in range(3):
        rng = np.random.default_rng(k)
        x = rng.normal(size=(400, 2))
        colour = rng.choice(["red", "green"], 400)
        y = x[:, 0] - x[:, 1] + (colour == "red") + rng.standard_t(4, 400)
        table = {"a": x[:, 0], "b": x[:, 1], "colour": colour, "y": y}
        table |= {"late": np.where(y > 1, "yes", "no"), "weight": rng.uniform(0.5, 2.0, 400)}
        pq.write_table(pa.table(table), path / f"{k}.parquet")
    return path


def test_each_worker_reads_its_own_files(client, folder):
    given = {"features": ["a", "b", "colour"], "sample_weight": "weight"}
    remote = drago.read_parquet(folder, "y", client=client, **given)
    assert remote.feature_names == ("a", "b", "colour=green", "colour=red")
    terms = {"uncertainty": drago.CVaR(0.2), "shift_cost": 0.1, "fit_intercept": True}
    memory = drago.DROProblem(drago.read_parquet(folder, "y", **given), **terms)
    result = drago.solve(drago.DROProblem(remote, **terms), tol=1e-6)
    assert drago.certify(memory, result.coef, result.intercept).rel_gap <= 1e-6


def test_estimators_take_them(client, folder):
    given = {"features": ["a", "b", "colour"]}
    remote = drago.read_parquet(folder, "late", client=client, **given)
    here = drago.read_parquet(folder, "late", **given)
    model = drago.DROClassifier(drago.CVaR(0.5), tol=1e-8).fit(remote)
    twin = drago.DROClassifier(drago.CVaR(0.5), tol=1e-8).fit(here)
    np.testing.assert_allclose(model.coef_, twin.coef_, atol=1e-3)
    assert model.score(remote) == pytest.approx(twin.score(here), abs=0.01)
    assert model.predict(remote).compute().shape == (1200,)
    with pytest.raises(ValueError, match="leave it out"):
        drago.read_parquet(folder, "y", client=client, standardize=True)
