"""The real command, killed at random moments: what has a name is right, and little is fetched twice."""

from pathlib import Path

import pytest

from millrace_fetch.download import NOTE_BYTES
from tests.fetch.conftest import NEEDED, SHARDS, make_model
from tests.fetch.kills import CONNECTIONS, SOURCES, Trial

SHARD_BYTES = 20 << 20
KILLS = [5, pytest.param(200, marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", KILLS)
@pytest.mark.parametrize("source", SOURCES)
async def test_a_kill_at_any_moment_spoils_nothing_and_loses_no_more_than_was_not_noted(
    source: str, num_kills: int, tmp_path: Path
) -> None:
    contents = make_model(SHARD_BYTES)
    async with SOURCES[source](contents) as served:
        trial = Trial(served, tmp_path / "model", {name: contents[name] for name in NEEDED}, seed=3)
        tale = await trial.run(num_kills)
        sent = served.count_sent()
    assert (tale.num_kills, tale.num_wrong) == (num_kills, 0), tale.faults
    again = sent - tale.num_whole * sum(len(contents[name]) for name in SHARDS)
    # What a socket's buffers hold was sent, and never came. The rest are small files and ranges' first bytes.
    assert again <= num_kills * CONNECTIONS * (NOTE_BYTES + (4 << 20)) + tale.num_whole * (1 << 20)


async def test_a_trial_finds_content_that_is_not_the_wanted_one(tmp_path: Path) -> None:
    contents = make_model()
    async with SOURCES["hub"](contents) as served:
        wanted = {name: contents[name] for name in NEEDED} | {SHARDS[1]: b"other"}
        tale = await Trial(served, tmp_path / "model", wanted, seed=3).run(0)
    assert (tale.num_wrong, tale.num_whole) == (2, 1)
    assert SHARDS[1] in tale.faults[0]
