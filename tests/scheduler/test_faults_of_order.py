"""Who waits, who yields, and how much of a round each gets."""

# ruff: noqa: E501 - the replaced source keeps its own line lengths
import pytest
from fault import Fault, is_caught

FAULTS = [
    # waiting and yielding
    Fault(
        "the second prompt does not wait for the first",
        "prefix_sharing",
        "    sequence.waits_for = owner, end * size\n",
        "    return False\n",
        "test_prefix_hits::test_many_users_of_a_prefix_hold_one_copy_of_it",
    ),
    Fault(
        "who waits for a prompt waits for ever when that goes away",
        "prefix_sharing",
        'if owner.status == "running" and owner.computed < position:',
        "if owner.computed < position:",
    ),
    Fault(
        "claims outlive their owner",
        "ledger",
        "            self.running.remove(sequence)\n            self.drop_claims(sequence)\n",
        "            self.running.remove(sequence)\n",
        "test_prefix_hits::test_a_paused_prompt_claims_nothing",
    ),
    Fault(
        "a preempted sequence loses what it has said",
        "preemption",
        "    ledger.drop_storage(sequence)\n",
        "    ledger.drop_storage(sequence)\n    del sequence.tokens[sequence.num_prompt :]\n",
    ),
    Fault(
        "victims yield that free nothing",
        "preemption",
        "if frees_block or (wanted[1] and victim.slot in slots):",
        "if True:",
        "test_preemption::test_a_victim_that_frees_nothing_keeps_what_it_holds",
    ),
    Fault(
        "sequences yield over and over",
        "admission",
        "    if any(one.num_preemptions >= limit for one in (sequence, *running)):\n",
        "    if False:\n",
        "test_preemption::test_nobody_yields_more_often_than_the_bound",
        (0,),
    ),
    Fault(
        "the oldest yields",
        "preemption",
        "    later.reverse()\n",
        "",
        "test_preemption::test_the_youngest_yields_and_answers_as_if_it_had_not",
    ),
    Fault(
        "a sequence yields that has a row in the round already",
        "preemption",
        "one.order > order and one.seq_id not in busy",
        "one is not needy",
    ),
    Fault(
        "nobody yields",
        "preemption",
        "    if lacking_blocks > 0 or lacking_slots > 0:\n        return False\n",
        "    return False\n",
    ),
    Fault(
        "the idle keep their memory when nothing runs",
        "planning",
        "                match = self._match_at_any_cost(sequence)\n",
        "                pass\n",
    ),
    # order and limits
    Fault(
        "small requests overtake a large one",
        "planning",
        "            if not admission.fits(ledger, sequence, match, started):\n                break\n",
        "            if not admission.fits(ledger, sequence, match, started):\n                continue\n",
        "test_planning::test_a_large_request_is_not_overtaken_by_small_ones_behind_it",
    ),
    Fault(
        "classes are ignored",
        "waiting_line",
        "reverse=True",
        "reverse=False",
        "test_order::test_a_higher_class_starts_first",
    ),
    Fault(
        "tenants are not charged",
        "waiting_line",
        "self._served.get(tenant, 0) + num_tokens",
        "self._served.get(tenant, 0)",
        "test_order::test_a_tenant_with_a_thousand_requests_does_not_stop_anothers_single_one",
    ),
    Fault(
        "a parked prompt waits for ever",
        "waiting_line",
        "            if round_number - sequence.waiting_since <= self._max_wait_rounds:\n",
        "            if True:\n",
        "test_order::test_a_parked_prompts_wait_is_bounded_whatever_its_class",
    ),
    Fault(
        "a long prompt stalls the rows that decode",
        "planning",
        "    builder.add_decoding()\n",
        "    if all(one.num_pending == 1 for one in ledger.running):\n        builder.add_decoding()\n",
        "test_planning::test_a_long_prompt_never_stalls_the_rows_that_decode",
    ),
    Fault(
        "prompts starve behind decoding rows",
        "planning",
        "max(total - decoding, share)",
        "max(total - decoding, 0)",
        "test_planning::test_decode_rows_take_from_a_bounded_round_but_prompts_keep_their_share",
    ),
    Fault(
        "chunks leave the grid",
        "planning",
        "            end -= end % self.config.block_size\n",
        "            pass\n",
        "test_planning::test_an_uneven_budget_is_rounded_down_to_the_grid_and_shared_in_order",
    ),
    Fault(
        "drafts exceed what max_tokens permits",
        "planning",
        "min(depth, request.max_tokens - sequence.num_generated - 1)",
        "depth",
        "test_planning::test_drafts_never_exceed_what_max_tokens_still_permits",
    ),
    Fault(
        "a finishing row bounds everybody's drafts",
        "planning",
        "self._add_decode(sequence, depth)",
        "self._add_decode(sequence, min(depth and one.request.max_tokens"
        " - one.num_generated - 1 for one in decoding))",
        "test_planning::test_a_finished_row_does_not_bound_the_drafts_of_others",
    ),
    Fault(
        "deadlines pass unseen",
        "scheduler",
        "        while deadlines and deadlines[0][0] <= now:\n",
        "        while False:\n",
        "test_ending::test_a_late_request_ends_whatever_it_was_doing",
        ("paused",),
    ),
    Fault(
        "an earlier run's tokens are emitted again",
        "scheduler",
        "tokens = [*request.prompt, *request.emitted]",
        "tokens = [*request.prompt]",
        "test_committing::test_an_earlier_runs_tokens_count_but_are_not_emitted_again",
    ),
    Fault(
        "a poisonous request takes everybody down",
        "committing",
        "    if sequence.num_failures == limit - 1:\n",
        "    if False:\n",
        "test_ending::test_a_poisonous_request_ends_alone_and_spares_the_others",
    ),
    Fault(
        "a request fails for ever",
        "committing",
        "        if sequence.num_failures:\n            sequence.num_failures = 0\n",
        "        pass\n    sequence.num_failures = 0\n    if num_tokens:\n",
        "test_ending::test_a_request_that_fails_only_while_decoding_ends_too",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_caught(fault) -> None:
    assert is_caught(fault), f"nothing notices that {fault.name}"
