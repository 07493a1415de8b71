"""What a scheduler may use and how it shares it out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Sizes and policies. Raises ValueError, naming the field, for sizes that cannot work.

    ``num_blocks`` and ``num_slots`` count id 0, which is scratch and never handed out: they are the
    lengths of the arrays. Waits are counted in rounds, for the scheduler has no clock.
    """

    num_blocks: int
    max_rows: int
    block_size: int = 16
    num_slots: int = 0
    uses_slots: bool = False  # recurrent layers, or a drafter that keeps something per sequence
    prompt_tokens_per_round: int = 512  # the most that all prompt chunks of a round add up to
    tokens_per_round: int | None = None  # decode rows and prompt chunks together; None: no bound
    prompt_share: float = 0.25  # of tokens_per_round, kept for prompts whatever is decoding
    max_context: int | None = None  # prompt and answer together
    prefix_cache: bool = True
    max_checkpoints: int | None = None  # None: what num_slots leaves beside max_rows
    finds_groups: bool = True  # say which rows of a round share leading blocks
    even_windows: bool = False  # whose answer ends sooner carries as many drafts as the others
    model_identity: str = ""  # part of every hash: caches of two models never meet
    max_preemptions: int = 2  # of one sequence; after that it starts only where it can stay
    max_failures: int = 3  # of one sequence, without a token between them
    max_wait_rounds: int = 256  # a parked prompt then goes before every class and tenant
    check: bool = False  # verify every invariant after every event

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {self.block_size}")
        if self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {self.max_rows}")
        if self.num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (block 0 is scratch), not {self.num_blocks}"
            )
        if self.uses_slots and self.num_slots < 2:
            raise ValueError(
                f"num_slots must be at least 2 (slot 0 is scratch), not {self.num_slots}"
            )
        if self.prompt_tokens_per_round < self.block_size:
            raise ValueError(
                f"prompt_tokens_per_round must be at least block_size ({self.block_size}), "
                f"not {self.prompt_tokens_per_round}"
            )
        if not 0 <= self.prompt_share <= 1:
            raise ValueError(f"prompt_share must be between 0 and 1, not {self.prompt_share}")

    @property
    def checkpoint_limit(self) -> int:
        """How many checkpoints may exist; one slot always remains for a sequence to run in."""
        if not (self.uses_slots and self.prefix_cache):
            return 0
        room = self.num_slots - 2
        if self.max_checkpoints is None:
            return max(0, min(room, self.num_slots - 1 - self.max_rows))
        return max(0, min(room, self.max_checkpoints))
