"""Builds an executor from settings: loads the model, sizes its KV cache, chooses the path that computes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from millrace_fit.kv_cache import Budget, CacheDemand, CacheShape, share_out
from millrace_fit.plan import choose_sizes
from millrace_kernels.native.abi import Library
from millrace_kernels.native.cores import count_threads
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.packing import NativePacker
from millrace_kernels.native.program import Sizes
from millrace_kernels.native.selection import AUTO, CHOICES, CpuPath, select_cpu_path
from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.step import Format, Packer
from millrace_kernels.tensor_step import TensorPacker
from millrace_runtime.execution.checkpoint import CheckpointWeights, Reader
from millrace_runtime.execution.collective import open_group
from millrace_runtime.execution.errors import CapacityError, ModelError, UnsupportedModelError
from millrace_runtime.execution.kv_cache import allocate_cache, block_bytes, plan_cache
from millrace_runtime.execution.largest_step import budget_cache
from millrace_runtime.execution.loading import (
    choose_device,
    choose_dtype,
    choose_format,
    explain_no_gpu,
    find_model,
    read_config,
    type_name,
)
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.memory import usable_memory
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.rank import ALONE_RANK, Rank
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Architecture, Model
from millrace_runtime.protocol.placement import Placement
from millrace_runtime.protocol.step import KvGroup, Limits

Log = Callable[[str], None]
"""Writes one line."""
GPU_PATH = CpuPath(None, "Triton and torch compute, on the GPU")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load a model: its architecture, type and format, the device, and which worker's part."""

    architecture: Architecture
    settings: ExecutionSettings
    dtype: torch.dtype
    device: torch.device
    form: Format
    rank: Rank

    def run_natively(self, library: Library, longest: int) -> Runner:
        """Load the model for the native kernels. Raises NativeError where they can't run it."""
        model = self._load(NativePacker(self.dtype, self.form), longest)
        num_threads = count_threads(torch.get_num_threads())
        sizes = Sizes(self.settings.max_batched_tokens, self.settings.max_sequences, num_threads)
        return NativeRunner(library, model, self.dtype, sizes, self.rank.open_exchange())

    def run_with_torch(self, longest: int) -> Runner:
        """Load the model for torch and Triton."""
        packer = TensorPacker(self.dtype, self.device, self.form)
        return TensorRunner(self._load(packer, longest), self.device, open_group(self.rank, self.device))

    def _load(self, packer: Packer, longest: int) -> Model:
        reader = Reader(self.settings.model_path)
        model = self.architecture.build(CheckpointWeights(reader, packer), longest)
        reader.check_all_read()
        return model


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose KV cache is still to be allocated."""

    plan: LoadPlan
    runner: Runner
    device_name: str
    longest: int
    """Tokens of a sequence, at most: before the weights more was free than after."""

    @property
    def placement(self) -> Placement:
        """What the model lies on, and in which numbers."""
        plan = self.plan
        return Placement(
            device=plan.device.type,
            device_name=self.device_name,
            dtype=type_name(plan.dtype),
            weights=plan.settings.weights,
            tensor_parallel=plan.rank.shard.count,
        )

    def plan_cache(self, host: Budget) -> CacheShape:
        """Return a cache that fits into what is free. Raises CapacityError."""
        device = self.plan.device
        if device.type == "cuda" and self.plan.settings.kv_cache_bytes is None:
            budget = budget_cache(device, _limits(self.plan, 1, self.longest), self.allocate)
        else:
            budget = _cache_budget(self.plan, host)
        return _plan_cache(self.plan, self.longest, budget)

    def allocate(self, num_blocks: int, max_model_length: int) -> LocalExecutor:
        """Return the executor, with a cache of this size. Raises CapacityError."""
        plan = self.plan
        limits = _limits(plan, num_blocks, max_model_length)
        slots = SlotTable(limits, plan.device)
        allocate = partial(allocate_cache, plan.architecture, num_blocks, plan.dtype, plan.device)
        return LocalExecutor(self.runner, slots, limits, plan.device, allocate, placement=self.placement)


def build_executor(settings: ExecutionSettings, log: Log | None = None) -> LocalExecutor:
    """Load the model and allocate its KV cache. Raises ModelError, whose text says what to do.

    `log` gets a line on the path that computes, one on the size of the cache, and one where another type is
    served than stored.
    """
    log = log or _ignore
    loaded = load_model(settings, usable_memory(settings.text_memory_bytes), ALONE_RANK, log)
    shape = loaded.plan_cache(usable_memory(settings.text_memory_bytes))
    log(describe_cache(loaded, shape))
    return loaded.allocate(shape.num_blocks, shape.max_model_length)


@torch.inference_mode()
def load_model(settings: ExecutionSettings, host: Budget, rank: Rank, log: Log) -> LoadedModel:
    """Load one worker's part of the model. Raises ModelError.

    `host` is what the host's memory leaves for the KV cache, where that lies there.
    """
    if settings.max_sequences < 1 or settings.max_batched_tokens < 1:
        raise ModelError("--max-sequences and --max-batched-tokens must be at least 1")
    plan = _plan_load(settings, rank, log)
    longest = _plan_cache(plan, plan.architecture.max_length, _cache_budget(plan, host)).max_model_length
    runner, path = _load(plan, longest, log)
    return LoadedModel(plan, runner, _name_device(plan.device, path), longest)


def describe_cache(loaded: LoadedModel, shape: CacheShape) -> str:
    """Return a line for the log."""
    return shape.describe() + _explain_length(loaded.plan, shape.max_model_length)


def _explain_length(plan: LoadPlan, length: int) -> str:
    """Return what to do about sequences shorter than the model's own length, if nobody asked for them."""
    own = plan.architecture.max_length
    if plan.settings.max_model_length is not None or length == own:
        return ""
    return f", not the model's {own}: give the cache more memory for longer ones"


