"""The text of one sequence as it is sent: piece by piece, and ending exactly at a stop string.

    said .............. | held .......... | not generated yet
                        ^ might still begin a stop string; released when it did not, or at the end

Of several matches the one that is complete first wins; of those complete at the same character,
the one that begins first. So the result does not depend on how tokens were grouped into rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.request import FinishReason

from .detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Fed:
    """What a run of tokens gave: text to send now, how many of the tokens the sequence keeps."""

    text: str
    num_kept: int
    finish: FinishReason | None


class TextStream:
    """Text of one sequence, watched for stop strings.

    ``include_stop`` leaves the stop string, or the text of a stop id, in the text. A stop string
    counts only if the token that completes it is at least the ``min_tokens``-th. To go on from an
    earlier run, feed its tokens first: what that says was said then, what it holds is still held.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._decoder = detokenizer.start()
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_generated = 0
        self._held = ""
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether everything is said."""
        return self._ended

    def after(self, tokens: Sequence[int]) -> "TextStream":
        """Return a stream of the same kind that has said ``tokens``, which did not end it."""
        other = TextStream(
            self._detokenizer,
            self._stop,
            include_stop=self._include_stop,
            min_tokens=self._min_tokens,
        )
        other.feed(tokens)
        return other

    def feed(self, tokens: Sequence[int], finish: FinishReason | None = None) -> Fed:
        """Add committed ``tokens``; ``finish`` says why the last of them ends the sequence.

        The sequence keeps every token up to the one in which a stop string was completed, even
        where only a part of that token's text came before the stop string; its finish is then
        "stop". The text of an id that ends the sequence is left out, without ``include_stop``.
        With any finish everything is released. Raises ValueError after the end.
        """
        if self._ended:
            raise ValueError("the text has ended: nothing may follow")
        hides_last = finish in ("eos", "stop") and not self._include_stop
        said: list[str] = []
        for index, token in enumerate(tokens):
            self._num_generated += 1
            if hides_last and index == len(tokens) - 1:
                break
            if self._advance(self._decoder.feed(token), said):
                return self._end(said, index + 1, "stop")
        if finish is not None:
            if self._advance(self._decoder.finish(), said):
                return self._end(said, len(tokens), "stop")
            said.append(self._held)
            return self._end(said, len(tokens), finish)
        return Fed("".join(said), len(tokens), None)

    def abandon(self) -> None:
        """End without saying what is held."""
        self._end([], 0, "error")

    def _advance(self, piece: str, said: list[str]) -> bool:
        """Add ``piece``, move what may be said to ``said``; return whether it ends here."""
        if not piece:
            return False
        if not self._stop:
            said.append(piece)
            return False
        text = self._held + piece
        match = self._first_match(text, len(self._held))
        if match is not None and self._num_generated >= self._min_tokens:
            start, end = match
            said.append(text[: end if self._include_stop else start])
            return True
        num_held = self._length_held(text)
        said.append(text[: len(text) - num_held])
        self._held = text[len(text) - num_held :]
        return False

    def _first_match(self, text: str, num_old: int) -> tuple[int, int] | None:
        """Return (start, end) of the winning match that ends after ``num_old`` characters."""
        matches = []
        for stop in self._stop:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start))
        if not matches:
            return None
        end, start = min(matches)
        return start, end

    def _length_held(self, text: str) -> int:
        """Return the length of the longest end of ``text`` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0

    def _end(self, said: list[str], num_kept: int, finish: FinishReason) -> Fed:
        self._ended = True
        self._held = ""
        return Fed("".join(said), num_kept, finish)
