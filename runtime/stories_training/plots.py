"""The plots: sequences of events that make a story. Each starts with a lead at a place and ends well."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from stories_training.lexicon import (
    FOOD_ADJECTIVES,
    FOODS,
    KINDS,
    NAMES,
    PLACES,
    THING_ADJECTIVES,
    THINGS,
    Place,
    with_article,
)
from stories_training.sentences import GREETS, Teller
from stories_training.world import Character, Thing

HAS = (
    "{A} had {new}.",
    "{A} had {new}, and {they} took it everywhere.",
    "{Their} favorite thing was {new}.",
    "One day {a} got {new}.",
)
SKIES = (
    "It was a warm and sunny day.",
    "The sun was shining.",
    "It was a cold and windy day.",
    "The sky was blue, and the birds were singing.",
    "It began to rain.",
    "It was early in the morning.",
)
SAD = ("{A} was very sad.", "{A} sat down and began to cry.", "{A} did not know what to do.")
HAPPY = ("{A} was very happy.", "{A} laughed and danced.", "{A} smiled.", "{A} had never been so happy.")
FRIENDS = (
    "From that day on, {a} and {b} were good friends.",
    "{A} and {b} became the best of friends.",
    "After that, {a} and {b} played together every day.",
    "{A} and {b} laughed and sang until the sun went down.",
)
KEEPS = (
    "{A} still has {t} today.",
    "{A} kept {t} safe from then on.",
    "That night {a} slept well, with {t} by {their} bed.",
)
MORALS = (
    "It is good to share with a friend.",
    "A kind heart is worth more than gold.",
    "And that was the end of a very good day.",
    "A friend in need is a friend indeed.",
    "The end.",
)


@dataclass(frozen=True)
class Cast:
    """A story's characters, things and places."""

    lead: Character
    friend: Character
    third: Character
    thing: Thing
    gift: Thing
    food: Thing
    places: tuple[Place, Place, Place, Place]


def draw_cast(rng: random.Random) -> Cast:
    """Draw different characters, things and places."""
    names, kinds = rng.sample(list(NAMES), 3), rng.sample(KINDS, 3)
    people = [Character(name, kind, NAMES[name]) for name, kind in zip(names, kinds, strict=True)]
    things = [Thing(noun, rng.choice(THING_ADJECTIVES)) for noun in rng.sample(THINGS, 2)]
    food = Thing(rng.choice(FOODS), rng.choice(FOOD_ADJECTIVES))
    here, there, beyond, home = rng.sample(PLACES, 4)
    return Cast(
        lead=people[0],
        friend=people[1],
        third=people[2],
        thing=things[0],
        gift=things[1],
        food=food,
        places=(here, there, beyond, home),
    )


def _open(teller: Teller, cast: Cast, *, owned: Thing | None) -> None:
    teller.introduce(cast.lead, cast.places[0])
    if owned:
        teller.world.add_held(owned, cast.lead)
        teller.say(HAS, cast.lead, thing=owned)
    teller.say_plain(*SKIES)


def _close(teller: Teller, cast: Cast, kept: Thing) -> None:
    holder = teller.world.holder[kept]
    teller.say(HAPPY, holder)
    teller.say(KEEPS, holder, thing=kept)
    teller.say(FRIENDS, cast.lead, other=cast.friend)
    teller.say_plain(*MORALS)


def tell_lost_and_found(teller: Teller, cast: Cast) -> None:
    """The lead loses a thing; a friend finds it and brings it back."""
    _, there, beyond, _ = cast.places
    lead, friend, thing = cast.lead, cast.friend, cast.thing
    _open(teller, cast, owned=thing)
    teller.go(lead, there)
    teller.drop(lead, thing, by_accident=True)
    teller.go(lead, beyond)
    teller.say(
        ("Then {a} saw that {t} was gone.", "There {a} looked for {t}, but it was gone."), lead, thing=thing
    )
    teller.say(SAD, lead)
    teller.meet(lead, friend)
    teller.say(
        ('"I will help you," said {who}.', '"Do not cry, {bname}," said {who}. "I will look for it."'),
        friend,
        other=lead,
    )
    teller.go(friend, there)
    teller.find(friend, thing)
    teller.go(friend, beyond)
    teller.give(friend, thing, lead)
    teller.use(lead, thing)
    _close(teller, cast, thing)


def tell_gift(teller: Teller, cast: Cast) -> None:
    """The lead gives a thing to a sad friend."""
    _, there, _, _ = cast.places
    lead, friend, thing = cast.lead, cast.friend, cast.thing
    _open(teller, cast, owned=thing)
    teller.use(lead, thing)
    teller.go(lead, there)
    teller.meet(lead, friend)
    teller.say(SAD, friend)
    teller.say(
        ('"Why are you sad?" asked {who}. "I have nothing to play with," said {b}.',
         '"What is wrong?" asked {who}. "Today is my birthday, and I am alone," said {b}.'),
        lead, other=friend,
    )  # fmt: skip
    teller.give(lead, thing, friend)
    teller.use(friend, thing)
    _close(teller, cast, thing)


