"""What the autoscaler learns of a real Prometheus, however that one scrapes: from scrape to signals."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from e2e.real_prometheus import (
    Job,
    Pod,
    RealPrometheus,
    as_ours,
    as_pod_monitor,
    as_service_monitor,
    fixing,
    running,
)
from e2e.scraped import (
    GENERATION_TOKENS,
    PLACEMENT,
    PROMPT_TOKENS,
    STEP_CONTEXT,
    STEP_SECONDS,
    STEP_SEQUENCES,
    STEP_TOKENS,
    STEPS_PER_SECOND,
    TRIALS,
    Foreign,
    Gateway,
    Moment,
    Page,
    Pages,
    Recording,
    Replica,
    serving_pages,
)
from millrace_gateway.route.objects import ServiceKey as GatewayKey
from millrace_kubectl.simulation.prometheus import Prometheus
from millrace_kubectl.simulation.traffic import Past, fetch_history
from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.autoscaler.decide.decision import Decision, Reason
from millrace_operator.autoscaler.run.inventory import Inventory
from millrace_operator.autoscaler.run.settings import Access, PrometheusSettings, ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.autoscaler.signals.observation import Latency, Signals, TrialStep
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import POD, ServiceKey
from millrace_runtime.contract import LABEL_SERVICE
from testing.polling import wait_until
from testing.world import make_pod, make_service, ready_status

OBJECTIVES = {
    "kept": ("TimeToFirstToken", 80, "500ms"),
    "in its bucket": ("TimeToFirstToken", 85, "420ms"),
    "missed": ("TimeToFirstToken", 95, "750ms"),
    "kept per token": ("TimePerOutputToken", 95, "15ms"),
    "missed per token": ("TimePerOutputToken", 90, "10ms"),
    "kept as a whole": ("EndToEndLatency", 95, "1s"),
    "missed in the queue": ("QueueTime", 50, "150ms"),
}
RATE = 5.0
"""Of each replica, in sequences a second."""
RUNNING, WAITING = 3, 2
SECONDS = 40
LATE_SECONDS = 30
WHOLE_SECONDS = 26
"""After a restart, until a window of 20 s has it behind: Prometheus looks for targets after 5 s, and scrapes
those of `five` within 5 more. A window that begins more than a scrape before its first sample is too low."""
CHANGE_AT, SHORTLY_AFTER, RESTART_AT = 16, 24, 25
RECORDED = {"fifteen": 15, "thirty": 30}
"""Seconds between two scrapes. Prometheus' own default is a minute, and most people's 30."""
RECORDED_SECONDS, FILLED_SECONDS, LOST_AT = 170, 76, (40, 55)
"""Two scrapes have come when they are filled. One of each replica at `fifteen` is lost to a restart."""
TICK_SECONDS = 2
"""The operator's own default, for what is recorded."""
LONG_SECONDS = 330
LONG_JOBS = {"fifteen": 15, "thirty": 30, "sixty": 60}


def name_pods(service: str, count: int) -> list[str]:
    return [f"{service}-0123abcdef-7d9f88c4d5-pod{number:02d}" for number in range(count)]


