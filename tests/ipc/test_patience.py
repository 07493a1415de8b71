"""What requests wait for others is little beside a round."""

import pytest

from ipc.patience import Patience


def knowing(seconds: float) -> Patience:
    patience = Patience()
    for _ in range(200):
        patience.observe(seconds)
    return patience


def test_an_engine_whose_rounds_take_no_time_waits_for_nobody() -> None:
    assert [Patience().seconds, knowing(0.0).seconds, knowing(0.0001).seconds] == [0.0] * 3


def test_the_wait_is_a_share_of_a_round_and_bounded() -> None:
    assert knowing(0.004).seconds == pytest.approx(0.0004)
    assert knowing(10.0).seconds == 0.002


def test_one_slow_round_is_soon_forgotten() -> None:
    patience = knowing(0.004)
    patience.observe(1.0)
    for _ in range(50):
        patience.observe(0.004)
    assert patience.round == pytest.approx(0.004, rel=0.5)
