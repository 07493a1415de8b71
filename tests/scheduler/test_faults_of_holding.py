"""Ids of blocks and slots that leak, are given out twice or are written by two, and what forks share."""

# ruff: noqa: E501 - the replaced source keeps its own line lengths
import pytest
from fault import Fault, is_caught

FAULTS = [
    # references
    Fault(
        "a reference is dropped",
        "pools",
        "            self.holders[id_] += 1\n",
        "            self.holders[id_] += 0\n",
    ),
    Fault(
        "blocks are released twice",
        "ledger",
        "        self.blocks.release(sequence.blocks.cut(0))\n",
        "        tail = sequence.blocks.cut(0)\n"
        "        self.blocks.release(tail)\n        self.blocks.release(tail)\n",
    ),
    Fault(
        "a slot leaks when its sequence ends",
        "ledger",
        "            self.slots.release((sequence.slot,))\n",
        "",
    ),
    Fault(
        "the source of a copy leaks",
        "ledger",
        "        self.blocks.release(self.pinned_blocks)\n",
        "",
    ),
    Fault("scratch is handed out", "pools", "list(range(1, size))", "list(range(size))"),
    Fault(
        "a client that leaves in flight frees its blocks at once",
        "scheduler",
        "        if sequence.in_flight:\n            sequence.cancelled = True",
        "        if False:\n            sequence.cancelled = True",
    ),
    Fault(
        "an ended sequence stays among the running",
        "ledger",
        "            self.running.remove(sequence)\n",
        "            pass\n",
    ),
    # copies
    Fault(
        "a shared block is written",
        "planning",
        "        if ledger.tail_is_shared(sequence):\n            self._copy_block(sequence)\n",
        "",
    ),
    Fault(
        "a shared state is written",
        "planning",
        "        if ledger.slot_is_shared(sequence):\n            self._copy_slot(sequence)\n",
        "",
    ),
    Fault(
        "the copy of a shared state is lost",
        "planning",
        "        self.slot_copies.append(SlotCopy(source, target))\n",
        "",
    ),
    Fault(
        "copies of a round build on each other",
        "planning",
        "        source = self.copied_from.get(source, source)\n",
        "",
        "test_forks::test_samples_that_share_a_copy_compute_again_when_its_round_raises",
    ),
    Fault(
        "a fork does not hold its parent's state",
        "prefix_sharing",
        "        ledger.slots.share((source.slot,))\n",
        "",
    ),
    Fault(
        "a fork shares blocks that its parent has yet to write",
        "prefix_sharing",
        "source.blocks.first(ledger.blocks_for(source.computed))",
        "source.blocks.first(len(source.blocks))",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_caught(fault) -> None:
    assert is_caught(fault), f"nothing notices that {fault.name}"
