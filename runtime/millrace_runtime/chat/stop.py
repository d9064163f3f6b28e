"""Stop strings: ends a text before the first of them, wherever token borders fall."""


class StopMatcher:
    """Passes text on, holding back an end that may yet become a stop string.

    Neither a stop string nor anything behind it is ever passed on.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.is_matched = False

    def feed(self, text: str) -> str:
        """Take new text and return what is certain not to belong to a stop string."""
        if not self._stops:
            return text
        if self.is_matched:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.is_matched = True
            self._held = ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the held text: the sequence ended, so it became no stop string."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper beginning of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
