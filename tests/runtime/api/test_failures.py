import asyncio
import os
import signal
from pathlib import Path

import openai
import pytest

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.chat.jobs import FromTextWorker
from millrace_runtime.chat.worker_process import WorkerProcess
from millrace_runtime.contract import HEADER_DRAINING
from testing.text_model import build_byte_level, write_model
from tests.runtime.api.served import REPLY, Served, serve, sum_samples

IGNORING = {"ignore_eos": True}
HI = [{"role": "user", "content": "hi"}]
REPLICA = {
    "device": "cpu",
    "device_name": "avx2",
    "dtype": "float32",
    "weights": "FromCheckpoint",
    "tensor_parallel": 1,
    "kv_cache": "Model",
    "kv_cache_tokens": 256,
    "kv_cache_blocks": 16,
    "block_size": 16,
    "max_model_length": 200,
    "max_sequences": 8,
}
"""What the fake engine's replica says of itself."""


async def assert_conserved(served: Served) -> None:
    read_conserved((await served.client.get("/metrics")).text)


def read_conserved(scrape: str) -> tuple[float, float]:
    """Waiting and running, once it is checked that no sequence is lost or counted twice."""
    received = sum_samples(scrape, "millrace:requests_received_total")
    rejected = sum_samples(scrape, "vllm:admission_rejections_total")
    finished = sum_samples(scrape, "vllm:request_success_total")
    running = sum_samples(scrape, "vllm:num_requests_running")
    waiting = sum_samples(scrape, "vllm:num_requests_waiting")
    assert received == rejected + finished + running + waiting
    assert min(running, waiting) >= 0
    return waiting, running


async def test_a_client_that_leaves_aborts_its_sequences(served: Served) -> None:
    served.engine.pauses_after = 2
    body = {"model": "tiny", "prompt": "a", "n": 2, "stream": True}
    async with served.client.stream("POST", "/v1/completions", json=body) as answer:
        await anext(answer.aiter_bytes())
        assert await served.metric("vllm:num_requests_running") == 2
        assert await served.metric("vllm:kv_cache_usage_perc") == 0.25
        await assert_conserved(served)
    await served.until(lambda: len(served.engine.aborted) == 2)
    await served.replica.wait_idle()
    assert await served.metric("vllm:request_success_total", finished_reason="abort") == 2
    await assert_conserved(served)


async def test_a_client_that_leaves_before_its_text_is_tokenised_gives_its_place_back(served: Served) -> None:
    loop = {"messages": [{"role": "user", "content": "loop"}], "n": 3}
    asking = asyncio.create_task(served.client.post("/v1/chat/completions", json=loop))
    await served.until(lambda: served.replica.admission.num_sequences == 3)
    asking.cancel()
    async with asyncio.timeout(0.5):  # a job may take 1 s
        await served.replica.wait_idle()
    assert await served.metric("vllm:request_success_total", finished_reason="abort") == 3
    assert served.engine.seen == []
    await assert_conserved(served)


async def test_the_engines_death_ends_streams_with_an_error_and_readiness(served: Served) -> None:
    served.engine.pauses_after = 2
    stream = await served.openai.completions.create(model="tiny", prompt="a", stream=True)
    await anext(stream)
    served.engine_task.cancel()
    with pytest.raises(openai.APIError, match="engine of this replica ended"):
        async for _ in stream:
            pass
    ready = await served.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "the engine of this replica ended")
    assert (await served.client.get("/health")).status_code == 503
    late = await served.client.post("/v1/completions", json={"prompt": "a"})
    assert late.status_code == 503
    await assert_conserved(served)


async def test_draining_refuses_new_requests_and_finishes_old_ones(served: Served) -> None:
    served.engine.pauses_after = 2
    stream = await served.openai.completions.create(model="tiny", prompt="a", max_tokens=100, stream=True)
    served.replica.begin_drain()
    assert (await served.client.get("/readyz")).status_code == 503
    refused = await served.client.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    assert HEADER_DRAINING in refused.headers
    assert int(refused.headers["retry-after"]) > 0
    served.engine.pauses_after = None
    assert "".join([chunk.choices[0].text async for chunk in stream]) == REPLY
    await served.replica.wait_idle()
    await assert_conserved(served)


async def test_a_template_without_end_fails_alone(served: Served) -> None:
    served.engine.pauses_after = 1
    stream = await served.openai.completions.create(model="tiny", prompt="a", max_tokens=100, stream=True)
    loop = served.openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "loop"}])
    bad = asyncio.create_task(loop)
    await asyncio.sleep(0.05)
    served.engine.pauses_after = None
    assert "".join([chunk.choices[0].text async for chunk in stream]) == REPLY
    with pytest.raises(openai.InternalServerError, match="took longer than 3 s") as failed:
        await bad
    assert (failed.value.status_code, failed.value.response.headers["retry-after"]) == (503, "5")
    answer = await served.openai.chat.completions.create(model="tiny", messages=HI)
    assert answer.choices[0].message.content == REPLY
    await assert_conserved(served)


