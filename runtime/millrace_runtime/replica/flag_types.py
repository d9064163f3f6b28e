"""The values that flags of `millrace serve` take. Each parser says what to write instead."""

import argparse
import json
import re
from collections.abc import Callable

from millrace_runtime.cors import parse_origin

_BYTE_SUFFIXES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_bytes(text: str) -> int:
    """Return the bytes that a Kubernetes quantity such as 512Mi means."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no amount of memory; write bytes or a number with Ki, Mi, Gi or Ti, such as 512Mi"
        )
    return int(match[1]) * _BYTE_SUFFIXES[match[2]]


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is refused; write a whole number, {least} to {most}")
        return int(text)

    return parse


def seconds(least: float) -> Callable[[str], float]:
    """Return a parser of seconds from `least` to a day."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= 86400:
            raise argparse.ArgumentTypeError(f"'{text}' is refused; write seconds, {least:g} to 86400")
        return value

    return parse


def parse_name(text: str) -> str:
    """Return the text if it may be a model's name."""
    if not re.fullmatch(r"[\w.:/@+-]{1,200}", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no name; write 1 to 200 letters, digits or any of . : / @ + - _"
        )
    return text


def parse_origins(text: str) -> tuple[str, ...]:
    """Return the origins in a JSON list, as vLLM's flag has it."""
    try:
        found = json.loads(text)
        if not isinstance(found, list) or not all(isinstance(origin, str) for origin in found):
            raise ValueError("it is no list of texts")  # noqa: TRY301  one message for both
        return tuple(map(parse_origin, found))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f'{text!r} is refused ({error}); write a JSON list, such as ["https://chat.example.com"]'
        ) from error
