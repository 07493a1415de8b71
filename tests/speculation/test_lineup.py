"""A round's rows beside the last one's: found column by column as by a look at each row."""

from hypothesis import given
from hypothesis import strategies as st

from engine.drafting.lineup import Lineup
from scheduler.round import UNKNOWN, Row

BLOCK = 4


def one_by_one(rows: list[Row], before: list[Row]) -> list[int] | None:
    """What ``goes_on_from`` says, row by row."""
    if len(rows) != len(before):
        return None
    numbers = []
    for number, (row, last) in enumerate(zip(rows, before, strict=True)):
        if (row.seq_id, row.slot, row.start) != (last.seq_id, last.slot, last.start + 1):
            return None
        if row.blocks is not last.blocks or row.start % BLOCK == 0:
            numbers.append(number)
    return numbers


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Two rounds of up to six rows; the second mostly goes on from the first."""
    before = [
        Row(seq_id, (UNKNOWN,), draw(st.integers(0, 9)), tuple(range(4)), slot)
        for seq_id, slot in enumerate(draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    ]
    rows = []
    for row in before:
        blocks = row.blocks if draw(st.booleans()) else (*row.blocks[:3], 9)
        strange = draw(st.sampled_from([None] * 20 + ["sequence", "slot", "start"]))
        rows.append(
            Row(
                row.seq_id + 7 * (strange == "sequence"),
                (UNKNOWN,),
                row.start + 1 + (strange == "start"),
                blocks,
                (row.slot or 0) + (strange == "slot"),
            )
        )
    return rows[: len(rows) - draw(st.sampled_from([0, 0, 0, 0, 1]))], before


@given(rounds())
def test_columns_say_what_rows_say(two: tuple[list[Row], list[Row]]) -> None:
    rows, before = two
    assert Lineup(rows).goes_on_from(Lineup(before), BLOCK) == (
        one_by_one(rows, before) if rows else None
    )
