"""A load that rises sixfold in two minutes, on small replicas that start in a quarter of a minute.

It is the load of `benchmarks/scaling`, in virtual time.
"""

from collections.abc import Iterator

from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.simulate.engine import Answer
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import fixed_lengths
from millrace_operator.autoscaler.simulate.run import Ours, is_within
from millrace_operator.autoscaler.simulate.workloads import Ramp, Workload
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

LOW, HIGH, STEPS = 11.0, 68.0, 20
QUIET, RISE, TOP = 260.0, 126.0, 60.0
SMALL = Hardware(
    overhead_seconds=0.0005,
    weights_seconds=0.0015,
    token_seconds=0.00026,
    context_seconds=3e-6,
    max_sequences=16,
    kv_tokens=50_000,
    cold_start_seconds=13.0,
    warm_up_seconds=4.0,
)
"""As fitted to the runtime with a fifth of a core: 22 requests a second."""
OBJECTIVES = (Objective("TimeToFirstToken", 95, 2.0), Objective("TimePerOutputToken", 95, 0.2))


def build_workload() -> Workload:
    rises = [LOW + (HIGH - LOW) * (step + 0.5) / STEPS for step in range(STEPS)]
    rates, lasting = (LOW, *rises, HIGH, LOW), (QUIET, *[RISE / STEPS] * STEPS, TOP, 90.0)
    source = Ramp(rates, lasting, fixed_lengths(110, 32, 0.02))
    return Workload("steep", source, sum(lasting), OBJECTIVES, SMALL, 1, 5, 1, QUIET + RISE)


def test_the_replicas_are_there_before_the_load() -> None:
    """In all seeds together: of one alone chance may decide."""
    judged = [answer for seed in range(1, 5) for answer in play(seed)]
    for objective in OBJECTIVES:
        assert sum(is_within(answer, objective) for answer in judged) >= 0.95 * len(judged)


def play(seed: int) -> Iterator[Answer]:
    """Yield the answers to the requests since the load began to rise."""
    workload = build_workload()
    run = workload.play(workload.setting(seed), Ours(Policy(1, 5, OBJECTIVES)))
    return (answer for answer in run.answers if answer.request.at >= QUIET)
