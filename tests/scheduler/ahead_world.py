"""A world whose rounds are followed by rows launched ahead, and what it holds."""

from world import World

from scheduler.round import Round
from scheduler.scheduler import SchedulerConfig
from scheduler.sequence import Sequence


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 40,
        "block_size": 4,
        "max_rows": 4,
        "prompt_tokens_per_round": 8,
        "num_slots": 24,
        "uses_slots": True,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


def sequence_of(world: World, seq_id: int) -> Sequence:
    return world.scheduler.sequences[seq_id]


def held(world: World) -> tuple[int, int]:
    """How many blocks and slots somebody holds."""
    pools = world.scheduler.ledger.blocks, world.scheduler.ledger.slots
    return tuple(pool.num_total - pool.num_free - pool.num_cached for pool in pools)


def launch(world: World, *seq_ids: int) -> Round:
    """Plan a round, launch the next on top of it, and land it."""
    world.plan()
    ahead = world.plan_ahead()
    world.land()
    assert ahead is not None
    assert [row.seq_id for row in ahead.rows] == [*seq_ids]
    return ahead
