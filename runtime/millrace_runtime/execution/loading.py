"""How a model is loaded: its architecture, device, type and format, by its folder and the settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from millrace_fit.accelerators import NO_GPU
from millrace_fit.errors import ArchitectureError
from millrace_fit.files.dtypes import choose_served_type
from millrace_fit.files.needed import MODELOPT
from millrace_fit.plan import choose_mixed_sizes, choose_sizes
from millrace_fit.quantization.methods import add_modelopt, has_quantization
from millrace_fit.quantization.rules import Quantization
from millrace_fit.settings import FROM_CHECKPOINT
from millrace_fit.shard import ALONE, Shard
from millrace_kernels.linear.format import Format
from millrace_kernels.native.abi import Library
from millrace_kernels.native.cores import count_threads
from millrace_kernels.native.program import Sizes
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvFormat
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.weights import Packer
from millrace_runtime.execution.collective import Rank, open_group
from millrace_runtime.execution.errors import (
    CapacityError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from millrace_runtime.execution.kv_cache import choose_kv_format
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.weights.checkpoint import CheckpointWeights, check_tensors, find_kv_scale
from millrace_runtime.execution.weights.safetensors_files import Reader, read_json
from millrace_runtime.models.decoder import find_architecture
from millrace_runtime.models.model import Architecture, Model
from millrace_runtime.protocol.step import KvGroup, Limits, StepSize

Log = Callable[[str], None]
"""Writes one line."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = {"FromCheckpoint": Format.DENSE, "Int8": Format.INT8, "Int4": Format.INT4}
WHOLE_DRAFTS = 16
"""The most sequences with drafts of full length in one step. There is memory for the logits of this many."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load a worker's part of a model: the architecture, type, format and device."""

    architecture: Architecture
    settings: ExecutionSettings
    dtype: torch.dtype
    device: torch.device
    form: Format
    kv_format: KvFormat
    rank: Rank

    def run_natively(self, library: Library, longest: int) -> Runner:
        """Load the model for the native kernels. Raises NativeError if they can't run it."""
        model = self._load(NativePacker(self.dtype, self.form), longest)
        num_threads = count_threads(torch.get_num_threads())
        num_rows = max(self.settings.max_sequences, self._max_draws)
        sizes = Sizes(self.settings.max_batched_tokens, num_rows, num_threads)
        return NativeRunner(library, model, self.dtype, sizes, self.rank.open_exchange())

    def run_with_torch(self, longest: int) -> Runner:
        """Load the model for torch and Triton."""
        packer = TensorPacker(self.dtype, self.device, self.form)
        return TensorRunner(self._load(packer, longest), self.device, open_group(self.rank, self.device))

    def limits(self, num_blocks: Sequence[int], max_model_length: int) -> Limits:
        """Return the limits of an executor with so many blocks of each KV group."""
        return Limits(
            groups=tuple(map(KvGroup, num_blocks, self.architecture.groups)),
            block_size=BLOCK_SIZE,
            num_slots=self.settings.max_sequences,
            depth=1 if self.device.type == "cpu" else 2,
            max_model_length=max_model_length,
            vocabulary_size=self.architecture.vocabulary_size,
            max_batched_tokens=self.settings.max_batched_tokens,
            max_draft=self.settings.speculative_tokens,
            max_draws=self._max_draws,
            recordable=() if self.device.type == "cpu" else self._list_sizes(),
            kv_format=self.kv_format.value,
        )

    @property
    def _max_draws(self) -> int:
        """The most draws of a step with drafts; 0 without drafts."""
        settings = self.settings
        if not settings.speculative_tokens:
            return 0
        whole = min(settings.max_sequences, WHOLE_DRAFTS) * (1 + settings.speculative_tokens)
        return max(settings.max_sequences, whole)

    def _list_sizes(self) -> tuple[StepSize, ...]:
        """Return the sizes of steps that are recorded on a GPU."""
        decode = map(StepSize, choose_sizes(self.settings.max_sequences))
        mixed = choose_mixed_sizes(self.settings.max_batched_tokens)
        return tuple(sorted((*decode, *(StepSize(number, is_mixed=True) for number in mixed))))

    def _load(self, packer: Packer, longest: int) -> Model:
        reader = Reader(self.settings.model_path)
        weights = CheckpointWeights(reader, packer, self.architecture.quantization)
        model = self.architecture.build(weights, longest)
        reader.check_all_read()
        return model


