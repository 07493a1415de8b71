"""Which requests can ever run, and which waiting sequences start now.

Candidates come in order; the first that does not fit stops admission, so that no small request
behind a large one overtakes it for ever.
"""

from collections.abc import Sequence as Seq

from .ledger import Ledger
from .request import Request
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


def needs(ledger: Ledger, sequence: Sequence) -> tuple[int, int]:
    """How many blocks and slots a waiting sequence must take to start."""
    num_blocks = blocks_to_grow(ledger, sequence, ledger.blocks_for(len(sequence.tokens)))
    takes_slot = sequence.slot is None or ledger.slot_is_shared(sequence)
    return num_blocks, int(ledger.config.uses_slots and takes_slot)


def fits(ledger: Ledger, sequence: Sequence, beside: Seq[Sequence]) -> bool:
    """Whether a waiting sequence can start now without making a running one yield at once.

    ``beside`` have just been started. Once a sequence has yielded ``max_preemptions`` times,
    nobody starts beside it unless all can grow to their limits: that bounds how often it yields.
    """
    num_blocks, num_slots = needs(ledger, sequence)
    if num_slots > ledger.num_available_slots:
        return False
    limit = ledger.config.max_preemptions
    running = [*ledger.running, *beside]
    if any(one.num_preemptions >= limit for one in (sequence, *running)):
        num_blocks = blocks_to_grow(ledger, sequence, ledger.blocks_at_most(sequence))
        growth = sum(blocks_to_grow(ledger, one, ledger.blocks_at_most(one)) for one in running)
    else:
        growth = len(running)  # each may soon need one more
    return num_blocks + growth <= ledger.num_available_blocks


def start(ledger: Ledger, sequence: Sequence) -> None:
    """Give a sequence that fits what its whole prompt needs, so that no chunk ever lacks it."""
    num_blocks = ledger.blocks_for(len(sequence.tokens))
    sequence.blocks.extend(ledger.take_blocks(max(0, num_blocks - len(sequence.blocks))))
    if ledger.config.uses_slots and sequence.slot is None:
        sequence.slot = ledger.take_slot()
        ledger.slots.stand(sequence.slot, sequence.computed)
    ledger.line.charge(sequence.request.tenant, sequence.num_pending)
