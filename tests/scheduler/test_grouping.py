"""Which rows of a round are said to share leading blocks: true, computed, and worth it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from scheduler.grouping import FEWEST_BLOCKS, Grouping, find_groups, num_common
from scheduler.round import Row
from scheduler.scheduler import SchedulerConfig

SIZE = 4


def row(seq_id: int, blocks: str, start: int | None = None) -> Row:
    """A row that decodes right after the blocks named, or at ``start``; a letter is a block."""
    table = (*map(ord, blocks), 1000 + seq_id)
    return Row(seq_id, (7,), len(blocks) * SIZE if start is None else start, table)


def groups_of(*rows: Row) -> set[tuple[frozenset[int], int]]:
    return {(frozenset(one.seq_ids), one.num_blocks) for one in find_groups(rows, SIZE)}


def test_rows_that_share_nothing_or_one_block_are_in_no_group() -> None:
    assert groups_of(row(1, "abc"), row(2, "def"), row(3, "a"), row(4, "axy")) == set()


def test_rows_with_one_prefix_are_one_group_in_whatever_order_they_stand() -> None:
    rows = [row(1, "abcd"), row(2, "xyz"), row(3, "abcefgh"), row(4, "abc"), row(5, "xw")]

    for order in (rows, rows[::-1]):
        assert groups_of(*order) == {(frozenset({1, 3, 4}), 3)}


def test_a_block_that_a_row_has_not_computed_is_not_shared() -> None:
    """The second row is inside block c: it may be about to write it."""
    assert groups_of(row(1, "abcd"), row(2, "abcd", start=3 * SIZE - 1)) == {(frozenset({1, 2}), 2)}


def test_a_long_prefix_of_few_goes_before_a_short_one_of_all() -> None:
    rows = [row(1, "abcdefgh"), row(2, "abcdefgh"), row(3, "abx"), row(4, "aby"), row(5, "abz")]

    assert groups_of(*rows) == {(frozenset({1, 2}), 8), (frozenset({3, 4, 5}), 2)}


def test_a_short_prefix_of_all_goes_before_a_slightly_longer_one_of_few() -> None:
    rows = [row(1, "abcd"), row(2, "abcd"), row(3, "abcx"), row(4, "abcy"), row(5, "abcz")]

    assert groups_of(*rows) == {(frozenset({1, 2, 3, 4, 5}), 3)}


def test_two_pairs_that_share_little_with_each_other_stay_two_groups() -> None:
    rows = [row(1, "abcdef"), row(2, "abcdef"), row(3, "abuvwx"), row(4, "abuvwx")]

    assert groups_of(*rows) == {(frozenset({1, 2}), 6), (frozenset({3, 4}), 6)}


tables = st.lists(st.text("abc", max_size=9), max_size=14)


@given(tables, st.data())
def test_what_a_group_shares_is_a_common_prefix_computed_for_all(
    texts: list[str], data: st.DataObject
) -> None:
    """Blocks here depend on all before them, as in the index, or on nothing but their place."""
    chained = data.draw(st.booleans())
    names: dict[str, int] = {}
    rows = []
    for seq_id, text in enumerate(texts):
        chain = [text[: at + 1] if chained else f"{at}{text[at]}" for at in range(len(text))]
        blocks = tuple(names.setdefault(one, len(names) + 1) for one in chain)
        start = data.draw(st.integers(0, len(text) * SIZE))
        rows.append(Row(seq_id, (7,), start, (*blocks, 1000 + seq_id)))

    groups = find_groups(rows, SIZE)

    members = [seq_id for group in groups for seq_id in group.seq_ids]
    assert len(members) == len(set(members))
    for group in groups:
        assert len(group.seq_ids) >= 2
        assert group.num_blocks >= FEWEST_BLOCKS
        assert len({rows[seq_id].blocks[: group.num_blocks] for seq_id in group.seq_ids}) == 1
        assert all(group.num_blocks * SIZE <= rows[seq_id].start for seq_id in group.seq_ids)


@given(tables)
def test_rows_of_a_pair_that_share_enough_are_never_both_left_out(texts: list[str]) -> None:
    rows = [row(seq_id, text) for seq_id, text in enumerate(texts)]
    grouped = {seq_id for group in find_groups(rows, SIZE) for seq_id in group.seq_ids}

    for one, two in combinations(rows, 2):
        if num_common(one.blocks, two.blocks) >= FEWEST_BLOCKS:
            assert {one.seq_id, two.seq_id} & grouped


@given(st.lists(st.integers(1, 3), max_size=9), st.lists(st.integers(1, 3), max_size=9))
def test_common_blocks_are_counted_from_the_front(one: list[int], two: list[int]) -> None:
    alike = [here == there for here, there in zip(one, two, strict=False)]
    expected = alike.index(False) if False in alike else len(alike)

    assert num_common(tuple(one), tuple(two)) == expected


def make_world(**fields) -> World:
    settings = {
        "num_blocks": 120,
        "block_size": SIZE,
        "max_rows": 8,
        "prompt_tokens_per_round": 64,
    }
    return World(SchedulerConfig(**{**settings, **fields}))


@pytest.mark.parametrize("hybrid", [False, True])
def test_rounds_of_users_with_one_prefix_name_their_group(hybrid: bool) -> None:
    world = make_world(uses_slots=hybrid, num_slots=30 if hybrid else 0)
    world.policy.num_drafts = 2
    system = list(range(14))
    world.submit([*system, 90])
    world.drain()
    users = [world.submit([*system, own, own], max_tokens=6)[0] for own in (50, 60, 70)]
    stranger = world.submit([1, 2, 3, 4], max_tokens=6)[0]
    world.round()  # on a hybrid the first user keeps a state where the prefix ends
    world.round()

    round_ = world.plan()

    assert stranger in [one.seq_id for one in round_.rows]
    assert [(set(group.seq_ids), group.num_blocks) for group in round_.groups] == [(set(users), 3)]
    world.land()
    world.drain()


def test_samples_of_one_prompt_are_a_group_of_its_full_blocks() -> None:
    world = make_world()
    samples = world.submit(range(11), max_tokens=6, n=3)
    world.round()
    world.round()

    assert [(set(one.seq_ids), one.num_blocks) for one in world.plan().groups] == [
        (set(samples), 2)
    ]
    world.land()


def test_a_scheduler_that_was_told_so_looks_for_no_groups() -> None:
    world = make_world(finds_groups=False)
    world.submit(range(11), max_tokens=6, n=3)

    assert {round_.groups for round_ in world.drain()} == {()}


@st.composite
def rounds(draw) -> list[list[Row]]:
    """Rounds of the same rows, most of which only grow; blocks are few, so that they meet."""
    count = draw(st.integers(2, 5))
    small = st.integers(0, 3)
    tables = [draw(st.lists(small, min_size=8, max_size=8)) for _ in range(count)]
    starts = [draw(st.integers(0, 3 * SIZE)) for _ in range(count)]
    out = []
    for _ in range(draw(st.integers(2, 6))):
        out.append(
            [
                Row(seq_id, (7,), start, tuple(table[: start // SIZE + 1]))
                for seq_id, (table, start) in enumerate(zip(tables, starts, strict=True))
            ]
        )
        for index in range(count):
            starts[index] = min(6 * SIZE, starts[index] + draw(small))
        match draw(st.integers(0, 9)):
            case 0:  # a block is another now
                table = draw(st.sampled_from(tables))
                table[draw(st.integers(0, 5))] = draw(small)
            case 1:
                starts[0] = draw(st.integers(0, 3 * SIZE))
            case 2:
                tables.reverse()
            case 3 if count > 2:
                count -= 1
                del tables[-1], starts[-1]
    return out


@given(rounds())
def test_groups_kept_from_round_to_round_are_those_that_are_found_anew(rounds) -> None:
    grouping = Grouping()
    for rows in rounds:
        kept = {(frozenset(one.seq_ids), one.num_blocks) for one in grouping.find(rows, SIZE)}
        assert kept == groups_of(*rows)


def test_groups_are_not_looked_for_while_rows_grow_by_blocks_of_their_own(monkeypatch) -> None:
    grouping = Grouping()
    grown = [[row(1, "abcd"), row(2, "abcx")], [row(1, "abcde"), row(2, "abcxy")]]
    found = grouping.find(grown[0], SIZE)
    assert found[0].num_blocks == 3

    monkeypatch.setattr("scheduler.grouping.find_groups", None)
    assert grouping.find(grown[1], SIZE) is found
    monkeypatch.undo()

    deeper = [row(1, "abcde"), row(2, "abcde")]
    assert grouping.find(deeper, SIZE)[0].num_blocks == 5


def test_a_row_that_goes_back_counts_fewer_blocks() -> None:
    grouping = Grouping()
    assert grouping.find([row(1, "abcd"), row(2, "abcd")], SIZE)[0].num_blocks == 4
    back = [row(1, "abcd", start=3 * SIZE), row(2, "abcd")]
    assert grouping.find(back, SIZE)[0].num_blocks == 3