def tell_trade(teller: Teller, cast: Cast) -> None:
    """The lead and a friend trade their things."""
    _, there, _, _ = cast.places
    lead, friend, thing, gift = cast.lead, cast.friend, cast.thing, cast.gift
    _open(teller, cast, owned=thing)
    teller.go(lead, there)
    teller.meet(lead, friend)
    teller.world.add_held(gift, friend)
    teller.say(("{A} had {new}.", "{A} was holding {new}."), friend, thing=gift)
    teller.say(GREETS, lead, other=friend)
    teller.say(
        ('"I like {t}," said {who}. "Shall we trade?" {B} said yes.',
         '"May I have {t}?" asked {who}. "Yes, if we trade," said {b}.'),
        lead, other=friend, thing=gift,
    )  # fmt: skip
    teller.give(lead, thing, friend, has_thanks=False)
    teller.give(friend, gift, lead)
    teller.use(friend, thing)
    teller.use(lead, gift)
    _close(teller, cast, gift)


def tell_shared_meal(teller: Teller, cast: Cast) -> None:
    """The lead shares food with a hungry friend, who gives a thing in return."""
    _, there, beyond, _ = cast.places
    lead, friend, gift, food = cast.lead, cast.friend, cast.thing, cast.food
    _open(teller, cast, owned=food)
    teller.go(lead, there)
    teller.meet(lead, friend)
    teller.world.add_held(gift, friend)
    teller.say(
        ("{A} had {new}, but nothing to eat.", "{A} was holding {new}, and {they} looked hungry."),
        friend,
        thing=gift,
    )
    teller.say(
        (
            '"I am so hungry," said {who} to {b}.',
            '"Have you got anything to eat?" asked {who}. {Bname} said yes.',
        ),
        friend,
        other=lead,
    )
    teller.share(lead, food, friend)
    teller.give(friend, gift, lead)
    teller.go_together(lead, friend, beyond)
    teller.use(lead, gift)
    _close(teller, cast, gift)


def tell_borrowing(teller: Teller, cast: Cast) -> None:
    """The lead borrows a thing and brings it back."""
    _here, there, beyond, _ = cast.places
    lead, friend, thing = cast.lead, cast.friend, cast.thing
    _open(teller, cast, owned=None)
    teller.say((f"{{A}} needed {with_article(thing.noun)}, but {{they}} did not have one.",
              f"{{A}} wished for {with_article(thing.noun)}."), lead)  # fmt: skip
    teller.go(lead, there)
    teller.meet(lead, friend)
    teller.world.add_held(thing, friend)
    teller.say(("{A} had {new}.", "{A} was holding {new}."), friend, thing=thing)
    teller.say(
        ('"May I borrow {t}?" asked {who}. "Yes," said {b}, "but please bring it back."',),
        lead,
        other=friend,
        thing=thing,
    )
    teller.give(friend, thing, lead)
    teller.go(lead, beyond)
    teller.use(lead, thing)
    teller.go(lead, there)
    teller.meet(lead, friend)
    teller.give(lead, thing, friend)
    _close(teller, cast, thing)


def tell_owner_search(teller: Teller, cast: Cast) -> None:
    """The lead finds a thing and looks for its owner."""
    _, there, beyond, home = cast.places
    lead, friend, third, thing = cast.lead, cast.friend, cast.third, cast.thing
    _open(teller, cast, owned=None)
    teller.go(lead, there)
    teller.find_new(lead, thing)
    teller.say((f'"Whose {thing.noun} is this?" {{who}} wondered.',), lead)
    teller.go(lead, beyond)
    teller.meet(lead, third)
    teller.say(
        (f'"Is this your {thing.noun}?" asked {{who}}. "No, it is not mine," said {{b}}.',),
        lead,
        other=third,
    )
    teller.go(lead, home)
    teller.meet(lead, friend)
    teller.say(
        (f'"Is this your {thing.noun}?" asked {{who}}. "Yes! I lost it yesterday," said {{b}}.',),
        lead,
        other=friend,
    )
    teller.give(lead, thing, friend)
    teller.use(friend, thing)
    _close(teller, cast, thing)


def tell_outing(teller: Teller, cast: Cast) -> None:
    """A sequel: the lead and the friend go to a place and find a thing."""
    lead, friend, gift = cast.lead, cast.friend, cast.gift
    place = next(p for p in reversed(cast.places) if p != teller.world.location[lead])
    teller.say(
        ("The next morning {a} went out with {b}.", "The next day {a} and {b} met again."), lead, other=friend
    )
    teller.go_together(lead, friend, place)
    finder, other = (lead, friend)
    teller.find_new(finder, gift)
    teller.use(finder, gift)
    teller.give(finder, gift, other)
    teller.use(other, gift)
    teller.say(FRIENDS, lead, other=friend)


PLOTS: tuple[Callable[[Teller, Cast], None], ...] = (
    tell_lost_and_found,
    tell_gift,
    tell_trade,
    tell_shared_meal,
    tell_borrowing,
    tell_owner_search,
)
