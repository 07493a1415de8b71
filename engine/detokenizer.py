"""Turns token ids into text piece by piece, never half a character.

The pieces of a sequence, joined, are what the tokenizer's own ``decode(ids,
skip_special_tokens=True, clean_up_tokenization_spaces=False)`` says of all of them at once. Special
tokens are not shown. mlx-lm's streaming detokenizers are not used: its byte-level one drops a
leading space, and all show special tokens.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


class PieceDecoder(Protocol):
    """The text of one sequence, one token after the other."""

    def feed(self, token: int) -> str:
        """Return the text that is certain now; "" while a character is not whole."""

    def finish(self) -> str:
        """Return what was held back, with U+FFFD for what never became a character."""


class Detokenizer:
    """Everything about a tokenizer that its sequences share; built once, 30 ms for 150,000 ids."""

    def __init__(self, tokenizer: Any) -> None:
        decoder = _decoder_of(tokenizer)
        self._start: Callable[[], PieceDecoder]
        if decoder.get("type") == "ByteLevel":
            table = [_byte_level(token) for token in _shown_tokens(tokenizer)]
            self._start = lambda: ByteDecoder(table)
        elif _is_byte_fallback(decoder):
            tokens = _shown_tokens(tokenizer)
            strips = decoder["decoders"][-1]["type"] == "Strip"
            self._start = lambda: ByteFallbackDecoder(tokens, strips_first_space=strips)
        else:
            special = _special_ids(tokenizer)
            self._start = lambda: WindowDecoder(tokenizer, special)

    def start(self) -> PieceDecoder:
        """Return the decoder of a new sequence."""
        return self._start()


class ByteDecoder:
    """For byte-level vocabularies: a token is a string of bytes, decoded as they come."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the characters that this token completes. Ids without a token have no text."""
        return self._utf8.decode(self._table[token]) if token < len(self._table) else ""

    def finish(self) -> str:
        """Return U+FFFD for an unfinished character, if there is one."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class ByteFallbackDecoder:
    """For SentencePiece vocabularies: pieces with U+2581 for space, and single bytes as <0xNN>.

    A run of bytes is held until it ends, since one bad byte makes U+FFFD of the whole run.
    """

    def __init__(self, tokens: Sequence[str | None], *, strips_first_space: bool) -> None:
        self._tokens = tokens
        self._run = bytearray()
        self._strips = strips_first_space

    def feed(self, token: int) -> str:
        """Return the text of this token, after that of the run of bytes it ends."""
        piece = self._tokens[token] if token < len(self._tokens) else None
        if piece is None:
            return ""
        if _BYTE_TOKEN.fullmatch(piece):
            self._run.append(int(piece[3:5], 16))
            return ""
        return self._stripped(self._run_text() + piece.replace("\u2581", " "))

    def finish(self) -> str:
        """Return the text of a run of bytes that was still open."""
        return self._stripped(self._run_text())

    def _run_text(self) -> str:
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = _REPLACEMENT * len(self._run)
        self._run.clear()
        return text

    def _stripped(self, text: str) -> str:
        if self._strips and text:
            self._strips = False
            return text.removeprefix(" ")
        return text


class WindowDecoder:
    """For any other vocabulary: decodes the newest tokens again behind a few that came before."""

    def __init__(self, tokenizer: Any, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._before: list[int] = []  # gave their text already
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """Return what the pending tokens add to the text of those before them."""
        if token in self._special:
            return ""
        self._pending.append(token)
        added = self._added()
        if not added or added.endswith(_REPLACEMENT):
            return ""
        self._before, self._pending = self._pending, []
        return added

    def finish(self) -> str:
        """Return what the pending tokens add, whole or not."""
        added = self._added() if self._pending else ""
        self._before, self._pending = self._pending, []
        return added

    def _added(self) -> str:
        return self._decode(self._before + self._pending)[len(self._decode(self._before)) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def _decoder_of(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        return {}
    decoder = json.loads(backend.to_str()).get("decoder")
    return decoder or {}


def _is_byte_fallback(decoder: dict[str, Any]) -> bool:
    """Whether the decoder is Replace U+2581, ByteFallback, Fuse and perhaps Strip one space."""
    steps = decoder.get("decoders", [])
    space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return [step["type"] for step in steps[:3]] == ["Replace", "ByteFallback", "Fuse"] and (
        steps[0] == space and steps[3:] in ([], [strip])
    )


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {
        token_id for token_id, token in added.items() if token.special
    }


def _shown_tokens(tokenizer: Any) -> list[str | None]:
    """Return every id's token as the vocabulary spells it; None for those never shown."""
    special = _special_ids(tokenizer)
    size = max(tokenizer.get_vocab().values()) + 1
    tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
    return [None if token_id in special else token for token_id, token in enumerate(tokens)]


def _byte_level(token: str | None) -> bytes:
    """GPT-2's spelling of bytes as printable characters, undone; other tokens as they are."""
    if token is None:
        return b""
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_characters() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_characters()
