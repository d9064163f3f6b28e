"""The text worker's memory and threads: what is planned, and what a process takes."""

import asyncio
import itertools
import logging
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from millrace_fit.kv_budget import SMALL_TEXT_BYTES, plan_large_text, plan_text_memory
from millrace_runtime.api.settings import TEXT_MODULE
from millrace_runtime.chat.jobs import EncodeTexts
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.chat.worker import SMALL_BYTES, TextWorker
from millrace_runtime.execution.host import ENV_CPU_LIMIT, count_text_threads
from testing.text_model import write_model

logger = logging.getLogger(__name__)
MIB, GIB = 1 << 20, 1 << 30
NUM_PIECES = 128_000


@pytest.mark.parametrize(
    ("usable", "memory", "large"),
    [
        (0, 0, 0),
        (GIB, 383_479_222, 256 * MIB),
        (3 * GIB, 704 * MIB, 512 * MIB),
        (8 * GIB, 704 * MIB, 512 * MIB),
        (16 * GIB, 1216 * MIB, GIB),
        (99 * GIB, 4 * GIB + 192 * MIB, 4 * GIB),
    ],
)
def test_memory_is_enough_for_both_processes_and_a_small_share_of_the_replicas(
    usable: int, memory: int, large: int
) -> None:
    """Each process may have a quarter of a small pod: with 262,000 pieces one takes 390 MB as it starts."""
    assert (plan_text_memory(usable), plan_large_text(memory)) == (memory, large)


def list_merges() -> Iterator[tuple[str, str]]:
    """Every text of two, three, four letters, by its first ones and its last one."""
    for size in itertools.count(1):
        for *first, last in itertools.product(string.ascii_lowercase, repeat=size + 1):
            yield "".join(first), last


def read_status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


async def test_the_process_of_small_jobs_takes_its_part_of_the_plan(tmp_path: Path) -> None:
    """Its peak, with a vocabulary as large as Llama 3's, and with the longest small texts."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(itertools.islice(list_merges(), NUM_PIECES - len(letters)))
    pieces = dict.fromkeys([*letters, *map("".join, merges)])
    native = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, merges))
    native.pre_tokenizer, native.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    native.add_special_tokens(["<|end|>"])
    worker = TextWorker(write_model(tmp_path, native), TextLimits(), TEXT_MODULE)
    await worker.start()
    for text in ("abcd efg", "\U0001f600\n"):
        job = EncodeTexts([text * (SMALL_BYTES // len(text.encode()) - 99)])
        await asyncio.gather(*(worker.run(job) for _ in range(3)))
    assert worker._small._process is not None
    status = read_status(worker._small._process.pid)
    await worker.close()
    peak, files = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) for name in ("VmHWM", "RssFile"))
    logger.info("%d MiB without the pages of files", (peak - files) >> 10)
    assert (peak - files) << 10 <= SMALL_TEXT_BYTES


def test_threads_are_no_more_than_the_replicas_cpus() -> None:
    assert count_text_threads({ENV_CPU_LIMIT: "0.5"}) == 1
    assert 1 <= count_text_threads({}) <= 4
