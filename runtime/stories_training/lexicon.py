"""The words of the stories: names, kinds of characters, things, places.

Every noun takes its article from its first letter, so no word here starts with a silent h or a
spoken "you".
"""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple


class Pronouns(NamedTuple):
    """One gender's pronouns."""

    subject: str
    object: str
    possessive: str


class Place(NamedTuple):
    """A place and its preposition."""

    noun: str
    preposition: str

    @property
    def where(self) -> str:
        """The place with its preposition, e.g. "by the river"."""
        return f"{self.preposition} the {self.noun}"


SHE: Final = Pronouns("she", "her", "her")
HE: Final = Pronouns("he", "him", "his")

NAMES: Final[dict[str, Pronouns]] = {
    **dict.fromkeys(
        [
            "Rosa",
            "Mia",
            "Lily",
            "Anna",
            "Clara",
            "Nora",
            "Ella",
            "Ivy",
            "Ruby",
            "Hazel",
            "Daisy",
            "Luna",
            "Emma",
            "Sara",
            "Zoe",
            "Molly",
        ],
        SHE,
    ),
    **dict.fromkeys(
        [
            "Ben",
            "Tom",
            "Max",
            "Leo",
            "Finn",
            "Sam",
            "Otto",
            "Hugo",
            "Jack",
            "Oscar",
            "Theo",
            "Felix",
            "Noah",
            "Paul",
            "Adam",
            "Milo",
        ],
        HE,
    ),
}

KINDS: Final[tuple[str, ...]] = (
    "fox",
    "bear",
    "rabbit",
    "owl",
    "mouse",
    "hedgehog",
    "badger",
    "squirrel",
    "cat",
    "dog",
    "duck",
    "goose",
    "frog",
    "otter",
    "mole",
    "sheep",
    "horse",
    "wolf",
    "deer",
    "crow",
    "turtle",
    "beaver",
    "goat",
    "pig",
    "hen",
    "lion",
    "tiger",
    "elephant",
    "monkey",
    "parrot",
    "robot",
    "baker",
    "farmer",
    "sailor",
    "miller",
    "shepherd",
    "dragon",
    "giant",
    "wizard",
    "painter",
)

PLACES: Final[tuple[Place, ...]] = (
    Place("forest", "in"),
    Place("garden", "in"),
    Place("meadow", "in"),
    Place("village", "in"),
    Place("barn", "in"),
    Place("cave", "in"),
    Place("tower", "in"),
    Place("library", "in"),
    Place("orchard", "in"),
    Place("valley", "in"),
    Place("river", "by"),
    Place("lake", "by"),
    Place("well", "by"),
    Place("pond", "by"),
    Place("sea", "by"),
    Place("mill", "at"),
    Place("market", "at"),
    Place("harbor", "at"),
    Place("school", "at"),
    Place("hill", "on"),
    Place("bridge", "on"),
    Place("beach", "on"),
)

FOODS: Final[tuple[str, ...]] = (
    "apple",
    "pear",
    "plum",
    "cake",
    "pie",
    "cookie",
    "carrot",
    "sandwich",
    "melon",
    "pancake",
)
FOOD_ADJECTIVES: Final = ("big", "small", "sweet", "fresh", "round")

USES: Final[dict[str, tuple[str, str]]] = {
    "lantern": ("lit the lantern", "its warm light filled the night"),
    "candle": ("lit the candle", "the shadows did not look so big"),
    "kite": ("ran with the kite", "it flew high above the trees"),
    "ball": ("kicked the ball", "it rolled all the way down the path"),
    "drum": ("beat the drum", "even the birds began to dance"),
    "flute": ("played the flute", "the music was soft and sweet"),
    "bell": ("rang the bell", "everyone could hear it"),
    "whistle": ("blew the whistle", "the sound was loud and clear"),
    "rope": ("tied the rope to a tree", "it held very well"),
    "shovel": ("dug with the shovel", "soon there was a deep hole"),
    "hammer": ("used the hammer", "the broken door was fixed"),
    "basket": ("filled the basket with berries", "it was full by noon"),
    "bucket": ("filled the bucket with water", "not a drop was lost"),
    "key": ("turned the key in a little door", "the door opened"),
    "map": ("looked at the map", "the way home was easy to see"),
    "umbrella": ("opened the umbrella", "the rain could not come through"),
    "blanket": ("sat down on the blanket", "it was soft and warm"),
    "book": ("opened the book", "it was full of wonderful pictures"),
    "hat": ("put on the hat", "it was just the right size"),
    "scarf": ("put on the scarf", "the wind did not feel so cold"),
    "coat": ("put on the coat", "the cold went away"),
    "coin": ("held up the coin", "it shone in the sun"),
    "ring": ("looked at the ring", "it was as bright as a star"),
    "shell": ("listened to the shell", "it sounded like the waves"),
    "feather": ("held up the feather", "it danced in the wind"),
    "stone": ("looked at the stone", "it was smooth and pretty"),
    "crown": ("put on the crown", "everyone laughed and clapped"),
    "mirror": ("looked into the mirror", "a happy face looked back"),
    "boat": ("put the boat in the water", "it floated like a leaf"),
    "clock": ("wound the clock", "it began to tick again"),
    "brush": ("painted with the brush", "the picture was full of color"),
    "pot": ("cooked soup in the pot", "it smelled very good"),
}
"""For each thing: what its holder does with it, and the result."""

THINGS: Final[tuple[str, ...]] = tuple(USES)
THING_ADJECTIVES: Final = ("red", "blue", "green", "yellow", "old", "new", "small", "big", "little", "pretty")


@cache
def read_extra_words() -> tuple[str, ...]:
    """Return more plain English words for the tokenizer, so that it splits no common word into letters."""
    return tuple(Path(__file__).with_name("extra_words.txt").read_text().split())


def with_article(words: str) -> str:
    """Return the words with "a" or "an" before them."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
