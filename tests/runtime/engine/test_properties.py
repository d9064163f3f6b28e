"""Whatever the load and the limits: all ends, nothing is lost, no text depends on its neighbours."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_runtime.protocol.messages import Generate
from millrace_runtime.protocol.step import Limits
from tests.runtime.engine.engine_driver import VOCABULARY, Driver, driver, expected, request

TOKENS = st.integers(0, VOCABULARY - 1)


@dataclass(frozen=True)
class Load:
    bounds: Limits
    budget: int
    arrivals: list[tuple[int, Generate]]
    """(step, request)"""
    aborts: dict[int, int]
    """step: sequence id"""


@st.composite
def loads(draw: st.DrawFn, *, with_aborts: bool = False) -> Load:
    block_size = draw(st.integers(1, 5))
    bounds = Limits(
        num_blocks=draw(st.integers(6, 24)),
        block_size=block_size,
        num_slots=draw(st.integers(1, 5)),
        depth=draw(st.integers(1, 3)),
        max_model_length=draw(st.integers(8, 40)),
        vocabulary_size=VOCABULARY,
    )
    longest = min(bounds.max_model_length, bounds.num_blocks * block_size) - 1
    requests = draw(
        st.lists(
            st.tuples(
                st.integers(0, 20),
                st.lists(TOKENS, min_size=1, max_size=longest),
                st.integers(1, 30),
                st.lists(TOKENS, max_size=2),
            ),
            min_size=1,
            max_size=10,
        )
    )
    arrivals = [(at, request(i, prompt, count, stop)) for i, (at, prompt, count, stop) in enumerate(requests)]
    victims = st.integers(0, len(requests) - 1)
    aborts = draw(st.dictionaries(st.integers(0, 30), victims, max_size=4)) if with_aborts else {}
    return Load(bounds, draw(st.integers(1, 24)), sorted(arrivals, key=lambda pair: pair[0]), aborts)


def play(load: Load) -> Driver:
    engine = driver(load.bounds, load.budget)
    arrivals = list(load.arrivals)
    for step in range(40):
        while arrivals and arrivals[0][0] <= step:
            engine.add(arrivals.pop(0)[1])
        if step in load.aborts:
            engine.scheduler.abort(load.aborts[step])
        engine.step()
    engine.run()
    return engine


def assert_nothing_is_held(engine: Driver) -> None:
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert (stats.num_waiting, stats.num_running) == (0, 0)


@settings(max_examples=150, deadline=None)
@given(loads())
def test_every_request_ends_with_the_text_it_would_have_alone(load: Load) -> None:
    engine = play(load)
    for _, generate in load.arrivals:
        text, reason = expected(generate, engine.scheduler.max_model_length)
        assert engine.texts[generate.sequence_id] == text
        assert engine.finished[generate.sequence_id] == reason
    assert_nothing_is_held(engine)


@settings(max_examples=100, deadline=None)
@given(loads())
def test_plans_keep_to_the_budget_and_the_slots(load: Load) -> None:
    engine = play(load)
    for plan in engine.plans:
        assert 0 < sum(row.num_tokens for row in plan.rows) <= load.budget
        assert len(plan.rows) <= load.bounds.num_slots
    assert [plan.step for plan in engine.plans] == list(range(len(engine.plans)))


@settings(max_examples=100, deadline=None)
@given(loads(with_aborts=True))
def test_aborts_free_what_was_held_and_change_no_other_text(load: Load) -> None:
    engine = play(load)
    for _, generate in load.arrivals:
        text, reason = expected(generate, engine.scheduler.max_model_length)
        said = engine.texts[generate.sequence_id]
        if engine.finished.get(generate.sequence_id) is None:
            assert generate.sequence_id in load.aborts.values()
            assert said == text[: len(said)]
        else:
            assert (said, engine.finished[generate.sequence_id]) == (text, reason)
    assert_nothing_is_held(engine)


@settings(max_examples=60, deadline=None)
@given(loads())
def test_the_oldest_comes_forward_in_every_step(load: Load) -> None:
    engine = driver(load.bounds, load.budget)
    for _, generate in load.arrivals:
        engine.add(generate)
    while engine.scheduler.has_work:
        oldest = engine.scheduler._oldest()
        computed = oldest.num_computed if oldest else 0
        pending = oldest.num_pending if oldest else 0
        engine.step()
        if oldest is not None and oldest.tenancy is not None:
            assert oldest.num_computed > computed or pending
