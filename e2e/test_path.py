"""Apply the example, call it as clients do, delete it."""

import json
import re
import shutil
from itertools import pairwise
from typing import Any

import openai
import pytest

from e2e.cluster.api_reader import is_observed
from e2e.cluster.product import find_gateway
from e2e.cluster.settings import REPOSITORY
from e2e.plugin import explain
from e2e.service import Service, is_absent
from e2e.watch import Watch

DEMO_MODEL = REPOSITORY / "runtime" / "millrace_runtime" / "demo" / "stories"
QUIET_SECONDS = 5.0
"""Several ticks of the autoscaler and scrapes of Prometheus."""


def test_apply_serve_and_delete(service: Service) -> None:
    assert "created" in service.apply()
    service.wait_ready()
    status = service.status()
    assert status["readyReplicas"] == status["replicas"] == 1
    assert status["url"] == f"http://stories.{service.namespace}.svc.cluster.local:8080"
    # A cluster that has just been made may have no Prometheus yet, which the status rightly says.
    service.wait_for("settled", lambda: service.condition("UpToDate").get("reason") == "Settled")
    assert read_row(service) == ["stories", "stories", "True", "Settled", "1", "1", status["url"]]

    check_clients(service)
    check_replica(service)
    check_quiet(service)
    check_drift_repair(service)

    service.delete()
    kinds = "deployments,services,controllerrevisions,poddisruptionbudgets,serviceaccounts"
    labelled = (kinds, "-n", service.namespace, "-l", "millrace.dev/service=stories")
    service.wait_for("rid of its children", lambda: is_absent(service.cluster, *labelled))


def read_row(service: Service) -> list[str]:
    """Return what `kubectl get` shows: NAME, MODEL, READY, STATE, REPLICAS, DESIRED, URL; not the age."""
    return service.kubectl("get", "infsvc", service.name, "--no-headers").split()[:-1]


