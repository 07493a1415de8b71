"""Who yields when memory runs out, how often, and what of it a client notices: nothing."""

import random

import pytest
from world import World

from scheduler.scheduler import SchedulerConfig


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 9,
        "block_size": 4,
        "max_rows": 4,
        "prompt_tokens_per_round": 64,
        "num_slots": 12,
        "uses_slots": True,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


def test_the_youngest_yields_and_answers_as_if_it_had_not() -> None:
    world = make_world()
    first, second, third = (world.submit([n, 1, 2], max_tokens=14)[0] for n in range(3))
    while not world.scheduler.stats().preemptions:
        world.round()
    yielded = [one.num_preemptions for one in world.scheduler.sequences.values()]
    world.drain()

    assert yielded == [0, 0, 1]
    assert list(world.finished) == [first, second, third]


def test_the_lowest_priority_yields_first_even_if_it_is_older() -> None:
    world = make_world()
    low = world.submit([1, 1, 2], max_tokens=14, priority=0)[0]
    world.round()
    for n in (2, 3):
        world.submit([n, 1, 2], max_tokens=14, priority=1)
    yielded = set()
    while world.scheduler.has_work and world.plan():
        sequences = world.scheduler.sequences.values()
        yielded |= {one.seq_id for one in sequences if one.num_preemptions}
        world.land()

    assert yielded == {low}
    world.check_end()


def test_a_preempted_sequence_comes_back_before_its_class() -> None:
    world = make_world(num_blocks=30, max_rows=2)
    first, second = (world.submit([n, 1, 2], max_tokens=8)[0] for n in range(2))
    [third] = world.submit([5, 5], max_tokens=2)
    world.round()
    world.preempt(second)
    assert world.plan().rows[-1].seq_id == second
    world.land()
    world.drain()
    assert list(world.finished) == [first, second, third]


def test_nothing_is_emitted_twice_or_late_by_a_preempted_sequence() -> None:
    world = make_world(num_blocks=30)
    world.policy.num_drafts = 2
    [seq_id] = world.submit(range(6), max_tokens=15)
    for _ in range(20):
        if seq_id in world.finished:
            break
        before = list(world.emitted[seq_id])
        world.preempt(seq_id)
        assert world.scheduler.take_ended() == []
        assert world.emitted[seq_id] == before
        world.round()
    world.drain()

    assert world.emitted[seq_id] == world.answer(seq_id)


def test_a_preempted_sequence_hits_its_own_blocks_while_they_last() -> None:
    world = make_world(num_blocks=30)
    [seq_id] = world.submit(range(6), max_tokens=15)
    for _ in range(8):
        world.round()
    world.preempt(seq_id)
    [row] = world.plan().rows

    assert (row.start, row.certain_end) == (12, 14)
    world.land()
    world.drain()


def test_a_victim_that_frees_nothing_keeps_what_it_holds() -> None:
    """A paused fork shares all it holds with its parent: only the youngest frees anything."""
    world = make_world(num_blocks=9, max_rows=2, prefix_cache=False)
    [parent] = world.submit(range(8), max_tokens=20)
    world.round()
    child = world.fork(parent)
    world.pause(child)
    [youngest] = world.submit(range(20, 28), max_tokens=16)
    while not world.scheduler.stats().preemptions:
        world.round()

    sequences = world.scheduler.sequences
    assert sequences[youngest].computed == 0
    assert sequences[child].computed == 8
    world.drain()


def test_forks_that_only_together_free_something_yield_together() -> None:
    world = make_world(num_blocks=9, max_rows=2, prefix_cache=False)
    [parent] = world.submit(range(8), max_tokens=20)
    world.round()
    children = [world.fork(parent) for _ in range(2)]
    for seq_id in [parent, *children]:
        world.pause(seq_id)
    [other] = world.submit(range(20, 28), max_tokens=22)
    while other not in world.finished:
        world.round()

    assert world.scheduler.stats().preemptions == 3
    assert {world.scheduler.sequences[seq_id].computed for seq_id in children} == {0}
    world.drain()


@pytest.mark.parametrize("max_preemptions", [0, 1, 2])
def test_nobody_yields_more_often_than_the_bound(max_preemptions) -> None:
    """The world checks the bound after every event."""
    choose = random.Random(5)
    world = make_world(max_preemptions=max_preemptions, max_rows=6, num_blocks=14)
    for _ in range(30):
        prompt = [choose.randrange(20) for _ in range(choose.randint(1, 20))]
        world.submit(prompt, max_tokens=choose.randint(1, 24), priority=choose.choice([0, 0, 1]))
        if choose.random() < 0.5 and world.plan():
            world.land()
    world.drain()

    assert (world.scheduler.stats().preemptions > 0) == (max_preemptions > 0)


def test_the_first_in_order_is_never_made_to_yield() -> None:
    world = make_world(max_preemptions=100)
    [first] = world.submit([9, 9, 9], max_tokens=20)
    for n in range(6):
        world.submit([n, 1, 2], max_tokens=12)
    rounds = world.drain()

    assert world.scheduler.stats().preemptions > 0
    assert len([1 for round_ in rounds if first in [row.seq_id for row in round_.rows]]) == 20


def test_work_does_not_grow_without_end_under_pressure() -> None:
    world = make_world(num_blocks=9, max_rows=8, prefix_cache=False)
    for n in range(12):
        world.submit([n, 1, 2], max_tokens=20)
    rounds = world.drain()
    computed = sum(len(row.tokens) for round_ in rounds for row in round_.rows)

    assert computed <= 12 * 22 * (1 + world.config.max_preemptions)


def test_a_request_that_fills_the_memory_alone_is_served() -> None:
    world = make_world()
    for n in range(3):
        world.submit([n] * 20, max_tokens=13)
    world.drain()

    assert set(world.finished.values()) == {"length"}
