"""Questions about a world, answered from its state and never from the text."""

import random
from typing import NamedTuple

from stories_training.lexicon import with_article
from stories_training.world import Event, World


class Question(NamedTuple):
    """A question and its true answer."""

    text: str
    answer: str


def ask_questions(rng: random.Random, world: World, count: int) -> list[Question]:
    """Up to `count` different questions."""
    questions = _about_state(rng, world) + _about_characters(world)
    questions += [question for event in world.events for question in _about_event(event, world)]
    unique = list({question.text: question for question in questions}.values())
    return rng.sample(unique, min(count, len(unique)))


def _about_state(rng: random.Random, world: World) -> list[Question]:
    questions = []
    for thing, holder in world.holder.items():
        questions += [
            Question(f"Who has {thing.known}{now}?", f"{holder.name} has {thing.known}.")
            for now in ("", " now")
        ]
        where = f"{holder.name} has {thing.known} {world.location[holder].where}."
        questions.append(Question(f"Where is {thing.known}?", where))
        person = rng.choice(list(world.location))
        answer = "Yes" if person == holder else "No"
        questions.append(
            Question(f"Does {person.name} have {thing.known}?", f"{answer}, {holder.name} has {thing.known}.")
        )
    for thing, place in world.lying.items():
        questions.append(
            Question(f"Who has {thing.known}?", f"Nobody has {thing.known}. It is {place.where}.")
        )
        questions.append(
            Question(f"Where is {thing.known}?", f"{thing.known.capitalize()} is {place.where}.")
        )
    return questions


def _about_characters(world: World) -> list[Question]:
    questions = []
    for person, place in world.location.items():
        questions.append(Question(f"Where is {person.name}?", f"{person.name} is {place.where}."))
        questions.append(Question(f"Who is {person.name}?", f"{person.name} is {with_article(person.kind)}."))
        questions.append(
            Question(
                f"What is the name of the {person.kind}?", f"The name of the {person.kind} is {person.name}."
            )
        )
    return questions


def _about_event(event: Event, world: World) -> list[Question]:
    """Questions about what happened, where only one event answers them."""
    if event.thing is None or sum(e.verb == event.verb and e.thing == event.thing for e in world.events) > 1:
        return []
    actor, thing = event.actor.name, event.thing.known
    if event.verb == "give" and event.other:
        answer = f"{actor} gave {thing} to {event.other.name}."
        return [Question(f"Who gave {thing} to {event.other.name}?", answer),
                Question(f"What did {actor} do with {thing}?", answer)]  # fmt: skip
    if event.verb == "find":
        answer = f"{actor} found {thing} {event.place.where}."
        return [Question(f"Who found {thing}?", answer), Question(f"Where did {actor} find {thing}?", answer)]
    if event.verb == "eat":
        eaters = f"{actor} and {event.other.name}" if event.other else actor
        return [Question(f"What happened to {thing}?", f"{eaters} ate {thing}.")]
    return []
