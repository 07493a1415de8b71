"""The messages of one stream between their making and their arrival, by sequence number.

first .............. unsent .............. end
  sent, not yet received      not yet sent
"""

from collections import deque
from itertools import islice


class Outbox:
    """Keeps what was sent until the receiver says that it has it, so that it can be sent again."""

    __slots__ = ("_messages", "end", "first", "unsent")

    def __init__(self, first: int = 0) -> None:
        self.first = first  # the oldest message kept
        self.unsent = first  # the next to send
        self.end = first  # the next to be made
        self._messages: deque[list[bytes]] = deque()

    def push(self, frames: list[bytes]) -> None:
        """Add the message with sequence number ``end``."""
        self._messages.append(frames)
        self.end += 1

    def pass_on(self, frames: list[bytes]) -> bool:
        """Add a message that is sent at once; False, and nothing is done, if others are unsent."""
        if self.unsent != self.end:
            return False
        self._messages.append(frames)
        self.end += 1
        self.unsent = self.end
        return True

    def take(self) -> list[list[bytes]]:
        """Return the messages not yet sent, in order; they count as sent now."""
        if self.unsent == self.end:
            return []
        if self.unsent == self.end - 1:  # the usual case, without walking the deque
            taken = [self._messages[-1]]
        else:
            taken = list(islice(self._messages, self.unsent - self.first, None))
        self.unsent = self.end
        return taken

    def newest(self) -> list[bytes] | None:
        """Return the message made last, if it is still kept. It does not count as sent."""
        return self._messages[-1] if self._messages else None

    def acknowledge(self, received: int) -> None:
        """Forget every message below ``received``. What was never made cannot have arrived."""
        while self.first < min(received, self.end):
            self._messages.popleft()
            self.first += 1
        self.unsent = max(self.unsent, self.first)

    def rewind(self, received: int) -> None:
        """Send again from ``received`` on, as far back as messages are kept; forget nothing.

        What one hop has received, the next one may have lost.
        """
        self.unsent = max(self.first, min(received, self.end))
