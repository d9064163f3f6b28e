"""The simulated replicas and chats of the comparison of routing."""

from benchmarks.routing.policies import LeastLoad, PrefixAffine, View
from benchmarks.routing.replica import BlockCache, Job, SimulatedReplica
from benchmarks.routing.run import Load, Run
from benchmarks.routing.workload import BLOCK_TOKENS, SHARED, Conversation, Writer
from millrace_operator.autoscaler.simulate.agenda import Agenda


def test_a_full_cache_evicts_the_end_of_what_was_used_least_recently() -> None:
    cache = BlockCache(6)
    old, new = [(1, place) for place in range(3)], [(2, place) for place in range(3)]
    assert cache.hold(old)
    assert cache.hold(new)
    assert not cache.hold([(3, 0)])
    cache.release(old)
    cache.release(new)
    assert cache.hold([(3, 0), (3, 1)])
    assert (cache.count_found(old), cache.count_found(new)) == (1, 3)
    assert cache.usage == 2 / 6


def test_a_conversations_next_turn_finds_the_turns_before() -> None:
    agenda, ended = Agenda(), list[Job]()
    replica = SimulatedReplica(agenda)
    conversation = Conversation(1, 0, 10 * BLOCK_TOKENS, [(32, 16), (8, 4)], [0.0, 0.0])
    other = Conversation(2, 0, 10 * BLOCK_TOKENS, [(32, 16)], [0.0])
    for one in (conversation, conversation, other):
        prompt = one.ask()
        assert prompt is not None
        replica.submit(prompt, ended.append)
        agenda.run_until(agenda.now + 60)
    assert [job.num_found // BLOCK_TOKENS for job in ended] == [0, 13, 10]
    assert conversation.ask() is None


def test_equal_seeds_write_equal_conversations_and_popularity_falls_with_rank() -> None:
    def write(seed: int) -> list[tuple[int, object]]:
        writer = Writer(SHARED, seed)
        return [(one.system, one.turns) for one in (writer.write() for _ in range(500))]

    assert write(1) == write(1) != write(2)
    systems = [system for system, _ in write(1)]
    assert systems.count(0) > 3 * systems.count(8) > 0


def test_the_affine_rule_finds_more_than_the_least_load_and_balances() -> None:
    load = Load(120, rate=1.2)
    least, affine = (
        Run(SHARED, load, policy, seed=1, num_gateways=2).run() for policy in (LeastLoad, PrefixAffine)
    )
    assert affine.found_share > least.found_share + 0.1
    assert affine.mean_ttft < 0.6 * least.mean_ttft
    assert affine.highest_load < 1.5


def test_ties_rotate_under_the_least_load() -> None:
    prompt = Writer(SHARED, 1).write().ask()
    assert prompt is not None
    views = [View(own, 0, 0, 0.0, 0, 1) for own in (1, 0, 0, 2)]
    policy = LeastLoad()
    assert {policy.choose(prompt, views) for _ in range(4)} == {1, 2}
