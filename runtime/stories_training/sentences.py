"""The sentences of a story: one for each event, with pronouns that a reader can follow.

A pronoun refers only to the actor of the previous sentence, and only if that sentence named no other
character with the same pronoun.
"""

import random
from collections.abc import Sequence

from stories_training.lexicon import USES, Place
from stories_training.world import Character, Thing, World, WorldError

GOES = (
    "{A} went to {place}.",
    "{A} walked to {place}.",
    "Then {a} went to {place}.",
    "Soon {a} came to {place}.",
    "{A} ran all the way to {place}.",
    "The next day {a} went to {place}.",
)
GOES_TOGETHER = (
    "{A} and {b} went to {place} together.",
    "Then {a} and {b} walked to {place}.",
    "So {a} and {b} ran to {place} together.",
)
FINDS = (
    "There {a} found {new}.",
    "{A} looked under a bush and found {new}.",
    "{A} saw {new} in the grass and picked it up.",
    "There, between two stones, {a} found {new}.",
)
FINDS_KNOWN = (
    "There {a} found {t}.",
    "{A} looked behind a tree and found {t}.",
    "After a long time {a} found {t}.",
    "{A} saw {t} in the grass and picked it up.",
)
TAKES = ("{A} picked up {t}.", "{A} took {t}.")
GIVES = (
    "{A} gave {t} to {b}.",
    "So {a} gave {t} to {b}.",
    '"Here, this is for you," said {who}, and gave {t} to {b}.',
    '"Please take {t}," said {who}, and gave it to {b}.',
)
THANKS = (
    '"Thank you very much," said {who}.',
    '"Thank you! You are so kind," said {who}.',
    "{A} smiled and said thank you.",
    '"Oh, thank you, {bname}!" said {who}.',
)
DROPS = ("{A} left {t} {where}.", "{A} put {t} down {where}.")
LOSES = (
    "On the way {a} dropped {t} and did not see it fall.",
    "{A} jumped over a stone, and {t} fell into the grass.",
    "{A} was in a hurry and lost {t} there.",
)
EATS = ("{A} ate {t}.", "{A} was hungry and ate {t}.")
SHARES = (
    "{A} and {b} ate {t} together.",
    "So {a} cut {t} in two, and {a} and {b} ate it together.",
    '"Let us share it," said {who}. Then {a} and {b} ate {t}.',
)
MEETS = (
    "There {a} met {newb}.",
    "{A} saw {newb} there.",
    "{Newb} was sitting there.",
    "On the path {a} met {newb}.",
)
MEETS_KNOWN = ("There {a} met {b} again.", "{A} saw {b} there.", "{B} was there, too.")
GREETS = (
    '"Hello, {bname}," said {who}. "How are you?"',
    '"Good morning," said {who}.',
    "{A} waved and said hello.",
)


