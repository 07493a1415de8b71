"""How times are spread: the median, the 99th percentile, the largest."""

import math
from collections.abc import Iterable
from statistics import median
from typing import Any


def spread(times: Iterable[float | None]) -> dict[str, Any] | None:
    """Return count, median, p99 (nearest rank) and max of what is known; None if nothing is.

    Below a hundred values p99 is the largest: ``count`` says how much it can be worth.
    """
    known = sorted(time for time in times if time is not None)
    if not known:
        return None
    rank = math.ceil(0.99 * len(known)) - 1
    return {
        "count": len(known),
        "median": plain(median(known)),
        "p99": plain(known[rank]),
        "max": plain(known[-1]),
    }


def plain(value: float) -> float:
    """Return a figure with five digits that count."""
    return float(f"{value:.5g}")
