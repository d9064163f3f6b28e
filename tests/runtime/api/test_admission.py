from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.api.admission import Admission, Refusal, Ticket


def test_bounds_are_told_with_a_time_to_come_back() -> None:
    admission = Admission(max_sequences=2, max_queued_tokens=100, max_body_bytes=10_000)
    admission.observe_step(num_tokens=20, seconds=1.0)
    first = admission.admit(4 * 90)
    assert isinstance(first, Ticket)
    refused = admission.admit(4 * 11)
    assert isinstance(refused, Refusal)
    assert refused.retry_after_seconds == 5  # 90 tokens at 20 a second
    assert isinstance(admission.admit(4 * 10), Ticket)
    assert isinstance(admission.admit(0), Refusal)
    admission.start(first, 90)
    assert admission.num_queued_tokens == 10


def test_a_long_prompt_alone_is_admitted() -> None:
    admission = Admission(max_sequences=9, max_queued_tokens=10, max_body_bytes=10_000)
    assert isinstance(admission.admit(4 * 1000), Ticket)
    assert isinstance(admission.admit(4), Refusal)


def test_a_refused_resize_leaves_the_ticket_and_a_shrinking_one_is_never_refused() -> None:
    admission = Admission(max_sequences=4, max_queued_tokens=10, max_body_bytes=10_000)
    one, two = admission.admit(4 * 5), admission.admit(4 * 5)
    assert isinstance(one, Ticket)
    assert isinstance(two, Ticket)
    assert admission.resize(one, 1, 6) is not None
    assert (one.num_sequences, one.num_tokens) == (1, 5)
    assert admission.resize(one, 4, 5) is not None
    assert admission.resize(one, 1, 2) is None


@given(st.lists(st.tuples(st.sampled_from("asrxgd"), st.integers(0, 5), st.integers(0, 50)), max_size=60))
def test_what_is_held_is_the_sum_of_tickets_and_never_negative(actions: list[tuple[str, int, int]]) -> None:
    admission, tickets = Admission(8, 100, 300), [Ticket()]
    for action, number, tokens in actions:
        ticket = tickets[number % len(tickets)]
        if action == "a" and isinstance(admitted := admission.admit(tokens), Ticket):
            tickets.append(admitted)
        elif action == "s":
            admission.start(ticket, tokens)
        elif action == "r":
            admission.resize(ticket, number, tokens)
        elif action == "g":
            admission.grow(ticket, tokens * 5)
        elif action == "d":
            admission.drop_body(ticket)
        elif action == "x":
            admission.release(ticket)
        assert admission.num_sequences == sum(t.num_sequences for t in tickets) <= 8
        held = [t.num_body_bytes for t in tickets]
        assert admission.num_body_bytes == sum(held)
        assert sum(held) <= 300 or sum(map(bool, held)) == 1
        assert admission.num_queued_tokens == sum(t.num_tokens for t in tickets)
        assert min(min(t.num_sequences, t.num_tokens) for t in tickets) >= 0
