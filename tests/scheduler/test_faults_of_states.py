"""Recurrent states: checkpoints that stand elsewhere, folds, and what a failed round leaves."""

# ruff: noqa: E501 - the replaced source keeps its own line lengths
import pytest
from fault import Fault, is_caught

FAULTS = [
    Fault(
        "a hybrid hits where there is no state",
        "prefix_sharing",
        "while chain and chain[-1].checkpoint is None:",
        "while False:",
    ),
    Fault(
        "a checkpoint stands one block early",
        "checkpointing",
        "depth = capture.position // ledger.config.block_size",
        "depth = max(1, capture.position // ledger.config.block_size - 1)",
    ),
    Fault(
        "a checkpoint is taken where the row ends",
        "checkpointing",
        "boundary = certain_end - certain_end % ledger.config.block_size",
        "boundary = certain_end",
    ),
    Fault(
        "checkpoints are silently never stored",
        "checkpointing",
        "            index.attach(node, capture.slot, rolling=decoding)\n",
        "            pass\n",
        "test_prefix_hits::test_a_conversations_next_turn_hits_what_was_generated",
    ),
    Fault(
        "turning speculation on makes hits drop to zero",
        "checkpointing",
        "    if len(row.tokens) == 1 and row.start:\n",
        "    if len(row.tokens) == 1 and row.start and not row.num_drafts:\n",
        "test_prefix_hits::test_speculation_does_not_spoil_the_next_turns_hit",
        (3, 0.0),
    ),
    Fault(
        "checkpoints have no bound",
        "checkpointing",
        ">= ledger.checkpoint_limit:",
        ">= 10**9:",
    ),
    Fault(
        "a rolling checkpoint stays behind",
        "checkpointing",
        "                before = rolling_node(sequence)\n                if before is not None:",
        "                before = None\n                if before is not None:",
        "test_prefix_hits::test_a_decoding_sequence_keeps_one_rolling_checkpoint",
    ),
    Fault(
        "a rolling checkpoint moves on although others use it",
        "admission",
        "        match.hit[-1].rolling = False",
        "        pass",
        "test_prefix_hits::test_a_checkpoint_that_others_use_stays_where_it_is",
    ),
    Fault(
        "a prompt keeps no state where it leaves a known chain",
        "prefix_sharing",
        "boundaries = {usable, match.num_known, ",
        "boundaries = {usable, ",
        "test_prefix_hits::test_a_hybrid_hits_only_where_there_is_a_state_as_well",
    ),
    Fault(
        "a prompt keeps no state for those that wait",
        "prefix_sharing",
        "        longest = max(longest, shared)\n",
        "",
        "test_prefix_hits::test_waiting_prompts_share_from_the_second_on_in_a_hybrid_too",
    ),
    Fault(
        "a copied slot loses its unfolded count",
        "pools",
        "        self.unfolded[target] = self.unfolded[source]\n",
        "        self.unfolded[target] = 0\n",
        "test_forks::test_a_fork_takes_over_state_records_and_unfolded_count",
    ),
    Fault(
        "accepted drafts are not folded",
        "planning",
        "fold=0 if slot is None else self.ledger.slots.unfolded[slot]",
        "fold=0",
    ),
    Fault(
        "rejected drafts are folded",
        "committing",
        "ledger.slots.stand(sequence.slot, certain_end, accepted)",
        "ledger.slots.stand(sequence.slot, certain_end, drafted)",
    ),
    Fault(
        "rejected drafts count as computed",
        "committing",
        "    sequence.computed = certain_end + accepted\n",
        "    sequence.computed = certain_end + drafted\n",
    ),
    Fault(
        "a failed round leaves half written states",
        "committing",
        "    ledger.drop_storage(sequence)\n    if sequence.pausing",
        "    if sequence.pausing",
    ),
    Fault(
        "a failed round leaks its captures",
        "committing",
        "    for row in rows:\n        ledger.slots.release(capture.slot for capture in row.captures)\n",
        "",
        "test_ending::test_a_failed_round_leaves_no_checkpoint_behind",
    ),
    Fault(
        "samples keep what a failed round did not copy",
        "committing",
        "        if sequence.slot in uncopied:\n",
        "        if False:\n",
        "test_forks::test_samples_that_share_a_copy_compute_again_when_its_round_raises",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_caught(fault) -> None:
    assert is_caught(fault), f"nothing notices that {fault.name}"
