"""What an engine's thread waits for others is little beside a round."""

import pytest

from ipc.patience import Patience


def knowing(seconds: float) -> Patience:
    patience = Patience()
    for _ in range(200):
        patience.observe(seconds)
    return patience


def test_an_engine_whose_rounds_take_no_time_never_waits() -> None:
    for patience in (Patience(), knowing(0.0), knowing(0.0001)):
        assert (patience.company, patience.parting) == (0.0, 0.0)


def test_waits_are_shares_of_a_round_and_bounded() -> None:
    quick, slow = knowing(0.004), knowing(10.0)
    assert (quick.company, quick.parting) == pytest.approx((0.0004, 0.0002))
    assert (slow.company, slow.parting) == (0.002, 0.001)


def test_one_slow_round_is_soon_forgotten() -> None:
    patience = knowing(0.004)
    patience.observe(1.0)
    for _ in range(50):
        patience.observe(0.004)
    assert patience.round == pytest.approx(0.004, rel=0.2)
