"""A violated invariant says what is wrong with which id, and what touched it last."""

from dataclasses import replace

import pytest
from world import World

from scheduler import invariants
from scheduler.invariants import Contamination, InvariantViolated, Leak
from scheduler.request import Request
from scheduler.round import Verdict
from scheduler.scheduler import Scheduler, SchedulerConfig


def decoding(**fields) -> Scheduler:
    """A checked scheduler with a sequence that has one full block, indexed, and a checkpoint."""
    settings = {
        "num_blocks": 12,
        "block_size": 4,
        "max_rows": 2,
        "num_slots": 8,
        "uses_slots": True,
        "check": True,
    }
    scheduler = Scheduler(SchedulerConfig(**{**settings, **fields}))
    scheduler.submit(Request("r", (1, 2, 3, 4, 5), 9))
    scheduler.plan()
    scheduler.commit([Verdict(1, (6,))])
    return scheduler


def test_a_leak_names_the_id_its_holders_and_the_events_that_touched_it() -> None:
    scheduler = decoding()
    scheduler.ledger.blocks.share([1])

    with pytest.raises(Leak) as leak:
        scheduler.plan()

    assert str(leak.value) == (
        "block 1 counts 2 holders, held by sequence 1; "
        "last: #2 plan 1: taken | #3 commit 1: shared".replace(" | #3 commit 1: shared", "")
        + " | #3 commit 1: shared"
    )


def test_an_id_released_too_early_is_a_leak_too() -> None:
    scheduler = decoding()
    scheduler.ledger.slots.release([1])

    with pytest.raises(Leak, match="slot 1 counts 0 holders, held by sequence 1"):
        invariants.check(scheduler)


def test_an_id_that_is_nowhere_is_a_leak() -> None:
    scheduler = decoding()
    scheduler.ledger.blocks._free.remove(9)

    with pytest.raises(Leak, match="neither free nor cached nor referenced:\nblock 9"):
        invariants.check(scheduler)


def test_a_hash_that_does_not_match_its_tokens_is_a_contamination() -> None:
    scheduler = decoding()
    [node] = scheduler.ledger.index.nodes.values()
    node.tokens = (1, 2, 3, 9)

    with pytest.raises(Contamination, match="block 1"):
        invariants.check(scheduler)


def test_pages_that_do_not_match_their_hash_are_a_contamination() -> None:
    scheduler = decoding()

    invariants.check(scheduler, read_tokens=lambda block: (1, 2, 3, 4))
    invariants.check(scheduler, read_tokens=lambda block: None)
    with pytest.raises(Contamination, match=r"block 1 holds \(9,\), but its hash is of"):
        invariants.check(scheduler, read_tokens=lambda block: (9,))


def test_a_checkpoint_in_the_wrong_place_is_a_contamination() -> None:
    scheduler = decoding()
    [slot] = scheduler.ledger.index.by_slot
    scheduler.ledger.slots.stand(slot, 3)

    with pytest.raises(Contamination, match=f"checkpoint {slot} does not stand at 4"):
        invariants.check(scheduler)


def test_a_state_behind_its_sequence_is_found() -> None:
    scheduler = decoding()
    scheduler.ledger.slots.stand(1, 4)

    with pytest.raises(InvariantViolated, match=r"computed 5, but its state stands at 4 \+ 0"):
        invariants.check(scheduler)


def launched() -> Scheduler:
    """One whose sequence has a row launched ahead, that captures a state in slot 3."""
    scheduler = decoding()
    for token in (7, 8):
        scheduler.plan()
        scheduler.commit([Verdict(1, (token,))])
    scheduler.plan()
    scheduler.plan_ahead()
    scheduler.commit([Verdict(1, (9,))])
    [row] = scheduler.launched
    assert (row.start, row.blocks, [one.slot for one in row.captures]) == (8, (1, 2, 3), [])
    return scheduler


