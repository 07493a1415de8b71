"""From what a user hands in to what the scheduler takes: tokens, resolved parameters, a seed."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.request import Request

from .constraint import ConstraintCompiler, Matcher
from .draw import Settings
from .errors import RequestError
from .loading import LoadedModel
from .prompt_reader import PromptLogprobs, PromptReader
from .sampling_params import SamplingParams

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or chat messages ({"role", "content"}) for the tokenizer's template."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request ready for the scheduler, and what the engine keeps beside it."""

    request: Request
    params: SamplingParams
    settings: Settings
    seed: int
    matcher: Matcher | None  # of a constraint, at its start
    reader: PromptReader | None  # of the prompt; all samples share it


class Submitter:
    """Checks requests against one loaded model. Every refusal is a RequestError."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self._constraints = ConstraintCompiler(loaded.tokenizer, loaded.vocab_size, loaded.eos_ids)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        request_id: str,
        tenant: str,
        emitted: Sequence[int],
        now: float,
        reader: PromptReader | None = None,
        max_cached: int | None = None,
    ) -> Submission:
        """Encode, resolve and check one request.

        ``reader`` is shown the prompt's hidden states, but for the first ``max_cached`` tokens,
        which it does not need.
        """
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError(f"params must be SamplingParams, not {type(params).__name__}")
        resolved = (params or SamplingParams()).resolve(self.loaded.sampling_defaults)
        tokens = self.encode(prompt)
        self._check_ids("emitted", emitted)
        eos_ids = frozenset() if resolved.ignore_eos else self.loaded.eos_ids
        stop_ids = frozenset(resolved.stop_token_ids)
        settings = Settings.of(resolved, self.loaded.vocab_size, eos_ids | stop_ids)
        matcher = self._constraints.compile(resolved)
        request = Request(
            request_id=request_id,
            prompt=tuple(tokens),
            max_tokens=resolved.max_tokens,
            min_tokens=resolved.min_tokens,
            eos_ids=eos_ids,
            stop_ids=stop_ids,
            n=resolved.n,
            emitted=tuple(emitted),
            priority=resolved.priority,
            tenant=tenant,
            salt=resolved.salt,
            deadline=None if resolved.deadline is None else now + resolved.deadline,
            read_cache=resolved.prompt_logprobs is None,
            max_cached=max_cached,
            needs_tokens=settings.penalizes or matcher is not None,
        )
        if resolved.prompt_logprobs is not None:
            reader = PromptLogprobs(tokens, resolved.prompt_logprobs)
        if matcher is not None and matcher.try_advance(emitted) < len(emitted):
            raise RequestError("the constraint refuses the emitted tokens")
        seed = secrets.randbits(63) if resolved.seed is None else resolved.seed
        return Submission(request, resolved, settings, seed, matcher, reader)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a text, of chat messages, or of ids as they are."""
        if isinstance(prompt, str):
            tokens = [int(token) for token in self.loaded.tokenizer.encode(prompt)]
            if not tokens:
                raise RequestError("the prompt is empty: at least one token is needed")
            return tokens
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not len(prompt):
            raise RequestError(
                "a prompt must be a text, a non-empty list of token ids, or a non-empty list of "
                f"messages, not {prompt!r:.80}"
            )
        if isinstance(prompt[0], Mapping):
            return self._apply_template(prompt)
        self._check_ids("prompt", prompt)
        return [int(token) for token in prompt]  # type: ignore[arg-type]  # checked to be ids

    def _apply_template(self, messages: Sequence[Any]) -> list[int]:
        for number, message in enumerate(messages):
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise RequestError(f"message {number} must have role and content: {message!r:.80}")
            if not isinstance(message["content"], str):
                raise RequestError(
                    f"content of message {number} must be a text; images and audio are not "
                    f"supported: {message['content']!r:.80}"
                )
        tokenizer = self.loaded.tokenizer
        if not tokenizer.has_chat_template:
            raise RequestError(f"{self.loaded.name} has no chat template: give it a text or ids")
        try:
            apply: Any = tokenizer.apply_chat_template
            tokens = apply(list(messages), add_generation_prompt=True)
        except Exception as error:  # a template may raise anything
            raise RequestError(f"the chat template refused the messages: {error}") from error
        return [int(token) for token in tokens]

    def _check_ids(self, name: str, tokens: Sequence[Any]) -> None:
        most = self.loaded.vocab_size - 1
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= most:
                raise RequestError(f"{name} holds {token!r:.80}: token ids are 0 to {most}")
