"""What is rendered for the parts: flags, kubeconfig, Prometheus' configuration."""

import base64
import re
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import local_cluster
from e2e.cluster.controlplane import (
    Command,
    api_server_command,
    controller_manager_command,
    etcd_command,
    part_command,
    scheduler_command,
)
from e2e.cluster.kubeconfig import render_kubeconfig, write_private
from e2e.cluster.local_cluster import LocalCluster, nodes_command
from e2e.cluster.loopback import answers
from e2e.cluster.nodes.__main__ import build_parser, parse_settings
from e2e.cluster.prometheus import (
    metric_relabelling,
    prometheus_command,
    relabelling,
    render_prometheus,
)
from e2e.cluster.settings import DEFAULT_NODES, Layout, Ports, free_ports

pytestmark = pytest.mark.reads("docs/how-to/install.md", "e2e/cluster", "operator/millrace_kubernetes")

PORTS = Ports(api=1, etcd=2, etcd_peer=3, prometheus=4, controller_manager=5, scheduler=6)
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "prometheus")
PROGRAMS = {name: Path("/bin") / name for name in NAMES}


def commands(layout: Layout) -> list[Command]:
    return [
        etcd_command(PROGRAMS, layout, PORTS),
        api_server_command(PROGRAMS, layout, PORTS),
        controller_manager_command(PROGRAMS, layout, PORTS),
        scheduler_command(PROGRAMS, layout, PORTS),
        prometheus_command(PROGRAMS, layout, PORTS),
    ]


def relabel(labels: dict[str, str]) -> dict[str, str] | None:
    """Apply our relabelling as Prometheus would; None when the target is dropped."""
    kept: dict[str, str] = {}
    for rule in relabelling():
        value = ";".join(labels.get(name, "") for name in rule["source_labels"])
        is_match = re.fullmatch(rule.get("regex", "(.*)"), value) is not None
        action = rule.get("action", "replace")
        if (action == "keep" and not is_match) or (action == "drop" and is_match):
            return None
        if action == "replace":
            kept[rule["target_label"]] = value
    return kept


def pod(**overrides: str) -> dict[str, str]:
    meta = {
        "namespace": "team",
        "pod_name": "chat-1",
        "pod_phase": "Running",
        "pod_container_port_name": "http",
        "pod_labelpresent_millrace_dev_component": "true",
        "pod_label_millrace_dev_component": "replica",
        "pod_label_millrace_dev_service": "chat",
    }
    return {f"__meta_kubernetes_{name}": value for name, value in {**meta, **overrides}.items()}


LISTENING = {
    "etcd": {"--listen-client-urls=https://127.0.0.1:2", "--listen-peer-urls=https://127.0.0.1:3"},
    "kube-apiserver": {"--bind-address=127.0.0.1", "--secure-port=1"},
    "kube-controller-manager": {"--bind-address=127.0.0.1", "--secure-port=5"},
    "kube-scheduler": {"--bind-address=127.0.0.1", "--secure-port=6"},
    "prometheus": {"--web.listen-address=127.0.0.1:4"},
}
"""Where each part listens; without its flag most would listen on every address."""


def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    started = commands(Layout(tmp_path))
    listens = re.compile(r"--(?:listen-|bind-address|secure-port|web\.listen|insecure)")
    assert {each.name: {word for word in each.words if listens.match(word)} for each in started} == LISTENING
    words = nodes_command(Layout(tmp_path), DEFAULT_NODES).words
    assert words[words.index("--kubelet-address") + 1] == "127.0.0.2"


def test_no_part_speaks_without_tls_to_another(tmp_path: Path) -> None:
    for command in commands(Layout(tmp_path)):
        text = " ".join(command.words)
        assert "http://" not in text
        for url in re.findall(r"https://([\d.]+):", text):
            assert url.startswith("127.")


def test_every_part_is_named_to_a_binary_that_holds_several() -> None:
    assert part_command({"etcd": Path("/c/controlplane")}, "etcd", "-x").words[1:] == ("etcd", "-x")
    assert part_command({"etcd": Path("/c/etcd")}, "etcd", "-x").words == ("/c/etcd", "-x")


def test_a_running_pod_of_ours_is_scraped_under_its_labels() -> None:
    assert relabel(pod()) == {
        "namespace": "team",
        "pod": "chat-1",
        "service": "chat",
        "component": "replica",
    }
    assert relabel(pod(pod_container_port_name="metrics"))


