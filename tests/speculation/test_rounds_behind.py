"""Rounds that a drafter leaves for later: whom they concern, and what is handed out of them."""

from itertools import product
from random import Random

import mlx.core as mx
import pytest

from engine.batch import Window
from engine.drafting.rounds_behind import RoundsBehind
from scheduler.round import UNKNOWN, Row


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


def test_a_row_begins_with_the_hidden_state_of_the_block_that_was_before_it_then() -> None:
    def old() -> RoundsBehind:
        return behind(Row(1, (5,), 8, (10, 11, 12), 1), Row(2, (6,), 7, (20, 21), 2))

    begins = Row(2, (7,), 8, (20, 21, 11), 2)  # that block is another's now
    assert old().disturbed_by([begins]) == [1]
    assert not old().goes_on([Row(1, (7,), 9, (10, 13, 12), 1), begins])
    assert old().holders((11,), ()) == [1]
    late = old()
    assert late.goes_on([Row(1, (7,), 9, (10, 13, 12), 1), Row(2, (7,), 8, (20, 21, 22), 2)])
    late.add([Row(1, (7,), 9, (10, 13, 12), 1)], mx.array([[7]]), mx.array([[[9.0]]]))
    taken = late.take([1])
    assert taken is not None
    assert [window.row.blocks for window in taken[0]] == [(10, 11, 12)]
    assert late.holders((11, 12), (1,)) == []


def test_rounds_are_written_to_the_blocks_they_had_whatever_those_were_exchanged_for() -> None:
    old = behind(Row(1, (5,), 6, (10, 11), 1))
    for start, table in ((7, (10, 11)), (8, (10, 20, 12)), (9, (30, 20, 12))):
        old.add([Row(1, (7,), start, table, 1)], mx.array([[start]]), mx.zeros((1, 1, 1)))
    assert old.holders((20, 30), ()) == []
    assert old.disturbed_by([Row(2, (5,), 4, (40, 11), 2)]) == [1]
    taken = old.take()
    assert taken is not None
    assert [window.row for window in taken[0]] == [Row(1, (UNKNOWN,) * 4, 6, (10, 11, 12), 1)]
    assert old._of_block == {}


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


def test_rounds_are_added_as_long_as_they_go_on_and_no_row_has_too_many() -> None:
    table = (10, 11)
    old = behind(Row(1, (5,), 0, table, 1))
    starts = [1, 2, 3, 4, 6, 7]
    rounds = [
        ([Row(1, (5,), at, table, 1)], mx.array([[at]]), mx.zeros((1, 1, 1))) for at in starts
    ]
    assert old.add_going_on(rounds, 0, 4) == 3
    assert old.longest == 4
    assert old.add_going_on(rounds, 3, 4) == 3
    assert old.add_going_on(rounds, 3, 9) == 4  # after position 4 comes 6
    assert old.most([Row(1, (5,), 5, table, 1)]) == 5
    taken = old.take()
    assert taken is not None
    assert taken[1].tolist() == [[5, 1, 2, 3, 4]]


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
        tokens = mx.full((len(rows), 1), number)
        hidden = mx.arange(len(rows), dtype=mx.float32).reshape(-1, 1, 1)
        expected = slow.disturbed_by(rows)
        going = quick.goes_on(rows)
        assert quick.add_going_on([(rows, tokens, hidden)], 0, 1000) == going
        num_quick += going
        assert not (going and expected)
        if not going:
            assert quick.disturbed_by(rows) == expected
            quick.add(rows, tokens, hidden)
        slow.add(rows, tokens, hidden)
        assert quick.longest == slow.most(rows)
        fate = random.random()
        if fate < 0.05:
            for one, row in product((quick, slow), rows):
                one.cut(row)
        else:
            if fate < 0.1:
                chosen = random.choice([None, [row.seq_id for row in rows[::2]]])
                assert plain(quick.take(chosen)) == plain(slow.take(chosen))
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
    old.cut(Row(2, (9,), position, (20, 21), 2))
    old.cut(Row(3, (9,), 0, (30,), 3))

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
    left = [([Row(2, (7,), start, table, 2)], start) for start in (5, 6, 7)]
    widths = {5: 1, 6: 1, 7: 2}  # of the one that fails: whoever joins it to others raises
    rounds = [(rows, mx.array([[at]]), mx.zeros((1, 1, widths[at]))) for rows, at in left]
    assert old.add_going_on(rounds, 0, 9) == 3
    old.cut(Row(2, (9,), 7, table, 2))

    taken = old.take()
    assert taken is not None
    assert taken[1].tolist() == [[6, 5, 6]]
