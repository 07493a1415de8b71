"""Which requests can ever run, and which waiting sequences start now.

Candidates come in order; the first that does not fit stops admission, so that no small request
behind a large one overtakes it for ever.
"""

from collections.abc import Sequence as Seq

from .ledger import Ledger
from .prefix_sharing import Match, claim, lead
from .request import Request
from .round import SlotCopy
from .sequence import Sequence


class RequestTooLarge(ValueError):
    """The request can never fit; the message gives the numbers."""


def check_request(ledger: Ledger, request: Request) -> None:
    """Raise ValueError for a malformed request, RequestTooLarge for one that can never fit."""
    if not request.prompt:
        raise ValueError("the prompt is empty: at least one token is needed")
    if request.max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {request.max_tokens}")
    if request.n < 1:
        raise ValueError(f"n must be at least 1, not {request.n}")
    if request.emitted and request.n > 1:
        raise ValueError("emitted continues one sample: n must be 1")
    if len(request.emitted) > request.max_tokens:
        raise ValueError(
            f"{len(request.emitted)} tokens were emitted, more than max_tokens "
            f"({request.max_tokens})"
        )
    config = ledger.config
    total = len(request.prompt) + request.max_tokens
    sizes = (
        f"{len(request.prompt)} prompt tokens + {request.max_tokens} max_tokens = {total} tokens"
    )
    if config.max_context is not None and total > config.max_context:
        raise RequestTooLarge(f"{sizes}, but the context holds {config.max_context}")
    num_blocks = ledger.blocks_for(total - 1)
    if num_blocks > ledger.blocks.num_total:
        raise RequestTooLarge(
            f"{sizes} need {num_blocks} blocks of {config.block_size}, "
            f"but the memory holds {ledger.blocks.num_total} "
            f"({ledger.blocks.num_total * config.block_size} tokens)"
        )


def blocks_to_grow(ledger: Ledger, sequence: Sequence, num_blocks: int) -> int:
    """How many blocks a sequence lacks to write alone in a table of ``num_blocks``."""
    lacking = max(0, num_blocks - len(sequence.blocks))
    return lacking + ledger.tail_is_shared(sequence)


def needs(
    ledger: Ledger, sequence: Sequence, match: Match, beside: Seq[Sequence] = ()
) -> tuple[int, int]:
    """How many blocks and slots must be available for a waiting sequence to start.

    What it takes over counts too where nobody else holds it: it is no longer available then.
    ``beside`` have just been started. Nobody that runs should have to yield at once; and once a
    sequence has yielded ``max_preemptions`` times, nobody starts beside it unless all can grow to
    their limits. That bounds how often it yields.
    """
    length, most, limit = len(sequence.tokens), ledger.blocks_at_most, ledger.config.max_preemptions
    running = [*ledger.running, *beside]
    if any(one.num_preemptions >= limit for one in (sequence, *running)):
        num_blocks = blocks_to_grow(ledger, sequence, most(sequence))
        num_blocks += sum(blocks_to_grow(ledger, one, most(one)) for one in running)
    else:
        num_blocks = blocks_to_grow(ledger, sequence, ledger.blocks_for(length)) + len(running)
    num_blocks -= sum(1 for node in match.hit if ledger.blocks.holders[node.block])
    num_slots = 0
    if ledger.config.uses_slots:
        num_slots += sequence.slot is None or ledger.slot_is_shared(sequence)
        num_slots += sum(1 for one in beside if ledger.slot_is_shared(one))
        source = match.checkpoint
        num_slots += source is not None and not ledger.slots.holders[source]
    return num_blocks, num_slots


def fits(ledger: Ledger, sequence: Sequence, match: Match, beside: Seq[Sequence] = ()) -> bool:
    """Whether a waiting sequence can start now."""
    num_blocks, num_slots = needs(ledger, sequence, match, beside)
    return num_blocks <= ledger.num_available_blocks and num_slots <= ledger.num_available_slots


def start(ledger: Ledger, sequence: Sequence, match: Match) -> SlotCopy | None:
    """Give a sequence that fits what its whole prompt needs, so that no chunk ever lacks it.

    Return the copy that gives it the state at the end of a hit.
    """
    _take_over(ledger, sequence, match)
    num_blocks = ledger.blocks_for(len(sequence.tokens))
    sequence.blocks.extend(ledger.take_blocks(max(0, num_blocks - len(sequence.blocks))))
    copy = None
    if ledger.config.uses_slots and sequence.slot is None:
        sequence.slot = ledger.take_slot()
        ledger.slots.stand(sequence.slot, sequence.computed)
        if match.checkpoint is not None:
            copy = SlotCopy(match.checkpoint, sequence.slot)
    sequence.status = "running"
    claim(ledger, sequence, match)
    lead(sequence)
    ledger.line.charge(sequence.request.tenant, sequence.num_pending)
    return copy


def _take_over(ledger: Ledger, sequence: Sequence, match: Match) -> None:
    """Hold the blocks of a hit, and its checkpoint until the round has copied it."""
    if not (sequence.computed or sequence.started):
        ledger.counters.lookup_tokens += sequence.num_prompt
    if not match.hit:
        return
    blocks = [node.block for node in match.hit]
    ledger.blocks.share(blocks)
    sequence.blocks.extend(blocks)
    sequence.nodes = list(match.hit)
    sequence.computed = len(blocks) * ledger.config.block_size
    if match.checkpoint is not None:
        ledger.slots.share((match.checkpoint,))
        ledger.pinned_slots.append(match.checkpoint)
        match.hit[-1].rolling = False  # it serves others too: whoever moves on leaves it
    if not sequence.started:
        sequence.num_cached = min(sequence.computed, sequence.num_prompt)
        ledger.counters.hit_tokens += sequence.num_cached
