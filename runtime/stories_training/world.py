"""A small world that cannot contradict itself: the places of characters, and the holders of things.

Pure state, without sentences. Every method refuses a change that is impossible.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stories_training.lexicon import Place, Pronouns, with_article


class WorldError(ValueError):
    """An event that the state of the world does not allow."""


@dataclass(frozen=True)
class Character:
    """A person or an animal of a story; the names in one story differ."""

    name: str
    kind: str
    pronouns: Pronouns


@dataclass(frozen=True)
class Thing:
    """A thing that a character can hold; the nouns in one story differ."""

    noun: str
    adjective: str

    @property
    def new(self) -> str:
        """The thing at its first mention, e.g. "an old key"."""
        return with_article(f"{self.adjective} {self.noun}")

    @property
    def known(self) -> str:
        """The thing at later mentions, e.g. "the key"."""
        return f"the {self.noun}"


class Event(NamedTuple):
    """An event of the story, for questions about it."""

    verb: Literal["go", "find", "take", "give", "drop", "eat"]
    actor: Character
    thing: Thing | None
    other: Character | None
    place: Place


@dataclass
class World:
    """Locations and holders. A thing is held by one character, lies at one place, or is gone."""

    location: dict[Character, Place] = field(default_factory=dict)
    holder: dict[Thing, Character] = field(default_factory=dict)
    lying: dict[Thing, Place] = field(default_factory=dict)
    gone: set[Thing] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    def add_character(self, character: Character, place: Place) -> None:
        """Put a new character at a place."""
        if any(character.name == other.name for other in self.location):
            raise WorldError(f"there is already somebody named {character.name}")
        self.location[character] = place

    def add_held(self, thing: Thing, holder: Character) -> None:
        """Give a new thing to a character."""
        self._check_is_new(thing)
        self.holder[thing] = holder

    def add_lying(self, thing: Thing, place: Place) -> None:
        """Put a new thing at a place."""
        self._check_is_new(thing)
        self.lying[thing] = place

    def go(self, actor: Character, place: Place) -> None:
        """Move a character with all things that they hold."""
        if self.location[actor] == place:
            raise WorldError(f"{actor.name} is already {place.where}")
        self.location[actor] = place
        self._record("go", actor)

    def take(self, actor: Character, thing: Thing, verb: Literal["take", "find"] = "take") -> None:
        """Pick up a thing at the actor's place."""
        if self.lying.get(thing) != self.location[actor]:
            raise WorldError(f"{thing.known} does not lie where {actor.name} is")
        del self.lying[thing]
        self.holder[thing] = actor
        self._record(verb, actor, thing)

    def give(self, actor: Character, thing: Thing, other: Character) -> None:
        """Hand a thing to another character at the same place."""
        self._check_holds(actor, thing)
        if actor == other or self.location[actor] != self.location[other]:
            raise WorldError(f"{actor.name} cannot give to {other.name} from afar")
        self.holder[thing] = other
        self._record("give", actor, thing, other)

    def drop(self, actor: Character, thing: Thing) -> None:
        """Leave a thing at the actor's place."""
        self._check_holds(actor, thing)
        del self.holder[thing]
        self.lying[thing] = self.location[actor]
        self._record("drop", actor, thing)

    def eat(self, actor: Character, thing: Thing, other: Character | None = None) -> None:
        """Eat a thing, alone or with another character."""
        self._check_holds(actor, thing)
        del self.holder[thing]
        self.gone.add(thing)
        self._record("eat", actor, thing, other)

    def are_together(self, one: Character, other: Character) -> bool:
        """Whether the two characters are at the same place."""
        return self.location[one] == self.location[other]

    def held_by(self, character: Character) -> list[Thing]:
        """Return the things that a character holds, in the order in which they got them."""
        return [thing for thing, holder in self.holder.items() if holder == character]

    def list_things(self) -> list[Thing]:
        """Return every thing of the story, held, lying or gone."""
        return [*self.holder, *self.lying, *self.gone]

    def check_integrity(self) -> None:
        """Assert that every thing is in one state and every holder exists."""
        states = [set(self.holder), set(self.lying), self.gone]
        # Our own bug, never a user's.
        assert sum(map(len, states)) == len(set().union(*states))
        assert set(self.holder.values()) <= set(self.location)

    def _check_is_new(self, thing: Thing) -> None:
        if any(thing.noun == known.noun for known in (*self.holder, *self.lying, *self.gone)):
            raise WorldError(f"there is already {with_article(thing.noun)}")

    def _check_holds(self, actor: Character, thing: Thing) -> None:
        if self.holder.get(thing) != actor:
            raise WorldError(f"{actor.name} does not hold {thing.known}")

    def _record(
        self,
        verb: Literal["go", "find", "take", "give", "drop", "eat"],
        actor: Character,
        thing: Thing | None = None,
        other: Character | None = None,
    ) -> None:
        self.events.append(Event(verb, actor, thing, other, self.location[actor]))
