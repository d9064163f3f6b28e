"""The real command, killed at random moments: what has a name is right, and little is fetched twice."""

from pathlib import Path

import pytest

from millrace_fetch.transfer.download import NOTE_BYTES
from testing.model_sources.kills import CHANGED, CONNECTIONS, SOURCES, Trial
from testing.model_sources.processes import start_fetch
from tests.fetch.conftest import NEEDED, SHARDS, make_model

SHARD_BYTES = 20 << 20
SEED = 26
"""By which a source moves, and a fetch does not wait, within five kills already."""
KILLS = [5, pytest.param(200, marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", KILLS)
@pytest.mark.parametrize("source", SOURCES)
async def test_a_kill_at_any_moment_spoils_nothing_and_loses_no_more_than_was_not_noted(
    source: str, num_kills: int, tmp_path: Path
) -> None:
    contents = make_model(SHARD_BYTES)
    async with SOURCES[source](contents) as served:
        tale = await Trial(served, tmp_path / "model", contents, NEEDED, SEED, start=start_fetch).run(
            num_kills
        )
        sent = served.count_sent()
    assert (tale.num_kills, tale.num_wrong) == (num_kills, 0), tale.faults
    assert min(tale.num_moves, tale.num_unsynced) > 0
    # What another revision has alike is not fetched again, but for an image, which comes whole.
    shards = sum(len(contents[name]) for name in SHARDS)
    of_move = shards if source == "oci image" else len(contents[CHANGED])
    again = sent - tale.num_whole * shards - tale.num_moves * of_move
    # What a socket's buffers hold was sent, and never came. The rest are small files and ranges' first bytes.
    num_fetched = tale.num_whole + tale.num_moves
    assert again <= num_kills * CONNECTIONS * (NOTE_BYTES + (4 << 20)) + num_fetched * (1 << 20)


async def test_a_trial_finds_content_that_is_not_the_wanted_one(tmp_path: Path) -> None:
    contents = make_model()
    async with SOURCES["hub"](contents) as served:
        other = contents | {SHARDS[1]: b"other"}
        tale = await Trial(served, tmp_path / "model", other, NEEDED, SEED, start=start_fetch).run(0)
    assert (tale.num_wrong, tale.num_whole) == (2, 1)
    assert SHARDS[1] in tale.faults[0]
