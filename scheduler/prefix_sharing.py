"""What a waiting sequence can take over from others, and for whom it had better wait.

    tokens of a waiting prompt
    | known chain ............ | being computed by another | its own |
    | hit ....... | no state   |                           |         |
                  ^ the last boundary with both blocks and a checkpoint (hybrids)
                               ^ junction: a checkpoint here serves the next one

A running prompt claims the blocks that it is going to compute. Who needs them as well waits, and
asks it for a checkpoint where the two part; when the claim lapses, the waiting one takes over.
"""

from dataclasses import dataclass, field
from itertools import islice

from .ledger import Ledger
from .prefix_index import Node
from .sequence import Sequence

_NUM_LOOKED_AT = 64  # waiting prompts that a starting one compares itself with


@dataclass(slots=True)
class Match:
    """What the index knows of a sequence's tokens."""

    hit: list[Node] = field(default_factory=list)  # usable: with a state, where one is needed
    num_known: int = 0  # blocks of the known chain, usable or not

    @property
    def checkpoint(self) -> int | None:
        """The slot with the state at the end of the hit."""
        return self.hit[-1].checkpoint if self.hit else None


def num_usable_blocks(ledger: Ledger, sequence: Sequence) -> int:
    """Full blocks that leave at least one token to compute."""
    return (len(sequence.tokens) - 1) // ledger.config.block_size


def num_readable_blocks(ledger: Ledger, sequence: Sequence) -> int:
    """Those of the usable blocks that the request may take from the index."""
    usable, limit = num_usable_blocks(ledger, sequence), sequence.request.max_cached
    return usable if limit is None else min(usable, limit // ledger.config.block_size)


def look_up(ledger: Ledger, sequence: Sequence) -> Match:
    """Find the longest usable chain for a sequence that holds nothing yet."""
    index = ledger.index
    if index is None or len(sequence.blocks) or not sequence.request.read_cache:
        return Match()
    usable, salt = num_readable_blocks(ledger, sequence), sequence.request.salt
    index.extend_keys(sequence.keys, salt, sequence.tokens, usable)
    chain = index.find(salt, sequence.keys, sequence.tokens, usable)
    num_known = len(chain)
    if ledger.config.uses_slots:
        while chain and chain[-1].checkpoint is None:
            chain.pop()
    return Match(chain, num_known)


def must_wait(ledger: Ledger, sequence: Sequence, match: Match) -> bool:
    """Whether another running sequence is computing what this one needs next."""
    group = sequence.group
    leader = group.leader
    if leader is not None and leader is not sequence and not len(sequence.blocks):
        if leader.status == "running" and leader.num_generated == 0:
            return True
        group.leader = None
    if ledger.index is None or not sequence.request.read_cache or len(sequence.blocks):
        return False
    size, usable = ledger.config.block_size, num_readable_blocks(ledger, sequence)
    if match.num_known >= usable or (ledger.config.uses_slots and not ledger.checkpoint_limit):
        return False
    claims, keys, end = ledger.claims, sequence.keys, match.num_known
    owner = claims.get(keys[end])
    if owner is None or owner.computed > end * size:
        return False
    while end < usable and claims.get(keys[end]) is owner:
        end += 1
    if owner.tokens[: end * size] != sequence.tokens[: end * size]:
        return False
    sequence.waits_for = owner, end * size
    owner.capture_points.add(end * size)
    return True


def still_waits(sequence: Sequence) -> bool:
    """Whether what ``must_wait`` found still holds; cheap."""
    if sequence.waits_for is None:
        return False
    owner, position = sequence.waits_for
    if owner.status == "running" and owner.computed < position:
        return True
    sequence.waits_for = None
    return False


def claim(ledger: Ledger, sequence: Sequence, match: Match) -> None:
    """Claim the blocks that a starting sequence will compute, and choose its checkpoints."""
    index = ledger.index
    if index is None:
        return
    usable, salt = num_usable_blocks(ledger, sequence), sequence.request.salt
    index.extend_keys(sequence.keys, salt, sequence.tokens, usable)
    for key in sequence.keys[match.num_known : usable]:
        if ledger.claims.setdefault(key, sequence) is sequence:
            sequence.claimed.append(key)
    size, num_hit = ledger.config.block_size, len(match.hit)
    boundaries = {usable, match.num_known, _shared_with_waiting(ledger, sequence, usable)}
    sequence.capture_points = {one * size for one in boundaries if num_hit < one <= usable}


def _shared_with_waiting(ledger: Ledger, sequence: Sequence, usable: int) -> int:
    """How many leading blocks the waiting prompt most like this one shares with it."""
    longest, index = 0, ledger.index
    if index is None or not ledger.checkpoint_limit:
        return 0
    for other in islice(ledger.line, _NUM_LOOKED_AT):
        if other is sequence or len(other.blocks) or not other.request.read_cache:
            continue
        count = min(usable, num_usable_blocks(ledger, other))
        if count <= longest:
            continue
        index.extend_keys(other.keys, other.request.salt, other.tokens, 1)
        if other.keys[0] != sequence.keys[0]:
            continue
        index.extend_keys(other.keys, other.request.salt, other.tokens, count)
        pairs = zip(sequence.keys[:count], other.keys[:count], strict=True)
        shared = next((at for at, (one, two) in enumerate(pairs) if one != two), count)
        longest = max(longest, shared)
    return longest


def share_prefix(ledger: Ledger, source: Sequence, target: Sequence) -> None:
    """Let a sequence that holds nothing hold what another has computed; writes then copy."""
    if not source.computed:
        return
    blocks = source.blocks.first(ledger.blocks_for(source.computed))
    ledger.blocks.share(blocks)
    target.blocks.extend(blocks)
    target.nodes = source.nodes[:]
    target.keys = source.keys[:]
    target.computed = source.computed
    if source.slot is not None:
        ledger.slots.share((source.slot,))
        target.slot = source.slot


def lead(sequence: Sequence) -> None:
    """Let a starting sample compute the prompt for those of its group that hold nothing."""
    if sequence.group.leader is None and _is_awaited(sequence):
        sequence.group.leader = sequence


def leads(sequence: Sequence) -> bool:
    """Whether samples still wait for what this one computes."""
    group = sequence.group
    if group.leader is not sequence:
        return False
    if not _is_awaited(sequence):
        group.leader = None
    return group.leader is sequence


def _is_awaited(sequence: Sequence) -> bool:
    if sequence.num_generated or len(sequence.group.members) < 2:
        return False
    return any(waits_for_leader(one) for one in sequence.group.members if one is not sequence)


def fork_samples(ledger: Ledger, leader: Sequence) -> None:
    """The prompt is computed up to its last token: the samples that waited for it start here."""
    leader.group.leader = None
    for sample in leader.group.members:
        if sample is leader or not waits_for_leader(sample):
            continue
        share_prefix(ledger, leader, sample)
        sample.num_cached = leader.num_cached
        waits = sample.status == "waiting"
        if waits:
            ledger.line.remove(sample)
        sample.started = True
        if waits:
            ledger.line.add(sample, ledger.counters.rounds)


def waits_for_leader(sample: Sequence) -> bool:
    """Whether a sample has nothing yet that its leader could not give it."""
    return (
        sample.status in ("waiting", "paused")
        and not len(sample.blocks)
        and sample.num_generated == 0
    )
