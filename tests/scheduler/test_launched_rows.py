"""What becomes of rows launched ahead, and of what they hold."""

import pytest
from ahead_world import held, launch, make_world, sequence_of
from world import World

from scheduler.round import Verdict

ENDING = 3  # ends a sequence that has it among its eos_ids


def end_by_a_token(world: World) -> list[int]:
    """Run a sequence that its third token ends, with a row launched behind; return all tokens."""
    stops = {"eos_ids": frozenset({ENDING}), "min_tokens": 3}
    [seq_id] = world.submit([5, 6, 7], max_tokens=9, **stops)
    for _ in range(2):
        launch(world, seq_id)
    world.plan()
    assert world.plan_ahead() is not None
    world.land(lambda verdicts: [Verdict(seq_id, (ENDING,))])
    assert world.finished.pop(seq_id) == "eos"  # the toy would have said another
    del world.emitted[seq_id]
    return world.engine.stories.pop(seq_id).tokens


def test_a_row_launched_behind_an_ending_leaves_no_trace() -> None:
    world = make_world()
    tokens = end_by_a_token(world)
    ledger = world.scheduler.ledger

    assert held(world) == (0, 0)
    assert not world.scheduler.launched
    # five tokens were computed: one full block; position 5 was written by the dropped row
    assert [node.tokens for node in ledger.index.nodes.values()] == [tuple(tokens[:4])]
    assert [ledger.slots.position[slot] for slot in ledger.index.by_slot] == [4]
    assert world.plan() is None


def test_a_hit_on_a_sequence_that_ended_while_launched_ahead_stops_before_what_that_wrote() -> None:
    world = make_world(block_size=2)
    tokens = end_by_a_token(world)
    assert len(tokens) == 6  # the last block is full by now, but for the ending nobody computed it
    [again] = world.submit([*tokens, 9, 9, 9], max_tokens=6)
    world.round()

    assert sequence_of(world, again).num_cached == 4
    world.drain()  # every position that is read is compared with what it must be


@pytest.mark.parametrize("event", ["cancel", "preempt"])
def test_what_a_launched_row_holds_returns_when_its_sequence_loses_its_storage(event) -> None:
    world = make_world()
    [seq_id] = world.submit([5, 6, 7], max_tokens=9)
    launch(world, seq_id)
    assert held(world) == (1, 2)  # its slot, and that of the state at the boundary
    getattr(world, event)(seq_id)

    assert held(world) == (0, 0)
    assert not world.scheduler.launched
    world.drain()


def test_a_deadline_drops_a_launched_row() -> None:
    world = make_world()
    [seq_id] = world.submit([5, 6, 7], max_tokens=9, deadline=10.0)
    launch(world, seq_id)
    world.now = 11.0

    assert world.plan() is None
    assert world.finished == {seq_id: "deadline"}
    assert held(world) == (0, 0)


def test_a_paused_sequence_keeps_its_launched_row_until_it_is_resumed() -> None:
    world = make_world()
    [paused] = world.submit([5, 6, 7], max_tokens=9)
    [other] = world.submit([1, 2], max_tokens=9)
    launch(world, paused, other)
    world.pause(paused)
    for _ in range(3):
        launch(world, other)
    assert [row.seq_id for row in world.scheduler.launched] == [paused, other]
    world.resume(paused)

    assert [(row.seq_id, row.launched) for row in world.plan().rows] == [
        (other, True),
        (paused, True),
    ]
    world.land()
    world.drain()


def test_a_paused_sequence_yields_its_launched_row_with_all_it_holds() -> None:
    world = make_world(num_blocks=4, num_slots=3)
    [paused] = world.submit([5, 6, 7], max_tokens=9)
    launch(world, paused)
    world.pause(paused)
    [other] = world.submit(range(8), max_tokens=2)
    world.eager = True
    while other not in world.finished:
        world.round()

    assert not world.scheduler.launched
    assert sequence_of(world, paused).computed == 0
    world.drain()


