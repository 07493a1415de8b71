"""Deltas that nobody has taken yet."""

from collections.abc import Container, Iterable

from .answer import Delta


class Undelivered:
    """What requests have gained, in order; what is ``awaited`` is for nobody else."""

    def __init__(self) -> None:
        self.awaited: set[str] = set()  # requests that somebody waits for by name
        self._deltas: list[Delta] = []

    def __bool__(self) -> bool:
        """Whether there is something for whoever takes what nobody awaits."""
        return any(delta.request_id not in self.awaited for delta in self._deltas)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Keep ``deltas`` until they are taken."""
        self._deltas += deltas

    def take(self) -> list[Delta]:
        """Hand out what nobody awaits."""
        if self.awaited:
            return self._take({delta.request_id for delta in self._deltas} - self.awaited)
        found, self._deltas = self._deltas, []
        return found

    def take_for(self, request_ids: Container[str]) -> list[Delta]:
        """Hand out what these requests have gained."""
        return self._take(request_ids) if self._deltas else []

    def _take(self, request_ids: Container[str]) -> list[Delta]:
        found = [delta for delta in self._deltas if delta.request_id in request_ids]
        self._deltas = [delta for delta in self._deltas if delta.request_id not in request_ids]
        return found
