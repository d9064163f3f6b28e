"""From settings to an executor: loads the model, sizes its KV cache, and chooses the path that computes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from millrace_kernels.native.abi import Library
from millrace_kernels.native.cores import count_threads
from millrace_kernels.native.errors import NativeError, RecordError
from millrace_kernels.native.packing import NativePacker
from millrace_kernels.native.program import Sizes
from millrace_kernels.native.selection import AUTO, CHOICES, CpuPath, select_cpu_path
from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.step import Format, Packer
from millrace_kernels.tensor_step import TensorPacker
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.execution.kv_cache import (
    CacheShape,
    allocate_cache,
    default_cache_bytes,
    plan_cache,
)
from millrace_runtime.execution.loading import (
    CheckpointWeights,
    Reader,
    choose_device,
    choose_dtype,
    choose_format,
    find_model,
    read_config,
)
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.memory import usable_bytes
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Architecture, Model
from millrace_runtime.protocol.step import KvGroup, Limits

Tell = Callable[[str], None]
GPU_PATH = CpuPath(None, "Triton and torch compute, on the GPU")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model packed for one path."""

    model: Model
    dtype: torch.dtype
    device: torch.device
    library: Library | None


@dataclass(frozen=True, slots=True)
class Packers:
    """What matrices are kept in, and what keeps them so on each path."""

    dtype: torch.dtype
    device: torch.device
    form: Format

    def native(self) -> NativePacker:
        """For the native kernels."""
        return NativePacker(self.dtype, self.form)

    def tensor(self) -> TensorPacker:
        """For torch, and Triton."""
        return TensorPacker(self.dtype, self.device, self.form)


def build_executor(settings: ExecutionSettings, tell: Tell | None = None) -> LocalExecutor:
    """Load the model and allocate its KV cache. Raises ModelError, whose text says what to do.

    `tell` is given one line: which path computes, and why.
    """
    if settings.max_sequences < 1 or settings.max_batched_tokens < 1:
        raise ModelError("--max-sequences and --max-batched-tokens must be at least 1")
    raw = read_config(settings.model_path)
    architecture = find_model(settings.model_path, raw)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, raw)
    with torch.inference_mode():
        packers = Packers(dtype, device, choose_format(settings.weights, device))
        loaded = _load(architecture, settings, packers, tell or (lambda _: None))
        shape = _plan_cache(architecture, settings, dtype, device)
        slots = SlotTable(settings.max_sequences, shape.max_model_length, shape.num_blocks, device)
        runner = _runner(loaded, settings)
    limits = Limits(
        groups=(KvGroup(shape.num_blocks),),
        block_size=BLOCK_SIZE,
        num_slots=settings.max_sequences,
        depth=1 if device.type == "cpu" else 2,
        max_model_length=shape.max_model_length,
        vocabulary_size=architecture.vocabulary_size,
    )
    allocate = partial(allocate_cache, architecture, shape.num_blocks, dtype, device)
    return LocalExecutor(runner, slots, limits, device, allocate)


def _load(architecture: Architecture, settings: ExecutionSettings, packers: Packers, tell: Tell) -> Loaded:
    """Pack the model for the path that the device, its instructions and the settings choose."""
    path = GPU_PATH if packers.device.type == "cuda" else _select(settings.kernels)
    if path.library is not None:
        try:
            model = _build(architecture, settings, packers.native())
        except RecordError as error:
            if settings.kernels != AUTO:
                raise ModelError(f"--kernels {settings.kernels}: {error}") from error
            path = CpuPath(None, f"torch computes, slowly: {error}")
        else:
            tell(path.reason)
            return Loaded(model, packers.dtype, packers.device, path.library)
    tell(path.reason)
    model = _build(architecture, settings, packers.tensor())
    return Loaded(model, packers.dtype, packers.device, None)


def _select(choice: str) -> CpuPath:
    if choice not in CHOICES:
        raise ModelError(f'kernels "{choice}" are not known: use {", ".join(CHOICES)}')
    try:
        return select_cpu_path(choice)
    except NativeError as error:
        raise ModelError(f"--kernels {choice}: {error}") from error


def _build(architecture: Architecture, settings: ExecutionSettings, packer: Packer) -> Model:
    longest = min(architecture.max_length, settings.max_model_length or architecture.max_length)
    return architecture.build(CheckpointWeights(Reader(settings.model_path), packer), longest)


def _runner(loaded: Loaded, settings: ExecutionSettings) -> Runner:
    if loaded.library is None:
        return TensorRunner(loaded.model, loaded.device)
    sizes = Sizes(settings.max_batched_tokens, settings.max_sequences, count_threads(torch.get_num_threads()))
    return NativeRunner(loaded.library, loaded.model, loaded.dtype, sizes)


def _plan_cache(
    architecture: Architecture, settings: ExecutionSettings, dtype: torch.dtype, device: torch.device
) -> CacheShape:
    length, cache_bytes = settings.max_model_length, settings.kv_cache_bytes
    if cache_bytes is None:
        is_gpu = device.type == "cuda"
        free = torch.cuda.mem_get_info(device)[0] if is_gpu else usable_bytes()
        needed = length or architecture.max_length
        cache_bytes = default_cache_bytes(
            architecture, dtype, settings.max_sequences, needed, free, is_gpu=is_gpu
        )
    return plan_cache(architecture, dtype, length, cache_bytes)
