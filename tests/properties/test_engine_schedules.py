"""Random histories of an exact engine: nobody's tokens, pages or states depend on anybody else.

Prompts share prefixes, memory is too small for all, requests are cancelled and paused; whatever
happens, a greedy request says what mlx-lm says alone, a sampled one what it says alone.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_reader import assert_same_memory, read_memory
from oracle import Oracle
from tiny_models import as_loaded, tiny_model

from engine.build import Parts, build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams

FAMILIES = ["qwen3_5", "qwen3", "jamba"]
STEMS = ([7] * 60, [3, 1, 4, 1, 5, 9, 2, 6] * 8, list(range(60)))


@cache
def parts_of(model_type: str) -> Parts:
    options = EngineOptions(
        max_rows=3, num_blocks=30, exact=True, check=True, prompt_tokens_per_round=32
    )
    return build_parts(as_loaded(tiny_model(model_type), model_type), options)


@cache
def oracle_of(model_type: str) -> Oracle:
    return Oracle(tiny_model(model_type))


def engine_of(model_type: str, *, ahead: bool = False, **changes: object) -> Engine:
    parts = parts_of(model_type)
    config = replace(parts.scheduler_config, **changes)
    options = replace(parts.options, async_scheduling=ahead)
    return Engine(replace(parts, scheduler_config=config, options=options))


@cache
def sampled_alone(model_type: str, prompt: tuple[int, ...], seed: int) -> list[list[int]]:
    """Two samples of a prompt, alone in an engine without a prefix cache, eight tokens each."""
    engine = engine_of(model_type, prefix_cache=False, num_slots=4)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=seed, n=2)
    return [answer.token_ids for answer in engine.generate([prompt], params)]


@dataclass
class Asked:
    """A request and what has come of it."""

    prompt: list[int]
    params: SamplingParams
    said: list[list[int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class History:
    """An engine under test and every request it was given."""

    def __init__(self, model_type: str, num_blocks: int, *, ahead: bool = False) -> None:
        self.model_type = model_type
        self.engine = engine_of(model_type, num_blocks=num_blocks, ahead=ahead)
        self.asked: dict[str, Asked] = {}

    def submit(
        self, stem: int, length: int, last: int, seed: int | None, *, max_tokens: int = 8
    ) -> None:
        prompt = [*STEMS[stem][: length - 1], last]
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        if seed is not None:
            params = replace(params, temperature=1.0, seed=seed, n=2)
        request_id = self.engine.submit(prompt, params)
        self.asked[request_id] = Asked(prompt, params, [[] for _ in range(params.n)])

    def step(self) -> None:
        for delta in self.engine.step():
            asked = self.asked[delta.request_id]
            asked.said[delta.index] += delta.token_ids
            if delta.finish_reason is not None:
                asked.reasons.append(delta.finish_reason)

    def check_memory(self) -> None:
        """What is kept of every running sequence is what mlx-lm's caches would hold.

        Where its next row is launched ahead, that is a token more than is computed.
        """
        store = self.engine.parts.executor.store
        launched = {row.seq_id for row in self.engine.scheduler.launched}
        for seq_id, one in self.engine.scheduler.sequences.items():
            if one.computed and one.finish is None:
                length = one.computed + (seq_id in launched)
                expected = oracle_of(self.model_type).memory(one.tokens[:length])
                found = read_memory(store, list(one.blocks), one.slot, length)
                assert_same_memory(found, expected)

    def nth(self, number: int) -> str:
        return list(self.asked)[number % len(self.asked)] if self.asked else "nobody"

    def finish(self) -> None:
        for request_id in self.asked:
            self.engine.resume(request_id)
        while self.engine.has_work:
            self.step()
        for asked in self.asked.values():
            assert len(asked.reasons) == asked.params.n
            expected = [oracle_of(self.model_type).tokens(asked.prompt, asked.params.max_tokens)]
            if asked.params.seed is not None:
                key = (self.model_type, tuple(asked.prompt), asked.params.seed)
                expected = sampled_alone(*key)
            if set(asked.reasons) == {"length"}:
                assert asked.said == expected
            for said, whole in zip(asked.said, expected, strict=True):
                assert said == whole[: len(said)]


events = st.one_of(
    st.tuples(
        st.just("submit"),
        st.integers(0, 2),
        st.sampled_from([1, 2, 15, 16, 17, 31, 32, 33, 50]),
        st.integers(0, 3),
        st.one_of(st.none(), st.none(), st.integers(0, 2)),
    ),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["cancel", "pause", "resume"]), st.integers(0, 20)),
    st.tuples(st.just("check")),
)


@pytest.mark.parametrize("model_type", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(
    history=st.lists(events, min_size=5, max_size=30),
    num_blocks=st.sampled_from([8, 12, 30]),
    ahead=st.booleans(),
)
def test_any_history_leaves_every_request_its_own_answer(
    model_type: str, history: list[tuple], num_blocks: int, ahead: bool
) -> None:
    run = History(model_type, num_blocks, ahead=ahead)
    for name, *values in history:
        if name == "submit":
            run.submit(*values)
        elif name == "step":
            for _ in range(values[0]):
                run.step()
        elif name == "check":
            run.check_memory()
        else:
            getattr(run.engine, name)(run.nth(values[0]))
    run.finish()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_requests_that_preempt_each_other_say_what_they_say_alone(model_type: str) -> None:
    run = History(model_type, 8)  # three rows start in a block each, and grow to three
    for number in range(5):
        run.submit(number % 3, 12, number, None, max_tokens=30)
    run.finish()

    assert run.engine.stats().scheduler.preemptions > 0
    assert all(asked.reasons == ["length"] for asked in run.asked.values())


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_prefix_hit_spares_tokens_and_changes_none(model_type: str) -> None:
    run = History(model_type, 30)
    for last in (1, 2, 2, 3):
        run.submit(2, 50, last, None)
        while run.engine.has_work:
            run.step()
            run.check_memory()
    run.submit(2, 50, 4, 1)
    run.finish()

    assert run.engine.stats().scheduler.prompt_tokens <= 50 + 4 * 18
