from signal import SIGINT, SIGKILL, SIGSEGV, SIGTERM

from millrace_runtime.replica.heartbeat import Member
from millrace_runtime.replica.lifecycle import EXIT_PEER_GONE, STOP_SECONDS, Action, Ending, Lifecycle, Stage

KILL_ALL = (Action.KILL_HTTP, Action.KILL_ENGINE)


def test_a_signal_drains_and_the_end_of_the_streams_ends_the_engine() -> None:
    life = Lifecycle(30)
    assert life.ask_to_stop(SIGTERM, 100) == (Action.DRAIN_HTTP,)
    assert (life.stage, life.deadline) == (Stage.DRAINING, 130)
    assert life.expire(129) == ()
    assert life.lose(Member.HTTP, 0, 120) == (Action.KILL_ENGINE,)
    assert life.lose(Member.ENGINE, -SIGKILL, 121) == ()
    assert (life.stage, life.ending, life.deadline) == (Stage.DONE, Ending(0, None), None)


def test_the_engine_may_notice_the_end_of_a_drain_first() -> None:
    life = Lifecycle(30)
    life.ask_to_stop(SIGTERM, 0)
    assert life.lose(Member.ENGINE, EXIT_PEER_GONE, 1) == ()
    life.lose(Member.HTTP, 0, 1)
    assert (life.stage, life.ending) == (Stage.DONE, Ending(0, None))


def test_a_signal_before_http_hears_any_is_a_clean_end() -> None:
    life = Lifecycle(30)
    life.ask_to_stop(SIGINT, 0)
    life.lose(Member.HTTP, -SIGTERM, 0)
    assert life.ending == Ending(0, None)


def test_streams_that_outlast_the_drain_are_cut_and_it_says_so() -> None:
    life = Lifecycle(30)
    life.ask_to_stop(SIGTERM, 0)
    assert life.expire(30) == KILL_ALL
    assert life.ending is not None
    assert life.ending.status == 1
    assert "streams were cut: they had not ended 30 s after" in str(life.ending.cause)


def test_a_second_signal_kills() -> None:
    life = Lifecycle(30)
    life.ask_to_stop(SIGTERM, 0)
    assert life.ask_to_stop(SIGINT, 1) == KILL_ALL
    assert life.ending == Ending(130, "stopped at once by a second SIGINT")


def test_a_signal_does_not_hide_a_cause_that_http_has_yet_to_give() -> None:
    life = Lifecycle(30)
    life.lose(Member.ENGINE, EXIT_PEER_GONE, 0)
    assert life.ask_to_stop(SIGTERM, 1) == ()
    assert (life.stage, life.deadline) == (Stage.STOPPING, STOP_SECONDS)
    life.lose(Member.HTTP, 3, 2)
    assert life.ending == Ending(3, "the HTTP process ended with exit status 3")


def test_a_signal_does_not_cut_off_what_clients_are_told_of_a_failed_engine() -> None:
    life = Lifecycle(30)
    life.lose(Member.ENGINE, 65, 0)
    assert life.ask_to_stop(SIGTERM, 1) == ()
    assert life.expire(STOP_SECONDS) == KILL_ALL
    assert life.ending == Ending(65, "the engine process ended with exit status 65")


def test_a_failed_engine_gives_its_status_once_clients_were_told() -> None:
    life = Lifecycle(30)
    assert life.lose(Member.ENGINE, 65, 0) == (Action.DRAIN_HTTP,)
    assert (life.stage, life.deadline) == (Stage.STOPPING, STOP_SECONDS)
    life.lose(Member.HTTP, 0, 1)
    assert life.ending == Ending(65, "the engine process ended with exit status 65")
    assert life.stage is Stage.DONE


def test_a_failed_engine_does_not_wait_for_ever_on_http() -> None:
    life = Lifecycle(30)
    life.lose(Member.ENGINE, -SIGSEGV, 0)
    assert life.expire(STOP_SECONDS) == KILL_ALL
    assert life.ending == Ending(128 + SIGSEGV, "the engine process was killed by SIGSEGV")


def test_a_failed_http_process_is_the_cause_whichever_exit_is_seen_first() -> None:
    for order in ((Member.HTTP, Member.ENGINE), (Member.ENGINE, Member.HTTP)):
        life = Lifecycle(30)
        for member in order:
            life.lose(member, {Member.HTTP: 3, Member.ENGINE: EXIT_PEER_GONE}[member], 0)
        assert life.ending == Ending(3, "the HTTP process ended with exit status 3")
        assert life.stage is Stage.DONE


def test_a_clean_exit_that_nobody_asked_for_is_a_failure() -> None:
    life = Lifecycle(30)
    life.lose(Member.HTTP, 0, 0)
    assert life.ending is not None
    assert life.ending.status == 1


def test_a_signal_behind_the_last_exit_changes_nothing() -> None:
    life = Lifecycle(30)
    life.lose(Member.ENGINE, 65, 0)
    life.lose(Member.HTTP, 0, 0)
    assert life.ask_to_stop(SIGTERM, 1) == ()
    assert (life.stage, life.deadline) == (Stage.DONE, None)
    assert life.ending is not None
    assert life.ending.status == 65
