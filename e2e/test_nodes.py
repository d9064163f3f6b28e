"""Process nodes under a real control plane: what a user of kubectl sees of pods."""

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.api_client import create, delete
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.namespaces import path_of, wait_for_account
from testing.polling import wait_until

pytestmark = pytest.mark.reads("e2e", "images", "development", "operator/millrace_kubernetes")
Object = dict[str, Any]
SERVE = 'cd /site && exec python3 -u -m http.server --bind "$MILLRACE_BIND_ADDRESS" 8000'
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
SLEEP_STUBBORN, SLEEP_PHOENIX = (f"sleep {number}{os.getpid()}" for number in (4321, 5432))
"""Commands that no other run on this machine has."""
_numbers = itertools.count()


class Namespace:
    """A namespace of the test's own, and short words for what tests do in it."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments, stdin=stdin)

    def apply(self, *objects: Object) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "-f", "-", stdin=text)

    def pod(self, name: str) -> Object:
        return self.cluster.api.get(f"{path_of(self.name)}/pods/{name}")

    def container(self, name: str) -> Object:
        found: Object = (self.pod(name)["status"].get("containerStatuses") or [{"state": {}}])[0]
        return found

    def reasons(self, name: str) -> set[str]:
        events = self.cluster.api.list(f"{path_of(self.name)}/events")
        return {event["reason"] for event in events if event["involvedObject"]["name"] == name}


@pytest.fixture
def namespace(cluster: LocalCluster) -> Iterator[Namespace]:
    name = f"nodes-{next(_numbers)}"
    create(cluster, "/api/v1/namespaces", {"metadata": {"name": name}})
    wait_for_account(cluster, name)
    yield Namespace(cluster, name)
    delete(cluster, path_of(name))


def find_processes(command: str) -> list[int]:
    """Return the ids of this machine's processes with exactly this command line."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if read(path) == wanted]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def pod(name: str, line: str, **fields: Any) -> Object:
    box = {"name": "main", "image": "shell:1", "args": [line], **fields.pop("container", {})}
    spec = {"containers": [box], "terminationGracePeriodSeconds": 2, **fields}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def site(name: str = "web", text: str = "hello") -> list[Object]:
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    container = {
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": probe,
        "volumeMounts": [{"name": "site", "mountPath": "/site"}],
    }
    volumes = [{"name": "site", "configMap": {"name": name}}]
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"index.html": text}},
        pod(name, SERVE, container=container, volumes=volumes),
    ]


