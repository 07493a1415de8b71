"""Random histories of a scheduler: what may happen, and how often."""

import random
from dataclasses import dataclass, field

from world import WORLDS, World

from scheduler.scheduler import RequestTooLarge, SchedulerConfig


def any_config(choose: random.Random) -> SchedulerConfig:
    """A small configuration, mostly too small for what it is asked."""
    uses_slots = choose.random() < 0.75
    max_rows = choose.randint(1, 6)
    num_slots = choose.choice([2, 3, *(max_rows + more for more in (1, 4, 12, 20, 20))])
    return SchedulerConfig(
        num_blocks=choose.choice([6, 10, 16, 30, 60, 120]),
        block_size=choose.choice([1, 2, 4, 4, 8]),
        max_rows=max_rows,
        num_slots=max(2, num_slots) if uses_slots else 0,
        uses_slots=uses_slots,
        prompt_tokens_per_round=choose.choice([8, 16, 64]),
        tokens_per_round=choose.choice([None, None, 8, 20]),
        prefix_cache=choose.random() < 0.85,
        max_checkpoints=choose.choice([None, None, None, 1, 3, 100]),
        max_preemptions=choose.choice([0, 1, 2]),
        max_wait_rounds=choose.choice([3, 20, 256]),
        even_windows=max_rows == 5,
    )


@dataclass
class Walk:
    """A world that random events happen to."""

    seed: int
    verify: bool = True
    num_events: int = 0
    texts: list[list[int]] = field(default_factory=list)

    EVENTS = ("cancel", "pause", "resume", "resume", "fork", "preempt", "evict", "clear")

    def __post_init__(self) -> None:
        self.choose = random.Random(self.seed)
        self.begin()

    def begin(self) -> None:
        choose = self.choose
        quality = choose.choice([0.0, 0.6, 0.9, 1.0])
        config = any_config(choose)
        eagerness = choose.choice([0.0, 0.3, 0.6, 1.0])
        self.world = World(config, choose.randrange(1 << 30), quality, self.verify)
        self.eagerness = eagerness
        self.world.eager = eagerness == 1.0
        self.texts = [[choose.randrange(29) for _ in range(40)] for _ in range(3)]

    def live(self) -> list[int]:
        sequences = self.world.scheduler.sequences.values()
        return [one.seq_id for one in sequences if one.finish is None]

    def happen(self) -> None:
        """One event, of those that are possible."""
        self.num_events += 1
        choose, world = self.choose, self.world
        world.now += choose.random()
        draw = choose.random()
        if world.in_flight is not None and draw < 0.75:
            if world.ahead is None and choose.random() < self.eagerness < 1:
                world.plan_ahead()
            else:
                self.land()
        elif draw < 0.65 and world.in_flight is None:
            world.policy.num_drafts = choose.choice([0, 1, 3, 6])
            world.plan()
        elif draw < 0.85:
            if len(self.live()) < 14:
                self.submit()
        elif self.live():
            self.disturb(choose.choice(self.live()), choose.choice(self.EVENTS))

    def submit(self) -> None:
        choose, world = self.choose, self.world
        text = choose.choice(self.texts)
        prompt = text[: choose.randint(1, 30)]
        if choose.random() < 0.4:
            prompt = prompt + [choose.randrange(29) for _ in range(choose.randint(1, 6))]
        if choose.random() < 0.2 and world.emitted:  # the next turn of a conversation
            told = world.engine.stories[choose.choice(list(world.emitted))]
            prompt = told.tokens[: choose.randint(1, len(told.tokens))]
        continued = choose.random() < 0.1
        fields = {
            "n": 1 if continued else choose.choice([1, 1, 1, 2, 4]),
            "emitted": tuple(choose.randrange(29) for _ in range(3)) if continued else (),
            "priority": choose.choice([0, 0, 0, 1, -1]),
            "tenant": choose.choice("abc"),
            "salt": choose.choice(["", "", "secret"]),
            "deadline": world.now + choose.random() * 60 if choose.random() < 0.15 else None,
            "read_cache": choose.random() < 0.9,
            "eos_ids": frozenset({3}) if choose.random() < 0.3 else frozenset(),
            "min_tokens": choose.choice([0, 0, 3]),
            "needs_tokens": choose.random() < 0.05,
        }
        try:
            world.submit(prompt, choose.randint(3, 24), **fields)
        except RequestTooLarge:
            world.submit(prompt[:1], 3, salt=fields["salt"])

    def land(self) -> None:
        choose, world = self.choose, self.world
        draw = choose.random()
        assert world.in_flight is not None
        ids = [row.seq_id for row in world.in_flight.rows]
        if draw < 0.02:
            world.fail()
        elif draw < 0.04:
            world.fail([choose.choice(ids)])
        else:
            world.land()

    def disturb(self, seq_id: int, event: str) -> None:
        choose, world = self.choose, self.world
        flying = world.scheduler.sequences[seq_id].in_flight
        if event == "cancel":
            world.cancel(seq_id)
        elif event == "pause":
            world.pause(seq_id)
        elif event == "resume":
            world.resume(seq_id)
        elif event == "fork" and not flying:
            world.fork(seq_id)
        elif event == "preempt" and not flying:
            world.preempt(seq_id)
        elif event == "evict" and (index := world.scheduler.ledger.index) is not None:
            choose.choice([index.evict_block, index.evict_checkpoint])()
            world._verify()
        elif event == "clear" and choose.random() < 0.2:
            world.clear_cache()


def walk(seed: int, num_events: int, *, verify: bool = True, per_world: int = 400) -> None:
    """Let so many events happen, in a new small world every ``per_world``, each run to its end."""
    one = Walk(seed, verify)
    while one.num_events < num_events:
        one.begin()
        last = one.num_events + per_world
        while one.num_events < last:
            one.happen()
        one.world.policy.num_drafts = 2
        one.world.drain()
        WORLDS.clear()
