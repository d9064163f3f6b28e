"""Models that pods fetch: from a Hub on this machine, whole, as a person sees it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import botocore.session
import pytest
from moto.server import ThreadedMotoServer

from e2e.completion import complete
from e2e.fetched_models import assert_each_has, wait_for_models
from e2e.model_servers import count_downloads, read_stories, serving
from e2e.plugin import ask_namespace, explain
from e2e.service import Service, is_absent
from e2e.watch import Watch
from stories_training.train import FOLDER
from testing.checkpoints.quantized import fp8_blocks, write_quantized
from testing.model_sources.authority import Authority
from testing.model_sources.registry import TAR, Registry, make_tar
from testing.model_sources.s3_server import KEY_ID, SECRET, S3Server
from testing.model_sources.servers import FakeHub, WebFolderServer

TOKEN = "a-secret-of-the-team"


@pytest.fixture
def service(service: Service) -> Service:
    """The example's service, whose pods may use both cores: their start is waited for."""
    service.spec["resources"]["limits"]["cpu"] = "2"
    return service


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebFolderServer]:
    """A folder with the model in 8-bit floats, as DeepSeek and Qwen publish theirs."""
    quantised = write_quantized(FOLDER, tmp_path, fp8_blocks())
    files = {name: (quantised / name).read_bytes() for name in ("config.json", "model.safetensors")}
    server = WebFolderServer(read_stories() | files)
    with serving(server):
        yield server


@pytest.fixture
def bucket() -> Iterator[S3Server]:
    """A bucket with the model in `org/m`, which wants signatures."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    session = botocore.session.Session()
    owner = session.create_client(
        "s3", "us-east-1", endpoint_url=url, aws_access_key_id="owner", aws_secret_access_key="x"
    )
    owner.create_bucket(Bucket="models")
    for name, content in read_stories().items():
        owner.put_object(Bucket="models", Key=f"org/m/{name}", Body=content)
    server = S3Server(url)
    try:
        with serving(server):
            yield server
    finally:
        moto.stop()


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    with serving(registry):
        yield registry


class Source(Protocol):
    """A server that can be slow."""

    bytes_per_second: float | None


def apply_and_see_it_fetched(service: Service, source: Source) -> None:
    """Apply a service, and see in `kubectl get -w` how much of its model has been fetched."""
    source.bytes_per_second = 2_000_000
    service.apply()
    with Watch(service.cluster, "infsvc", service.name, "-n", service.namespace) as watch:
        shown = re.compile(r" [1-9]?[0-9]% ")
        service.wait_for("percents", lambda: any(shown.search(line.text) for line in [*watch.lines]))
    source.bytes_per_second = None


def read_logs(service: Service) -> list[str]:
    """What the containers that fetched have said, of each pod."""
    names = [pod["metadata"]["name"] for pod in service.pods()]
    return [service.kubectl("logs", name, "-c", "fetch") for name in names]


def change_weights(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Return other weights of the same size, with which the model still writes something."""
    name = "model.safetensors"
    return {name: contents[name][:-64] + bytes(64)}


def test_a_model_of_a_hub_is_fetched_and_served(fetched: Service, hub: FakeHub) -> None:
    apply_and_see_it_fetched(fetched, hub.large)
    fetched.wait_ready()
    assert "fetched" not in fetched.status()["model"]
    assert complete(fetched)
    (log,) = read_logs(fetched)
    assert hub.commit in log
    assert fetched.status()["model"]["resolvedRevision"] == hub.commit


CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "64Mi"}},
        "storageClassName": "",
    },
}


