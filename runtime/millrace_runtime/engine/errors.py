"""The reasons for which the engine refuses a sequence.

EngineError
├── NeverFits         the sequence is longer than this engine can ever hold
└── InvalidSequence   the sequence makes no sense: an empty prompt, an unknown token, an id in use
"""


class EngineError(Exception):
    """The engine refuses a sequence. The client may read the text."""


class NeverFits(EngineError):  # noqa: N818  the design's word for it
    """The prompt leaves no room for one token, however long it waits."""


class InvalidSequence(EngineError):  # noqa: N818  as NeverFits
    """The sequence's description makes no sense."""
