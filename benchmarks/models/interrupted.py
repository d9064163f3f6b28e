"""Fetches that are killed at random moments and go on: whether a file ever has its name without its content.

The trial is that of the tests: between kills a source may change, and some fetches do not wait for the disk.
The kills are shared out over the sources.
"""

import asyncio
import logging
import random
import tempfile
from pathlib import Path

from benchmarks.runtime.progress import report
from testing.model_sources.kills import SOURCES, Serving, Tale, Trial

SHARD_BYTES = 20 << 20
"""Two intervals of a journal and more: a kill loses a part, and keeps a part."""
_SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def share_out(num_kills: int, num_sources: int) -> list[int]:
    """Return each source's kills, which differ by one at most."""
    return [num_kills // num_sources + (number < num_kills % num_sources) for number in range(num_sources)]


def make_contents(seed: int) -> dict[str, bytes]:
    """Return a model's files."""
    draw = random.Random(seed)  # noqa: S311  reproducible
    index = b'{"weight_map": {"a": "%s", "b": "%s"}}' % tuple(name.encode() for name in _SHARDS)
    shards = {name: draw.randbytes(SHARD_BYTES) for name in _SHARDS}
    return {"config.json": b'{"model_type": "llama"}', "model.safetensors.index.json": index, **shards}


def measure_kills(num_kills: int, seed: int) -> dict[str, Tale]:
    """Return what came of the kills at each source."""
    for server in ("aiohttp.server", "werkzeug"):
        logging.getLogger(server).setLevel(logging.CRITICAL)  # that its client was killed is what we want
    tales: dict[str, Tale] = {}
    for (name, serving), count in zip(SOURCES.items(), share_out(num_kills, len(SOURCES)), strict=True):
        tale = tales[name] = asyncio.run(_try_source(serving, count, seed))
        report(f"{name}: {tale.num_kills} kills, {tale.num_wrong} wrong, whole {tale.num_whole} times")
        for fault in tale.faults:
            report(fault)
    return tales


async def _try_source(serving: Serving, num_kills: int, seed: int) -> Tale:
    contents = make_contents(seed)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        async with serving(contents) as served:
            return await Trial(served, Path(folder) / "model", contents, contents, seed).run(num_kills)
