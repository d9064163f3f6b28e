import pytest

from testing.polling import wait_until, wait_until_async

pytestmark = pytest.mark.reads("testing/polling.py")


def test_the_first_true_answer_is_returned() -> None:
    answers = iter(["", "", "there", "later"])
    assert wait_until("an answer", lambda: next(answers)) == "there"


def test_a_failure_says_what_was_awaited_for_how_long_and_what_came() -> None:
    with pytest.raises(AssertionError, match=r"^not in 0\.1 s: two pods; the last answer was \[\]$"):
        wait_until("two pods", list, 0.1)


def test_an_exception_ends_the_wait_unless_it_is_to_be_outlived() -> None:
    answers = iter([OSError("away"), "there"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert wait_until("an answer", ask, outlives=(OSError,)) == "there"
    with pytest.raises(StopIteration):
        wait_until("an answer", ask, outlives=(OSError,))


async def test_the_same_beside_an_event_loop() -> None:
    answers = iter([0, 0, 7])
    assert await wait_until_async("an answer", lambda: next(answers)) == 7
    with pytest.raises(AssertionError, match="not in 0 s: any; the last answer was None"):
        await wait_until_async("any", lambda: None, 0)