def check_clients(service: Service) -> None:
    """OpenAI's own client works unchanged: by the Host of the service, and by `<namespace>/<name>`."""
    gateway = find_gateway(service.cluster)
    host = {"Host": f"stories.{service.namespace}.svc.cluster.local"}
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", default_headers=host) as client:
        assert [model.id for model in client.models.list()] == ["stories"]
        chunks = list(
            client.chat.completions.create(
                model="stories",
                messages=[{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
                max_tokens=24,
                stream=True,
            )
        )
        assert chunks[-1].choices[0].finish_reason in {"length", "stop"}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip()
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        answer = client.completions.create(
            model=f"{service.namespace}/stories", prompt="Once upon a time", max_tokens=8, temperature=0
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="no-such-model", prompt="x")


def check_replica(service: Service) -> None:
    """What the replica says of itself gets into status by way of its metrics."""
    service.wait_for("known for what it is", lambda: "serving" in service.status()["model"], 60)
    model = service.status()["model"]
    words = r"cpu, \w+, weights FromCheckpoint, tensor parallel 1; \d+ KV tokens, \d+ sequences .*"
    assert re.fullmatch(words, model["serving"])
    wide = service.kubectl("get", "infsvc", "stories", "--no-headers", "-o", "wide").split()
    assert model["device"] in wide
    assert f"REPLICA {model['device']}: {model['serving']}" in explain(service, "-v")


def check_quiet(service: Service) -> None:
    """A second apply changes nothing, a diff is clean, and the operator writes only what has changed.

    The requests of a moment ago may still change the autoscaler's reason: each such write says something
    new, and then the writes end.
    """
    assert "unchanged" in service.apply()
    assert service.kubectl("diff", "-f", "-", stdin=json.dumps(service.manifest)) == ""
    words = ("-n", service.namespace, "infsvc", "stories")
    with Watch(service.cluster, *words, jsonpath="{.status}") as watch:
        service.wait_for("left in peace by the operator", lambda: watch.quiet_seconds > QUIET_SECONDS)
        statuses = [line.text for line in watch.lines]
    assert statuses
    assert all(before != after for before, after in pairwise(statuses)), statuses


def check_drift_repair(service: Service) -> None:
    """A child that somebody deletes is back at once."""
    uid = service.get("service", "stories")["metadata"]["uid"]
    service.kubectl("delete", "service", "stories")
    label = ("-n", service.namespace, "service", "stories")
    service.wait_for("repaired", lambda: not is_absent(service.cluster, *label), 10)
    assert service.get("service", "stories")["metadata"]["uid"] != uid


def test_a_foreign_service_of_the_same_name_is_left_alone(service: Service) -> None:
    service.kubectl("create", "service", "clusterip", "stories", "--tcp=9000:9000")
    before = service.get("service", "stories")
    service.apply()
    service.wait_for(
        "reporting the conflict",
        lambda: any(c["reason"] == "Conflict" for c in service.status().get("conditions", [])),
    )
    after = service.get("service", "stories")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    service.kubectl("delete", "service", "stories")
    service.wait_ready()
    assert service.get("service", "stories")["spec"]["type"] == "ExternalName"


def test_a_model_in_a_claim_is_served(service: Service) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
    spec["storageClassName"] = ""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": spec,
    }
    service.kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    api, path = service.cluster.api, f"/api/v1/namespaces/{service.namespace}/persistentvolumeclaims/models"
    service.wait_for("bound", lambda: "volumeName" in api.get(path)["spec"], 20)
    volume = api.get(f"/api/v1/persistentvolumes/{api.get(path)['spec']['volumeName']}")
    folder = volume["spec"]["hostPath"]["path"]
    shutil.copytree(DEMO_MODEL, f"{folder}/small/stories")

    service.spec["model"] = {"uri": "pvc://models/small/stories", "servedName": "from-a-claim"}
    service.apply()
    service.wait_ready()
    url = f"{find_gateway(service.cluster).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        answer = client.completions.create(model="from-a-claim", prompt="Once", max_tokens=4, seed=1)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    check_look(service)


def check_look(service: Service) -> None:
    """A Job has looked at the model in the claim. One that cannot fit gets no pod, and what serves stays.

    The refusal stands without a pod, and so the claim can be deleted.
    """
    model = service.status()["model"]
    assert model["architecture"] == "LlamaForCausalLM"
    assert model["fit"] == "Fits"
    check_plan(service)
    assert "resolvedRevision" not in model
    jobs = ("jobs", "-n", service.namespace, "-l", "millrace.dev/service=stories")
    assert is_absent(service.cluster, *jobs)
    [serving] = service.pods()
    service.spec["resources"] = {"limits": {"cpu": "1", "memory": "1Mi"}}
    service.apply()
    service.wait_for("refused", lambda: service.condition("ModelReady").get("reason") == "DoesNotFit")
    assert "weights of " in service.condition("ModelReady")["message"]
    assert service.condition("Ready")["status"] == "True"
    service.wait_for("no Job", lambda: not list_jobs(service) and len(service.pods()) == 1)
    service.spec["rollout"] = {"progressDeadline": "45m"}  # no part of a revision
    service.apply()
    service.wait_for("seen", lambda: is_observed(service.read()))
    assert service.condition("ModelReady")["reason"] == "DoesNotFit"
    assert not list_jobs(service)
    assert [one["metadata"]["uid"] for one in service.pods()] == [serving["metadata"]["uid"]]
    service.spec.update(scaling={"mode": "External"}, replicas=0)
    service.apply()
    service.wait_for("without a replica", lambda: not service.pods())
    service.kubectl("delete", "pvc", "models", "--timeout=30s")
    assert service.condition("ModelReady")["reason"] == "DoesNotFit"


def check_plan(service: Service) -> None:
    """A replica's KV cache holds what its sequences fill, and a pod of 2 GiB has room for more by its plan.

    These nodes bound no memory: so the replica shares the machine's, and keeps prefixes in no more of it.
    """
    told = re.search(r"KV cache: ([\d,]+) tokens", service.status()["model"]["fitMessage"])
    assert told
    service.wait_for("known for what it is", lambda: "serving" in service.status()["model"])
    found = re.search(r"(\d+) KV tokens", service.status()["model"]["serving"])
    assert found
    filled = 16 * 2048  # sequences of the whole length
    assert int(found[1]) == pytest.approx(filled, rel=0.05)
    assert int(told[1].replace(",", "")) > filled


def list_jobs(service: Service) -> list[dict[str, Any]]:
    path = f"/apis/batch/v1/namespaces/{service.namespace}/jobs"
    return service.cluster.api.list(path, f"millrace.dev/service={service.name}")


def test_a_model_that_two_workers_hold_is_served(service: Service) -> None:
    service.spec["parallelism"] = {"tensor": 2}
    service.spec["model"]["servedName"] = "held-by-two"
    service.apply()
    service.wait_ready()
    [pod] = service.pods()
    assert "each of 2 workers has a KV cache" in service.kubectl("logs", pod["metadata"]["name"])
    url = f"{find_gateway(service.cluster).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        answer = client.completions.create(model="held-by-two", prompt="Once", max_tokens=4, seed=1)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_a_gpu_that_does_not_work_is_named_and_nothing_is_served_on_cpus(service: Service) -> None:
    service.spec["resources"]["limits"]["nvidia.com/gpu"] = 1
    service.apply()
    service.wait_for(
        "naming the GPU",
        lambda: "torch finds no GPU that works" in service.condition("Ready").get("message", ""),
    )


def test_a_wrong_model_path_is_named_in_the_conditions(service: Service) -> None:
    service.spec["model"]["uri"] = "file:///models/no-such-model"
    service.apply()
    service.wait_for(
        "naming the path",
        lambda: "/models/no-such-model" in service.condition("ModelReady").get("message", ""),
    )
    assert service.condition("Ready")["status"] == "False"
    shown = read_row(service)
    assert shown[:-1] == ["stories", "stories", "False", service.condition("Degraded")["reason"], "0", "1"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resources": {"limits": {"nvidia.com/gpu": 99}}}, "no node has 99 nvidia.com/gpu; the largest has"),
        ({"pod": {"nodeSelector": {"disk": "ssd"}}}, "didn't match Pod's node affinity/selector"),
    ],
)
def test_a_service_without_a_node_says_why(service: Service, change: dict[str, Any], words: str) -> None:
    service.spec.update(change)
    service.apply()
    service.wait_for("telling why", lambda: words in service.condition("Ready").get("message", ""))


def test_a_service_without_a_ready_replica_answers_503_and_when_to_come_back(service: Service) -> None:
    service.spec["resources"]["limits"]["nvidia.com/gpu"] = 99
    service.apply()
    service.wait_for("seen", lambda: bool(service.condition("Ready")))
    host = {"Host": f"stories.{service.namespace}.svc"}
    url = f"{find_gateway(service.cluster).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", default_headers=host, max_retries=0) as client:

        def answer() -> openai.APIStatusError:
            with pytest.raises(openai.APIStatusError) as caught:
                client.completions.create(model="stories", prompt="x")
            return caught.value

        service.wait_for("known to the gateway", lambda: answer().status_code == 503, 10)
        assert int(answer().response.headers["retry-after"]) > 0
        assert "no replica" in str(answer())