async def test_a_large_body_that_takes_too_long_is_told_to_be_shorter(model_path: Path) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny", inline_body_bytes=0)) as served:
        with pytest.raises(openai.BadRequestError, match="took longer than 3 s: shorten it"):
            await served.openai.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "loop"}]
            )


def process_of(served: Served) -> WorkerProcess:
    process = served.replica.text._small._process
    assert process is not None
    return process


@pytest.mark.parametrize(("inline_bytes", "status", "advice"), [(0, 400, ": shorten it"), (1000, 503, "")])
async def test_only_a_large_body_that_ends_the_text_worker_is_not_to_be_sent_again(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int, status: int, advice: str
) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny", inline_body_bytes=inline_bytes)) as served:
        process = process_of(served)
        ask = process.ask

        async def kill_and_ask(frame: bytes) -> FromTextWorker:
            os.kill(process.pid, signal.SIGKILL)
            return await ask(frame)

        monkeypatch.setattr(process, "ask", kill_and_ask)
        answer = await served.client.post("/v1/completions", json={"prompt": "a"})
        assert (answer.status_code, "retry-after" in answer.headers) == (status, status == 503)
        said = answer.json()["error"]["message"]
        assert said == f"the text worker ended while it handled this prompt{advice}"
        await assert_conserved(served)