class Stage:
    """Services with two replicas each, a namespace each, and the operator's loop that asks about them."""

    def __init__(self, prometheus: RealPrometheus, pages: Pages, moment: Moment | None = None) -> None:
        """Begin now, or at a moment of the past."""
        self.prometheus, self.pages, self.cache = prometheus, pages, Cache()
        self.clock: Callable[[], float] = moment or time.time
        self._monotonic: Callable[[], float] = moment or time.monotonic
        self.seen: dict[int, dict[str, Signals]] = {}
        self.decided: dict[int, dict[str, Decision]] = {}
        self.restarted_at = 0.0
        self.loop = self.make_loop(self.settings())

    def settings(self) -> PrometheusSettings:
        file, keys = self.prometheus.file, self.prometheus.keys
        return PrometheusSettings(
            self.prometheus.url,
            username_file=file("username"),
            password_file=file("password"),
            ca_file=keys / "ca.crt",
            certificate_file=keys / "admin.crt",
            key_file=keys / "admin.key",
        )

    def make_loop(self, settings: PrometheusSettings) -> ScalingLoop:
        return ScalingLoop(
            self.cache,
            ScalingSettings(settings),
            lambda _: None,
            lambda: True,
            self.clock,
            monotonic=self._monotonic,
        )

    def add_service(self, namespace: str, *jobs: str, pages: Sequence[Page] = ()) -> None:
        """Have a service of two replicas, scraped by these jobs. They show `pages`, or what they do now."""
        objectives = [
            {"metric": metric, "percentile": percentile, "target": target}
            for metric, percentile, target in OBJECTIVES.values()
        ]
        service = make_service(scaling={"mode": "Automatic", "maxReplicas": 8, "objectives": objectives})
        service["metadata"]["namespace"] = namespace
        self.cache.put(service)
        pods = [Pod(namespace, name, "chat") for name in name_pods("chat", 2)]
        pages = pages or [Replica(RATE, RUNNING, WAITING) for _ in pods]
        for pod, page in zip(pods, pages, strict=True):
            self.pages.by_path[pod.path] = page
            self.cache.put(self._make_pod(pod))
        for job in jobs:
            self.prometheus.set_targets(job, pods, self.pages.address)

    def _make_pod(self, pod: Pod) -> dict[str, Any]:
        found = make_pod(pod.name, **ready_status())
        found["metadata"]["namespace"] = pod.namespace
        found["metadata"]["labels"][LABEL_SERVICE] = pod.service
        return found

    def replica(self, namespace: str, number: int) -> Replica:
        page = self.pages.by_path[f"/{namespace}/{name_pods('chat', 2)[number]}"]
        assert isinstance(page, Replica)
        return page

    def interval(self, namespace: str) -> float | None:
        return self.loop._memories[ServiceKey(namespace, "chat")].cadence.interval_seconds

    async def play(
        self, seconds: int, events: Mapping[int, Callable[[], object]], awaited: str | None = None
    ) -> None:
        """Tick once a second; the events happen at their second, and what is seen is kept.

        It goes on for up to LATE_SECONDS until each replica of the namespace `awaited` has been scraped often
        enough since a restart: a busy machine restarts Prometheus slowly.
        """
        began = time.monotonic()
        async with aiohttp.ClientSession() as session:
            for second in range(seconds + LATE_SECONDS + 1):
                await asyncio.sleep(max(0.0, began + second - time.monotonic()))
                if second in events:
                    await asyncio.to_thread(events[second])
                await self._look(session, second)
                if second >= seconds and (awaited is None or self._is_scraped(awaited)):
                    return

    def _is_scraped(self, namespace: str) -> bool:
        signals = self.ending[namespace]
        has_whole_window = time.monotonic() >= self.restarted_at + WHOLE_SECONDS
        return has_whole_window and {steps.pod for steps in signals.steps} == signals.fleet.ready

    async def replay(self, moment: Moment, began: float, seconds: int) -> None:
        """Tick through so many seconds of the past."""
        async with aiohttp.ClientSession() as session:
            for second in range(0, seconds + 1, TICK_SECONDS):
                moment.now = began + second
                await self._look(session, second)

    async def _look(self, session: aiohttp.ClientSession, second: int) -> None:
        await self.loop.tick(session)
        considered = {key.namespace: found for key, found in self.loop.considered.items()}
        self.seen[second] = {name: found.signals for name, found in considered.items()}
        self.decided[second] = {name: found.decision for name, found in considered.items()}

    @property
    def ending(self) -> dict[str, Signals]:
        """What was seen last."""
        return self.seen[max(self.seen)]


def make_prometheus(programs: Mapping[str, Path], folder: Path, jobs: list[Job]) -> RealPrometheus:
    return RealPrometheus(programs["prometheus"], programs["certificates"], folder, jobs)


