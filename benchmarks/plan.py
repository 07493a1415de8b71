"""How long the scheduler takes to plan and commit one round of decoding rows, by number of rows.

With prompts of their own, and with prompts that share all but their last blocks, whose rows the
round then names as a group. ``median_us`` is of all rounds; ``tenth_us``, the fastest tenth's
slowest, is what a busy machine blurs least.
"""

import json
from collections.abc import Sequence as Seq
from statistics import quantiles
from time import perf_counter

from scheduler.request import Request
from scheduler.round import Row, Verdict
from scheduler.scheduler import Scheduler, SchedulerConfig
from scheduler.sequence import Sequence

PROMPT_TOKENS = 1024
SHARED_TOKENS = 960
NUM_ROUNDS = 200
TARGET_US_PER_ROW = 15.0


class Drafts:
    """Three drafts for every row."""

    def depths(self, sequences: Seq[Sequence], num_waiting: int) -> list[int]:
        return [3] * len(sequences)

    def rests(self, sequences: Seq[Sequence], num_waiting: int) -> bool:
        return False


def round_times_us(
    num_rows: int, *, drafts: bool, shared_tokens: int = 0, num_rounds: int = NUM_ROUNDS
) -> list[float]:
    """Times of plan + commit, in microseconds, while every row decodes after a long prompt."""
    max_tokens = 4 * num_rounds + 64
    blocks_each = (PROMPT_TOKENS + max_tokens) // 16 + 1
    config = SchedulerConfig(
        num_blocks=1 + num_rows * blocks_each,
        num_slots=1 + 4 * num_rows,
        max_rows=num_rows,
        uses_slots=True,
        prompt_tokens_per_round=PROMPT_TOKENS * num_rows,
    )
    scheduler = Scheduler(config, Drafts() if drafts else None)
    for index in range(num_rows):
        own = [(index * 7919 + place) % 50_000 for place in range(PROMPT_TOKENS - shared_tokens)]
        prompt = (*range(shared_tokens), *own)
        scheduler.submit(Request(str(index), prompt, max_tokens))
    times = []
    while len(times) < num_rounds:
        begin = perf_counter()
        round_ = scheduler.plan()
        planned = perf_counter()
        assert round_ is not None
        verdicts = [verdict(row) for row in round_.rows]
        answered = perf_counter()
        scheduler.commit(verdicts)
        done = perf_counter()
        if len(round_.rows) == num_rows and len(round_.rows[0].tokens) == 1:
            times.append((planned - begin + done - answered) * 1e6)
    return times


def verdict(row: Row) -> Verdict:
    """Half of the drafts are accepted."""
    if not row.samples:
        return Verdict(row.seq_id)
    accepted = row.num_drafts // 2
    return Verdict(row.seq_id, tuple(range(accepted + 1)), row.num_drafts, accepted)


def main() -> None:
    round_times_us(8, drafts=True, num_rounds=500)  # not counted: the interpreter warms up
    for drafts, shared_tokens in ((False, 0), (True, 0), (False, SHARED_TOKENS)):
        for num_rows in (1, 8, 32, 128, 512):
            times = round_times_us(num_rows, drafts=drafts, shared_tokens=shared_tokens)
            deciles = quantiles(times, n=10)
            record = {
                "benchmark": "plan",
                "rows": num_rows,
                "drafts": 3 * drafts,
                "shared_tokens": shared_tokens,
                "median_us": round(deciles[4], 1),
                "tenth_us": round(deciles[0], 1),
                "median_us_per_row": round(deciles[4] / num_rows, 2),
                "tenth_us_per_row": round(deciles[0] / num_rows, 2),
                "target_us_per_row": TARGET_US_PER_ROW,
            }
            print(json.dumps(record))


if __name__ == "__main__":
    main()
