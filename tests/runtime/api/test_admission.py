from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.api.admission import MOST_COUNTS, Admission, Refusal, Ticket
from millrace_runtime.api.settings import ApiSettings

LENGTH = 4096
"""Of the model."""


def open_admission(
    max_sequences: int = 9,
    max_queued_tokens: int = 1 << 20,
    max_body_bytes: int = 128 << 20,
    max_event_bytes: int = 1000,
) -> Admission:
    return Admission(max_sequences, max_queued_tokens, max_body_bytes, max_event_bytes)


def admit(admission: Admission, num_body_bytes: int = 0) -> Ticket:
    """Admit a request whose body has arrived so far; what it is refused is an error here."""
    ticket = Ticket()
    assert admission.admit(ticket) is None
    assert admission.grow(ticket, num_body_bytes, max_tokens=LENGTH) is None
    return ticket


def test_bounds_are_told_with_a_time_to_come_back() -> None:
    admission = open_admission(max_sequences=2, max_queued_tokens=100)
    admission.observe_step(num_tokens=20, seconds=1.0)
    first, second = admit(admission, 4 * 90), admit(admission)
    refused = admission.grow(second, 4 * 11, max_tokens=LENGTH)
    assert isinstance(refused, Refusal)
    assert refused.retry_after_seconds == 5  # 90 tokens at 20 a second
    assert admission.grow(second, 4 * 10, max_tokens=LENGTH) is None
    assert isinstance(admission.admit(Ticket()), Refusal)
    admission.start(first, 90)
    assert admission.num_queued_tokens == 10


def test_who_only_counts_tokens_leaves_the_sequences_their_places() -> None:
    admission, tickets = open_admission(max_sequences=MOST_COUNTS + 1), [Ticket() for _ in range(MOST_COUNTS)]
    assert [admission.admit_count(ticket) for ticket in tickets] == [None] * MOST_COUNTS
    refused = Ticket()
    assert isinstance(admission.admit_count(refused), Refusal)
    admission.release(refused)
    admit(admission)
    admission.release(tickets[0])
    assert admission.admit_count(Ticket()) is None


def test_a_long_prompt_alone_is_admitted() -> None:
    admission = open_admission(max_queued_tokens=10)
    admit(admission, 4 * 1000)
    assert admission.grow(admit(admission), 4, max_tokens=LENGTH) is not None


def test_a_large_body_stands_for_no_more_tokens_than_the_model_takes() -> None:
    admission = open_admission()
    admit(admission, 8 << 20)
    assert admission.num_queued_tokens == LENGTH


def test_the_default_bounds_let_bodies_use_the_memory_that_is_theirs() -> None:
    bounds = ApiSettings(served_name="tiny")
    admission = open_admission(bounds.max_requests, bounds.max_queued_tokens, bounds.max_body_memory)
    for size, number in ((bounds.max_body_bytes, 8), (1 << 20, 64)):
        for _ in range(number):
            admit(admission, size)
    assert admission.num_body_bytes == bounds.max_body_memory
    refused = admission.grow(admit(admission), 1, max_tokens=LENGTH)
    assert isinstance(refused, Refusal)
    assert "bytes of request bodies" in refused.message


def test_a_refused_resize_leaves_the_ticket_and_a_shrinking_one_is_never_refused() -> None:
    admission = open_admission(max_sequences=4, max_queued_tokens=10)
    one, _two = admit(admission, 4 * 5), admit(admission, 4 * 5)
    assert admission.resize(one, 1, 6) is not None
    assert (one.num_sequences, one.num_tokens) == (1, 5)
    assert admission.resize(one, 4, 5) is not None
    assert admission.resize(one, 1, 2) is None


def test_answers_that_nobody_reads_keep_no_sequence_but_bound_what_is_admitted() -> None:
    admission = open_admission(max_sequences=1, max_event_bytes=1000)
    slow = admit(admission)
    admission.hold_events(slow, 1000)
    admission.end(slow)
    other = admit(admission)
    admission.end(other)
    admission.hold_events(other, 1)
    refused = admission.admit(Ticket())
    assert isinstance(refused, Refusal)
    assert "clients have not read 1001 bytes of answers, and the limit is 1000" in refused.message
    admission.release(slow)
    assert admission.admit(Ticket()) is None


@given(st.lists(st.tuples(st.sampled_from("asrxgdeh"), st.integers(0, 5), st.integers(0, 50)), max_size=60))
def test_what_is_held_is_the_sum_of_tickets_and_never_negative(actions: list[tuple[str, int, int]]) -> None:
    admission, tickets = open_admission(8, 100, 300), [Ticket()]
    for action, number, tokens in actions:
        ticket = tickets[number % len(tickets)]
        if action == "a":
            tickets.append(Ticket())
            admission.admit(tickets[-1])
        elif action == "s":
            admission.start(ticket, tokens)
        elif action == "r":
            admission.resize(ticket, number, tokens)
        elif action == "g":
            admission.grow(ticket, tokens * 5, max_tokens=10)
        elif action == "d":
            admission.drop_body(ticket)
        elif action == "e" and ticket.num_sequences:
            admission.end(ticket)
        elif action == "h":
            admission.hold_events(ticket, tokens)
        elif action == "x":
            admission.release(ticket)
        assert admission.num_sequences == sum(t.num_sequences for t in tickets) <= 8
        assert admission.num_event_bytes == sum(t.num_event_bytes for t in tickets)
        held = [t.num_body_bytes for t in tickets]
        assert admission.num_body_bytes == sum(held)
        assert sum(held) <= 300 or sum(map(bool, held)) == 1
        assert admission.num_queued_tokens == sum(t.num_tokens for t in tickets)
        assert min(min(t.num_sequences, t.num_tokens) for t in tickets) >= 0