def test_a_launched_row_that_is_forgotten_leaks_what_it_captures() -> None:
    scheduler = decoding(num_blocks=20)
    for token in (7, 8):
        scheduler.plan()
        scheduler.plan_ahead()
        scheduler.commit([Verdict(1, (token,))])
    [row] = scheduler.launched
    assert [one.position for one in row.captures] == [8]
    scheduler.ledger.ahead.clear()

    with pytest.raises(Leak, match=f"slot {row.captures[0].slot} counts 1 holders, held by nobody"):
        invariants.check(scheduler)


def test_a_launched_row_belongs_to_a_live_sequence() -> None:
    scheduler = launched()
    [row] = scheduler.launched
    scheduler.ledger.ahead = {2: replace(row, seq_id=2)}

    with pytest.raises(Leak, match="a row is launched for sequence 2, which is not live"):
        invariants.check(scheduler)


def test_a_launched_row_stands_where_its_sequence_does() -> None:
    scheduler = launched()
    [row] = scheduler.launched
    scheduler.ledger.ahead = {1: replace(row, start=9)}

    with pytest.raises(InvariantViolated, match="stands at 8, but a row is launched at 9"):
        invariants.check(scheduler)


def test_a_launched_row_writes_to_its_sequences_own_blocks() -> None:
    scheduler = launched()
    [row] = scheduler.launched
    scheduler.ledger.ahead = {1: replace(row, blocks=(1, 2, 9))}

    with pytest.raises(Leak, match=r"a launched row of sequence 1 writes blocks \(9,\)"):
        invariants.check(scheduler)


def test_nobody_else_holds_what_a_launched_row_writes() -> None:
    scheduler = launched()
    scheduler.submit(Request("r", (1, 2, 3, 4, 5), 9))
    scheduler.sequences[2].blocks.extend([3])
    scheduler.ledger.blocks.share([3])

    with pytest.raises(Contamination, match="others hold what a launched row of sequence 1 writes"):
        invariants.check(scheduler)


def test_a_sequence_without_a_place_is_found() -> None:
    scheduler = decoding()
    scheduler.ledger.running.clear()

    with pytest.raises(InvariantViolated, match=r"sequences \[1\] are live, \[\] have a place"):
        invariants.check(scheduler)


def test_the_dump_shows_everything_in_plain_values() -> None:
    scheduler = decoding()
    dump = scheduler.dump()

    assert dump["sequences"] == [
        {
            "seq_id": 1,
            "request_id": "r",
            "sample_index": 0,
            "status": "running",
            "finish": None,
            "tokens": 6,
            "prompt": 5,
            "computed": 5,
            "cached": 0,
            "blocks": [1, 2],
            "slot": 1,
            "unfolded": 0,
            "in_flight": False,
            "launched": False,
            "preemptions": 0,
            "failures": 0,
            "waits_for": None,
        }
    ]
    assert dump["block_holders"] == {1: ["sequence 1"], 2: ["sequence 1"]}
    assert dump["checkpoints"] == [{"slot": 2, "position": 4, "block": 1, "rolling": False}]
    assert dump["stats"]["prompt_tokens"] == 5
    assert dump["stats"]["generated_tokens"] == 1
    assert dump["shared_blocks"] == []


def test_the_dump_tells_which_rows_share_how_many_leading_blocks() -> None:
    config = SchedulerConfig(num_blocks=40, block_size=4, max_rows=8, prompt_tokens_per_round=64)
    world = World(config)
    for tail in ([1, 1, 1, 1, 2], [1, 1, 1, 1, 3], [4, 4, 4, 4, 4]):
        world.submit([*range(8), *tail], max_tokens=8)
    for _ in range(4):
        world.round()

    assert world.scheduler.dump()["shared_blocks"] == [
        {"seq_ids": [1, 2, 3], "num_blocks": 2},
        {"seq_ids": [1, 2], "num_blocks": 3},
    ]
    world.drain()
