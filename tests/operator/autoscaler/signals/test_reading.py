"""One service's signals, from an answer of Prometheus."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.answers import (
    ARRIVALS,
    WAITING_AT_GATEWAYS,
    PodKey,
    Reading,
    Sample,
    add_gateways,
    parse_samples,
    sort_samples,
)
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_operator.autoscaler.signals.observation import Fleet, Signals, TrialStep
from millrace_operator.autoscaler.signals.queries import (
    ANSWER_LENGTHS,
    SPARED,
    Scope,
    build_load,
    build_state,
    name_buckets,
)
from millrace_operator.autoscaler.signals.reading import EVERYTHING, NO_SERIES, read_signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, NEVER_SEEN, Sighting, Sightings
from millrace_operator.autoscaler.simulate.series import histogram_quantile
from millrace_operator.kube.kinds import ServiceKey
from millrace_runtime.contract import ANSWER_BUCKETS

NOW = 1_700_000_000.0
CHAT = ServiceKey("team", "chat")
TTFT, WHOLE = Objective("TimeToFirstToken", 95, 1.0), Objective("EndToEndLatency", 95, 30.0)
OWNERS = {PodKey("team", pod): CHAT for pod in ("a", "b", "gone")}
FLEET = Fleet({"a": "one", "b": "one"}, frozenset({"a", "b"}))
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


SIGNALS = [
    *ARRIVALS,
    *build_state(DEFAULT_WINDOWS, Scope()),
    *build_load(DEFAULT_WINDOWS, Scope()),
    TTFT.name,
]


def sample_all(buckets: dict[str, float] | None = None, **changed: float) -> list[Sample]:
    """Every signal of the service team/chat: by pod, with one that is gone, or of the whole."""
    values = VALUES | changed
    samples = []
    for name in SIGNALS:
        if name in SHARED:
            samples.append(
                Sample({"namespace": "team", "service": "chat", "signal": name}, values.get(name, 0.25))
            )
            continue
        for pod in ("a", "b", "gone"):
            labels = {"namespace": "team", "pod": pod, "signal": name}
            samples.append(Sample(labels, values.get(name, 0.25)))
    for bound, count in (buckets or {"1.0": 95.0, "+Inf": 100.0}).items():
        labels = {"namespace": "team", "service": "chat", "signal": name_buckets(TTFT.metric), "le": bound}
        samples.append(Sample(labels, count))
    return samples


def read(samples: Iterable[Sample], *objectives: Objective, before: Sightings = NEVER_SEEN) -> Signals:
    reading = Reading(NOW, series=sort_samples(samples, OWNERS))
    return read_signals(reading, CHAT, FLEET, objectives or (TTFT,), before)


def without(*names: str) -> list[Sample]:
    return [sample for sample in sample_all() if sample.labels["signal"] not in names]


def test_reads_every_signal_of_the_pods_that_exist() -> None:
    signals = read(sample_all())
    assert signals.reporting == {"a", "b"}
    assert signals.silent == frozenset()
    assert (signals.running, signals.waiting, signals.kv_usage) == (4.0, 2.0, 0.5)
    assert (signals.max_sequences, signals.kv_tokens) == (32.0, 4096.0)
    assert signals.in_flight == {"a": 3.0, "b": 3.0}
    assert signals.arrivals_per_second == 4.5
    assert [step.pod for step in signals.steps] == ["a", "b"]
    assert signals.latencies[0].objective == TTFT
    assert signals.rejected == {}


@pytest.mark.parametrize("rate", [None, 0.0, 0.5])
def test_an_empty_prometheus_is_a_reason_even_if_gateways_report(rate: float | None) -> None:
    rates = {} if rate is None else dict.fromkeys(ARRIVALS, rate)
    reading = add_gateways(Reading(NOW), {CHAT: rates})
    assert read_signals(reading, CHAT, FLEET).rejected == {EVERYTHING: NO_SERIES}
    resting = read_signals(reading, CHAT, Fleet({}, frozenset()))
    assert resting.arrivals_per_second == rate, "with none Ready only the gateways know"


def test_what_waits_in_gateways_waits_as_in_replicas() -> None:
    samples = sort_samples(sample_all(), OWNERS)
    reading = add_gateways(Reading(NOW, series=samples), {CHAT: {WAITING_AT_GATEWAYS: 40.0}})
    signals = read_signals(reading, CHAT, FLEET)
    assert (signals.running, signals.waiting) == (4.0, 42.0)
    assert signals.in_flight == {"a": 3.0, "b": 3.0}
    nothing = add_gateways(Reading(NOW), {CHAT: {WAITING_AT_GATEWAYS: 40.0}})
    assert read_signals(nothing, CHAT, FLEET).rejected == {EVERYTHING: NO_SERIES}


def test_what_earlier_versions_do_not_count_is_zero_and_not_missing() -> None:
    signals = read(without(*SPARED))
    assert signals.rejected == {}
    assert {(one.looked_up, one.found, one.drafted, one.accepted) for one in signals.steps} == {(0.0,) * 4}
    (first, _) = read(sample_all(step_found=3.0, step_accepted=2.0)).steps
    assert (first.found, first.accepted) == (3.0, 2.0)


def try_out(pod: str, seconds: float, tokens: str, context: str) -> Sample:
    labels = {"namespace": "team", "pod": pod, "tokens": tokens, "context_tokens": context}
    return Sample(labels | {"signal": "trial_steps"}, seconds)


def test_the_steps_that_replicas_tried_are_read_of_those_that_exist() -> None:
    assert read(without("trial_steps")).trial_steps == {}
    assert read(without("trial_steps")).rejected == {}
    trials = [try_out(pod, 0.01, "8", "4160") for pod in ("a", "b", "gone")]
    signals = read([*without("trial_steps"), *trials, try_out("a", 0.01, "many", "8")])
    assert signals.trial_steps == dict.fromkeys(("a", "b"), (TrialStep(0.01, 8.0, 4160.0),))


def test_samples_of_long_ago_are_those_of_nobody() -> None:
    signals = read(sample_all(age=NOW - 60))
    assert signals.reporting == frozenset()
    assert signals.silent == {"a", "b"}
    assert signals.running is None
    assert signals.arrival_rate is None
    assert signals.rejected["age"] == (
        "no samples of the last 15 s of a (none since 22:12:20 UTC) and b (none since 22:12:20 UTC)"
    )


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


@pytest.mark.parametrize(("ready", "expected"), [(frozenset(), 6.0), (frozenset("a"), None)])
def test_without_a_ready_replica_the_gateway_alone_counts_arrivals(
    ready: frozenset[str], expected: float | None
) -> None:
    """A Ready replica without samples has requests that nobody counts."""
    samples = [sample for sample in sample_all(arrivals=6.0) if not sample.pod]
    fleet = Fleet({"a": "one"}, ready)
    signals = read_signals(Reading(NOW, series=sort_samples(samples, OWNERS)), CHAT, fleet, (TTFT,))
    assert signals.arrival_rate == expected


def test_requests_that_are_wrong_are_no_load_at_the_replicas() -> None:
    assert rates(arrivals=0.0, received=50.0, refused=48.0)[0] == 2.0


def test_arrivals_are_known_while_one_side_is() -> None:
    gateways, replicas = ("arrivals", "recent_arrivals"), ("received", "recent_received")
    assert read(without(*gateways)).arrival_rate == 0.0
    assert read(without(*replicas)).arrival_rate == 4.5
    assert read(without(*gateways, *replicas)).arrival_rate is None
    assert read(without("refused")).arrival_rate == 4.5


def test_pods_belong_to_services_by_what_the_api_server_says_and_those_of_others_to_none() -> None:
    """Whatever labels `service` their series have, or none."""
    foreign = [
        Sample({"namespace": namespace, "pod": pod, "service": "chat", "signal": "running"}, 900.0)
        for namespace, pod in (("team", "chat-vllm-7d9f88c4d5-abcde"), ("elsewhere", "a"))
    ]
    assert read([*sample_all(), *foreign]).running == 4.0
    assert [*sort_samples([*sample_all(), *foreign], OWNERS)] == [CHAT]


def test_a_failed_scrape_ends_the_series_and_the_sample_before_is_still_fresh() -> None:
    before = NEVER_SEEN.observe([Sighting("a", "", NOW - 6), Sighting("b", "", NOW - 6)], ["a", "b"])
    kept = [x for x in sample_all() if (x.labels["signal"], x.pod) != ("age", "b")]
    signals = read(kept, before=before)
    assert (signals.reporting, signals.running) == ({"a", "b"}, 4.0)
    late = NEVER_SEEN.observe([Sighting("b", "", NOW - 16)], ["a", "b"])
    signals = read(kept, before=late)
    assert (signals.reporting, signals.silent, signals.running) == ({"a"}, {"b"}, 2.0)
    assert signals.rejected["age"] == "no samples of the last 15 s of b (none since 22:13:04 UTC)"


def test_of_two_that_scrape_a_pod_one_gives_the_times() -> None:
    times = {"a": NOW - 3, "b": NOW - 1}
    twice = [
        Sample({"namespace": "team", "pod": "a", "signal": "age", "prometheus_replica": name}, at)
        for name, at in times.items()
    ]
    signals = read([x for x in sample_all() if x.labels["signal"] != "age"] + twice)
    assert signals.reporting == {"a"}
    assert signals.sampled_at == {"a": NOW - 3}


LENGTHS = {str(bound): 30.0 if bound < 200 else 90.0 for bound in ANSWER_BUCKETS} | {"+Inf": 90.0}


def read_answer_lengths(counts: dict[str, float], *objectives: Objective) -> AnswerLengths | None:
    labels = {"namespace": "team", "service": "chat", "signal": ANSWER_LENGTHS}
    lengths = [Sample({**labels, "le": le}, count) for le, count in counts.items()]
    return read(sample_all() + lengths, *objectives).answer_lengths


def test_the_lengths_of_answers_are_read_for_the_objectives_that_rest_on_them() -> None:
    found = read_answer_lengths(LENGTHS, TTFT, WHOLE)
    assert found is not None
    assert (found.answers, found.quantile(0.3), found.quantile(1.0)) == (90.0, 1.0, 200.0)
    assert found.quantile(0.5) == pytest.approx(150 * (200 / 150) ** 0.25)
    assert read_answer_lengths(LENGTHS, TTFT) is None
    assert read_answer_lengths(dict.fromkeys(LENGTHS, 0.0), WHOLE) is None


def test_lengths_that_are_missing_are_named_where_they_are_needed() -> None:
    assert read(sample_all(), WHOLE).rejected[ANSWER_LENGTHS] == "no samples"
    assert ANSWER_LENGTHS not in read(sample_all(), TTFT).rejected


def find_quantile(share: float, buckets: dict[str, float]) -> float:
    """As Prometheus finds it."""
    bounds, counts = [float(bound) for bound in buckets], [*buckets.values()]
    each = [more - fewer for fewer, more in pairwise([0.0, *counts])]
    found = histogram_quantile(share, bounds[:-1], each)
    assert found is not None
    return found


def judge(target: float, buckets: dict[str, float], percentile: int = 95) -> tuple[bool, bool, str | None]:
    """Whether an objective is known and missed by these buckets of a hundred requests, and the doubt."""
    objective = Objective("TimeToFirstToken", percentile, target)
    samples = sample_all(buckets, **{TTFT.name: find_quantile(percentile / 100, buckets)})
    for sample in samples:
        if sample.labels["signal"] == TTFT.name:
            sample.labels["signal"] = objective.name
    (latency,) = read(samples, objective).latencies
    return latency.is_known, latency.is_missed, latency.doubt


@pytest.mark.parametrize(
    ("target", "buckets", "is_missed"),
    [
        (0.5, {"0.5": 95.0, "+Inf": 100.0}, False),
        (0.5, {"0.5": 94.0, "+Inf": 100.0}, True),
        (0.6, {"0.5": 95.0, "0.75": 99.0, "+Inf": 100.0}, False),
        (0.6, {"0.5": 20.0, "0.75": 94.0, "+Inf": 100.0}, True),
        (0.6, {"0.5": 20.0, "0.75": 95.0, "+Inf": 100.0}, None),
        (1.0, {"1": 95.0, "+Inf": 100.0}, False),
        (5000.0, {"2560.0": 94.0, "+Inf": 100.0}, None),
        (0.0005, {"0.001": 94.0, "+Inf": 100.0}, True),
        (0.0005, {"0.001": 96.0, "+Inf": 100.0}, None),
    ],
)
def test_an_objective_is_judged_by_the_bounds_next_to_its_target(
    target: float, buckets: dict[str, float], *, is_missed: bool | None
) -> None:
    found = judge(target, buckets)
    assert found[:2] == (is_missed is not None, bool(is_missed))
    assert (found[2] is None) == (is_missed is not None)


def test_an_uncertain_histogram_names_the_targets_that_it_can_judge() -> None:
    inside = judge(0.6, {"0.5": 20.0, "0.75": 95.0, "+Inf": 100.0})[2]
    assert inside == "between the bounds 0.5 s and 0.75 s: choose one of them as its target"
    under = judge(0.0005, {"0.001": 96.0, "+Inf": 100.0})[2]
    assert under == "its target is under the first bound of the histogram: choose 0.001 s or more"
    above = judge(5000.0, {"2560.0": 94.0, "+Inf": 100.0})[2]
    assert above == "its target is above the last bound of the histogram: choose at most 2560 s"


def test_too_few_requests_say_nothing_and_leave_no_doubt_about_the_bounds() -> None:
    assert judge(0.6, {"0.5": 2.0, "0.75": 9.0, "+Inf": 9.0}) == (False, False, None)
    assert judge(0.5, {"0.5": 5.0, "+Inf": 9.0}) == (False, False, None)


def test_a_few_requests_are_enough_where_nearly_all_are_late() -> None:
    """Of nine, P95 allows half a one: six or more come by chance in no thousand minutes."""
    assert judge(0.5, {"0.5": 1.0, "+Inf": 9.0}) == (True, True, None)
    assert judge(0.5, {"0.5": 0.0, "+Inf": 4.0}) == (False, False, None)


def test_a_latency_that_replicas_do_not_export_is_unknown_once_they_have_answered() -> None:
    """As of a version from before they measured it. The histogram of an idle replica is there, at zero."""
    queue = Objective("QueueTime", 95, 0.5)
    signals = read(sample_all(), TTFT, queue)
    assert signals.unanswered == {queue.name}
    assert signals.rejected[queue.name] == "replicas answered requests, and do not export it"
    assert not read(without("generation_tokens"), TTFT, queue).unanswered
    labels = {"namespace": "team", "service": "chat", "signal": name_buckets(queue.metric), "le": "+Inf"}
    assert not read([*sample_all(), Sample(labels, 0.0)], TTFT, queue).unanswered


@pytest.mark.parametrize(("seconds", "is_missed"), [(0.24, False), (2.0, True)])
def test_a_bound_that_a_part_of_the_replicas_has_says_nothing(seconds: float, *, is_missed: bool) -> None:
    """During a rollout to a version with more bounds: nine of ten replicas count nothing at 1 s.

    The percentile rests on the bounds that all have, as Prometheus lets no bucket have less than one below.
    """
    samples = sample_all({"1.0": 10.0, "+Inf": 100.0}, **{TTFT.name: seconds})
    (latency,) = read(samples, TTFT).latencies
    assert (latency.is_known, latency.is_missed) == (True, is_missed)


def test_one_question_without_answer_leaves_its_own_signals_unknown() -> None:
    unknown = dict.fromkeys(build_load(DEFAULT_WINDOWS, Scope()), "too many samples")
    samples = [x for x in sample_all() if x.labels["signal"] not in unknown]
    signals = read_signals(
        Reading(NOW, series=sort_samples(samples, OWNERS), unknown=unknown), CHAT, FLEET, (TTFT,)
    )
    assert (signals.running, len(signals.latencies)) == (4.0, 1)
    assert signals.arrival_rate == 4.5  # by the gateways' count
    assert signals.rejected["received"] == "too many samples"


def test_without_an_answer_about_replicas_none_reports() -> None:
    """Though they were seen a moment ago."""
    state = dict.fromkeys(build_state(DEFAULT_WINDOWS, Scope()), "it is slow")
    before = NEVER_SEEN.observe([Sighting("a", "", NOW - 1)], ["a", "b"])
    signals = read_signals(Reading(NOW, unknown=state), CHAT, FLEET, before=before)
    assert (signals.reporting, signals.silent, signals.waiting) == (frozenset(), {"a", "b"}, None)
    assert signals.rejected["age"] == "it is slow"


def test_a_service_that_nobody_scrapes_is_unknown_in_every_respect() -> None:
    signals = read_signals(Reading(NOW), CHAT, FLEET)
    assert (signals.fleet, signals.arrival_rate, signals.running) == (FLEET, None, None)
    assert "no series of this service" in signals.rejected[EVERYTHING]


def test_no_answer_leaves_everything_unknown_for_its_reason() -> None:
    signals = read_signals(Reading(NOW, failure="it sleeps"), CHAT, FLEET)
    assert (signals.fleet, signals.running) == (FLEET, None)
    assert signals.rejected == {EVERYTHING: "it sleeps"}
