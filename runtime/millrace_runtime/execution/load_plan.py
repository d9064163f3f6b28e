"""How a model is loaded: its architecture, type and format, the device, and which worker's part of it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from millrace_fit.accelerators import NO_GPU
from millrace_fit.plan import choose_sizes
from millrace_kernels.native.abi import Library
from millrace_kernels.native.cores import count_threads
from millrace_kernels.native.packing import NativePacker
from millrace_kernels.native.program import Sizes
from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.step import Format, Packer
from millrace_kernels.tensor_step import TensorPacker
from millrace_runtime.execution.checkpoint import CheckpointWeights, Reader
from millrace_runtime.execution.collective import open_group
from millrace_runtime.execution.errors import CapacityError, UnsupportedModelError
from millrace_runtime.execution.loading import (
    choose_device,
    choose_dtype,
    choose_format,
    explain_no_gpu,
    find_model,
    read_config,
    type_name,
)
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.rank import Rank
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.models.model import Architecture, Model
from millrace_runtime.protocol.step import KvGroup, Limits

Log = Callable[[str], None]
"""Writes one line."""


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

    def limits(self, num_blocks: int, max_model_length: int) -> Limits:
        """Return what an executor with such a cache takes."""
        return Limits(
            groups=(KvGroup(num_blocks),),
            block_size=BLOCK_SIZE,
            num_slots=self.settings.max_sequences,
            depth=1 if self.device.type == "cpu" else 2,
            max_model_length=max_model_length,
            vocabulary_size=self.architecture.vocabulary_size,
            max_batched_tokens=self.settings.max_batched_tokens,
            recordable=() if self.device.type == "cpu" else choose_sizes(self.settings.max_sequences),
        )

    def _load(self, packer: Packer, longest: int) -> Model:
        reader = Reader(self.settings.model_path)
        model = self.architecture.build(CheckpointWeights(reader, packer), longest)
        reader.check_all_read()
        return model


def plan_load(settings: ExecutionSettings, rank: Rank, log: Log) -> LoadPlan:
    """Read the folder's headers, and return how to load the model. Raises ModelError."""
    raw = read_config(settings.model_path)
    architecture = find_model(settings.model_path, raw, rank.shard)
    _check_length(architecture, settings)
    device = choose_device(settings.device, rank.shard)
    if settings.device == "auto" and device.type == "cpu":
        log(f"serving on CPUs, as {NO_GPU}: {explain_no_gpu()}")
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
