"""One user of a workload: what they ask, turn by turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.sampling_params import SamplingParams

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Session:
    """A prompt and what follows it; each turn waits for the answer before.

    ``opening`` is a text or the messages of a conversation; only a conversation has ``follow_ups``.
    Requests are told apart by ``group`` in the figures. A session arrives only once the run has put
    out ``after_tokens`` tokens, which places it the same on a slow machine and on a fast one.
    """

    name: str
    opening: str | tuple[Message, ...]
    params: SamplingParams
    follow_ups: tuple[str, ...] = ()
    group: str = ""
    after_tokens: int = 0

    def __post_init__(self) -> None:
        if self.follow_ups and isinstance(self.opening, str):
            raise ValueError(f"session {self.name!r} has follow-ups, but opens with a plain text")

    @property
    def num_turns(self) -> int:
        """How many requests it makes, if none fails."""
        return 1 + len(self.follow_ups)

    def prompt(self, answers: Sequence[str]) -> str | list[Message]:
        """Return what is asked once ``answers`` were given: the whole conversation so far."""
        if isinstance(self.opening, str):
            return self.opening
        messages = list(self.opening)
        for answer, question in zip(answers, self.follow_ups, strict=False):
            messages += user_after(answer, question)
        return messages

    def salted(self, salt: str) -> "Session":
        """Return the same session with a cache of its own, which runs with other salts miss."""
        return replace(self, params=replace(self.params, salt=salt))


def user_after(answer: str, question: str) -> list[Message]:
    """Return the two messages that extend a conversation."""
    return [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
