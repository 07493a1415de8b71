"""A peer runs nothing while nobody drafts, and has caught up by the time that somebody does."""

import pytest
from forced import Forced
from stretches import Stretches, run_checking_drafts

from engine.drafting.filled_blocks import FilledBlocks
from engine.drafting.peer_drafter import PLAIN_FOR_NOW, PeerDrafter


@pytest.mark.parametrize(
    ("family", "peer"),
    [
        ("qwen3", "qwen3"),
        ("qwen3_5", "qwen3"),
        ("qwen3", "qwen3_5"),
        ("qwen3_5", "qwen3_5"),
        ("qwen3", "lfm2"),
    ],
)
def test_a_peer_that_is_far_behind_drafts_as_if_it_had_never_been(family: str, peer: str) -> None:
    script = Stretches()
    forced = Forced(family, script, drafter=peer, block_size=4)
    for number in range(4):  # two of them share blocks that the peer has not filled
        forced.submit([*range(9), number // 2, 40, 41][: 10 + number % 2], 60)
    num_checked = run_checking_drafts(forced)
    assert num_checked >= 4


@pytest.mark.parametrize("peer", ["qwen3", "qwen3_5"])
def test_a_peer_runs_nothing_while_nobody_drafts(peer: str) -> None:
    drafting: list[bool] = []
    forced = Forced("qwen3_5", lambda _: "RR" if drafting else "", drafter=peer, max_rows=2)
    drafter = forced.executor.drafter
    assert isinstance(drafter, PeerDrafter)

    def calls() -> int:
        return drafter.forward.num_calls

    forced.submit([3, 1, 4], 40)
    while not forced.scheduler.sequences[1].num_generated:
        forced.step()
    for _ in range(PLAIN_FOR_NOW):
        forced.step()
    before = calls()
    forced.submit([3, 1, 4, 1, 5, 9, 2, 6], 40)
    for _ in range(10):
        forced.step()
    assert calls() == before
    drafting.append(True)
    forced.step()
    forced.check()
    assert calls() == before + 1 + 2  # catching up, both rows at once, then two steps
    forced.step()
    assert calls() == before + 1 + 4  # the last draft's K/V come with the next pending token
    forced.run()


@pytest.mark.parametrize("peer", ["qwen3", "qwen3_5"])
def test_a_prompt_is_run_at_once_where_others_draft(peer: str) -> None:
    forced = Forced("qwen3_5", lambda _: "RW", drafter=peer, max_rows=2)
    drafter = forced.executor.drafter
    assert isinstance(drafter, PeerDrafter)
    forced.submit([3, 1, 4], 40)
    for _ in range(4):
        forced.step()
    [second] = forced.submit([2, 7, 1, 8, 2, 8], 40)
    sequence = forced.scheduler.sequences[second]
    while not sequence.num_generated:
        forced.step()
    assert drafter.ran(list(sequence.blocks), sequence.slot, sequence.computed) == sequence.computed
    forced.run()


@pytest.mark.parametrize("peer", ["qwen3", "qwen3_5", "lfm2"])
def test_who_goes_on_from_what_a_drafting_row_said_finds_it_run_by_the_peer_too(peer: str) -> None:
    forced = Forced("qwen3", lambda _: "RRW", drafter=peer, block_size=4, max_rows=2)
    [first] = forced.submit([3, 1, 4], 20)
    sequence = forced.scheduler.sequences[first]
    while forced.scheduler.has_work:
        forced.step()
    [second] = forced.submit([*sequence.tokens, 5], 12)
    forced.step()
    again, drafter = forced.scheduler.sequences[second], forced.executor.drafter
    assert isinstance(drafter, PeerDrafter)
    assert again.num_cached >= 16
    assert drafter.ran(list(again.blocks), again.slot, again.computed) == again.computed
    forced.check()
    forced.run()


def test_a_checkpoint_that_the_peer_was_not_there_for_is_run_from_the_start() -> None:
    drafting: list[bool] = []
    forced = Forced(
        "qwen3_5", lambda _: "RRW" if drafting else "", drafter="qwen3_5", block_size=4, max_rows=2
    )
    [first] = forced.submit([3, 1, 4], 20)
    sequence = forced.scheduler.sequences[first]
    while forced.scheduler.has_work:
        forced.step()
    drafting.append(True)
    [second] = forced.submit([*sequence.tokens, 5], 12)
    assert run_checking_drafts(forced) >= 3
    assert forced.scheduler.sequences[second].num_cached >= 16


def test_blocks_know_how_far_they_are_filled_whoever_has_them() -> None:
    filled = FilledBlocks(4)
    filled.begin([5, 6, 7], 0)
    assert filled.end([5, 6, 7], 9) == 0
    filled.fill([5, 6, 7], 0, 9)
    assert (filled.end([5, 6, 7], 9), filled.end([5, 6, 7], 6)) == (9, 6)
    filled.copy(7, 9)
    filled.begin([5, 6, 9, 8], 10)  # another's tail: it writes from position 10 on
    assert filled.end([5, 6, 9, 8], 12) == 9
    filled.begin([5, 6, 7], 8)  # that position was a draft's, and is another token's now
    assert filled.end([5, 6, 7], 9) == 8
    filled.begin([6, 7], 0)  # somebody new has these
    assert filled.end([5, 6, 7], 9) == 4
    filled.fill([6], 0, 2)
    assert filled.end([6], 3) == 2
