"""A drafter takes in many rounds without drafts at once; nobody may ever see that it was late."""

from collections.abc import Iterator
from itertools import product
from random import Random

import mlx.core as mx
import pytest
from forced import Forced

from engine.batch import Window
from engine.drafting import mtp_drafter, peer_drafter
from engine.drafting.filled_blocks import FilledBlocks
from engine.drafting.peer_drafter import PLAIN_FOR_NOW, PeerDrafter
from engine.drafting.rounds_behind import RoundsBehind
from scheduler.round import UNKNOWN, Row
from scheduler.sequence import Sequence

PLAIN = 21  # rounds without drafts, more than the head leaves for later


class Stretches:
    """Rounds without drafts, then two with; counts those of all sequences alike."""

    def __init__(self, plain: int = PLAIN) -> None:
        self.plain = plain
        self.rounds = 0
        self.asked: set[int] = set()

    def __call__(self, sequence: Sequence) -> str:
        if sequence.seq_id in self.asked:
            self.rounds += 1
            self.asked.clear()
        self.asked.add(sequence.seq_id)
        return "RRWR" if self.rounds % (self.plain + 2) >= self.plain else ""


def checked_drafts(forced: Forced) -> Iterator[int]:
    """Run to the end; check every round that has drafts, and yield how many there were so far."""
    num_checked = 0
    while forced.scheduler.has_work:
        forced.step()
        if any(forced.patterns.values()):
            forced.check()
            num_checked += 1
            yield num_checked


def run_checking_drafts(forced: Forced) -> int:
    """Run to the end; check every round that has drafts, and return how many there were."""
    return max(checked_drafts(forced), default=0)


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


def behind(*rows: Row) -> RoundsBehind:
    """One round of ``rows`` that is left for later; the hidden state of a row is its number."""
    found = RoundsBehind(4)
    tokens = mx.array([row.tokens for row in rows])
    found.add(rows, tokens, mx.arange(len(rows), dtype=mx.float32).reshape(-1, 1, 1))
    return found


def test_whoever_runs_in_blocks_or_a_slot_of_a_row_that_is_behind_disturbs_it() -> None:
    old = behind(Row(1, (5,), 6, (10, 11), 1), Row(2, (6,), 4, (20, 21), 2))

    def disturbed(*rows: Row) -> list[int]:
        return old.disturbed_by(rows)

    assert disturbed(Row(1, (5,), 7, (10, 11), 1), Row(2, (6,), 5, (20, 21), 2)) == []  # go on
    assert disturbed(Row(3, (5,), 0, (30,), 3)) == []
    assert disturbed(Row(3, (5, 6), 0, (11,), 3)) == [1]  # that block is its own now
    assert disturbed(Row(3, (5,), 0, (30,), 2)) == [2]  # and that slot
    assert disturbed(Row(3, (5,), 8, (10, 11, 30), 3)) == [1]  # begins with its last hidden state
    assert disturbed(Row(3, (5,), 4, (10, 30), 3)) == []  # that block was full before
    assert disturbed(Row(1, (5,), 0, (40,), 4)) == [1]  # preempted meanwhile
    assert disturbed(Row(1, (5,), 7, (10, 11), 3)) == [1]
    assert old.holders((10, 21), (1,)) == [1, 2]


def test_what_is_behind_is_handed_out_once_by_sequence() -> None:
    old = behind(Row(1, (5,), 7, (10, 11), 1), Row(2, (6,), 4, (20, 21), 2))
    old.add([Row(2, (UNKNOWN,), 5, (20, 21), 2)], mx.array([[7]]), mx.array([[[9.0]]]))
    assert old.most([Row(1, (5,), 8, (10, 11, 12), 1)]) == 1
    taken = old.take([2, 3])
    assert taken is not None
    windows, tokens, hidden = taken
    assert [window.row for window in windows] == [Row(2, (UNKNOWN,) * 2, 4, (20, 21), 2)]
    assert tokens.tolist() == [[6, 7]]
    assert hidden.tolist() == [[[1.0], [9.0]]]
    assert old.holders((21,), (2,)) == []
    assert len(old) == 1
    assert old.take() is not None
    assert (old.take(), len(old)) == (None, 0)


