"""The forward pass in two parts: hidden states, and logits of the positions that want them."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import tiny_model

from engine.forward import Forward

TOKENS = mx.array([[1, 2, 3, 4, 5]])


@pytest.mark.parametrize(
    ("model_type", "changes", "is_split"),
    [
        ("llama", {}, True),
        ("llama", {"tie_word_embeddings": True}, True),
        ("qwen3_5", {}, True),
        ("qwen3_5", {"tie_word_embeddings": True}, True),
        ("mamba2", {}, False),  # its body goes by another name
        ("granitemoehybrid", {}, False),  # it scales its logits
    ],
)
def test_the_parts_give_what_the_model_gives(
    model_type: str, changes: dict[str, bool], is_split: bool
) -> None:
    model = tiny_model(model_type, **changes)
    forward = Forward(model)
    hidden = forward.hidden(TOKENS, make_prompt_cache(model))

    assert forward.is_split is is_split
    assert hidden.shape[-1] == (32 if is_split else 96)
    assert mx.array_equal(forward.logits(hidden), model(TOKENS, cache=make_prompt_cache(model)))
    assert forward.dtype == mx.float32


def test_forward_passes_are_counted() -> None:
    model = tiny_model("llama")
    forward = Forward(model)
    forward.hidden(TOKENS, make_prompt_cache(model))
    forward.hidden(TOKENS, make_prompt_cache(model))

    assert forward.num_calls == 2
