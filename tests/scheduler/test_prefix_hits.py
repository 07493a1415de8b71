"""Who computes what when prompts share their beginnings."""

import pytest
from world import World

from scheduler import prefix_index
from scheduler.request import Request
from scheduler.round import Verdict
from scheduler.scheduler import Scheduler, SchedulerConfig


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 80,
        "block_size": 4,
        "max_rows": 4,
        "prompt_tokens_per_round": 64,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


def make_hybrid(**fields) -> World:
    return make_world(**{"uses_slots": True, "num_slots": 20, **fields})


def computed_by(world: World) -> dict[int, int]:
    """Run to the end; return how many prompt tokens each sequence computed."""
    tokens: dict[int, int] = {}
    prompts = {seq_id: len(story.request.prompt) for seq_id, story in world.engine.stories.items()}
    for round_ in world.drain():
        for row in round_.rows:
            count = max(0, min(row.certain_end, prompts[row.seq_id]) - row.start)
            tokens[row.seq_id] = tokens.get(row.seq_id, 0) + count
    return tokens


@pytest.mark.parametrize(
    ("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (16, 12), (17, 16)]
)
@pytest.mark.parametrize("make", [make_world, make_hybrid])
def test_a_prompt_seen_before_leaves_at_least_one_token(make, length, hit) -> None:
    world = make()
    [first] = world.submit(range(length))
    assert computed_by(world) == {first: length}
    [again] = world.submit(range(length))

    assert computed_by(world)[again] == length - hit
    assert world.scheduler.stats().hit_tokens == hit


def test_a_dense_model_hits_to_the_last_full_common_block() -> None:
    world = make_world()
    world.submit([*range(11), 90, 91])
    world.drain()
    [other] = world.submit([*range(11), 80, 81, 82])
    world.round()

    assert world.scheduler.sequences[other].num_cached == 8
    world.drain()


def test_a_hybrid_hits_only_where_there_is_a_state_as_well() -> None:
    """First: computes all. Second: known chain, no state; keeps one. Third: hits there."""
    world = make_hybrid()
    system = list(range(10))
    [first] = world.submit([*system, 90, 91, 92, 93, 94])
    assert computed_by(world) == {first: 15}
    [second] = world.submit([*system, 80, 81, 82])
    assert computed_by(world)[second] == 13
    [third] = world.submit([*system, 70, 71])

    assert computed_by(world)[third] == 12 - 8


def test_waiting_prompts_share_from_the_second_on_in_a_hybrid_too() -> None:
    world = make_hybrid(max_rows=1)
    system = list(range(10))
    first, second, third = (
        world.submit([*system, own, own, own], max_tokens=2)[0] for own in (90, 80, 70)
    )

    assert computed_by(world) == {first: 13, second: 5, third: 5}


def test_a_paused_prompt_claims_nothing() -> None:
    world = make_world(prompt_tokens_per_round=4)
    [paused] = world.submit(range(16))
    world.round()
    assert world.scheduler.ledger.claims
    world.pause(paused)

    assert not world.scheduler.ledger.claims
    world.drain()


@pytest.mark.parametrize("make", [make_world, make_hybrid])
def test_the_second_of_two_prompts_waits_for_what_the_first_computes(make) -> None:
    world = make(prompt_tokens_per_round=8)
    system = list(range(18))
    [first] = world.submit([*system, 90])
    [second] = world.submit([*system, 80])
    unrelated = world.submit([7, 7], tenant="other")[0]

    assert [row.seq_id for row in world.round().rows] == [first]
    rows = [[row.seq_id for row in round_.rows] for round_ in world.drain()]
    assert second not in rows[0]
    assert unrelated in world.finished
    assert world.scheduler.stats().hit_tokens == 16


@pytest.mark.parametrize("make", [make_world, make_hybrid])
@pytest.mark.parametrize("end", ["cancel", "fail", "pause", "preempt"])
def test_the_second_takes_over_when_the_first_goes_away(make, end) -> None:
    world = make(prompt_tokens_per_round=8)
    system = list(range(30))
    [first] = world.submit([*system, 90])
    [second] = world.submit([*system, 80])
    world.round()
    if end == "fail":
        world.plan()
        world.fail([first])
    else:
        getattr(world, end)(first)
        if end == "preempt":
            world.pause(first)
    rows = world.round().rows

    assert [row.seq_id for row in rows] == [second]
    world.drain()
    assert world.finished[second] == "length"


def test_nothing_is_hit_before_the_round_that_computes_it_is_committed() -> None:
    world = make_hybrid(prompt_tokens_per_round=16)
    world.submit(range(9))
    world.plan()
    world.submit(range(9))
    assert not world.scheduler.ledger.index.nodes
    assert world.scheduler.stats().checkpoints == 0
    world.land()

    assert len(world.scheduler.ledger.index.nodes) == 2
    assert world.scheduler.stats().checkpoints == 1
    world.drain()


def test_salts_keep_tenants_apart() -> None:
    world = make_world()
    world.submit(range(9), salt="one")
    world.drain()
    [other] = world.submit(range(9), salt="two")

    assert computed_by(world)[other] == 9


def test_a_request_that_needs_every_position_fills_the_cache_without_reading_it() -> None:
    world = make_hybrid()
    world.submit(range(9), read_cache=False)
    world.drain()
    [again] = world.submit(range(9), read_cache=False)
    assert computed_by(world)[again] == 9
    [reader] = world.submit(range(9))

    assert computed_by(world)[reader] == 1


def test_with_the_cache_off_nothing_is_kept() -> None:
    world = make_hybrid(prefix_cache=False)
    world.submit(range(9))
    world.drain()
    [again] = world.submit(range(9))

    assert computed_by(world)[again] == 9
    assert world.scheduler.stats().cached_blocks == 0


def test_a_conversations_next_turn_hits_what_was_generated() -> None:
    world = make_hybrid()
    [turn] = world.submit(range(5), max_tokens=12)
    world.drain()
    conversation = [*range(5), *world.answer(turn)]
    [following] = world.submit([*conversation, 27, 28])

    assert computed_by(world)[following] == len(conversation) + 2 - 16


@pytest.mark.parametrize("quality", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_drafts", [0, 1, 3, 6])
def test_speculation_does_not_spoil_the_next_turns_hit(num_drafts, quality) -> None:
    """An accepted run may jump over a boundary: the fold captures it on the way.

    Only what the very last window computed was never folded.
    """
    world = make_hybrid()
    world.policy.num_drafts, world.quality = num_drafts, quality
    [turn] = world.submit(range(5), max_tokens=30)
    world.drain()
    world.submit([*range(5), *world.answer(turn), 27, 28])
    world.drain()

    computed = 5 + 30 - 1
    assert world.scheduler.stats().hit_tokens >= (computed - num_drafts) // 4 * 4


def test_a_decoding_sequence_keeps_one_rolling_checkpoint() -> None:
    world = make_hybrid()
    world.submit(range(5), max_tokens=40)
    most = 0
    for _ in world.drain():
        most = max(most, world.scheduler.stats().checkpoints)

    assert world.scheduler.stats().checkpoints == 2  # the prompt's and the last of the answer
    assert sorted(one["position"] for one in world.scheduler.dump()["checkpoints"]) == [4, 44]


def test_a_checkpoint_that_others_use_stays_where_it_is() -> None:
    world = make_hybrid()
    [talker] = world.submit(range(5), max_tokens=40)
    while world.scheduler.sequences[talker].computed < 14:
        world.round()
    world.submit([*world.engine.stories[talker].tokens[:13]], max_tokens=2)
    world.drain()

    positions = sorted(one["position"] for one in world.scheduler.dump()["checkpoints"])
    assert positions == [4, 12, 44]


def test_checkpoints_are_bounded_and_the_least_used_goes_first() -> None:
    world = make_hybrid(max_checkpoints=2)
    for start in (0, 100, 200):
        world.submit(range(start, start + 9), max_tokens=1)
        world.drain()
        world.submit(range(9), max_tokens=1)  # stays in use
        world.drain()
        assert world.scheduler.stats().checkpoints <= 2
    [used] = world.submit(range(9), max_tokens=1)
    [evicted] = world.submit(range(100, 109), max_tokens=1)

    assert computed_by(world) == {used: 1, evicted: 9}


def test_without_room_for_checkpoints_a_hybrid_computes_everything() -> None:
    world = make_hybrid(max_checkpoints=0)
    world.submit(range(9))
    world.drain()
    [again] = world.submit(range(9))

    assert computed_by(world)[again] == 9


def test_cached_blocks_are_evicted_when_memory_is_needed() -> None:
    world = make_hybrid(num_blocks=9)
    for start in range(0, 1000, 100):
        world.submit(range(start, start + 17), max_tokens=3)
        world.drain()

    assert world.scheduler.stats().total_blocks == 8
    assert world.scheduler.stats().checkpoints <= 2


def test_an_admission_that_fails_after_a_hit_holds_nothing() -> None:
    world = make_hybrid(num_blocks=12)
    world.submit(range(9), max_tokens=1)
    world.drain()
    [running] = world.submit(range(100, 117), max_tokens=18)
    world.round()
    [waiting] = world.submit([*range(9), *range(50, 70)], max_tokens=2)
    world.round()

    sequence = world.scheduler.sequences[waiting]
    assert (sequence.status, list(sequence.blocks), sequence.slot) == ("waiting", [], None)
    assert world.scheduler.ledger.pinned_slots == []
    world.drain()
    assert world.finished == {1: "length", running: "length", waiting: "length"}


def test_identical_blocks_computed_side_by_side_become_one() -> None:
    world = make_world(max_checkpoints=0)
    world.submit(range(9), read_cache=False, max_tokens=8)
    world.submit(range(9), read_cache=False, max_tokens=8)
    world.round()

    one, two = world.scheduler.sequences.values()
    assert list(one.blocks)[:2] == list(two.blocks)[:2]
    assert world.scheduler.dump()["shared_blocks"] == [{"seq_ids": [1, 2], "num_blocks": 2}]
    world.drain()


def test_many_users_of_a_prefix_hold_one_copy_of_it() -> None:
    world = make_hybrid(max_rows=8, num_slots=30, num_blocks=60)
    system = list(range(40))
    seq_ids = [world.submit([*system, own], max_tokens=6)[0] for own in range(60, 68)]
    while len(world.round().rows) < 8:
        pass

    used = world.scheduler.stats().total_blocks - world.scheduler.stats().free_blocks
    assert used <= 10 + 8 * 2
    assert world.scheduler.dump()["shared_blocks"] == [{"seq_ids": seq_ids, "num_blocks": 10}]
    assert computed_by(world)
    assert world.scheduler.stats().hit_tokens == 7 * 40


def test_clearing_the_cache_spares_what_is_in_use() -> None:
    world = make_hybrid()
    world.submit(range(9), max_tokens=9)
    world.submit(range(50, 59), max_tokens=1)
    world.round()
    world.clear_cache()

    assert world.scheduler.stats().cached_blocks == 0
    world.drain()


def test_tokens_are_compared_when_hashes_collide() -> None:
    """A bad hash costs hits, never gives a wrong one."""
    honest = prefix_index.chain_hash
    prefix_index.chain_hash = lambda parent, tokens: hash((parent, tokens[0]))
    try:
        scheduler = Scheduler(SchedulerConfig(num_blocks=80, block_size=4, max_rows=4))
        for prompt in ((1, 2, 3, 4, 5), (1, 9, 9, 9, 5), (1, 2, 3, 4, 6)):
            scheduler.submit(Request("r", prompt, 1))
            scheduler.commit([Verdict(row.seq_id, (7,)) for row in scheduler.plan().rows])
    finally:
        prefix_index.chain_hash = honest

    assert scheduler.stats().hit_tokens == 4


def test_what_a_hit_takes_out_of_the_cache_is_not_counted_as_available() -> None:
    world = make_hybrid(num_blocks=9)
    world.submit(range(9), max_tokens=1)
    world.drain()
    [running] = world.submit(range(100, 112), max_tokens=3)
    world.round()
    [waiting] = world.submit([*range(9), *range(50, 61)], max_tokens=1)
    world.drain()

    assert world.scheduler.stats().preemptions == 0
    assert list(world.finished)[1:] == [running, waiting]


@pytest.mark.parametrize(("limit", "hit"), [(0, 0), (7, 4), (8, 8), (100, 16)])
@pytest.mark.parametrize("make", [make_world, make_hybrid])
def test_a_request_takes_no_more_from_the_index_than_it_says(make, limit, hit) -> None:
    world = make()
    for length in (5, 9, 17):  # a hybrid keeps a state at the end of each
        world.submit(range(length))
        world.drain()
    [again] = world.submit(range(17), max_cached=limit)

    assert computed_by(world)[again] == 17 - hit
