"""Two engines that draft, each in a thread of its own, say what either says alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from engine.engine import Engine
from engine.sampling_params import SamplingParams

PROMPTS = ("Once upon a time there was", "The old man said that")
OPTIONS: tuple[dict[str, Any], ...] = (
    {"drafter": "mtp"},
    {"drafter": "peer", "draft_model": "demo-draft"},
)


def say(options: dict[str, Any]) -> list[list[int]]:
    sizes = {"num_blocks": 40, "max_rows": 2, "max_context": 128}
    return answers(Engine.load("demo", speculate=3, exact=True, **sizes, **options))


def answers(engine: Engine) -> list[list[int]]:
    params = SamplingParams(max_tokens=16, seed=2, temperature=0.8, ignore_eos=True)
    return [answer.token_ids for answer in engine.generate(PROMPTS, params)]


def test_engines_in_two_threads_do_not_disturb_each_other(
    demo_engine: Callable[..., Engine],
) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(say, OPTIONS))

    assert found[0] == found[1] == answers(demo_engine("plain"))
