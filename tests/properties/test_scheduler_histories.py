"""Any history keeps every id accounted for, every page true, every answer right, and moves."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from random_walk import Walk, walk

NUM_SOAK_EVENTS = int(os.environ.get("OCTAVO_SOAK_EVENTS", "1000000"))
"""Shorten it to try the walk; `make soak` runs all of it."""


class AnyHistory(RuleBasedStateMachine):
    """hypothesis chooses the events; what an event does exactly comes from a drawn seed."""

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed: int) -> None:
        self.walk = Walk(seed)

    def in_flight(self) -> bool:
        return self.walk.world.in_flight is not None

    @rule()
    def submit(self) -> None:
        if len(self.walk.live()) < 14:
            self.walk.submit()

    @precondition(lambda self: not self.in_flight())
    @rule(num_drafts=st.sampled_from([0, 1, 3, 6]), finds=st.booleans())
    def plan(self, num_drafts: int, finds: bool) -> None:
        world = self.walk.world
        world.policy.num_drafts, world.engine.finds = num_drafts, finds
        world.plan()

    @precondition(lambda self: self.in_flight())
    @rule(num_drafts=st.sampled_from([0, 3]))
    def plan_ahead(self, num_drafts: int) -> None:
        self.walk.world.policy.num_drafts = num_drafts
        self.walk.world.plan_ahead()

    @precondition(lambda self: self.in_flight())
    @rule(quality=st.sampled_from([0.0, 0.6, 1.0]))
    def commit(self, quality: float) -> None:
        self.walk.world.quality = quality
        self.walk.world.land()

    @precondition(lambda self: self.in_flight())
    @rule()
    def land_or_fail(self) -> None:
        self.walk.land()

    @precondition(lambda self: self.walk.live())
    @rule(event=st.sampled_from(Walk.EVENTS), which=st.integers(0, 20))
    def disturb(self, event: str, which: int) -> None:
        live = self.walk.live()
        self.walk.disturb(live[which % len(live)], event)

    @rule(seconds=st.sampled_from([0.5, 5.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.walk.world.now += seconds

    def teardown(self) -> None:
        if hasattr(self, "walk"):
            self.walk.world.drain()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=500,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_walk_keeps_every_rule(seed) -> None:
    walk(seed, 1000)


def test_the_walk_goes_everywhere() -> None:
    """A walk that never preempts, hits, forks or folds would prove nothing."""
    seen: dict[str, int] = {}
    for seed in range(20):
        one, planned = Walk(seed), {}
        for _ in range(250):
            one.happen()
            if (round_ := one.world.in_flight) is not None:
                planned[id(round_)] = round_
                for name, count in (
                    ("folds", sum(row.fold > 0 for row in round_.rows)),
                    ("captures", sum(len(row.captures) for row in round_.rows)),
                    (
                        "captures inside a fold",
                        sum(
                            capture.position < row.start
                            for row in round_.rows
                            for capture in row.captures
                        ),
                    ),
                    ("block copies", len(round_.block_copies)),
                    ("slot copies", len(round_.slot_copies)),
                    ("launched rows", sum(row.launched for row in round_.rows)),
                    (
                        "launched captures",
                        sum(row.launched and len(row.captures) for row in round_.rows),
                    ),
                ):
                    seen[name] = seen.get(name, 0) + count
        named = sum(
            row.launched
            for round_ in [*planned.values(), *one.world.drain()]
            for row in round_.rows
        )
        seen["dropped rows"] = seen.get("dropped rows", 0) + one.world.num_ahead - named
        stats = one.world.scheduler.stats()
        for name in ("preemptions", "failures", "hit_tokens", "accepted_tokens"):
            seen[name] = seen.get(name, 0) + getattr(stats, name)
        for reason in one.world.finished.values():
            seen[reason] = seen.get(reason, 0) + 1

    expected = {
        "folds",
        "captures",
        "captures inside a fold",
        "block copies",
        "slot copies",
        "launched rows",
        "launched captures",
        "dropped rows",
        "preemptions",
        "failures",
        "hit_tokens",
        "accepted_tokens",
        "eos",
        "length",
        "cancelled",
        "deadline",
        "error",
    }
    assert {name for name, count in seen.items() if count} >= expected


@pytest.mark.soak
def test_a_million_random_events_keep_every_rule() -> None:
    walk(20_260, NUM_SOAK_EVENTS)
