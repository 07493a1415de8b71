"""What a user may choose when loading an engine."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of ``Engine.load``. Raises ValueError, naming the option, for values out of range.

    max_rows: sequences that decode at once. num_blocks: K/V blocks, instead of as many as memory
    allows. block_size: positions a block. prompt_tokens_per_round: most prompt tokens a round
    computes; a larger number starts answers sooner and makes running ones wait longer.
    max_context: most tokens of a prompt and its answer; by default the model's own.
    dtype: weights' type (float32, bfloat16, float16); float32 on a CPU by default, elsewhere the
    checkpoint's. exact: bitwise the same output whatever the batch, chunks and cache; refused where
    it cannot hold. prefix_cache: share computed prefixes. max_checkpoint_bytes: memory for kept
    recurrent states. check: verify every scheduler invariant at every event (slow).
    """

    max_rows: int = 32
    num_blocks: int | None = None
    block_size: int = 16
    prompt_tokens_per_round: int | None = None
    max_context: int | None = None
    dtype: str | None = None
    exact: bool = False
    prefix_cache: bool = True
    max_checkpoint_bytes: int | None = None
    speculate: Literal["off"] = "off"
    check: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("max_rows", 1),
            ("num_blocks", 2),
            ("block_size", 1),
            ("prompt_tokens_per_round", 1),
            ("max_context", 2),
            ("max_checkpoint_bytes", 0),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")
        if self.dtype not in (None, "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype must be float32, bfloat16 or float16, not {self.dtype!r}")
        if self.speculate != "off":
            raise ValueError(f"speculate must be 'off', not {self.speculate!r}")
