"""Deltas that nobody has taken yet."""

from collections.abc import Iterable

from .answer import Delta


class Undelivered:
    """What requests have gained, in order: in the inbox of who awaits them, or for who steps."""

    def __init__(self) -> None:
        self.inboxes: dict[str, list[Delta]] = {}  # by request; several may have one
        self._deltas: list[Delta] = []

    def __bool__(self) -> bool:
        """Whether there is something for who steps."""
        return bool(self._deltas)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Keep ``deltas`` until they are taken."""
        if not self.inboxes:
            self._deltas += deltas
            return
        for delta in deltas:
            self.inboxes.get(delta.request_id, self._deltas).append(delta)

    def take(self) -> list[Delta]:
        """Hand out what nobody awaits."""
        found, self._deltas = self._deltas, []
        return found
