"""Stop strings: a text ends before the first stop string, which may begin and end inside tokens."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

_FIRST_SURROGATE = 0xD800


class StopMatcher:
    """Returns text as it arrives, and holds back an end that may become a stop string.

    It never returns a stop string or the text after it. The first complete stop string ends the text. If two
    are complete at the same character, the longer one does.
    """

    def __init__(self, stops: "StopStrings") -> None:
        """`stops` come from `build_stops`; matchers may share them."""
        self._states = stops.states
        self._has_stops = len(self._states) > 1
        self._is_kept = stops.is_kept
        self._names = {ord(mark): name for mark, name in stops.names.items()}
        self._state = self._states[0]
        self._held = ""
        self.is_matched = False
        self.matched: str | None = None
        """The stop string that has ended the text."""

    def feed(self, text: str) -> str:
        """Return the text that is certain not to belong to a stop string."""
        if not self._has_stops:
            return text
        if self.is_matched:
            return ""
        text, num_held = self._held + text, len(self._held)
        state = self._state
        for place in range(num_held, len(text)):
            state = self._step(state, text[place])
            if state.num_matched:
                self.is_matched = True
                self.matched = self._name(text[place + 1 - state.num_matched : place + 1])
                self._held = ""
                return text[: place + 1 - (0 if self._is_kept else state.num_matched)]
        self._state = state
        certain = len(text) - state.depth
        self._held = text[certain:]
        return text[:certain]

    def _name(self, matched: str) -> str:
        """Return the stop string, with its special tokens spelled."""
        return matched.translate(self._names) if self._names else matched

    def finish(self) -> str:
        """Return the held text, as the sequence has ended without a stop string."""
        text, self._held = self._held, ""
        return text

    def _step(self, state: "_State", letter: str) -> "_State":
        while (following := state.following.get(letter)) is None:
            if state.fallback is None:
                return state
            state = self._states[state.fallback]
        return self._states[following]


class _State(NamedTuple):
    """A prefix of a stop string: the longest one that the text ends with."""

    depth: int
    """Its length."""
    following: dict[str, int]
    """The next state, by the next letter."""
    fallback: int | None
    """The state of the longest shorter prefix that this prefix ends with; None for the empty prefix."""
    num_matched: int
    """Length of the longest stop string that this prefix ends with; 0 for none."""


StopStates: TypeAlias = tuple[_State, ...]


class StopStrings(NamedTuple):
    """The stop strings of a request, for all of its choices."""

    states: StopStates
    is_kept: bool
    """Whether the text ends behind the stop string, and not before it."""
    marks: Mapping[int, str]
    """The special tokens that stop strings contain, each with the letter that stands for it."""
    names: Mapping[str, str]
    """The special token that each of these letters stands for."""


def build_stops(
    stops: tuple[str, ...], special_texts: Mapping[int, str], *, is_kept: bool = False
) -> StopStrings:
    """Return the stop strings of a request for `StopMatcher`.

    Special tokens are no text, so a stop string that contains one would never match. So each of these tokens
    gets a letter that no text has: a surrogate. It stands in the stop string and in the text that is
    matched, and is taken out of what the matcher returns.
    """
    texts = {text: token for token, text in special_texts.items() if any(text in stop for stop in stops)}
    letters = {text: chr(_FIRST_SURROGATE + number) for number, text in enumerate(texts)}
    marked = {_replace_all(stop, letters) for stop in stops}
    marks = {token: letters[text] for text, token in texts.items()}
    return StopStrings(
        _build_states((*stops, *marked.difference(stops))),
        is_kept,
        marks,
        {letter: text for text, letter in letters.items()},
    )


def _replace_all(text: str, letters: Mapping[str, str]) -> str:
    for name in sorted(letters, key=len, reverse=True):  # one name may contain another
        text = text.replace(name, letters[name])
    return text


def _build_states(stops: tuple[str, ...]) -> StopStates:
    """Return the states of Aho and Corasick's automaton, for all choices of a request.

    Its cost for a token depends on the token's length alone, and not on the stop strings. A search for each
    prefix of each stop string took up to 0.7 ms a token. The largest automaton of one request, for 16 stop
    strings of 256 letters, takes 5 ms to build and holds 1.3 MB.
    """
    following: list[dict[str, int]] = [{}]
    num_matched = [0]
    for stop in stops:
        _add_stop(stop, following, num_matched)
    depth = [0] * len(following)
    fallback: list[int | None] = [None] * len(following)
    queue = deque([0])
    while queue:  # a state's fallback is shorter, so it was completed earlier
        state = queue.popleft()
        for letter, longer in following[state].items():
            depth[longer] = depth[state] + 1
            fallback[longer] = _fall_back(following, fallback, state, letter)
            num_matched[longer] = num_matched[longer] or num_matched[fallback[longer] or 0]
            queue.append(longer)
    return tuple(map(_State, depth, following, fallback, num_matched))


def _add_stop(stop: str, following: list[dict[str, int]], num_matched: list[int]) -> None:
    state = 0
    for letter in stop:
        if letter not in following[state]:
            following[state][letter] = len(following)
            following.append({})
            num_matched.append(0)
        state = following[state][letter]
    num_matched[state] = len(stop)


def _fall_back(following: list[dict[str, int]], fallback: list[int | None], state: int, letter: str) -> int:
    """Return the state of the longest shorter prefix that `state` with `letter` ends with."""
    shorter = fallback[state]
    while shorter is not None and letter not in following[shorter]:
        shorter = fallback[shorter]
    return 0 if shorter is None else following[shorter][letter]
