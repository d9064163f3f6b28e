"""Whose turn it is to be asked: silent pods come rarely, and after the others."""

from millrace_operator.cluster.kinds import ServiceKey
from millrace_operator.turns import MOST_ROUNDS, Asked, Turns

SHOP, BANK = ServiceKey("shop", "chat"), ServiceKey("bank", "chat")


def pod(name: str, service: ServiceKey = SHOP) -> Asked:
    return Asked(service, name, "10.0.0.1")


def keep_silent(turns: Turns, one: Asked, num_rounds: int) -> list[int]:
    """Return in which of the rounds it is asked, and never answers."""
    asked = []
    for number in range(num_rounds):
        if turns.take([one]):
            turns.note(one, is_silent=True)
            asked.append(number)
    return asked


def test_a_silent_pod_is_asked_ever_more_rarely_and_never_given_up() -> None:
    assert keep_silent(Turns(), pod("a"), 100) == [0, 2, 6, 14, 30, 62, 94]
    assert MOST_ROUNDS == 32


def test_an_answer_ends_the_silence() -> None:
    turns = Turns()
    keep_silent(turns, pod("a"), 30)
    assert turns.take([pod("a")]) == [pod("a")]
    turns.note(pod("a"), is_silent=False)
    assert turns.take([pod("a")]) == [pod("a")], "in the very next round"
    assert keep_silent(turns, pod("a"), 4) == [0, 2], "and the next silence is the first one"


def test_who_answers_comes_before_who_was_silent() -> None:
    turns, silent, others = Turns(), pod("a"), [pod("b"), pod("c")]
    turns.take([silent])
    turns.note(silent, is_silent=True)
    assert turns.take([silent, *others]) == others
    assert turns.take([silent, *others]) == [*others, silent]


def test_a_service_with_many_pods_waits_with_most_of_them() -> None:
    many = [pod(f"a{number}") for number in range(3)]
    first, *rest = many
    assert set(Turns().take([*many, pod("z", BANK)])[:2]) == {first, pod("z", BANK)}
    assert Turns().take([*many, pod("z", BANK)])[2:] == rest


def test_a_pod_that_was_gone_meanwhile_is_as_new() -> None:
    turns = Turns()
    keep_silent(turns, pod("a"), 30)
    assert turns.take([]) == []
    assert keep_silent(turns, pod("a"), 3) == [0, 2]
