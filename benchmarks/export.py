"""Writes a model of ``benchmarks.shapes``, or a folder of weights, as a folder of float32.

So that every program in a comparison reads the same numbers. MTP heads are left out.

    python -m benchmarks.export dense-0.6b build/models/dense-0.6b
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from engine.loading import TOKENIZER_FILES, load

from .shapes import DENSE_06B, HYBRID_08B, SHAPES, build_model

MADE: dict[str, dict[str, Any]] = {  # config.json of the shapes with random weights
    "dense-0.6b": {"architectures": ["Qwen3ForCausalLM"], **DENSE_06B},
    "hybrid-0.8b": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": HYBRID_08B,
        "tie_word_embeddings": True,
    },
}


def export(name: str, folder: Path) -> None:
    """Write the shape or model called ``name`` to ``folder``, which appears when it is whole."""
    unfinished = folder.with_name(folder.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if name in MADE:
        model, config = build_model(name, mx.float32), MADE[name]
        tokenizer = load("demo").path
    else:
        loaded = load(name, dtype="float32")
        model, tokenizer = loaded.model, loaded.path
        config = json.loads((loaded.path / "config.json").read_text())
        config["dtype"] = "float32"
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(unfinished / "model.safetensors"), weights, {"format": "mlx"})
    (unfinished / "config.json").write_text(json.dumps(config, indent=2))
    for file in (*TOKENIZER_FILES, "special_tokens_map.json", "generation_config.json"):
        if (tokenizer / file).exists():
            shutil.copy(tokenizer / file, unfinished / file)
    unfinished.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help=f"{', '.join(SHAPES)}, demo-draft or a folder")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    export(arguments.name, arguments.folder)


if __name__ == "__main__":
    main()
