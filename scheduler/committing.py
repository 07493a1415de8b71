"""Turns the verdicts on a round into what each sequence gained, or undoes a round that raised.

A verdict of k accepted drafts moves ``computed`` to certain_end + k. The slot's state then stands
at certain_end with k records beside it, which the next row folds.
"""

from collections.abc import Collection
from collections.abc import Sequence as Seq

from .checkpointing import keep_captures
from .ledger import Ledger
from .prefix_index import PrefixIndex
from .request import FinishReason
from .round import Commit, Round, Row, Verdict
from .sequence import Sequence
from .stopping import cut


def check_verdicts(rows: Seq[Row], verdicts: Seq[Verdict]) -> None:
    """Raise ValueError unless there is one possible verdict for each row, in order."""
    if [verdict.seq_id for verdict in verdicts] != [row.seq_id for row in rows]:
        raise ValueError(
            f"verdicts on sequences {[verdict.seq_id for verdict in verdicts]}, "
            f"but the round's rows are {[row.seq_id for row in rows]}"
        )
    for row, verdict in zip(rows, verdicts, strict=True):
        if not 0 <= verdict.num_accepted <= verdict.num_drafted <= row.num_drafts:
            raise ValueError(
                f"sequence {row.seq_id}: {verdict.num_accepted} accepted of "
                f"{verdict.num_drafted} drafted, but the row allows {row.num_drafts}"
            )
        most = verdict.num_accepted + 1 if row.samples else 0
        if len(verdict.tokens) > most or (verdict.finish is None and len(verdict.tokens) < most):
            raise ValueError(
                f"sequence {row.seq_id}: {len(verdict.tokens)} tokens, but "
                f"{verdict.num_accepted} accepted drafts make {most}"
            )


def commit_round(ledger: Ledger, rows: Seq[Row], verdicts: Seq[Verdict]) -> list[Commit]:
    """Keep what the verdicts say, in the order of the rows."""
    ledger.unpin()
    return [_keep(ledger, row, verdict) for row, verdict in zip(rows, verdicts, strict=True)]


def _keep(ledger: Ledger, row: Row, verdict: Verdict) -> Commit:
    sequence = ledger.sequences[row.seq_id]
    sequence.in_flight = False
    certain_end = row.start + len(row.tokens)
    drafted, accepted = verdict.num_drafted, verdict.num_accepted
    sequence.computed = certain_end + accepted
    if sequence.slot is not None:
        ledger.slots.stand(sequence.slot, certain_end, accepted)
    tokens, finish = _gained(sequence, row, verdict)
    sequence.tokens += tokens
    sequence.num_drafted += drafted
    sequence.num_accepted += accepted
    _count(ledger, sequence, row, verdict, len(tokens))
    if ledger.index is not None:
        if finish == "error":  # nobody knows what it left in its pages and states
            ledger.slots.release(capture.slot for capture in row.captures)
        else:
            index_blocks(ledger, ledger.index, sequence)
            keep_captures(ledger, sequence, row)
        if sequence.capture_points:
            later = (at for at in sequence.capture_points if at > certain_end)
            sequence.capture_points = set(later)
        if sequence.claimed and sequence.num_pending == 1:
            ledger.drop_claims(sequence)
    if finish is not None:
        ledger.end(sequence, finish)
    elif sequence.pausing:
        sequence.pausing = False
        ledger.pause(sequence)
    return Commit(row.seq_id, tokens, finish, drafted, accepted)


def index_blocks(ledger: Ledger, index: PrefixIndex, sequence: Sequence) -> None:
    """Put a sequence's full, computed, committed blocks into the prefix index.

    A block that is known already is given back in exchange for the known one.
    """
    size, tokens, nodes = ledger.config.block_size, sequence.tokens, sequence.nodes
    num_full = min(sequence.computed, len(tokens)) // size
    if num_full <= len(nodes):
        return
    salt = sequence.request.salt
    index.extend_keys(sequence.keys, salt, tokens, num_full)
    for at in range(len(nodes), num_full):
        parent = nodes[-1] if nodes else index.root(salt)
        block = sequence.blocks[at]
        content = tuple(tokens[at * size : (at + 1) * size])
        node = index.insert(parent, sequence.keys[at], content, block)
        if node is None:
            return
        nodes.append(node)
        if node.block != block:
            ledger.blocks.share((node.block,))
            ledger.blocks.release((sequence.blocks.replace(at, node.block),))


def _gained(
    sequence: Sequence, row: Row, verdict: Verdict
) -> tuple[tuple[int, ...], FinishReason | None]:
    if sequence.cancelled:
        return (), "cancelled"
    tokens, finish = verdict.tokens, verdict.finish
    if finish is None and row.samples:
        return cut(sequence.request, sequence.num_generated, tokens)
    return tokens, finish


def _count(ledger: Ledger, sequence: Sequence, row: Row, verdict: Verdict, num_tokens: int) -> None:
    counters = ledger.counters
    counters.drafted_tokens += verdict.num_drafted
    counters.accepted_tokens += verdict.num_accepted
    if len(row.tokens) > 1:
        counters.prompt_tokens += len(row.tokens)
    if num_tokens:
        counters.generated_tokens += num_tokens
        ledger.line.charge(sequence.request.tenant, num_tokens)
        if sequence.num_failures:
            sequence.num_failures = 0
            ledger.suspects.pop(sequence.seq_id, None)


def fail_round(ledger: Ledger, round_: Round, culprits: Collection[int] | None) -> list[Commit]:
    """Undo a round that raised; return how sequences ended by it, in the order of the rows.

    States may be half written, so every row's sequence drops what it holds and computes it again,
    except that ``culprits`` end with reason "error". When nobody knows the culprit, a sequence
    ends after ``max_failures`` failures without a token between them, the last of them alone.
    """
    ledger.counters.failures += 1
    ledger.unpin()
    rows = round_.rows
    for row in rows:
        ledger.slots.release(capture.slot for capture in row.captures)
    uncopied = {copy.target for copy in round_.slot_copies}
    for sequence in (*ledger.line.started, *ledger.paused.values()):
        if sequence.slot in uncopied:
            ledger.drop_storage(sequence)  # a sample that was to share the copy
    return [
        commit
        for row in rows
        if (commit := _undo(ledger, ledger.sequences[row.seq_id], culprits)) is not None
    ]


def _undo(ledger: Ledger, sequence: Sequence, culprits: Collection[int] | None) -> Commit | None:
    sequence.in_flight = False
    limit = ledger.config.max_failures
    if culprits is None:
        sequence.num_failures += 1
    failed = sequence.num_failures >= limit if culprits is None else sequence.seq_id in culprits
    if sequence.cancelled or failed:
        reason: FinishReason = "cancelled" if sequence.cancelled else "error"
        ledger.end(sequence, reason)
        return Commit(sequence.seq_id, finish=reason)
    if sequence.num_failures == limit - 1:
        ledger.suspects[sequence.seq_id] = sequence
    ledger.drop_storage(sequence)
    if sequence.pausing:
        sequence.pausing = False
        ledger.pause(sequence)
    else:
        ledger.wait(sequence)
    return None
