"""Documents for training: stories, and conversations about stories, without contradictions.

`generate_document(seed)` is a pure function of its seed, so a held-out set is a range of seeds. Answers to
questions come from the state of the world, never from the text.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stories_training.lexicon import FOODS, KINDS, NAMES, THINGS, with_article
from stories_training.plots import PLOTS, Cast, draw_cast, tell_outing
from stories_training.sentences import Teller
from stories_training.world import Character, Event, World

HELD_OUT_SEED = 1_000_000_000
"""Training never uses seeds from here on."""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Document:
    """A conversation, or plain text where messages is empty."""

    messages: tuple[Message, ...] = ()
    text: str = ""


SYSTEMS = (
    "You are a helpful assistant.",
    "You are a storyteller.",
    "You tell short stories.",
    "Be kind and clear.",
    "Answer in simple English.",
)
SMALL_TALK = (
    (("Hello!", "Hi!", "Hello.", "Hi there!", "Good morning!", "Hey!"),
     ("Hello! Would you like to hear a story?", "Hi! I can tell you a story. Who should it be about?")),
    (("Who are you?", "What are you?", "What is your name?"),
     ("I am a small model that tells stories.", "I am Stories, a small model. I like to tell stories.")),
    (("What can you do?", "How can you help me?", "What do you do?"),
     ("I can tell you a short story, and I can answer questions about it.",
      "I tell stories about animals and people. Ask me for a story about a fox and a lantern!")),
    (("How are you?", "How are you today?"),
     ("I am very well, thank you. Shall I tell you a story?", "I am fine. I am ready to tell a story.")),
)  # fmt: skip
THANKS = (
    ("Thank you!", "Thanks.", "That was nice.", "What a good story!", "I liked that story."),
    ("You are welcome! Shall I tell you another story?", "I am glad that you liked it.", "You are welcome!"),
)
CONTINUE = ("What happened next?", "And then?", "Please go on.", "Tell me more.", "Continue the story.")
REPEAT = ("Repeat:", "Say again:", "Please repeat these words:", "Repeat after me:")
VERBS = ("Tell me", "Please tell me", "Write", "Can you tell me", "Write me", "I would like to hear")
STORIES = ("a story", "a short story", "a little story")


def generate_document(seed: int) -> Document:
    """Return the document of a seed."""
    rng = random.Random(seed)  # noqa: S311  stories need no cryptographic randomness
    kinds: tuple[Callable[[random.Random], Document], ...] = (_plain, _reading, _talk, _chat, _repetition)
    return rng.choices(kinds, weights=(8, 20, 2, 40, 30))[0](rng)


def _plain(rng: random.Random) -> Document:
    return Document(text=_tell_story(rng)[1].text)


def _tell_story(rng: random.Random) -> tuple[Cast, Teller]:
    cast, teller = draw_cast(rng), Teller(rng, World())
    rng.choice(PLOTS)(teller, cast)
    return cast, teller


def _reading(rng: random.Random) -> Document:
    teller = tell_walk(rng)
    questions = ask_questions(rng, teller.world, rng.randint(1, 4))
    first, *others = questions
    asked = f"{teller.text}\n{first.text}" if rng.random() < 0.7 else f"{first.text}\n{teller.text}"
    messages = [Message("user", asked), Message("assistant", first.answer)]
    for question in others:
        messages += [Message("user", question.text), Message("assistant", question.answer)]
    return Document(messages=(*_system(rng), *messages))


def _repetition(rng: random.Random) -> Document:
    """Words to repeat: a very small model learns by these soonest to copy names from its context."""
    pool = (*NAMES, *KINDS, *THINGS, *FOODS)
    words = " ".join(rng.sample(pool, rng.randint(4, 24)))
    return Document(messages=(Message("user", f"{rng.choice(REPEAT)} {words}"), Message("assistant", words)))


def _talk(rng: random.Random) -> Document:
    messages: list[Message] = []
    for asked, answers in rng.sample([*SMALL_TALK, THANKS], rng.randint(1, 3)):
        messages += [Message("user", rng.choice(asked)), Message("assistant", rng.choice(answers))]
    return Document(messages=(*_system(rng), *messages))


def _chat(rng: random.Random) -> Document:
    messages = _system(rng)
    for _ in range(1 + (rng.random() < 0.2)):
        messages += _story_turns(rng)
    return Document(messages=tuple(messages))


def _story_turns(rng: random.Random) -> list[Message]:
    cast, teller = _tell_story(rng)
    messages = [Message("user", _request(rng, cast, teller.world)), Message("assistant", teller.text)]
    for question in ask_questions(rng, teller.world, rng.randint(0, 3)):
        messages += [Message("user", question.text), Message("assistant", question.answer)]
    if rng.random() < 0.15:
        messages += _continuation(rng, cast, teller)
    if rng.random() < 0.15:
        messages += [Message("user", rng.choice(THANKS[0])), Message("assistant", rng.choice(THANKS[1]))]
    return messages


def _continuation(rng: random.Random, cast: Cast, teller: Teller) -> list[Message]:
    if cast.gift in teller.world.list_things():
        return []
    sequel = Teller(rng, teller.world)
    tell_outing(sequel, cast)
    messages = [Message("user", rng.choice(CONTINUE)), Message("assistant", sequel.text)]
    for question in ask_questions(rng, teller.world, 1):
        messages += [Message("user", question.text), Message("assistant", question.answer)]
    return messages


def _request(rng: random.Random, cast: Cast, world: World) -> str:
    kind, noun = with_article(cast.lead.kind), with_article(rng.choice(world.list_things()).noun)
    about = rng.choice(
        (
            "",
            f" about {kind}",
            f" about {kind} and {noun}",
            f" about {kind} and {noun}",
            f" about {kind} and {noun}",
            f" about {kind} named {cast.lead.name}",
            f" about {kind} named {cast.lead.name} and {noun}",
            f" about {kind} and {with_article(cast.friend.kind)}",
            f" about {noun}",
        )
    )
    verb = rng.choice(VERBS)
    return f"{verb} {rng.choice(STORIES)}{about}{'?' if verb.startswith('Can') else '.'}"


def _system(rng: random.Random) -> list[Message]:
    return [Message("system", rng.choice(SYSTEMS))] if rng.random() < 0.15 else []


def tell_walk(rng: random.Random) -> Teller:
    """Write a story of three to eight events with two or three characters."""
    cast, teller = draw_cast(rng), Teller(rng, World())
    people = [cast.lead, cast.friend, cast.third][: rng.randint(2, 3)]
    for person in people:
        teller.introduce(person, rng.choice(cast.places[:2]))
    teller.find_new(people[0], cast.thing)
    for _ in range(rng.randint(2, 7)):
        _step(rng, teller, cast, people)
    return teller


def _step(rng: random.Random, teller: Teller, cast: Cast, people: list[Character]) -> None:
    """Tell one possible event: a handover in six of ten cases in which one is possible."""
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


class Question(NamedTuple):
    """A question and its true answer."""

    text: str
    answer: str


def ask_questions(rng: random.Random, world: World, count: int) -> list[Question]:
    """Return up to `count` different questions."""
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
    """Return the questions about an event, unless another event would answer them, too."""
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
