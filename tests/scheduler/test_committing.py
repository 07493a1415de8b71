"""What a sequence gains from a verdict, and how it ends."""

import pytest
from world import World

from scheduler.request import Request
from scheduler.round import Commit, Row, Verdict
from scheduler.scheduler import NoRoundInFlight, Scheduler, SchedulerConfig


class Drafts:
    def depths(self, sequences, num_waiting) -> list[int]:
        return [3] * len(sequences)


def make_scheduler(**fields) -> Scheduler:
    settings = {
        "num_blocks": 20,
        "block_size": 4,
        "max_rows": 2,
        "num_slots": 5,
        "uses_slots": True,
        "check": True,
    }
    return Scheduler(SchedulerConfig(**{**settings, **fields}), Drafts())


def started(prompt=(5, 6, 7), max_tokens=20, **fields) -> Scheduler:
    """A scheduler whose only sequence has its prompt computed and one token, 8."""
    scheduler = make_scheduler()
    scheduler.submit(Request("r", tuple(prompt), max_tokens, **fields))
    scheduler.plan()
    scheduler.commit([Verdict(1, (8,))])
    return scheduler


def test_rejecting_the_first_draft_keeps_only_the_pending_token() -> None:
    scheduler = started()
    scheduler.plan()

    assert scheduler.commit([Verdict(1, (50,), 3, 0)]) == [Commit(1, (50,), None, 3, 0)]
    assert scheduler.sequences[1].computed == 4
    assert scheduler.plan().rows == (
        Row(seq_id=1, tokens=(50,), start=4, blocks=(1, 2), slot=1, fold=0, num_drafts=3),
    )


def test_accepted_drafts_are_folded_by_the_next_row() -> None:
    scheduler = started()
    scheduler.plan()

    assert scheduler.commit([Verdict(1, (9, 10, 51), 3, 2)]) == [Commit(1, (9, 10, 51), None, 3, 2)]
    assert scheduler.sequences[1].computed == 6
    [row] = scheduler.plan().rows
    assert (row.tokens, row.start, row.fold, row.blocks) == ((51,), 6, 2, (1, 2, 3))


def test_the_correction_token_is_the_next_rounds_first_token() -> None:
    scheduler = started()
    scheduler.plan()
    scheduler.commit([Verdict(1, (9, 10, 11, 52), 3, 3)])

    [row] = scheduler.plan().rows
    assert (row.tokens, row.start, row.fold) == ((52,), 7, 3)


@pytest.mark.parametrize(
    ("fields", "tokens", "kept", "reason"),
    [
        ({"eos_ids": frozenset({9})}, (10, 9, 11), (10, 9), "eos"),
        ({"stop_ids": frozenset({10})}, (10, 9, 11), (10,), "stop"),
        ({"max_tokens": 3}, (10, 9), (10, 9), "length"),
        ({"eos_ids": frozenset({9}), "min_tokens": 4}, (9, 9, 9), (9, 9, 9), "eos"),
    ],
)
def test_an_accepted_run_ends_where_the_request_ends(fields, tokens, kept, reason) -> None:
    scheduler = started(**fields)
    scheduler.plan()
    num_accepted = len(tokens) - 1

    commits = scheduler.commit([Verdict(1, tokens, num_accepted, num_accepted)])

    assert commits == [Commit(1, kept, reason, num_accepted, num_accepted)]
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks + scheduler.stats().cached_blocks == 19


def test_minimum_lengths_count_tokens_not_rounds() -> None:
    scheduler = started(eos_ids=frozenset({9}), min_tokens=6)
    scheduler.plan()

    assert scheduler.commit([Verdict(1, (9, 9, 9, 7), 3, 3)]) == [
        Commit(1, (9, 9, 9, 7), None, 3, 3)
    ]


def test_a_stop_string_may_shorten_an_accepted_run() -> None:
    scheduler = started()
    scheduler.plan()

    commits = scheduler.commit([Verdict(1, (9,), 3, 3, "stop")])

    assert commits == [Commit(1, (9,), "stop", 3, 3)]
    assert scheduler.sequences[1].tokens == [5, 6, 7, 8, 9]


