"""What an answer of Prometheus says of one service."""

from collections.abc import Iterable

from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.queries import build_signals
from millrace_operator.autoscale.reading import (
    EVERYTHING,
    Reading,
    Sample,
    parse_samples,
    read_signals,
    sort_samples,
)
from millrace_operator.autoscale.windows import DEFAULT_WINDOWS
from millrace_operator.cluster.kinds import ServiceKey

NOW = 1_700_000_000.0
CHAT = ServiceKey("team", "chat")
TTFT = Objective("TimeToFirstToken", 95, 1.0)
PODS = frozenset({"a", "b"})
SHARED = (
    "arrivals",
    "recent_arrivals",
    "received",
    "recent_received",
    "refused",
    "recent_refused",
    "prompt_tokens",
    "generation_tokens",
    TTFT.name,
    f"{TTFT.name} samples",
)
VALUES = {
    "age": NOW - 3,
    "max_sequences": 32.0,
    "kv_tokens": 4096.0,
    "running": 2.0,
    "waiting": 1.0,
    "kv_usage": 0.5,
    "arrivals": 4.5,
}


def sample_all(**changed: float) -> list[Sample]:
    """Every signal of the service team/chat: by pod, with one that is gone, or of the whole."""
    values = VALUES | changed
    samples = []
    for name in (*build_signals(DEFAULT_WINDOWS), TTFT.name, f"{TTFT.name} samples"):
        for pod in [""] if name in SHARED else ["a", "b", "gone"]:
            labels = {"namespace": "team", "service": "chat", "signal": name} | ({"pod": pod} if pod else {})
            samples.append(Sample(labels, values.get(name, 0.25)))
    return samples


def read(samples: Iterable[Sample]) -> Signals:
    return read_signals(Reading(NOW, series=sort_samples(samples)), CHAT, PODS, (TTFT,))


def without(*names: str) -> list[Sample]:
    return [sample for sample in sample_all() if sample.labels["signal"] not in names]


def test_reads_every_signal_of_the_pods_that_exist() -> None:
    signals = read(sample_all())
    assert (signals.replicas, signals.reporting_replicas) == (2, 2)
    assert (signals.running, signals.waiting, signals.kv_usage) == (4.0, 2.0, 0.5)
    assert (signals.max_sequences, signals.kv_tokens) == (32.0, 4096.0)
    assert signals.in_flight == {"a": 3.0, "b": 3.0}
    assert signals.arrivals_per_second == 4.5
    assert [step.pod for step in signals.steps] == ["a", "b"]
    assert signals.latencies[0].objective == TTFT
    assert signals.rejected == {}


def test_samples_of_long_ago_are_those_of_nobody() -> None:
    signals = read(sample_all(age=NOW - 60))
    assert signals.reporting_replicas == 0
    assert signals.running is None
    assert signals.arrival_rate is None
    assert "older than" in signals.rejected["age"]


def test_not_a_number_is_unknown_and_no_zero() -> None:
    item = {"metric": {"signal": "running"}, "value": [NOW, "NaN"]}
    assert parse_samples({"status": "success", "data": {"result": [item]}}) == []
    assert read(without(TTFT.name)).latencies == ()


def rates(**changed: float) -> tuple[float | None, float | None]:
    signals = read(sample_all(**changed))
    return signals.arrivals_per_second, signals.recent_arrivals_per_second


def test_load_that_comes_past_the_gateway_is_seen() -> None:
    """Its series exist at zero, and clients of the headless Service ask replicas themselves."""
    assert rates(arrivals=0.0, recent_arrivals=0.0, received=8.25, recent_received=9.25) == (8.0, 9.0)


def test_one_of_two_gateways_that_is_not_scraped_halves_nothing() -> None:
    assert rates(arrivals=5.0, received=10.25)[0] == 10.0


def test_each_choice_of_a_request_counts() -> None:
    assert rates(arrivals=2.0, received=8.25)[0] == 8.0


def test_what_no_replica_was_ready_for_counts() -> None:
    assert rates(arrivals=6.0, received=0.25)[0] == 6.0


def test_requests_that_are_wrong_are_no_load_at_the_replicas() -> None:
    assert rates(arrivals=0.0, received=50.0, refused=48.0)[0] == 2.0


def test_arrivals_are_known_while_one_side_is() -> None:
    gateways, replicas = ("arrivals", "recent_arrivals"), ("received", "recent_received")
    assert read(without(*gateways)).arrival_rate == 0.0
    assert read(without(*replicas)).arrival_rate == 4.5
    assert read(without(*gateways, *replicas)).arrival_rate is None
    assert read(without("refused")).arrival_rate == 4.5


def test_arrivals_are_found_under_the_names_that_a_scrape_gave_their_labels() -> None:
    gateway = {"namespace": "millrace-system", "signal": "arrivals"}
    for renamed in (
        {"exported_namespace": "team", "service": "chat"},
        {"exported_namespace": "team", "exported_service": "chat", "service": "gateway"},
    ):
        samples = [*without("arrivals"), Sample(gateway | renamed, 7.0)]
        assert read(samples).arrivals_per_second == 7.0


def test_a_service_that_nobody_scrapes_is_unknown_in_every_respect() -> None:
    signals = read_signals(Reading(NOW), CHAT, PODS)
    assert (signals.replicas, signals.arrival_rate, signals.running) == (2, None, None)
    assert "no series of this service" in signals.rejected[EVERYTHING]


def test_no_answer_leaves_everything_unknown_for_its_reason() -> None:
    signals = read_signals(Reading(NOW, failure="it sleeps"), CHAT, PODS)
    assert (signals.replicas, signals.running) == (2, None)
    assert signals.rejected == {EVERYTHING: "it sleeps"}
