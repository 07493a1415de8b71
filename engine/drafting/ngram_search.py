"""Where in a sequence its last words were said before: looked for in all of it, each time.

To pass a token costs about a nanosecond, to enter it in an index some thousand times that, which
would pay for who looks that often only. Tokens are kept as characters: strings are searched at the
speed of C, and nothing is found across the bounds of two.
"""

from array import array
from codecs import utf_32_le_decode
from collections.abc import Sequence
from sys import maxunicode

LONGEST = 4
SHORTEST = 2
MOST_COMPARED = 16  # words before a place that are looked at, to say how good it is
MOST_IDS = maxunicode + 1


class NgramSearch:
    """The tokens of one sequence, with ids below MOST_IDS; 4 bytes a token."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = ""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what ``tokens``, all tokens of the sequence, has beyond the last time's."""
        new = array("I", tokens[len(self._text) :])
        self._text += utf_32_le_decode(new, "surrogatepass")[0]

    def look(self, most: int) -> tuple[tuple[int, ...], int]:
        """What followed the longest suffix that was said before, of those the newest.

        At most ``most`` tokens, with how many of the last tokens, MOST_COMPARED at most, stand
        before them as well; ((), 0) if none was said before. A repetition that reaches the end goes
        on with itself.
        """
        place = self._place()
        if place is None:
            return (), 0
        text = self._text
        period = text[place : place + most]
        said = (period * -(-most // len(period)))[:most]
        return tuple(map(ord, said)), self._num_same(place)

    def _place(self) -> int | None:
        """The position after the longest suffix that was said before, which a token follows."""
        text = self._text
        start = text.rfind(text[-SHORTEST:], 0, len(text) - 1)
        if start < 0:
            return None
        newest = start + SHORTEST  # no longer suffix was said later
        for size in range(LONGEST, SHORTEST, -1):
            start = text.rfind(text[-size:], 0, newest)
            if start >= 0:
                return start + size
        return newest

    def _num_same(self, place: int) -> int:
        text, most = self._text, min(MOST_COMPARED, place)
        same = SHORTEST
        while same < most and text[-1 - same] == text[place - 1 - same]:
            same += 1
        return same
