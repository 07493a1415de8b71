"""Every fault that comparable engines had is put in, one at a time, and must be caught."""

# ruff: noqa: E501 - the replaced source keeps its own line lengths
import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from mutated import mutated

NUM_WALKS = 40


@dataclass(frozen=True)
class Fault:
    """A replacement in one module's source, and what catches it: a test, or else random walks."""

    name: str
    module: str
    old: str
    new: str
    caught_by: str = ""
    arguments: tuple = ()


class Endless(Exception):
    """A fault made the scheduler turn in circles."""


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise Endless once the process has computed for so long, however busy the machine is."""

    def stop(signal_number, frame) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def catch(fault: Fault) -> None:
    """Run what catches the fault, up to its end or to the first exception."""
    if fault.caught_by:
        module, _, function = fault.caught_by.partition("::")
        world = importlib.import_module("world")
        world.WORLDS.clear()
        getattr(importlib.import_module(module), function)(*fault.arguments)
        for one in world.WORLDS:
            one.verify_all()
        return
    walk = importlib.import_module("random_walk").walk
    for seed in range(NUM_WALKS):
        walk(seed, 200, per_world=200)


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
    # the index
    Fault(
        "the hash leaves out the last token",
        "prefix_index",
        "hash((parent, tokens))",
        "hash((parent, tokens[:-1]))",
        "test_prefix_index::test_blocks_that_differ_in_their_last_token_are_both_kept",
    ),
    Fault(
        "the hash leaves out the chain",
        "prefix_index",
        "hash((parent, tokens))",
        "hash(tokens)",
        "test_prefix_index::test_the_hash_covers_every_token_of_the_block_and_the_whole_chain",
    ),
    Fault(
        "tenants share a root",
        "prefix_index",
        "        root = self._roots.get(salt)\n",
        '        salt = ""\n        root = self._roots.get(salt)\n',
        "test_prefix_index::test_salts_and_models_never_meet",
    ),
    Fault(
        "the model is not part of the hash",
        "prefix_index",
        "Node(hash((self._model_identity, salt)), None",
        "Node(hash(salt), None",
        "test_prefix_index::test_salts_and_models_never_meet",
    ),
    Fault(
        "a hit goes by the hash alone",
        "prefix_index",
        "            if node.tokens != tuple(tokens[index * size : (index + 1) * size]):\n                break\n",
        "",
        "test_prefix_hits::test_tokens_are_compared_when_hashes_collide",
    ),
    Fault(
        "a hash outlives its block",
        "prefix_index",
        "        del self.nodes[node.key], self.by_block[node.block]\n",
        "        del self.by_block[node.block]\n",
    ),
    Fault(
        "a checkpoint outlives its block",
        "prefix_index",
        "        self.detach(node)\n        del self.nodes",
        "        del self.nodes",
    ),
    Fault(
        "a held block is evicted",
        "prefix_index",
        "        block = self._blocks.oldest_cached()\n",
        "        block = next(iter(self.by_block), None)\n",
    ),
    Fault(
        "a chain is evicted from its beginning",
        "block_table",
        "            tail.reverse()\n",
        "",
    ),
    Fault(
        "a block is indexed before it is computed",
        "committing",
        "min(sequence.computed, len(tokens)) // size",
        "len(tokens) // size",
    ),
    Fault(
        "rejected or cut off tokens are indexed",
        "committing",
        "min(sequence.computed, len(tokens)) // size",
        "sequence.computed // size",
        "test_committing::test_what_a_stop_string_cut_off_is_not_indexed",
    ),
    Fault(
        "a hit leaves no token to compute",
        "prefix_sharing",
        "(len(sequence.tokens) - 1) // ledger",
        "len(sequence.tokens) // ledger",
    ),
    Fault(
        "a hit is counted as free memory as well",
        "admission",
        "num_blocks -= sum(1 for node in match.hit if ledger.blocks.holders[node.block])",
        "num_blocks -= len(match.hit)",
        "test_prefix_hits::test_what_a_hit_takes_out_of_the_cache_is_not_counted_as_available",
    ),
    Fault(
        "a hit does not hold its blocks",
        "admission",
        "    ledger.blocks.share(blocks)\n",
        "",
    ),
    Fault(
        "a request that needs every position reads the cache",
        "prefix_sharing",
        "len(sequence.blocks) or not sequence.request.read_cache:\n        return Match()",
        "len(sequence.blocks):\n        return Match()",
        "test_prefix_hits::test_a_request_that_needs_every_position_fills_the_cache_without_reading_it",
    ),
    # states
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
    # rows launched ahead
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
        "    if any(row.num_drafts for row in round_.rows):\n        return None\n",
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
        "test_ahead::test_captures_of_a_launched_row_that_waits_count_as_well",
    ),
    Fault(
        "captures in flight are not counted",
        "ahead",
        "num_captures((*round_.rows, *ledger.ahead.values()))",
        "0",
        "test_ahead::test_captures_launched_ahead_count_against_the_bound_on_checkpoints",
    ),
    Fault(
        "a launched row captures again",
        "planning",
        "            if row.launched:\n",
        "            if False:\n",
    ),
    Fault(
        "trials are not charged what they lose",
        "trials",
        "min(0.0, spared) if stake.is_trial",
        "0.0 if stake.is_trial",
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
        "else SHARE_OF_GAINS * spared",
        "else 0.0",
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
        "adaptive_depth",
        "self._skipped >= self._hopeless",
        "True",
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
        "pass",
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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_fault_is_caught(fault) -> None:
    caught = False
    with mutated(fault.module, fault.old, fault.new):
        try:
            with cpu_seconds(10):
                catch(fault)
        except Exception:  # whatever a fault leads to: a violated invariant or a plain KeyError
            caught = True
    assert caught, f"nothing notices that {fault.name}"


def test_a_mutation_that_no_longer_applies_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"), mutated("pools", "no such code", ""):
        pass
