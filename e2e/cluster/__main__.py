"""`python -m e2e.cluster up|down|status`: the local cluster as a command for people."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import e2e.cluster.minimum_python  # noqa: F401  before all that an older Python can't read
from e2e.cluster.errors import ClusterError, PrecheckFailedError
from e2e.cluster.flags import API_PORT, PROMETHEUS_PORT, build_parser
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.loopback import bypass_proxies
from e2e.cluster.prechecks import check_machine, check_port
from e2e.cluster.processes import Record
from e2e.cluster.product import (
    PROMPT,
    Gateway,
    apply_example,
    completion_request,
    find_gateway,
    install_chart,
    stream_completion,
    wait_for_example,
    wait_for_product,
)
from e2e.cluster.progress import Laps
from e2e.cluster.settings import DEFAULT_NODES, Layout, Ports, end_command, free_ports
from e2e.cluster.sources import PARTS, cache_folder, choose_source


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


def bring_up(arguments: argparse.Namespace) -> None:
    """Start what does not run yet, and show that it answers. Raises ClusterError."""
    laps = Laps()
    cluster = prepare(arguments)
    if arguments.only_checks:
        return
    if running := cluster.processes.running():
        say(describe_running(running, cluster.layout.state))
    say("cluster: starting etcd, Kubernetes, Prometheus and the nodes")
    cluster.start()
    laps.end("cluster")
    gateway = None if arguments.bare else show_product(cluster, laps)
    say(f"up in {laps.total:.1f} s: {laps.describe()}\n")
    say(guide(cluster, gateway))


def describe_running(running: list[Record], state: Path) -> str:
    """Say that what runs is kept, with the code that it was started with. Pods, too, are kept."""
    began = time.localtime(min(record.started_at for record in running))
    since = time.strftime("%Y-%m-%d %H:%M", began)
    return f"cluster: already running since {since}; changed code runs after: {end_command(state)}"


def prepare(arguments: argparse.Namespace) -> LocalCluster:
    """Return the cluster of the state folder, running or not, once its ports and the machine are checked."""
    state = arguments.state_dir
    ports = choose_ports(arguments)
    cluster = LocalCluster(state, nodes=arguments.node or DEFAULT_NODES, ports=ports, detached=True, say=say)
    cluster.check_state()
    check_ports(arguments, cluster)
    cache = cache_folder()
    must_build = any(choose_source(part, cache).must_build for part in PARTS)
    check_machine(state, cache, must_build=must_build)
    return cluster


def choose_ports(arguments: argparse.Namespace) -> Ports:
    """Return the ports that are asked for, and free ones beside them. Raises PrecheckFailedError."""
    api, prometheus = arguments.api_port or API_PORT, arguments.prometheus_port or PROMETHEUS_PORT
    if api == prometheus:
        raise PrecheckFailedError(f"--api-port and --prometheus-port are both {api}; write two ports")
    return free_ports(api, prometheus)


def check_ports(arguments: argparse.Namespace, cluster: LocalCluster) -> None:
    """Refuse ports that are taken, and others than a running cluster has. Raises PrecheckFailedError."""
    running = {record.name for record in cluster.processes.running()}
    for part, flag, asked, port in (
        ("kube-apiserver", "--api-port", arguments.api_port, cluster.ports.api),
        ("prometheus", "--prometheus-port", arguments.prometheus_port, cluster.ports.prometheus),
    ):
        if part not in running:
            check_port(port, flag)
        elif asked not in (None, port):
            ending = end_command(cluster.layout.state)
            raise PrecheckFailedError(f"{part} runs on port {port}; to move it end it first: {ending}")


def show_product(cluster: LocalCluster, laps: Laps) -> Gateway:
    """Install Millrace, serve the example and stream a completion from it. Raises ClusterError."""
    say("millrace: installing the chart")
    install_chart(cluster)
    laps.end("chart")
    wait_for_product(cluster, say)
    laps.end("operator and gateway")
    apply_example(cluster, say)
    wait_for_example(cluster, say)
    laps.end("example")
    gateway = find_gateway(cluster)
    print(f"\n  {PROMPT}", end="", flush=True)
    for piece in stream_completion(gateway):
        print(piece.replace("\n", "\n  "), end="", flush=True)
    print("\n")
    laps.end("answer")
    return gateway


def guide(cluster: LocalCluster, gateway: Gateway | None) -> str:
    """Say how to go on."""
    lines = [
        f"export KUBECONFIG={cluster.kubeconfig}",
        f'export PATH={cluster.layout.programs}:"$PATH"',
    ]
    addresses = ["127.0.0.1", *([gateway.host] if gateway else [])]
    if bypass := bypass_proxies(addresses, os.environ):
        lines += [bypass]
    if gateway:
        body = json.dumps(completion_request())
        request = f"-H 'Content-Type: application/json' -d '{body}'"
        lines += [f"curl -N {gateway.url}/v1/completions {request}"]
    lines += [
        "",
        f"Prometheus   {cluster.prometheus_url}/api/v1/query?query=up",
        f"logs         {cluster.layout.logs}",
    ]
    if gateway:
        lines += [
            "go on        kubectl get infsvc -w      kubectl describe infsvc stories",
            "             kubectl millrace status   kubectl millrace explain stories",
            "             kubectl explain infsvc.spec.scaling   kubectl logs -l millrace.dev/service=stories",
        ]
    return "\n".join([*lines, f"end it       {end_command(cluster.layout.state)}"])


def bring_down(arguments: argparse.Namespace) -> None:
    """End every recorded process of the cluster."""
    cluster = LocalCluster(arguments.state_dir, say=say)
    ended = cluster.stop()
    say(f"down: ended {', '.join(ended)}" if ended else "down: nothing was running")


def show_status(arguments: argparse.Namespace) -> None:
    """Say which parts run. Raises ClusterError when there is no cluster."""
    layout = Layout(arguments.state_dir.absolute())
    if Ports.load(layout.ports) is None:
        raise ClusterError(f"there is no cluster in {layout.state}; start one with: make up")
    cluster = LocalCluster(arguments.state_dir, say=say)
    for name in cluster.part_names:
        record = cluster.processes.find(name)
        state = f"running, pid {record.pid}" if record else "not running"
        say(f"{name:24} {state:24} {layout.logs / name}.log")
    say("")
    say(guide(cluster, None))


def main(argv: list[str]) -> int:
    """Run a command; the exit status is 1 after one line that says what failed and what to do."""
    arguments = build_parser(__doc__).parse_args(argv)
    commands = {"up": bring_up, "down": bring_down, "status": show_status}
    try:
        commands[arguments.command](arguments)
    except (ClusterError, OSError) as error:
        print(f"{arguments.command} failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        ending = end_command(arguments.state_dir)
        print(f"\ninterrupted; what was started still runs. End it: {ending}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
