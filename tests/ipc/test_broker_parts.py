"""The parts a broker is made of: outbox, admission, routing, the line."""

import random

import pytest

from ipc.admission import Admission, AdmissionLimits, Amount
from ipc.broker_line import BrokerLine
from ipc.outbox import Outbox
from ipc.routing import Candidate, PrefixRouter, prefix_hashes


def frames(number: int) -> list[bytes]:
    return [bytes([number])]


def filled(count: int, first: int = 0) -> Outbox:
    outbox = Outbox(first)
    for number in range(count):
        outbox.push(frames(first + number))
    return outbox


def test_an_outbox_gives_each_message_once_and_keeps_it() -> None:
    outbox = filled(3)
    assert outbox.take() == [frames(0), frames(1), frames(2)]
    assert outbox.take() == []
    outbox.push(frames(3))
    assert outbox.take() == [frames(3)]
    assert (outbox.first, outbox.end) == (0, 4)


def test_a_rewound_outbox_sends_again_and_forgets_nothing() -> None:
    outbox = filled(4)
    outbox.take()
    outbox.rewind(2)
    assert outbox.take() == [frames(2), frames(3)]
    outbox.rewind(0)
    assert len(outbox.take()) == 4


def test_what_is_acknowledged_is_gone_and_what_was_never_made_cannot_be() -> None:
    outbox = filled(4, first=5)
    outbox.take()
    outbox.acknowledge(7)
    outbox.rewind(0)
    assert outbox.take() == [frames(7), frames(8)]
    outbox.acknowledge(1000)
    assert (outbox.first, outbox.unsent, outbox.end) == (9, 9, 9)
    assert outbox.newest() is None
    outbox.push(frames(9))
    assert outbox.newest() == outbox.take()[0] == frames(9)


def admission(requests: int = 10, tokens: int = 100, num_bytes: int = 1000) -> Admission:
    limit = Amount(requests, tokens, num_bytes)
    return Admission(AdmissionLimits(limit, limit))


@pytest.mark.parametrize("resource", ["requests", "tokens", "bytes"])
def test_each_resource_is_limited_on_its_own(resource: str) -> None:
    account = admission(2, 2, 2)
    amount = Amount(**{"requests": 0, "tokens": 0, "bytes": 0, resource: 1})
    amount = amount if resource == "requests" else Amount(**{**_amount(amount), "requests": 0})
    assert account.admit("t", amount) is None
    assert account.admit("t", amount) is None
    refusal = account.admit("t", amount)
    assert refusal is not None
    assert resource in refusal.message
    assert refusal.retry_after is not None
    assert 0.05 <= refusal.retry_after <= 5


def _amount(amount: Amount) -> dict[str, int]:
    return {"requests": amount.requests, "tokens": amount.tokens, "bytes": amount.bytes}


def test_a_refused_request_counts_for_nothing_and_a_released_one_neither() -> None:
    account = admission(1)
    amount = Amount(1, 5, 5)
    assert account.admit("a", amount) is None
    assert account.admit("b", amount) is not None
    account.release("a", amount, now=1.0)
    assert account.admit("b", amount) is None
    account.release("b", amount, now=2.0)
    assert not any(account.used.values())
    assert account.used_by == {}


def test_one_tenant_cannot_take_what_is_anothers() -> None:
    account = Admission(AdmissionLimits(Amount(4, 999, 999), Amount(2, 999, 999)))
    for _ in range(2):
        assert account.admit("greedy", Amount(1, 1, 1)) is None
    refusal = account.admit("greedy", Amount(1, 1, 1))
    assert refusal is not None
    assert "one tenant" in refusal.message
    assert account.admit("modest", Amount(1, 1, 1)) is None


def worker(name: str, load: int = 0, capacity: int = 4, **figures: int) -> Candidate:
    return Candidate(name, load, capacity, **figures)


def test_a_prompt_goes_where_its_prefix_ran() -> None:
    router = PrefixRouter()
    hashes = prefix_hashes(b"s" * 300 + b"first question" * 20)
    router.remember(hashes, "b")
    same_start = prefix_hashes(b"s" * 300 + b"another question" * 20)

    assert router.choose(same_start, [worker("a"), worker("b", load=3)])[0].name == "b"
    other = prefix_hashes(b"t" * 300)
    assert router.choose(other, [worker("a"), worker("b", load=3)])[0].name == "a"


