"""How deep to draft: what is learnt, charged and believed."""

import pytest
from fault import Fault, is_caught

FAULTS = [
    Fault(
        "trials are not charged what they lose",
        "trials",
        "spared = min(0.0, spared)",
        "spared = 0.0",
        "test_bounded_loss::test_a_trial_that_went_badly_is_the_last_until_as_much_was_earned",
    ),
    Fault(
        "a trial needs no credit",
        "trials",
        "costs > credit or credit <= 0",
        "False",
        "test_bounded_loss::test_a_trial_that_went_badly_is_the_last_until_as_much_was_earned",
    ),
    Fault(
        "what drafts gain pays for nothing",
        "trials",
        "else SHARE_OF_GAINS) * spared",
        "else 0.0) * spared",
        "test_adaptive_depth::test_what_drafts_gain_pays_for_trials_of_deeper_ones",
    ),
    Fault(
        "nothing is taken over from many more rows",
        "round_times",
        "and size <= SIMILAR * other",
        "and max(size, other) <= SIMILAR * min(size, other)",
        "test_adaptive_depth::test_what_is_left_of_a_batch_drafts_by_what_the_whole_batch_found",
    ),
    Fault(
        "rounds in which rows have gone are timed",
        "adaptive_depth",
        "if not goes_on:",
        "if False:",
        "test_adaptive_depth::test_rounds_in_which_rows_have_come_or_gone_are_not_timed",
    ),
    Fault(
        "a row that gets ahead counts in full where nobody waits",
        "adaptive_depth",
        "is_crowded=num_waiting > 0",
        "is_crowded=True",
        "test_found_drafts::test_a_row_that_gets_ahead_brings_little_where_nobody_waits_for_its_place",
    ),
    Fault(
        "rows that are nearly done are waited for",
        "adaptive_depth",
        " if n >= LONG_TO_GO * self._most_left",
        "",
        "test_found_drafts::test_rows_by_which_a_batch_does_not_end_are_not_waited_for",
    ),
    Fault(
        "found drafts are only judged if they ran",
        "adaptive_depth",
        "said = outcome.tokens[: len(found.drafts)]",
        "said = outcome.tokens[: outcome.num_drafted]",
        "test_found_drafts::test_free_drafts_that_were_never_run_are_known_to_be_wrong",
    ),
    Fault(
        "drafts have no room to keep to",
        "adaptive_depth",
        "min(self.max_depth, tokens - 1)",
        "self.max_depth",
        "test_adaptive_depth::test_nothing_is_drafted_that_an_answer_has_no_room_for",
    ),
    Fault(
        "drafts are looked for however hopeless",
        "rest",
        "self.left <= 0 or",
        "True or",
        "test_found_drafts::test_where_found_drafts_are_hopeless_they_are_seldom_looked_for",
    ),
    Fault(
        "prompts are timed as rounds in which drafts were looked for",
        "adaptive_depth",
        "self.drafts_are_free and decodes",
        "self.drafts_are_free",
        "test_looking::test_rounds_with_prompt_chunks_say_nothing_of_what_looking_costs",
    ),
    Fault(
        "rounds that never run ahead are never timed once others did",
        "adaptive_depth",
        "never_ahead = not (self._launched or self._may_launch)",
        "never_ahead = not self.times.runs_ahead",
        "test_depth_ahead::test_rows_whose_rounds_never_run_ahead_draft_though_others_did",
        (1,),
    ),
    Fault(
        "the words before a draft do not matter",
        "acceptance_record",
        "return max(0, sum(same_words >= least for least in KINDS_OF_EVIDENCE) - 1)",
        "return 0",
        "test_found_drafts::test_what_a_draft_is_worth_depends_on_the_words_before_it",
    ),
    Fault(
        "rows are all believed alike",
        "acceptance_record",
        "self._rows[seq_id] = accepted, expected",
        "self._rows[seq_id] = 0.0, 0.0",
        "test_found_drafts::test_a_row_whose_found_drafts_are_wrong_is_not_believed_any_more",
    ),
    Fault(
        "what drafts leave to plain rounds is free",
        "round_times",
        "self.left_over.append(seconds / plain - 1)",
        "pass",
        "test_found_drafts::test_plain_rounds_after_found_drafts_charge_what_is_left_over_to_the_drafts",
    ),
    Fault(
        "times of any moment are compared",
        "round_times",
        "self.recent.get(depth, ()) if at > self.rounds - MOMENT",
        "self.recent.get(depth, ())",
        "test_round_times::test_times_of_another_moment_are_not_compared",
    ),
    Fault(
        "rounds with drafts are compared with plain ones of long ago",
        "round_times",
        "if at > self.rounds - MOMENT:",
        "if True:",
        "test_round_times::test_rounds_with_drafts_do_not_wait_for_plain_ones_for_ever",
    ),
    Fault(
        "a machine that has changed its speed is believed",
        "compared",
        "return max(known, seconds) <= SHIFTED * min(known, seconds)",
        "return True",
        "test_round_times::test_plain_rounds_between_drafts_of_two_speeds_say_nothing_of_either",
    ),
    Fault(
        "nobody looks at the other side of what was compared",
        "round_times",
        "awaits=waiting if not depth else 0",
        "awaits=None",
        "test_round_times::test_plain_rounds_between_drafts_of_two_speeds_say_nothing_of_either",
    ),
    Fault(
        "what drafts always lose is charged in part",
        "account",
        "self._lost[depth], lost = lost, min(lost, before)",
        "lost = MOST_LOST",
        "test_bounded_loss::test_a_round_that_always_takes_long_is_charged_in_full_from_the_second_on",
    ),
    Fault(
        "deeper rounds may take less",
        "round_times",
        "return _rising(found)",
        "return found",
        "test_round_times::test_a_deeper_round_is_not_believed_to_take_less",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_caught(fault) -> None:
    assert is_caught(fault), f"nothing notices that {fault.name}"
