"""Two things measured side by side: interleaved pairs, the median ratio and its interval."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much larger ours is than theirs: the median over pairs, and its 95 % interval."""

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    num_pairs: int


def measure_pairs(ours: Callable[[], float], theirs: Callable[[], float], num_pairs: int) -> Ratio:
    """Call both ``num_pairs`` times, taking turns at going first; one round before is not counted.

    Each returns what is to be large (tokens a second, say).
    """
    ours(), theirs()
    pairs = []
    for number in range(num_pairs):
        if number % 2:
            their = theirs()
            pairs.append((ours(), their))
        else:
            our = ours()
            pairs.append((our, theirs()))
    return ratio_of(pairs)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the median ratio of pairs (ours, theirs) and its interval.

    That is of the median, by bootstrap over pairs, seeded.
    """
    ratios = [our / their for our, their in pairs]
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(pairs))) for _ in range(RESAMPLES))
    return Ratio(
        ours=median(our for our, _ in pairs),
        theirs=median(their for _, their in pairs),
        ratio=median(ratios),
        low=medians[int(0.025 * RESAMPLES)],
        high=medians[int(0.975 * RESAMPLES)],
        num_pairs=len(pairs),
    )
