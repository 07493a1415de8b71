import json
from itertools import islice

import pytest

from ipc.bench.prompts import Prompts, cycle_unlike
from ipc.bench.workloads import NUM_TURNS, WORKLOADS

PROMPTS = Prompts.bundled()


def shared_beginning(*texts: str) -> str:
    """What all texts begin with."""
    same = (len(set(column)) == 1 for column in zip(*texts, strict=False))
    return texts[0][: next((at for at, alike in enumerate(same) if not alike), len(texts[0]))]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_as_many_sessions_as_asked_for_and_the_same_every_time(name: str) -> None:
    workload = WORKLOADS[name]

    for count in (1, 3, 70):
        sessions = workload.sessions(PROMPTS, count, 5)
        assert len({session.name for session in sessions}) == len(sessions)
        assert len(sessions) == (2 if (name, count) == ("long-arrivals", 1) else count)
        assert all(1 <= session.params.max_tokens <= 5 for session in sessions)
        assert sessions == workload.sessions(PROMPTS, count, 5)
    assert len(workload.sessions(PROMPTS)) == workload.num_sessions


def test_texts_that_come_again_share_no_prefix_with_what_came_before() -> None:
    texts = list(islice(cycle_unlike(PROMPTS.passages), 3 * len(PROMPTS.passages)))
    beginnings = [text[:24] for text in texts]

    assert len(set(beginnings)) == len(texts)


def test_offline_prompts_and_answers_are_of_uneven_lengths() -> None:
    sessions = WORKLOADS["offline"].sessions(PROMPTS, 12, 90)

    assert {session.params.max_tokens for session in sessions} == {30, 60, 90}
    lengths = sorted(len(str(session.opening)) for session in sessions)
    assert lengths[0] < 300
    assert lengths[-1] > 4000
    assert shared_beginning(*(str(session.opening) for session in sessions)) == ""


def test_users_of_a_shared_prompt_differ_only_behind_it() -> None:
    first, second = WORKLOADS["shared-prompt"].sessions(PROMPTS, 2)

    assert first.opening[0] == second.opening[0]
    assert len(first.opening[0]["content"]) > 4000  # type: ignore[index]
    assert first.opening[1] != second.opening[1]


def test_conversations_take_turns_and_share_no_prefix_of_a_block() -> None:
    first, second = WORKLOADS["chat"].sessions(PROMPTS, 2)

    assert first.num_turns == second.num_turns == NUM_TURNS
    greeting = [str(each.opening[0]["content"]) for each in (first, second)]  # type: ignore[index]
    assert shared_beginning(*greeting) == "User "
    assert first.follow_ups != second.follow_ups


def test_few_shot_prompts_share_their_examples_of_both_kinds() -> None:
    first, second, *_ = WORKLOADS["few-shot"].sessions(PROMPTS)
    shared = shared_beginning(str(first.opening), str(second.opening))

    assert shared.count("Kind: speech") >= 2
    assert shared.count("Kind: narration") >= 2
    assert len(shared) > 3000
    assert str(first.opening).endswith("\nKind:")


def test_json_answers_are_constrained_by_a_schema() -> None:
    sessions = WORKLOADS["json"].sessions(PROMPTS)

    assert len({str(session.opening) for session in sessions}) == len(sessions)
    schema = json.loads(sessions[0].params.json_schema or "")
    assert schema["required"] == ["name", "age", "city", "job"]


def test_long_prompts_arrive_one_by_one_while_the_others_decode() -> None:
    sessions = WORKLOADS["long-arrivals"].sessions(PROMPTS, 9, 96)
    long = [session for session in sessions if session.group == "long prompt"]
    decoding = [session for session in sessions if session.group == "decoding"]

    assert (len(decoding), len(long)) == (6, 3)
    assert [session.after_tokens for session in long] == [144, 288, 432]
    assert sum(session.params.max_tokens for session in decoding) > 432
    assert all(session.params.ignore_eos for session in decoding)
    assert min(len(str(session.opening)) for session in long) > 4000


def test_one_user_alone_asks_one_thing_after_the_other() -> None:
    assert WORKLOADS["single"].concurrency == 1
