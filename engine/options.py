"""What a user may choose when loading an engine."""

from dataclasses import dataclass
from typing import Literal

DrafterName = Literal["mtp", "peer", "lookup"]

MAX_DEPTH = 8
AUTO_DEPTH = 4  # the most drafts that "auto" tries


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of ``Engine.load``. Raises ValueError, naming the option, for values out of range.

    max_rows: sequences that decode at once. num_blocks: K/V blocks, instead of as many as memory
    allows. block_size: positions a block. prompt_tokens_per_round: most prompt tokens a round
    computes; a larger number starts answers sooner and makes running ones wait longer.
    max_context: most tokens of a prompt and its answer; by default the model's own.
    dtype: weights' type (float32, bfloat16, float16); float32 on a CPU by default, elsewhere the
    checkpoint's. exact: bitwise the same output whatever the batch, chunks, cache and drafts;
    refused where it cannot hold. speculate: off, a fixed number of drafts a round (1 to 8), or
    auto: as many as pay, by measurement. drafter: what drafts: mtp (the checkpoint's MTP head, or
    the one published apart that ``mtp`` names), peer (the smaller model that ``draft_model`` names)
    or lookup (what followed the same words before); None: the MTP head if there is one, else the
    draft model if one is named. acceptance: coupled (by shared noise: the output is the same as
    without drafts) or rejection (the classical rule: another output, equally likely).
    backend: portable (MLX operations), cpu (what a CPU runs fastest), cuda (kernels for an NVIDIA
    GPU), or auto: the fastest that the device and mode have.
    async_scheduling: launch the next round's rows, as far as they are certain, before this round's
    tokens have been read, so that the device never waits for the host; None: where all kernels run
    in the order of their launches (backend cuda). A round with drafts is launched by itself.
    prefix_cache: share computed prefixes. max_checkpoint_bytes: memory for kept recurrent states.
    check: verify every scheduler invariant at every event (slow).
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
    speculate: int | Literal["auto", "off"] = "off"
    drafter: DrafterName | None = None
    draft_model: str | None = None
    mtp: str | None = None
    acceptance: Literal["coupled", "rejection"] = "coupled"
    backend: Literal["auto", "portable", "cpu", "cuda"] = "auto"
    async_scheduling: bool | None = None
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
        if self.backend not in ("auto", "portable", "cpu", "cuda"):
            raise ValueError(
                f"backend must be 'auto', 'portable', 'cpu' or 'cuda', not {self.backend!r}"
            )
        if self.async_scheduling not in (None, True, False):
            raise ValueError(
                f"async_scheduling must be True, False or None, not {self.async_scheduling!r}"
            )
        depth = self.speculate
        is_depth = isinstance(depth, int) and not isinstance(depth, bool)
        if depth not in ("auto", "off") and not (is_depth and 1 <= int(depth) <= MAX_DEPTH):
            raise ValueError(
                f"speculate must be 'auto', 'off' or a depth of 1 to {MAX_DEPTH}, not {depth!r}"
            )
        self._check_drafter()

    def _check_drafter(self) -> None:
        drafter = self.drafter
        if drafter not in (None, "mtp", "peer", "lookup"):
            raise ValueError(f"drafter must be 'mtp', 'peer', 'lookup' or None, not {drafter!r}")
        if self.acceptance not in ("coupled", "rejection"):
            raise ValueError(
                f"acceptance must be 'coupled' or 'rejection', not {self.acceptance!r}"
            )
        if drafter == "peer" and self.draft_model is None:
            raise ValueError("drafter 'peer' needs draft_model, the name of the model that drafts")
        if self.draft_model is not None and drafter not in (None, "peer"):
            raise ValueError(f"draft_model is given, but drafter is {drafter!r}: it must be 'peer'")
        if self.mtp is not None and drafter not in (None, "mtp"):
            raise ValueError(f"mtp is given, but drafter is {drafter!r}: it must be 'mtp'")

    @property
    def max_drafts(self) -> int:
        """The most drafts a row may ever carry."""
        if self.speculate == "off":
            return 0
        return AUTO_DEPTH if self.speculate == "auto" else int(self.speculate)
