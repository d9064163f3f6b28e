"""What can go wrong with what a node keeps. Each text is one line that says what to do.

NodeCacheError
└── BadStartError    the process can't begin
"""


class NodeCacheError(Exception):
    """The root of this package's exceptions."""


class BadStartError(NodeCacheError):
    """The process can't begin."""
