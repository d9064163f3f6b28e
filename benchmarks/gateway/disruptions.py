"""`python -m benchmarks.gateway.disruptions`: what clients notice of replicas that come and go.

Streams run through our gateway while stub replicas are scaled down, rolled out, and drained with their nodes:
each stream must be complete. Then requests wait for a service without a replica: each must be answered, and
the operator must get one report. It prints a table, then one JSON line, and returns 1 if anything was lost.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.clients import Clients, Replicas, Target, build, serve_replicas
from benchmarks.gateway.contestants import find_free_port
from benchmarks.gateway.ours import (
    CLIENT_KEY,
    LEADER_TOKEN,
    PODS,
    SERVICES,
    Api,
    make_pod,
    make_service,
    serve_gateway,
)
from benchmarks.gateway.process import LOAD_CORE
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from e2e.cluster.nodes.network.addresses import AddressBlock, claim_block
from millrace_runtime.contract import METRIC_GATEWAY_IN_FLIGHT, PORT_HTTP

NUM_REPLICAS = 4
TOKENS = 120
"""Of a stream: six seconds."""
STEP_SECONDS = 0.2
"""From a replica's mark to its end, and from a new replica to the end of an old one."""
WAKE_SECONDS = 2.0
"""How long requests wait for their replica after the last one has arrived."""


class Fleet:
    """The replicas of a service: stubs that serve, and their pods."""

    def __init__(self, api: Api, block: AddressBlock, service: str) -> None:
        self.replicas: Replicas
        self._api, self._block, self._service = api, block, service
        self._addresses: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        """Those by their addresses, and those that still drain."""
        self._num_started = 0

    def start(self) -> None:
        """Add a replica that is Ready."""
        self._num_started += 1
        uid = f"{self._service}-{self._num_started}"
        address = self._block.allocate(uid)
        self.replicas.add(f"{address}:{PORT_HTTP}")
        self._addresses[uid], self._uids[address] = address, uid
        self._api.put(PODS, self._make_pod(uid, address))

    def mark(self) -> str:
        """Mark the oldest replica to leave, as the operator does. Returns its pod's uid."""
        uid = next(iter(self._addresses))
        self._api.put(PODS, self._make_pod(uid, self._addresses[uid], is_leaving=True))
        return uid

    def end(self, uid: str) -> None:
        """Delete a pod: its replica drains, and then its object ends."""
        address = self._addresses.pop(uid)
        self._api.put(PODS, self._make_pod(uid, address, is_deleted=True))
        self.replicas.drain(f"{address}:{PORT_HTTP}")

    def note_drained(self, listening: str) -> None:
        """Remove the pod of a replica that has ended."""
        address = listening.rpartition(":")[0]
        uid = self._uids.pop(address)
        self._api.remove(PODS, self._make_pod(uid, address))

    def _make_pod(self, uid: str, address: str, **marks: bool) -> dict[str, Any]:
        return make_pod(self._service, uid, address, self._api.public_key, **marks)

    # Disruptions.

    def scale_down(self) -> None:
        """A replica leaves, and a while later another one is needed."""
        uid = self.mark()
        time.sleep(STEP_SECONDS)
        self.end(uid)
        self.start()

    def roll_out(self) -> None:
        """A new replica takes the place of an old one."""
        self.start()
        time.sleep(STEP_SECONDS)
        self.end(self.mark())

    def drain_node(self) -> None:
        """Two replicas end at once, with no mark before: kubectl drain evicts them."""
        self.start()
        self.start()
        time.sleep(STEP_SECONDS)
        for uid in list(self._addresses)[:2]:
            self.end(uid)


@dataclass(frozen=True)
class Rig:
    """A gateway with its API server and stub replicas."""

    api: Api
    fleet: Fleet
    clients: Clients
    port: int
    metrics_port: int


@contextmanager
def set_up(folder: Path, service: str, **scaling: object) -> Iterator[Rig]:
    """Run a gateway with a service that has no replica yet, while entered."""
    program, block, api = build(folder), claim_block(), Api()
    fleet = Fleet(api, block, service)
    port, metrics_port = find_free_port(), find_free_port()
    with api.serve(), serve_replicas(program, [], folder / "replicas.log", fleet.note_drained) as replicas:
        fleet.replicas = replicas
        api.put(SERVICES, make_service(service, **scaling))
        with serve_gateway(api, port, metrics_port, folder):
            rig = Rig(api, fleet, Clients(program, folder / "clients.log"), port, metrics_port)
            _wait_until(lambda: read_open(rig) is not None)
            yield rig
    block.close()


