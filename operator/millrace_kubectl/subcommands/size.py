"""`kubectl millrace size`: the memory that a model takes of a device, as `millrace size` prints it."""

import argparse

from millrace_fetch import errors as fetching
from millrace_fetch.cli import size_request
from millrace_kubectl.errors import PluginError, UnfitError, UsageError
from millrace_kubectl.kubectl import Services


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser("size", help=size_request.SUMMARY, description=size_request.DESCRIPTION)
    size_request.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Return the screen; it asks no cluster. Raises PluginError, and UnfitError, which has the screen."""
    del services, now
    from millrace_fetch.cli.size import make_report  # noqa: PLC0415  explain must not load it

    try:
        report = make_report(size_request.read_question(arguments))
    except fetching.UsageError as error:
        raise UsageError(str(error)) from error
    except fetching.FetchError as error:
        raise PluginError(str(error)) from error
    if not report.starts:
        raise UnfitError("no replica would start with these settings", report.text)
    return report.text
