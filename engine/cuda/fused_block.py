"""Decoder blocks whose few rows run in five launches, or two (chains.py), instead of some twenty.

A block is norm, attention or gated delta, residual, norm, feed-forward, residual; each of its two
halves is fused where the kernels take it, and runs as mlx-lm wrote it where not. Over many rows a
library multiplies, and kernels do what lies between (long_windows.py).
"""

import logging
from collections import Counter
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen3, qwen3_5, qwen3_moe, qwen3_next

from . import chains, fusing, product
from .delta_layer import CudaDeltaWindow
from .fused_attention import FusedAttention
from .fused_delta import FusedDelta
from .fused_feed_forward import FusedFeedForward
from .paged_cache import CudaPagedCache

logger = logging.getLogger("octavo")
BLOCKS_AT_ONCE = 4  # over many rows: the device begins with them while the next ones are made

BLOCKS = (  # h = x + mix(norm(x)); h + mlp(norm(h))
    llama.TransformerBlock,
    qwen3.TransformerBlock,
    qwen3_5.DecoderLayer,
    qwen3_moe.Qwen3MoeDecoderLayer,
    qwen3_next.Qwen3NextDecoderLayer,
)


class FusedBlock(nn.Module):
    """What a decoder block of a loaded model becomes; its parameters stay where they are."""

    mixer: FusedAttention | FusedDelta | None
    feed_forward: FusedFeedForward | None
    norms: tuple[product.Norm, product.Norm]
    any_rows: bool
    starts: bool  # over many rows, the device is to begin with what is made so far
    chained: chains.ChainedBlock | None = None

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """Run the window of ``cache`` over ``x``, (rows, width, hidden)."""
        if not (fusing.is_few(x) or self.any_rows):
            if x.dtype == mx.bfloat16:
                return self._run_long(x, mask, cache)
            whole: mx.array = super().__call__(x, mask, cache)
            return whole
        chain = getattr(cache, "chain", None)
        if chain is not None and self.chained and self.mixer and chain.may_run:
            projected = chain.projected(x)
            if projected is None:
                projected = fusing.multiply(x, self.mixer.weights, norm=self.norms[0])
            following: mx.array = chain.follow(self.chained, self.mixer.mix(projected, cache), x)
            return following
        h = self._mix(x, mask, cache)
        if self.feed_forward is not None:
            return self.feed_forward.run(h, self.norms[1])
        out: mx.array = h + self.mlp(self.post_attention_layernorm(h))
        return out

    def _run_long(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """Many rows: what lies between a library's products by kernels, where they take it."""
        mixer = self.mixer
        takes = (
            (isinstance(cache, CudaPagedCache) and cache.takes_heads and mixer.takes_long)
            if isinstance(mixer, FusedAttention)
            else isinstance(mixer, FusedDelta) and isinstance(cache, CudaDeltaWindow)
        )
        if mixer is not None and takes:
            h = mixer.run_long(x, self.input_layernorm, cache)
        else:
            module = self.linear_attn if "linear_attn" in self else self.self_attn
            h = x + module(self.input_layernorm(x), mask, cache)
        if self.feed_forward is not None:
            out: mx.array = self.feed_forward.run_long(h, self.post_attention_layernorm)
        else:
            out = h + self.mlp(self.post_attention_layernorm(h))
        if self.starts:
            mx.async_eval(out)  # type: ignore[no-untyped-call]
        return out

    def _mix(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        mixer = self.mixer
        if isinstance(cache, (CudaPagedCache, CudaDeltaWindow)) and mixer and cache.takes_projected:
            fused: mx.array = mixer.run(x, self.norms[0], cache)
            return fused
        normed = self.input_layernorm(x)
        module = self.linear_attn if "linear_attn" in self else self.self_attn
        out: mx.array = x + module(normed, mask, cache)
        return out


def bind(model: nn.Module, *, any_rows: bool = False) -> int:
    """Give the decoder blocks of ``model`` that can be fused their class; return how many.

    They are fused for few rows, or, at a cost, for ``any_rows``. Only these instances change. What
    cannot be fused is logged, once for each cause.
    """
    causes: Counter[str] = Counter()
    kinds: dict[type, type] = {}
    count = 0
    for block in model.modules():
        if not isinstance(block, BLOCKS) or isinstance(block, FusedBlock):
            continue
        norms = (block.input_layernorm, block.post_attention_layernorm)
        if any(type(norm) is not nn.RMSNorm for norm in norms):
            causes[f"norms of kind {type(norms[0]).__name__}"] += 1
            continue
        mixer: Any = (
            FusedDelta.of(block.linear_attn)
            if "linear_attn" in block
            else FusedAttention.of(block.self_attn)
        )
        feed_forward: Any = FusedFeedForward.of(block.mlp)
        causes.update(part for part in (mixer, feed_forward) if isinstance(part, str))
        if isinstance(mixer, str) and isinstance(feed_forward, str):
            continue
        kind = type(block)
        if kind not in kinds:
            kinds[kind] = type(f"Fused{kind.__name__}", (FusedBlock, kind), {})
        block.__class__ = kinds[kind]
        plan = {
            "mixer": None if isinstance(mixer, str) else mixer,
            "feed_forward": None if isinstance(feed_forward, str) else feed_forward,
            "norms": tuple(map(product.norm_of, norms)),
            "any_rows": any_rows,
            "starts": count % BLOCKS_AT_ONCE == BLOCKS_AT_ONCE - 1,
        }
        for name, value in plan.items():
            object.__setattr__(block, name, value)  # a Module would take a tuple for parameters
        count += 1
    for cause, times in causes.items():
        logger.info("%d decoder blocks run in parts for %s", times, cause)
    if not any_rows:
        _chain(model)
    return count


def _chain(model: nn.Module) -> None:
    """Let each block of ``model`` multiply for the one after it, where all are whole."""
    blocks = list(getattr(model, "layers", ()))
    if not blocks or why_not_whole(model) is not None:
        return
    chained = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        module = block.feed_forward.module
        chained.append(
            chains.ChainedBlock(
                mixed=block.mixer.out_weight,
                norm=block.norms[1],
                gate=module.gate_proj.weight,
                up=module.up_proj.weight,
                down=module.down_proj.weight,
                following=None
                if following is None
                else chains.Following(following.norms[0], following.mixer.weights),
            )
        )
    cause = chains.why_not(chained)
    if cause is not None:
        logger.info("products run in launches of their own for %s", cause)
        return
    workspace = chains.Workspace(chained)
    for block, one in zip(blocks, chained, strict=True):
        one.workspace = workspace
        object.__setattr__(block, "chained", one)


def why_not_whole(model: nn.Module) -> str | None:
    """Say which part of ``model`` that multiplies runs outside of kernels; None if none does."""
    for block in getattr(model, "layers", ()):
        if not isinstance(block, FusedBlock):
            return f"a decoder block of kind {type(block).__name__}"
        if block.mixer is None or block.feed_forward is None:
            part = "mixing" if block.mixer is None else "feed-forward"
            return f"the {part} part of {type(block).__name__}"
    return None
