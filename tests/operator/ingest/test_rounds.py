"""When everything is listed, in virtual time."""

from collections.abc import Iterable

import pytest

from millrace_operator.ingest.rounds import LOST_SECONDS, PERIOD_SECONDS, Rounds


def run(rounds: Rounds, until: float, *, losses: Iterable[float] = (), fails: bool = False) -> list[float]:
    """Return when lists began. An event is lost at each of `losses`; a list that `fails` does so at once."""
    began, pending = [], sorted(losses)
    while min([rounds.due_at, *pending]) <= until:
        if pending and pending[0] < rounds.due_at:
            rounds.note_loss(pending.pop(0))
            continue
        began.append(rounds.due_at)
        rounds.begin(began[-1])
        if fails:
            rounds.note_loss(began[-1])
    return began


def make(draw: float = 0.5) -> Rounds:
    return Rounds(0.0, lambda: draw)


@pytest.mark.parametrize(("draw", "period"), [(0.0, 540.0), (0.5, 600.0), (1.0, 660.0)])
def test_without_a_loss_a_list_is_due_each_period_more_or_less(draw: float, period: float) -> None:
    assert run(make(draw), 3 * period) == pytest.approx([period, 2 * period, 3 * period])


def test_a_loss_is_made_up_for_soon_and_those_that_follow_it_at_the_same_time() -> None:
    assert run(make(), 500, losses=[100, 101, 109]) == [110]


def test_a_list_that_fails_is_tried_again_ever_more_slowly() -> None:
    assert run(make(), 1500, losses=[0], fails=True) == [10, 30, 70, 150, 310, 630, 1230]


def test_while_losses_go_on_lists_become_as_rare_as_the_regular_ones() -> None:
    began = run(make(), 4000, losses=range(4000))
    assert began[:5] == pytest.approx([10, 30, 70, 150, 310], abs=5)
    assert len([at for at in began if at > PERIOD_SECONDS]) <= 6


def test_after_a_quiet_period_a_loss_is_made_up_for_as_soon_as_the_first() -> None:
    rounds = make()
    run(rounds, 100, losses=range(100))
    assert run(rounds, 3000) == [150, 750, 1350, 1950, 2550]
    rounds.note_loss(3000)
    assert rounds.due_at == 3000 + LOST_SECONDS
