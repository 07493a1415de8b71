"""What a round is made of: decode rows always, prompt chunks within a budget, on a grid."""

import pytest
from world import World

from scheduler.request import Request
from scheduler.round import Commit, Round, Row, Verdict
from scheduler.scheduler import RequestTooLarge, RoundInFlight, Scheduler, SchedulerConfig


def make_world(**fields) -> World:
    settings = {"num_blocks": 40, "block_size": 4, "max_rows": 4, "prompt_tokens_per_round": 8}
    return World(SchedulerConfig(**{**settings, **fields}))


def test_a_prompt_is_computed_in_chunks_that_end_on_the_grid() -> None:
    world = make_world()
    [seq_id] = world.submit(range(19), max_tokens=2)

    rounds = world.drain()

    windows = [
        (row.start, row.certain_end, row.samples) for round_ in rounds for row in round_.rows
    ]
    assert windows == [(0, 8, False), (8, 16, False), (16, 19, True), (19, 20, True)]
    assert world.finished == {seq_id: "length"}


def test_the_first_round_of_a_request_is_exactly_this() -> None:
    world = make_world(uses_slots=True, num_slots=6)
    world.submit([5, 6, 7], max_tokens=2)

    assert world.plan() == Round(
        rows=(Row(seq_id=1, tokens=(5, 6, 7), start=0, blocks=(1,), slot=1),)
    )
    world.land()


def test_a_model_without_recurrent_layers_has_neither_slot_nor_fold() -> None:
    world = make_world(uses_slots=False)
    world.policy.num_drafts = 3
    world.submit([5, 6, 7], max_tokens=9)

    rows = [row for round_ in world.drain() for row in round_.rows]

    assert {(row.slot, row.fold) for row in rows} == {(None, 0)}


@pytest.mark.parametrize("even", [False, True])
def test_whose_answer_ends_sooner_carries_as_many_drafts_if_windows_are_to_be_even(even) -> None:
    world = make_world(even_windows=even, max_context=30)
    world.policy.num_drafts = 3
    world.submit([5, 6, 7], max_tokens=3)
    world.submit([5, 6, 8], max_tokens=40 - 13)
    world.round()
    assert [row.num_drafts for row in world.round().rows] == ([3, 3] if even else [1, 3])
    rows = [row for round_ in world.drain() for row in round_.rows]
    assert (
        max(row.certain_end + row.num_drafts for row in rows) == 29 + even
    )  # no further than may be
    assert {len(tokens) for tokens in world.emitted.values()} == {3, 27}


def test_no_row_drafts_beyond_its_answer_where_blocks_are_promised_to_others() -> None:
    world = make_world(even_windows=True, max_preemptions=0)
    world.policy.num_drafts = 3
    world.submit([5, 6, 7], max_tokens=3)
    world.submit([5, 6, 8], max_tokens=27)
    world.round()
    assert [row.num_drafts for row in world.round().rows] == [1, 3]


def test_a_long_prompt_never_stalls_the_rows_that_decode() -> None:
    world = make_world()
    [talker] = world.submit([1, 2], max_tokens=12)
    world.round()
    world.submit(range(100), max_tokens=2)

    for _ in range(11):
        assert talker in [row.seq_id for row in world.round().rows]


def test_an_uneven_budget_is_rounded_down_to_the_grid_and_shared_in_order() -> None:
    world = make_world(prompt_tokens_per_round=11)
    world.submit(range(9), max_tokens=2, tenant="one")
    world.submit(range(20, 40), max_tokens=2, tenant="two")

    first, second = world.round(), world.round()

    assert [(row.seq_id, len(row.tokens)) for row in first.rows] == [(1, 9)]
    assert [(row.seq_id, len(row.tokens)) for row in second.rows] == [(1, 1), (2, 8)]


def test_decode_rows_take_from_a_bounded_round_but_prompts_keep_their_share() -> None:
    world = make_world(
        prompt_tokens_per_round=16,
        tokens_per_round=16,
        prompt_share=0.5,
        max_rows=14,
        num_blocks=200,
    )
    for _ in range(10):
        world.submit([1], max_tokens=30)
    while len(world.round().rows) < 10:
        pass
    world.submit(range(100), max_tokens=2)

    chunks = [row for row in world.round().rows if row.seq_id == 11]

    assert [len(row.tokens) for row in chunks] == [8]


def test_drafts_never_exceed_what_max_tokens_still_permits() -> None:
    world = make_world()
    world.policy.num_drafts = 6
    world.quality = 0.0
    world.submit([1, 2], max_tokens=5)

    depths = [row.num_drafts for round_ in world.drain() for row in round_.rows]

    assert depths == [0, 3, 2, 1, 0]


def test_a_finished_row_does_not_bound_the_drafts_of_others() -> None:
    world = make_world()
    world.policy.num_drafts = 4
    world.quality = 0.0
    world.submit([1, 2], max_tokens=2)
    world.submit([3, 4, 5], max_tokens=20)
    world.round()

    assert [row.num_drafts for row in world.round().rows] == [0, 4]
    assert [row.num_drafts for row in world.round().rows] == [4]


