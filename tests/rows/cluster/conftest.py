"""One cluster of processes for all tests here, and parts of a few rows."""

import pytest

distributed = pytest.importorskip("distributed", reason="needs dask and distributed")


@pytest.fixture(scope="session")
def cluster():
    import dask

    # A killed worker may take long to come back where many processes share the machine.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "120s"})
    with (
        patient,
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as found,
    ):
        yield found


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as found:
        yield found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts as small as those of large data are many."""
    from drago.rows.cluster import open as opening

    monkeypatch.setattr(opening, "RULE", opening._PartRule(parts=5, least=1))
