"""How long requests at an idle engine wait for others that come with them."""

_SHARE = 0.1  # of a round
_MOST = 0.002  # seconds
_LEAST = 0.00005  # seconds; in less nobody is woken
_NEWEST = 0.1  # the last round's share in what is known of rounds


class Patience:
    """Little, beside what a round takes: one for the first prompt alone would be a whole round.

    An engine whose rounds take no time waits for nobody.
    """

    def __init__(self) -> None:
        self.round = 0.0  # seconds that rounds take lately

    def observe(self, seconds: float) -> None:
        """Learn what a round took."""
        self.round += _NEWEST * (seconds - self.round)

    @property
    def seconds(self) -> float:
        """How long to wait for the next request, after each that came."""
        seconds = min(_SHARE * self.round, _MOST)
        return seconds if seconds >= _LEAST else 0.0