def test_rows_that_go_on_are_known_as_such_and_whatever_else_they_are_is_not() -> None:
    rows = [Row(1, (5,), 6, (10, 11), 1), Row(2, (6,), 4, (20, 21), 2)]
    table = rows[0].blocks

    def goes_on(*further: Row) -> bool:
        return behind(*rows).goes_on(further)

    second = Row(2, (6,), 5, rows[1].blocks, 2)
    assert goes_on(Row(1, (5,), 7, table, 1), second)
    assert goes_on(Row(1, (5,), 7, (10, 12), 1), second)  # its block was copied
    assert not goes_on(Row(1, (5,), 7, (10, 21), 1), second)  # that block is another's
    assert not goes_on(second, Row(1, (5,), 7, table, 1))
    assert not goes_on(second)
    assert not goes_on(Row(1, (5,), 8, table, 1), second)
    assert not goes_on(Row(1, (5,), 7, table, 3), second)
    assert not goes_on(Row(3, (5,), 7, table, 1), second)
    old = behind(*rows)
    old.take([2])
    assert not old.goes_on([Row(1, (5,), 7, table, 1), second])


@pytest.mark.parametrize("seed", range(5))
def test_rounds_that_go_on_are_kept_as_if_each_row_had_been_looked_at(seed: int) -> None:
    """Rows come, go, begin blocks, fail and are taken in; one of two is never asked."""
    random = Random(seed)
    quick, slow = RoundsBehind(4), RoundsBehind(4)
    rows: list[Row] = []
    next_id, num_quick = 1, 0
    for number in range(400):
        if random.random() < 0.1 and rows:
            rows = [row for row in rows if random.random() < 0.7]
        if random.random() < 0.1 or not rows:
            rows.append(Row(next_id, (1,), random.randrange(4), (next_id,), next_id))
            next_id += 1
        going = quick.goes_on(rows)
        num_quick += going
        expected = slow.disturbed_by(rows)
        assert not (going and expected)
        if not going:
            assert quick.disturbed_by(rows) == expected
        tokens = mx.full((len(rows), 1), number)
        hidden = mx.arange(len(rows), dtype=mx.float32).reshape(-1, 1, 1)
        for one in (quick, slow):
            one.add(rows, tokens, hidden)
        assert quick.longest == slow.most(rows)
        fate = random.random()
        if fate < 0.05:
            for one, row in product((quick, slow), rows):
                one.cut(row.seq_id, row.start)
        elif fate < 0.1:
            chosen = random.choice([None, [row.seq_id for row in rows[::2]]])
            assert plain(quick.take(chosen)) == plain(slow.take(chosen))
        else:
            rows = [further(row) for row in rows]
        assert len(quick) == len(slow)
        slots = range(1, next_id)
        assert quick.holders((), slots) == slow.holders((), slots)
        for block in (block for row in rows for block in row.blocks):
            assert quick.holders((block,), ()) == slow.holders((block,), ())
    assert num_quick > 150


def plain(taken: tuple[list[Window], mx.array, mx.array] | None) -> object:
    """What was handed out, to be compared."""
    return taken and (taken[0], taken[1].tolist(), taken[2].tolist())


def further(row: Row) -> Row:
    """The next token of ``row``, in a block of its own where one is full."""
    start, blocks = row.start + 1, row.blocks
    if start % 4 == 0:
        blocks = (*blocks, 1000 * row.seq_id + start)
    return Row(row.seq_id, (1,), start, blocks, row.slot)


@pytest.mark.parametrize(("position", "left"), [(4, []), (5, [6]), (6, [6, 7]), (9, [6, 7])])
def test_what_a_failed_round_added_is_forgotten(position: int, left: list[int]) -> None:
    old = behind(Row(2, (6,), 4, (20, 21), 2))
    old.add([Row(2, (7,), 5, (20, 21), 2)], mx.array([[7]]), mx.array([[[9.0]]]))
    old.cut(2, position)
    old.cut(3, 0)

    again = Row(2, (8,), 4 + len(left), (20, 21), 2)
    assert old.disturbed_by([again]) == []
    assert old.disturbed_by([Row(2, (8,), 7, (20, 21), 2)]) == ([2] if left else [])
    taken = old.take()
    assert (taken[1].tolist() if taken else []) == ([left] if left else [])
    assert old.holders((20, 21), (2,)) == []


def test_what_is_left_of_a_failed_round_is_never_touched_again() -> None:
    """Rounds that went on lie in one list; of it a failed one must not be read with the others."""
    table = (20, 21)
    old = behind(Row(2, (6,), 4, table, 2))
    for start in (5, 6, 7):
        rows = [Row(2, (7,), start, table, 2)]
        assert old.goes_on(rows)
        width = 2 if start == 7 else 1  # of the one that fails: whoever joins it to others raises
        old.add(rows, mx.array([[start]]), mx.zeros((1, 1, width)))
    old.cut(2, 7)

    taken = old.take()
    assert taken is not None
    assert taken[1].tolist() == [[6, 5, 6]]


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
