"""The models that a service's pods have fetched: when they are there, and what they are."""

from typing import Any

from e2e.node_disks import find_volume
from e2e.service import Service
from testing.model_sources.kills import list_files


def has_model(pod: dict[str, Any]) -> bool:
    """Whether the container that fetches has ended well."""
    containers = pod.get("status", {}).get("initContainerStatuses", [])
    return bool(containers) and all(
        one.get("state", {}).get("terminated", {}).get("exitCode") == 0 for one in containers
    )


def wait_for_models(service: Service, count: int = 1, seconds: float = 120.0) -> None:
    """Wait until so many pods have their model. To serve it takes each 3 s of CPU time more."""
    service.wait_for("the model at each pod", lambda: sum(map(has_model, service.pods())) == count, seconds)


def read_models(service: Service) -> list[dict[str, bytes]]:
    """Return the model's files that each pod has fetched for itself: a pod beside it may still fetch."""
    pods = filter(has_model, service.pods())
    folders = [find_volume(service.cluster, pod, "model") for pod in pods]
    return [{name: (folder / name).read_bytes() for name in list_files(folder)} for folder in folders]


def assert_each_has(service: Service, contents: dict[str, bytes]) -> None:
    """Each pod has the model's files, its weights among them, as its source has them."""
    models = read_models(service)
    assert models
    for model in models:
        assert "model.safetensors" in model
        assert model == {name: contents[name] for name in model}
