"""When users come: all at once, so many at a time, or at random."""

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process. With neither field all users come at once.

    ``rate``: Poisson, so many users a second, seeded. ``concurrency``: so many at a time, the next
    as soon as one is done. Raises ValueError for both, or for one that is not positive.
    """

    rate: float | None = None
    concurrency: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise ValueError("users come at a rate or so many at a time, not both")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"a rate must be above 0 users a second, not {self.rate}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")

    def offsets(self, count: int) -> list[float]:
        """Return the seconds after the start at which each of ``count`` users comes, ascending."""
        if self.rate is None:
            return [0.0] * count
        chance = random.Random(self.seed)
        return list(accumulate(chance.expovariate(self.rate) for _ in range(count)))

    def described(self) -> dict[str, Any]:
        """Return the process in plain values."""
        if self.rate is not None:
            return {"process": "poisson", "rate": self.rate, "seed": self.seed}
        if self.concurrency is not None:
            return {"process": "closed loop", "concurrency": self.concurrency}
        return {"process": "all at once"}

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:.3g} users a second"
        return "all at once" if self.concurrency is None else f"{self.concurrency} at a time"