def test_a_launched_row_waits_while_a_suspect_runs_alone() -> None:
    world = make_world()
    [suspect] = world.submit([5, 6, 7], max_tokens=9)
    for _ in range(2):
        world.plan()
        world.fail()
    world.pause(suspect)
    [other] = world.submit([1, 2], max_tokens=9)
    launch(world, other)
    world.resume(suspect)

    assert [row.seq_id for row in world.round().rows] == [suspect]
    assert [row.seq_id for row in world.scheduler.launched] == [other]
    assert (other, True) in [(row.seq_id, row.launched) for row in world.plan().rows]
    world.land()
    world.drain()


def test_a_round_that_fails_takes_what_was_launched_on_it_along() -> None:
    world = make_world()
    [seq_id] = world.submit([5, 6, 7], max_tokens=9)
    launch(world, seq_id)
    world.plan()
    world.plan_ahead()
    world.fail()

    assert held(world) == (0, 0)
    assert not world.scheduler.launched
    assert sequence_of(world, seq_id).computed == 0
    world.drain()


def test_a_fork_of_a_launched_sequence_takes_what_the_cache_has_and_leaves_it_alone() -> None:
    world = make_world()
    [parent] = world.submit(range(6), max_tokens=9)
    launch(world, parent)
    launch(world, parent)
    launch(world, parent)
    child = world.fork(parent)

    assert sequence_of(world, child).computed == 0
    rows = {row.seq_id: row for row in world.plan().rows}
    assert rows[parent].launched
    assert rows[child].start == 8  # the block and the state that the parent left in the index
    assert rows[child].slot != rows[parent].slot
    world.land()
    world.drain()


def test_samples_are_launched_once_they_have_their_own() -> None:
    world = make_world()
    world.eager = True
    samples = world.submit(range(10), max_tokens=6, n=3)
    rounds = world.drain()

    launched = [[row.launched for row in one.rows] for one in rounds]
    assert launched == [[False], [False], [False] * 3, *[[True] * 3] * 5]
    assert world.finished == dict.fromkeys(samples, "length")


def test_a_state_is_captured_once_at_every_boundary() -> None:
    world, plain = make_world(num_slots=60), make_world(num_slots=60)
    world.eager = True
    for one in (world, plain):
        one.submit(range(8), max_tokens=22)
    captures = [
        [
            capture.position
            for round_ in one.drain()
            for row in round_.rows
            for capture in row.captures
        ]
        for one in (world, plain)
    ]

    assert captures[0] == captures[1]
    assert len(captures[0]) == len(set(captures[0]))


def test_captures_launched_ahead_count_against_the_bound_on_checkpoints() -> None:
    world = make_world(max_checkpoints=2, num_slots=24)
    world.eager = True
    for number in range(4):
        world.submit([number, 1, 2], max_tokens=20)
    most = 0
    while world.scheduler.has_work:
        world.plan()
        world.land()
        captures = sum(len(row.captures) for row in world.scheduler.launched)
        most = max(most, captures + world.scheduler.stats().checkpoints)

    assert most == 2


def test_captures_of_a_launched_row_that_waits_count_as_well() -> None:
    world = make_world(max_checkpoints=1)
    [paused] = world.submit([5, 6, 7], max_tokens=9)
    ahead = launch(world, paused)
    assert [capture.position for capture in ahead.rows[0].captures] == [4]
    world.pause(paused)
    world.submit([1, 2, 9], max_tokens=9)
    world.round()

    assert [(row.start, row.captures) for row in world.plan().rows] == [(3, ())]
    world.land()
    world.drain()


def test_rows_that_share_a_prefix_are_grouped_when_they_are_launched() -> None:
    world = make_world(uses_slots=False, num_slots=0, prompt_tokens_per_round=64)
    prompt = list(range(12))
    world.submit([*prompt, 20], max_tokens=9)
    world.round()
    world.submit([*prompt, 21], max_tokens=9)
    world.round()
    ahead = launch(world, 1, 2)

    assert [(one.seq_ids, one.num_blocks) for one in ahead.groups] == [((1, 2), 3)]
    assert world.plan().groups == ()
    world.land()
    world.drain()
