"""One cluster for all of the end-to-end tests of a run; each test takes namespaces of its own."""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from development.proxies import going_outside
from e2e.api_client import delete
from e2e.cluster.build import get_programs
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import install_chart, wait_for_product
from e2e.model_servers import read_stories, serving
from e2e.namespaces import create_namespace, path_of
from e2e.service import Service
from testing.model_sources.servers import FakeHub

_numbers = itertools.count()


@pytest.fixture(scope="session")
def make_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make folders for the state of clusters; the guard of the run removes them, even after SIGKILL.

    A cluster's logs alone lie in pytest's own folder, which outlives the run.
    """

    def make(name: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        (folder / "logs").symlink_to(tmp_path_factory.mktemp(f"{name}-logs"))
        return folder

    return make


@pytest.fixture(scope="session")
def programs() -> Mapping[str, Path]:
    """Every program of the local cluster, got where it is not here yet."""
    with going_outside():
        return get_programs()


@pytest.fixture(scope="session")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A real control plane, Prometheus and two process nodes, ended with the session."""
    state = make_state_folder("cluster")
    with going_outside():
        get_programs()
    local = LocalCluster(state)
    try:
        local.start()
        yield local
    finally:
        local.stop()


@pytest.fixture(scope="session")
def product(cluster: LocalCluster) -> LocalCluster:
    """The cluster with Millrace's chart installed, operator and gateway serving."""
    install_chart(cluster)
    wait_for_product(cluster, print)
    return cluster


@pytest.fixture
def namespace(cluster: LocalCluster) -> Iterator[str]:
    """A namespace of the test's own, as a careful platform team makes it."""
    name = f"test-{next(_numbers)}"
    create_namespace(cluster, name)
    yield name
    delete(cluster, path_of(name))


@pytest.fixture
def service(product: LocalCluster, namespace: str) -> Iterator[Service]:
    """The example's service in the test's namespace, not yet applied; deleted in the end."""
    found = Service(product, namespace)
    yield found
    found.discard()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A Hub with the model `org/m`."""
    hub = FakeHub(read_stories())
    with serving(hub):
        yield hub


@pytest.fixture
def fetched(service: Service, hub: FakeHub) -> Service:
    """The example's service with its model on the Hub, not yet applied."""
    service.spec["model"] = {"uri": f"hf://org/m@{hub.commit}"}
    service.spec["pod"] = {"env": [{"name": "HF_ENDPOINT", "value": hub.endpoint}]}
    return service
