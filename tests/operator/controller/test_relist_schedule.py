"""When everything is listed, in virtual time."""

from collections.abc import Iterable

import pytest

from millrace_operator.controller.relister import LOST_SECONDS, Round, Rounds


def run(
    rounds: Rounds, until: float, *, losses: Iterable[float] = (), fails: bool = False
) -> list[tuple[float, Round]]:
    """Return when lists began, and of what. An event is lost at each of `losses`. A list `fails` at once."""
    began, pending = [], sorted(losses)
    while min([rounds.due_at, *pending]) <= until:
        if pending and pending[0] < rounds.due_at:
            rounds.owe(Round.SERVICES, pending.pop(0))
            continue
        now = rounds.due_at
        began.append((now, rounds.begin(now)))
        if fails:
            rounds.owe(began[-1][1], now)
    return began


def make(draw: float = 0.5) -> Rounds:
    return Rounds(0.0, lambda: draw)


@pytest.mark.parametrize(("draw", "period"), [(0.0, 540.0), (0.5, 600.0), (1.0, 660.0)])
def test_without_a_loss_everything_is_listed_each_period_more_or_less(draw: float, period: float) -> None:
    times, what = zip(*run(make(draw), 3 * period), strict=True)
    assert times == pytest.approx((period, 2 * period, 3 * period))
    assert set(what) == {Round.EVERYTHING}


def test_a_loss_is_made_up_for_soon_and_those_that_follow_it_at_the_same_time() -> None:
    began = run(make(), 700, losses=[100, 101, 109])
    assert began == [(110, Round.SERVICES), (600, Round.EVERYTHING)]


def test_a_list_that_fails_is_tried_again_ever_more_slowly() -> None:
    began = run(make(), 590, losses=[0], fails=True)
    assert began == [(at, Round.SERVICES) for at in (10, 30, 70, 150, 310)]
    began = run(make(), 2000, fails=True)
    assert began == [(at, Round.EVERYTHING) for at in (600, 610, 630, 670, 750, 910, 1230, 1830)]


def test_a_loss_while_everything_is_owed_changes_nothing_of_that() -> None:
    rounds = make()
    rounds.begin(600)
    rounds.owe(Round.EVERYTHING, 600)
    assert run(rounds, 1000, losses=[605]) == [(610, Round.EVERYTHING)]


def test_while_losses_go_on_the_services_are_listed_no_oftener_than_everything() -> None:
    began = run(make(), 6000, losses=range(6000))
    times = [at for at, what in began if what is Round.SERVICES]
    assert times == pytest.approx([10, 30, 70, 150, 310], abs=5)
    assert [at for at, what in began if what is Round.EVERYTHING] == [600 * number for number in range(1, 11)]


def test_after_a_quiet_period_a_loss_is_made_up_for_as_soon_as_the_first() -> None:
    rounds = make()
    run(rounds, 700, losses=range(590))
    rounds.owe(Round.SERVICES, 700)
    assert rounds.due_at > 700 + LOST_SECONDS
    assert run(rounds, 1800) == [(1200, Round.EVERYTHING), (1800, Round.EVERYTHING)]
    rounds.owe(Round.SERVICES, 1801)
    assert rounds.due_at == 1801 + LOST_SECONDS
