"""Stop strings planted into what a model is known to say: where they begin and end is known."""

from dataclasses import dataclass
from typing import Any

from engine.detokenizer import Detokenizer


@dataclass(frozen=True)
class Stop:
    """A piece of a text that begins inside one token and ends inside another."""

    string: str
    first: int  # the token in which it begins
    last: int  # the token that completes it


def pieces(tokenizer: Any, token_ids: list[int]) -> list[str]:
    decoder = Detokenizer(tokenizer).start()
    return [decoder.feed(token) for token in token_ids]


def plant(tokenizer: Any, token_ids: list[int], after: int, num_tokens: int) -> Stop:
    """Return a stop over ``num_tokens`` tokens, the first such that begins after token ``after``.

    It begins in the middle of a token and ends in the middle of another, where those have a
    middle, and does not occur earlier.
    """
    text = pieces(tokenizer, token_ids)
    for first in range(after, len(text) - num_tokens + 1):
        last = first + num_tokens - 1
        begin = text[first][min(1, len(text[first]) - 1) :]
        end = text[last][: max(1, len(text[last]) - 1)]
        stop = begin + "".join(text[first + 1 : last]) + end
        if "\ufffd" in stop or not begin or not end:
            continue
        place = "".join(text).find(stop)
        if place == sum(map(len, text[:first])) + len(text[first]) - len(begin):
            return Stop(stop, first, last)
    raise AssertionError("the text repeats itself too much")
