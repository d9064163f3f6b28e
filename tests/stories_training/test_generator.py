"""Invariants over many documents; facts are read back from the text, not from the generator's state."""

import re

import pytest

from stories_training.generator import HELD_OUT_SEED, Document, generate_document
from stories_training.lexicon import KINDS, NAMES

SEEDS = range(HELD_OUT_SEED, HELD_OUT_SEED + 400)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return [generate_document(seed) for seed in SEEDS]


def texts_of(document: Document) -> list[str]:
    spoken = [
        m.content for m in document.messages if not re.match("Repeat|Say again|Please repeat", m.content)
    ]
    return [document.text] if document.text else spoken


def prose_of(documents: list[Document]) -> list[str]:
    return [text for document in documents for text in texts_of(document) if "." in text]


def test_a_seed_decides_everything() -> None:
    assert [generate_document(seed) for seed in range(50)] == [generate_document(seed) for seed in range(50)]


def test_seeds_differ(documents: list[Document]) -> None:
    assert len({str(document) for document in documents}) > 0.95 * len(documents)


def test_turns_alternate_and_end_with_the_assistant(documents: list[Document]) -> None:
    for document in documents:
        roles = [message.role for message in document.messages if message.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


def test_sentences_are_clean(documents: list[Document]) -> None:
    for text in prose_of(documents):
        assert not re.search(r"[{}]|  |\b(\w+) \1\b(?<!had had)|None", text), text
        assert not re.search(r"\b(a|an|the) (a|an|the)\b", text, re.IGNORECASE), text
        assert text[-1] in '.!?"', text


def test_articles_agree(documents: list[Document]) -> None:
    for text in prose_of(documents):
        assert not re.search(r"\ban [^aeiou\W]|\ba [aeiou]", text, re.IGNORECASE), text


def test_sentences_begin_with_a_capital(documents: list[Document]) -> None:
    for text in prose_of(documents):
        for start in re.findall(r'(?:^|[.] )"?(\w)', text):
            assert start.isupper() or start.isdigit(), text


def test_a_name_keeps_its_kind(documents: list[Document]) -> None:
    for document in documents:
        for text in texts_of(document):
            kinds: dict[str, set[str]] = {}
            for kind, name in re.findall(r"(\w+) named (\w+)", text):
                kinds.setdefault(name, set()).add(kind)
            assert all(len(found) == 1 and found <= set(KINDS) for found in kinds.values()), text


def test_pronouns_agree_with_the_name_before(documents: list[Document]) -> None:
    for text in prose_of(documents):
        for name, pronoun in re.findall(r"named (\w+)\. (She|He) lived", text):
            assert NAMES[name].subject == pronoun.lower(), text


def test_answers_about_the_last_holder_follow_from_the_story(documents: list[Document]) -> None:
    checked = 0
    for document in documents:
        story = ""
        for asked, answered in zip(document.messages, document.messages[1:], strict=False):
            story += " " + asked.content
            match = re.fullmatch(r"(\w+) has the (\w+)\.", answered.content)
            if match is None or "Who has the" not in asked.content:
                continue
            holder, noun = match.groups()
            hand_over = rf"(?:gave the {noun}|the {noun},\" said (?:the )?\w+, and gave it) to (?:the )?(\w+)"
            last = re.findall(hand_over, story)
            lost_again = re.search(rf"(left|put|picked up|took) the {noun}", story)
            if last and last[-1] in NAMES and not lost_again:
                assert last[-1] == holder, story
                checked += 1
    assert checked > 10