def plan_load(settings: ExecutionSettings, rank: Rank, log: Log) -> LoadPlan:
    """Read the folder's headers and decide how to load the model. Raises ModelError."""
    raw = read_config(settings.model_path)
    architecture = find_model(settings.model_path, raw, rank.shard)
    _check_length(architecture, settings)
    device = choose_device(settings.device, rank.shard)
    if settings.device == "auto" and device.type == "cpu":
        log(f"serving on CPUs, as {NO_GPU}: {explain_no_gpu()}")
    reader = Reader(settings.model_path)
    check_tensors(settings.model_path, raw, reader)
    if reader.choice is not None:
        log(reader.choice)
    if others := sorted(one.rstrip(".") for one in architecture.beside if _has_any(reader, one)):
        log(f"the checkpoint also has {' and '.join(others)}: the text model alone is served")
    if (scale := find_kv_scale(raw, reader)) is not None:
        log(
            f"the checkpoint's fixed scales of the KV cache ({scale}) are left out: with --kv-cache Int8 or "
            "Fp8 each token and head has a scale of its own"
        )
    stored = reader.stored_type
    dtype = choose_dtype(settings.dtype, raw, stored)
    if architecture.quantization.is_quantized:
        log(_explain_quantization(architecture.quantization, settings))
    elif stored is not dtype:
        log(f"the weights are stored as {name_type(stored)} and served as {name_type(dtype)}")
    return LoadPlan(
        architecture=architecture,
        settings=settings,
        dtype=dtype,
        device=device,
        form=choose_format(settings.weights, device),
        kv_format=choose_kv_format(settings.kv_cache, device),
        rank=rank,
    )


def _explain_quantization(quantization: Quantization, settings: ExecutionSettings) -> str:
    """Return a line for the log. Raises ModelError for weights that would be rounded twice."""
    if quantization.is_widened:
        return f"the checkpoint is quantised by {quantization.method}: its matrices are widened by the loader"
    if settings.weights != FROM_CHECKPOINT:
        raise ModelError(
            f"--weights {settings.weights} would round weights that the checkpoint has rounded already, by "
            f"{quantization.method}: leave it out (spec.model.quantization.weights: {FROM_CHECKPOINT})"
        )
    return f"the checkpoint is quantised by {quantization.method}: its matrices are served as they are stored"


def _has_any(reader: Reader, beginning: str) -> bool:
    return any(name.startswith(beginning) for name in reader.names)


def _check_length(architecture: Architecture, settings: ExecutionSettings) -> None:
    """Refuse sequences that are longer than the model's own length."""
    if (settings.max_model_length or 0) > architecture.max_length:
        raise CapacityError(
            f"--max-model-length {settings.max_model_length} is more than the model's own "
            f"{architecture.max_length}: lower it"
        )


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's config.json, with what ModelOpt has written beside it.

    Raises ModelNotFoundError or BadCheckpointError.
    """
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no folder {path}: give the path of a model's folder")
    config = path / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(f"{path} holds no config.json: give a Hugging Face model's folder")
    raw, beside = read_json(config), path / MODELOPT
    if has_quantization(raw) or not beside.is_file():
        return raw
    return add_modelopt(raw, read_json(beside))


def find_model(path: Path, raw: Mapping[str, Any], shard: Shard = ALONE) -> Architecture:
    """Return a shard of the architecture that config.json describes. Raises UnsupportedModelError."""
    try:
        return find_architecture(raw, shard)
    except ArchitectureError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error


def choose_device(name: str, shard: Shard = ALONE) -> torch.device:
    """Return a shard's device; "auto" is CUDA if there is a GPU. Raises ModelError if it is missing."""
    if name not in {"auto", "cpu", "cuda"}:
        raise ModelError(f'device "{name}" is not known: use "auto", "cpu" or "cuda"')
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError(
            f"--device cuda: {NO_GPU} ({explain_no_gpu()}): give the replica one, or "
            "serve on CPUs with --device cpu"
        )
    if (found := torch.cuda.device_count()) < shard.count:
        raise ModelError(
            f"--tensor-parallel {shard.count} takes a GPU for each worker and torch finds {found}: lower it, "
            "or give the replica more GPUs"
        )
    return torch.device("cuda", shard.index)


def explain_no_gpu() -> str:
    """Return torch's own reason why it can use no GPU."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts
        return " ".join(str(error).split(". ")[0].split())
    return "it sees none"


def choose_dtype(name: str, raw: Mapping[str, Any], stored: torch.dtype) -> torch.dtype:
    """Return the type to serve. "auto" is config.json's, or that of the stored weights if it has none."""
    if name != "auto":
        if name not in DTYPES:
            raise ModelError(f'dtype "{name}" is not known: use "auto", {" or ".join(map(repr, DTYPES))}')
        return DTYPES[name]
    try:
        return DTYPES[choose_served_type(raw, name_type(stored))]
    except ArchitectureError as error:
        raise UnsupportedModelError(str(error)) from error


def name_type(dtype: torch.dtype) -> str:
    """Return a type's name as config.json writes it."""
    return str(dtype).removeprefix("torch.")


def choose_format(weights: str, device: torch.device) -> Format:
    """Return the matrices' format. Raises ModelError for a format without kernels on the device."""
    if weights not in FORMATS:
        raise ModelError(f'weights "{weights}" are not known: use {", ".join(map(repr, FORMATS))}')
    if device.type == "cuda" and FORMATS[weights] is not Format.DENSE:
        raise ModelError(
            f"--weights {weights} has no kernels for GPUs yet: leave it out "
            "(spec.model.quantization.weights: FromCheckpoint), or serve on CPUs with --device cpu"
        )
    return FORMATS[weights]
