"""Tells each trouble once in the log, and again only when its words change."""

import logging

logger = logging.getLogger(__name__)


class Troubles:
    """What goes wrong at present, by what it is about."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def note(self, about: str, error: Exception) -> None:
        """Log what went wrong, unless that is what was said last."""
        words = str(error) or repr(error)
        if self._told.get(about) != words:
            self._told[about] = words
            logger.warning("%s: %s; tried again at each look", about, words)

    def settle(self, about: str) -> None:
        """Log that it is well again, where it was not."""
        if self._told.pop(about, None) is not None:
            logger.info("%s: well again", about)
