"""Engines in one process never see each other, taking turns or each on a thread of its own."""

from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
from oracle import Oracle
from tiny_models import as_loaded, tiny_model

from engine.build import build_parts
from engine.engine import Engine
from engine.options import EngineOptions
from engine.sampling_params import SamplingParams

PROMPTS = [[1, 2, 3], [4] * 20, [5], list(range(40))]
PARAMS = SamplingParams(max_tokens=10, temperature=0.0)


def engine_of(model_type: str, seed: int, exact: bool) -> Engine:
    loaded = as_loaded(tiny_model(model_type, seed=seed), model_type)
    return Engine(build_parts(loaded, EngineOptions(max_rows=3, num_blocks=40, exact=exact)))


def expected(model_type: str, seed: int) -> list[list[int]]:
    oracle = Oracle(tiny_model(model_type, seed=seed))
    return [oracle.tokens(prompt, PARAMS.max_tokens) for prompt in PROMPTS]


def test_engines_that_take_turns_say_what_each_says_alone() -> None:
    # the same class of module in both, in two forms of the recurrence, and one of mlx-lm's own
    engines = [engine_of("qwen3_5", 1, True), engine_of("qwen3_5", 2, False)]
    stock = Oracle(tiny_model("qwen3_5", seed=1))
    said: list[dict[str, list[int]]] = [{} for _ in engines]
    for engine, answers in zip(engines, said, strict=True):
        answers |= {engine.submit(prompt, PARAMS): [] for prompt in PROMPTS}
    while any(engine.has_work for engine in engines):
        for engine, answers in zip(engines, said, strict=True):
            for delta in engine.step():
                answers[delta.request_id] += delta.token_ids

    assert list(said[0].values()) == expected("qwen3_5", 1)
    assert list(said[1].values()) == expected("qwen3_5", 2)
    assert stock.tokens(PROMPTS[1], 10) == said[0]["request-2"]


def test_engines_in_threads_of_their_own_say_what_each_says_alone() -> None:
    def run(model_type: str, seed: int) -> list[list[int]]:
        with mx.stream(mx.default_device()):
            engine = engine_of(model_type, seed, exact=True)
            return [answer.token_ids for answer in engine.generate(PROMPTS, PARAMS)]

    with ThreadPoolExecutor(max_workers=2) as threads:
        first = threads.submit(run, "qwen3_5", 1)
        second = threads.submit(run, "qwen3_next", 2)

    assert first.result() == expected("qwen3_5", 1)
    assert second.result() == expected("qwen3_next", 2)
