"""One trial: a new service, the ramp of load, and a look at its pods twice a second."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from benchmarks.scaling.cluster import NAMESPACE
from benchmarks.scaling.contestants import Contestant
from benchmarks.scaling.load import Ramp, new_load
from benchmarks.scaling.outcome import Outcome, judge, read_targets
from benchmarks.scaling.replicas import Sample, count_pods
from e2e.cluster.local_cluster import LocalCluster
from e2e.external_metrics import Subject, read_prometheus, render_query
from e2e.service import Service
from testing.traffic import Load, Phase, Stream

LOOK_SECONDS = 0.5
SCRAPED_SECONDS = 90.0
GONE_SECONDS = 120.0
WARM_UP_SECONDS = 20.0
"""A replica computes slowly at first; no HPA is to take that for load."""
FIRST_DECISIONS_SECONDS = 10.0
"""Until a count that was decided at once shows in pods."""
SETTLE_SECONDS = 150.0
"""Longer than the scale-down windows here."""


def run_trial(cluster: LocalCluster, name: str, contestant: Contestant, ramp: Ramp) -> Outcome:
    """Serve a service under the ramp, and judge it. Its name is new, so nothing was learned of it before."""
    service = Service(cluster, NAMESPACE, name)
    contestant.prepare(service)
    service.apply()
    try:
        service.wait_ready()
        wait_scraped(service)
        lead_in(service, contestant, ramp)
        load, samples = run_ramp(service, ramp)
    finally:
        delete(service)
    return judge(contestant.name, load.streams, samples, ramp.seconds, read_targets(service.spec))


def wait_scraped(service: Service) -> None:
    """Wait until Prometheus has seen the first replica, as it has of any service that is not new."""
    query = render_query(Subject(service.namespace, service.name))
    port = service.cluster.ports.prometheus
    service.wait_for("scraped", lambda: read_prometheus(port, query) is not None, SCRAPED_SECONDS)


def lead_in(service: Service, contestant: Contestant, ramp: Ramp) -> None:
    """Send a steady load, which is not judged, until the contestant is ready and has one replica.

    Who keeps more for so little load begins the ramp with them.
    """
    load = new_load(service)
    with sending(load, ramp.lead, ramp.seed):
        time.sleep(WARM_UP_SECONDS)
        contestant.begin(service)
        time.sleep(FIRST_DECISIONS_SECONDS)
        with suppress(AssertionError):
            service.wait_for("settled", lambda: len(list_pods(service)) == 1, SETTLE_SECONDS)
        load.end()


def run_ramp(service: Service, ramp: Ramp) -> tuple[Load, list[Sample]]:
    """Send the ramp, and count the pods until every stream has ended."""
    load, samples = new_load(service), list[Sample]()
    with sending(load, ramp.phases, ramp.seed) as streams:
        while not streams.done():
            num_pods = count_pods(list_pods(service))
            samples.append(Sample(time.monotonic() - load.began, num_pods))
            time.sleep(LOOK_SECONDS)
    return load, samples


@contextmanager
def sending(load: Load, phases: Sequence[Phase], seed: int) -> Iterator[Future[list[Stream]]]:
    """Send a load from another thread while entered; every stream has ended after it.

    Nothing more is sent once the block has failed.
    """
    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(lambda: asyncio.run(load.run(phases, seed)))
        try:
            yield streams
        except BaseException:
            load.end()
            raise
        streams.result()  # an error of the sender's ends the trial


def list_pods(service: Service) -> list[dict[str, object]]:
    """Return all pods of a service, also those that drain."""
    path = f"/api/v1/namespaces/{service.namespace}/pods"
    return service.cluster.api.list(path, f"millrace.dev/service={service.name}")


def delete(service: Service) -> None:
    """Delete a service and its HPA, and wait until the last pod has given its CPU back."""
    service.kubectl("delete", "hpa", service.name, "--ignore-not-found")
    service.delete()
    service.wait_for("gone", lambda: not list_pods(service), GONE_SECONDS)