def test_speculation_comes_back_after_a_burst_of_requests() -> None:
    world = make_world(max_rows=8, num_blocks=100, prompt_tokens_per_round=64)
    world.policy.depths = lambda rows, _waiting: [0 if len(rows) > 2 else 3] * len(rows)
    world.submit([1, 2], max_tokens=40)
    for _ in range(6):
        world.submit([3, 4, 5], max_tokens=2)

    depths = [round_.rows[0].num_drafts for round_ in world.drain()]

    assert depths[1] == 0
    assert 3 in depths[2:]


def test_rows_advance_each_by_their_own_acceptance() -> None:
    policy = make_world().policy
    policy.num_drafts = 3
    scheduler = Scheduler(SchedulerConfig(num_blocks=20, block_size=4, max_rows=2), policy)
    scheduler.submit(Request("one", (1, 2), 20))
    scheduler.submit(Request("two", (3, 4), 20))
    scheduler.plan()
    scheduler.commit([Verdict(1, (7,)), Verdict(2, (7,))])
    scheduler.plan()
    scheduler.commit([Verdict(1, (7, 7, 7, 8), 3, 3), Verdict(2, (9,), 3, 0)])

    assert [(row.start, row.tokens) for row in scheduler.plan().rows] == [(6, (8,)), (3, (9,))]


def test_nobody_yields_for_a_draft() -> None:
    world = make_world(num_blocks=5, max_rows=2, prefix_cache=False)
    world.policy.num_drafts = 3
    world.submit([1, 2, 3, 4, 5], max_tokens=4)
    world.submit([1, 2, 3, 4, 5], max_tokens=4)

    world.drain()

    assert world.scheduler.stats().preemptions == 0


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    world = make_world(num_blocks=5)

    with pytest.raises(RequestTooLarge) as refusal:
        world.submit(range(10), max_tokens=8)

    assert str(refusal.value) == (
        "10 prompt tokens + 8 max_tokens = 18 tokens need 5 blocks of 4, "
        "but the memory holds 4 (16 tokens)"
    )
    assert not world.scheduler.has_work
    assert world.submit(range(10), max_tokens=7) == [1]


def test_a_request_longer_than_the_context_is_refused_with_the_numbers() -> None:
    world = make_world(max_context=20)

    with pytest.raises(RequestTooLarge, match="= 21 tokens, but the context holds 20"):
        world.submit(range(15), max_tokens=6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"n": 0}, "n must be at least 1, not 0"),
        ({"n": 2, "emitted": (1,)}, "n must be 1"),
        ({"emitted": (1, 2, 3)}, "3 tokens were emitted, more than max_tokens"),
    ],
)
def test_a_request_without_sense_is_refused_and_changes_nothing(fields, message) -> None:
    scheduler = make_world().scheduler
    before = scheduler.dump()

    with pytest.raises(ValueError, match=message):
        scheduler.submit(Request(**{"request_id": "r", "prompt": (1,), "max_tokens": 2, **fields}))

    assert scheduler.dump() == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_blocks": 1}, "num_blocks must be at least 2"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"uses_slots": True}, "num_slots must be at least 2"),
        ({"prompt_tokens_per_round": 3}, "at least block_size"),
        ({"prompt_share": 2.0}, "prompt_share must be between 0 and 1"),
    ],
)
def test_sizes_that_cannot_work_are_refused_by_name(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_world(**fields)


def test_a_second_plan_in_flight_is_refused_and_changes_nothing() -> None:
    world = make_world()
    world.submit([1, 2])
    world.plan()
    before = world.scheduler.dump()

    with pytest.raises(RoundInFlight):
        world.scheduler.plan()

    assert world.scheduler.dump() == before
    world.land()


def test_an_empty_scheduler_plans_nothing() -> None:
    scheduler = make_world().scheduler

    assert scheduler.plan() is None
    assert not scheduler.has_work
    assert scheduler.take_ended() == []


def test_rows_never_exceed_the_limit_and_all_requests_end() -> None:
    world = make_world(max_rows=3)
    seq_ids = [world.submit([index, 1, 2], max_tokens=3)[0] for index in range(10)]

    rounds = world.drain()

    assert max(len(round_.rows) for round_ in rounds) == 3
    assert world.finished == dict.fromkeys(seq_ids, "length")


def test_a_large_request_is_not_overtaken_by_small_ones_behind_it() -> None:
    world = make_world(num_blocks=9, prompt_tokens_per_round=64)
    [running] = world.submit(range(16), max_tokens=5)
    world.round()
    [large] = world.submit(range(50, 78), max_tokens=2)
    [small] = world.submit([1], max_tokens=2)

    order = [row.seq_id for round_ in world.drain() for row in round_.rows]

    assert order.index(running) < order.index(large) < order.index(small)


def test_an_engine_may_run_fewer_drafts_than_planned() -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=9, max_rows=1), make_world().policy)
    scheduler.submit(Request("r", (1, 2), 9))
    scheduler.plan()

    assert scheduler.commit([Verdict(1, (3,))]) == [Commit(1, (3,))]
