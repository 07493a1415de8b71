"""The scheduler's record of one request, or of one of its n samples.

    tokens:  prompt ............... | emitted ............... newest
             0 ........ computed ........................ len(tokens)
                        ^ K/V in blocks, state (with its unfolded records) in slot

computed < len(tokens) for every live sequence: at least one token is always pending.
"""

from dataclasses import dataclass, field
from typing import Literal

from .block_table import BlockTable
from .prefix_index import Node
from .request import FinishReason, Request

Status = Literal["waiting", "running", "paused", "ended"]


@dataclass(slots=True, eq=False)
class Group:
    """The sequences of one request: its samples, and forks of those."""

    members: list["Sequence"] = field(default_factory=list)
    leader: "Sequence | None" = None  # computes the prompt for the samples that wait
    num_samples: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable; only the scheduler writes to it."""

    seq_id: int
    request: Request
    sample_index: int
    tokens: list[int]  # committed: prompt and everything emitted
    num_prompt: int
    group: Group
    status: Status = "waiting"
    computed: int = 0
    blocks: BlockTable = field(default_factory=BlockTable)
    slot: int | None = None
    num_cached: int = 0  # prompt tokens that the prefix cache spared
    num_drafted: int = 0
    num_accepted: int = 0
    num_preemptions: int = 0
    num_failures: int = 0  # rounds that raised since the last token was gained
    started: bool = False  # it ran before, or is a fork: it waits at the head of its class
    in_flight: bool = False
    cancelled: bool = False  # takes effect when the round in flight is committed
    pausing: bool = False  # likewise
    finish: FinishReason | None = None
    waiting_since: int = 0  # the round in which it began to wait
    last_round: int = 0  # the round in which it last had a row
    keys: list[int] = field(default_factory=list)  # hashes of its leading full blocks
    nodes: list[Node] = field(default_factory=list)  # its leading blocks that are indexed
    claimed: list[int] = field(default_factory=list)  # hashes of blocks it is going to compute
    capture_points: set[int] = field(default_factory=set)  # where its prompt keeps a checkpoint
    rolling: Node | None = None  # where its rolling checkpoint was last
    waits_for: tuple["Sequence", int] | None = None  # until that one has computed so much

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far, those of an earlier run included."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Committed tokens that are not computed; 1 in steady decoding."""
        return len(self.tokens) - self.computed

    @property
    def order(self) -> tuple[int, int]:
        """Sorts by who yields last: higher priority first, then the older."""
        return (-self.request.priority, self.seq_id)
