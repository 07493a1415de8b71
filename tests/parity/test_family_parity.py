"""Every family of layers, ragged and in pages, against mlx-lm's forward over its own caches."""

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from by_hand import ByHand
from memory_reader import assert_same_memory, read_memory
from mlx_lm.models.cache import make_prompt_cache
from oracle import Oracle
from tiny_models import CONFIGS, VOCABULARY, as_loaded, tiny_model

from engine.errors import ModelError

REFUSED = {
    "llama4": "keeps its state in a ChunkedKVCache",
    "deepseek_v32": "does not run with one cache offset per row",
}
# a rotating cache holds its keys in another order once it has wrapped, and sums them in it
ROTATING = {"gemma3_text", "gemma4_text", "gpt_oss", "iquestloopcoder", "recurrent_gemma"}
# latent attention takes another form for windows of one token, which padding makes longer
LATENT = {"deepseek_v3", "kimi_linear"}
# sums over a whole chunk: where chunks are cut decides rounding; the same chunks give the same
CHUNKED = {"mamba2", "granitemoehybrid", "nemotron_h", "falcon_h1"}
ROUNDED = ROTATING | LATENT

# tokens that each of three sequences runs, round after round: ragged chunks, late starts, decoding
ROUNDS = ({0: 5, 2: 37}, {0: 1, 1: 23, 2: 1}, {0: 17, 2: 3}, {1: 9, 2: 16, 0: 33}, {0: 1, 2: 1}) + (
    {0: 1, 1: 1, 2: 1},
) * 2


def tokens_of(num_rows: int, length: int = 100) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [[int(t) for t in line] for line in random.integers(0, VOCABULARY, (num_rows, length))]


@pytest.mark.parametrize("model_type", [name for name in CONFIGS if name not in REFUSED])
def test_ragged_batches_say_and_keep_what_stock_caches_do(model_type: str) -> None:
    is_exact = model_type not in ROUNDED | CHUNKED
    by_hand = ByHand.over(as_loaded(tiny_model(model_type), model_type), 3, exact=is_exact)
    oracle = Oracle(tiny_model(model_type))
    caches = [make_prompt_cache(oracle.model) for _ in range(3)]
    tokens = tokens_of(3)
    for lengths in ROUNDS:
        windows = {
            number: tokens[number][by_hand.computed[number] :][:length]
            for number, length in lengths.items()
        }
        found = by_hand.run(windows)
        for number, window in windows.items():
            expected = np.array(oracle.model(mx.array([window]), cache=caches[number])[0, -1:])
            tolerance = 1e-4 if model_type in ROUNDED else 0
            np.testing.assert_allclose(found[number], expected, atol=tolerance, rtol=0)

    if is_exact:
        for number, length in enumerate(by_hand.computed):
            table, slot = by_hand.tables[number], by_hand.slots[number]
            kept = read_memory(by_hand.store, table, slot, length)
            assert_same_memory(kept, oracle.memory(tokens[number][:length]))


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_family_that_cannot_run_is_refused_with_the_cause(model_type: str) -> None:
    with pytest.raises(ModelError, match=re.escape(REFUSED[model_type])):
        ByHand.over(as_loaded(tiny_model(model_type), model_type), 2)


@pytest.mark.parametrize("model_type", sorted(CHUNKED | LATENT))
def test_a_family_whose_sums_depend_on_the_chunks_is_refused_in_exact_mode(model_type: str) -> None:
    loaded = as_loaded(tiny_model(model_type), model_type)

    with pytest.raises(ModelError, match="exact=True cannot hold here"):
        ByHand.over(loaded, 2, exact=True)


def classes_and_globals() -> dict[str, Any]:
    """Everything of mlx-lm and mlx.nn that an assignment could have changed."""
    import sys

    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith(("mlx_lm", "mlx.nn")):
            continue
        for key, value in vars(module).items():
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{field}": part for field, part in vars(value).items()}
    return found


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_next", "gpt_oss", "mamba"])
def test_no_class_and_no_module_of_mlx_lm_is_changed(model_type: str) -> None:
    model = tiny_model(model_type)
    before = classes_and_globals()
    ByHand.over(as_loaded(model, model_type), 2).run({0: [1, 2, 3], 1: [4]})
    after = classes_and_globals()

    changed = {name for name, value in before.items() if after.get(name) is not value}
    assert {
        name for name in changed if not name.endswith((".__annotations__", "__warningregistry__"))
    } == set()
