"""The MTP head: one more decoder layer, which drafts the token after next.

    entry t  = fc(concat[pre_fc_norm_embedding(embed(x[t + 1])), pre_fc_norm_hidden(h[t])])
    output t = norm(layer(entry t)),  logits for x[t + 2] = lm_head(output t)

h[t] is the target's hidden state after its final norm; embed and lm_head are the target's. To
draft further, the output takes the place of h and the draft that of x, one position on.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import create_attention_mask


class MTPHead(nn.Module):
    """The head of one target, with parameters named as checkpoints name them."""

    def __init__(self, args: Any, layer_class: type[nn.Module]) -> None:
        """Build the head with a ``layer_class(args, index)`` of the attention kind."""
        super().__init__()
        width, eps = args.hidden_size, args.rms_norm_eps
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=eps)
        # every full_attention_interval-th layer of these families is an attention layer
        self.layers = [layer_class(args, args.full_attention_interval - 1)]
        self.norm = nn.RMSNorm(width, eps=eps)

    def __call__(
        self,
        embeddings: mx.array,
        hidden: mx.array,
        mask: mx.array | str | None = None,
        cache: Any = None,
    ) -> mx.array:
        """Return the normed output, (rows, width, hidden size), for the target's lm_head.

        ``embeddings`` of x[t + 1] and ``hidden`` of t are of that shape too. Rotary positions are
        ``cache.offset`` onwards, or 0 onwards without a cache; without a mask the cache makes it.
        """
        entry = self.enter(embeddings, hidden)
        if mask is None:
            mask = create_attention_mask(entry, cache)
        output: mx.array = self.norm(self.layers[0](entry, mask=mask, cache=cache))
        return output

    def enter(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        """Return what the decoder layer runs over, shaped like both."""
        entry: mx.array = self.fc(
            mx.concatenate(
                [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)], axis=-1
            )
        )
        return entry
