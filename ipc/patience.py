"""How long an engine's thread may wait for others: little, beside what its rounds take."""

_COMPANY = (0.1, 0.002)  # a share of a round, and seconds; the smaller of both counts
_PARTING = (0.05, 0.001)
_TOO_SHORT = 0.00005  # to wake anybody in
_NEWEST = 0.1  # the last round's share in what is known of rounds


class Patience:
    """Knows what rounds take lately. An engine whose rounds take no time never waits."""

    def __init__(self) -> None:
        self._round = 0.0  # seconds

    def observe(self, seconds: float) -> None:
        """Learn what a round took."""
        self._round += _NEWEST * (seconds - self._round)

    @property
    def round(self) -> float:
        """Seconds a round takes."""
        return self._round

    @property
    def company(self) -> float:
        """Seconds that a request at an idle engine may wait for the next one that comes with it.

        A round for the prompt of the first would be followed by one for all the others'.
        """
        return self._of(*_COMPANY)

    @property
    def parting(self) -> float:
        """Seconds that the next round may wait for what the last one gained to leave.

        Both threads want the interpreter then. If they fight for it the round loses as much.
        """
        return self._of(*_PARTING)

    def _of(self, share: float, most: float) -> float:
        seconds = min(share * self._round, most)
        return seconds if seconds > _TOO_SHORT else 0.0