def test_what_a_stop_string_cut_off_is_not_indexed() -> None:
    scheduler = started(prompt=(1, 2, 3, 4, 5))
    scheduler.plan()
    scheduler.commit([Verdict(1, (9,), 3, 3, "stop")])  # 5 + 1 + 1 tokens, 9 computed

    assert [node.tokens for node in scheduler.ledger.index.nodes.values()] == [(1, 2, 3, 4)]


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(2, (9,), 0, 0),  # another sequence
        Verdict(1, (9, 9, 9, 9, 9), 4, 4),  # more drafts than planned
        Verdict(1, (9, 9), 1, 2),  # more accepted than drafted
        Verdict(1, (9, 9, 9), 2, 1),  # more tokens than accepted
        Verdict(1, (), 2, 1),  # fewer tokens, and no end
    ],
)
def test_an_impossible_verdict_is_refused_and_changes_nothing(verdict) -> None:
    scheduler = started()
    scheduler.plan()
    before = scheduler.dump()

    with pytest.raises(ValueError, match="sequence"):
        scheduler.commit([verdict])

    assert scheduler.dump() == before


def test_tokens_of_a_chunk_that_does_not_sample_are_refused() -> None:
    scheduler = make_scheduler(prompt_tokens_per_round=4)
    scheduler.submit(Request("r", tuple(range(9)), 4))
    scheduler.plan()

    with pytest.raises(ValueError, match="1 tokens, but 0 accepted drafts make 0"):
        scheduler.commit([Verdict(1, (9,))])


def test_landing_without_a_round_is_refused() -> None:
    scheduler = make_scheduler()

    with pytest.raises(NoRoundInFlight):
        scheduler.commit([])
    with pytest.raises(NoRoundInFlight):
        scheduler.fail()


def test_an_earlier_runs_tokens_count_but_are_not_emitted_again() -> None:
    world = World(SchedulerConfig(num_blocks=20, block_size=4, max_rows=2))
    [whole] = world.submit([1, 2, 3], max_tokens=8)
    world.drain()
    [resumed] = world.submit([1, 2, 3], max_tokens=8, emitted=tuple(world.answer(whole)[:5]))
    world.drain()

    assert world.emitted[resumed] == world.answer(whole)[5:]
    assert world.answer(resumed) == world.answer(whole)


def test_an_earlier_run_that_had_finished_ends_at_once() -> None:
    scheduler = make_scheduler()
    scheduler.submit(Request("r", (1, 2), 2, emitted=(4, 5)))

    assert scheduler.take_ended() == [Commit(1, (), "length")]
    assert scheduler.take_ended() == []
    assert not scheduler.has_work


def test_an_ended_sequence_can_be_read_until_the_next_plan() -> None:
    scheduler = started(max_tokens=2)
    scheduler.plan()
    scheduler.commit([Verdict(1, (9,))])

    assert scheduler.sequences[1].finish == "length"
    scheduler.plan()
    assert 1 not in scheduler.sequences


def test_a_row_that_ends_in_an_error_leaves_nothing_in_the_index() -> None:
    scheduler = make_scheduler()
    scheduler.submit(Request("r", tuple(range(9)), 4))
    [row] = scheduler.plan().rows
    assert row.captures

    assert scheduler.commit([Verdict(1, (), finish="error")]) == [Commit(1, (), "error")]
    assert (scheduler.stats().cached_blocks, scheduler.stats().checkpoints) == (0, 0)


def test_a_block_that_is_not_full_is_never_found() -> None:
    world = World(SchedulerConfig(num_blocks=20, block_size=4, max_rows=1))
    world.submit([1, 2, 3, 4, 5, 6], max_tokens=1)
    world.drain()
    world.submit([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)
    world.drain()

    assert world.scheduler.stats().hit_tokens == 4
    assert len(world.scheduler.ledger.index.nodes) == 2
