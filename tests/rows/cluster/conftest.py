"""Clusters of processes, one of each size for all tests here, and parts of a few rows."""

import contextlib
import functools

import pytest

distributed = pytest.importorskip("distributed", reason="needs dask and distributed")


@pytest.fixture(scope="session")
def cluster_of():
    """The cluster of so many workers; it is started once."""
    import dask

    with contextlib.ExitStack() as stack:
        # A killed worker may take long to come back where many processes share the machine.
        stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "120s"}))

        @functools.cache
        def started(n_workers):
            return stack.enter_context(
                distributed.LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=":0",
                )
            )

        yield started


@pytest.fixture
def cluster(cluster_of):
    return cluster_of(2)


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as found:
        yield found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts as small as those of large data are many."""
    from drago.rows.cluster import open as opening

    monkeypatch.setattr(opening, "RULE", opening._PartRule(parts=5, least=1))
