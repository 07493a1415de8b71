"""Who starts next, among the sequences that wait.

1. Whoever has waited longer than ``max_wait_rounds``, the longest wait first.
2. The higher priority class.
3. Within a class, whoever had started before (preempted, failed, forked), the oldest first.
4. Then the tenant that was served the fewest tokens; then arrival.
"""

import heapq
from collections.abc import Iterable, Iterator

from .sequence import Sequence


class WaitingLine:
    """The waiting sequences and the tokens that each tenant was served."""

    def __init__(self, max_wait_rounds: int) -> None:
        self._max_wait_rounds = max_wait_rounds
        self._by_wait: dict[int, Sequence] = {}
        self._started: dict[int, Sequence] = {}
        self._returned: dict[int, dict[int, Sequence]] = {}  # by class
        self._fresh: dict[int, dict[str, dict[int, Sequence]]] = {}  # by class and tenant
        self._served: dict[str, int] = {}
        self._num_live: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._by_wait)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_wait.values())

    @property
    def started(self) -> Iterable[Sequence]:
        """Those that had started, the longest wait first: nobody else holds anything."""
        return self._started.values()

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.seq_id in self._by_wait

    def add(self, sequence: Sequence, round_number: int) -> None:
        """Let a sequence wait; one that had started goes to the head of its class."""
        sequence.waiting_since = round_number
        self._by_wait[sequence.seq_id] = sequence
        request = sequence.request
        if sequence.started:
            self._started[sequence.seq_id] = sequence
            self._returned.setdefault(request.priority, {})[sequence.seq_id] = sequence
        else:
            tenants = self._fresh.setdefault(request.priority, {})
            tenants.setdefault(request.tenant, {})[sequence.seq_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of the line."""
        del self._by_wait[sequence.seq_id]
        self._started.pop(sequence.seq_id, None)
        priority, tenant = sequence.request.priority, sequence.request.tenant
        returned = self._returned.get(priority, {})
        if returned.pop(sequence.seq_id, None) is not None:
            if not returned:
                del self._returned[priority]
            return
        tenants = self._fresh[priority]
        del tenants[tenant][sequence.seq_id]
        if not tenants[tenant]:
            del tenants[tenant]
        if not tenants:
            del self._fresh[priority]

    def candidates(self, round_number: int) -> Iterator[Sequence]:
        """Yield the waiting sequences in order. The line must not change meanwhile; ``charge`` may.

        Every sequence is yielded once.
        """
        overdue: set[int] = set()
        for sequence in self._by_wait.values():
            if round_number - sequence.waiting_since <= self._max_wait_rounds:
                break
            overdue.add(sequence.seq_id)
            yield sequence
        for priority in sorted({*self._returned, *self._fresh}, reverse=True):
            returned = self._returned.get(priority, {})
            for seq_id in sorted(returned.keys() - overdue):
                yield returned[seq_id]
            yield from self._by_tenant(self._fresh.get(priority, {}), overdue)

    def _by_tenant(
        self, tenants: dict[str, dict[int, Sequence]], overdue: set[int]
    ) -> Iterator[Sequence]:
        queues = {tenant: iter(queue.values()) for tenant, queue in tenants.items()}
        heap: list[tuple[int, int, str, Sequence]] = []

        def push(tenant: str) -> None:
            for sequence in queues[tenant]:
                if sequence.seq_id not in overdue:
                    served = self._served.get(tenant, 0)
                    heapq.heappush(heap, (served, sequence.seq_id, tenant, sequence))
                    return

        for tenant in tenants:
            push(tenant)
        while heap:
            tenant, sequence = heapq.heappop(heap)[2:]
            yield sequence
            push(tenant)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count tokens that a tenant was served."""
        self._served[tenant] = self._served.get(tenant, 0) + num_tokens

    def enter(self, tenant: str) -> None:
        """A tenant has one more live sequence. Coming back from idleness earns no credit."""
        if not self._num_live.get(tenant):
            floor = min((self._served.get(other, 0) for other in self._num_live), default=0)
            self._served[tenant] = max(self._served.get(tenant, 0), floor)
            self._num_live[tenant] = 0
        self._num_live[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A tenant has one live sequence less. What it was served is remembered for a while."""
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant]
            if len(self._served) > 10_000 + len(self._num_live):
                self._served = {name: self._served[name] for name in self._num_live}

    def served(self, tenant: str) -> int:
        """Tokens that a tenant was served, or the floor it was lifted to."""
        return self._served.get(tenant, 0)