def test_the_longest_known_prefix_decides() -> None:
    router = PrefixRouter()
    short, long = b"s" * 64, b"s" * 1024
    router.remember(prefix_hashes(long), "long")
    router.remember(prefix_hashes(short + b"x" * 30), "short")
    assert router.choose(prefix_hashes(long), [worker("short"), worker("long")])[0].name == "long"


def test_a_hot_prefix_spreads_when_its_worker_is_full() -> None:
    router = PrefixRouter()
    hashes = prefix_hashes(b"hot" * 100)
    router.remember(hashes, "a")
    choice, held = router.choose(hashes, [worker("a", load=4), worker("b")])
    assert (choice.name, held) == ("b", False)
    router.remember(hashes, "b")
    # both hold it now: the less loaded one is better
    assert router.choose(hashes, [worker("a", load=3), worker("b", load=1)])[0].name == "b"
    assert router.choose(hashes, [worker("a", load=4), worker("b", load=4)]) == (None, False)


def test_without_a_known_prefix_the_least_loaded_wins_then_free_rows_and_blocks() -> None:
    router = PrefixRouter()
    assert router.choose([], [worker("a", 2, 4), worker("b", 3, 8)])[0].name == "b"
    assert router.choose([], [worker("a", free_rows=1), worker("b", free_rows=2)])[0].name == "b"
    assert (
        router.choose([], [worker("a", free_blocks=9), worker("b", free_blocks=7)])[0].name == "a"
    )


def test_a_lost_workers_prefixes_are_forgotten_and_the_memory_is_bounded() -> None:
    router = PrefixRouter(max_prefixes=10)
    for number in range(50):
        router.remember(prefix_hashes(bytes([number]) * 64), "a")
    assert len(router) == 10
    router.forget("a")
    assert len(router) == 0


def test_prefixes_with_different_salts_share_nothing() -> None:
    prompt = b"x" * 300
    assert not set(prefix_hashes(prompt, b"one")) & set(prefix_hashes(prompt, b"two"))
    assert prefix_hashes(b"short") == []


def test_tenants_are_served_in_turn_whatever_each_has_waiting() -> None:
    line: BrokerLine[str] = BrokerLine()
    for number in range(3):
        line.add(("a", ""), f"a{number}")
    line.add(("b", ""), "b0")
    served = []
    while len(line):
        served.append(line.pop(line.turns()[0]))
    assert served == ["a0", "b0", "a1", "a2"]


def test_within_a_tenant_priority_then_arrival_and_the_returned_first() -> None:
    line: BrokerLine[str] = BrokerLine()
    key = ("a", "")
    line.add(key, "early")
    line.add(key, "late")
    line.add(key, "urgent", priority=1)
    line.add(key, "returned", first=True)
    assert [line.pop(key) for _ in range(4)] == ["urgent", "returned", "early", "late"]
    with pytest.raises(KeyError):
        line.pop(key)


def test_an_item_that_left_and_came_back_is_there_once() -> None:
    line: BrokerLine[str] = BrokerLine()
    key = ("a", "")
    line.add(key, "x")
    line.add(key, "y")
    line.discard("x")
    line.discard("x")
    assert "x" not in line
    line.add(key, "x")
    assert [line.pop(key) for _ in range(2)] == ["y", "x"]
    assert line.turns() == []


def test_the_line_is_fair_over_any_history() -> None:
    chance = random.Random(3)
    line: BrokerLine[tuple[int, int]] = BrokerLine()
    waiting: dict[tuple[str, str], int] = {}
    passed_over: dict[tuple[str, str], int] = {}
    items = []
    for number in range(2000):
        key = (str(chance.randrange(5)), "")
        if chance.random() < 0.5 or not len(line):
            item = (number, 0)
            items.append(item)
            line.add(key, item)
            waiting[key] = waiting.get(key, 0) + 1
        else:
            turn = line.turns()[0]
            line.pop(turn)
            waiting[turn] -= 1
            passed_over[turn] = 0
            for other, count in waiting.items():
                if other != turn and count:
                    passed_over[other] = passed_over.get(other, 0) + 1
                    assert passed_over[other] <= 5
