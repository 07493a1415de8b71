"""Rows launched before the round in flight has landed: which."""

import pytest
from ahead_world import launch, make_world, sequence_of

from scheduler.round import UNKNOWN, Capture, Round, Row
from scheduler.scheduler import NoRoundInFlight


def test_a_row_is_launched_one_token_further_and_the_next_round_names_it_with_its_token() -> None:
    world = make_world()
    [seq_id] = world.submit([5, 6, 7], max_tokens=9)
    world.plan()

    ahead = world.plan_ahead()
    [commit] = world.land()

    row = Row(seq_id, (UNKNOWN,), 3, (1,), slot=1, captures=(Capture(4, 2),))
    assert ahead == Round(rows=(row,))
    assert list(world.scheduler.launched) == [row]
    named = Row(seq_id, commit.tokens, 3, (1,), slot=1, captures=row.captures, launched=True)
    assert world.plan() == Round(rows=(named,))
    assert not world.scheduler.launched
    world.land()
    world.drain()


def test_only_a_round_in_flight_can_be_followed() -> None:
    world = make_world()
    with pytest.raises(NoRoundInFlight):
        world.scheduler.plan_ahead()
    world.submit([5, 6, 7], max_tokens=9)
    world.round()
    with pytest.raises(NoRoundInFlight):
        world.scheduler.plan_ahead()
    world.drain()


def test_a_round_is_followed_once() -> None:
    world = make_world()
    world.submit([5, 6, 7], max_tokens=9)
    world.plan()
    world.plan_ahead()

    assert world.scheduler.plan_ahead() is None
    world.land()
    world.drain()


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 6])
def test_nothing_is_launched_behind_the_last_token_that_may_be_said(max_tokens) -> None:
    world = make_world()
    world.eager = True
    [seq_id] = world.submit([5, 6, 7], max_tokens=max_tokens)
    rounds = world.drain()

    assert [[row.launched for row in one.rows] for one in rounds] == [
        [number > 0] for number in range(max_tokens)
    ]
    assert world.engine.num_rows == max_tokens
    assert world.finished == {seq_id: "length"}


def test_every_row_of_steady_decoding_is_launched_ahead_and_none_in_vain() -> None:
    world = make_world(prompt_tokens_per_round=64)
    world.eager = True
    for number in range(4):
        world.submit([number, 6, 7], max_tokens=12)
    rounds = world.drain()

    assert [sum(row.launched for row in one.rows) for one in rounds] == [0, *[4] * 11]
    assert world.engine.num_rows == 48


@pytest.mark.parametrize("event", ["cancel", "pause"])
def test_who_is_about_to_stop_is_not_launched(event) -> None:
    world = make_world()
    [stopping] = world.submit([5, 6, 7], max_tokens=9)
    [going] = world.submit([1, 2], max_tokens=9)
    world.plan()
    getattr(world, event)(stopping)

    assert [row.seq_id for row in world.plan_ahead().rows] == [going]
    world.land()
    world.drain()


def test_rows_with_drafts_are_not_followed_and_a_launched_row_drafts_nothing() -> None:
    world = make_world()
    world.submit([5, 6, 7], max_tokens=20)
    launch(world, 1)
    world.policy.num_drafts, asked = 3, world.policy.num_asked

    assert [row.num_drafts for row in world.plan().rows] == [0]
    assert world.policy.num_asked == asked  # it was decided when the row was launched
    world.land()
    assert [row.num_drafts for row in world.plan().rows] == [3]
    world.policy.num_drafts = 0
    assert world.plan_ahead() is None
    world.land()
    world.drain()


def test_a_round_that_found_no_drafts_is_followed_as_one_without() -> None:
    world = make_world()
    world.submit([5, 6, 7], max_tokens=20)
    world.round()
    world.policy.num_drafts, world.engine.finds = 3, False
    assert [(row.start, row.num_drafts) for row in world.plan().rows] == [(3, 3)]
    world.launch()
    world.policy.num_drafts = 0

    assert [(row.start, row.num_drafts) for row in world.plan_ahead().rows] == [(4, 0)]
    world.land()
    assert [(row.start, row.launched) for row in world.plan().rows] == [(4, True)]
    world.land()
    world.drain()


def test_nothing_is_launched_where_the_next_round_may_draft() -> None:
    world = make_world()
    world.submit([5, 6, 7], max_tokens=20)
    launch(world, 1)
    world.plan()
    world.policy.num_drafts = 2

    assert world.plan_ahead() is None
    world.land()
    assert [row.num_drafts for row in world.plan().rows] == [2]
    world.land()
    world.drain()


def test_a_row_that_waited_while_it_ran_is_read_beside_rows_that_draft() -> None:
    world = make_world(prompt_tokens_per_round=64)
    world.submit([5, 6, 7], max_tokens=20)
    launch(world, 1)
    world.pause(1)
    world.submit([1, 2], max_tokens=20)
    world.round()
    world.policy.num_drafts = 3
    world.resume(1)

    rows = [(row.seq_id, row.launched, row.num_drafts) for row in world.plan().rows]
    assert rows == [(2, False, 3), (1, True, 0)]
    assert world.plan_ahead() is None
    world.land()
    world.drain()


def test_who_is_suspected_runs_alone_and_step_by_step() -> None:
    world = make_world()
    [suspect] = world.submit([5, 6, 7], max_tokens=9)
    for _ in range(2):
        world.plan()
        world.plan_ahead()
        world.fail()
    [other] = world.submit([1, 2], max_tokens=9)

    assert [row.seq_id for row in world.plan().rows] == [suspect]
    assert world.plan_ahead() is None
    world.land()
    assert other not in world.finished
    world.drain()


def test_nothing_is_launched_beside_a_row_that_cannot_be() -> None:
    """Two batches, one of which waits for its token, would cost more than one."""
    world = make_world()
    world.submit([5, 6, 7], max_tokens=9)
    [needy] = world.submit([1, 2], max_tokens=3, needs_tokens=True)
    world.plan()
    assert world.plan_ahead() is None
    world.land()
    while needy not in world.finished:
        world.round()

    launch(world, 1)
    world.drain()


def test_nobody_yields_for_a_row_launched_ahead() -> None:
    world = make_world(num_blocks=4, prefix_cache=False)
    first, second = (world.submit([n, 1, 2], max_tokens=6)[0] for n in range(2))
    launch(world, first, second)  # both still write to their first block
    world.plan()
    ahead = world.plan_ahead()  # one block is left

    assert [(row.seq_id, row.blocks) for row in ahead.rows] == [(first, (1, 3))]
    world.land()
    assert [row.seq_id for row in world.plan().rows] == [first]
    assert world.scheduler.stats().preemptions == 0
    world.land()
    world.drain()


def test_an_evictable_block_is_taken() -> None:
    world = make_world(num_blocks=4, uses_slots=False, num_slots=0)
    world.submit(range(8), max_tokens=1)
    world.drain()
    assert world.scheduler.stats().cached_blocks == 2
    world.submit([9, 1, 2], max_tokens=9)
    launch(world, 2)
    launch(world, 2)

    assert len(sequence_of(world, 2).blocks) == 2
    world.drain()
