"""One cluster for all of the end-to-end tests of a run; each test takes namespaces of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real control plane, Prometheus and two process nodes, ended with the session."""
    state: Path = tmp_path_factory.mktemp("cluster")
    local = LocalCluster(state)
    try:
        local.start()
        yield local
    finally:
        local.stop()
