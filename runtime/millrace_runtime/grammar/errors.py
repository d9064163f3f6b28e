"""The one failure of grammars."""


class GrammarError(Exception):
    """The grammar can't be built, or nothing fits it. The client may read the message."""
