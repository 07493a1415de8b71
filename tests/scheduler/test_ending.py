"""Cancelled, paused, late or failed: nothing leaks, nobody else notices."""

import pytest
from world import World

from scheduler.round import Commit
from scheduler.scheduler import SchedulerConfig


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 30,
        "block_size": 4,
        "max_rows": 4,
        "num_slots": 12,
        "uses_slots": True,
        "prompt_tokens_per_round": 8,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


def test_cancelling_a_waiting_sequence_ends_it_at_once() -> None:
    world = make_world(max_rows=1)
    world.submit([1, 2])
    [waiting] = world.submit([1, 2])

    assert world.scheduler.cancel(waiting)
    assert world.scheduler.take_ended() == [Commit(waiting, (), "cancelled")]
    assert not world.scheduler.cancel(waiting)
    world.finished[waiting] = "cancelled"
    world.drain()


def test_cancelling_in_flight_takes_effect_when_the_round_lands() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2, 3])
    world.plan()
    world.cancel(seq_id)

    assert world.land() == [Commit(seq_id, (), "cancelled")]
    assert world.emitted[seq_id] == []
    assert not world.scheduler.has_work
    world.check_end()


def test_cancelling_an_unknown_sequence_does_nothing() -> None:
    assert not make_world().scheduler.cancel(77)


def test_joining_and_leaving_change_nobody_elses_tokens() -> None:
    alone, crowded = make_world(), make_world()
    [reference] = alone.submit([4, 5, 6], max_tokens=12)
    alone.drain()
    [watched] = crowded.submit([4, 5, 6], max_tokens=12)
    crowded.policy.num_drafts = 2
    for index in range(8):
        [other] = crowded.submit([index, 2, 3, 4, 5], max_tokens=5)
        crowded.round()
        if index % 2:
            crowded.cancel(other)
    crowded.drain()

    assert crowded.answer(watched) == alone.answer(reference)


def test_a_paused_sequence_gets_no_rows_and_keeps_its_blocks() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2, 3], max_tokens=6)
    world.round()
    world.pause(seq_id)
    held = list(world.scheduler.sequences[seq_id].blocks)

    assert world.plan() is None
    assert not world.scheduler.has_work
    assert list(world.scheduler.sequences[seq_id].blocks) == held
    world.resume(seq_id)
    assert [row.seq_id for row in world.round().rows] == [seq_id]
    assert world.scheduler.stats().preemptions == 0
    world.drain()


def test_pausing_in_flight_takes_effect_when_the_round_lands() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2, 3], max_tokens=6)
    world.plan()
    world.pause(seq_id)
    [commit] = world.land()

    assert len(commit.tokens) == 1
    assert world.scheduler.sequences[seq_id].status == "paused"
    world.drain()


def test_resuming_before_the_round_lands_undoes_the_pause() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2, 3], max_tokens=6)
    world.plan()
    world.pause(seq_id)
    world.resume(seq_id)
    world.land()

    assert world.scheduler.sequences[seq_id].status == "running"
    world.drain()


def test_a_paused_sequence_can_be_preempted() -> None:
    world = make_world(num_blocks=7, prefix_cache=False)
    [paused] = world.submit(range(12), max_tokens=8)
    world.round()
    world.round()
    world.pause(paused)
    [other] = world.submit(range(20, 32), max_tokens=8)
    while other not in world.finished:
        world.round()

    assert world.scheduler.sequences[paused].computed == 0
    assert world.scheduler.sequences[paused].status == "paused"
    world.drain()


def test_deadlines_of_requests_that_have_ended_are_not_kept_until_they_pass() -> None:
    world = make_world(num_blocks=200)
    [late] = world.submit([1, 2, 3], max_tokens=400, deadline=7.0)
    for _ in range(300):
        [soon] = world.submit([1, 2, 3], max_tokens=1, deadline=1e9)
        while soon not in world.finished:
            world.round()

    assert len(world.scheduler.ledger.deadlines) < 150
    world.now = 7.0
    world.plan()
    assert world.finished[late] == "deadline"


