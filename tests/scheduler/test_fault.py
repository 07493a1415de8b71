"""What shows that faults are caught: it fails with a fault, and because of what the fault does."""

from collections.abc import Iterator

import pytest
import test_faults_of_depth
import test_faults_of_holding
import test_faults_of_order
import test_faults_of_running_ahead
import test_faults_of_states
import test_faults_of_the_index
from fault import Endless, Fault, cpu_seconds, is_caught, look
from mutated import mutated

FAULTS = [
    *test_faults_of_holding.FAULTS,
    *test_faults_of_the_index.FAULTS,
    *test_faults_of_states.FAULTS,
    *test_faults_of_order.FAULTS,
    *test_faults_of_running_ahead.FAULTS,
    *test_faults_of_depth.FAULTS,
]
A_TEST = "test_pools::test_scratch_is_never_handed_out"
RELEASE = "        self.blocks.release(sequence.blocks.cut(0))\n"


def one_of_each() -> Iterator[Fault]:
    """A fault for each of the tests, with its arguments, that catch them."""
    yield from {(fault.caught_by, fault.arguments): fault for fault in FAULTS}.values()


def test_what_catches_them_finds_nothing_where_there_is_no_fault() -> None:
    with mutated("ledger", RELEASE, RELEASE):
        for fault in one_of_each():
            look(fault)


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("new", "error"),
    [
        ("        self.blocks.release()\n", TypeError),
        ("        self.blocks.release(sequence.blocks.cut(0), hard=True)\n", TypeError),
        ("        self.blocks.release(sequence.blocks.trim(0))\n", AttributeError),
        ("        self.blocks.release(everything)\n", NameError),
        ("        self.blocks.release(\n", SyntaxError),
    ],
)
def test_a_fault_that_cannot_run_is_no_fault_that_is_caught(
    new: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        is_caught(Fault("blocks are not released", "ledger", RELEASE, new))


def test_a_test_that_is_called_with_what_it_does_not_take_catches_nothing() -> None:
    with pytest.raises(TypeError):
        is_caught(Fault("nothing", "ledger", RELEASE, RELEASE, A_TEST, (1, 2, 3)))


def test_a_fault_that_nothing_notices_is_told() -> None:
    assert not is_caught(Fault("nothing", "ledger", RELEASE, RELEASE, A_TEST))


def test_what_never_ends_is_caught() -> None:
    def turn() -> None:
        while True:
            pass

    with pytest.raises(Endless), cpu_seconds(0.01):
        turn()


def test_a_mutation_that_no_longer_applies_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"), mutated("pools", "no such code", ""):
        pass
