"""What the scheduler tells about itself."""

from dataclasses import dataclass

from .ledger import Ledger


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Plain numbers: the state now, then totals since the start."""

    num_running: int
    num_waiting: int
    num_paused: int
    free_blocks: int
    cached_blocks: int
    total_blocks: int
    free_slots: int
    cached_slots: int
    total_slots: int
    checkpoints: int
    max_checkpoints: int
    rounds: int
    preemptions: int
    failures: int
    prompt_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    lookup_tokens: int  # prompt tokens that were looked up in the prefix cache
    hit_tokens: int  # those that it spared


def stats_of(ledger: Ledger) -> SchedulerStats:
    """Read the numbers."""
    counters = ledger.counters
    return SchedulerStats(
        num_running=len(ledger.running),
        num_waiting=len(ledger.line),
        num_paused=len(ledger.paused),
        free_blocks=ledger.blocks.num_free,
        cached_blocks=ledger.blocks.num_cached,
        total_blocks=ledger.blocks.num_total,
        free_slots=ledger.slots.num_free,
        cached_slots=ledger.slots.num_cached,
        total_slots=ledger.slots.num_total,
        checkpoints=0 if ledger.index is None else len(ledger.index.by_slot),
        max_checkpoints=ledger.checkpoint_limit,
        rounds=counters.rounds,
        preemptions=counters.preemptions,
        failures=counters.failures,
        prompt_tokens=counters.prompt_tokens,
        generated_tokens=counters.generated_tokens,
        drafted_tokens=counters.drafted_tokens,
        accepted_tokens=counters.accepted_tokens,
        lookup_tokens=counters.lookup_tokens,
        hit_tokens=counters.hit_tokens,
    )
