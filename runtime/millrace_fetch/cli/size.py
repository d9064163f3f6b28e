"""`millrace size`: the memory that a model needs on a device, from its headers alone."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

from millrace_fetch.cli.local_model import read_local_head
from millrace_fetch.cli.size_request import DESCRIPTION, Question, add_arguments, read_question
from millrace_fetch.errors import FetchError, UsageError
from millrace_fetch.plan.head import ModelHead, describe_head
from millrace_fetch.plan.uri import LOCAL, WRITABLE, Order, parse_uri
from millrace_fit.accelerators import COMMON, GPUS
from millrace_fit.files.needed import explain_choice
from millrace_fit.screen import Model, render_json, render_overview, render_screen
from millrace_fit.verdict import Answer, judge

EXIT_DOES_NOT_FIT = 1
EXIT_BAD_USAGE = 2
EXIT_INTERRUPTED = 130


class Report(NamedTuple):
    """The text to print, and whether a replica would start."""

    text: str
    starts: bool


def main(argv: list[str]) -> int:
    """Print the memory that a model needs. Returns 0 if it fits, 2 for bad usage, 130 if stopped; else 1."""
    parser = argparse.ArgumentParser(prog="millrace size", description=DESCRIPTION)
    add_arguments(parser)
    flags = parser.parse_args(argv)
    try:
        report = make_report(read_question(flags))
    except UsageError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    except FetchError as error:
        return _fail(str(error), EXIT_DOES_NOT_FIT)
    except KeyboardInterrupt:
        return _fail("stopped", EXIT_INTERRUPTED)
    sys.stdout.write(f"{report.text}\n")
    return 0 if report.starts else EXIT_DOES_NOT_FIT


def make_report(question: Question) -> Report:
    """Read the model's head, and return the report. Raises FetchError."""
    head = read_head(question.uri)
    model = Model(_name(question.uri), head.revision, describe_head(head), is_whole=head.is_whole)
    accelerator, settings = question.accelerator, question.settings
    asked = [GPUS[name] for name in COMMON] if accelerator is None else [accelerator]
    verdict = judge(model.facts, settings, accelerator)
    starts = verdict.starts or verdict.answer is Answer.UNKNOWN
    if question.is_json:
        return Report(render_json(model, settings, asked), starts)
    if accelerator is None:
        return Report("\n".join(render_overview(model, settings, asked)), starts)
    return Report("\n".join(render_screen(model, settings, accelerator)), starts)


def _name(uri: str) -> str:
    """Return the URI for people: without its secret parts."""
    return str(parse_uri(uri)) if _is_remote(uri) else uri


def _is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith(LOCAL)


def read_head(uri: str) -> ModelHead:
    """Return a model's head from a source, or from a local folder. Raises FetchError."""
    if _is_remote(uri):
        return _fetch(uri)
    path = Path(uri.removeprefix(LOCAL))
    if not path.is_dir():
        raise UsageError(f"'{uri}' is no folder here: write a folder's path, or {WRITABLE}")
    head = read_local_head(path)
    if choice := explain_choice(head.names):
        _say(choice)
    return head


def _fetch(uri: str) -> ModelHead:
    parsed = parse_uri(uri)
    try:  # a local folder needs none of these libraries
        from millrace_fetch.cli.remote_model import fetch_head  # noqa: PLC0415
        from millrace_fetch.fetch import open_source  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; write: pip install 'millrace[fetch]'") from error
    return asyncio.run(fetch_head(open_source(Order(parsed, Path())), _say))


def _say(text: str) -> None:
    sys.stderr.write(f"millrace size: {text}\n")


def _fail(reason: str, status: int) -> int:
    _say(reason)
    return status
