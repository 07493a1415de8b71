"""Classes, tenants, arrival, and the bound on a parked prompt's wait."""

from world import World

from scheduler.scheduler import SchedulerConfig


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 60,
        "block_size": 4,
        "max_rows": 1,
        "prompt_tokens_per_round": 64,
        "prefix_cache": False,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


def started_in_order(world: World) -> list[int]:
    order: list[int] = []
    for round_ in world.drain():
        order += [row.seq_id for row in round_.rows if row.seq_id not in order]
    return order


def test_equals_start_in_order_of_arrival() -> None:
    world = make_world()
    seq_ids = [world.submit([n, 2], max_tokens=2)[0] for n in range(5)]

    assert started_in_order(world) == seq_ids


def test_a_higher_class_starts_first() -> None:
    world = make_world()
    low, high, middle = (world.submit([1, 2], priority=p)[0] for p in (0, 5, 3))

    assert started_in_order(world) == [high, middle, low]


def test_a_tenant_with_a_thousand_requests_does_not_stop_anothers_single_one() -> None:
    world = make_world(max_rows=2)
    crowd = [world.submit([n % 20, 2], max_tokens=3, tenant="crowd")[0] for n in range(1000)]
    world.round()
    world.round()
    [single] = world.submit([7, 7], max_tokens=3, tenant="single")
    for _ in range(4):
        world.round()

    assert world.scheduler.sequences[single].started
    for seq_id in crowd:
        world.scheduler.cancel(seq_id)
        world._hear(world.scheduler.take_ended())
    world.drain()


def test_tenants_get_tokens_in_equal_parts_not_requests() -> None:
    world = make_world()
    for n in range(40):
        world.submit([n % 20] * 16, max_tokens=4, tenant="long")
        world.submit([n % 20] * 1, max_tokens=4, tenant="short")
    for _ in range(60):
        world.round()

    line = world.scheduler.ledger.line
    assert abs(line.served("long") - line.served("short")) <= 20
    done = [world.engine.stories[seq_id].request.tenant for seq_id in world.finished]
    assert done.count("short") >= 3 * done.count("long")
    for seq_id in list(world.scheduler.sequences):
        world.cancel(seq_id)


def test_an_idle_tenant_earns_no_credit() -> None:
    world = make_world()
    world.submit([1], max_tokens=1, tenant="idle")
    world.drain()
    for n in range(20):
        world.submit([n] * 8, max_tokens=4, tenant="busy")
    for _ in range(40):
        world.round()
    before = world.scheduler.ledger.line.served("busy")
    world.submit([2], max_tokens=1, tenant="idle")

    assert world.scheduler.ledger.line.served("idle") == before
    world.drain()


def test_a_parked_prompts_wait_is_bounded_whatever_its_class() -> None:
    world = make_world(max_wait_rounds=10)
    [parked] = world.submit([1, 2], max_tokens=2, priority=-1, tenant="slow")
    rounds = 0
    while not world.scheduler.sequences[parked].started:
        world.submit([rounds % 20, 3], max_tokens=2, priority=9)
        world.round()
        rounds += 1
        assert rounds <= 10 + 4

    world.drain()


def test_a_prompt_being_computed_is_not_left_out_for_ever_by_a_higher_class() -> None:
    world = make_world(max_wait_rounds=5, max_rows=3, prompt_tokens_per_round=4)
    [slow] = world.submit([1] * 12, max_tokens=2, priority=-1)
    world.round()
    for count in range(30):
        world.submit([count % 20] * 8, max_tokens=1, priority=9)
        world.round()

    assert slow in world.finished
    world.drain()


def test_a_prompt_is_admitted_while_others_decode() -> None:
    world = make_world(max_rows=2)
    world.submit([1, 2], max_tokens=200)
    world.round()
    [parked] = world.submit([3] * 20, max_tokens=2)
    for _ in range(4):
        world.round()

    assert parked in world.finished
    world.drain()


def test_whoever_waits_for_a_prefix_does_not_hold_up_the_line() -> None:
    world = make_world(max_rows=3, prompt_tokens_per_round=8, prefix_cache=True)
    [first] = world.submit(range(40), max_tokens=2)
    [second] = world.submit([*range(36), 1, 2, 3, 4, 5], max_tokens=2)
    for _ in range(5):
        world.round()
    [third] = world.submit([9, 9], max_tokens=2)

    assert started_in_order(world)[-2:] == [second, third]
    assert first in world.finished


def test_a_thousand_who_wait_cost_a_plan_little_when_no_row_is_free() -> None:
    """The line is not even looked at: its candidates are never drawn."""
    world = make_world()
    world.submit([1, 2], max_tokens=30)
    world.round()
    for n in range(50):
        world.submit([n % 20], max_tokens=1)
    line = world.scheduler.ledger.line
    drawn = []
    draw = line.candidates
    line.candidates = lambda number: (drawn.append(one) or one for one in draw(number))
    world.round()

    assert len(drawn) <= 1
    del line.candidates
    world.drain()