def disrupt(folder: Path, num_streams: int, at_once: int, num_disruptions: int) -> dict[str, Any]:
    """Return what became of the streams."""
    with set_up(folder, "chat") as rig:
        for _ in range(NUM_REPLICAS):
            rig.fleet.start()
        kinds = (rig.fleet.scale_down, rig.fleet.roll_out, rig.fleet.drain_node)
        pause = num_streams / at_once * TOKENS / 20 / num_disruptions
        flags = {"total": num_streams, "connections": at_once, "tokens": TOKENS}
        with rig.clients.begin("complete", Target(rig.port, key=CLIENT_KEY), **flags) as load:
            _wait_until(lambda: (read_open(rig) or 0) >= at_once / 2)
            for number in range(num_disruptions):
                began = time.monotonic()
                kinds[number % len(kinds)]()
                time.sleep(max(0.0, pause - (time.monotonic() - began)))
            return rig.clients.read(load)


def hold(folder: Path, num_requests: int) -> dict[str, Any]:
    """Return what became of requests for a service at zero, and how many reports of it the operator got."""
    wakes: list[float] = []
    with set_up(folder, "sleeper", minReplicas=0, maxReplicas=4, mode="Automatic") as rig:
        threading.Thread(target=count_wakes, args=(rig, wakes), daemon=True).start()
        flags = {"total": num_requests, "connections": num_requests, "stream": "false"}
        with rig.clients.begin(
            "complete", Target(rig.port, model="sleeper", key=CLIENT_KEY), **flags
        ) as load:
            _wait_until(lambda: (read_open(rig) or 0) >= num_requests, seconds=120)
            time.sleep(WAKE_SECONDS)
            began = time.monotonic()
            rig.fleet.start()
            result = rig.clients.read(load)
            return result | {"wakes": len(wakes), "seconds_to_the_last_answer": time.monotonic() - began}


def count_wakes(rig: Rig, wakes: list[float]) -> None:
    """Add a time whenever the gateway reports to the operator that requests wait where none did."""
    url = f"http://127.0.0.1:{rig.metrics_port}/loads"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {LEADER_TOKEN}"})
    num_open = 0
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        for line in answer:
            before, num_open = num_open, json.loads(line).get("open", {}).get("bench/sleeper", num_open)
            if num_open and not before:
                wakes.append(time.monotonic())


def read_open(rig: Rig) -> int | None:
    """Return the requests in flight at the gateway; None while it does not know its service."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{rig.metrics_port}/metrics") as answer:
            text = answer.read().decode()
    except OSError:
        return None
    lines = [line for line in text.splitlines() if line.startswith(f"{METRIC_GATEWAY_IN_FLIGHT}{{")]
    return int(float(lines[0].split()[-1])) if lines else None


def _wait_until(ask: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > deadline:
            raise TimeoutError("the gateway does not come to what is awaited")
        time.sleep(0.05)


def main() -> int:
    """Print the table and the line. Return 1 if a client lost anything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.disruptions", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--disruptions", type=int, default=50)
    parser.add_argument("--held", type=int, default=10_000)
    add_output(parser)
    flags = parser.parse_args()
    machine = describe_machine()
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory() as folder:
        streams = disrupt(Path(folder), flags.streams, flags.at_once, flags.disruptions)
        held = hold(Path(folder), flags.held)
    for name, found in (("streams", streams), ("held", held)):
        sys.stdout.write(f"{name:8}" + "  ".join(f"{key} {value}" for key, value in found.items()) + "\n")
    result = {
        "commit": read_commit(),
        "date": read_date(),
        "machine": machine,
        "disruptions": flags.disruptions,
    }
    publish(result | {"streams": streams, "held": held}, flags.output)
    is_whole = streams["complete"] == flags.streams and held["complete"] == flags.held and held["wakes"] == 1
    return 0 if is_whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
