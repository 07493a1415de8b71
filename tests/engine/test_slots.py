"""Slots: rows are written to their own slot alone, copies are whole, no write copies the pool."""

import mlx.core as mx
import pytest

from engine.slots import MOST_RESIDENT, SlotArray, Slots

LAYOUT = {
    "state": SlotArray((2, 3), mx.float32),
    "records": SlotArray((4, 2), mx.float32),
}


def test_each_row_goes_to_its_slot_and_is_read_back_from_it() -> None:
    slots = Slots(LAYOUT, 5)
    rows = mx.arange(12, dtype=mx.float32).reshape(2, 2, 3)
    mx.eval(rows)
    slots.write("state", [3, 1], rows)
    mx.eval(slots.arrays)

    assert mx.array_equal(slots.read("state", [1, 3]), rows[::-1])
    assert not mx.any(slots.read("state", [0, 2, 4]))


def test_rows_written_by_one_operation_are_those_written_one_by_one() -> None:
    rows = mx.arange(24, dtype=mx.float32).reshape(4, 2, 3)
    kept = []
    for scatters in (False, True):
        slots = Slots(LAYOUT, 6)
        slots._scatters = scatters  # as on a GPU
        slots.write("state", [3, 1], rows[:2] + 1)
        slots.write("state", [4, 1, 5, 2], rows)
        slots.write("records", [2, 3], mx.ones((2, 1, 2)))
        slots.write("state", [0, 5, 3], rows[1:] * 2, stays=True)
        slots.write("state", [5], rows[:1] * 3)  # those that lie with it leave as well
        slots.lend({0: 4})
        mx.eval(slots.arrays)
        kept.append([array.tolist() for array in (*slots.arrays, *slots.pools.values())])

    assert kept[0] == kept[1]


def test_a_shorter_record_leaves_what_lies_after_it() -> None:
    slots = Slots(LAYOUT, 3)
    whole, short = mx.full((1, 4, 2), 7.0), mx.zeros((1, 1, 2))
    mx.eval(whole, short)
    slots.write("records", [2], whole)
    mx.eval(slots.arrays)
    slots.write("records", [2], short)
    mx.eval(slots.arrays)

    assert slots.read("records", [2])[0, :, 0].tolist() == [0, 7, 7, 7]


def test_a_copy_takes_every_array_and_is_its_own_from_then_on() -> None:
    slots = Slots(LAYOUT, 4)
    for name, kept in LAYOUT.items():
        rows = mx.random.normal((1, *kept.shape), key=mx.random.key(1))
        mx.eval(rows)
        slots.write(name, [1], rows)
    mx.eval(slots.arrays)
    slots.copy(1, 3)
    mx.eval(slots.arrays)
    original = {name: mx.array(slots.read(name, [1])) for name in LAYOUT}
    zeros = mx.zeros((1, 2, 3))
    mx.eval(list(original.values()), zeros)
    slots.write("state", [1], zeros)
    mx.eval(slots.arrays)

    for name in LAYOUT:
        assert mx.array_equal(slots.read(name, [3]), original[name])
    assert mx.array_equal(slots.read("state", [1]), zeros)


@pytest.mark.parametrize("event", ["write", "copy"])
def test_nothing_copies_the_pool(event: str) -> None:
    slots = Slots({"state": SlotArray((16, 64, 64), mx.float32)}, 256)  # 64 MiB
    mx.eval(slots.arrays)
    pool_bytes = sum(array.nbytes for array in slots.arrays)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    if event == "write":
        rows = slots.read("state", [3, 5]) + 1
        mx.eval(rows)
        slots.write("state", [3, 5], rows)
        mx.eval(slots.arrays)
    else:
        slots.copy(3, 200)
        mx.eval(slots.arrays)

    assert mx.get_peak_memory() - before < pool_bytes / 8


def filled(value: float, rows: int) -> mx.array:
    array = mx.full((rows, 2, 3), value)
    mx.eval(array)
    return array


def test_rows_that_stay_are_read_back_in_any_order_and_reach_the_pool_when_asked() -> None:
    slots = Slots(LAYOUT, 8)
    rows = mx.arange(18, dtype=mx.float32).reshape(3, 2, 3)
    mx.eval(rows)
    slots.write("state", [4, 2, 6], rows, stays=True)

    assert slots.read("state", [4, 2, 6]) is rows
    assert mx.array_equal(slots.read("state", [6, 4]), rows[mx.array([2, 0])])
    mixed = slots.read("state", [2, 5])
    assert mx.array_equal(mixed[0], rows[1])
    assert not mx.any(mixed[1])
    assert mx.array_equal(slots.pools["state"][6], rows[2])


