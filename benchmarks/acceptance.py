"""How many drafts of the demo's MTP head its target accepts, counted by the cache-free reference.

    python -m benchmarks.acceptance --prompts chat --limit 29

Each prompt is continued greedily by mlx-lm's own generation first; rounds of k drafts are then
replayed over the continuation. The prompt's own pass gives the first token and has no drafts; a
round keeps the drafts that equal the continuation and gains one token more.
What an engine accepts on the same prompts must equal these counts, whatever state it keeps.
"""

import engine  # noqa: F401  (loads a BLAS, which has to be there before mlx is)

# isort: split
import argparse
import json
import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step

from engine.loading import DEMO_PROMPTS, LoadedModel, load
from tests.engine.mtp_reference import MTPReference


def load_reference(target: LoadedModel) -> MTPReference:
    """Read the bundled head's tensors as they are stored, past the engine's own loading."""
    files = {header.file for header in target.tensors.values()}
    stored: dict[str, Any] = {}
    for file in files:
        stored |= mx.load(str(file))
    arrays = {name: np.array(weight.astype(mx.float32)) for name, weight in stored.items()}
    embedding = arrays["model.language_model.embed_tokens.weight"]
    return MTPReference(
        {name[4:]: weight for name, weight in arrays.items() if name.startswith("mtp.")},
        target.config["text_config"],
        embedding=embedding,
        lm_head=embedding,
        centred_norms=True,
    )


def read_prompts(target: LoadedModel, kind: str) -> Iterator[list[int]]:
    """Yield the demo's prompts as tokens: conversations, or plain texts but the long ones."""
    for line in map(json.loads, DEMO_PROMPTS.read_text().splitlines()):
        if kind == "chat" and "messages" in line:
            yield target.tokenizer.apply_chat_template(line["messages"], add_generation_prompt=True)
        elif kind == "text" and "prompt" in line and not line["custom_id"].startswith("long"):
            yield target.tokenizer.encode(line["prompt"])


def continue_greedily(target: LoadedModel, prompt: list[int], most: int) -> list[int]:
    tokens = list(prompt)
    for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=most):
        tokens.append(int(token))
        if token in target.eos_ids:
            break
    return tokens


def replay(
    tokens: list[int], num_prompt: int, drafts: np.ndarray, depth: int
) -> tuple[int, int, int]:
    """Return how many rounds of ``depth`` drafts ``tokens`` take, and drafts made and accepted.

    ``drafts[i]`` are those made once tokens[: i + 2] are known.
    """
    newest, last = num_prompt, len(tokens) - 1
    rounds = drafted = accepted = 0
    while newest < last:
        room, kept = min(depth, last - newest), 0
        while kept < room and drafts[newest - 1][kept] == tokens[newest + 1 + kept]:
            kept += 1
        rounds, drafted, accepted = rounds + 1, drafted + room, accepted + kept
        newest += kept + 1
    return rounds, drafted, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", choices=("chat", "text"), default="chat")
    parser.add_argument("--limit", type=int, default=6, help="prompts; all 29 chats take a minute")
    parser.add_argument("--tokens", type=int, default=96, help="longest continuation")
    parser.add_argument("--depth", type=int, default=4, help="most drafts a round")
    options = parser.parse_args()

    target = load("demo", dtype="float32")
    reference = load_reference(target)
    totals = np.zeros((options.depth, 4), np.int64)  # rounds, drafted, accepted, tokens
    for number, prompt in enumerate(read_prompts(target, options.prompts)):
        if number == options.limit:
            break
        tokens = continue_greedily(target, prompt, options.tokens)
        hidden = np.array(target.model.language_model.model(mx.array([tokens]))[0])
        drafts = reference.drafts(np.array(tokens), hidden, options.depth)
        for depth in range(1, options.depth + 1):
            counts = replay(tokens, len(prompt), drafts, depth)
            totals[depth - 1] += (*counts, len(tokens) - 1 - len(prompt))
    for depth, (rounds, drafted, accepted, tokens_made) in enumerate(totals.tolist(), 1):
        line = {
            "benchmark": "acceptance",
            "prompts": options.prompts,
            "k": depth,
            "accepted": accepted,
            "drafted": drafted,
            "rate": round(accepted / drafted, 3) if drafted else math.nan,
            "tokens_a_target_pass": round(tokens_made / rounds, 2) if rounds else math.nan,
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
