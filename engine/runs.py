"""The requests that are being answered, and the run of each of their samples."""

from collections.abc import Sequence

from .run import Run


class Runs:
    """Who runs, by sequence and by request; a request is here until its last sample has ended."""

    def __init__(self) -> None:
        self.by_sequence: dict[int, Run] = {}
        self.by_request: dict[str, tuple[int, ...]] = {}
        self._next_number = 0

    def __contains__(self, request_id: str) -> bool:
        """Whether a request has a sample that has not ended."""
        return request_id in self.by_request

    def new_id(self) -> str:
        """Return an id that no running request has."""
        while True:
            self._next_number += 1
            if (request_id := f"request-{self._next_number}") not in self.by_request:
                return request_id

    def begin(self, request_id: str, seq_ids: Sequence[int], runs: Sequence[Run]) -> None:
        """Take in a request whose samples are these sequences."""
        self.by_sequence |= zip(seq_ids, runs, strict=True)
        self.by_request[request_id] = tuple(seq_ids)

    def sequences(self, request_id: str) -> tuple[int, ...]:
        """Return the sequences of a request, ended ones as well; none if it is unknown."""
        return self.by_request.get(request_id, ())

    def seed(self, request_id: str) -> int:
        """Return the seed of a request. Raises KeyError if it is unknown."""
        runs = (self.by_sequence.get(seq_id) for seq_id in self.by_request[request_id])
        return next(run.seed for run in runs if run is not None)

    def end(self, seq_id: int) -> None:
        """Forget a sample, and with the last one its request."""
        request_id = self.by_sequence.pop(seq_id).request.request_id
        if not any(other in self.by_sequence for other in self.by_request[request_id]):
            del self.by_request[request_id]
