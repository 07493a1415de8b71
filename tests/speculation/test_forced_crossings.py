"""Forced acceptance crossed with everything else that can happen to a sequence."""

from random import Random

import pytest
from forced import MOST_DRAFTS, Forced

from scheduler.sequence import Sequence

CASES = [
    ("qwen3", "blind"),
    ("qwen3_5", "mtp"),
    ("gemma3_text", "blind"),
    ("lfm2", "blind"),
    ("mamba", "blind"),
    ("qwen3", "qwen3_5"),
    ("qwen3_5", "qwen3"),
    ("qwen3", "lfm2"),
]
each_case = pytest.mark.parametrize(("family", "drafter"), CASES)


def at_random(sequence: Sequence) -> str:
    """Any window from one token up, three drafts in four right."""
    random = Random(f"{sequence.seq_id} {sequence.computed}")
    return "".join(random.choices("RRRW", k=random.randrange(MOST_DRAFTS + 1)))


def all_right(sequence: Sequence) -> str:
    return "R" * MOST_DRAFTS


def prompt(number: int, length: int) -> list[int]:
    return [(11 * number + 5 * place) % 96 for place in range(length)]


@each_case
def test_sequences_join_leave_and_are_cancelled_while_others_draft(
    family: str, drafter: str
) -> None:
    forced = Forced(family, at_random, drafter=drafter, prompt_tokens_per_round=4)
    forced.submit(prompt(0, 9), 40)
    for number in range(1, 6):
        for _ in range(2):
            forced.step()
        [seq_id] = forced.submit(prompt(number, 3 * number), 6 * number)
        if number == 3:
            forced.scheduler.cancel(seq_id - 1)
    forced.step()
    forced.check()
    forced.scheduler.cancel(seq_id)
    forced.run(check_every=5)

    assert not forced.scheduler.has_work


@each_case
def test_an_ending_inside_an_accepted_run_is_the_end_and_what_was_accepted_beyond_is_nowhere(
    family: str, drafter: str
) -> None:
    forced = Forced(family, all_right, drafter=drafter)
    said = [forced.text(1, at) for at in range(7, 60)]
    ending = next(at for at in range(14, 20) if said[at] not in said[:at])
    [first] = forced.submit(prompt(0, 7), 50, eos_ids=frozenset({said[ending]}))
    [second] = forced.submit(prompt(1, 5), 11)
    commits = []
    while forced.scheduler.has_work:
        commits += forced.step()
    tokens = {
        seq_id: [token for one in commits if one.seq_id == seq_id for token in one.tokens]
        for seq_id in (first, second)
    }

    assert tokens[first] == said[: ending + 1]
    assert tokens[second] == [forced.text(second, at) for at in range(5, 16)]
    assert {one.seq_id: one.finish for one in commits if one.finish} == {
        first: "eos",
        second: "length",
    }
    # who goes on from there with the same tokens finds what was committed, and no more
    known = prompt(0, 7) + said[: ending + 9]
    [third] = forced.submit(known, 12)
    forced.step()
    forced.check()
    sequence = forced.scheduler.sequences[third]
    assert 0 < sequence.num_cached <= 7 + ending + 1
    forced.run(check_every=2)


@each_case
def test_samples_and_forks_part_ways_with_records_that_are_not_folded_yet(
    family: str, drafter: str
) -> None:
    forced = Forced(family, at_random, drafter=drafter)
    samples = forced.submit(prompt(0, 10), 36, n=2)
    while not all(len(forced.accepted.get(one, ())) > 1 for one in samples):
        forced.step()
    forced.check()
    children = [forced.scheduler.fork(samples[0]), forced.scheduler.fork(samples[0])]
    for child in children:
        forced.forked_at[child] = len(forced.scheduler.sequences[samples[0]].tokens)
    forced.step()
    forced.check()
    forced.run(check_every=2)

    assert all(len(forced.accepted[child]) > 1 for child in children)


@each_case
def test_preempted_sequences_compute_again_what_drafts_had_filled(
    family: str, drafter: str
) -> None:
    forced = Forced(family, at_random, drafter=drafter, num_blocks=16, max_rows=4)
    for number in range(4):
        forced.submit(prompt(number, 6 + number), 24)
    forced.run(check_every=2)

    assert forced.scheduler.stats().preemptions > 0


@each_case
def test_a_prefix_hit_on_what_was_prompted_and_on_what_was_decoded(
    family: str, drafter: str
) -> None:
    forced = Forced(family, at_random, drafter=drafter)
    [first] = forced.submit(prompt(0, 18), 30)
    while forced.scheduler.has_work:
        forced.step()
        tokens = list(forced.scheduler.sequences[first].tokens)
    [second] = forced.submit([*prompt(0, 18), 1, 2, 3], 12)
    forced.step()
    forced.check()
    assert forced.scheduler.sequences[second].num_cached == 16
    [third] = forced.submit([*tokens, 5], 12)
    forced.step()
    forced.check()
    assert forced.scheduler.sequences[third].num_cached >= 32
    forced.run(check_every=2)


@each_case
def test_a_token_that_is_repeated_for_ever(family: str, drafter: str) -> None:
    forced = Forced(family, at_random, drafter=drafter)
    forced.salts = {1: "the same", 2: "the same"}
    forced.submit([7] * 9, 30)
    forced.submit([7] * 9, 30)
    forced.run(check_every=4)


@pytest.mark.parametrize("drafter", ["blind", "mtp", "qwen3_5"])
def test_the_target_runs_exactly_once_a_round_whatever_is_accepted(drafter: str) -> None:
    forced = Forced("qwen3_5", at_random, drafter=drafter)
    for number in range(4):
        forced.submit(prompt(number, 6), 30)
    forced.step()
    forced.forwards.clear()
    while forced.scheduler.has_work:
        forced.step()

    assert set(forced.forwards) == {1}
    assert len(forced.forwards) < 29
