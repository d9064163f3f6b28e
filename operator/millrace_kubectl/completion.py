"""`kubectl_complete-millrace`: kubectl (1.26 and newer) runs it to complete a command line of the plugin.

It prints a candidate on each line, with a tab before its description, and on the last line a directive for
the shell. The protocol is that of Cobra's `__complete`, which kubectl passes on.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from millrace_kubectl.command import FLAGS, build_parser
from millrace_kubectl.errors import PluginError
from millrace_kubectl.kubectl import Services

NO_FILES = ":4"
"""Cobra's ShellCompDirectiveNoFileComp: the shell adds no file names."""
FILES = ":0"
"""Cobra's default: the shell offers file names if there is no other candidate."""
TAKES_A_FILE = frozenset({"FILE", "FOLDER"})


def complete(words: Sequence[str]) -> list[str]:
    """Return the lines to print for the words after `kubectl millrace`. The last word is the unfinished
    one.
    """
    *before, last = words or [""]
    parser = build_parser()
    chosen = find_sub_command(parser, before)
    option = _find_option(chosen or parser, before[-1]) if before else None
    if option is not None and option.nargs != 0:
        if option.metavar in TAKES_A_FILE:
            return [FILES]
        return [*_match(_list_values(option, before), last), NO_FILES]
    if last.startswith("-"):
        return [*_match(_list_options(chosen or parser), last), NO_FILES]
    choices = _find_choices(chosen or parser)
    if chosen is None or choices is not None:
        return [*_match(_list_sub_commands(choices), last), NO_FILES]
    if _needs_name(chosen, before):
        return [*_match(list_names(before), last), NO_FILES]
    return [FILES if _takes_a_folder(chosen) else NO_FILES]


def find_sub_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser | None:
    """Return the parser of the sub-command, or of its action, among the words; None if there is none yet."""
    chosen: argparse.ArgumentParser | None = None
    for word in words:
        choices = _find_choices(chosen or parser)
        if choices is not None and word in choices.choices:
            chosen = choices.choices[word]
    return chosen


def list_names(words: Sequence[str]) -> Iterator[str]:
    """Yield the services of the cluster and namespace in the words; none if the cluster does not answer."""
    known, _ = build_flags().parse_known_args(list(words))
    flags = (f"--{flag}={value}" for flag in FLAGS if (value := getattr(known, flag)) is not None)
    try:
        yield from Services(tuple(flags)).list_names()
    except PluginError:
        return


def build_flags() -> argparse.ArgumentParser:
    """Return a parser of kubectl's own flags alone, which ignores the rest of an unfinished line."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-n", "--namespace")
    for flag in FLAGS:
        if flag != "namespace":
            parser.add_argument(f"--{flag}")
    return parser


def _find_choices(
    parser: argparse.ArgumentParser,
) -> "argparse._SubParsersAction[argparse.ArgumentParser] | None":
    return next((one for one in _actions(parser) if isinstance(one, argparse._SubParsersAction)), None)  # noqa: SLF001


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  argparse has no public list; argcomplete does so too


def _find_option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return next((one for one in _actions(parser) if word in one.option_strings), None)


def _list_values(option: argparse.Action, before: Sequence[str]) -> Iterator[str]:
    if option.choices is not None:
        yield from map(str, option.choices)
    elif option.dest == "like":
        yield from list_names(before)


def _list_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for one in _actions(parser):
        if one.option_strings and one.help != argparse.SUPPRESS:
            yield f"{one.option_strings[-1]}\t{one.help}"


def _list_sub_commands(
    choices: "argparse._SubParsersAction[argparse.ArgumentParser] | None",
) -> Iterator[str]:
    for one in choices._choices_actions if choices else ():  # noqa: SLF001
        yield f"{one.dest}\t{one.help}"


def _needs_name(parser: argparse.ArgumentParser, before: Sequence[str]) -> bool:
    """Whether the sub-command takes a service's name, and has none yet."""
    positionals = [one for one in _actions(parser) if not one.option_strings]
    if not positionals or positionals[0].metavar != "NAME":
        return False
    return len(list(_list_positionals(parser, before))) == 1  # the sub-command itself


def _takes_a_folder(parser: argparse.ArgumentParser) -> bool:
    """Whether the sub-command takes a model's URI, which may be a folder's path."""
    return any(one.metavar == "URI" for one in _actions(parser))


def _list_positionals(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield the words that are neither options nor their values."""
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            option = _find_option(parser, word)
            is_value = option is not None and option.nargs != 0
        else:
            yield word


def _match(candidates: Iterator[str], begin: str) -> list[str]:
    return [one for one in candidates if one.startswith(begin)]


def main() -> None:
    """Print the candidates for the process's arguments."""
    sys.stdout.write("".join(f"{line}\n" for line in complete(sys.argv[1:])))
