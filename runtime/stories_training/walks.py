"""Short accounts of who went where and gave what to whom, for questions that need tracking."""

import random

from stories_training.plots import Cast, draw_cast
from stories_training.telling import Teller
from stories_training.world import Character, World


def tell_walk(rng: random.Random) -> Teller:
    """Tell three to eight events that happen to two or three characters."""
    cast, teller = draw_cast(rng), Teller(rng, World())
    people = [cast.lead, cast.friend, cast.third][: rng.randint(2, 3)]
    for person in people:
        teller.introduce(person, rng.choice(cast.places[:2]))
    teller.find_new(people[0], cast.thing)
    for _ in range(rng.randint(2, 7)):
        _step(rng, teller, cast, people)
    return teller


def _step(rng: random.Random, teller: Teller, cast: Cast, people: list[Character]) -> None:
    """One event among those that can happen; a hand-over wherever it can, half of the time."""
    world = teller.world
    actor = rng.choice(people)
    near = [other for other in people if other != actor and world.are_together(actor, other)]
    held = world.held_by(actor)
    here = [thing for thing, place in world.lying.items() if place == world.location[actor]]
    if held and near and rng.random() < 0.6:
        teller.give(actor, rng.choice(held), rng.choice(near), has_thanks=rng.random() < 0.3)
    elif here and rng.random() < 0.6:
        teller.take(actor, here[0])
    elif held and rng.random() < 0.3:
        teller.drop(actor, held[0])
    elif not held and not world.gone and cast.gift not in world.holder and cast.gift not in world.lying:
        teller.find_new(actor, cast.gift)
    else:
        elsewhere = [place for place in cast.places[:3] if place != world.location[actor]]
        teller.go(actor, rng.choice(elsewhere))
