"""What rounds take by rows and depth, relative to plain ones."""

import pytest

from scheduler.round_times import RoundTimes


def measured(num_rows: int, ratios: dict[int, float], *, plain: float = 1.0) -> RoundTimes:
    times = RoundTimes()
    add(times, num_rows, ratios, plain)
    return times


def add(times: RoundTimes, num_rows: int, ratios: dict[int, float], plain: float) -> None:
    for _ in range(9):
        times.add(num_rows, 0, plain)
        for depth, ratio in ratios.items():
            times.add(num_rows, depth, plain * ratio)


def test_a_machine_that_changes_its_speed_changes_no_ratio() -> None:
    times = RoundTimes()
    for speed in (1.0, 1.7, 0.6):
        add(times, 4, {1: 1.5}, speed)
    assert times.guess(4, 1).ratio == pytest.approx(1.5, abs=0.06)


def test_a_plain_round_that_is_slow_by_accident_makes_no_draft_look_cheap() -> None:
    times = RoundTimes()
    for number in range(12):
        times.add(8, 0, 3.0 if number % 4 == 3 else 1.0)
        times.add(8, 2, 2.5)
    assert times.guess(8, 2).ratio > 2.4


def test_times_of_another_moment_are_not_compared() -> None:
    times = measured(4, {}, plain=1.0)
    for _ in range(40):
        times.add(4, 2, 5.0)  # the machine is slow by now
    before = times.guess(4, 2).ratio
    for _ in range(200):
        times.add(4, 2, 50.0)
    assert times.guess(4, 2).ratio == before


def test_a_deeper_round_is_not_believed_to_take_less() -> None:
    times = measured(8, {1: 1.4, 2: 2.4, 3: 2.0})
    ratios = [times.guess(8, depth).ratio for depth in range(5)]
    assert ratios == sorted(ratios)
    assert ratios[2] == ratios[3] == pytest.approx(2.3, abs=0.1)


def test_between_and_beyond_what_is_measured_times_go_in_straight_lines() -> None:
    times = measured(8, {1: 1.5, 3: 2.1})
    near = pytest.approx
    assert times.guess(8, 2).ratio == near((times.guess(8, 1).ratio + times.guess(8, 3).ratio) / 2)
    step = times.guess(8, 2).ratio - times.guess(8, 1).ratio
    assert times.guess(8, 4).ratio == near(times.guess(8, 3).ratio + step)
    assert not times.guess(8, 2).trusted


def test_surcharges_of_similar_batches_carry_over_and_others_are_assumed_to_be_high() -> None:
    times = measured(8, {1: 1.4, 2: 1.8})
    taken_over = times.guess(6, 2)
    assert taken_over.ratio == pytest.approx(1 + (times.guess(8, 2).ratio - 1) * (1 - 0.3 / 4))
    assert (taken_over.trusted, taken_over.measured, taken_over.far) == (True, False, False)
    unknown = times.guess(32, 1)
    assert unknown.ratio == 2.0
    assert not unknown.trusted
    add(times, 6, {1: 1.2}, 1.0)  # drafts cost half as much there
    scaled = times.guess(6, 2)
    assert scaled.ratio == pytest.approx(1 + (times.guess(8, 2).ratio - 1) / 2, abs=0.03)


def test_drafts_that_become_cheap_outdate_what_they_cost_before() -> None:
    times = measured(2, {2: 5.0})
    for _ in range(5):
        times.add(2, 0, 1.0)
        times.add(2, 2, 1.2)
    assert times.guess(2, 2).ratio < 1.3


def test_what_drafts_cost_many_rows_says_what_they_cost_few_and_nothing_of_more() -> None:
    times = measured(16, {1: 1.5})
    few = times.guess(2, 1)
    assert few.ratio == pytest.approx(1 + (times.guess(16, 1).ratio - 1) * (1 - 0.3 * 7 / 8))
    assert (few.trusted, few.measured, few.far) == (True, False, True)
    assert few.least < 1.2
    assert times.plain_seconds(2) == pytest.approx(1.0)
    more = times.guess(64, 1)
    assert not more.trusted
    assert times.plain_seconds(64) is None


