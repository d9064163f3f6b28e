"""The part `speed`: rates, each over what the device does at best, measured in the same process."""

from functools import partial

from benchmarks.gpu.attention_speed import (
    measure_decode_attention,
    measure_experts,
    measure_operations,
    measure_prefill_attention,
    measure_rounded_attention,
    measure_windowed_attention,
)
from benchmarks.gpu.bench import Step
from benchmarks.gpu.limits import report_limits
from benchmarks.gpu.mixed import measure_mixed_load
from benchmarks.gpu.mixed_steps import measure_mixed_steps
from benchmarks.gpu.whole_steps import (
    BATCHES,
    measure_decode,
    measure_host_time,
    measure_prefill,
    measure_rounded_decode,
    measure_step_gaps,
)

STEPS: dict[str, Step] = {
    "limits": report_limits,
    **{f"decode, batch {count}": partial(measure_decode, count) for count in BATCHES},
    "decode attention": measure_decode_attention,
    "rounded decode": measure_rounded_decode,
    "rounded attention": measure_rounded_attention,
    "prefill": measure_prefill,
    "prefill attention": measure_prefill_attention,
    "windowed attention": measure_windowed_attention,
    "CPU time": measure_host_time,
    "gaps": measure_step_gaps,
    "mixed steps": measure_mixed_steps,
    "mixed load": measure_mixed_load,
    "experts": measure_experts,
    "operations": measure_operations,
}
