"""Which drafter an engine gets, what it costs in memory, and how it is made."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..backend import choose_backend
from ..errors import ModelError
from ..forward import Forward
from ..loading import LoadedModel, load
from ..options import EngineOptions
from ..prepared import prepare
from .drafter import Drafter
from .lookup_drafter import LookupDrafter
from .mtp import MTPHead
from .mtp_drafter import MTPDrafter, head_shape
from .mtp_loading import bundled_head, published_head
from .ngram_search import MOST_IDS
from .peer_drafter import PeerDrafter, PeerForward

logger = logging.getLogger("octavo")


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """A drafter that is not made yet: its memory has to be counted first."""

    name: str
    bytes_per_block: int
    bytes_per_slot: int
    make: Callable[[int, int], Drafter]  # (num_blocks, num_slots)
    num_bytes: int = 0  # whatever the numbers of blocks and slots


PlanDrafter = Callable[[LoadedModel, EngineOptions, Forward], DrafterPlan | None]


def plan_drafter(
    loaded: LoadedModel, options: EngineOptions, forward: Forward
) -> DrafterPlan | None:
    """Return the plan of the drafter that ``options`` ask for; None to decode plainly.

    Raises ModelError for a head or peer that does not fit the target, or a target that none fits.
    """
    if options.speculate == "off":
        return None
    if options.drafter == "lookup":
        return plan_lookup(loaded)
    if options.drafter != "peer":
        head = published_head(options.mtp, loaded) if options.mtp else bundled_head(loaded)
        if head is not None:
            backend = choose_backend(options.backend, exact=options.exact, dtype=forward.dtype)
            backend.bind_products(head)
            return plan_mtp(head, options, forward)
        if options.drafter == "mtp":
            raise ModelError(
                f"drafter is 'mtp', but {loaded.name} has no MTP head that can be used: name one "
                "published apart (mtp), or another drafter"
            )
    if options.draft_model is None:
        logger.info("%s has no MTP head and no draft model is named: no drafts", loaded.name)
        return None
    return plan_peer(load(options.draft_model, dtype=options.dtype), loaded, options)


def plan_lookup(target: LoadedModel) -> DrafterPlan:
    """Return the plan of looking drafts up: it needs no memory on the device.

    Raises ModelError for a vocabulary that is larger than any we know of.
    """
    if target.vocab_size > MOST_IDS:
        raise ModelError(
            f"drafter is 'lookup', which knows {MOST_IDS} token ids at most, but {target.name} has "
            f"{target.vocab_size}"
        )
    return DrafterPlan("lookup", 0, 0, lambda _num_blocks, _num_slots: LookupDrafter())


def plan_peer(peer: LoadedModel, target: LoadedModel, options: EngineOptions) -> DrafterPlan:
    """Return the plan of drafting with ``peer``.

    Raises ModelError if its tokens are not the target's, or its layers cannot be run.
    """
    check_vocabulary(peer, target)
    forward = PeerForward(peer.model, peer.vocab_size)
    # it rolls nothing back, for its slots hold certain tokens only
    ready = prepare(peer, options, forward, 0, must_be_exact=False)

    def make(num_blocks: int, num_slots: int) -> Drafter:
        return PeerDrafter(
            forward,
            ready,
            num_blocks=num_blocks,
            num_slots=num_slots,
            max_rows=options.max_rows,
            target_vocab_size=target.vocab_size,
        )

    # every running sequence has a scratch slot of the peer's too
    return DrafterPlan("peer", ready.bytes_per_block, 2 * ready.bytes_per_slot, make)


def check_vocabulary(peer: LoadedModel, target: LoadedModel) -> None:
    """Raise ModelError unless every id that both know is the same token to both."""
    ours, theirs = _tokens_by_id(target), _tokens_by_id(peer)
    shared = ours.keys() & theirs.keys()
    different = sorted(token_id for token_id in shared if ours[token_id] != theirs[token_id])
    if different or not shared:
        reason = "they share no token id"
        if different:
            first = different[0]
            reason = f"{len(different)} ids differ, id {first} is {theirs[first]!r} to it and "
            reason += f"{ours[first]!r} to the target"
        raise ModelError(
            f"{peer.name} cannot draft for {target.name}, for its vocabulary is another: {reason}. "
            "A draft model must have its target's tokenizer"
        )


def _tokens_by_id(loaded: LoadedModel) -> dict[int, str]:
    vocabulary: Mapping[str, int] = loaded.tokenizer.get_vocab()
    return {token_id: token for token, token_id in vocabulary.items()}


def plan_mtp(head: MTPHead, options: EngineOptions, forward: Forward) -> DrafterPlan:
    """Return the plan of drafting with ``head``, whose embedding and logits are the target's."""
    dtype = forward.dtype
    hidden_bytes = head.norm.weight.shape[0] * dtype.size
    per_position = head_shape(head, dtype).bytes_per_position
    num_spare = options.max_rows * -(-2 * options.max_drafts // options.block_size)

    def make(num_blocks: int, num_slots: int) -> Drafter:
        return MTPDrafter(
            head,
            forward,
            num_blocks=num_blocks,
            num_spare=num_spare,
            block_size=options.block_size,
            num_slots=num_slots,
            dtype=dtype,
            backend=choose_backend(options.backend, exact=options.exact, dtype=dtype),
        )

    per_block = options.block_size * per_position
    return DrafterPlan("mtp", per_block + hidden_bytes, hidden_bytes, make, num_spare * per_block)
