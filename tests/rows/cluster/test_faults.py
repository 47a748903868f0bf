"""What goes wrong on a cluster: workers die, come late, are slow or out of memory, and others."""

import gc
import os
import signal
import time
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import drago

dask = pytest.importorskip("dask", reason="needs dask and distributed")
da = pytest.importorskip("dask.array", reason="needs dask and distributed")
distributed = pytest.importorskip("distributed", reason="needs dask and distributed")

from drago.rows.cluster import core, engine, programs  # noqa: E402

IN_METRIC = drago.LBFGS(metric="auto")


def problem(n=3000, d=4):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, d))
    y = (X @ np.array([1.0, -1.0, 0.5, 0.0]) + rng.logistic(size=n) > 0).astype(float)
    return drago.DROProblem(
        da.from_array(X, chunks=(400, -1)),
        da.from_array(y, chunks=400),
        loss="logistic",
        uncertainty=drago.CVaR(0.2),
        shift_cost=0.05,
        l2_reg=1e-2,
        fit_intercept=True,
    )


@pytest.fixture
def threads():
    """A cluster in this process, which starts at once."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster, client


def at_round(monkeypatch, number, act):
    """Have something happen when so many rounds have been."""
    run, count = core.RemoteRows._run, [0]

    def counted(self, *given):
        count[0] += 1
        if count[0] == number:
            act()
        return run(self, *given)

    monkeypatch.setattr(core.RemoteRows, "_run", counted)


def same(first, second):
    assert first.coef.tobytes() == second.coef.tobytes()
    assert (first.intercept, first.gap) == (second.intercept, second.gap)


def test_a_worker_that_is_killed_changes_no_bit(client, monkeypatch):
    given = problem()
    before = drago.solve(given, IN_METRIC, tol=1e-6)
    pid = next(iter(client.run(os.getpid).values()))
    at_round(monkeypatch, 9, lambda: os.kill(pid, signal.SIGKILL))
    after = drago.solve(given, IN_METRIC, tol=1e-6)
    assert pid not in client.run(os.getpid).values()
    same(before, after)


def test_an_interrupt_returns_the_best_model_and_leaves_no_task(threads, monkeypatch):
    _, client = threads
    given = problem()
    at_round(monkeypatch, 20, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.warns(ConvergenceWarning):
        result = drago.solve(given, IN_METRIC, tol=1e-9)
    assert result.status == "interrupted"
    assert result.n_iter > 0
    assert np.isfinite(result.gap)
    assert drago.certify(given, result.coef, result.intercept).primal <= result.primal * (1 + 1e-12)
    for _ in range(600):
        left = [key for keys in client.processing().values() for key in keys]
        if not left:
            break
        time.sleep(0.05)
    assert left == []


def test_old_vectors_are_released(threads):
    cluster, client = threads
    given = problem()
    result = drago.solve(given, IN_METRIC, tol=1e-6)
    del result
    bundles = len(given.rows.layout.bundles)
    for _ in range(100):
        left = [key for key in client.futures if str(key).startswith("drago-")]
        if len(left) <= 4 * bundles:
            break
        time.sleep(0.05)
    assert len(left) <= 4 * bundles  # the parts, and little more
    del given
    gc.collect()  # a problem knows itself
    for _ in range(100):
        if not any("drago-" in str(key) for key in cluster.scheduler.tasks):
            break
        time.sleep(0.05)
    assert not any("drago-" in str(key) for key in cluster.scheduler.tasks)


def test_without_workers_there_is_a_named_error_and_a_checkpoint(threads, monkeypatch, tmp_path):
    cluster, client = threads
    whole = drago.solve(problem(), IN_METRIC, tol=1e-8)
    path = tmp_path / "solve.ckpt"
    monkeypatch.setattr(engine.ClusterEngine, "patience", 1.0)

    def none():
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.01)

    at_round(monkeypatch, 17, none)
    with pytest.raises(drago.ClusterError, match=r"all workers .* gone for 1 s.*checkpoint="):
        drago.solve(problem(), IN_METRIC, tol=1e-8, checkpoint=path, checkpoint_every=0)
    assert path.exists()
    cluster.scale(2)
    client.wait_for_workers(2)
    resumed = drago.solve(problem(), IN_METRIC, tol=1e-8, checkpoint=path, checkpoint_every=0)
    same(whole, resumed)


def test_a_scheduler_that_goes_away_is_a_named_error(monkeypatch):
    monkeypatch.setattr(engine.ClusterEngine, "patience", 1.0)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
    ):
        client = distributed.Client(cluster)
        given = problem()

        def away():
            cluster.loop.add_callback(cluster.scheduler.close)
            time.sleep(0.2)

        at_round(monkeypatch, 9, away)
        with pytest.raises(drago.ClusterError, match="scheduler"):
            drago.solve(given, IN_METRIC, tol=1e-8)
        with pytest.raises(drago.ClusterError, match=r"scheduler|make a new"):
            drago.solve(given, IN_METRIC, tol=1e-8)
        client.close()


def test_a_worker_that_joins_or_is_slow_changes_no_bit(threads, monkeypatch):
    cluster, client = threads
    given = problem()
    before = drago.solve(given, IN_METRIC, tol=1e-6)
    run, slow = programs.Program.run, next(iter(client.nthreads()))

    def slowly(self, *given):
        if distributed.get_worker().address == slow:
            time.sleep(0.005)
        return run(self, *given)

    monkeypatch.setattr(programs.Program, "run", slowly)
    at_round(monkeypatch, 9, lambda: cluster.scale(3))
    same(before, drago.solve(given, IN_METRIC, tol=1e-6))


@pytest.mark.slow
def test_a_worker_without_memory_is_a_named_error():
    """It dies again and again, and Dask gives up."""
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            memory_limit="300MB",
        ) as cluster,
        distributed.Client(cluster),
    ):
        X = da.random.random((1_500_000, 50), chunks=(1_500_000, 50))
        y = da.random.random(1_500_000, chunks=1_500_000)
        with pytest.raises(drago.ClusterError, match="memory"):
            drago.DROProblem(drago.from_dask(X, y, memory_limit="4GB"))


def test_rows_on_a_cluster_are_not_pickled(threads):
    import pickle

    with pytest.raises(TypeError, match="pickle the result or the fitted model"):
        pickle.dumps(problem())


def test_clients_are_checked():
    with pytest.raises(TypeError, match="client must be"):
        engine.as_engine("tcp://127.0.0.1:8786")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(engine.as_engine(None), engine.LocalEngine)
