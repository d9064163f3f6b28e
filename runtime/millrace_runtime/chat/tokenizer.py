"""A model's tokenizer: text to ids, ids to bytes."""

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import tokenizers

from millrace_fit.files.needed import TOKENIZER, explain_pointer, explain_tokenizer
from millrace_runtime.chat.detokenizer import NONE_SHOWN, ByteDetokenizer, Detokenizer, WindowDetokenizer
from millrace_runtime.chat.errors import TokenizerError, TokenizingError
from millrace_runtime.chat.model_files import TextConfig, read_text_config

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_NUM_REMAPPED_FROM = 256
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
"""SentencePiece's pieces for single bytes."""
SPACE = "\u2581"
"""SentencePiece's space."""


class _TokenizerFile(msgspec.Struct):
    """The only part of tokenizer.json that this module reads itself."""

    decoder: dict[str, Any] | None = None


class Tokenizer:
    """Encodes text and spells tokens. Encoding a batch releases the GIL (a single encode does not)."""

    def __init__(self, native: tokenizers.Tokenizer, config: TextConfig, *, is_byte_level: bool) -> None:
        native.no_truncation()
        native.no_padding()
        self._native = native
        self._is_byte_level = is_byte_level
        self._spelling: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        self.config = config
        added = native.get_added_tokens_decoder()
        self.added_ids = {token.content: number for number, token in added.items()}
        """The id of each token that the tokenizer splits off before all else, by its text."""
        self.special_texts = {number: token.content for number, token in added.items() if token.special}
        """The text of each special token, by its id."""
        self.end_token_ids = self._find_end_token_ids()

    @classmethod
    def load(cls, model_path: Path) -> "Tokenizer":
        """Load the tokenizer of a model's folder. Raises TokenizerError, which names the missing file."""
        path = model_path / TOKENIZER
        fault = explain_tokenizer({file.name for file in model_path.glob("*") if file.is_file()})
        if fault is not None:
            raise TokenizerError(f"{model_path}: {fault}")
        data = _read_file(path)
        try:
            native = tokenizers.Tokenizer.from_buffer(data)
            decoder = msgspec.json.decode(data, type=_TokenizerFile).decoder
        except Exception as error:  # the native library raises plain Exception
            raise TokenizerError(f"{path} can't be loaded as a tokenizer: {error}") from error
        config = read_text_config(model_path)
        _add_tokens(native, config)
        return cls(native, config, is_byte_level=_is_byte_level(decoder))

    def to_json(self) -> str:
        """Return the tokenizer as tokenizer.json has it, with the tokens of the other files."""
        return self._native.to_str()

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Return each text's token ids. Raises TokenizingError."""
        return [encoding.ids for encoding in self._encode(texts, add_special_tokens=add_special_tokens)]

    @cached_property
    def num_leading(self) -> int:
        """Special tokens that `encode_batch` adds before each text. Raises TokenizingError."""
        [encoding] = self._encode(["a"], add_special_tokens=True)
        return len(list(takewhile(bool, encoding.special_tokens_mask)))

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[tokenizers.Encoding]:
        try:
            return self._native.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except BaseException as error:  # noqa: BLE001  a panic of the native library is no Exception
            _translate(error)

    def decode(self, tokens: Sequence[int], *, hides_special: bool = True) -> str:
        """Return the tokens' text without special tokens; a broken character reads U+FFFD.

        Raises TokenizingError.
        """
        try:
            return self._native.decode(tokens, skip_special_tokens=hides_special)
        except BaseException as error:  # noqa: BLE001  as in _encode
            _translate(error)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token spells: its name if it is special, nothing if its id is unknown."""
        spelled = self._spelling.get(token)
        if spelled is None:
            piece = self.token_piece(token)
            spelled = spell_byte_level(piece) if self._is_byte_level else spell_sentencepiece(piece)
            self._spelling[token] = spelled
        return spelled

    def token_piece(self, token: int) -> str:
        """Return a token as the vocabulary spells it, such as `Ġthe`; nothing if its id is unknown."""
        return self._native.id_to_token(token) or ""

    def token_text(self, token: int) -> str | None:
        """Return a byte-level token's text; None if the token is not whole characters."""
        try:
            return self._texts[token]
        except KeyError:
            text = self._texts[token] = "" if self.is_special(token) else _as_text(self.token_bytes(token))
            return text

    def is_special(self, token: int) -> bool:
        """Whether the token is a marker that never appears in text."""
        return token in self.special_texts

    @cached_property
    def drops_first_space(self) -> bool:
        """Whether a text begins without its first token's space, as SentencePiece's do.

        The first token of the vocabulary that begins with a space decides it.
        """
        for token in range(self._native.get_vocab_size()):
            spelled = self.token_bytes(token)
            if spelled[:1] == b" " and spelled.strip() and not self.is_special(token):
                return not self.decode([token]).startswith(" ")
        return False

    def open_detokenizer(
        self, prompt: Sequence[int] = (), shown: Mapping[int, str] = NONE_SHOWN
    ) -> Detokenizer:
        """Return a fresh incremental detokenizer for the sequence that continues `prompt`.

        `shown` has the special tokens that are written, and their text.
        """
        if self._is_byte_level:
            return ByteDetokenizer(self, shown)
        return WindowDetokenizer(self, shown, prompt)

    def _find_end_token_ids(self) -> tuple[int, ...]:
        ids = dict.fromkeys(self.config.end_token_ids)
        named = self._native.token_to_id(self.config.special_tokens.get("eos_token", ""))
        if named is not None:
            ids[named] = None
        return tuple(ids)


def _add_tokens(native: tokenizers.Tokenizer, config: TextConfig) -> None:
    """Add the tokens that other files name, as transformers does. Raises TokenizerError for one too many."""
    known = {token.content for token in native.get_added_tokens_decoder().values()}
    for token in config.added_tokens:
        if token["content"] not in known:
            known.add(token["content"])
            native.add_tokens([tokenizers.AddedToken(**{"normalized": False, "special": True} | token)])
    if config.num_rows is None:
        return
    for number, added in native.get_added_tokens_decoder().items():
        if number >= config.num_rows:
            raise TokenizerError(
                f"the tokenizer's token {added.content!r} has the id {number}, and the model knows ids below "
                f"{config.num_rows}: take the token out of the tokenizer's files, or fix `vocab_size`"
            )


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _translate(error: BaseException) -> NoReturn:
    if isinstance(error, (MemoryError, KeyboardInterrupt, SystemExit)):
        raise error
    raise TokenizingError(f"the model's tokenizer failed: {error}") from error


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    steps = decoder.get("decoders", [decoder])
    return len(steps) == 1 and steps[0].get("type") == "ByteLevel"


@cache
def byte_of_letter() -> dict[str, int]:
    """Return byte-level BPE's alphabet. Printable Latin-1 stands for itself; U+0100 and on are the others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    remapped = [byte for byte in range(256) if byte not in set(printable)]
    letters |= {chr(_NUM_REMAPPED_FROM + place): byte for place, byte in enumerate(remapped)}
    return letters


def _read_file(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} can't be read: {error.strerror}") from error
    if fault := explain_pointer(str(path), data):
        raise TokenizerError(fault)
    return data


def spell_byte_level(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; an added token outside the alphabet is plain text."""
    letters = byte_of_letter()
    try:
        return bytes([letters[letter] for letter in piece])
    except KeyError:
        return piece.encode()


def spell_sentencepiece(piece: str) -> bytes:
    """Return the bytes of a SentencePiece piece: `▁` is a space, `<0x0A>` one byte."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE, " ").encode()
