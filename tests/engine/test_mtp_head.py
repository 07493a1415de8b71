"""The MTP head computes what its reference computes, from wherever its tensors come."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from mtp_checkpoints import FAMILIES, make_tiny, publish
from mtp_reference import MTPReference

from engine.drafting.mtp import MTPHead
from engine.drafting.mtp_loading import bundled_head, published_head
from engine.loading import DEMO_PROMPTS, EMBEDDED, LoadedModel, load

Examples = list[tuple[list[int], mx.array]]

PROMPTS = {"chat-08", "chat-26", "passage-02"}


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return load("demo")


@pytest.fixture(scope="module")
def head(target: LoadedModel) -> MTPHead:
    found = bundled_head(target)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reference() -> MTPReference:
    stored: dict[str, mx.array] = {}
    for file in EMBEDDED["demo"].glob("*.safetensors"):
        stored |= mx.load(str(file))
    arrays = {name: np.array(weight.astype(mx.float32)) for name, weight in stored.items()}
    embedding = arrays["model.language_model.embed_tokens.weight"]
    return MTPReference(
        {name[4:]: weight for name, weight in arrays.items() if name.startswith("mtp.")},
        json.loads((EMBEDDED["demo"] / "config.json").read_text())["text_config"],
        embedding=embedding,
        lm_head=embedding,
        centred_norms=True,
    )


@pytest.fixture(scope="module")
def examples(target: LoadedModel) -> Examples:
    """Prompts as tokens, with the target's hidden states after its final norm."""
    lines = [json.loads(line) for line in DEMO_PROMPTS.read_text().splitlines()]
    found = []
    for line in (line for line in lines if line["custom_id"] in PROMPTS):
        if "prompt" in line:
            tokens = target.tokenizer.encode(line["prompt"])
        else:
            tokens = target.tokenizer.apply_chat_template(
                line["messages"], add_generation_prompt=True
            )
        found.append((tokens, target.model.language_model.model(mx.array([tokens]))))
    return found


def embed(target: LoadedModel, tokens: list[int]) -> mx.array:
    embedded: mx.array = target.model.language_model.model.embed_tokens(mx.array([tokens]))
    return embedded


def test_the_bundled_head_gives_the_reference_s_logits_at_every_position(
    target: LoadedModel, head: MTPHead, reference: MTPReference, examples: Examples
) -> None:
    for tokens, hidden in examples:
        output = head(embed(target, tokens[1:]), hidden[:, :-1])
        logits = target.model.language_model.model.embed_tokens.as_linear(output)
        expected = reference.logits(reference.outputs(np.array(tokens), np.array(hidden[0]))[0])

        np.testing.assert_allclose(np.array(logits[0]), expected, atol=1e-4)


def test_drafting_in_a_chain_over_a_cache_gives_the_reference_s_drafts(
    target: LoadedModel, head: MTPHead, reference: MTPReference, examples: Examples
) -> None:
    to_logits = target.model.language_model.model.embed_tokens.as_linear
    for tokens, hidden in examples:
        expected = reference.drafts(np.array(tokens), np.array(hidden[0]), depth=4)
        for known in (2, 3, len(tokens) // 2, len(tokens)):
            cache = KVCache()
            half = known // 2  # the entries in two chunks
            if half > 1:
                head(embed(target, tokens[1:half]), hidden[:, : half - 1], cache=cache)
            first = max(half, 1)
            state = head(
                embed(target, tokens[first:known]), hidden[:, first - 1 : known - 1], cache=cache
            )[:, -1:]
            drafts = []
            for _ in range(4):
                drafts.append(int(mx.argmax(to_logits(state)[0, -1])))
                state = head(embed(target, drafts[-1:]), state, cache=cache)

            assert drafts == expected[known - 2].tolist()


def test_a_head_published_apart_computes_bitwise_what_the_bundled_one_does(
    target: LoadedModel, head: MTPHead, examples: Examples, tmp_path: Path
) -> None:
    apart = published_head(str(publish(EMBEDDED["demo"], tmp_path / "head")), target)
    for tokens, hidden in examples:
        embedded = embed(target, tokens[1:])

        assert mx.array_equal(apart(embedded, hidden[:, :-1]), head(embedded, hidden[:, :-1]))


@pytest.mark.parametrize("form", ["raw", "converted", "quantized"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_form_of_checkpoint_gives_the_reference_s_outputs(
    family: str, form: str, tmp_path: Path
) -> None:
    folder = tmp_path / family
    weights = make_tiny(family, form, folder, EMBEDDED["demo"])
    target = load(str(folder), dtype="float32")
    head = bundled_head(target)
    assert head is not None
    text = getattr(target.model, "language_model", target.model)
    embedding = np.array(text.model.embed_tokens(mx.arange(target.vocab_size)))
    config: dict[str, Any] = FAMILIES[family].get("text_config", FAMILIES[family])
    reference = MTPReference(
        weights, config, embedding=embedding, lm_head=embedding, centred_norms=False
    )
    tokens = np.array([5, 900, 17, 8000, 17, 17, 3, 4, 2500, 1, 0, 63])
    hidden = np.random.default_rng(0).normal(size=(12, 64)).astype(np.float32)

    output = head(text.model.embed_tokens(mx.array(tokens[None, 1:])), mx.array(hidden[None, :-1]))

    assert ("scales" in head.fc) is (form == "quantized")
    np.testing.assert_allclose(np.array(output[0]), reference.outputs(tokens, hidden)[0], atol=2e-4)


def test_a_quantized_head_is_unpacked_with_its_target_on_a_cpu(tmp_path: Path) -> None:
    make_tiny("qwen3_5", "quantized", tmp_path / "model", EMBEDDED["demo"])
    head = bundled_head(load(str(tmp_path / "model")))

    assert head is not None
    assert "scales" not in head.fc


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_whether_norms_are_less_one_is_never_told_by_their_mean(
    copy_model: Callable[[str], Path], mean: float
) -> None:
    folder = copy_model("demo")
    for file in folder.glob("*.safetensors"):
        weights = dict(mx.load(str(file)))
        for name in [name for name in weights if name.startswith("mtp.") and "norm" in name]:
            weights[name] = mx.full(weights[name].shape, mean, mx.bfloat16)
        mx.eval(weights)
        mx.save_safetensors(str(file), weights)

    head = bundled_head(load(str(folder)))

    assert head is not None
    layer = head.layers[0]
    norms = [head.norm, head.pre_fc_norm_embedding, head.pre_fc_norm_hidden]
    norms += [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
    assert all(mx.all(norm.weight == mean + 1.0) for norm in norms)


def test_the_head_gets_the_type_of_its_target() -> None:
    head = bundled_head(load("demo", dtype="bfloat16"))

    assert head is not None
    assert head.fc.weight.dtype == mx.bfloat16
