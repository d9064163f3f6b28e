"""What the engine refuses.

EngineError
├── NeverFits         the sequence is longer than this engine can ever hold
└── InvalidSequence   the sequence makes no sense: an empty prompt, an unknown token, an id in use
"""


class EngineError(Exception):
    """A sequence is refused; the text is fit for the client."""


class NeverFits(EngineError):  # noqa: N818  the design's word for it
    """The prompt leaves no room for one token, and waiting would not change that."""


class InvalidSequence(EngineError):  # noqa: N818  as NeverFits
    """The sequence makes no sense as it was described."""
