"""Stretches of rounds without drafts, between rounds that have some and are checked."""

from collections.abc import Iterator

from forced import Forced

from scheduler.sequence import Sequence

PLAIN = 21  # rounds without drafts, more than the head leaves for later


class Stretches:
    """Rounds without drafts, then two with; counts those of all sequences alike."""

    def __init__(self, plain: int = PLAIN) -> None:
        self.plain = plain
        self.rounds = 0
        self.asked: set[int] = set()

    def __call__(self, sequence: Sequence) -> str:
        if sequence.seq_id in self.asked:
            self.rounds += 1
            self.asked.clear()
        self.asked.add(sequence.seq_id)
        return "RRWR" if self.rounds % (self.plain + 2) >= self.plain else ""


def checked_drafts(forced: Forced) -> Iterator[int]:
    """Run to the end; check every round that has drafts, and yield how many there were so far."""
    num_checked = 0
    while forced.scheduler.has_work:
        forced.step()
        if any(forced.patterns.values()):
            forced.check()
            num_checked += 1
            yield num_checked


def run_checking_drafts(forced: Forced) -> int:
    """Run to the end; check every round that has drafts, and return how many there were."""
    return max(checked_drafts(forced), default=0)