def service(name: str, **spec: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def test_a_service_reaches_a_ready_pod_by_every_name(namespace: Namespace) -> None:
    ports = [{"port": 8080, "targetPort": "http"}]
    namespace.apply(*site(), service("web", selector={"app": "web"}, ports=ports))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=30s")
    full = f"web.{namespace.name}.svc.cluster.local"
    namespace.apply(service("alias", type="ExternalName", externalName=full))
    names = ("web", f"web.{namespace.name}", f"web.{namespace.name}.svc", full, "alias")
    lines = "; ".join(f'python3 -c "{FETCH}" http://{name}:8080/' for name in names)
    namespace.apply(pod("client", f"sleep 1; {lines}", restartPolicy="Never"))
    wait_until(
        "the client ends", lambda: namespace.pod("client")["status"]["phase"] in ("Succeeded", "Failed")
    )
    assert namespace.kubectl("logs", "client").split() == ["hello"] * len(names)


def test_a_crash_loop_tells_its_story(namespace: Namespace) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    namespace.apply(pod("crash", "echo no model at /x; exit 65", container=policy))
    waiting = wait_until(
        "CrashLoopBackOff",
        lambda: namespace.container("crash")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff",
    )
    assert waiting
    last = namespace.container("crash")["lastState"]["terminated"]
    assert (last["exitCode"], last["message"]) == (65, "no model at /x")
    assert namespace.kubectl("logs", "crash", "--previous") == "no model at /x\n"
    wait_until(
        "events",
        lambda: namespace.reasons("crash") >= {"Scheduled", "Pulled", "Created", "Started", "BackOff"},
    )
    assert "no model at /x" in namespace.kubectl("describe", "pod", "crash")


def test_logs_follow_until_the_container_ends(namespace: Namespace) -> None:
    namespace.apply(pod("talker", "for i in 1 2 3; do echo $i; sleep 0.5; done", restartPolicy="Never"))
    wait_until("it runs", lambda: "running" in namespace.container("talker")["state"])
    assert namespace.kubectl("logs", "-f", "talker") == "1\n2\n3\n"
    assert namespace.kubectl("logs", "talker", "--tail", "1", "--timestamps").endswith(" 3\n")


def test_exec_and_a_foreign_command_are_refused_with_a_reason(namespace: Namespace) -> None:
    namespace.apply(pod("idle", "sleep 600"), pod("odd", "x", container={"command": ["python3"]}))
    wait_until("it runs", lambda: "running" in namespace.container("idle")["state"])
    with pytest.raises(PartFailedError, match="a process node has no exec"):
        namespace.kubectl("exec", "idle", "--", "ls")
    wait_until("the refusal", lambda: "CreateContainerError" in str(namespace.container("odd")))
    assert "not the entrypoint" in namespace.container("odd")["state"]["waiting"]["message"]


def test_readiness_and_liveness_probes_act(namespace: Namespace) -> None:
    container = {
        "readinessProbe": {
            "exec": {"command": ["test", "-e", "/tmp/ready"]},
            "periodSeconds": 1,
            "failureThreshold": 1,
        },
        "livenessProbe": {
            "exec": {"command": ["test", "!", "-e", "/tmp/dead"]},
            "periodSeconds": 1,
            "failureThreshold": 2,
        },
    }
    line = "trap exit TERM; sleep 2; touch /tmp/ready; sleep 3; touch /tmp/dead; while :; do sleep 0.1; done"
    namespace.apply(pod("moody", line, container=container))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/moody", "--timeout=20s")
    wait_until("a restart", lambda: namespace.container("moody")["restartCount"] == 1)
    wait_until("events", lambda: namespace.reasons("moody") >= {"Unhealthy", "Killing"})


def test_deletion_gives_grace_and_leaves_no_process(namespace: Namespace) -> None:
    line = "trap 'echo bye; sleep 0.3; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    namespace.apply(
        pod("polite", line, terminationGracePeriodSeconds=10), pod("stubborn", f"echo up; {SLEEP_STUBBORN}")
    )
    wait_until("it runs", lambda: namespace.kubectl("logs", "polite") == "up\n")
    wait_until("it runs", lambda: namespace.kubectl("logs", "stubborn") == "up\n")
    heard: list[str] = []
    follower = threading.Thread(target=lambda: heard.append(namespace.kubectl("logs", "-f", "polite")))
    follower.start()
    time.sleep(0.5)
    namespace.kubectl("delete", "pod", "polite", "stubborn", "--timeout=20s")
    follower.join()
    assert heard == ["up\nbye\n"]
    assert not find_processes(SLEEP_STUBBORN)


def test_a_deployment_scales_and_survives_a_drain(namespace: Namespace) -> None:
    template = {
        "metadata": {"labels": {"app": "many"}},
        "spec": pod("x", "trap exit TERM; while :; do sleep 0.1; done")["spec"],
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "many"}}, "template": template}
    namespace.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": spec}
    )
    namespace.kubectl("rollout", "status", "deployment/many", "--timeout=30s")
    namespace.kubectl("scale", "deployment/many", "--replicas=4")
    namespace.kubectl("rollout", "status", "deployment/many", "--timeout=30s")
    node = namespace.kubectl("get", "pods", "-o", "jsonpath={.items[0].spec.nodeName}")
    try:
        selector = "--pod-selector=app=many"
        namespace.cluster.kubectl("drain", node, selector, "--ignore-daemonsets", "--timeout=60s")
        namespace.kubectl("rollout", "status", "deployment/many", "--timeout=30s")
        places = namespace.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}").split()
        assert node not in places
    finally:
        namespace.cluster.kubectl("uncordon", node)


