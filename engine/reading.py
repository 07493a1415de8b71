"""Vectors of texts and scores of continuations: requests that read instead of write."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .errors import EngineError, RequestError
from .prompt_reader import Pooling, PromptLogprobs, PromptReader, PromptVector
from .submission import Prompt
from .together import run_until_done, several

if TYPE_CHECKING:
    from .engine import Engine


def embed(
    engine: "Engine", texts: Sequence[Prompt], *, pooling: Pooling = "mean", normalize: bool = True
) -> npt.NDArray[np.float32]:
    """Return a vector for each text, (texts, hidden size), batched over the engine's pages.

    ``pooling`` takes the mean, or the last, of the hidden states after the final norm;
    ``normalize`` makes each vector's length 1. Raises RequestError for a text that cannot be run.
    """
    if pooling not in ("mean", "last"):
        raise RequestError(f"pooling must be 'mean' or 'last', not {pooling!r}")
    forward = engine.parts.executor.forward
    if not forward.is_split:
        raise RequestError(f"{engine.model_name} does not give out its hidden states")
    prompts = [engine.encode(text) for text in several("texts", texts)]
    readers = [PromptVector(len(prompt), pooling) for prompt in prompts]
    # a mean needs every position; the last position is never taken from the cache
    _read_all(engine, prompts, readers, max_cached=0 if pooling == "mean" else None)
    vectors = np.zeros((len(readers), forward.hidden_size), np.float32)
    for number, reader in enumerate(readers):
        vectors[number] = reader.vector()
    if normalize:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def score(engine: "Engine", prompt: Prompt, continuations: Sequence[Prompt]) -> list[float]:
    """Return the sum of the raw log-probabilities, in nats, of each continuation's tokens.

    The prompt is computed once and shared. A continuation is encoded by itself, so its tokens are
    those it has after the prompt's own. Raises RequestError for what cannot be run.
    """
    shared = engine.encode(prompt)
    each = several("continuations", continuations)
    prompts = [shared + _encode_bare(engine, one) for one in each]
    readers = [PromptLogprobs(tokens, 0, first=len(shared)) for tokens in prompts]
    # the output at the prompt's last position judges the first token after it
    _read_all(engine, prompts, readers, max_cached=len(shared) - 1)
    sums = []
    for reader in readers:
        entries = reader.entries[len(shared) :]
        sums.append(sum(entry.logprob for entry in entries if entry is not None))
    return sums


def _encode_bare(engine: "Engine", text: Prompt) -> list[int]:
    """The tokens of a continuation, without what a tokenizer puts before a text."""
    if isinstance(text, str):
        tokens = engine.tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise RequestError("a continuation is empty: at least one token is needed")
        return [int(token) for token in tokens]
    return engine.encode(text)


def _read_all(
    engine: "Engine",
    prompts: Sequence[Sequence[int]],
    readers: Sequence[PromptReader],
    *,
    max_cached: int | None,
) -> None:
    request_ids: list[str] = []
    try:
        for prompt, reader in zip(prompts, readers, strict=True):
            request_ids.append(engine.submit_reader(prompt, reader, max_cached=max_cached))
    except RequestError:
        for request_id in request_ids:
            engine.cancel(request_id)
        run_until_done(engine, request_ids)  # of their end nobody else is to be told
        raise
    for delta in run_until_done(engine, request_ids):
        if delta.finish_reason != "length":
            raise EngineError(f"reading a prompt ended by {delta.finish_reason}: {delta.error}")
