"""The errors of the node cache. Each text is one line that says what to do.

NodeCacheError
└── BadStartError    the process cannot start
"""


class NodeCacheError(Exception):
    """The root of this package's exceptions."""


class BadStartError(NodeCacheError):
    """The process cannot start."""
