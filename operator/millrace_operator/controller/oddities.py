"""Tells of the objects of a list that nobody can read. They are left out, so that all others are known."""

import logging
from collections.abc import Mapping

LOG = logging.getLogger(__name__)


def tell_odd(odd: Mapping[str, Exception]) -> None:
    """Log each of these objects, with the trace of what was raised at it."""
    for name, error in odd.items():
        LOG.error("%s cannot be read, and is left as it was known: %r", name, error, exc_info=error)
