"""Every draft of the engine's MTP head is the one that its cache-free reference makes.

A state that is not what it should be shows in drafts first, and may even raise acceptance.
"""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np
import pytest
from oracle import Oracle

from benchmarks.acceptance import load_reference, read_prompts
from engine.drafting.drafter import Choose
from engine.engine import Engine
from engine.loading import EMBEDDED
from engine.sampling_params import SamplingParams
from scheduler.round import Row

MAX_TOKENS = 24


@pytest.mark.parametrize("depth", [1, 4])
def test_drafts_and_acceptance_equal_the_reference_s_to_the_token(
    depth: int, demo_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = demo_engine("mtp").parts.loaded
    prompts = list(read_prompts(loaded, "chat"))[:3]
    names = [str(number) for number in range(len(prompts))]
    engine = demo_engine("mtp", dict.fromkeys(names, depth))
    made: dict[int, list[tuple[int, tuple[int, ...]]]] = {}  # by sequence: (start, drafts)
    drafter = engine.parts.executor.drafter
    assert drafter is not None
    propose = drafter.propose

    def recorded(rows: Sequence[Row], choose: Choose) -> Mapping[int, tuple[int, ...]]:
        drafts = propose(rows, choose)
        for row in rows:
            made.setdefault(row.seq_id, []).append((row.start, drafts[row.seq_id]))
        return drafts

    monkeypatch.setattr(drafter, "propose", recorded)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    for name, prompt in zip(names, prompts, strict=True):
        engine.submit(prompt, params, request_id=name)
    said: dict[str, list[int]] = {name: [] for name in names}
    accepted: dict[str, int] = {}
    while engine.has_work:
        for delta in engine.step():
            said[delta.request_id] += delta.token_ids
            if delta.usage is not None:
                accepted[delta.request_id] = delta.usage.accepted_tokens

    reference, target = load_reference(loaded), Oracle.load(EMBEDDED["demo"]).model
    for seq_id, name, prompt in zip(sorted(made), names, prompts, strict=True):
        tokens = [*prompt, *said[name]]
        hidden = np.array(target.language_model.model(mx.array([tokens]))[0])
        expected = reference.drafts(np.array(tokens), hidden, depth)
        kept = 0
        for start, drafts in made[seq_id]:
            assert drafts == tuple(expected[start - 1][: len(drafts)])
            pairs = zip(drafts, tokens[start + 1 :], strict=False)
            kept += next((n for n, (one, two) in enumerate(pairs) if one != two), len(drafts))
        assert accepted[name] == kept
