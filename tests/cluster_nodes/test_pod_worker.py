import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.nodes.container_record import Running
from e2e.cluster.nodes.process_tree import list_tree

pytestmark = pytest.mark.reads(
    "e2e/cluster", "e2e/images", "testing/polling.py", "operator/millrace_kubernetes"
)

Object = dict[str, Any]


def main(status: Object) -> Object:
    found: Object = status["containerStatuses"][0]
    return found


def is_ready(status: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"])


async def test_a_pod_runs_to_its_end(bench: Any) -> None:
    worker = bench.start(
        "echo hello; echo $0 $MILLRACE_BIND_ADDRESS; exit 0", spec={"restartPolicy": "Never"}
    )
    status = await bench.wait(worker, lambda s: s["phase"] == "Succeeded")
    assert main(status)["state"]["terminated"]["reason"] == "Completed"
    assert bench.log(worker) == f"hello\nsh {status['podIP']}\n"
    await asyncio.sleep(0.05)
    assert [r for r in bench.reasons() if r != "Pulled"] == ["Created", "Started"]


async def test_a_crash_loop_shows_its_last_line(bench: Any) -> None:
    worker = bench.start(
        "echo starting; echo 'no model at /x'; exit 65", terminationMessagePolicy="FallbackToLogsOnError"
    )
    status = await bench.wait(
        worker,
        lambda s: (
            main(s)["restartCount"] >= 2
            and main(s)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
        ),
    )
    last = main(status)["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"], last["message"]) == (65, "Error", "no model at /x")
    assert status["phase"] == "Running"
    assert not is_ready(status)
    assert "BackOff" in bench.reasons()


async def test_a_container_leaves_a_message_in_the_file_for_it(bench: Any) -> None:
    worker = bench.start(
        "echo a log line; echo -n found it > /dev/termination-log; exit 0", spec={"restartPolicy": "Never"}
    )
    status = await bench.wait(worker, lambda s: s["phase"] == "Succeeded")
    assert main(status)["state"]["terminated"]["message"] == "found it"


async def test_a_message_of_an_earlier_run_is_not_told_again(bench: Any) -> None:
    worker = bench.start(
        "test -e /state/ran && { sleep 0.3; exit 4; }; touch /state/ran; echo -n once > /words; exit 2",
        terminationMessagePath="/words",
        volumeMounts=[{"name": "state", "mountPath": "/state"}],
        spec={"volumes": [{"name": "state", "emptyDir": {}}]},
    )
    status = await bench.wait(worker, lambda s: main(s)["restartCount"] >= 1)
    assert main(status)["lastState"]["terminated"]["message"] == "once"
    status = await bench.wait(worker, lambda s: main(s)["restartCount"] >= 2)
    last = main(status)["lastState"]["terminated"]
    assert (last["exitCode"], last["message"]) == (4, "")


