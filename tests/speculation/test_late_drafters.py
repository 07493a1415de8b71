"""A drafter takes in many rounds without drafts at once; nobody may ever see that it was late."""

from random import Random

import pytest
from forced import Forced
from stretches import Stretches, checked_drafts, run_checking_drafts

from engine.drafting import mtp_drafter, peer_drafter
from engine.drafting.mtp_drafter import MTPDrafter


def test_drafts_after_a_stretch_without_any_are_those_of_a_run_from_scratch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mtp_drafter, "MOST_BEHIND", 16)
    script = Stretches()
    forced = Forced("qwen3_5", script, drafter="mtp", block_size=4)
    for number in range(3):
        forced.submit([number, 5, 9, 2, 40, 41][: 3 + number], 60)
    num_checked = run_checking_drafts(forced)

    assert num_checked >= 4
    assert any(counts for counts in forced.accepted.values())


@pytest.mark.parametrize("most", [4, 64])
@pytest.mark.parametrize("drafter", ["mtp", "qwen3_5"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_come_and_go_while_others_are_behind_disturb_nobody(
    monkeypatch: pytest.MonkeyPatch, most: int, drafter: str, seed: int
) -> None:
    """Few blocks and slots, so that each is soon another's; prompts begin as others did."""
    monkeypatch.setattr(mtp_drafter, "MOST_BEHIND", most)
    monkeypatch.setattr(peer_drafter, "NEAR", most)
    random, script = Random(seed), Stretches(8)
    limits = {"num_blocks": 24, "num_slots": 9, "max_rows": 4}
    forced = Forced("qwen3_5", script, drafter=drafter, block_size=4, **limits)
    for number in range(12):
        begin = [5, 9, 2, 40, 41, 3, 7, 8, 1][: random.randrange(10)]
        forced.submit([*begin, number, 11][: 2 + random.randrange(10)], random.randrange(4, 40))
    for num_checked in checked_drafts(forced):
        running = forced.scheduler.sequences.values()
        if num_checked % 2 and (some := [one for one in running if one.num_generated > 1]):
            forced.submit([*some[0].tokens, 30], 9)  # goes on from a running one's blocks
        if num_checked > 14:
            script.plain = 1000
            break
    forced.run(check_every=9)


def test_a_fork_of_a_row_that_is_behind_drafts_as_the_row_does() -> None:
    script = Stretches(9)
    forced = Forced("qwen3_5", script, drafter="mtp", block_size=4)
    [first] = forced.submit([3, 1, 4, 1, 5], 50)
    for _ in range(6):
        forced.step()
    child = forced.scheduler.fork(first)
    forced.forked_at[child] = len(forced.scheduler.sequences[first].tokens)
    for _ in range(3):
        forced.step()
    assert run_checking_drafts(forced) >= 4


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("length", [11, 13])
def test_forks_whose_full_blocks_become_one_draft_as_if_each_had_its_own(
    length: int, ahead: bool
) -> None:
    drafts: list[str] = []
    forced = Forced(
        "qwen3_5",
        lambda _: "".join(drafts),
        drafter="mtp",
        block_size=4,
        ahead=ahead,
        max_rows=3,
    )
    [first] = forced.submit([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9][:length], 40)
    while len(forced.scheduler.sequences[first].tokens) < 16:
        forced.step()
    forced.forked_at[forced.scheduler.fork(first)] = 16
    for _ in range(3):
        forced.step()
    drafts.append("RR")
    for _ in range(3):
        forced.step()
        forced.check()


def test_blocks_of_a_request_that_ended_behind_are_true_for_the_next() -> None:
    drafting: list[bool] = []
    forced = Forced(
        "qwen3_5", lambda _: "RRR" if drafting else "", drafter="mtp", block_size=4, max_rows=2
    )
    [first] = forced.submit([3, 1, 4, 1, 5], 12)
    sequence = forced.scheduler.sequences[first]
    while forced.scheduler.has_work:
        forced.step()
    drafting.append(True)
    [second] = forced.submit([*sequence.tokens, 8], 12)
    forced.step()
    again = forced.scheduler.sequences[second]
    assert again.num_cached >= 8
    while again.finish is None:
        forced.check()
        forced.step()


def test_a_round_that_raises_leaves_what_is_behind_as_it_was() -> None:
    forced = Forced("qwen3_5", lambda _: "", drafter="mtp", block_size=4)
    for number in range(2):
        forced.submit([number, 5, 9], 30)
    for _ in range(5):
        forced.step()
    pick = forced.pick
    forced.pick = failing  # type: ignore[method-assign]
    forced.step_until(ZeroDivisionError)
    forced.pick = pick  # type: ignore[method-assign]
    for _ in range(4):
        forced.step()
    forced.check()
    forced.run(check_every=7)


def failing(*_: object) -> list[int]:
    raise ZeroDivisionError


def test_no_row_is_later_than_may_be_though_others_come_and_make_it_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mtp_drafter, "MOST_BEHIND", 6)
    forced = Forced("qwen3_5", lambda _: "", drafter="mtp", block_size=4)
    drafter = forced.executor.drafter
    assert isinstance(drafter, MTPDrafter)
    drafter.catch_up()
    [first] = forced.submit([3, 1, 4, 1, 5], 60)
    latest = 0
    for number in range(40):
        if number % 9 == 4:
            forced.submit([number, 2], 3)
        forced.step()
        stretch = drafter._behind._stretches.get(first)
        late = sum(row.seq_id == first for rows, *_ in drafter._left for row in rows)
        late += 0 if stretch is None else len(stretch)
        assert late <= 6 + 1  # that which waits for the next look
        latest = max(latest, late)
    assert latest >= 6
    forced.run(check_every=5)
