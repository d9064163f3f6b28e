"""Whether a text fits a grammar."""

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.matcher import Matcher, Vocabulary


class Fitting:
    """A grammar over a tokenizer's tokens."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, grammar: str) -> None:
        self._tokenizer = tokenizer
        self._num_bytes = vocabulary.end_bits.nbytes
        self._root = Matcher.build(vocabulary, grammar)

    def fits(self, text: str) -> bool:
        """Whether the masks allow each of the text's tokens, and then the end."""
        [end] = self._tokenizer.end_token_ids
        [tokens] = self._tokenizer.encode_batch([text], add_special_tokens=False)
        matcher, mask = self._root.fork([end]), bytearray(self._num_bytes)
        for token in [*tokens, end]:
            matcher.fill(mask)
            if not mask[token // 8] >> token % 8 & 1:
                return False
            if token != end:
                matcher.consume(token)
        return True