def test_two_replicas_read_a_model_that_a_job_has_fetched_once_into_a_claim(
    fetched: Service, hub: FakeHub
) -> None:
    fetched.spec["model"]["cache"] = {"type": "PersistentVolumeClaim", "claimName": "models"}
    fetched.spec["scaling"]["minReplicas"] = 2
    fetched.apply()
    fetched.wait_for(
        "a claim that is missed", lambda: fetched.condition("ModelReady").get("reason") == "CacheUnusable"
    )
    assert "no PersistentVolumeClaim models" in fetched.condition("ModelReady")["message"]
    assert is_absent(fetched.cluster, "deployments", "-n", fetched.namespace)

    hub.large.bytes_per_second = 2_000_000  # so that the fetch can be seen
    fetched.kubectl("apply", "-f", "-", stdin=json.dumps(CLAIM))
    fetched.wait_for("fetching", lambda: " % of " in fetched.condition("ModelReady").get("message", ""))
    assert fetched.condition("ModelReady")["reason"] == "Fetching"
    assert "into PersistentVolumeClaim models" in fetched.condition("ModelReady")["message"]
    hub.large.bytes_per_second = None
    fetched.wait_for("two replicas", lambda: fetched.status().get("readyReplicas") == 2)
    assert complete(fetched)
    assert 1 <= count_downloads(hub) < 1.5
    kept = fetched.status()["model"]["cache"]
    assert kept["claimName"] == "models"
    _, row = ask_namespace(fetched, "models").splitlines()
    assert f"claim models, {kept['path']}" in row
    assert row.endswith("stories")
    assert is_absent(fetched.cluster, "jobs", "-n", fetched.namespace, "-l", "millrace.dev/service=stories")


def test_all_replicas_have_what_a_branch_had_when_it_was_applied(fetched: Service, hub: FakeHub) -> None:
    fetched.spec["model"]["uri"] = "hf://org/m@main"
    fetched.apply()
    wait_for_models(fetched)
    first, old = hub.commit, dict(hub.files.contents)
    assert fetched.status()["model"]["resolvedRevision"] == first
    jobs = "jobs", "-n", fetched.namespace, "-l", "millrace.dev/service=stories"
    fetched.wait_for("the end of its Job", lambda: is_absent(fetched.cluster, *jobs))

    hub.move_on("2" * 40, change_weights(old))
    fetched.spec["scaling"]["minReplicas"] = 2
    fetched.apply()
    wait_for_models(fetched, 2)
    assert all(first in log and "2" * 40 not in log for log in read_logs(fetched))
    assert_each_has(fetched, old)
    assert fetched.status()["model"]["resolvedRevision"] == first


def test_a_source_is_asked_anew_and_what_it_has_is_rolled_out(fetched: Service, hub: FakeHub) -> None:
    fetched.spec["model"]["uri"] = "hf://org/m@main"
    fetched.apply()
    fetched.wait_ready()
    first, serving = hub.commit, fetched.status()["currentRevision"]
    assert first in ask_namespace(fetched, "refresh", fetched.name)
    record = "controllerrevisions", "-n", fetched.namespace, "-o", "name"
    fetched.wait_for("an answer", lambda: len(fetched.cluster.kubectl("get", *record).split()) == 2)
    assert fetched.status()["currentRevision"] == fetched.status()["updateRevision"] == serving

    hub.move_on("2" * 40, change_weights(hub.files.contents))
    ask_namespace(fetched, "refresh", fetched.name)
    fetched.wait_for(
        "the new commit", lambda: fetched.status()["currentRevision"] not in (serving, None), 120
    )
    assert fetched.status()["model"]["resolvedRevision"] == "2" * 40
    assert complete(fetched)


def test_a_quantised_model_in_a_folder_of_a_web_server_is_fetched_and_served(
    service: Service, web: WebFolderServer
) -> None:
    service.spec["model"] = {"uri": web.uri}
    apply_and_see_it_fetched(service, web.files)
    wait_for_models(service)
    assert_each_has(service, web.files.contents)
    service.wait_ready()
    assert complete(service)
    assert len(service.status()["model"]["resolvedRevision"]) == 40


