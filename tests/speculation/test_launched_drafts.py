"""Drafting, verifying and picking are launched together; the host waits once a round."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from forced import Forced, parts_of
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Batch, Window
from engine.drafting.chain import Chain
from engine.drafting.chained import chained_after, tables_after
from engine.drafting.offer import Offer, Unjudged, WindowOffer
from engine.engine import Engine
from engine.forward_pass import judge, wanted_of
from engine.sampling_params import SamplingParams
from scheduler.round import Row

PROMPTS = [[1, 2, 3], [4] * 20, [5, 6], [7] * 40]
GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=7)


class Waited(AssertionError):
    """The host waited where it must not."""


def engine_of(*, in_order: bool, drafter: str = "mtp", **options: Any) -> Engine:
    """An engine of the tiny qwen3_5 with drafts; ``in_order``: as on kernels that need no wait."""
    parts, _, _ = parts_of("qwen3_5", drafter, 4)
    parts.executor.in_order = in_order
    parts.executor.drafter.in_order = in_order
    return Engine(replace(parts, options=replace(parts.options, check=True, **options)))


def said(
    engine: Engine, params: list[SamplingParams], num_failures: int = 0
) -> list[tuple[list[int], Any]]:
    answers = engine.generate(PROMPTS, params)
    found = [(answer.token_ids, answer.logprobs) for answer in answers]
    assert engine.stats().scheduler.failures == num_failures
    return found


def test_a_round_with_drafts_is_launched_without_waiting_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(in_order=True, speculate=3, async_scheduling=True)
    executor = engine.parts.executor
    num_launched = []
    launch, evaluate, on_host = executor.launch, mx.eval, Chain._on_host

    def launching(round_: Any, voice: Any) -> bool:
        with monkeypatch.context() as inside:
            if all(row.num_drafts for row in round_.rows):
                inside.setattr(mx, "eval", refuse)
                inside.setattr(Chain, "_on_host", refuse)
                num_launched.append(sum(row.num_drafts for row in round_.rows))
            drafts = launch(round_, voice)
        assert (mx.eval, Chain._on_host) == (evaluate, on_host)
        return drafts

    monkeypatch.setattr(executor, "launch", launching)
    for prompt in PROMPTS[:2]:
        engine.submit(prompt, SAMPLED)
    while engine.has_work:
        engine.step()

    assert engine.stats().scheduler.failures == 0
    assert num_launched.count(6) > 3


def refuse(*args: object) -> None:
    raise Waited


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("drafter", ["mtp", "qwen3", "blind"])
def test_drafts_that_stay_on_the_device_change_no_token(drafter: str, acceptance: str) -> None:
    """Beside rows whose drafts have to be read, for they change what may be said after them."""
    each = [
        replace(GREEDY, logprobs=2),
        replace(SAMPLED, top_p=0.8, logprobs=0),
        replace(SAMPLED, top_k=5, max_tokens=23),
        replace(SAMPLED, max_tokens=13, min_tokens=5, logit_bias={5: 2.0}),
    ]
    penalized = [*each[:3], replace(each[3], repetition_penalty=1.3)]
    for params in (each, penalized):
        options = {"drafter": drafter, "acceptance": acceptance}
        plain = said(engine_of(in_order=False, speculate=3, **options), params)
        options |= {"async_scheduling": True}
        assert said(engine_of(in_order=True, speculate=3, **options), params) == plain
        assert said(engine_of(in_order=False, speculate=3, **options), params) == plain


@pytest.mark.parametrize("point", ["take", "plan_ahead"])
@pytest.mark.parametrize("drafter", ["mtp", "qwen3"])
def test_a_round_that_fails_once_it_is_launched_keeps_nothing_of_its_drafts(
    drafter: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = said(engine_of(in_order=False, speculate=3, drafter=drafter), [SAMPLED] * 4)
    engine = engine_of(in_order=True, speculate=3, drafter=drafter, async_scheduling=True)
    owner: Any = engine._output if point == "take" else engine.scheduler
    original, count = getattr(owner, point), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        count.append(args)
        if len(count) in (5, 9):
            raise RuntimeError
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, point, failing)

    assert said(engine, [SAMPLED] * 4, num_failures=2) == expected


@pytest.mark.parametrize("drafter", ["mtp", "qwen3", "blind"])
def test_what_is_kept_after_every_round_is_that_of_a_run_from_scratch(drafter: str) -> None:
    def script(sequence: Any) -> str:
        return ["RRW", "W", "", "RRRR", "RW"][(sequence.seq_id + len(sequence.tokens)) % 5]

    forced = Forced("qwen3_5", script, drafter=drafter, ahead=True, in_order=True)
    for number, prompt in enumerate(PROMPTS):
        forced.submit(prompt, 20 + number)
    forced.run(check_every=1)

    assert sum(drafted for rows in forced.accepted.values() for drafted, _ in rows) > 30


def test_chains_that_leave_their_row_s_blocks_write_to_blocks_of_their_own() -> None:
    parts, _, _ = parts_of("qwen3_5", "mtp", 4)
    drafter = parts.executor.drafter
    pages, spare = drafter.layer.pages, iter(drafter.spare)
    rows = [Row(1, (5,), 6, (10, 11), 1), Row(2, (5,), 3, (20,), 2), Row(3, (5,), 0, (30, 31), 3)]
    windows = [chained_after(row, 3, 4, spare) for row in rows]

    assert [(window.row.start, window.length) for window in windows] == [(7, 6), (4, 6), (1, 6)]
    lent: list[int] = []
    for window, row in zip(windows, rows, strict=True):
        assert window.row.blocks[: len(row.blocks)] == row.blocks
        lent += window.row.blocks[len(row.blocks) :]
    assert len(lent) == len(set(lent)) == 4
    assert all(parts.memory.num_blocks <= block < pages.num_blocks for block in lent)
    most = parts.options.max_rows * -(-2 * parts.options.max_drafts // 4)
    assert len(drafter.spare) == most == pages.num_blocks - parts.memory.num_blocks


def test_an_offer_fits_rows_that_start_where_it_was_made_for_and_draft_no_more() -> None:
    chain = Chain()
    chain.add(mx.array([5, 6]))
    chain.add(mx.array([7]))
    offer = Offer([4, 9], chain, [2, 1])
    for seq_id, start in ((4, 20), (9, 30), (1, 40)):
        offer.stand(seq_id, start)

    def fits(seq_id: int, start: int, num_drafts: int) -> bool:
        return offer.fits(Row(seq_id, (1,), start, (1, 2, 3), num_drafts=num_drafts))

    assert fits(4, 20, 2)
    assert fits(4, 20, 1)
    assert not fits(4, 20, 3)
    assert not fits(4, 21, 2)
    assert not fits(9, 30, 2)
    assert not fits(1, 40, 1)  # another batch's
    assert not fits(7, 20, 1)
    assert offer.tokens([9, 4])[:, 0].tolist() == [6, 5]
    assert offer.tokens([4, 9])[0].tolist() == [5, 7]
    assert offer.read() == {4: (5, 7), 9: (6,)}


def test_windows_that_are_whole_on_the_device_are_handed_to_their_rows() -> None:
    offer = WindowOffer([4, 9], mx.array([[1, 5, 6], [2, 7, 8]], mx.int32))
    assert offer.counts == {4: 2, 9: 2}
    assert offer.windows([4, 9], 3).tolist() == [[1, 5, 6], [2, 7, 8]]
    assert offer.windows([9], 2).tolist() == [[2, 7]]
    assert offer.windows([9, 4], 3).tolist() == [[2, 7, 8], [1, 5, 6]]
    assert offer.windows([4, 1], 3) is None
    assert offer.windows([4, 9], 4) is None
    assert offer.tokens([9, 4]).tolist() == [[7, 8], [5, 6]]
    assert offer.read() == {4: (5, 6), 9: (7, 8)}


def test_tables_of_chains_have_their_row_s_blocks_and_then_spare_ones() -> None:
    blocks = ((10, 11, 12), (20, 21), (30,))
    starts = (6, 3, 0)
    rows = [
        Row(seq_id, (5,), start, own)
        for seq_id, (start, own) in enumerate(zip(starts, blocks, strict=True))
    ]
    batch = Batch([Window(row, (7,) * 3) for row in rows], 4, keep_order=True)
    assert tables_after(batch, 3, iter(range(90, 99))).tolist() == [
        [10, 11, 12, 90],
        [20, 21, 91, 0],
        [30, 92, 0, 0],
    ]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=4), st.lists(st.integers(0, 2), min_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_the_device_accepts_what_the_host_would(cases: list[tuple[list[int], list[int]]]) -> None:
    rows = [Row(number, (1,), 8, (1, 2, 3, 4)) for number in range(len(cases))]
    windows = [Window(row, tuple(drafts)) for row, (drafts, _) in zip(rows, cases, strict=True)]
    batch = Batch(windows, 4, keep_order=True)
    wanted, _ = wanted_of(batch)
    said = [cases[want.window.row.seq_id][1][want.num_ahead] for want in wanted]
    verdicts = judge(windows, wanted, said)
    before = Unjudged(batch, mx.zeros((1,)), mx.array(said, mx.uint32), batch.tokens())
    assert before.accepted.tolist() == [verdict.num_accepted for verdict in verdicts]
    assert before.following.tolist() == [verdict.tokens[-1] for verdict in verdicts]
