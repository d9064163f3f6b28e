"""A text fits a regular expression exactly if Python's `re` matches all of it."""

import re

from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.grammar.source import GrammarKind
from tests.runtime.grammar.fitting import open_grammar

LETTERS = 'ab1 ."{'
"""Some that tokens have in their middle, and such as mean something in a pattern or in JSON."""
ATOMS = st.sampled_from([*map(re.escape, LETTERS), r"\d", r"\w", ".", "[ab]", "[^a]", "[a-c1]", "ab", "é"])
COUNTS = st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{0,1}", "{2,}"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, COUNTS),
    ),
    max_leaves=6,
)


@given(st.data(), PATTERNS)
def test_a_text_fits_what_python_matches(data: st.DataObject, pattern: str) -> None:
    grammar, whole = open_grammar(GrammarKind.REGEX, pattern), re.compile(f"(?:{pattern})", re.ASCII)
    fitting = data.draw(st.from_regex(whole, fullmatch=True, alphabet=LETTERS + "cé"))
    assert grammar.fits(fitting)
    other = data.draw(st.text(LETTERS, max_size=6))
    assert grammar.fits(other) == (whole.fullmatch(other) is not None)