@pytest.mark.parametrize("inline_bytes", [0, 1000])
async def test_without_a_text_worker_a_request_is_for_another_replica(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny", inline_body_bytes=inline_bytes)) as served:

        async def fail(_: bytes) -> None:
            raise ValueError("ours")

        monkeypatch.setattr(process_of(served), "ask", fail)
        answer = await served.client.post("/v1/completions", json={"prompt": "a"})
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        await assert_conserved(served)


async def test_a_template_that_fails_on_some_messages_is_the_servers_fault(tmp_path: Path) -> None:
    broken = write_model(
        tmp_path, build_byte_level(), "{% if messages | length > 1 %}\n{{ 1 / 0 }}{% endif %}x"
    )
    async with serve(broken, ApiSettings(served_name="tiny")) as served:
        with pytest.raises(openai.InternalServerError, match=r"line 2 .* ZeroDivisionError") as failed:
            await served.openai.chat.completions.create(model="tiny", messages=[*HI, *HI])
        assert failed.value.status_code == 500
        await served.openai.completions.create(model="tiny", prompt="a", max_tokens=1)


async def test_what_nobody_asked_for_never_fails_a_prompt_near_the_limit(served: Served) -> None:
    answer = await served.openai.completions.create(model="tiny", prompt=[1] * 195, extra_body=IGNORING)
    assert answer.usage.completion_tokens == 5
    answer = await served.openai.completions.create(model="tiny", prompt=[1] * 50, extra_body=IGNORING)
    assert answer.usage.completion_tokens == 16
    with pytest.raises(openai.BadRequestError, match="16 more are asked for"):
        await served.openai.completions.create(model="tiny", prompt=[1] * 195, max_tokens=16)


async def test_admission_bounds_sequences_and_tokens(model_path: Path) -> None:
    settings = ApiSettings(served_name="tiny", max_requests=3, max_queued_tokens=24, max_body_bytes=2000)
    async with serve(model_path, settings) as served:
        served.engine.pauses_after = 0
        body = {"prompt": list(range(12)), "n": 1, "max_tokens": 2}
        first = asyncio.create_task(served.client.post("/v1/completions", json=body))
        await served.until(lambda: served.engine.seen)
        assert (
            await served.metric("vllm:num_requests_running")
            + await served.metric("vllm:num_requests_waiting")
            == 1
        )
        full = await served.client.post("/v1/completions", json=body)
        assert (full.status_code, full.json()["error"]["type"]) == (429, "overloaded_error")
        assert "12 prompt tokens wait, and the limit is 24" in full.json()["error"]["message"]
        many = await served.client.post("/v1/completions", json=body | {"prompt": [1], "n": 3})
        assert (many.status_code, "retry-after" in many.headers) == (429, True)
        large = await served.client.post("/v1/completions", json={"prompt": "x" * 3000})
        assert large.status_code == 413
        await assert_conserved(served)
        served.engine.pauses_after = None
        assert (await first).status_code == 200
        assert served.replica.admission.num_queued_tokens == 0
        assert served.replica.admission.num_sequences == 0
        assert await served.metric("vllm:admission_rejections_total", reason="overloaded") == 4
        await assert_conserved(served)


BAD_COMPLETIONS = [
    ({"prompt": "a", "n": 129}, "n", "<= 128 - in `n`: send the request several times"),
    ({"prompt": ["a"] * 129}, "prompt", "limit is 128: split the request"),
    ({"prompt": "a", "stop": ["a"] * 17}, "stop", "length <= 16 - in `stop`: send fewer"),
    ({"prompt": "a", "reasoning_effort": "low"}, "reasoning_effort", "a field of /v1/chat/completions"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "only with `echo` or `prompt_logprobs`"),
    ({"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens", ">= 0"),
    ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs", "<= 20"),
    ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs", ">= 0"),
    ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "leave out `stream`"),
    ({"prompt": "a", "temperature": "hot"}, "temperature", "float"),
    ({"prompt": "a", "temperature": -1}, "temperature", ">= 0"),
    ({"prompt": []}, "prompt", "length"),
    ({"prompt": ""}, "prompt", "without tokens"),
    ({"prompt": [1, "a"]}, "prompt", "mixes"),
    ({"prompt": [9999]}, "prompt", "0 to 269"),
    ({"prompt": ["a"] * 10, "n": 16}, "prompt", "128 sequences"),
    ({"prompt": "a", "echo": "yes"}, "echo", "bool"),
    ({"prompt": "a", "best_of": 129}, "best_of", "<= 128"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    ({"prompt": "a", "guided_choice": "x"}, "guided_choice", "Expected `array"),
    ({"prompt": "a", "stop": [""]}, "stop[0]", "length"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"prompt": "a b" * 100}, None, "limit is 200"),
    ({"prompt": "a", "max_tokens": 200}, "max_tokens", "at most 199"),
]


async def test_bad_requests_say_what_to_change(served: Served) -> None:
    for body, param, said in BAD_COMPLETIONS:
        answer = await served.client.post("/v1/completions", json=body)
        error = answer.json()["error"]
        answered = (answer.status_code, error["type"], error["param"])
        assert answered == (400, "invalid_request_error", param), body
        assert said in error["message"], body
    assert served.engine.seen == []
    await assert_conserved(served)


NESTED: list[object] = []
for _ in range(17):
    NESTED = [NESTED]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD_CHATS = [
    ({"tools": [{"type": "function"}]}, "missing required field `function`"),
    ({"top_logprobs": 2}, "logprobs: true"),
    ({"functions": [{"name": "f"}]}, "send `tools`"),
    ({"function_call": {"name": "f"}}, "send `tool_choice`"),
    ({"reasoning_effort": "much"}, "Invalid enum value 'much'"),
    ({"messages": []}, "length"),
    ({"messages": [{"role": "villain", "content": "x"}]}, "no villains"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only parts of type `text`"),
    ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "must be a text or a list of parts"),
    ({"messages": [{"role": "", "content": "x"}]}, "`messages[0].role` must be a text of 1 to 64 letters"),
    ({"messages": [{"content": "x"}]}, "`messages[0].role` must be a text"),
    ({"messages": [{"role": "user", "x": NESTED}]}, "more than 16 levels deep"),
    ({"chat_template_kwargs": {"x": NESTED}}, "more than 16 levels deep"),
    ({"chat_template_kwargs": {"messages": []}}, "can't set `messages`"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
    (
        {"continue_final_message": True, "messages": [{"role": "assistant", "tool_calls": [CALL]}]},
        "needs a last",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "must be a list of calls"),
    (
        {"messages": [HI[0], {"role": "assistant", "tool_calls": [CALL, {}]}]},
        "`messages[1].tool_calls[1]` must be a",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": None}}]}]},
        "`messages[0].tool_calls[0]` must be a call such as",
    ),
    ({"prompt": "x"}, "`prompt` is not known"),
]


async def test_bad_chats_say_what_to_change(served: Served) -> None:
    for change, said in BAD_CHATS:
        answer = await served.client.post("/v1/chat/completions", json={"messages": HI} | change)
        assert answer.status_code == 400, change
        assert said in answer.json()["error"]["message"], change
    await assert_conserved(served)


async def test_what_is_no_json_is_a_400(served: Served) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"prompt": "\xff"}'):
        answer = await served.client.post("/v1/completions", content=body)
        assert answer.status_code == 400, body[:20]
        assert answer.json()["error"]["message"]


async def test_another_model_is_a_404_that_names_ours(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="use `tiny`"):
        await served.openai.completions.create(model="other", prompt="a")
    models = (await served.openai.models.list()).data
    assert [(model.id, model.max_model_len) for model in models] == [("tiny", 200)]
    assert (await served.openai.models.retrieve("tiny")).id == "tiny"
    listed = (await served.client.get("/v1/models")).json()["data"][0]
    assert (listed["root"], listed["parent"]) == ("tiny", None)
    assert listed["replica"] == (await served.client.get("/v1/models/tiny")).json()["replica"] == REPLICA
    for path in ("/docs", "/redoc"):  # their pages load scripts from the internet
        assert (await served.client.get(path)).status_code == 404
    lost = await served.client.get("/v2/nothing")
    assert (lost.status_code, lost.json()["error"]["message"]) == (404, "Not Found: GET /v2/nothing")


async def test_metrics_carry_vllms_names(served: Served) -> None:
    await served.openai.completions.create(model="tiny", prompt="a", max_tokens=4)
    count = {"model_name": "tiny"}
    assert await served.metric("vllm:time_to_first_token_seconds_count", **count) == 1
    assert await served.metric("vllm:request_queue_time_seconds_count", **count) == 1
    assert await served.metric("vllm:inter_token_latency_seconds_count", **count) == 3
    assert await served.metric("vllm:request_time_per_output_token_seconds_count", **count) == 1
    assert await served.metric("vllm:e2e_request_latency_seconds_count", **count) == 1
    assert await served.metric("vllm:request_generation_tokens_sum", **count) == 4
    assert await served.metric("vllm:request_prompt_tokens_sum", **count) == 1
    assert await served.metric("vllm:request_success_total", finished_reason="length") == 1
    assert await served.metric("millrace:step_seconds_count", kind="decode") == 3
    assert await served.metric("millrace:step_seconds_count", kind="mixed") == 1
    assert await served.metric("millrace:step_sequences_sum") == 4
    assert await served.metric("millrace:step_context_tokens_sum") == 40
    assert await served.metric("vllm:iteration_tokens_total_sum") == 4
    assert await served.metric("millrace:startup_time_seconds", phase="weights") == 0.5
    assert await served.metric("vllm:cache_config_info", block_size="16", num_gpu_blocks="16") == 1
    assert await served.metric("millrace:kv_cache_tokens") == 16 * 16
    assert await served.metric("millrace:max_sequences") == 8
    assert await served.metric("millrace:max_model_length") == 200
    placement = {"device": "cpu", "device_name": "avx2", "dtype": "float32", "weights": "FromCheckpoint"}
    assert await served.metric("millrace:replica_info", **placement, tensor_parallel="1") == 1


async def test_a_probe_that_waits_is_answered_as_soon_as_requests_are_taken(model_path: Path) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny"), is_loading=True) as served:
        late = await served.client.get("/readyz?wait=0.05")
        assert (late.status_code, late.json()["status"]) == (503, "the engine is still loading")
        probe = asyncio.create_task(served.client.get("/readyz?wait=30"))
        await asyncio.sleep(0.05)
        assert not probe.done()
        served.engine.is_loading = False
        ready = await probe
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "replica": REPLICA})
        for nonsense in ("-1", "61", "nan", "soon"):
            assert (await served.client.get(f"/readyz?wait={nonsense}")).status_code == 422
        served.replica.begin_drain()
        assert (await served.client.get("/readyz?wait=30")).json() == {"status": "this replica is draining"}


async def test_a_probe_does_not_wait_for_an_engine_that_has_ended(model_path: Path) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny"), is_loading=True) as served:
        probe = asyncio.create_task(served.client.get("/readyz?wait=30"))
        await asyncio.sleep(0.05)
        served.engine.writer.close()
        assert (await probe).json() == {"status": "the engine of this replica ended"}


async def test_before_the_engine_is_ready_requests_are_told_to_wait(model_path: Path) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny"), is_loading=True) as served:
        assert (await served.client.get("/readyz")).json() == {"status": "the engine is still loading"}
        answer = await served.client.post("/v1/completions", json={"prompt": "a"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "still loading" in answer.json()["error"]["message"]
        listed = (await served.client.get("/v1/models")).json()["data"][0]
        assert (listed["replica"], listed["max_model_len"]) == (None, None)
        unready = await served.client.get("/health")
        assert (unready.status_code, unready.json()["status"]) == (503, "the engine is still loading")
        assert "version" in (await served.client.get("/version")).json()
        served.engine.is_loading = False
        await served.until(lambda: served.replica.why_not_ready is None)
        assert (await served.client.get("/readyz")).status_code == 200
        assert (await served.client.get("/health")).status_code == 200
        await assert_conserved(served)
