"""The load that each answer carries, and /load."""

import asyncio

from millrace_runtime.contract import HEADER_LOAD, PATH_LOAD
from tests.runtime.api.fake_engine import READY
from tests.runtime.api.served import Served


async def test_answers_and_the_path_say_what_the_engine_has_to_do(served: Served) -> None:
    idle = {"server_load": 0, "waiting": 0, "running": 0, "max_sequences": READY.max_sequences, "kv_usage": 0}
    answer = await served.client.get(PATH_LOAD)
    assert (answer.json(), answer.headers[HEADER_LOAD]) == (idle, "0 0 8 0.000")
    served.engine.pauses_after = 3
    body = {"prompt": "a", "n": 2, "stream": True}
    async with served.client.stream("POST", "/v1/completions", json=body) as streamed:
        assert streamed.headers[HEADER_LOAD] == "0 2 8 0.250"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(served.client.post("/v1/completions", json={"prompt": "a"}))
            await served.until(lambda: len(served.engine.running) == 3)
            busy = {"server_load": 2, "waiting": 1, "running": 2, "max_sequences": 8, "kv_usage": 0.25}
            assert (await served.client.get(PATH_LOAD)).json() == busy
            served.engine.pauses_after = None
        assert HEADER_LOAD in (await waiting).headers
    refused = await served.client.post("/v1/completions", json={"prompt": "a", "n": 129})
    assert (refused.status_code, HEADER_LOAD in refused.headers) == (400, True)
