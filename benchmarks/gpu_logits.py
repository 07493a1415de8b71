"""How far logits of the CUDA backend are from a float32 forward, beside mlx-lm's own in bfloat16.

Prompts are read in one chunk; the tokens after them run as plain decode steps, or as windows of a
token and accepted drafts. The reference is mlx-lm's model with the same weights in float32, without
a cache. Run it with MLX_ENABLE_TF32=0, or the reference rounds as well.

    MLX_ENABLE_TF32=0 python -m benchmarks.gpu_logits demo dense-demo dense hybrid
"""

import argparse
import gc
import json
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

from engine.batch import Batch, Window
from engine.forward import Forward
from engine.loading import load
from engine.options import EngineOptions
from engine.prepared import prepare
from engine.store import Store
from engine.view import BatchView
from scheduler.round import Row

from .shapes import as_loaded, twin
from .shapes_4b import build_model

PROMPT, DECODED, BLOCK = 80, 12, 16


def engine_logits(model: Any, name: str, texts: np.ndarray, drafts: int) -> np.ndarray:
    """Logits (rows, DECODED, vocabulary) through the CUDA backend's kernels."""
    loaded = as_loaded(twin(model), name)
    forward = Forward(loaded.model)
    options = EngineOptions(backend="cuda", block_size=BLOCK)
    ready = prepare(loaded, options, forward, max(drafts, 1), must_be_exact=False)
    table = -(-(PROMPT + DECODED) // BLOCK)
    store = ready.make_store(1 + len(texts) * table, 1 + len(texts))
    forward.run_body = ready.backend.compile_body(forward.run_body, store.layers)

    def row(number: int, start: int, tokens: Sequence[int], fold: int) -> Row:
        blocks = tuple(range(1 + number * table, 1 + (number + 1) * table))
        used = blocks[: -(-(start + len(tokens) + drafts) // BLOCK)]
        return Row(number, tuple(tokens), start, used, slot=1 + number, fold=fold)

    def run(windows: list[Window]) -> np.ndarray:
        return np.array(_run(forward, store, windows).astype(mx.float32))

    run([Window(row(n, 0, text[:PROMPT].tolist(), 0)) for n, text in enumerate(texts)])
    outputs, at, fold = [], PROMPT, 0
    while at < PROMPT + DECODED:
        width = min(1 + drafts, PROMPT + DECODED - at)
        outputs.append(
            run(
                [
                    Window(
                        row(n, at, [int(text[at])], fold), tuple(text[at + 1 : at + width].tolist())
                    )
                    for n, text in enumerate(texts)
                ]
            )
        )
        at, fold = at + width, width - 1
    return np.concatenate(outputs, axis=1)


def _run(forward: Forward, store: Store, windows: list[Window]) -> mx.array:
    batch = Batch(windows, BLOCK, keep_order=True)
    view = BatchView(batch)
    caches = store.open(view)
    hidden = forward.hidden(batch.tokens(), caches)
    logits = forward.logits(hidden[:, -9:])
    mx.eval(logits, store.pending(caches))
    store.store(view, caches)
    return logits


def mlx_lm_logits(model: Any, texts: np.ndarray) -> np.ndarray:
    """The same through mlx-lm's own caches, token by token after the prompt."""
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array(texts[:, :PROMPT]), cache=caches))
    outputs = []
    for at in range(PROMPT, PROMPT + DECODED):
        logits = model(mx.array(texts[:, at : at + 1]), cache=caches)
        outputs.append(np.array(logits.astype(mx.float32)))
    return np.concatenate(outputs, axis=1)


def reference_logits(model: Any, texts: np.ndarray) -> np.ndarray:
    """The same by one float32 forward without a cache."""
    wide = type(model)(model.args)
    wide.update(tree_map(lambda x: x.astype(mx.float32), model.parameters()))
    return np.array(wide(mx.array(texts))[:, PROMPT:])


def relative_error(logits: np.ndarray, reference: np.ndarray) -> float:
    """Norm of the difference over the norm of what all positions have in common subtracted."""
    centred = reference - reference.mean(axis=-1, keepdims=True)
    difference = logits - reference
    difference -= difference.mean(axis=-1, keepdims=True)
    return float(np.linalg.norm(difference) / np.linalg.norm(centred))


def bfloat16_model(name: str) -> Any:
    if name in ("dense", "hybrid"):
        return build_model(name)
    return load(name, dtype="bfloat16").model


def compare(name: str, rows: int) -> dict[str, Any]:
    """Errors of one model with ``rows`` rows."""
    model = bfloat16_model(name)
    text: Any = getattr(model, "language_model", model)
    vocabulary = text.model.embed_tokens.weight.shape[0]
    random = np.random.default_rng(rows)
    texts = random.integers(10, min(vocabulary, 8000), (rows, PROMPT + DECODED)).astype(np.int32)
    reference = reference_logits(model, texts)
    line: dict[str, Any] = {"benchmark": "gpu_logits", "model": name, "rows": rows}
    for drafts in (0, 3):
        ours = engine_logits(model, name, texts, drafts)
        line[f"window_{drafts + 1}"] = round(relative_error(ours, reference), 5)
    line["mlx_lm"] = round(relative_error(mlx_lm_logits(twin(model), texts), reference), 5)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="dense, hybrid (4B, random), or a model to load")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    for name in arguments.models:
        for rows in arguments.rows:
            print(json.dumps(compare(name, rows)), flush=True)
            gc.collect()
            mx.clear_cache()


if __name__ == "__main__":
    main()