class Teller:
    """Carries out events in the world and writes a sentence for each."""

    def __init__(self, rng: random.Random, world: World) -> None:
        self.world = world
        self._rng = rng
        self._sentences: list[str] = []
        self._focus: Character | None = None

    @property
    def text(self) -> str:
        """The story so far."""
        return " ".join(self._sentences)

    def say(
        self,
        templates: Sequence[str],
        actor: Character,
        *,
        other: Character | None = None,
        thing: Thing | None = None,
        place: Place | None = None,
    ) -> None:
        """Add one of the templates, filled in."""
        filled = self._rng.choice(templates).format(**self._words(actor, other, thing, place))
        start = 1 if filled[0] == '"' else 0
        self._sentences.append(filled[:start] + filled[start].upper() + filled[start + 1 :])
        is_ambiguous = other is not None and other.pronouns == actor.pronouns
        self._focus = None if is_ambiguous or other is not None else actor

    def say_plain(self, *sentences: str) -> None:
        """Add one of these sentences, which name no character."""
        self._sentences.append(self._rng.choice(sentences))

    def introduce(self, actor: Character, place: Place) -> None:
        """Open with a character at a place."""
        self.world.add_character(actor, place)
        self.say(
            (
                "Once upon a time there was {newa}. {Heshe} lived {where}.",
                "There once was {newa}. {Heshe} lived {where}.",
                "Once there was {newa}, who lived {where}.",
                "{Newa} lived {where}.",
                "Once upon a time {newa} lived {where}.",
            ),
            actor,
            place=place,
        )

    def go(self, actor: Character, place: Place) -> None:
        """The actor goes to a place."""
        self.world.go(actor, place)
        self.say(GOES, actor, place=place)

    def go_together(self, actor: Character, other: Character, place: Place) -> None:
        """Two characters at one place go to another place."""
        if not self.world.are_together(actor, other):
            raise WorldError(f"{actor.name} and {other.name} are not together")
        self.world.go(actor, place)
        self.world.go(other, place)
        self.say(GOES_TOGETHER, actor, other=other, place=place)

    def meet(self, actor: Character, other: Character) -> None:
        """The actor meets another character, who is new to the story or already there."""
        place = self.world.location[actor]
        is_known = other in self.world.location
        if not is_known:
            self.world.add_character(other, place)
        elif not self.world.are_together(actor, other):
            raise WorldError(f"{other.name} is not {place.where}")
        self.say(MEETS_KNOWN if is_known else MEETS, actor, other=other)

    def find_new(self, actor: Character, thing: Thing) -> None:
        """The actor finds a thing that is new to the story."""
        self.world.add_lying(thing, self.world.location[actor])
        self.world.take(actor, thing, "find")
        self.say(FINDS, actor, thing=thing)

    def find(self, actor: Character, thing: Thing) -> None:
        """The actor finds a dropped thing."""
        self.world.take(actor, thing, "find")
        self.say(FINDS_KNOWN, actor, thing=thing)

    def take(self, actor: Character, thing: Thing) -> None:
        """The actor picks up a thing."""
        self.world.take(actor, thing)
        self.say(TAKES, actor, thing=thing)

    def give(self, actor: Character, thing: Thing, other: Character, *, has_thanks: bool = True) -> None:
        """The actor gives a thing to another character, who may say thanks."""
        self.world.give(actor, thing, other)
        self.say(GIVES, actor, other=other, thing=thing)
        if has_thanks:
            self.say(THANKS, other, other=actor)

    def drop(self, actor: Character, thing: Thing, *, by_accident: bool = False) -> None:
        """The actor leaves or loses a thing at the present place."""
        self.world.drop(actor, thing)
        templates = LOSES if by_accident else DROPS
        self.say(templates, actor, thing=thing, place=self.world.location[actor])

    def eat(self, actor: Character, thing: Thing) -> None:
        """The actor eats a food alone."""
        self.world.eat(actor, thing)
        self.say(EATS, actor, thing=thing)

    def share(self, actor: Character, thing: Thing, other: Character) -> None:
        """Two characters at one place eat a food."""
        if not self.world.are_together(actor, other):
            raise WorldError(f"{actor.name} and {other.name} are not together")
        self.world.eat(actor, thing, other)
        self.say(SHARES, actor, other=other, thing=thing)

    def use(self, actor: Character, thing: Thing) -> None:
        """The holder uses a thing in its usual way."""
        if self.world.holder.get(thing) != actor:
            raise WorldError(f"{actor.name} does not hold {thing.known}")
        deed, outcome = USES[thing.noun]
        self.say((f"{{A}} {deed}, and {outcome}.", f"Then {{a}} {deed}, and {outcome}."), actor, thing=thing)

    def _words(
        self, actor: Character, other: Character | None, thing: Thing | None, place: Place | None
    ) -> dict[str, str]:
        words = {"place": f"the {place.noun}", "where": place.where} if place else {}
        words |= {"t": thing.known, "new": thing.new} if thing else {}
        words |= {"a": self._mention(actor), "newa": self._introduction(actor)}
        words |= {"they": actor.pronouns.subject, "them": actor.pronouns.object}
        words |= {"their": actor.pronouns.possessive, "heshe": actor.pronouns.subject, "name": actor.name}
        words |= {"who": self._name(actor)}
        if other:
            words |= {"b": self._name(other), "newb": self._introduction(other), "bname": other.name}
        return words | {key[0].upper() + key[1:]: _capitalise(word) for key, word in words.items()}

    def _mention(self, actor: Character) -> str:
        if actor == self._focus and self._rng.random() < 0.6:
            return actor.pronouns.subject
        return self._name(actor)

    def _name(self, character: Character) -> str:
        kinds = [other.kind for other in self.world.location]
        if kinds.count(character.kind) == 1 and self._rng.random() < 0.2:
            return f"the {character.kind}"
        return character.name

    def _introduction(self, character: Character) -> str:
        article = "an" if character.kind[0] in "aeiou" else "a"
        return f"{article} {character.kind} named {character.name}"


def _capitalise(words: str) -> str:
    return words[0].upper() + words[1:]