@pytest.fixture(scope="module")
def stage(programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """All scenes of the short run at once, as they take their time whether or not others run."""
    jobs = [
        Job("two", 2, as_ours()),
        Job("five", 5, as_pod_monitor()),
        Job("pair-a", 2, [*as_ours(), fixing("prometheus_replica", "a")]),
        Job("pair-b", 2, [*as_service_monitor(), fixing("prometheus_replica", "b")]),
        Job("failing", 2, as_ours()),
        Job("shrunk", 2, as_ours()),
        Job("foreign", 2, as_pod_monitor()),
        Job("gateways", 2, as_ours()),
        Job("gateways-again", 2, as_service_monitor()),
    ]
    prometheus = make_prometheus(programs, tmp_path_factory.mktemp("prometheus"), jobs)
    with serving_pages() as pages:
        stage = Stage(prometheus, pages)
        for job in ("two", "five", "failing", "shrunk"):
            stage.add_service(job, job)
        stage.add_service("pair", "pair-a", "pair-b")
        _add_foreign(stage)
        _add_gateways(stage)
        with running(prometheus):
            asyncio.run(stage.play(SECONDS, _list_events(stage), awaited="five"))
            yield stage


@pytest.fixture(scope="module")
def recorded(programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Scrapes of three minutes, taken in at once, and the loop that goes through them."""
    jobs = [Job(name, 2, as_service_monitor()) for name in RECORDED]
    prometheus = make_prometheus(programs, tmp_path_factory.mktemp("recorded"), jobs)
    began = time.time() - RECORDED_SECONDS - 10
    with serving_pages() as pages:
        moment = Moment(began)
        stage = Stage(prometheus, pages, moment)
        recordings = {name: _record(interval, name, began) for name, interval in RECORDED.items()}
        for name, shown in recordings.items():
            stage.add_service(name, name, pages=shown)
        with running(prometheus):
            wait_until(
                "all is recorded",
                lambda: all(one.is_scraped for shown in recordings.values() for one in shown),
            )
            asyncio.run(stage.replay(moment, began, RECORDED_SECONDS))
            yield stage


def _record(interval: int, name: str, began: float) -> list[Recording]:
    """Return the pages of two replicas that were scraped in the past, each at times of its own."""
    recordings = []
    for share in (0.3, 0.8):
        times = [interval * (share + scrape) for scrape in range(RECORDED_SECONDS // interval + 1)]
        if name == "fifteen":
            times = [at for at in times if not LOST_AT[0] <= at < LOST_AT[1]]
        moment = Moment(began)
        replica = Replica(RATE, RUNNING, WAITING, moment)
        recordings.append(Recording(replica, moment, [began + at for at in times]))
    return recordings


@pytest.fixture
def ending(request: pytest.FixtureRequest, namespace: str) -> Signals:
    """What was seen last of a namespace, now or in what was recorded."""
    stage: Stage = request.getfixturevalue("recorded" if namespace in RECORDED else "stage")
    return stage.ending[namespace]


def _add_foreign(stage: Stage) -> None:
    """Pods of others: in a service's namespace, with names that begin like its own, and elsewhere."""
    names = ("chat-7d9f88c4d5-abcde", "chat-vllm-7d9f88c4d5-abcde", "vllm-0")
    pods = [Pod("two", name, component="", container="vllm") for name in names]
    pods.append(Pod("elsewhere", name_pods("chat", 1)[0], component="", container="vllm"))
    for pod in pods:
        stage.pages.by_path[pod.path] = Foreign()
    stage.prometheus.set_targets("foreign", pods, stage.pages.address)


def _add_gateways(stage: Stage) -> None:
    """Two of them, both scraped by both jobs."""
    pods = [
        Pod("millrace", f"millrace-gateway-56ddc7b887-{name}", "", "gateway", "gateway")
        for name in ("c626q", "lpzsm")
    ]
    for pod in pods:
        stage.pages.by_path[pod.path] = Gateway(
            {GatewayKey("five", "chat"): 9.0, GatewayKey("two", "chat"): 1.0}
        )
    for job in ("gateways", "gateways-again"):
        stage.prometheus.set_targets(job, pods, stage.pages.address)


def _list_events(stage: Stage) -> dict[int, Callable[[], object]]:
    def restart() -> None:
        stage.prometheus.stop()
        stage.prometheus.start()
        stage.restarted_at = time.monotonic()

    def change() -> None:
        stage.replica("failing", 1).is_broken = True
        first, second = name_pods("chat", 2)
        stage.prometheus.set_targets("shrunk", [Pod("shrunk", first, "chat")], stage.pages.address)
        stage.cache.drop(POD, "shrunk", second)

    return {RESTART_AT: restart, CHANGE_AT: change}


def latencies(signals: Signals) -> dict[str, Latency]:
    names = {(metric, percentile): name for name, (metric, percentile, _) in OBJECTIVES.items()}
    return {names[x.objective.metric, x.objective.percentile]: x for x in signals.latencies}


@pytest.mark.parametrize("namespace", ["two", "five", "pair", "fifteen", "thirty"])
def test_state_steps_and_shapes_are_right_at_any_interval_and_with_any_labels(ending: Signals) -> None:
    check_state(ending)


def check_state(signals: Signals) -> None:
    """Steps and shapes of answers are right, too."""
    assert signals.reporting == signals.fleet.ready == set(name_pods("chat", 2))
    assert (signals.running, signals.waiting, signals.kv_usage) == (2 * RUNNING, 2 * WAITING, 0.25)
    assert (signals.max_sequences, signals.kv_tokens) == (32, 16000)
    assert signals.prompt_tokens == pytest.approx(PROMPT_TOKENS)
    assert signals.generation_tokens == pytest.approx(GENERATION_TOKENS)
    assert signals.answer_lengths is not None
    assert signals.answer_lengths.answers > 100
    assert signals.answer_lengths.quantile(1.0) == GENERATION_TOKENS
    assert {steps.pod for steps in signals.steps} == signals.fleet.ready
    known = {TrialStep(trial.seconds, trial.num_tokens, trial.num_context_tokens) for trial in TRIALS}
    assert {pod: set(steps) for pod, steps in signals.trial_steps.items()} == dict.fromkeys(
        signals.fleet.ready, known
    )
    for steps in signals.steps:
        found = (steps.seconds, steps.sequences, steps.tokens, steps.context_tokens)
        assert found == pytest.approx((STEP_SECONDS, STEP_SEQUENCES, STEP_TOKENS, STEP_CONTEXT))


@pytest.mark.parametrize(("namespace", "interval"), [("two", 2), ("five", 5), ("pair", 2)])
def test_the_interval_is_that_of_one_scrape_past_a_restart_of_prometheus(
    stage: Stage, namespace: str, interval: int
) -> None:
    assert stage.interval(namespace) == pytest.approx(interval, rel=0.05)


@pytest.mark.parametrize(("namespace", "interval"), list(RECORDED.items()))
def test_a_long_interval_is_that_of_one_scrape_past_one_that_was_lost(
    recorded: Stage, namespace: str, interval: int
) -> None:
    assert recorded.interval(namespace) == pytest.approx(interval, rel=0.05)


@pytest.mark.parametrize(("namespace", "rate"), [("two", 2 * RATE), ("pair", 2 * RATE), ("five", 2 * RATE)])
def test_load_is_counted_once_and_refused_requests_and_other_engines_are_none_of_it(
    stage: Stage, namespace: str, rate: float
) -> None:
    """Of `five`, what exports a gateway's counters reports three times as much: it may be anybody's pod."""
    signals = stage.ending[namespace]
    assert signals.recent_arrivals_per_second == pytest.approx(rate, rel=0.15)
    num_steps = [steps.num_steps for steps in signals.steps]
    assert num_steps == pytest.approx([20 * STEPS_PER_SECOND] * 2, rel=0.15)


@pytest.mark.parametrize("namespace", ["two", "five", "pair", "fifteen"])
def test_objectives_are_judged_by_their_buckets_and_not_by_interpolation(ending: Signals) -> None:
    found = latencies(ending)
    assert {name for name, latency in found.items() if latency.is_known} == {*OBJECTIVES} - {"in its bucket"}
    assert {name for name, latency in found.items() if latency.is_missed} == {
        "missed",
        "missed per token",
        "missed in the queue",
    }
    doubtful = found["in its bucket"]
    assert doubtful.seconds > doubtful.objective.target_seconds
    said = ending.rejected["P85 TimeToFirstToken"]
    assert said == "between the bounds 0.4 s and 0.5 s: choose one of them as its target"


def test_what_fails_to_answer_one_scrape_after_the_other_is_silent_once_its_sample_is_old(
    stage: Stage,
) -> None:
    gone = name_pods("chat", 2)[1]
    soon, late = stage.seen[SHORTLY_AFTER]["failing"], stage.ending["failing"]
    assert (sorted(soon.silent), soon.running) == ([], 2 * RUNNING)
    assert (sorted(late.silent), late.running) == ([gone], RUNNING)
    assert f"of {gone} (none since " in late.rejected["age"]


def test_a_replica_that_is_gone_still_counts_in_the_window_in_which_it_served(stage: Stage) -> None:
    signals = stage.seen[SHORTLY_AFTER]["shrunk"]
    assert signals.reporting == {name_pods("chat", 1)[0]}
    assert 1.3 * RATE < (signals.recent_arrivals_per_second or 0) < 1.9 * RATE


@pytest.mark.parametrize(
    ("scenes", "namespaces"), [("stage", ("two", "five", "pair")), ("recorded", ("fifteen",))]
)
async def test_what_replicas_are_is_read_whatever_labels_a_scrape_adds(
    request: pytest.FixtureRequest, scenes: str, namespaces: tuple[str, ...]
) -> None:
    stage: Stage = request.getfixturevalue(scenes)
    changed: list[ServiceKey] = []
    inventory = Inventory(stage.cache, stage.settings(), changed.append, lambda: True, stage.clock)
    async with aiohttp.ClientSession() as session:
        await inventory.refresh(session)
        await inventory.refresh(session)
    asked = [ServiceKey(namespace, "chat") for namespace in namespaces]
    assert set(asked) <= set(changed)
    assert len(changed) == len(set(changed))
    expected = ReplicaStatus(
        **msgspec.structs.asdict(PLACEMENT), kv_cache_tokens=16000, max_model_length=2048, max_sequences=32
    )
    for key in asked:
        assert inventory.read(key) == dict.fromkeys(name_pods("chat", 2), expected)


async def test_without_its_password_prometheus_says_who_may_ask_and_what_to_set(stage: Stage) -> None:
    settings = replace(stage.settings(), username_file=None, password_file=None)
    loop = stage.make_loop(settings)
    async with aiohttp.ClientSession() as session:
        await loop.tick(session)
    said = loop.considered[ServiceKey("two", "chat")].signals.rejected["every signal"]
    assert "answered 401: " in said
    assert "prometheus.basicAuthSecret" in said


def test_at_the_usual_interval_signals_never_go_missing_and_steps_are_learned_from(recorded: Stage) -> None:
    """`kubectl millrace simulate` reads the same load from what was recorded."""
    filled = [recorded.decided[second]["thirty"] for second in recorded.decided if second >= FILLED_SECONDS]
    assert {decision.reason for decision in filled}.isdisjoint({Reason.SIGNALS_MISSING})
    assert recorded.ending["thirty"].arrivals_per_second == pytest.approx(2 * RATE, rel=0.15)
    interval = RECORDED["thirty"]
    past = Past(recorded.clock(), 4.0 * interval, interval)
    [step] = fetch_history(Prometheus(Access(recorded.settings())), "thirty", "chat", past).steps
    assert step == pytest.approx((2 * RATE, PROMPT_TOKENS, GENERATION_TOKENS), rel=0.15)
    model = recorded.loop._memories[ServiceKey("thirty", "chat")].model
    assert model.num_samples > model.num_tried


@pytest.mark.long
def test_long_intervals_tell_the_same_as_short_ones(programs: Mapping[str, Path], tmp_path: Path) -> None:
    jobs = [Job(name, seconds, as_pod_monitor()) for name, seconds in LONG_JOBS.items()]
    prometheus = make_prometheus(programs, tmp_path, jobs)
    with serving_pages() as pages:
        stage = Stage(prometheus, pages)
        for name in LONG_JOBS:
            stage.add_service(name, name)
        with running(prometheus):
            asyncio.run(stage.play(LONG_SECONDS, {40: prometheus.stop, 42: prometheus.start}))
    for name, seconds in LONG_JOBS.items():
        signals = stage.ending[name]
        check_state(signals)
        assert stage.interval(name) == pytest.approx(seconds, rel=0.05)
        assert signals.arrivals_per_second == pytest.approx(2 * RATE, rel=0.1)
        assert not latencies(signals)["kept"].is_missed
        assert latencies(signals)["missed"].is_missed
