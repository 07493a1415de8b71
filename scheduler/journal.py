"""Remembers the last events that touched each id, for the message of a violated invariant."""

from collections import deque

_NUM_REMEMBERED = 5


class Journal:
    """What happened to each block and slot lately. Kept only where invariants are checked."""

    def __init__(self) -> None:
        self._event = "start"
        self._number = 0
        self._touches: dict[tuple[str, int], deque[str]] = {}

    def begin(self, event: str) -> None:
        """All touches from here on belong to this event."""
        self._number += 1
        self._event = event

    def touch(self, noun: str, id_: int, action: str) -> None:
        """Note what the event does to an id."""
        touches = self._touches.setdefault((noun, id_), deque(maxlen=_NUM_REMEMBERED))
        touches.append(f"#{self._number} {self._event}: {action}")

    def last(self, noun: str, id_: int) -> list[str]:
        """The last touches of an id, the oldest first."""
        return list(self._touches.get((noun, id_), ()))