@pytest.mark.parametrize("where", ["waiting", "running", "paused", "prompt"])
def test_a_late_request_ends_whatever_it_was_doing(where) -> None:
    world = make_world(max_rows=1)
    if where == "waiting":
        world.submit([9, 9], max_tokens=20)
    prompt = range(20) if where == "prompt" else [1, 2, 3]
    [late] = world.submit(prompt, max_tokens=20, deadline=5.0)
    world.now = 4.9
    world.round()
    if where == "paused":
        world.pause(late)
    assert late not in world.finished
    world.now = 5.0
    world.plan()

    assert world.finished.get(late) == "deadline"
    if world.in_flight:
        world.land()
    world.drain()


def test_a_request_that_finished_in_time_is_not_late() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2], max_tokens=1, deadline=5.0)
    world.round()
    world.now = 9.0

    assert world.plan() is None
    assert world.finished == {seq_id: "length"}


def test_a_round_that_raises_is_computed_again_and_changes_no_answer() -> None:
    world = make_world()
    world.policy.num_drafts = 2
    [first] = world.submit([1, 2, 3, 4, 5], max_tokens=9)
    [second] = world.submit([1, 2, 3, 4, 6], max_tokens=9)
    world.round()
    world.round()
    world.plan()

    assert world.fail() == []
    assert world.scheduler.sequences[first].slot is None
    world.drain()
    assert world.finished == {first: "length", second: "length"}


def test_the_sequences_to_blame_fail_alone() -> None:
    world = make_world()
    [guilty] = world.submit([1, 2, 3], max_tokens=9)
    [innocent] = world.submit([4, 5, 6], max_tokens=9)
    world.round()
    world.plan()

    assert world.fail([guilty]) == [Commit(guilty, (), "error")]
    world.drain()
    assert world.finished == {guilty: "error", innocent: "length"}


def test_blaming_a_stranger_is_refused_and_changes_nothing() -> None:
    world = make_world()
    world.submit([1, 2, 3])
    world.plan()
    before = world.scheduler.dump()

    with pytest.raises(ValueError, match=r"sequences \[9\] have no row"):
        world.scheduler.fail([9])

    assert world.scheduler.dump() == before
    world.land()


def test_a_poisonous_request_ends_alone_and_spares_the_others() -> None:
    world = make_world()
    poison = world.submit([1, 2, 3], max_tokens=9)[0]
    others = [world.submit([4, 5, index], max_tokens=9)[0] for index in range(3)]
    for _ in range(60):
        round_ = world.plan()
        if round_ is None:
            break
        if poison in [row.seq_id for row in round_.rows]:
            world.fail()
        else:
            world.land()

    assert world.finished == {poison: "error", **dict.fromkeys(others, "length")}
    assert world.scheduler.stats().failures == world.config.max_failures
    world.check_end()


def test_a_request_that_fails_only_while_decoding_ends_too() -> None:
    """Between its failures it computes its prompt again, chunk by chunk, without any."""
    world = make_world(prefix_cache=False)
    [poison] = world.submit(range(10), max_tokens=9)
    for _ in range(30):
        round_ = world.plan()
        if round_ is None:
            break
        world.fail() if round_.rows[-1].certain_end == 13 else world.land()

    assert world.finished == {poison: "error"}
    assert len(world.emitted[poison]) == 3


def test_a_cancelled_sequence_whose_round_raises_is_cancelled() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2, 3])
    world.plan()
    world.cancel(seq_id)

    assert world.fail() == [Commit(seq_id, (), "cancelled")]


def test_a_failed_round_leaves_no_checkpoint_behind() -> None:
    world = make_world()
    world.submit(range(9), max_tokens=2)
    world.round()  # 0 .. 8: captures 8
    assert world.scheduler.stats().checkpoints == 1
    world.submit(range(20, 29), max_tokens=2)
    round_ = world.plan()
    assert any(row.captures for row in round_.rows)
    world.fail()

    assert world.scheduler.stats().checkpoints == 1
    world.drain()
