"""Which drafter an engine gets, what it costs in memory, and how it is made."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..forward import Forward
from ..loading import LoadedModel
from ..options import EngineOptions
from .drafter import Drafter
from .mtp import MTPHead
from .mtp_drafter import MTPDrafter, head_shape
from .mtp_loading import bundled_head, published_head

logger = logging.getLogger("octavo")


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """A drafter that is not made yet: its memory has to be counted first."""

    name: str
    bytes_per_block: int
    bytes_per_slot: int
    make: Callable[[int, int], Drafter]  # (num_blocks, num_slots)


PlanDrafter = Callable[[LoadedModel, EngineOptions, Forward], DrafterPlan | None]


def plan_drafter(
    loaded: LoadedModel, options: EngineOptions, forward: Forward
) -> DrafterPlan | None:
    """Return the plan of the drafter that ``options`` ask for; None to decode plainly.

    Raises ModelError for a head or peer that does not fit the target.
    """
    if options.speculate == "off":
        return None
    head = published_head(options.mtp, loaded) if options.mtp else bundled_head(loaded)
    if head is None:
        return None
    return plan_mtp(head, options, forward)


def plan_mtp(head: MTPHead, options: EngineOptions, forward: Forward) -> DrafterPlan:
    """Return the plan of drafting with ``head``, whose embedding and logits are the target's."""
    dtype = forward.dtype
    hidden_bytes = head.norm.weight.shape[0] * dtype.size
    per_position = head_shape(head, dtype).bytes_per_position

    def make(num_blocks: int, num_slots: int) -> Drafter:
        return MTPDrafter(
            head,
            forward,
            num_blocks=num_blocks,
            block_size=options.block_size,
            num_slots=num_slots,
            dtype=dtype,
        )

    return DrafterPlan("mtp", options.block_size * per_position + hidden_bytes, hidden_bytes, make)
