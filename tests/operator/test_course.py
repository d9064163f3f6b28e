"""How a download gets on, what is told where it stands still or begins anew, and what counts as progress."""

import json
from itertools import pairwise

from millrace_operator.course import STALL_SECONDS, STEP_SECONDS, Course
from millrace_operator.fetches import read_answer
from millrace_operator.reconcile.snapshot import Fetched

GIGA = 10**9
TOTAL = 100 * GIGA
START = 1767225600.0
"""2026-01-01, in seconds since 1970."""


def answer(at: float, done: float, total: int = TOTAL) -> Fetched:
    return Fetched(total, int(done), 300_000_000, START + at)


def follow(*answers: Fetched, began: float | None = None) -> list[Course]:
    courses = [Course.begin(answers[0])]
    for one in answers[1:]:
        courses.append(courses[-1].go_on(one, began))
    return courses


def count_told(courses: list[Course]) -> int:
    return sum(one.told is not other.told for one, other in pairwise(courses))


def test_a_download_that_stands_still_says_since_when_and_once() -> None:
    still = [answer(100 + seconds, 30 * GIGA) for seconds in range(0, 1800, 2)]
    courses = follow(answer(0, 0), *still)
    assert count_told(courses) == 2, "the 30 %, and that it stays there"
    text = "30 % of 100.0 GB, and nothing more since 2026-01-01T00:01:40Z"
    assert courses[-1].told.describe() == text
    assert courses[-1].told.at == START + 100, "no progress"
    told = {round(one.last.at - START): one.told for one in courses}
    assert told[int(100 + STALL_SECONDS - 2)].describe() == "30 % of 100.0 GB, 300.0 MB/s"
    moved = courses[-1].go_on(answer(2000, 30 * GIGA + 1))
    assert moved.told == answer(2000, 30 * GIGA + 1), "it is told at once that it goes on"


def test_all_of_a_model_is_not_told_to_stand_still() -> None:
    courses = follow(answer(0, TOTAL), answer(600, TOTAL))
    assert courses[-1].told == answer(0, TOTAL)


def test_one_that_begins_anew_is_told_with_what_it_has() -> None:
    courses = follow(answer(0, 95 * GIGA), answer(2, 0))
    assert courses[-1].told.percent == 0
    assert courses[-1].told.at == START, "to lose what was there is no progress"
    courses = follow(answer(0, 95 * GIGA), answer(2, 94 * GIGA), answer(STEP_SECONDS, 94 * GIGA))
    assert [one.told.percent for one in courses] == [95, 95, 94]


def test_what_was_lost_counts_again_once() -> None:
    again = [answer(100 + step, step * GIGA) for step in range(0, 50, 10)]
    courses = follow(answer(0, 50 * GIGA), *again)
    assert courses[-1].told.at == START + 140


def test_who_begins_anew_again_and_again_gets_no_farther_until_there_is_new_ground() -> None:
    def run(number: int) -> list[Fetched]:
        return [answer(1000 * number + step, step * GIGA) for step in range(51)]

    courses = follow(*(one for number in range(20) for one in run(number)))
    assert courses[-1].told.at == START + 1050, "the second run, and no later one"
    assert courses[-1].told.percent == 50, "though it is told how far it is"
    assert courses[-1].go_on(answer(20_060, 60 * GIGA)).told.at == START + 20_060


def test_the_sizes_of_an_image_are_lost_once_each_and_their_turns_are_no_progress() -> None:
    def run(number: int) -> list[Fetched]:
        layers = [answer(1000 * number + step, step * GIGA) for step in range(0, 101, 10)]
        return layers + [
            answer(1000 * number + 200 + step, step * GIGA, 99 * GIGA) for step in range(0, 99, 9)
        ]

    courses = follow(*(one for number in range(20) for one in run(number)))
    assert START + 1000 < courses[-1].told.at < START + 2000
    sizes = follow(*(answer(100 * size, 0, size) for size in range(1, 40)))
    assert sizes[-1].told.at == START + 800, "a pod that invents sizes"
    assert sizes[-1].told.total_bytes == 39


def test_the_first_progress_of_a_container_that_began_anew_is_told_at_once() -> None:
    began = START + 100
    courses = follow(answer(98, 42 * GIGA), answer(102, 42 * GIGA), answer(104, 42 * GIGA + 1), began=began)
    assert [one.told.at - START for one in courses] == [98, 98, 104]


def test_what_a_pod_answers_never_says_that_it_stands_still() -> None:
    text = json.dumps({"totalBytes": 9, "doneBytes": 3, "bytesPerSecond": 1, "stalledSince": 1.0})
    assert read_answer(text.encode(), 5.0) == Fetched(9, 3, 1, 5.0)


def test_what_a_new_leader_is_told_first_counts_from_when_the_container_began() -> None:
    began = START - 3600
    first = Course.begin(answer(0, 5 * GIGA), began)
    assert first.told == answer(-3600, 5 * GIGA)._replace(is_first=True)
    still = [answer(seconds, 5 * GIGA) for seconds in range(2, 90, 2)]
    course = first
    for one in still:
        course = course.go_on(one, began)
    assert (course.told.at, course.told.is_first) == (began, False), "it has stood still for a minute"
    assert course.told.stalled_since == START
    moved = first.go_on(answer(2, 5 * GIGA + 1), began)
    assert moved.told == answer(2, 5 * GIGA + 1), "the next byte is told at once"
    lost = first.go_on(answer(2, 0), began)
    assert (lost.told.at, lost.told.is_first) == (began, True)


def test_a_container_that_began_after_its_first_answer_by_another_clock_is_known_from_then() -> None:
    assert Course.begin(answer(0, 5 * GIGA), START + 5).told == answer(0, 5 * GIGA)


def test_a_new_leader_has_not_seen_a_download_stand_still_while_its_source_asks_for_quiet() -> None:
    quiet = [answer(at, GIGA)._replace(quiet_until=START + 700) for at in range(600, 700, 2)]
    course = Course.begin(quiet[0], START)
    for one in quiet[1:]:
        course = course.go_on(one, START)
    assert course.told.is_first
    assert not course.told.gets_on
    assert course.go_on(answer(701, GIGA), START).told.is_first, "no byte of it was due"
    course = course.go_on(answer(760, GIGA), START)
    assert not course.told.is_first, "by now it has stood still for long"
    assert course.told.stalled_since == START + 698
