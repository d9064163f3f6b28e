"""transformers on the same device, with the same weights and prompts, where it can be imported."""

import os
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Figure, Row
from benchmarks.gpu.served.workload import Workload, checkpoint_of, choose_workload, read_rate


def measure_transformers(bench: Bench) -> Iterator[Row]:
    """Tell the tokens a second of `generate`, and of its continuous batching."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read at import: the machine has no network
    try:
        import transformers  # noqa: PLC0415  it may be missing
    except ImportError as error:
        yield Figure("transformers can't be imported", 0.0, "", facts={"error": str(error)})
        return
    work, name = choose_workload(bench), f"transformers {transformers.__version__}"
    began = time.perf_counter()
    model = _load(transformers, bench)
    yield Figure(f"{name}: loading", time.perf_counter() - began, "s")
    rates = {count: _measure_generate(bench, model, work, count) for count in (1, work.compared)}
    for count, rate in rates.items():
        yield Figure(f"{name}, generate, {count}: tokens", rate, "tokens/s")
    if ours := read_rate(bench, "replica"):
        yield Figure(f"the replica over generate, {work.compared}", ours / rates[work.compared], "")
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        yield Figure(f"{name} has no continuous batching", 0.0, "")
        return
    # Without a number of blocks, a host without psutil would give it more memory than there is.
    batching = transformers.ContinuousBatchingConfig(num_blocks=bench.sized(None, 8))
    try:
        rate = _measure_batching(model, work, batching)
    except Exception as error:  # noqa: BLE001  a peer's failure is none of ours
        yield Figure(f"{name}, continuous batching failed", 0.0, "", facts={"error": f"{error!r:.500}"})
        return
    yield Figure(f"{name}, continuous batching, {work.compared}: tokens", rate, "tokens/s")
    if ours:
        yield Figure(f"the replica over continuous batching, {work.compared}", ours / rate, "")


@torch.inference_mode(mode=False)  # its threads write into what is made here
def _load(transformers: ModuleType, bench: Bench) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_of(bench), dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None  # it would end some streams
    model.generation_config.do_sample = False
    return model.to(bench.where)


@torch.inference_mode(mode=False)
def _measure_generate(bench: Bench, model: Any, work: Workload, count: int) -> float:
    """Return the tokens a second of a whole call."""
    prompts = torch.tensor(work.draw_prompts(count, work.prompt, seed=6), device=bench.where)
    options = {"attention_mask": torch.ones_like(prompts), "pad_token_id": 0}
    model.generate(prompts, max_new_tokens=2, **options)  # warms up
    bench.device.synchronize()
    began = time.perf_counter()
    found = model.generate(prompts, max_new_tokens=work.output, **options)
    bench.device.synchronize()
    return float(count * (found.shape[1] - work.prompt) / (time.perf_counter() - began))


@torch.inference_mode(mode=False)
def _measure_batching(model: Any, work: Workload, batching: Any) -> float:
    """Return the tokens a second from the first one on. Before it, it makes a cache and records graphs."""
    prompts = work.draw_prompts(work.compared, work.prompt, seed=6)
    found = model.generate_batch(
        prompts, max_new_tokens=work.output, record_timestamps=True, continuous_batching_config=batching
    )
    times = sorted(moment for one in found.values() for moment in one.timestamps or ())
    if len(times) < len(prompts) * work.output:
        errors = [one.error for one in found.values() if one.error]
        raise ValueError(f"continuous batching drew {len(times)} tokens; errors: {errors[:1]}")
    return float((len(times) - 1) / (times[-1] - times[0]))