def _limits(plan: LoadPlan, num_blocks: int, max_model_length: int) -> Limits:
    return Limits(
        groups=(KvGroup(num_blocks),),
        block_size=BLOCK_SIZE,
        num_slots=plan.settings.max_sequences,
        depth=1 if plan.device.type == "cpu" else 2,
        max_model_length=max_model_length,
        vocabulary_size=plan.architecture.vocabulary_size,
        max_batched_tokens=plan.settings.max_batched_tokens,
        recordable=() if plan.device.type == "cpu" else choose_sizes(plan.settings.max_sequences),
    )


def _ignore(_: str) -> None:
    pass


def _plan_load(settings: ExecutionSettings, rank: Rank, log: Log) -> LoadPlan:
    """Read the folder's headers, and return how to load the model. Raises ModelError."""
    raw = read_config(settings.model_path)
    architecture = find_model(settings.model_path, raw, rank.shard)
    _check_length(architecture, settings)
    device = choose_device(settings.device, rank.shard)
    if settings.device == "auto" and device.type == "cpu":
        log(f"serving on CPUs, as torch finds no GPU that works: {explain_no_gpu()}")
    stored = Reader(settings.model_path).stored_type
    dtype = choose_dtype(settings.dtype, raw, stored)
    if stored is not dtype:
        log(f"the weights are stored as {type_name(stored)} and served as {type_name(dtype)}")
    return LoadPlan(architecture, settings, dtype, device, choose_format(settings.weights, device), rank)


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


def _load(plan: LoadPlan, longest: int, log: Log) -> tuple[Runner, CpuPath]:
    """Load the model for the path that device, instructions and settings choose. Raises ModelError."""
    choice = plan.settings.kernels
    path = GPU_PATH if plan.device.type == "cuda" else _select(choice)
    if path.library is not None:
        try:
            runner = plan.run_natively(path.library, longest)
        except NativeError as error:
            if choice != AUTO:
                raise ModelError(f"--kernels {choice}: {error}") from error
            path = CpuPath(None, f"torch computes, slowly: {error}")
        else:
            log(path.reason)
            return runner, path
    log(path.reason)
    return plan.run_with_torch(longest), path


def _name_device(device: torch.device, path: CpuPath) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else path.name


def _select(choice: str) -> CpuPath:
    if choice not in CHOICES:
        raise ModelError(f'kernels "{choice}" are not known: use {", ".join(CHOICES)}')
    try:
        return select_cpu_path(choice)
    except NativeError as error:
        raise ModelError(f"--kernels {choice}: {error}") from error


def _plan_cache(plan: LoadPlan, longest: int, budget: Budget) -> CacheShape:
    """Return a cache that fits into a budget, for sequences of at most `longest` tokens."""
    settings = plan.settings
    demand = CacheDemand(
        block_bytes=block_bytes(plan.architecture, plan.dtype),
        max_sequences=settings.max_sequences,
        longest=settings.max_model_length or longest,
        is_firm=settings.max_model_length is not None,
    )
    return plan_cache(demand, budget)


def _cache_budget(plan: LoadPlan, host: Budget) -> Budget:
    """Return what is free now for the cache; on a GPU it is a first guess, before the weights are there."""
    if plan.settings.kv_cache_bytes is not None:
        return Budget(plan.settings.kv_cache_bytes, "--kv-cache-memory")
    if plan.device.type == "cuda":
        return share_out(torch.cuda.mem_get_info(plan.device)[0], 0)
    return host