@pytest.mark.parametrize(
    "overrides",
    [
        {"pod_labelpresent_millrace_dev_component": ""},
        {"pod_container_port_name": "live"},
        {"pod_phase": "Succeeded"},
        {"pod_phase": "Pending"},
    ],
)
def test_other_targets_are_not(overrides: dict[str, str]) -> None:
    assert relabel(pod(**overrides)) is None


def test_prometheus_finds_pods_by_the_kubeconfig(tmp_path: Path) -> None:
    config = yaml.safe_load(render_prometheus(tmp_path / "kubeconfig", scrape_seconds=3))
    assert config["global"]["scrape_interval"] == "3s"
    job = config["scrape_configs"][0]
    assert job["kubernetes_sd_configs"] == [{"role": "pod", "kubeconfig_file": str(tmp_path / "kubeconfig")}]


def test_pods_are_labelled_as_the_page_on_installing_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "install.md").read_text()
    (found,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", page, re.MULTILINE | re.DOTALL)
    (job,) = yaml.safe_load(found)["scrape_configs"]
    ours = [*relabelling(), *metric_relabelling()]
    theirs = [*job["relabel_configs"], *job["metric_relabel_configs"]]
    assert [{"action": "replace", **rule} for rule in ours] == [
        {"action": "replace", **rule} for rule in theirs
    ]


def test_a_kubeconfig_holds_everything_and_is_its_owners(tmp_path: Path) -> None:
    for name in ("ca.crt", "admin.crt", "admin.key"):
        (tmp_path / name).write_text(name)
    path = tmp_path / "kubeconfig"
    write_private(path, render_kubeconfig("https://127.0.0.1:1", tmp_path, "admin"))
    config: dict[str, Any] = yaml.safe_load(path.read_text())

    assert path.stat().st_mode & 0o777 == 0o600
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == b"admin.key"


def test_the_nodes_understand_what_they_are_told(tmp_path: Path) -> None:
    words = nodes_command(Layout(tmp_path), DEFAULT_NODES).words[3:]
    settings = parse_settings(build_parser().parse_args(words))
    assert {node.name: node.gpus for node in settings.nodes} == {"gpu-0": 8, "cpu-0": 0}


def test_ports_are_kept_for_the_next_process(tmp_path: Path) -> None:
    ports = free_ports(api=6443)
    assert ports.api == 6443
    assert len({ports.etcd, ports.etcd_peer, ports.prometheus}) == 3
    ports.save(tmp_path / "ports.json")
    assert Ports.load(tmp_path / "ports.json") == ports
    assert LocalCluster(tmp_path).ports == ports


def test_no_port_is_one_that_the_kernel_gives_to_clients() -> None:
    """A client that tries again while nobody listens may get the port it tries, and be its own server."""
    found = astuple(free_ports())
    assert len({*found}) == len(found)
    assert max(found) < 32_768


def test_ports_that_are_asked_for_beat_those_of_a_cluster_that_has_ended(tmp_path: Path) -> None:
    free_ports(api=6443).save(tmp_path / "ports.json")
    asked = free_ports(api=7443)
    assert LocalCluster(tmp_path, ports=asked).ports == asked
    table = LocalCluster(tmp_path).processes
    table.start("etcd", ("sleep", "60"), {})
    try:
        assert LocalCluster(tmp_path, ports=asked).ports.api == 6443
    finally:
        table.stop_all(seconds=0.0)


def test_the_parts_start_in_stages(tmp_path: Path) -> None:
    last = ("kube-controller-manager", "kube-scheduler")
    assert LocalCluster(tmp_path)._stages == (("etcd", "prometheus"), ("kube-apiserver", "nodes"), last)
    alone = LocalCluster(tmp_path, nodes=())
    assert alone._stages == (("etcd", "prometheus"), ("kube-apiserver",), last)
    assert alone.part_names == ("etcd", "prometheus", "kube-apiserver", *last)


def test_threads_that_read_at_once_share_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody keeps is never closed."""
    cluster, both = LocalCluster(tmp_path), threading.Barrier(2, timeout=1)

    def load(*_: object) -> ssl.SSLContext:
        with suppress(threading.BrokenBarrierError):  # one thread alone comes here
            both.wait()
        return ssl.create_default_context()

    monkeypatch.setattr(local_cluster, "client_context", load)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: cluster.api, range(2))
    assert first is second


def test_nothing_answers_on_a_free_port() -> None:
    assert not answers(f"http://127.0.0.1:{free_ports().api}/")
