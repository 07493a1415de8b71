"""When the last row of a batch is done, if drafts let each row say several tokens a round."""

from collections.abc import Sequence as Seq
from math import log, sqrt

LAST_ROUND = 0.3  # of a row's last round with drafts is for nothing


def until_last(chances: Seq[float], num_left: int, num_rows: int) -> float:
    """Tokens a round until the last of ``num_rows`` rows has said ``num_left``.

    ``chances`` that each of a row's drafts is reached and accepted. Beside the mean, rows differ by
    luck, of which the last has least; and in its last round it has use for a part of the drafts.
    """
    mean = 1 + sum(chances)
    squares = sum((2 * place + 1) * chance for place, chance in enumerate(chances))
    deviation = sqrt(max(0.0, squares - (mean - 1) ** 2))
    rounds = num_left / mean
    extreme = max(0.0, sqrt(2 * log(num_rows)) - 0.6)  # of so many normal deviates, roughly
    return num_left / (rounds + extreme * deviation * sqrt(rounds) / mean + LAST_ROUND)
