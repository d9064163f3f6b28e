"""OpenVINO GenAI's continuous batching. Arguments: the model's folder, the number of threads.

Its own choices of precision for compute and KV cache (bf16 and u8 where the CPU has AVX-512 BF16) were its
fastest.
"""

import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.runtime.drivers.conversation import Complete, Progress, converse


def load() -> tuple[str, Complete]:
    """Build the pipeline from the command's arguments."""
    model, threads = sys.argv[1:]
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = 1  # GiB
    scheduling.max_num_seqs = 64
    scheduling.max_num_batched_tokens = 2048
    scheduling.dynamic_split_fuse = True
    scheduling.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        model, scheduling, "CPU", {"INFERENCE_NUM_THREADS": int(threads)}
    )
    num_requests = 0

    def complete(prompts: list[list[int]], num_tokens: int) -> list[list[Any]]:
        nonlocal num_requests
        requests = []
        for prompt in prompts:
            progress = Progress(time.perf_counter())
            tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
            requests.append((pipeline.add_request(num_requests, tensor, ask(num_tokens)), progress))
            num_requests += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
            read(requests)
        return [progress.to_list() for _, progress in requests]

    return openvino_genai.__version__, complete


def ask(num_tokens: int) -> Any:
    """Return the settings of a greedy request of exactly so many tokens."""
    settings = openvino_genai.GenerationConfig()
    settings.max_new_tokens = settings.min_new_tokens = num_tokens
    settings.ignore_eos = True
    settings.do_sample = False
    return settings


def read(requests: list[tuple[Any, Progress]]) -> None:
    """Note the tokens that a step brought."""
    now = time.perf_counter()
    for handle, progress in requests:
        while handle.can_read():
            for output in handle.read().values():
                progress.note(len(output.generated_ids), now)


if __name__ == "__main__":
    converse(load)
