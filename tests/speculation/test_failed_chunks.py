"""A chunk that reads a sequence again and fails: what its earlier run left for later stands."""

from types import SimpleNamespace
from typing import Any

import pytest
from forced import Forced
from scratch import ScratchHead

from engine.drafting.mtp_drafter import MTPDrafter
from scheduler.round import Round
from scheduler.sequence import Sequence


class Broken(Exception):
    """What the test injects."""


def broken(*args: object) -> None:
    raise Broken


def without_drafts(sequence: Sequence) -> str:
    return ""


def fail(forced: Forced, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Round:
    """Plan a round that raises there, and undo it."""
    with monkeypatch.context() as inside:
        inside.setattr(owner, name, broken)
        round_ = forced.scheduler.plan()
        assert round_ is not None
        with pytest.raises(Broken):
            forced._run(round_)
    forced.scheduler.fail()
    forced.executor.undo(round_, forced.scheduler.launched)
    return round_


@pytest.mark.parametrize("is_seen", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_blocks_of_an_earlier_run_get_what_was_left_for_them(
    in_order: bool, is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the prefix cache, where others find them."""
    forced = Forced("qwen3_5", without_drafts, drafter="mtp", ahead=True, in_order=in_order)
    [seq_id] = forced.submit([3, 1, 4, 1, 5], 40, read_cache=False)
    sequence = forced.scheduler.sequences[seq_id]
    while sequence.computed < 22:
        forced.step()
    drafter = forced.executor.drafter
    assert isinstance(drafter, MTPDrafter)
    if is_seen:
        drafter._see_left()
    num_full = sequence.computed // 4
    early: Any = SimpleNamespace(
        tokens=sequence.tokens[:], computed=4 * num_full, blocks=list(sequence.blocks)[:num_full]
    )
    forced.scheduler.preempt(seq_id)

    again = fail(forced, monkeypatch, forced.executor.forward, "hidden")
    assert [(row.seq_id, row.start) for row in again.rows] == [(seq_id, 0)]
    assert len(again.rows[0].tokens) > 4
    ScratchHead(forced.scratch, forced.drafter_scratch.model).check(drafter, early)
    forced.run(check_every=1)


def test_what_a_failed_round_left_in_its_own_blocks_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forced = Forced("qwen3_5", without_drafts, drafter="mtp", ahead=True, in_order=True)
    forced.submit([3, 1, 4, 1, 5], 40)
    for _ in range(6):
        forced.step()
    drafter = forced.executor.drafter
    assert isinstance(drafter, MTPDrafter)
    for is_seen in (False, True):
        if is_seen:
            drafter._see_left()
        failed = fail(forced, monkeypatch, forced.executor, "read").rows[0]
        drafter._see_left()
        left = drafter._behind.take()
        assert left is not None
        assert left[0][0].row.certain_end == failed.start
        forced.step()
        forced.step()
    forced.run(check_every=1)
