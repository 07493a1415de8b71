"""Samples and forks share what is computed, and never each other's words."""

import pytest
from world import World

from scheduler.scheduler import RoundInFlight, SchedulerConfig


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 60,
        "block_size": 4,
        "max_rows": 4,
        "prompt_tokens_per_round": 64,
        "num_slots": 12,
        "uses_slots": True,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("uses_slots", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5, 8, 9, 11])
def test_samples_share_the_prompt_and_answer_as_if_alone(length, uses_slots, prefix_cache) -> None:
    together = make_world(uses_slots=uses_slots, prefix_cache=prefix_cache)
    together.policy.num_drafts = 2
    samples = together.submit(range(length), max_tokens=9, n=3)
    prompts = [row for round_ in together.drain() for row in round_.rows if row.start < length]

    assert sum(len(row.tokens) for row in prompts) == length - 1 + 3
    answers = [together.answer(seq_id) for seq_id in samples]
    assert len({tuple(answer) for answer in answers}) == 3
    # the world compares each with the model alone


def test_samples_hold_the_prompt_once_and_copy_only_the_block_they_write() -> None:
    world = make_world()
    world.submit(range(10), max_tokens=9, n=3)
    first, second = world.round(), world.plan()

    assert [(row.seq_id, len(row.tokens)) for row in first.rows] == [(1, 9)]
    assert [row.blocks[:2] for row in second.rows] == [(1, 2)] * 3
    assert len({row.blocks[2] for row in second.rows}) == 3
    assert len({row.slot for row in second.rows}) == 3
    assert len(second.block_copies) == len(second.slot_copies) == 2
    world.land()
    world.drain()


def test_more_samples_than_rows_wait_with_what_they_share() -> None:
    world = make_world(max_rows=2)
    samples = world.submit(range(10), max_tokens=4, n=5)
    world.drain()

    assert world.finished == dict.fromkeys(samples, "length")


@pytest.mark.parametrize("end", ["cancel", "pause", "preempt"])
def test_another_sample_leads_when_the_first_goes_away(end) -> None:
    world = make_world(prompt_tokens_per_round=4)
    samples = world.submit(range(10), max_tokens=4, n=3)
    world.round()
    getattr(world, end)(samples[0])
    world.drain()

    assert {world.finished[seq_id] for seq_id in samples[1:]} == {"length"}


def test_a_leader_that_fails_is_replaced() -> None:
    world = make_world(prompt_tokens_per_round=4)
    samples = world.submit(range(10), max_tokens=4, n=3)
    world.plan()
    world.fail([samples[0]])
    world.drain()

    assert [world.finished[seq_id] for seq_id in samples] == ["error", "length", "length"]


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("uses_slots", [True, False])
def test_a_running_sequence_can_be_forked_at_any_moment(uses_slots, num_drafts) -> None:
    world = make_world(uses_slots=uses_slots, num_blocks=200, num_slots=40, max_rows=16)
    world.policy.num_drafts = num_drafts
    [parent] = world.submit(range(10), max_tokens=14)
    children = []
    for _ in range(8):
        if parent not in world.finished:
            children.append(world.fork(parent))
            world.round()
    world.drain()

    assert {world.finished[child] for child in children} == {"length"}
    assert len(world.answer(parent)) == 14


def test_a_fork_takes_over_state_records_and_unfolded_count() -> None:
    world = make_world(num_slots=6)
    world.policy.num_drafts, world.quality = 3, 1.0
    [parent] = world.submit(range(10), max_tokens=20)
    world.round()
    world.round()
    child = world.fork(parent)
    rows = world.plan().rows

    assert [(row.start, row.fold) for row in rows] == [(14, 3), (14, 3)]
    assert rows[0].slot != rows[1].slot
    assert child == rows[1].seq_id
    world.land()
    world.drain()


def test_a_fork_of_a_waiting_request_waits_too() -> None:
    world = make_world(max_rows=1)
    world.submit([1, 2], max_tokens=4)
    [waiting] = world.submit([3, 4, 5], max_tokens=4)
    child = world.fork(waiting)
    world.drain()

    assert world.finished[child] == "length"
    assert world.answer(child) != world.answer(waiting)


def test_forking_in_flight_or_after_the_end_is_refused() -> None:
    world = make_world()
    [seq_id] = world.submit([1, 2], max_tokens=1)
    world.plan()
    with pytest.raises(RoundInFlight, match="sequence 1 has a row in flight"):
        world.scheduler.fork(seq_id)
    world.land()
    with pytest.raises(KeyError, match="sequence 1 is not live"):
        world.scheduler.fork(seq_id)


def test_a_fork_runs_with_a_single_slot_by_making_the_other_recompute() -> None:
    world = make_world(num_slots=2, max_rows=1, prefix_cache=False)
    [parent] = world.submit(range(10), max_tokens=6)
    world.round()
    child = world.fork(parent)
    world.drain()

    assert world.finished == {parent: "length", child: "length"}


def test_ending_a_fork_leaves_its_parent_everything() -> None:
    world = make_world()
    [parent] = world.submit(range(10), max_tokens=9)
    world.round()
    child = world.fork(parent)
    world.cancel(child)
    round_ = world.plan()

    assert not round_.block_copies
    assert not round_.slot_copies
    world.land()
    world.drain()


def test_samples_that_share_a_copy_compute_again_when_its_round_raises() -> None:
    """The leader hits up to its last token, so its samples share a slot not yet copied."""
    world = make_world(max_rows=1)
    world.submit(range(9), max_tokens=1)
    world.drain()
    samples = world.submit(range(9), max_tokens=4, n=3)
    round_ = world.plan()
    assert len(round_.slot_copies) == 2
    assert world.scheduler.sequences[samples[1]].computed == 8
    world.fail()

    assert world.scheduler.sequences[samples[1]].computed == 0
    world.drain()
