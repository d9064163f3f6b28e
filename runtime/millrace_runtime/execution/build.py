"""Builds an executor from settings: loads the model, sizes its KV cache, chooses the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from millrace_fit.errors import NoRoomError
from millrace_fit.kv_budget import Budget, CacheDemand, CacheShape, plan_cache, share_out
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.selection import AUTO, CHOICES, CpuPath, select_cpu_path
from millrace_runtime.execution.collective import ALONE_RANK, Rank
from millrace_runtime.execution.errors import CapacityError, ModelError
from millrace_runtime.execution.host import measure_usable_memory
from millrace_runtime.execution.kv_cache import allocate_cache, budget_cache, list_groups
from millrace_runtime.execution.loading import (
    LoadPlan,
    Log,
    name_type,
    plan_load,
)
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import Runner
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.execution.speculation.proposer import PromptLookup, Proposer
from millrace_runtime.execution.speculation.speculation import open_speculation
from millrace_runtime.protocol.step import Placement

GPU_PATH = CpuPath(None, "Triton and torch compute, on the GPU")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model without its KV cache."""

    plan: LoadPlan
    runner: Runner
    device_name: str
    longest: int
    """The most tokens of a sequence, by the memory that was free before the weights."""

    @property
    def placement(self) -> Placement:
        """The device that the model is on, and its number types."""
        plan = self.plan
        return Placement(
            device=plan.device.type,
            device_name=self.device_name,
            dtype=name_type(plan.dtype),
            weights=plan.settings.weights,
            tensor_parallel=plan.rank.shard.count,
            kv_cache=plan.settings.kv_cache,
        )

    def choose_cache(self, host: Budget) -> CacheShape:
        """Return a cache that fits into the free memory, on a GPU beside the largest step.

        Raises CapacityError.
        """
        plan = self.plan
        if plan.device.type == "cuda":
            limits = plan.limits([1] * len(plan.architecture.groups), self.longest)
            budget = budget_cache(plan.device, limits, self.allocate, plan.settings.kv_cache_bytes)
        else:
            budget = _cache_budget(plan, host)
        return _fit_cache(plan, self.longest, budget)

    def allocate(
        self,
        num_blocks: Sequence[int],
        max_model_length: int,
        proposer: Proposer | None = None,
    ) -> LocalExecutor:
        """Return the executor, with so many blocks of each KV group. Raises CapacityError.

        Without a `proposer` it offers no guesses, as a worker: the engine guesses for all of them.
        """
        plan = self.plan
        limits = plan.limits(num_blocks, max_model_length)
        slots = SlotTable(limits, plan.device)
        allocate = partial(
            allocate_cache, plan.architecture, num_blocks, plan.dtype, plan.device, form=plan.kv_format
        )
        return LocalExecutor(
            self.runner,
            slots,
            limits,
            plan.device,
            allocate,
            placement=self.placement,
            speculation=None if proposer is None else open_speculation(limits, proposer),
        )


def build_executor(settings: ExecutionSettings, log: Log | None = None) -> LocalExecutor:
    """Load the model and allocate its KV cache. Raises ModelError, whose text says what to do.

    `log` gets a line about the kernels, one about the size of the cache, and one if the served type is not
    the stored one.
    """
    log = log or _ignore
    loaded = load_model(settings, measure_usable_memory(settings.text_memory_bytes), ALONE_RANK, log)
    shape = loaded.choose_cache(measure_usable_memory(settings.text_memory_bytes))
    log(describe_cache(loaded, shape))
    return loaded.allocate(shape.num_blocks, shape.max_model_length, PromptLookup())


@torch.inference_mode()
def load_model(settings: ExecutionSettings, host: Budget, rank: Rank, log: Log) -> LoadedModel:
    """Load one worker's part of the model. Raises ModelError.

    `host` is the host's memory for the KV cache, if the cache lies there.
    """
    if settings.max_sequences < 1 or settings.max_batched_tokens < 1:
        raise ModelError("--max-sequences and --max-batched-tokens must be at least 1")
    plan = plan_load(settings, rank, log)
    longest = _fit_cache(plan, plan.architecture.max_length, _cache_budget(plan, host)).max_model_length
    runner, path = _load(plan, longest, log)
    return LoadedModel(plan, runner, _name_device(plan.device, path), longest)


def describe_cache(loaded: LoadedModel, shape: CacheShape) -> str:
    """Return a line for the log."""
    return shape.describe() + _explain_length(loaded.plan, shape.max_model_length)


def _explain_length(plan: LoadPlan, length: int) -> str:
    """Return the advice if sequences are shorter than the model's own length and nobody asked for this."""
    own = plan.architecture.max_length
    if plan.settings.max_model_length is not None or length == own:
        return ""
    return f", not the model's {own}: give the cache more memory for longer ones"


def _ignore(_: str) -> None:
    pass


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


def _fit_cache(plan: LoadPlan, longest: int, budget: Budget) -> CacheShape:
    """Return a cache that fits into a budget, for sequences of `longest` tokens. Raises CapacityError."""
    settings = plan.settings
    demand = CacheDemand(
        groups=list_groups(plan.architecture, plan.dtype, plan.kv_format),
        max_sequences=settings.max_sequences,
        max_batched_tokens=settings.max_batched_tokens,
        longest=settings.max_model_length or longest,
        is_firm=settings.max_model_length is not None,
    )
    try:
        return plan_cache(demand, budget)
    except NoRoomError as error:
        raise CapacityError(str(error)) from error


def _cache_budget(plan: LoadPlan, host: Budget) -> Budget:
    """Return the free memory for the cache. On a GPU this is an estimate before the weights are loaded."""
    if plan.settings.kv_cache_bytes is not None:
        return Budget(plan.settings.kv_cache_bytes, "--kv-cache-memory")
    if plan.device.type == "cuda":
        return share_out(torch.cuda.mem_get_info(plan.device)[0], 0)
    return host
