"""ONNX Runtime GenAI's engine with its static batching. Arguments: the model's folder, the threads."""

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime_genai

from benchmarks.runtime.drivers.conversation import Complete, Progress, converse

MAX_BATCH_SIZE = 32


def load() -> tuple[str, Complete]:
    """Build the engine from the command's arguments."""
    model_path, threads = sys.argv[1:]
    config = onnxruntime_genai.Config(model_path)
    options = {
        "model": {"decoder": {"session_options": {"intra_op_num_threads": int(threads)}}},
        "search": {"max_length": 1280},
        "engine": {"static_batching": {"max_batch_size": MAX_BATCH_SIZE}},
    }
    config.overlay(json.dumps(options))
    engine = onnxruntime_genai.Engine(onnxruntime_genai.Model(config))
    events = engine.create_event_buffer(8 * MAX_BATCH_SIZE)

    def complete(prompts: list[list[int]], num_tokens: int) -> list[list[Any]]:
        requests = [begin(engine, prompt, num_tokens) for prompt in prompts]
        run(engine, events, requests)
        for request, _ in requests:
            request.close()
        return [progress.to_list() for _, progress in requests]

    return onnxruntime_genai.__version__, complete


def begin(engine: Any, prompt: list[int], num_tokens: int) -> tuple[Any, Progress]:
    """Queue a greedy request of exactly so many tokens."""
    progress = Progress(time.perf_counter())
    options = onnxruntime_genai.RequestOptions()
    options.set_max_session_tokens(len(prompt) + num_tokens)
    request = engine.create_request(options=options)
    turn = onnxruntime_genai.TurnOptions(request)
    turn.set_do_sample(False)
    turn.set_max_generated_tokens(num_tokens)
    turn.set_min_generated_tokens(num_tokens)
    request.begin_turn(np.array(prompt, dtype=np.int32), turn)
    return request, progress


def run(engine: Any, events: Any, requests: list[tuple[Any, Progress]]) -> None:
    """Run until every request has ended."""
    flags = onnxruntime_genai.EngineEventFlags
    num_left = len(requests)
    while num_left:
        found = engine.run(events)
        now = time.perf_counter()
        found = events if found is None or not hasattr(found, "__len__") else found
        for event in (found[number] for number in range(len(found))):
            if event.flags.value & flags.FAILED.value:
                raise RuntimeError(f"a request failed with error {event.error_code}")
            if event.flags.value & flags.TOKEN.value:
                next(progress for request, progress in requests if request == event.request).note(1, now)
            num_left -= bool(event.flags.value & flags.TURN_FINISHED.value)


if __name__ == "__main__":
    converse(load)
