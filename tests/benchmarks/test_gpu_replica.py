"""The campaign's part `replica`: its checkpoint, its clients, and how it reads what they saw."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors import safe_open

from benchmarks.gpu.served.checkpoint import TINY_SERVED, plan_files, time_reading, write_checkpoint
from benchmarks.gpu.served.client import PATH, Ask, ask_all, ask_beside
from benchmarks.gpu.served.counts import Counts, find_faults, read_counts
from benchmarks.gpu.served.measures import MEASURES, measure_all
from benchmarks.gpu.served.streams import Stream, find_fault, measure_pace
from benchmarks.gpu.served.workload import DRY
from millrace_fit.families.registry import declare
from millrace_fit.tensors import list_needed


def test_a_checkpoint_has_every_tensor_once(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    num_bytes = write_checkpoint(folder, TINY_SERVED, torch.device("cpu"))
    needed = {one.name: one.part.shapes[0] for one in list_needed(declare(TINY_SERVED))}
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == needed.keys()
    assert num_bytes == sum(2 * math.prod(shape) for shape in needed.values())
    for name, file in index.items():
        with safe_open(folder / file, "pt") as opened:
            tensor = opened.get_tensor(name)
        assert (tensor.dtype, tuple(tensor.shape)) == (torch.bfloat16, needed[name])
        wanted = 0.1 if tensor.ndim == 1 else tensor.shape[1] ** -0.5 * (2 if name == "lm_head.weight" else 1)
        assert tensor.float().std().item() == pytest.approx(wanted, rel=0.3)


def test_the_reading_of_a_checkpoints_weights_is_timed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", TINY_SERVED, torch.device("cpu"))
    assert time_reading(tmp_path / "model") > 0


def test_files_are_about_equally_large_and_never_empty() -> None:
    files = plan_files([("large", (100, 10)), *((f"small {number}", (10,)) for number in range(100))], 4)
    sizes = [tensors[-1].end for tensors in files.values()]
    assert sizes == [2000, 1000, 1000]
    assert next(iter(files)) == "model-00001-of-00003.safetensors"


TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
END = b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """A server of two tokens; of tokens without end, of one whose stream fails, and of one that is full."""

    async def answer(request: web.Request) -> web.StreamResponse:
        kind = (await request.json())["kind"]
        if kind == "full":
            return web.Response(status=429, text="later")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(TOKEN)
        while kind == "endless":
            await asyncio.sleep(0.001)
            await response.write(TOKEN)
        await response.write(b'data: {"error": "lost"}\n\n' if kind == "fails" else TOKEN + END)
        return response

    application = web.Application()
    application.router.add_post(PATH, answer)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


def ask(kind: str, cancel_seconds: float | None = None) -> Ask:
    return Ask({"kind": kind}, cancel_seconds)


async def test_each_stream_is_noted_with_its_end() -> None:
    asks = [ask("whole"), ask("endless", 0.05), ask("fails"), ask("full")]
    async with serving() as base:
        whole, cancelled, failed, refused = await asyncio.to_thread(ask_all, base, asks)
    assert (whole.num_tokens, len(whole.times), whole.error) == (2, 2, None)
    assert whole.sent < whole.times[0] <= whole.times[1]
    assert cancelled.is_cancelled
    assert cancelled.error is None
    assert failed.error == "lost"
    assert refused.error == "429: later"


async def test_streams_decode_beside_others_until_these_have_ended() -> None:
    async with serving() as base:
        others, asked = await asyncio.to_thread(ask_beside, base, [ask("endless")] * 2, [ask("whole")] * 2)
    assert [stream.error for stream in others + asked] == [None] * 4
    assert all(stream.is_cancelled and stream.times[0] < asked[0].sent for stream in others)
    assert asked[0].times[-1] < asked[1].sent


async def test_a_stream_that_never_begins_is_not_awaited() -> None:
    async with serving() as base:
        others, asked = await asyncio.to_thread(ask_beside, base, [ask("full")], [ask("whole")])
    assert others[0].error == "429: later"
    assert asked[0].num_tokens == 2


def test_a_pace_is_from_the_first_request_to_the_last_token() -> None:
    streams = [Stream(0.0, [1.0, 2.0, 4.0], 3), Stream(1.0, [3.0, 3.5, 5.0], 3)]
    pace = measure_pace(streams)
    assert pace.tokens_per_second == 6 / 5
    assert (pace.gap_p50, pace.gap_p99, pace.longest_gap) == (1.5, 2.0, 2.0)
    assert (pace.first_token_p50, pace.mean_gap) == (1.5, 1.25)


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (Stream(0.0, [1.0], 4), None),
        (Stream(0.0, [1.0], 3), "a stream has 3 tokens instead of 4"),
        (Stream(0.0, [1.0], 4, error="lost"), "lost"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_fault(stream: Stream, fault: str | None) -> None:
    assert find_fault([Stream(0.0, [1.0], 4), stream], 4) == fault


STEPS = {"decode_steps": 0, "decode_seconds": 0, "startup_seconds": {}}


def counts(**changed: float) -> Counts:
    usual = {"received": 10, "rejected": 1, "finished": 6, "running": 2, "waiting": 1, "kv_usage": 0.5}
    return Counts(**(usual | changed), compiled=0, preempted=0, **STEPS)  # type: ignore[arg-type]


METRICS = """
millrace:requests_received_total{model_name="m"} 9
vllm:request_success_total{finished_reason="stop",model_name="m"} 3
vllm:request_success_total{finished_reason="abort",model_name="m"} 4
vllm:num_requests_running{model_name="m"} 2
vllm:num_requests_waiting{model_name="m"} 0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
millrace:kernel_compilations_total{model_name="m"} 1
vllm:num_preemptions_total{model_name="m"} 0
millrace:step_seconds_count{kind="decode",model_name="m"} 5
millrace:step_seconds_count{kind="mixed",model_name="m"} 6
millrace:step_seconds_sum{kind="decode",model_name="m"} 0.5
millrace:startup_time_seconds{model_name="m",phase="weights"} 7
"""


def test_counts_are_read_from_metrics() -> None:
    found = read_counts(METRICS)
    assert (found.received, found.rejected, found.finished, found.running) == (9, 0, 7, 2)
    assert (found.decode_steps, found.decode_seconds, found.startup_seconds) == (5, 0.5, {"weights": 7})
    assert found.find_fault() is None
    assert not found.is_idle


@pytest.mark.parametrize(
    ("changed", "faults"),
    [
        ({}, []),
        ({"running": -2, "waiting": 5}, ["a count is negative"]),
        ({"kv_usage": 1.1}, ["more KV blocks are in use than there are"]),
        ({"running": 3}, ["received sequences are not those rejected, finished, running and waiting"]),
    ],
)
def test_counts_that_can_not_be_are_found(changed: dict[str, float], faults: list[str]) -> None:
    assert find_faults([counts(), counts(**changed)]) == faults


def test_a_measure_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.served.measures.MEASURES", dict.fromkeys(MEASURES, list))
    rows = list(measure_all(None))  # type: ignore[arg-type]
    assert [row.to_json()["holds"] for row in rows] == [False] * len(MEASURES)


def test_prompts_differ_and_are_the_same_for_the_same_seed() -> None:
    prompts = DRY.draw_prompts(3, 8, seed=1)
    assert [len(prompt) for prompt in prompts] == [8] * 3
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert prompts == DRY.draw_prompts(3, 8, seed=1)
