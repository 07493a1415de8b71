"""How long the scheduler takes to plan and commit one round of decoding rows, by number of rows.

Times are CPU time of the thread, so that a busy machine does not blur them; ``wall_us`` is beside.
"""

import json
from statistics import median
from time import perf_counter, thread_time

from scheduler.request import Request
from scheduler.round import Row, Verdict
from scheduler.scheduler import Scheduler, SchedulerConfig
from scheduler.sequence import Sequence

PROMPT_TOKENS = 1024
NUM_ROUNDS = 200
TARGET_US_PER_ROW = 15.0


class Drafts:
    """Three drafts for every row."""

    def depth(self, sequence: Sequence, num_rows: int) -> int:
        return 3


def round_times_us(
    num_rows: int, *, drafts: bool, num_rounds: int = NUM_ROUNDS
) -> list[tuple[float, float]]:
    """CPU and wall times of plan + commit, in microseconds, rows decoding after a long prompt."""
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
        prompt = tuple((index * 7919 + position) % 50_000 for position in range(PROMPT_TOKENS))
        scheduler.submit(Request(str(index), prompt, max_tokens))
    times = []
    while len(times) < num_rounds:
        begin = perf_counter(), thread_time()
        round_ = scheduler.plan()
        planned = perf_counter(), thread_time()
        assert round_ is not None
        verdicts = [verdict(row) for row in round_.rows]
        answered = perf_counter(), thread_time()
        scheduler.commit(verdicts)
        done = perf_counter(), thread_time()
        if len(round_.rows) == num_rows and len(round_.rows[0].tokens) == 1:
            wall, cpu = (
                (planned[clock] - begin[clock] + done[clock] - answered[clock]) * 1e6
                for clock in (0, 1)
            )
            times.append((cpu, wall))
    return times


def verdict(row: Row) -> Verdict:
    """Half of the drafts are accepted."""
    if not row.samples:
        return Verdict(row.seq_id)
    accepted = row.num_drafts // 2
    return Verdict(row.seq_id, tuple(range(accepted + 1)), row.num_drafts, accepted)


def main() -> None:
    for drafts in (False, True):
        for num_rows in (1, 8, 32, 128, 512):
            times = round_times_us(num_rows, drafts=drafts)
            time_us = median(cpu for cpu, _ in times)
            record = {
                "benchmark": "plan",
                "rows": num_rows,
                "drafts": 3 * drafts,
                "median_us": round(time_us, 1),
                "wall_us": round(median(wall for _, wall in times), 1),
                "us_per_row": round(time_us / num_rows, 2),
                "target_us_per_row": TARGET_US_PER_ROW,
            }
            print(json.dumps(record))


if __name__ == "__main__":
    main()
