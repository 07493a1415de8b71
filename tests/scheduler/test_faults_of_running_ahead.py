"""Rows that are launched before the round in flight is read."""

import pytest
from fault import Fault, is_caught

FAULTS = [
    Fault(
        "a dropped row keeps the slots it captures into",
        "ledger",
        "            self.slots.release(capture.slot for capture in ahead.captures)\n",
        "            pass\n",
    ),
    Fault(
        "a row outlives what it writes to",
        "ledger",
        "ahead = self.ahead.pop(sequence.seq_id, None)",
        "ahead = self.ahead.get(sequence.seq_id)",
    ),
    Fault(
        "a launched row runs again",
        "planning",
        "launched = self.ledger.ahead.pop(sequence.seq_id, None)",
        "launched = None",
    ),
    Fault(
        "a launched row is given out twice",
        "planning",
        "launched = self.ledger.ahead.pop(sequence.seq_id, None)",
        "launched = self.ledger.ahead.get(sequence.seq_id)",
    ),
    Fault(
        "a fork shares a state that is a token further",
        "scheduler",
        "        if seq_id not in self.ledger.ahead:\n",
        "        if True:\n",
    ),
    Fault(
        "a row is launched behind the last token",
        "ahead",
        "        and sequence.num_generated + 1 < sequence.request.max_tokens\n",
        "",
        "test_ahead::test_nothing_is_launched_behind_the_last_token_that_may_be_said",
        (3,),
    ),
    Fault(
        "a row is launched behind drafts",
        "ahead",
        "    if drafts and any(row.num_drafts for row in round_.rows):\n        return None\n",
        "",
        "test_ahead::test_rows_with_drafts_are_not_followed_and_a_launched_row_drafts_nothing",
    ),
    Fault(
        "a row is launched where the next round may draft",
        "ahead",
        "not going or not policy.rests(",
        "not going or False and not policy.rests(",
        "test_ahead::test_nothing_is_launched_where_the_next_round_may_draft",
    ),
    Fault(
        "a row is launched behind a part of a prompt",
        "ahead",
        "        row.samples\n        and",
        "        True\n        and",
    ),
    Fault(
        "two rows of a sequence are launched",
        "ahead",
        "        and sequence.seq_id not in ledger.ahead\n",
        "",
        "test_ahead::test_a_round_is_followed_once",
    ),
    Fault(
        "a cancelled sequence goes on",
        "ahead",
        "        and not (sequence.cancelled or sequence.pausing)\n",
        "",
        "test_ahead::test_who_is_about_to_stop_is_not_launched",
        ("cancel",),
    ),
    Fault(
        "a suspect's rows are launched",
        "ahead",
        "        and sequence.seq_id not in ledger.suspects\n",
        "",
        "test_ahead::test_who_is_suspected_runs_alone_and_step_by_step",
    ),
    Fault(
        "a batch is divided for a row that cannot be launched",
        "ahead",
        "    if any(one.request.needs_tokens for one in ledger.running):\n",
        "    if False:\n",
        "test_ahead::test_nothing_is_launched_beside_a_row_that_cannot_be",
    ),
    Fault(
        "a launched row takes a block that there is not",
        "ahead",
        "    if lacks_block and ledger.num_available_blocks:\n",
        "    if lacks_block:\n",
    ),
    Fault(
        "a launched row writes past its blocks",
        "ahead",
        "    return not lacks_block\n",
        "    return True\n",
    ),
    Fault(
        "captures launched ahead are not counted",
        "planning",
        "num_captures((*self.rows, *ledger.ahead.values()))",
        "0",
        "test_launched_rows::test_captures_of_a_launched_row_that_waits_count_as_well",
    ),
    Fault(
        "captures in flight are not counted",
        "ahead",
        "num_captures((*round_.rows, *ledger.ahead.values()))",
        "0",
        "test_launched_rows::test_captures_launched_ahead_count_against_the_bound_on_checkpoints",
    ),
    Fault(
        "a launched row captures again",
        "planning",
        "            if row.launched:\n",
        "            if False:\n",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_caught(fault) -> None:
    assert is_caught(fault), f"nothing notices that {fault.name}"