def test_a_row_that_leaves_keeps_its_state_when_the_others_go_on() -> None:
    slots = Slots(LAYOUT, 8)
    slots.write("state", [1, 2], filled(7, 2), stays=True)
    slots.write("state", [2, 3], filled(8, 2), stays=True)

    assert slots.read("state", [1])[0, 0, 0].item() == 7
    assert slots.read("state", [2])[0, 0, 0].item() == 8


def test_a_write_to_the_pool_is_not_hidden_by_a_row_that_stayed() -> None:
    slots = Slots(LAYOUT, 8)
    slots.write("state", [1, 2], filled(7, 2), stays=True)
    slots.write("state", [2], filled(9, 1))

    assert slots.read("state", [2])[0, 0, 0].item() == 9
    assert slots.read("state", [1])[0, 0, 0].item() == 7


def test_a_copy_sees_rows_that_stayed_and_replaces_them() -> None:
    slots = Slots(LAYOUT, 8)
    slots.write("state", [1, 2], filled(7, 2), stays=True)
    slots.copy(1, 5)
    slots.write("state", [5], filled(3, 1), stays=True)
    slots.copy(1, 5)
    mx.eval(slots.arrays)

    assert slots.read("state", [5, 1])[:, 0, 0].tolist() == [7, 7]


def test_rows_that_are_shorter_stay_too_and_leave_what_lies_after_them() -> None:
    slots = Slots(LAYOUT, 4)
    whole, short = mx.full((2, 4, 2), 7.0), mx.zeros((2, 1, 2))
    mx.eval(whole, short)
    slots.write("records", [1, 2], whole)
    mx.eval(slots.arrays)
    slots.write("records", [1, 2], short, stays=True)

    assert slots.read("records", [1, 2]) is short
    assert slots.read("records", [2, 3])[0, :, 0].tolist() == [0, 7, 7, 7]


def test_what_is_lent_is_the_source_s_and_goes_its_own_way_from_then_on() -> None:
    slots = Slots(LAYOUT, 8)
    rows = filled(7, 2)
    slots.write("state", [1, 2], rows, stays=True)
    slots.write("state", [3], filled(9, 1))
    slots.lend({2: 5, 1: 4, 3: 6})
    mx.eval(slots.arrays)

    assert slots.read("state", [1, 2]) is rows, "lending moves nothing"
    assert slots.read("state", [4, 5]) is rows
    assert slots.read("state", [6])[0, 0, 0].item() == 9
    slots.write("state", [4, 5], filled(8, 2), stays=True)
    assert slots.read("state", [1, 2]) is rows
    assert mx.all(slots.pools["state"][mx.array([4, 5])] == 8)
    assert mx.all(slots.pools["state"][mx.array([1, 2])] == 7)


def test_a_slot_that_is_lent_to_forgets_what_it_held() -> None:
    slots = Slots(LAYOUT, 8)
    slots.write("state", [1], filled(7, 1), stays=True)
    slots.write("state", [4, 5], filled(8, 2), stays=True)
    slots.lend({1: 4})
    mx.eval(slots.arrays)

    assert mx.all(slots.read("state", [4]) == 7)
    assert mx.all(slots.read("state", [5]) == 8)


def test_rows_that_stay_behind_are_not_written_until_there_are_many_of_them() -> None:
    slots = Slots(LAYOUT, 40)
    everybody = list(range(1, 31))
    slots.write("state", everybody, filled(7, 30), stays=True)
    for left in range(29, 29 - MOST_RESIDENT + 1, -1):
        slots.write("state", everybody[:left], filled(left, left), stays=True)
    pool = slots._pools["state"]
    mx.eval(pool)
    assert not mx.any(pool), "all that has left stays behind"
    slots.write("state", [1], filled(1, 1), stays=True)

    assert slots._pools["state"][30, 0, 0].item() == 7
    assert slots.read("state", [1, 30, 29, 28])[:, 0, 0].tolist() == [1, 7, 29, 28]


def test_rows_are_joined_from_where_they_lie() -> None:
    slots = Slots(LAYOUT, 8)
    slots.write("state", [5], filled(5, 1))
    slots.write("state", [1, 2, 3], filled(7, 3), stays=True)
    slots.write("state", [4, 3], filled(8, 2), stays=True)
    mx.eval(slots.arrays)

    assert slots.read("state", [3, 1, 2, 5, 4])[:, 0, 0].tolist() == [8, 7, 7, 5, 8]
    assert not mx.any(slots._pools["state"][1:5]), "reading writes nothing"
