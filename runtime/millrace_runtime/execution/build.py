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
from millrace_kernels.step import Format, Packer
from millrace_kernels.tensor_step import TensorPacker
from millrace_runtime.execution.errors import CapacityError, ModelError, UnsupportedModelError
from millrace_runtime.execution.kv_cache import (
    BLOCK_SIZE,
    CacheDemand,
    CacheShape,
    allocate_cache,
    block_bytes,
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
from millrace_runtime.execution.memory import Budget, usable_memory
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Architecture, Model
from millrace_runtime.protocol.step import KvGroup, Limits

Tell = Callable[[str], None]
GPU_SHARE_OF_FREE = 0.9
"""Of a GPU's memory, for the KV cache: the rest is for activations and what else lives there."""
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
    _check_length(architecture, settings)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, raw)
    with torch.inference_mode():
        packers = Packers(dtype, device, choose_format(settings.weights, device))
        # Before the weights more is free than after: no sequence will be longer than this.
        longest = _plan_cache(architecture, settings, packers, architecture.max_length).max_model_length
        loaded = _load(architecture, settings, packers, longest, tell or (lambda _: None))
        runner = _runner(loaded, settings)
        shape = _plan_cache(architecture, settings, packers, longest)
        slots = SlotTable(settings.max_sequences, shape.max_model_length, shape.num_blocks, device)
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


def _check_length(architecture: Architecture, settings: ExecutionSettings) -> None:
    """Refuse sequences longer than the model's own length, or than the window of its attention."""
    length, window = settings.max_model_length or architecture.max_length, architecture.window
    if length > architecture.max_length:
        raise CapacityError(
            f"--max-model-length {length} is more than the model's own {architecture.max_length}: lower it"
        )
    if window is not None and length > window:
        raise UnsupportedModelError(
            f"{settings.model_path}: config.json has sliding_window {window}, which is not supported yet; "
            f"shorter sequences do without: serve it with --max-model-length {window} "
            "(spec.engine.maxModelLength)"
        )


def _load(
    architecture: Architecture, settings: ExecutionSettings, packers: Packers, longest: int, tell: Tell
) -> Loaded:
    """Pack the model for the path that the device, its instructions and the settings choose."""
    path = GPU_PATH if packers.device.type == "cuda" else _select(settings.kernels)
    if path.library is not None:
        try:
            model = _build(architecture, settings, packers.native(), longest)
        except RecordError as error:
            if settings.kernels != AUTO:
                raise ModelError(f"--kernels {settings.kernels}: {error}") from error
            path = CpuPath(None, f"torch computes, slowly: {error}")
        else:
            tell(path.reason)
            return Loaded(model, packers.dtype, packers.device, path.library)
    tell(path.reason)
    model = _build(architecture, settings, packers.tensor(), longest)
    return Loaded(model, packers.dtype, packers.device, None)


def _select(choice: str) -> CpuPath:
    if choice not in CHOICES:
        raise ModelError(f'kernels "{choice}" are not known: use {", ".join(CHOICES)}')
    try:
        return select_cpu_path(choice)
    except NativeError as error:
        raise ModelError(f"--kernels {choice}: {error}") from error


def _build(architecture: Architecture, settings: ExecutionSettings, packer: Packer, longest: int) -> Model:
    return architecture.build(CheckpointWeights(Reader(settings.model_path), packer), longest)


def _runner(loaded: Loaded, settings: ExecutionSettings) -> Runner:
    if loaded.library is None:
        return TensorRunner(loaded.model, loaded.device)
    sizes = Sizes(settings.max_batched_tokens, settings.max_sequences, count_threads(torch.get_num_threads()))
    return NativeRunner(loaded.library, loaded.model, loaded.dtype, sizes)


def _plan_cache(
    architecture: Architecture, settings: ExecutionSettings, packers: Packers, longest: int
) -> CacheShape:
    """Fit the cache into what is free now, for sequences of at most `longest` tokens."""
    demand = CacheDemand(
        block_bytes=block_bytes(architecture, packers.dtype),
        max_sequences=settings.max_sequences,
        longest=settings.max_model_length or longest,
        is_firm=settings.max_model_length is not None,
    )
    return plan_cache(demand, _cache_budget(settings, packers.device))


def _cache_budget(settings: ExecutionSettings, device: torch.device) -> Budget:
    if settings.kv_cache_bytes is not None:
        return Budget(settings.kv_cache_bytes, "--kv-cache-memory")
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return Budget(int(free * GPU_SHARE_OF_FREE), f"{GPU_SHARE_OF_FREE} of what the GPU has free")
    return usable_memory()
