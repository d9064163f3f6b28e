"""`kubectl millrace SUB-COMMAND`: kubectl runs `kubectl-millrace` from PATH."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from millrace_kubectl.errors import AnsweredError, PluginError, UsageError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.subcommands import explain, key, models, pin, rollout, simulate, size, status
from millrace_kubectl.wording import strip_unprintable

PROGRAM = "kubectl millrace"
SUB_COMMANDS = {
    "status": status,
    "explain": explain,
    "pin": pin,
    "freeze": pin,
    "unpin": pin,
    "promote": rollout,
    "abort": rollout,
    "refresh": rollout,
    "simulate": simulate,
    "size": size,
    "models": models,
    "key": key,
}
"""Each with its module."""
FLAGS = ("namespace", "context", "kubeconfig")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show, explain, pin, promote and simulate InferenceServices; make keys.",
    )
    _add_flags(parser, default=None)
    commands = parser.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    for module in dict.fromkeys(SUB_COMMANDS.values()):
        module.add_parsers(commands)
    for own in list_parsers(parser):
        _add_flags(own, default=argparse.SUPPRESS)
    return parser


def list_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of the sub-commands, and of their actions."""
    for action in parser._actions:  # noqa: SLF001  argparse has no public list; argcomplete does so too
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for own in action.choices.values():
                yield own
                yield from list_parsers(own)


def _add_flags(parser: argparse.ArgumentParser, default: Any) -> None:
    """Add kubectl's own flags. They also work after a sub-command, and keep flags before it."""
    add = parser.add_argument
    add("-n", "--namespace", default=default, help="the service's namespace (default: the context's)")
    add("--context", default=default, help="the context of the kubeconfig (default: its current one)")
    add("--kubeconfig", default=default, metavar="FILE", help="the kubeconfig (default: as kubectl finds it)")


def run(argv: Sequence[str]) -> int:
    """Run a sub-command, print its answer, and return the exit status: 0, 1, or 2 for bad usage."""
    arguments = build_parser().parse_args(argv)
    flags = (f"--{flag}={value}" for flag in FLAGS if (value := getattr(arguments, flag)) is not None)
    try:
        text = arguments.run(arguments, Services(tuple(flags)), time.time())
    except PluginError as error:
        if isinstance(error, AnsweredError):
            _print(error.answer)
        sys.stderr.write(f"{PROGRAM}: {strip_unprintable(str(error))}\n")
        return 2 if isinstance(error, UsageError) else 1
    _print(text)
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{strip_unprintable(text)}\n")


def main() -> None:
    """Run with the process's arguments, and exit."""
    try:
        sys.exit(run(sys.argv[1:]))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
