"""What a run from scratch gives: one forward pass of mlx-lm's own model over all tokens at once."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from oracle import Memory, Oracle

from engine.drafting.mtp import MTPHead
from engine.drafting.mtp_drafter import MTPDrafter
from scheduler.sequence import Sequence as Seq


class Scratch:
    """One model that no engine has touched."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.oracle = Oracle(model)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """After each of ``tokens``, (tokens, vocabulary), without any cache."""
        return np.array(self.model(mx.array([list(tokens)]))[0])

    def memory(self, tokens: Sequence[int]) -> Memory:
        """What fresh caches hold after ``tokens``."""
        return self.oracle.memory(tokens)


class ScratchHead:
    """An MTP head that no engine has touched, over its target's hidden states from scratch."""

    def __init__(self, target: Scratch, head: MTPHead) -> None:
        self.body, self.head = target.model.language_model.model, head
        self.lm_head = target.model.language_model.lm_head

    def check(self, drafter: MTPDrafter, sequence: Seq) -> None:
        """Compare the head's entries, and the hidden states that go on from them."""
        drafter.catch_up()
        tokens = mx.array([sequence.tokens[: sequence.computed]])
        hidden = self.body(tokens)
        cache: Any = KVCache()
        length = sequence.computed - 1
        if length:
            embedded = self.body.embed_tokens(tokens[:, 1:])
            mx.eval(self.head(embedded, hidden[:, :-1], cache=cache))
            pages = [drafter.layer.pages.read_block(block) for block in sequence.blocks]
            for half, expected in enumerate((cache.keys, cache.values)):
                found = mx.concatenate([page[half] for page in pages], axis=1)
                np.testing.assert_array_equal(
                    np.array(found[:, 1 : length + 1]), np.array(expected[0, :, :length])
                )
        hidden = np.array(hidden[0])
        size = drafter.block_size
        for number in range(sequence.computed // size):
            kept = drafter.block_hidden.pools["hidden"][sequence.blocks[number]]
            np.testing.assert_array_equal(np.array(kept), hidden[(number + 1) * size - 1])
        if sequence.computed % size:
            assert sequence.slot is not None
            pending = np.array(drafter.pending.pools["hidden"][sequence.slot])
            np.testing.assert_array_equal(pending, hidden[-1])

    def logits(self, tokens: Sequence[int], drafts: Sequence[int]) -> np.ndarray:
        """From which the drafts after ``tokens`` are picked, (1 + drafts, vocabulary)."""
        known, cache = mx.array([list(tokens)]), KVCache()
        hidden = self.body(known)
        output = self.head(self.body.embed_tokens(known[:, 1:]), hidden[:, :-1], cache=cache)
        outputs = [output[:, -1:]]
        for draft in drafts:
            embedded = self.body.embed_tokens(mx.array([[draft]]))
            outputs.append(self.head(embedded, outputs[-1], cache=cache))
        return np.array(self.lm_head(mx.concatenate(outputs, axis=1))[0])
