"""Gated-delta layers whose states are written now and then keep what the others keep."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from delta_pair import DeltaPair, Step, make_module

from engine.build import build_parts
from engine.cpu import deferred_layer, products
from engine.cpu.backend import CpuBackend
from engine.cpu.deferred_layer import DeferredLayer
from engine.cpu.lanes import Lanes
from engine.engine import Engine
from engine.loading import load
from engine.options import EngineOptions
from engine.recurrence.delta_layer import DeltaLayer
from engine.recurrence.windows import DividedWindow
from engine.sampling_params import SamplingParams
from scheduler.round import Capture

PROMPTS = ["Once upon a time", "The", "He said that the old house by the river " * 5, "Why?", "So"]
SPECULATION: list[dict[str, Any]] = [
    {},
    {"speculate": 3, "drafter": "mtp"},
    {"speculate": 2, "drafter": "lookup"},
    {"speculate": 2, "drafter": "peer", "draft_model": "demo"},
]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[DividedWindow]:
    """Every cache that a deferred layer opens."""
    caches: list[DividedWindow] = []
    really_open = DeferredLayer.open

    def open_and_note(layer: DeferredLayer, view: Any) -> DividedWindow:
        caches.append(really_open(layer, view))
        return caches[-1]

    monkeypatch.setattr(DeferredLayer, "open", open_and_note)
    return caches


def run(
    backend: str, temperature: float = 0.0, lanes: int = 1, **options: Any
) -> tuple[list[list[int]], list[float], list[mx.array]]:
    """Answers, the log-probabilities of their tokens, and the states left in the slots."""
    sizes = {"max_rows": 4, "num_blocks": 80, "max_context": 256, "backend": backend}
    parts = build_parts(load("demo"), EngineOptions(**sizes, **options))
    layers = parts.executor.store.layers
    recurrent = [one for one in layers if isinstance(one, DeltaLayer | DeferredLayer)]
    for layer in recurrent:
        if isinstance(layer, DeferredLayer):
            layer.lanes = Lanes.make(lanes)
    engine = Engine(parts)
    params = SamplingParams(
        max_tokens=40, temperature=temperature, seed=5, ignore_eos=True, logprobs=1
    )
    answers = list(engine.generate(PROMPTS, params))
    logprobs = [entry.logprob for answer in answers for entry in answer.logprobs or ()]
    assert recurrent
    mx.eval([array for layer in recurrent for array in layer.arrays])
    states = [layer.slots.pools["state"] for layer in recurrent]
    return [answer.token_ids for answer in answers], logprobs, states


@pytest.mark.parametrize("options", SPECULATION, ids=str)
def test_answers_are_those_of_states_written_at_once(opened, options) -> None:
    ids, logprobs, states = run("portable", **options)
    assert not opened
    deferred_ids, deferred_logprobs, deferred_states = run("cpu", **options)
    assert opened
    assert deferred_ids == ids
    assert np.allclose(deferred_logprobs, logprobs, atol=2e-3)
    for mine, theirs in zip(deferred_states, states, strict=True):
        assert mx.allclose(mine, theirs, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("options", SPECULATION[:2], ids=str)
def test_dividing_the_rows_among_lanes_changes_rounding_only(monkeypatch, opened, options) -> None:
    ids, logprobs, states = run("cpu", 0.8, **options)
    assert {len(cache.parts) for cache in opened} == {1}
    monkeypatch.setattr(deferred_layer, "LANE_VALUES", 1)
    for lanes in (2, 3):
        opened.clear()
        divided, other_logprobs, other_states = run("cpu", 0.8, lanes, **options)
        assert max(len(cache.parts) for cache in opened) == lanes
        assert divided == ids
        assert np.allclose(other_logprobs, logprobs, atol=2e-3)
        for mine, theirs in zip(other_states, states, strict=True):
            assert mx.allclose(mine, theirs, rtol=1e-2, atol=2e-3)


def test_rows_of_long_prompts_stay_on_their_lane_from_projection_to_projection(
    monkeypatch, opened
) -> None:
    ids, logprobs, states = run("cpu", 0.8)
    assert all(cache.alone is None for cache in opened)
    monkeypatch.setattr(deferred_layer, "LANE_VALUES", 1)
    monkeypatch.setattr(products, "FEWEST_APART", 16)
    opened.clear()
    apart, other_logprobs, other_states = run("cpu", 0.8, 2)
    assert {cache.alone is None for cache in opened} == {True, False}
    assert apart == ids
    assert np.allclose(other_logprobs, logprobs, atol=2e-3)
    for mine, theirs in zip(other_states, states, strict=True):
        assert mx.allclose(mine, theirs, rtol=1e-2, atol=2e-3)


class Walk:
    """Rounds of any kind over a layer of each kind: prompts, drafts, captures, forks, absences."""

    def __init__(self, seed: int, max_drafts: int, lanes: int) -> None:
        self.chance = np.random.default_rng(seed)
        module = make_module(2, 4, 32, 16, mx.float32)
        self.pair = DeltaPair(module, CpuBackend(), mx.float32, max_drafts, slots=[1, 2, 3, 4, 5])
        layer = self.pair.layers[1]
        assert isinstance(layer, DeferredLayer)
        layer.lanes = Lanes.make(lanes)
        self.layer = layer
        self.max_drafts = max_drafts
        self.captured: set[int] = set()

    def round(self) -> None:
        """Some of the sequences run, some of their drafts are accepted."""
        pick = self.chance.permutation(5)[: self.chance.integers(1, 6)].tolist()
        is_prompt = self.chance.uniform() < 0.15
        steps = [self._step(number, is_prompt) for number in pick]
        ended = [n for n, at in enumerate(self.pair.sequences) if not at.position and n not in pick]
        goes_on = self.pair.sequences[ended[0]] if ended and not steps[0].captures else None
        if goes_on is not None:  # in a slot that somebody has left, from where another one stands
            end = self.pair.sequences[pick[0]].position + steps[0].certain
            steps[0].captures = [Capture(end, goes_on.slot)]
        for portable, ours in self.pair.run(steps):
            assert np.allclose(ours, portable, rtol=1e-3, atol=1e-4)
        if goes_on is not None:
            goes_on.position, goes_on.fold = end, 0
        for step in steps:
            self.pair.accept(step.number, int(self.chance.integers(0, step.drafts + 1)))

    def _step(self, number: int, is_prompt: bool) -> Step:
        at = self.pair.sequences[number]
        certain = int(self.chance.integers(17, 40) if is_prompt else self.chance.integers(1, 4))
        drafts = 0 if is_prompt else int(self.chance.integers(0, self.max_drafts + 1))
        captures = []
        if self.chance.uniform() < 0.3:  # number 6 + n belongs to sequence n
            low = at.position - at.fold
            captures = [
                Capture(int(self.chance.integers(low, at.position + certain + 1)), 6 + number)
            ]
            self.captured.add(6 + number)
        return Step(number, certain, drafts, captures)

    def fork(self) -> None:
        """One sequence goes on from another's slot, or ends and begins again."""
        source, target = self.chance.permutation(5)[:2].tolist()
        ours, theirs = self.pair.sequences[target], self.pair.sequences[source]
        if self.chance.uniform() < 0.3:
            ours.position = ours.fold = 0
            return
        self.pair.copy(theirs.slot, ours.slot)
        ours.position, ours.fold = theirs.position, theirs.fold

    def verify(self) -> None:
        """Slots hold the same: states, and the convolution's inputs before them."""
        begun = [at.slot for at in self.pair.sequences if at.position]
        for slot in [*begun, *self.captured]:
            portable, ours = self.pair.states([slot])
            assert np.allclose(ours, portable, rtol=1e-3, atol=1e-4), slot
            portable, ours = self.pair.histories(slot)
            assert np.array_equal(ours, portable), slot


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("max_drafts", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_any_walk_leaves_what_the_loop_leaves(monkeypatch, seed, max_drafts, lanes) -> None:
    monkeypatch.setattr(deferred_layer, "LANE_VALUES", 1)
    walk = Walk(seed, max_drafts, lanes)
    longest = 0
    for number in range(60):
        walk.round()
        longest = max([longest, *(group.records.count for group in walk.layer.groups)])
        if number % 5 == 4:
            walk.fork()
        if number % 12 == 11:
            walk.verify()
    walk.verify()
    assert longest > 4  # records of several rounds came together


@pytest.mark.parametrize("lanes", [1, 2])
def test_rows_leave_and_come_back_without_being_written_to_their_slots(monkeypatch, lanes) -> None:
    monkeypatch.setattr(deferred_layer, "LANE_VALUES", 1)
    module = make_module(2, 4, 32, 16, mx.float32)
    pair = DeltaPair(module, CpuBackend(), mx.float32, 2, slots=[1, 2, 3, 4, 5])
    layer = pair.layers[1]
    assert isinstance(layer, DeferredLayer)
    layer.lanes = Lanes.make(lanes)

    def rounds(numbers: list[int], accepted: int = 0) -> None:
        for _ in range(2):
            for portable, ours in pair.run([Step(number, 1, accepted) for number in numbers]):
                assert np.allclose(ours, portable, rtol=1e-3, atol=1e-4)
            for number in numbers:
                pair.accept(number, accepted)

    begin = mx.array(layer.slots._pools["state"])
    mx.eval(begin)
    for numbers in ([0, 1, 2, 3, 4], [1, 2, 4], [1, 3], [0, 1, 2, 3, 4]):
        rounds(numbers)
        rounds(numbers, accepted=2)
    assert mx.array_equal(layer.slots._pools["state"], begin)
    for slot in range(1, 6):
        portable, ours = pair.states([slot])
        assert np.allclose(ours, portable, rtol=1e-3, atol=1e-4)


def test_the_next_turn_of_a_conversation_hits_what_decoding_left() -> None:
    """Checkpoints made of records while decoding, on and off block boundaries, are true."""
    sizes = {"max_rows": 4, "num_blocks": 120, "max_context": 512, "max_checkpoint_bytes": 1 << 26}
    params = SamplingParams(max_tokens=45, temperature=0.0, ignore_eos=True, logprobs=1)
    engine = Engine.load("demo", speculate=3, **sizes)
    begun = [engine.encode(prompt) for prompt in PROMPTS]
    first = list(engine.generate(begun, params))
    prompts = [
        [*prompt, *answer.token_ids, *engine.encode(" And then")]
        for prompt, answer in zip(begun, first, strict=True)
    ]
    warm = list(engine.generate(prompts, params))
    cold = list(Engine.load("demo", prefix_cache=False, **sizes).generate(prompts, params))
    for mine, theirs, prompt in zip(warm, cold, begun, strict=True):
        assert mine.usage.cached_tokens >= len(prompt) + 45 - 2 * 16
        assert mine.token_ids == theirs.token_ids
        pairs = zip(mine.logprobs or (), theirs.logprobs or (), strict=True)
        assert all(abs(one.logprob - other.logprob) < 2e-3 for one, other in pairs)
