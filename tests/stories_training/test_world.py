import pytest

from stories_training.lexicon import HE, SHE, Place
from stories_training.world import Character, Thing, World, WorldError

RIVER, HILL = Place("river", "by"), Place("hill", "on")
ROSA, BEN = Character("Rosa", "fox", SHE), Character("Ben", "bear", HE)
KEY = Thing("key", "old")


@pytest.fixture
def world() -> World:
    world = World()
    world.add_character(ROSA, RIVER)
    world.add_character(BEN, HILL)
    world.add_held(KEY, ROSA)
    return world


def test_a_thing_goes_where_its_holder_goes(world: World) -> None:
    world.go(ROSA, HILL)
    world.give(ROSA, KEY, BEN)
    world.drop(BEN, KEY)
    assert world.lying == {KEY: HILL}
    world.check_integrity()


def test_nobody_gives_from_afar(world: World) -> None:
    with pytest.raises(WorldError, match="from afar"):
        world.give(ROSA, KEY, BEN)


def test_nobody_gives_what_they_do_not_hold(world: World) -> None:
    with pytest.raises(WorldError, match="Ben does not hold the key"):
        world.drop(BEN, KEY)


def test_nobody_takes_what_lies_elsewhere(world: World) -> None:
    world.drop(ROSA, KEY)
    with pytest.raises(WorldError, match="does not lie where Ben is"):
        world.take(BEN, KEY)


def test_what_is_eaten_is_gone(world: World) -> None:
    world.eat(ROSA, KEY)
    assert world.list_things() == [KEY]
    with pytest.raises(WorldError):
        world.drop(ROSA, KEY)


def test_doubles_are_refused(world: World) -> None:
    with pytest.raises(WorldError, match="already somebody named Rosa"):
        world.add_character(Character("Rosa", "hen", SHE), HILL)
    with pytest.raises(WorldError, match="already a key"):
        world.add_lying(Thing("key", "new"), HILL)
    with pytest.raises(WorldError, match="Rosa is already by the river"):
        world.go(ROSA, RIVER)


def test_a_first_mention_takes_the_right_article() -> None:
    assert (KEY.new, Thing("hat", "red").new, KEY.known) == ("an old key", "a red hat", "the key")
