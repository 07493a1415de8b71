"""One token to be picked: whose it is, where it stands, and what was said before it."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import RequestError
from .noise import NoiseKey
from .sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would leave nothing of the noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """What one request asked of sampling, ready to be applied to logits of ``vocab_size``."""

    vocab_size: int
    temperature: float
    top_k: int  # 0: off
    top_p: float  # 1: off
    min_p: float  # 0: off
    repetition_penalty: float  # 1: off
    presence_penalty: float
    frequency_penalty: float
    bias_ids: npt.NDArray[np.int32]
    bias: npt.NDArray[np.float32]
    permitted: npt.NDArray[np.bool_] | None  # [vocab_size]; None: all
    min_tokens: int
    ending_ids: npt.NDArray[np.int32]  # masked until min_tokens
    num_logprobs: int | None
    processed_logprobs: bool

    @classmethod
    def of(
        cls, params: SamplingParams, vocab_size: int, ending_ids: Collection[int] = ()
    ) -> "Settings":
        """Prepare ``params``; ``vocab_size`` is the width of the logits.

        ``ending_ids`` are the ids that end the request: end-of-sequence (none with ignore_eos) and
        stop ids. Raises RequestError for ids outside the vocabulary and where nothing may be said.
        """
        params.check_vocabulary(vocab_size)
        resolved = params.resolve()
        bias = resolved.logit_bias or {}
        ending = np.array(sorted(token for token in ending_ids if token < vocab_size), np.int32)
        permitted = _permitted(resolved, vocab_size)
        if permitted is not None and resolved.min_tokens and not np.delete(permitted, ending).any():
            raise RequestError(
                f"min_tokens is {resolved.min_tokens}: allowed_tokens and banned_tokens leave only "
                "tokens that end the request, so it must be 0"
            )
        return cls(
            vocab_size=vocab_size,
            temperature=resolved.temperature or 0.0,
            top_k=min(resolved.top_k or 0, vocab_size),
            top_p=1.0 if resolved.top_p is None else resolved.top_p,
            min_p=resolved.min_p or 0.0,
            repetition_penalty=resolved.repetition_penalty or 1.0,
            presence_penalty=resolved.presence_penalty,
            frequency_penalty=resolved.frequency_penalty,
            bias_ids=np.array(list(bias), np.int32),
            bias=np.array(list(bias.values()), np.float32),
            permitted=permitted,
            min_tokens=resolved.min_tokens,
            ending_ids=ending,
            num_logprobs=resolved.logprobs,
            processed_logprobs=resolved.logprobs_mode == "processed",
        )

    @property
    def greedy(self) -> bool:
        """Whether no noise is drawn."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalizes(self) -> bool:
        """Whether the tokens said so far change the logits."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def plain(self) -> bool:
        """Whether the pick is the argmax of the logits as they are, apart from masks of a draw."""
        return (
            self.greedy and not self.penalizes and self.permitted is None and not len(self.bias_ids)
        )


class History:
    """How often a sequence has said each token, kept up to date token by token.

    Tokens that only the prompt has count 0. Drafts are counted on a copy, never here.
    """

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        ids = list(dict.fromkeys(prompt))
        self._column = {token: column for column, token in enumerate(ids)}
        self._ids = np.array(ids, np.int32)
        self._counts = np.zeros(len(ids), np.float32)

    def extend(self, tokens: Sequence[int]) -> None:
        """Count committed ``tokens``."""
        num_before = len(self._ids)
        self._ids, self._counts = self.counted(tokens)
        for column in range(num_before, len(self._ids)):
            self._column[int(self._ids[column])] = column

    def counted(
        self, more: Sequence[int] = ()
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return ids and how often each was said if ``more`` were said too."""
        said = Counter(more)
        new = [token for token in said if token not in self._column]
        ids = np.concatenate([self._ids, np.array(new, np.int32)])
        counts = np.concatenate(
            [self._counts, np.array([said[token] for token in new], np.float32)]
        )
        for token, count in said.items():
            if token in self._column:
                counts[self._column[token]] += count
        return ids, counts

    def copy(self) -> "History":
        """Return a history that goes its own way from here."""
        other = History()
        other._column = dict(self._column)
        other._ids, other._counts = self._ids.copy(), self._counts.copy()
        return other


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One token to be picked. Use it before its sequence commits: the history is not a copy."""

    settings: Settings
    key: NoiseKey
    num_generated: int  # tokens said before this one, drafts included
    history: History | None = None  # None where nothing is penalized
    drafts: tuple[int, ...] = ()  # between the history and this position
    mask: npt.NDArray[np.bool_] | None = None  # [vocab_size], what a grammar permits here

    @property
    def too_early_to_end(self) -> bool:
        """Whether the ending ids are masked here."""
        return self.num_generated < self.settings.min_tokens and len(self.settings.ending_ids) > 0

    @property
    def plain(self) -> bool:
        """Whether the pick is the argmax of the logits as they are."""
        return self.settings.plain and self.mask is None and not self.too_early_to_end


class DrawSource:
    """What one sequence's draws are made from; the engine keeps one for each and tells it commits.

    ``num_generated`` counts the tokens after the prompt, ``emitted`` of an earlier run included.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        sample_index: int,
        prompt: Sequence[int],
        generated: Sequence[int] = (),
    ) -> None:
        self.settings = settings
        self.seed = seed
        self.sample_index = sample_index
        self.num_prompt = len(prompt)
        self.num_generated = 0
        self._history: History | None = None
        if settings.penalizes:
            self._history = History(prompt if settings.repetition_penalty != 1 else ())
        self.commit(generated)

    def commit(self, tokens: Sequence[int]) -> None:
        """Count tokens that the sequence really said."""
        self.num_generated += len(tokens)
        if self._history is not None:
            self._history.extend(tokens)

    def draw(
        self,
        drafts: Sequence[int] = (),
        *,
        num_ahead: int | None = None,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> Draw:
        """Return the draw of the token after ``drafts``, which follow the committed tokens.

        Where ``needs_drafts`` is false their number ``num_ahead`` is enough, so that drafts may
        stay on the device. Raises ValueError where it is not.
        """
        if num_ahead is None:
            num_ahead = len(drafts)
        elif self.needs_drafts and num_ahead != len(drafts):
            raise ValueError("penalties need the drafts themselves, not only their number")
        return Draw(
            settings=self.settings,
            key=self.key(num_ahead),
            num_generated=self.num_generated + num_ahead,
            history=self._history,
            drafts=tuple(drafts),
            mask=mask,
        )

    def key(self, num_ahead: int = 0) -> NoiseKey:
        """Return the noise key of the position ``num_ahead`` after the next one."""
        position = self.num_prompt + self.num_generated + num_ahead
        return NoiseKey(self.seed, self.sample_index, position)

    @property
    def is_plain(self) -> bool:
        """Whether every token from here on is the argmax of the logits, and only that is asked."""
        settings = self.settings
        return settings.plain and settings.num_logprobs is None and not self.is_early

    @property
    def is_early(self) -> bool:
        """Whether the ending ids are masked at the next position."""
        return self.num_generated < self.settings.min_tokens and len(self.settings.ending_ids) > 0

    @property
    def needs_drafts(self) -> bool:
        """Whether the tokens before a position change what is picked there."""
        return self._history is not None

    def fork(self, sample_index: int) -> "DrawSource":
        """Return the source of another sample that has said the same so far."""
        other = DrawSource(self.settings, self.seed, sample_index, ())
        other.num_prompt, other.num_generated = self.num_prompt, self.num_generated
        other._history = None if self._history is None else self._history.copy()
        return other


def _permitted(params: SamplingParams, vocab_size: int) -> npt.NDArray[np.bool_] | None:
    if params.allowed_tokens is None and not params.banned_tokens:
        return None
    permitted = np.full(vocab_size, params.allowed_tokens is None)
    permitted[list(params.allowed_tokens or ())] = True
    permitted[list(params.banned_tokens or ())] = False
    return permitted
