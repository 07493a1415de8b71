"""Whatever is accepted: what is kept equals a run from scratch, bitwise."""

import pytest
from forced import MOST_DRAFTS, Forced

from scheduler.sequence import Sequence

ALL = [(drafts, kept) for drafts in range(MOST_DRAFTS) for kept in range(drafts + 1)]


def pattern(num_drafts: int, num_kept: int) -> str:
    """That many right ones, a wrong one, and right ones again, which must count for nothing."""
    return ("R" * num_kept + "W" + "R" * num_drafts)[:num_drafts]


def every_count(sequence: Sequence) -> str:
    """Each sequence goes through its own sixth of all windows and counts."""
    number = every_count.rounds.setdefault(sequence.seq_id, 0)
    every_count.rounds[sequence.seq_id] += 1
    return pattern(*ALL[(number * 6 + sequence.seq_id) % len(ALL)])


CASES = [
    ("qwen3", "blind"),
    ("qwen3_5", "blind"),
    ("qwen3_5", "mtp"),
    ("gemma3_text", "blind"),
    ("lfm2", "blind"),
    ("rwkv7", "blind"),
    ("qwen3", "qwen3_5"),
    ("qwen3_5", "qwen3"),
    ("qwen3_next", "qwen3_5"),
]


@pytest.mark.parametrize(("family", "drafter"), CASES)
def test_windows_of_one_to_eight_with_every_accepted_count(family: str, drafter: str) -> None:
    every_count.rounds = {}
    forced = Forced(family, every_count, drafter=drafter, block_size=16)
    for number in range(6):
        forced.submit([7 * number + 3 * place for place in range(5 + number)], max_tokens=60)
    forced.run()

    seen = {count for counts in forced.accepted.values() for count in counts}
    if family not in ("lfm2", "rwkv7"):  # their drafts end at block boundaries
        assert seen >= {count for count in ALL if count[0]}
