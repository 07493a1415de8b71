"""The MTP head once more, in plain numpy and without a cache: what the engine's is compared with.

Written from the description of the head alone; imports nothing of the engine and no layer of
mlx-lm. Entry t sees token x[t + 1] and the target's hidden state h[t], has rotary position t, and
predicts x[t + 2]. A deeper draft sees the draft before it, the head's own output and one more
position; it attends the entries up to t and the deeper ones of its own chain.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


class MTPReference:
    """A head with weights named as in a checkpoint, without ``mtp.`` and any quantization."""

    def __init__(
        self,
        weights: Mapping[str, Array],
        config: Mapping[str, Any],
        *,
        embedding: Array,
        lm_head: Array,
        centred_norms: bool,
    ) -> None:
        """``config`` is the text config; ``centred_norms`` means a norm multiplies by 1 + weight.

        ``embedding`` and ``lm_head`` are the target's, both (vocabulary, hidden size).
        """
        self.weights, self.config = weights, config
        self.embedding, self.lm_head = embedding, lm_head
        self.one = 1.0 if centred_norms else 0.0

    def norm(self, name: str, x: Array) -> Array:
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * (self.weights[f"{name}.weight"] + self.one)

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T

    def rotate(self, x: Array, positions: Array) -> Array:
        """Rotate (heads, tokens, channels) by position: the first channels only, in halves."""
        rope = self.config.get("rope_parameters") or self.config
        size = int(x.shape[-1] * rope["partial_rotary_factor"])
        frequencies = rope["rope_theta"] ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        angles = positions[:, None] * frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        first, second, rest = x[..., : size // 2], x[..., size // 2 : size], x[..., size:]
        rotated = [first * cos - second * sin, second * cos + first * sin, rest]
        return np.concatenate(rotated, axis=-1).astype(np.float32)

    def queries_keys_values(self, x: Array, positions: Array) -> tuple[Array, Array, Array, Array]:
        """Return queries, keys, values (heads, tokens, channels) and the output gate."""
        config, prefix = self.config, "layers.0.self_attn"
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        tokens, size = len(x), config["head_dim"]
        both = self.linear(f"{prefix}.q_proj", x).reshape(tokens, heads, 2 * size)
        queries, gate = both[..., :size], both[..., size:].reshape(tokens, heads * size)
        keys = self.linear(f"{prefix}.k_proj", x).reshape(tokens, kv_heads, size)
        values = self.linear(f"{prefix}.v_proj", x).reshape(tokens, kv_heads, size)
        queries = self.norm(f"{prefix}.q_norm", queries).transpose(1, 0, 2)
        keys = self.norm(f"{prefix}.k_norm", keys).transpose(1, 0, 2)
        shared = heads // kv_heads
        return (
            self.rotate(queries, positions),
            np.repeat(self.rotate(keys, positions), shared, axis=0),
            np.repeat(values.transpose(1, 0, 2), shared, axis=0),
            gate,
        )

    def mlp(self, x: Array, prefix: str = "layers.0.mlp") -> Array:
        if f"{prefix}.gate.weight" in self.weights:
            return self.experts(x)
        gate = self.linear(f"{prefix}.gate_proj", x)
        return self.linear(
            f"{prefix}.down_proj", gate * sigmoid(gate) * self.linear(f"{prefix}.up_proj", x)
        )

    def experts(self, x: Array) -> Array:
        prefix = "layers.0.mlp"
        scores = softmax(self.linear(f"{prefix}.gate", x))
        out = np.zeros_like(x)
        for token, row in enumerate(scores):
            chosen = np.argsort(-row)[: self.config["num_experts_per_tok"]]
            total = row[chosen].sum() if self.config["norm_topk_prob"] else 1.0
            for expert in chosen:
                part = self.mlp(x[token : token + 1], f"{prefix}.experts.{expert}")
                out[token] += row[expert] / total * part[0]
        shared_gate = sigmoid(self.linear(f"{prefix}.shared_expert_gate", x))
        return out + shared_gate * self.mlp(x, f"{prefix}.shared_expert")

    def entries(self, tokens: npt.NDArray[np.int64], hidden: Array) -> Array:
        embedded = self.norm("pre_fc_norm_embedding", self.embedding[tokens])
        both = [embedded, self.norm("pre_fc_norm_hidden", hidden)]
        return self.linear("fc", np.concatenate(both, axis=-1))

    def finish(self, x: Array, attended: Array, gate: Array) -> Array:
        """Return the head's output from its input and the attended values (heads, tokens, ...)."""
        attended = attended.transpose(1, 0, 2).reshape(len(x), -1)
        x = x + self.linear("layers.0.self_attn.o_proj", attended * sigmoid(gate))
        x = x + self.mlp(self.norm("layers.0.post_attention_layernorm", x))
        return self.norm("norm", x)

    def outputs(self, tokens: npt.NDArray[np.int64], hidden: Array, depth: int = 1) -> list[Array]:
        """Return, for each depth, the outputs of all entries, (len(tokens) - 1, hidden size).

        ``hidden`` is the target's after its final norm, one row for each of ``tokens``.
        """
        count = len(tokens) - 1
        hide = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        scale = self.config["head_dim"] ** -0.5
        inputs, state = np.asarray(tokens[1:]), hidden[:-1]
        chain: list[tuple[Array, Array]] = []
        found: list[Array] = []
        for step in range(depth):
            x = self.entries(inputs, state)
            queries, keys, values, gate = self.queries_keys_values(
                self.norm("layers.0.input_layernorm", x), np.arange(count) + step
            )
            if step == 0:
                base_keys, base_values = keys, values
            else:
                chain.append((keys, values))
            scores = [queries @ base_keys.transpose(0, 2, 1) + hide]
            scores += [(queries * keys).sum(axis=-1, keepdims=True) for keys, _ in chain]
            shares = softmax(np.concatenate(scores, axis=-1) * scale)
            attended = shares[..., :count] @ base_values
            for number, (_, values) in enumerate(chain):
                attended += shares[..., count + number, None] * values
            state = self.finish(x, attended, gate)
            inputs = self.logits(state).argmax(axis=-1)
            found.append(state)
        return found

    def logits(self, outputs: Array) -> Array:
        return outputs @ self.lm_head.T

    def drafts(
        self, tokens: npt.NDArray[np.int64], hidden: Array, depth: int
    ) -> npt.NDArray[np.int64]:
        """Return the greedy drafts after each of ``tokens[1:]``, (len(tokens) - 1, depth)."""
        outputs = self.outputs(tokens, hidden, depth)
        return np.stack([self.logits(output).argmax(axis=-1) for output in outputs], axis=-1)
