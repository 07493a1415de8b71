"""What a client asked for, as far as the scheduler has to know it."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "eos", "cancelled", "deadline", "error"]
"""Why a sequence ended: a stop string or stop id, max_tokens, the model's end-of-sequence id, the
client, the clock, or a failure that the answer describes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Immutable; its ``n`` samples each become a Sequence.

    ``emitted`` are tokens that an earlier run of the same request already gave to the client: they
    count against ``max_tokens`` and are never emitted again.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    eos_ids: frozenset[int] = frozenset()  # end with reason "eos"; empty with ignore_eos
    stop_ids: frozenset[int] = frozenset()  # end with reason "stop"
    n: int = 1
    emitted: tuple[int, ...] = ()
    priority: int = 0  # the larger runs first
    tenant: str = ""
    salt: str = ""  # requests with different salts never share blocks
    deadline: float | None = None  # on the clock that plan() is given
    read_cache: bool = True  # False where every position's output is needed (prompt_logprobs)
    max_cached: int | None = None  # prompt tokens whose output nobody needs; None: all of them
    needs_tokens: bool = False  # what may follow a token depends on it: nothing is launched ahead