def test_a_server_with_an_authority_of_its_owners_is_trusted_once_the_secret_has_it(
    service: Service, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server = WebFolderServer(read_stories(), authority.context())
    with serving(server):
        service.kubectl("create", "secret", "generic", "authority", "--from-literal=ca.crt=none")
        service.spec["model"] = {"uri": server.uri, "credentials": {"secretName": "authority"}}
        service.apply()
        words = "ca.crt has no certificates"
        service.wait_for("told", lambda: words in service.condition("ModelReady").get("message", ""))
        patch = json.dumps({"stringData": {"ca.crt": authority.pem.decode()}})
        service.kubectl("patch", "secret", "authority", "-p", patch)
        wait_for_models(service, seconds=180)
    assert_each_has(service, read_stories())


def test_a_folder_of_a_bucket_is_fetched(service: Service, bucket: S3Server) -> None:
    keys = (f"--from-literal=AWS_ACCESS_KEY_ID={KEY_ID}", f"--from-literal=AWS_SECRET_ACCESS_KEY={SECRET}")
    service.kubectl("create", "secret", "generic", "bucket", *keys)
    service.spec["model"] = {"uri": "s3://models/org/m", "credentials": {"secretName": "bucket"}}
    settings = {"AWS_ENDPOINT_URL": bucket.endpoint, "AWS_REGION": "us-east-1"}
    service.spec["pod"] = {"env": [{"name": name, "value": value} for name, value in settings.items()]}
    apply_and_see_it_fetched(service, bucket)
    wait_for_models(service)
    assert_each_has(service, read_stories())
    assert set(bucket.signatures) == {KEY_ID}


@pytest.mark.parametrize("layout", ["files", "image"])
def test_a_model_of_a_registry_is_fetched(service: Service, registry: Registry, layout: str) -> None:
    if layout == "files":
        registry.push_files(read_stories())
    else:
        tar = make_tar({f"models/{name}": content for name, content in read_stories().items()})
        registry.push([(tar, TAR, {})])
    registry.account, registry.token_uses = "me:secret", 100
    access = ("--docker-server", registry.host, "--docker-username", "me", "--docker-password", "secret")
    service.kubectl("create", "secret", "docker-registry", "registry", *access)
    service.spec["model"] = {"uri": f"{registry.uri}:v1", "credentials": {"secretName": "registry"}}
    apply_and_see_it_fetched(service, registry.blobs)
    wait_for_models(service)
    assert_each_has(service, read_stories())
    assert service.status()["model"]["resolvedRevision"].startswith("sha256:")


def test_an_image_whose_architecture_nobody_serves_starts_no_pod(
    service: Service, registry: Registry
) -> None:
    contents = read_stories()
    config = json.loads(contents["config.json"]) | {"architectures": ["GemmaForCausalLM"]}
    files = contents | {"config.json": json.dumps(config).encode()}
    tar = make_tar({f"models/{name}": content for name, content in sorted(files.items())})
    registry.push([(tar, TAR, {})])
    service.spec["model"] = {"uri": f"{registry.uri}:v1"}
    service.apply()
    service.wait_for("refused", lambda: service.condition("Degraded").get("reason") == "ModelInvalid")
    assert "GemmaForCausalLM" in service.condition("Degraded")["message"]
    assert is_absent(service.cluster, "deployments", "-n", service.namespace)
    assert sum(registry.blobs.sent.values()) < len(tar) / 2, "not its weights"


def test_a_gated_model_says_whom_to_ask_and_serves_once_the_secret_has_the_token(
    fetched: Service, hub: FakeHub
) -> None:
    hub.token = TOKEN
    fetched.kubectl("create", "secret", "generic", "hub", "--from-literal=HF_TOKEN=wrong")
    fetched.spec["model"]["credentials"] = {"secretName": "hub"}
    fetched.apply()
    fetched.wait_for(
        "told", lambda: "org/m is gated" in fetched.condition("ModelReady").get("message", ""), 90
    )
    assert fetched.condition("Degraded")["reason"] == "FetchFailed"
    assert "kubectl logs" in explain(fetched)

    secret = {"stringData": {"HF_TOKEN": TOKEN}}
    fetched.kubectl("patch", "secret", "hub", "-p", str(secret).replace("'", '"'))
    fetched.wait_ready()
    assert complete(fetched)
    assert not any(TOKEN in log for log in read_logs(fetched))


def test_a_secret_that_is_missing_is_named(fetched: Service) -> None:
    fetched.spec["model"]["credentials"] = {"secretName": "forgotten"}
    fetched.apply()
    fetched.wait_for("told", lambda: "forgotten" in fetched.condition("Degraded").get("message", ""))
