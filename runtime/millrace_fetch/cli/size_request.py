"""The flags of `millrace size`, read into a model's address, a device and settings. Pure."""

import argparse
from typing import NamedTuple

from millrace_fetch.errors import UsageError
from millrace_fetch.plan.uri import WRITABLE
from millrace_fit.accelerators import CPU, GPUS, Accelerator, find_accelerator
from millrace_fit.errors import SettingError
from millrace_fit.settings import (
    FROM_CHECKPOINT,
    KV_CACHES,
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    MODEL_TYPE,
    WEIGHTS,
    Settings,
)
from millrace_fit.units import read_amount

SUMMARY = "show how much of a device's memory a model needs"
DESCRIPTION = """Show how much of a device's memory a model needs, and whether it fits. Only config.json and
the headers of the safetensors files are read: some kilobytes. For an image in a registry these are up to
64 MiB."""


class Question(NamedTuple):
    """A model, a device and settings."""

    uri: str
    accelerator: Accelerator | None
    """None: several common GPUs."""
    settings: Settings
    is_json: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the URI and the flags to a parser."""
    add = parser.add_argument
    sequences, tokens = MAX_SEQUENCES, MAX_BATCHED_TOKENS
    add("uri", metavar="URI", help=f"where the model is: {WRITABLE}, or a folder's path")
    add("--accelerator", metavar="GPU", help="such as h100-80g, a MIG profile such as 3g.40gb, or cpu")
    add("--memory", metavar="AMOUNT", help="of a GPU that has no name here, such as 80GiB; with cpu of a pod")
    add("--tensor-parallel", type=_count, default=1, metavar="N", help="devices that share it (default: 1)")
    add("--weights", choices=WEIGHTS, default=FROM_CHECKPOINT, help="on CPUs (default: %(default)s)")
    add("--kv-cache", choices=KV_CACHES, default=MODEL_TYPE, help="its format (default: %(default)s)")
    add("--max-model-length", type=_count, metavar="TOKENS", help="of a sequence (default: the model's own)")
    add(
        "--max-sequences",
        type=_count,
        metavar="N",
        help=f"at a time (default: {sequences['cpu']} on CPUs, {sequences['cuda']} on GPUs)",
    )
    add(
        "--max-batched-tokens",
        type=_count,
        metavar="TOKENS",
        help=f"of a step (default: {tokens['cpu']} on CPUs, {tokens['cuda']} on GPUs)",
    )
    add("--json", action="store_true", help="print JSON, with all amounts in bytes")


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 8 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 to 99999999")


def read_question(flags: argparse.Namespace) -> Question:
    """Return the question that the flags ask. Raises UsageError."""
    accelerator = _choose_accelerator(flags.accelerator, _read_memory(flags.memory))
    settings = Settings(
        device="cuda" if accelerator is None else accelerator.device,
        weights=flags.weights,
        kv_cache=flags.kv_cache,
        tensor_parallel=flags.tensor_parallel,
        max_model_length=flags.max_model_length,
        max_sequences=flags.max_sequences,
        max_batched_tokens=flags.max_batched_tokens,
    )
    return Question(flags.uri, accelerator, settings, flags.json)


def _read_memory(text: str | None) -> int | None:
    try:
        return None if text is None else read_amount(text)
    except SettingError as error:
        raise UsageError(f"--memory: {error}") from error


def _choose_accelerator(name: str | None, memory: int | None) -> Accelerator | None:
    if name == CPU:
        if memory is None:
            raise UsageError("--accelerator cpu needs --memory: the pod's limit, such as 16Gi")
        return Accelerator("a pod on CPUs", memory, device="cpu")
    if name is None:
        return None if memory is None else Accelerator("a GPU", memory)
    if memory is not None:
        raise UsageError(f"--memory is for a GPU without a name and for cpu: leave it out with {name}")
    if (known := find_accelerator(name)) is None:
        raise UsageError(f"'{name}' is not known: write one of {', '.join((*GPUS, CPU))}, or --memory")
    return known