def test_one_slow_round_counts_once_however_many_plain_ones_follow() -> None:
    times = measured(4, {})
    times.add(4, 2, 9.0)
    for _ in range(12):
        times.add(4, 0, 1.0)
    assert not times.guess(4, 2).measured
    for _ in range(2):
        times.add(4, 2, 1.5)
    assert times.guess(4, 2).ratio == pytest.approx(1.5, abs=0.1)


def test_rounds_with_drafts_wait_for_the_next_plain_ones_to_be_compared() -> None:
    times = RoundTimes()
    for _ in range(5):
        times.add(4, 1, 3.0)
    assert not times.guess(4, 1).measured
    for _ in range(3):
        times.add(4, 0, 2.0)
    assert times.guess(4, 1).ratio == pytest.approx(1.5, abs=0.1)


def test_rounds_with_drafts_do_not_wait_for_plain_ones_for_ever() -> None:
    times = RoundTimes()
    for _ in range(3):
        times.add(4, 1, 3.0)
    for _ in range(40):
        times.add(4, 2, 4.0)
    for _ in range(3):
        times.add(4, 0, 2.0)
    assert not times.guess(4, 1).measured
    assert times.guess(4, 2).ratio == pytest.approx(2.0, abs=0.2)


def test_where_plain_rounds_are_long_ago_a_new_depth_is_compared_with_a_known_one() -> None:
    times = measured(1, {1: 1.2})
    for seconds in [1.2] * 40 + [2.4] * 20:  # the machine has become slow
        times.add(1, 1, seconds)
    for _ in range(3):
        times.add(1, 2, 2.8)
    assert times.guess(1, 2).ratio == pytest.approx(1.4, abs=0.1)


def shifted_between(times: RoundTimes, first: float, then: float, last: float) -> None:
    """Plain rounds, one with a draft, and plain ones again, at three speeds."""
    for _ in range(4):
        times.add(4, 0, first)
    for _ in range(3):
        times.add(4, 1, 1.5 * then)
    for _ in range(4):
        times.add(4, 0, last)


@pytest.mark.parametrize(("first", "then", "last"), [(1.0, 1.6, 1.6), (1.6, 1.0, 1.0), (1, 1, 1.6)])
def test_drafts_between_plain_rounds_of_two_speeds_are_compared_with_none(
    first: float, then: float, last: float
) -> None:
    times = RoundTimes()
    shifted_between(times, first, then, last)
    assert not times.guess(4, 1).measured
    shifted_between(times, last, last, last)
    assert times.guess(4, 1).ratio == pytest.approx(1.5, abs=0.1)


def test_plain_rounds_between_drafts_of_two_speeds_say_nothing_of_either() -> None:
    times = measured(4, {})
    for _ in range(20):
        times.add(4, 1, 1.5)
    times.add(4, 0, 1.6)  # the machine has just become slow
    for _ in range(20):
        times.add(4, 1, 2.4)
    ratios = [one.ratio for one in times.cell(4).compared[1]]
    assert ratios == pytest.approx([1.5] * len(ratios))
    assert len(ratios) >= 6


def test_what_is_known_is_not_judged_by_plain_rounds_of_much_later() -> None:
    times = measured(4, {})
    for _ in range(24):
        times.add(4, 1, 1.5)
    times.add(4, 0, 3.0)  # slow by accident
    assert times.guess(4, 1).ratio == pytest.approx(1.5, abs=0.1)


def test_of_the_plain_rounds_before_a_draft_the_newest_count() -> None:
    times = RoundTimes()
    for plain in [1.6] * 5 + [1.0] * 3:
        times.add(4, 0, plain)
    for _ in range(3):
        times.add(4, 1, 1.5)
    assert times.guess(4, 1).ratio == pytest.approx(1.5, abs=0.1)


def test_what_a_round_took_in_plain_rounds_of_long_ago_is_what_such_rounds_take() -> None:
    times = measured(4, {1: 1.5})
    assert times.in_plain_rounds(4, 1, 2.0) == pytest.approx(2.0)
    for _ in range(20):
        times.add(4, 1, 1.5)
    assert times.in_plain_rounds(4, 1, 2.0) == times.guess(4, 1).ratio
    assert times.in_plain_rounds(2, 1, 2.0) == times.guess(2, 1).ratio
