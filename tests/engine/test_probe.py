"""How far a model may lie from mlx-lm's own forward: by its type, or by its own rounding."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import as_loaded, tiny_model

from engine.build import build_parts
from engine.errors import ModelError
from engine.options import EngineOptions
from engine.probe import check_model


def probe_of(difference: float, spread: float) -> Any:
    reference = mx.array([-4.0, 1.0, 3.0])
    return SimpleNamespace(
        block_size=16,
        run=lambda _chunk, members: [reference + difference for _ in members],
        reference=lambda _number: reference,
        spread=lambda _number: spread,
    )


@pytest.mark.parametrize(("difference", "spread"), [(0.39, 0.0), (0.6, 0.31)])
def test_a_difference_within_the_types_rounding_or_the_models_own_passes(
    difference: float, spread: float
) -> None:
    check_model(probe_of(difference, spread), mx.bfloat16)


@pytest.mark.parametrize(
    ("difference", "spread"), [(0.6, 0.2), (float("nan"), 1.0), (1.0, float("nan"))]
)
def test_a_larger_difference_is_refused(difference: float, spread: float) -> None:
    with pytest.raises(ModelError, match="logits of a 5-token prompt differ by"):
        check_model(probe_of(difference, spread), mx.bfloat16)


@pytest.mark.parametrize("block_size", [1, 2, 5, 16, 40])
def test_who_takes_padding_for_tokens_is_found_out_whatever_the_blocks(block_size: int) -> None:
    loaded = as_loaded(tiny_model("jamba"), "jamba")
    options = EngineOptions(max_rows=2, num_blocks=50, block_size=block_size, backend="portable")

    assert not build_parts(loaded, options).executor.store.method.pads
