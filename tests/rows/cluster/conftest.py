"""One cluster of processes for all tests here, and parts of a few rows."""

import pytest

distributed = pytest.importorskip("distributed", reason="needs dask and distributed")


@pytest.fixture(scope="session")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as found:
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