async def test_volumes_and_environment(bench: Any) -> None:
    bench.api.objects["/api/v1/namespaces/prod/configmaps/settings"] = {
        "data": {"mode": "fast", "other": "x"}
    }
    secret = {"data": {"key": base64.b64encode(b"s3cret").decode()}}
    bench.api.objects["/api/v1/namespaces/prod/secrets/keys"] = secret
    sources: list[Object] = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "settings", "items": [{"key": "mode", "path": "deep/mode"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    worker = bench.start(
        f"cat {account}/token {account}/deep/mode {account}/namespace /etc/settings/other /keys/key; echo;"
        "echo $POD $KEY $mode $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT $JOINED;"
        "echo x > /scratch/file;"
        "touch /etc/settings/no 2>/dev/null || echo readonly",
        spec={
            "restartPolicy": "Never",
            "volumes": [
                {"name": "account", "projected": {"sources": sources}},
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "keys", "secret": {"secretName": "keys"}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
        volumeMounts=[
            {"name": "account", "mountPath": account, "readOnly": True},
            {"name": "settings", "mountPath": "/etc/settings"},
            {"name": "keys", "mountPath": "/keys"},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
        envFrom=[{"configMapRef": {"name": "settings"}}],
        env=[
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
            {"name": "JOINED", "value": "$(POD)-$(mode)"},
        ],
    )
    status = await bench.wait(worker, lambda s: s["phase"] in ("Succeeded", "Failed"))
    assert bench.log(worker) == (
        "token-of-p0fastprodxs3cret\np0 s3cret fast 127.0.0.1:6443 p0-fast\nreadonly\n"
    ), status
    assert (bench.node.pod_folder("uid-p0") / "volumes" / "scratch" / "file").read_text() == "x\n"


async def test_a_missing_config_map_is_waited_for_and_changes_arrive(bench: Any) -> None:
    worker = bench.start(
        "cat /c/a; while ! grep -q two /c/a; do sleep 0.05; done; cat /c/a",
        spec={"restartPolicy": "Never", "volumes": [{"name": "c", "configMap": {"name": "late"}}]},
        volumeMounts=[{"name": "c", "mountPath": "/c"}],
    )
    await bench.until(lambda: "FailedMount" in bench.reasons())
    path = "/api/v1/namespaces/prod/configmaps/late"
    bench.api.objects[path] = {"data": {"a": "one\n"}}
    await bench.wait(worker, lambda s: "running" in main(s)["state"])
    bench.api.objects[path] = {"data": {"a": "two\n"}}
    await bench.wait(worker, lambda s: s["phase"] == "Succeeded")
    assert bench.log(worker) in ("one\ntwo\n", "two\ntwo\n")


async def test_init_containers_come_first_and_share_volumes(bench: Any) -> None:
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    init = {
        "name": "fetch",
        "image": "shell:1",
        "args": ["echo fetched > /shared/file"],
        "volumeMounts": mounts,
    }
    spec = {
        "restartPolicy": "Never",
        "volumes": [{"name": "shared", "emptyDir": {}}],
        "initContainers": [init],
    }
    worker = bench.start("cat /shared/file", spec=spec, volumeMounts=mounts)
    status = await bench.wait(worker, lambda s: s["phase"] == "Succeeded")
    assert bench.log(worker) == "fetched\n"
    assert status["initContainerStatuses"][0]["ready"]


async def test_readiness_follows_the_probe_and_liveness_restarts(bench: Any) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 0.05, "failureThreshold": 1}
    worker = bench.start(
        "sleep 0.3; touch /tmp/ready; sleep 0.4; rm /tmp/ready; sleep 60", readinessProbe=probe
    )
    await bench.wait(worker, lambda s: "running" in main(s)["state"] and not is_ready(s))
    await bench.wait(worker, is_ready)
    await bench.wait(worker, lambda s: not is_ready(s))
    assert "Unhealthy" in bench.reasons()
    dead = {
        "tcpSocket": {"port": 9},
        "periodSeconds": 0.05,
        "failureThreshold": 2,
        "terminationGracePeriodSeconds": 0,
    }
    worker = bench.start("sleep 60", livenessProbe=dead)
    status = await bench.wait(worker, lambda s: main(s)["restartCount"] >= 1)
    assert main(status)["lastState"]["terminated"]["exitCode"] == 137


async def test_deletion_runs_pre_stop_then_sigterm_and_lets_the_object_go(bench: Any) -> None:
    line = "trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo pre > /out/pre"]}}}
    spec = {"volumes": [{"name": "out", "emptyDir": {}}]}
    worker = bench.start(line, spec=spec, lifecycle=hook, volumeMounts=[{"name": "out", "mountPath": "/out"}])
    await bench.wait(worker, lambda s: "running" in main(s)["state"])
    await bench.until(lambda: "up" in bench.log(worker))
    metadata = worker.pod["metadata"] | {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 5}
    worker.update({**worker.pod, "metadata": metadata})
    await bench.until(lambda: bench.api.deleted)
    assert bench.log(worker) == "up\nterm\n"
    assert (bench.node.pod_folder(worker.uid) / "volumes" / "out" / "pre").exists()
    assert main(bench.status(worker))["state"]["terminated"]["exitCode"] == 0
    worker.remove()
    assert not bench.node.pod_folder(worker.uid).exists()


async def test_a_restart_for_liveness_runs_pre_stop_once(bench: Any) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo pre >> /out/pre"]}}}
    dead = {"tcpSocket": {"port": 9}, "periodSeconds": 0.05, "failureThreshold": 1}
    worker = bench.start(
        "trap 'exit 0' TERM; while :; do sleep 0.05; done",
        spec={"restartPolicy": "Never", "volumes": [{"name": "out", "emptyDir": {}}]},
        livenessProbe={**dead, "terminationGracePeriodSeconds": 5},
        lifecycle=hook,
        volumeMounts=[{"name": "out", "mountPath": "/out"}],
    )
    await bench.wait(worker, lambda s: "terminated" in main(s)["state"])
    assert (bench.node.pod_folder(worker.uid) / "volumes" / "out" / "pre").read_text() == "pre\n"


