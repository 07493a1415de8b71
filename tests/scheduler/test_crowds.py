"""However many wait, a round looks at few of them."""

from collections import Counter

import pytest
from world import World

from scheduler.block_table import BlockTable
from scheduler.prefix_index import PrefixIndex
from scheduler.round import Verdict
from scheduler.scheduler import Request, Scheduler, SchedulerConfig

CONFIG = SchedulerConfig(
    num_blocks=40, block_size=4, max_rows=4, num_slots=20, uses_slots=True, max_wait_rounds=5
)


class Watched(dict):
    """Sequences by id; who walks through them all is counted."""

    def __init__(self, found, counts: Counter[str]) -> None:
        super().__init__(found)
        self.counts = counts

    def values(self):
        self.counts["sequences"] += len(self)
        return super().values()


def looks(monkeypatch: pytest.MonkeyPatch, num_waiting: int) -> Counter[str]:
    """What sixty rounds look at, in which requests begin and end, beside so many that wait."""
    scheduler = Scheduler(CONFIG)
    for number in range(num_waiting):
        scheduler.submit(Request(str(number), (1, 2, number % 7), 4))
    counts: Counter[str] = Counter()
    scheduler.ledger.sequences = Watched(scheduler.ledger.sequences, counts)
    length = BlockTable.__len__

    def counted(table: BlockTable) -> int:
        counts["tables"] += 1
        return length(table)

    with monkeypatch.context() as inside:
        inside.setattr(BlockTable, "__len__", counted)
        for _ in range(60):
            round_ = scheduler.plan()
            assert round_ is not None
            scheduler.commit([Verdict(r.seq_id, (9,) if r.samples else ()) for r in round_.rows])
    assert scheduler.stats().preemptions == 0
    return counts


def test_a_round_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = looks(monkeypatch, 300), looks(monkeypatch, 3000)

    assert many["tables"] < 1.2 * few["tables"]
    assert many["sequences"] == few["sequences"] == 0


def test_of_many_that_share_a_prefix_which_one_computes_few_are_looked_up_in_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SchedulerConfig(
        num_blocks=400, block_size=4, max_rows=8, num_slots=40, uses_slots=True
    )
    scheduler, prefix = Scheduler(config), tuple(range(80))
    for number in range(1000):
        scheduler.submit(Request(str(number), (*prefix, 90, number), 2))
    [stranger] = scheduler.submit(Request("stranger", (1, 1, 1), 4, priority=-1))
    looked_up, extend_keys = [0], PrefixIndex.extend_keys

    def counted(index: PrefixIndex, *arguments) -> None:
        looked_up[0] += 1
        extend_keys(index, *arguments)

    monkeypatch.setattr(PrefixIndex, "extend_keys", counted)
    most, started, number = 0, {}, 0
    while (round_ := scheduler.plan()) is not None:
        most, looked_up[0], number = max(most, looked_up[0]), 0, number + 1
        started |= {row.seq_id: number for row in round_.rows if row.seq_id not in started}
        scheduler.commit([Verdict(r.seq_id, (9,) if r.samples else ()) for r in round_.rows])

    assert most < 300
    assert len(started) == 1001
    assert started[stranger] == max(started.values())  # it is of a lower class


def test_who_makes_room_is_found_among_the_few_that_hold_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SchedulerConfig(num_blocks=12, block_size=4, max_rows=2, prefix_cache=False))
    for number in range(2000):
        world.submit([number % 9] * 6, max_tokens=20)
    counts: Counter[str] = Counter()
    length = BlockTable.__len__

    def counted(table: BlockTable) -> int:
        counts["tables"] += 1
        return length(table)

    world.verify = False
    with monkeypatch.context() as inside:
        inside.setattr(BlockTable, "__len__", counted)
        for _ in range(60):
            world.round()
    assert world.scheduler.stats().preemptions > 0
    assert counts["tables"] < 60 * 60


def test_a_sample_that_was_paused_while_it_waited_makes_room_like_others() -> None:
    world = World(
        SchedulerConfig(num_blocks=8, block_size=4, max_rows=2, num_slots=9, uses_slots=True)
    )
    first, second = world.submit(range(9), max_tokens=16, n=2)
    world.pause(second)
    while not len(world.scheduler.sequences[second].blocks):
        world.round()  # the first has computed the prompt for it
    world.resume(second)
    assert world.scheduler.sequences[second].started
    world.drain()
    assert {first, second} <= world.finished.keys()