def test_gpus_are_counted_by_the_scheduler(namespace: Namespace) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    namespace.apply(pod("first", "sleep 600", container=limits))
    wait_until("it runs", lambda: "running" in namespace.container("first")["state"])
    assert namespace.pod("first")["spec"]["nodeName"] == "gpu-0"
    namespace.apply(pod("second", "sleep 600", container=limits))
    wait_until(
        "the reason", lambda: "Insufficient nvidia.com/gpu" in namespace.kubectl("describe", "pod", "second")
    )


def test_the_cpu_limit_holds(namespace: Namespace) -> None:
    program = "import os,time\nt=time.time()\nwhile time.time()<t+3: pass\nprint(sum(os.times()[:2]))"
    line = f'exec python3 -c "{program}"'
    limits = {"resources": {"limits": {"cpu": "200m"}}}
    namespace.apply(pod("busy", line, container=limits, restartPolicy="Never"))
    wait_until("it ends", lambda: namespace.pod("busy")["status"]["phase"] == "Succeeded")
    assert float(namespace.kubectl("logs", "busy")) < 1.0


def claim(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def test_a_claim_keeps_its_data_from_pod_to_pod(namespace: Namespace) -> None:
    shape: Object = {
        "restartPolicy": "Never",
        "container": {"volumeMounts": [{"name": "d", "mountPath": "/data"}]},
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    namespace.apply(claim("data"), pod("writer", "echo kept > /data/file", **shape))
    wait_until("it ends", lambda: namespace.pod("writer")["status"]["phase"] == "Succeeded")
    shape = {**shape, "container": {"volumeMounts": [{"name": "d", "mountPath": "/data"}]}}
    namespace.apply(pod("reader", "cat /data/file", **shape))
    wait_until("it ends", lambda: namespace.pod("reader")["status"]["phase"] == "Succeeded")
    assert namespace.kubectl("logs", "reader") == "kept\n"


def test_a_pod_is_its_service_account(namespace: Namespace) -> None:
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    ask = (
        "import os, ssl, urllib.request as u, urllib.error as e; a='" + account + "';"
        "c=ssl.create_default_context(cafile=a+'/ca.crt');"
        "h=os.environ['KUBERNETES_SERVICE_HOST']+':'+os.environ['KUBERNETES_SERVICE_PORT'];"
        "t={'Authorization':'Bearer '+open(a+'/token').read()};"
        "r=u.Request('https://'+h+'/api/v1/pods',headers=t)\n"
        "try: u.urlopen(r,context=c)\n"
        "except e.HTTPError as x: print(x.read().decode())"
    )
    namespace.apply(pod("asker", f'exec python3 -c "{ask}"', restartPolicy="Never"))
    wait_until("it ends", lambda: namespace.pod("asker")["status"]["phase"] == "Succeeded")
    assert f"system:serviceaccount:{namespace.name}:default" in namespace.kubectl("logs", "asker")


def test_nodes_that_are_killed_take_their_pods_along_and_start_them_again(namespace: Namespace) -> None:
    namespace.apply(pod("phoenix", f"echo up; {SLEEP_PHOENIX}"))
    wait_until("it runs", lambda: "running" in namespace.container("phoenix")["state"])
    pids = find_processes(SLEEP_PHOENIX)
    assert pids
    namespace.cluster.kill_part("nodes")
    wait_until("the processes are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    namespace.cluster.start_part("nodes")
    wait_until("it runs again", lambda: namespace.container("phoenix")["restartCount"] == 1)
    wait_until("it runs again", lambda: "running" in namespace.container("phoenix")["state"])


def test_a_claim_that_is_deleted_while_no_node_runs_leaves_no_folder(namespace: Namespace) -> None:
    namespace.apply(claim("data"))
    namespace.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=30s")
    name = namespace.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
    folder = Path(namespace.kubectl("get", "pv", name, "-o", "jsonpath={.spec.hostPath.path}"))
    assert folder.exists()
    namespace.cluster.kill_part("nodes")
    namespace.kubectl("delete", "pvc", "data", "--timeout=30s")
    namespace.cluster.start_part("nodes")
    wait_until("the folder is gone", lambda: not folder.exists())
    wait_until("the volume is gone", lambda: name not in list_volumes(namespace.cluster))


def list_volumes(cluster: LocalCluster) -> list[str]:
    return [volume["metadata"]["name"] for volume in cluster.api.list("/api/v1/persistentvolumes")]