async def test_what_ignores_sigterm_is_killed_after_its_grace(bench: Any) -> None:
    worker = bench.start("echo up; sleep 60")
    await bench.wait(worker, lambda s: "running" in main(s)["state"])
    metadata = worker.pod["metadata"] | {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0.2}
    worker.update({**worker.pod, "metadata": metadata})
    await bench.until(lambda: bench.api.deleted)
    assert main(bench.status(worker))["state"]["terminated"]["exitCode"] == 137


async def test_refusals_are_shown(bench: Any) -> None:
    unknown = bench.start(image="registry.example/nothing:1")
    status = await bench.wait(unknown, lambda s: main(s)["state"]["waiting"]["reason"].endswith("ImagePull"))
    assert (
        "this node has millrace/operator:0.1.0, millrace/runtime:0.1.0, shell:1"
        in main(status)["state"]["waiting"]["message"]
    )
    await bench.wait(unknown, lambda s: main(s)["state"]["waiting"]["reason"] == "ImagePullBackOff")
    other = bench.start(command=["python"])
    status = await bench.wait(
        other, lambda s: main(s)["state"]["waiting"]["reason"] == "CreateContainerError"
    )
    assert "not the entrypoint ['sh', '-c']" in main(status)["state"]["waiting"]["message"]
    rooted = bench.start(securityContext={"runAsNonRoot": True})
    await bench.wait(rooted, lambda s: main(s)["state"]["waiting"]["reason"] == "CreateContainerConfigError")
    network = bench.start(spec={"hostNetwork": True, "activeDeadlineSeconds": 60})
    status = await bench.wait(network, lambda s: s["phase"] == "Failed")
    assert status["message"].endswith("cannot give: hostNetwork, activeDeadlineSeconds")
    groups = {"securityContext": {"supplementalGroups": [7]}}
    grouped = bench.start(spec=groups, ports=[{"containerPort": 80, "hostPort": 80}])
    status = await bench.wait(grouped, lambda s: s["phase"] == "Failed")
    assert status["message"].endswith(
        "cannot give: securityContext.supplementalGroups, containers[main].ports.hostPort"
    )


async def test_millrace_is_the_running_environments(bench: Any) -> None:
    worker = bench.start(
        "command -v millrace; id -u", spec={"restartPolicy": "Never", "securityContext": {"runAsUser": 77}}
    )
    await bench.wait(worker, lambda s: s["phase"] == "Succeeded")
    path, uid = bench.log(worker).split()
    assert Path(path).name == "millrace"
    assert uid == "77"


async def test_a_killed_worker_leaves_no_process(bench: Any) -> None:
    worker = bench.start("sleep 60 & sleep 60")
    await bench.wait(worker, lambda s: "running" in main(s)["state"])
    running = worker.find("main").running
    await worker.kill()
    assert not list_tree(running.pid)
    assert isinstance(worker.find("main").record.state, Running)


async def test_an_api_server_that_fails_before_the_first_start_is_asked_again(bench: Any) -> None:
    bench.api.objects["/api/v1/namespaces/prod/configmaps/settings"] = {"data": {"mode": "fast"}}
    bench.api.failures["GET"] = [500]
    worker = bench.start(
        "echo $mode", spec={"restartPolicy": "Never"}, envFrom=[{"configMapRef": {"name": "settings"}}]
    )
    await bench.wait(worker, lambda s: s["phase"] == "Succeeded")
    assert bench.log(worker) == "fast\n"
    assert "Failed" in bench.reasons()


async def test_a_port_that_a_probe_or_hook_names_wrongly_is_said_and_outlived(bench: Any) -> None:
    action = {"httpGet": {"port": "absent"}}
    worker = bench.start(readinessProbe=action, lifecycle={"preStop": action})
    await bench.until(lambda: "Unhealthy" in bench.reasons())
    metadata = worker.pod["metadata"] | {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0.2}
    worker.update({**worker.pod, "metadata": metadata})
    await bench.until(lambda: bench.api.deleted)
    assert "FailedPreStopHook" in bench.reasons()


async def test_a_cancellation_that_is_lost_is_not_the_last(bench: Any) -> None:
    """As when what is awaited ends at the same moment."""
    worker = bench.start()
    await bench.wait(worker, is_ready)
    lost = []

    async def lose_one() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(1)

    worker._writing.cancel()
    worker._writing = asyncio.create_task(lose_one())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await worker.kill()
    assert lost
