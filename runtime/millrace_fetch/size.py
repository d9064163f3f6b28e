"""`millrace size`: what a model takes of a device's memory, before anything of it is fetched."""

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from millrace_fetch.errors import FetchError, UsageError
from millrace_fetch.head import ModelHead
from millrace_fetch.local_head import read_local_head
from millrace_fetch.uri import WRITABLE, parse_uri
from millrace_fit.accelerators import COMMON, CPU, GPUS, Accelerator, find_accelerator
from millrace_fit.errors import SettingError
from millrace_fit.facts import ModelFacts, find_facts
from millrace_fit.formats import explain_formats
from millrace_fit.screen import Model, render_json, render_overview, render_screen
from millrace_fit.settings import FROM_CHECKPOINT, WEIGHTS, Settings
from millrace_fit.verdict import judge
from millrace_fit.words import read_amount

DESCRIPTION = """Tell what a model takes of a device's memory, and whether it fits. Only config.json and the
heads of the safetensors files are read: some kilobytes."""
EXIT_DOES_NOT_FIT = 1
EXIT_BAD_USAGE = 2
EXIT_INTERRUPTED = 130


class Report(NamedTuple):
    """What is printed, and whether a replica would start."""

    text: str
    starts: bool


def main(argv: list[str]) -> int:
    """Print what a model takes. Returns 0 where it fits, 1 where it does not, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="millrace size", description=DESCRIPTION)
    add_arguments(parser)
    flags = parser.parse_args(argv)
    try:
        report = tell(flags)
    except UsageError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    except FetchError as error:
        return _fail(str(error), EXIT_DOES_NOT_FIT)
    except KeyboardInterrupt:
        return _fail("stopped", EXIT_INTERRUPTED)
    sys.stdout.write(f"{report.text}\n")
    return 0 if report.starts else EXIT_DOES_NOT_FIT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the URI and the flags."""
    add = parser.add_argument
    add("uri", metavar="URI", help=f"where the model is: {WRITABLE}, or a folder's path")
    add("--accelerator", metavar="NAME", help="a GPU such as h100-80g, a MIG profile such as 3g.40gb, or cpu")
    add("--memory", metavar="AMOUNT", help="of a GPU that has no name here, such as 80GiB; of a pod with cpu")
    add("--tensor-parallel", type=_count, default=1, metavar="N", help="devices that share it (default: 1)")
    add("--weights", choices=WEIGHTS, default=FROM_CHECKPOINT, help="on CPUs (default: %(default)s)")
    add("--max-model-length", type=_count, metavar="TOKENS", help="of a sequence (default: the model's own)")
    add("--max-sequences", type=_count, metavar="N", help="at a time (default: 256 on GPUs, 32 on CPUs)")
    add(
        "--max-batched-tokens",
        type=_count,
        metavar="TOKENS",
        help="of a step (default: 4096, or 512 on CPUs)",
    )
    add("--json", action="store_true", help="print JSON, with all amounts in bytes")


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) <= 8:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 to 99999999")


def tell(flags: argparse.Namespace) -> Report:
    """Read the model's head, and return what is to be printed. Raises FetchError."""
    accelerator = _choose_accelerator(flags)
    settings = Settings(
        device="cuda" if accelerator is None else accelerator.device,
        weights=flags.weights,
        tensor_parallel=flags.tensor_parallel,
        max_model_length=flags.max_model_length,
        max_sequences=flags.max_sequences,
        max_batched_tokens=flags.max_batched_tokens,
    )
    head = read_head(flags.uri)
    return _report(
        Model(flags.uri, head.revision, describe_head(head)), settings, accelerator, is_json=flags.json
    )


def _report(model: Model, settings: Settings, accelerator: Accelerator | None, *, is_json: bool) -> Report:
    asked = [GPUS[name] for name in COMMON] if accelerator is None else [accelerator]
    starts = (
        model.facts.fault is None if accelerator is None else judge(model.facts, settings, accelerator).starts
    )
    if is_json:
        return Report(render_json(model, settings, asked), starts)
    if accelerator is None:
        return Report("\n".join(render_overview(model, settings, asked)), starts)
    return Report("\n".join(render_screen(model, settings, accelerator)), starts)


def _choose_accelerator(flags: argparse.Namespace) -> Accelerator | None:
    """Return the one that the flags name. Raises UsageError."""
    name = flags.accelerator
    try:
        memory = read_amount(flags.memory) if flags.memory else None
    except SettingError as error:
        raise UsageError(f"--memory: {error}") from error
    if name == CPU:
        if memory is None:
            raise UsageError("--accelerator cpu needs --memory: the pod's limit, such as 16Gi")
        return Accelerator("a pod on CPUs", memory, device="cpu")
    if name and memory is not None:
        raise UsageError("--memory is for a GPU without a name, and for cpu: leave --accelerator out, or it")
    if memory is not None:
        return Accelerator("a GPU", memory)
    if name and (known := find_accelerator(name)) is None:
        raise UsageError(f"'{name}' is not known: write {', '.join((*GPUS, CPU))}, or --memory")
    return known if name else None


def read_head(uri: str) -> ModelHead:
    """Return a model's head from a source, or from a folder of this machine. Raises FetchError."""
    if uri.startswith("file://"):
        return read_local_head(Path(uri.removeprefix("file://")))
    if "://" in uri:
        return _fetch(uri)
    if not Path(uri).is_dir():
        raise UsageError(f"'{uri}' is no folder here: write a folder's path, or {WRITABLE}")
    return read_local_head(Path(uri))


def _fetch(uri: str) -> ModelHead:
    parsed = parse_uri(uri)
    try:  # a folder can be asked about without these libraries
        from millrace_fetch.fetching import Order, open_source  # noqa: PLC0415
        from millrace_fetch.headers import fetch_head  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; write: pip install 'millrace[fetch]'") from error
    return asyncio.run(fetch_head(open_source(Order(parsed, Path())), _say))


def describe_head(head: ModelHead) -> ModelFacts:
    """Return the facts. Of a model without safetensors they say which other formats there are."""
    facts = find_facts(head.config, head.tensors)
    if head.tensors or facts.shape is None:
        return facts
    return replace(facts, fault=explain_formats(head.names))


def _say(text: str) -> None:
    sys.stderr.write(f"millrace size: {text}\n")


def _fail(reason: str, status: int) -> int:
    _say(reason)
    return status
