"""JSON schemas in the shape of public ones, the same for the same seed.

As in the collections that people publish, most have some properties and a few have hundreds. Objects nest;
there are enums, arrays, references (some of them recursive), patterns, formats, bounds and alternatives.
"""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_TEXT = """
id name title kind status created updated owner address street city country code email phone price total
currency count size weight width height color label tags items options settings mode level score rating
author source target start end duration version region zone host port path method headers body user group
role token limit offset page query filter sort order date time unit value note comment reason state
"""
_WORDS = _TEXT.split()
_PATTERNS = (
    r"^[A-Z]{2,3}-[0-9]{4,6}$", r"^#[0-9a-fA-F]{6}$", r"^[a-z][a-z0-9_]{0,30}$", r"^v?\d+\.\d+\.\d+$",
    r"^(GET|POST|PUT|DELETE)$", r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", r"^\+?[0-9 ()-]{7,20}$", r"^/([\w.-]+/?)*$",
)  # fmt: skip
_FORMATS = ("date-time", "date", "time", "email", "uri", "uuid", "ipv4", "hostname")
_MAX_DEPTH = 5
_TYPICAL_PROPERTIES, _SPREAD = 12, 1.1
"""Of the lognormal distribution of a schema's properties: a hundredth has more than 150."""


def draw_schemas(count: int, seed: int = 1) -> list[Schema]:
    """Return so many schemas of objects."""
    return [_Draw(random.Random(f"{seed}-{number}")).draw_root() for number in range(count)]  # noqa: S311  no secret


class _Draw:
    """One schema, until its properties are spent."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._num_left = min(400, max(1, round(rng.lognormvariate(0, _SPREAD) * _TYPICAL_PROPERTIES)))
        self._names: list[str] = []
        """Of the definitions."""

    def draw_root(self) -> Schema:
        """Return the whole schema."""
        names = [name.capitalize() for name in self._rng.sample(_WORDS, self._rng.choice((0, 0, 0, 1, 2, 4)))]
        definitions: Schema = {}
        for name in names:
            self._names.append(name)  # so it may name itself
            definitions[name] = self._draw_object(2)
        root = self._draw_object(0)
        return root | ({"$defs": definitions} if definitions else {})

    def _draw_object(self, depth: int) -> Schema:
        wanted = 1 + int(self._rng.expovariate(1 / 6))
        wanted = max(wanted, self._num_left if depth == 0 else 1)
        properties: Schema = {}
        while len(properties) < wanted and self._num_left > 0:
            self._num_left -= 1
            name = self._rng.choice(_WORDS)
            name = f"{name}_{self._rng.choice(_WORDS)}" if name in properties else name
            properties[name] = self._draw_value(depth + 1)
        required = [name for name in properties if self._rng.random() < 0.6]
        found: Schema = {"type": "object", "properties": properties, "required": required}
        if self._rng.random() < 0.7:
            found["additionalProperties"] = False
        return found

    def _draw_value(self, depth: int) -> Schema:
        nested: list[Callable[[int], Schema]] = [self._draw_object, self._draw_array, self._draw_alternatives]
        if depth < _MAX_DEPTH and self._num_left > 0 and self._rng.random() < 0.3:
            found = self._rng.choice(nested)(depth)
        elif self._names and self._rng.random() < 0.1:
            return {"$ref": f"#/$defs/{self._rng.choice(self._names)}"}
        else:
            found = self._draw_leaf()
        if self._rng.random() < 0.4:
            found["description"] = " ".join(self._rng.choices(_WORDS, k=6))
        return found

    def _draw_array(self, depth: int) -> Schema:
        found: Schema = {"type": "array", "items": self._draw_value(depth + 1)}
        return found | self._rng.choice(
            ({}, {"minItems": 1}, {"maxItems": 20}, {"minItems": 2, "maxItems": 8})
        )

    def _draw_alternatives(self, depth: int) -> Schema:
        return {
            "anyOf": [self._draw_value(depth + 1), self._rng.choice(({"type": "null"}, self._draw_leaf()))]
        }

    def _draw_leaf(self) -> Schema:
        rng = self._rng
        leaves: list[Callable[[], Schema]] = [
            lambda: {"type": "string"},
            lambda: {"type": "string", "maxLength": rng.choice((10, 64, 255))},
            lambda: {"type": "string", "pattern": rng.choice(_PATTERNS)},
            lambda: {"type": "string", "format": rng.choice(_FORMATS)},
            lambda: {"enum": rng.sample(_WORDS, rng.randint(2, 12))},
            lambda: {"type": "integer"},
            lambda: {"type": "integer", "minimum": 0, "maximum": rng.choice((1, 100, 65_535, 10**9))},
            lambda: {"type": "number", "minimum": 0},
            lambda: {"type": "boolean"},
            lambda: {"type": ["string", "null"]},
            lambda: {"const": rng.choice(_WORDS)},
        ]
        return rng.choices(leaves, weights=(6, 2, 1, 1, 3, 3, 2, 2, 3, 1, 1))[0]()


def draw_long_schemas(count: int, seed: int = 1) -> list[Schema]:
    """Return so many different schemas of texts that are longer than any benchmark's answer."""
    return [_draw_long(random.Random(f"long-{seed}-{number}")) for number in range(count)]  # noqa: S311  no secret


def _draw_long(rng: random.Random) -> Schema:
    leaves: list[Schema] = [
        {"type": "string", "maxLength": rng.choice((10, 20, 40))},
        {"type": "string", "pattern": rng.choice(_PATTERNS[:4])},
        {"enum": rng.sample(_WORDS, 8)},
        {"type": "integer", "minimum": 0, "maximum": rng.choice((100, 65_535))},
        {"type": "boolean"},
        {"type": "array", "items": {"enum": rng.sample(_WORDS, 4)}, "minItems": 1, "maxItems": 4},
    ]
    names = rng.sample(_WORDS, len(leaves))
    item = {
        "type": "object",
        "properties": dict(zip(names, leaves, strict=True)),
        "required": names,
        "additionalProperties": False,
    }
    return {"type": "array", "items": item, "minItems": 200}
