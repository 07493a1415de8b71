"""What is tried out at load: exact mode where it holds, and models that pages would spoil."""

import os
import subprocess
import sys
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import as_loaded, tiny_model

from engine.build import build, build_parts
from engine.errors import ModelError
from engine.options import EngineOptions
from engine.recurrence.arrays_layer import OpenArrays

SMALL = EngineOptions(max_rows=2, num_blocks=20)
EXACT = EngineOptions(max_rows=2, num_blocks=20, exact=True)

TRY_EXACT = """
from engine import blas
from engine.build import build
from engine.errors import ModelError
try:
    build("demo-draft", max_rows=2, num_blocks=20, max_context=256, exact=True)
    print("exact", blas.current().name)
except ModelError as error:
    print("refused", error)
"""


def test_exact_mode_holds_or_says_which_blas_is_to_blame() -> None:
    run = subprocess.run(
        [sys.executable, "-c", TRY_EXACT],
        env={**os.environ, "OCTAVO_BLAS": "openblas"},
        capture_output=True,
        text=True,
        check=True,
    )

    verdict, reason = run.stdout.split(maxsplit=1)
    if verdict == "refused":
        assert "exact=True cannot hold here: with openblas" in reason
        assert "differ by" in reason
    else:  # the kernels of this machine's processor keep rows apart, or there is no OpenBLAS
        assert reason.strip() in ("openblas", "reference")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exact_mode_needs_float32(dtype: str) -> None:
    with pytest.raises(ModelError, match=rf"exact=True needs float32 weights, not .*{dtype}"):
        build("demo-draft", max_rows=2, num_blocks=20, exact=True, dtype=dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types_run_where_exactness_is_not_asked_for(dtype: str) -> None:
    described = build("demo-draft", max_rows=2, num_blocks=20, dtype=dtype).describe()

    assert (described["dtype"], described["exact"]) == (dtype, False)


def test_exact_mode_is_refused_for_a_model_whose_rows_depend_on_the_chunks() -> None:
    with pytest.raises(ModelError, match=r"logits of a prompt alone .* differ by"):
        build_parts(as_loaded(tiny_model("mamba2"), "mamba2"), EXACT)


def test_a_module_that_takes_padding_for_tokens_runs_rows_of_one_length_together() -> None:
    padding = build_parts(as_loaded(tiny_model("lfm2"), "lfm2"), SMALL)
    not_padding = build_parts(as_loaded(tiny_model("jamba"), "jamba"), SMALL)

    assert padding.executor.store.method.pads
    assert not not_padding.executor.store.method.pads


def test_attention_that_looks_into_its_keys_gets_them_gathered() -> None:
    by_span = build_parts(as_loaded(tiny_model("deepseek_v2"), "deepseek_v2"), SMALL)
    gathered = build_parts(as_loaded(tiny_model("deepseek_v3"), "deepseek_v3"), SMALL)

    assert not by_span.executor.store.method.gathers
    assert gathered.executor.store.method.gathers


def test_a_model_that_pages_would_spoil_is_refused_with_the_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(self: OpenArrays, _index: int) -> Any:
        return None

    monkeypatch.setattr(OpenArrays, "__getitem__", forget)

    with pytest.raises(ModelError, match=r"does not run over pages as .* differ by \d"):
        build_parts(as_loaded(tiny_model("lfm2"), "lfm2"), SMALL)


def test_trying_a_model_out_leaves_no_forward_pass_counted() -> None:
    assert (
        build_parts(as_loaded(tiny_model("qwen3"), "qwen3"), EXACT).executor.forward.num_calls == 0
    )


def test_logits_that_are_not_numbers_are_refused() -> None:
    model = tiny_model("qwen3")
    model.model.norm.weight = mx.full(model.model.norm.weight.shape, mx.nan)

    with pytest.raises(ModelError, match="differ by nan"):
        build_parts(as_loaded(model, "qwen3"), SMALL)
