"""`python -m benchmarks.routing.live.fairness MODEL`: what one tenant's flood does to another; a table.

Four real replicas of 16 sequences each, behind the real gateway, on two cores. One tenant sends few short
chats at random moments; the other keeps a number of them under way. The flood is twenty times what fills the
replicas. Each case has fresh replicas. With one key the flood is the first tenant's own, so it shows what a
flood does where no queue tells tenants apart.

MODEL is a folder as `python -m benchmarks.routing.live` takes it.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.gateway.ours import CLIENT_KEY
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.routing.live.clients import Words, ask, open_session
from benchmarks.routing.live.replicas import MAX_SEQUENCES, NUM_REPLICAS, serve, write_chat_model
from benchmarks.runtime.machine import describe_machine
from testing.traffic import percentile

OTHER_KEY = "mr-" + "o" * 43
SECONDS, WARM_SECONDS = 80.0, 20.0
RATE = 2.0
"""Chats a second of the tenant that is measured, Poisson."""
PROMPT_TOKENS, ANSWER_TOKENS = (64, 192), (8, 32)
FULL = NUM_REPLICAS * MAX_SEQUENCES


class Case(NamedTuple):
    """Who sends what."""

    name: str
    num_others: int
    """Chats that the other tenant keeps under way."""
    key: str = OTHER_KEY
    """The other tenant's."""


BASE = Case("beside a tenant that fills the replicas", FULL)
CASES = (
    Case("alone", 0),
    BASE,
    Case("beside a flood of twenty times", 20 * FULL),
    Case("beside that flood, one key", 20 * FULL, CLIENT_KEY),
)


def measure(model: Path, case: Case, seed: int, folder: Path) -> list[float]:
    """Return the times to first token of the tenant that is measured, in seconds.

    A request without a first token counts with the time that it had waited at the end.
    """
    folder.mkdir(parents=True)
    with serve(model, "prefix-affine", folder, measured=CLIENT_KEY, other=OTHER_KEY) as url:
        return asyncio.run(_send(url, case, seed))


async def _send(gateway: str, case: Case, seed: int) -> list[float]:
    """Return the times of the requests that began after the warm-up."""
    rng, words = random.Random(seed), Words(seed)  # noqa: S311  a workload, no secret
    first_token_at: dict[float, float | None] = {}
    """By the time when the request was sent."""
    began = time.monotonic()

    async def send(session: aiohttp.ClientSession, on_first_token: Callable[[], None]) -> None:
        messages = [{"role": "user", "content": words.write(rng.randint(*PROMPT_TOKENS))}]
        await ask(session, gateway, messages, rng.randint(*ANSWER_TOKENS), on_first_token)

    async def send_measured(session: aiohttp.ClientSession) -> None:
        sent_at = time.monotonic()
        first_token_at[sent_at] = None
        await send(session, lambda: first_token_at.update({sent_at: time.monotonic()}))

    async def send_for_ever(session: aiohttp.ClientSession) -> None:
        while True:
            await send(session, lambda: None)

    async with open_session(CLIENT_KEY) as measured, open_session(case.key) as other:
        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for _ in range(case.num_others):
                    group.create_task(send_for_ever(other))
                while True:
                    await asyncio.sleep(rng.expovariate(RATE))
                    group.create_task(send_measured(measured))
        except TimeoutError:
            pass
    over = time.monotonic()
    return [
        (over if at is None else at) - sent_at
        for sent_at, at in first_token_at.items()
        if sent_at >= began + WARM_SECONDS
    ]


def describe(case: Case, times: Sequence[float], base: Sequence[float]) -> dict[str, object]:
    """Return a row of the table and of the JSON line."""
    return {
        "case": case.name,
        "requests": len(times),
        "p50_ttft": round(statistics.median(times), 3),
        "p95_ttft": round(percentile(times, 95), 3),
        "p95_over_base": round(percentile(times, 95) / percentile(base, 95), 2),
    }


def render_rows(rows: Sequence[dict[str, object]]) -> list[str]:
    """Return the table's lines, as Markdown."""
    lines = [
        "| the tenant | requests | P50 TTFT (s) | P95 TTFT (s) | over beside a full one |",
        "|---|---|---|---|---|",
    ]
    return lines + [f"| {' | '.join(str(value) for value in row.values())} |" for row in rows]


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing.live.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=2, help="of all cases (default: %(default)s)")
    add_output(parser)
    arguments = parser.parse_args(argv)
    model = write_chat_model(arguments.model)
    times: dict[Case, list[float]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as logs:
        for number in range(arguments.rounds):
            for case in CASES:
                found = measure(model, case, number, Path(logs, f"{number}-{CASES.index(case)}"))
                times[case] += found
                print(f"round {number + 1}, {case.name}: {describe(case, found, found)}", file=sys.stderr)
    rows = [describe(case, found, times[BASE]) for case, found in times.items()]
    print("\n".join(render_rows(rows)))
    publish(
        {
            "date": read_date(),
            "commit": read_commit(),
            "machine": describe_machine(),
            "rounds": arguments.rounds,
            "rows": rows,
        },
        arguments.output,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
