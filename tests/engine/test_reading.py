"""What a request learns of its prompt, against mlx-lm's forward of the whole prompt at once."""

import mlx.core as mx
import numpy as np
import pytest

from engine import Engine, RequestError, SamplingParams
from engine.prompt_reader import PromptVector

TEXT = (
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals, "
    "when it was checked by a violent gust of wind which swept up the streets."
)


@pytest.fixture(scope="module", params=["demo", "demo-draft"])
def engine(request) -> Engine:
    return Engine.load(
        request.param, max_rows=4, num_blocks=64, prompt_tokens_per_round=32, exact=True, check=True
    )


def reference_logprobs(engine: Engine, tokens: list[int]) -> np.ndarray:
    logits = engine.model(mx.array([tokens]))[0]
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def reference_hidden(engine: Engine, tokens: list[int]) -> np.ndarray:
    text = getattr(engine.model, "language_model", engine.model)
    return np.array(text.model(mx.array([tokens]))[0])


def test_prompt_logprobs_are_those_of_the_whole_prompt_at_once(engine) -> None:
    tokens = engine.encode(TEXT)
    params = SamplingParams(max_tokens=3, prompt_logprobs=2, n=2)
    answers = list(engine.generate([TEXT, "Short."], [params, SamplingParams(max_tokens=3)]))
    expected = reference_logprobs(engine, tokens)

    for answer in answers[:2]:
        entries = answer.prompt_logprobs
        assert entries[0] is None
        assert [entry.token_id for entry in entries[1:]] == tokens[1:]
        ours = [entry.logprob for entry in entries[1:]]
        np.testing.assert_allclose(
            ours, expected[np.arange(len(tokens) - 1), tokens[1:]], atol=2e-5
        )
        for entry, line in zip(entries[1:], expected, strict=False):
            assert entry.top[0][0] == int(line.argmax())
            assert len(entry.top) == 2
    assert answers[2].prompt_logprobs is None


def test_prompt_logprobs_fill_the_cache_but_do_not_read_it(engine) -> None:
    text = "A text that was seen before. " + TEXT
    list(engine.generate([text], SamplingParams(max_tokens=1)))
    [answer] = engine.generate([text], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert answer.usage.cached_tokens == 0
    assert all(entry is not None for entry in answer.prompt_logprobs[1:])
    [again] = engine.generate([text], SamplingParams(max_tokens=1))
    assert again.usage.cached_tokens > 0


def test_a_score_is_the_sum_of_the_continuations_logprobs(engine) -> None:
    prompt = engine.encode(TEXT)
    continuations = [[5, 6, 7], [900], [31, 32, 33, 34, 35, 36, 37]]
    scores = engine.score(prompt, continuations)
    for continuation, score in zip(continuations, scores, strict=True):
        expected = reference_logprobs(engine, prompt + continuation)
        places = np.arange(len(prompt) - 1, len(prompt) + len(continuation) - 1)
        assert score == pytest.approx(float(expected[places, continuation].sum()), abs=1e-4)


def test_the_prompt_of_a_score_is_computed_once(engine) -> None:
    prompt = engine.encode("Once " + TEXT)
    before = engine.stats().scheduler.prompt_tokens
    engine.score(prompt, [[number, number + 1] for number in range(10, 18)])
    computed = engine.stats().scheduler.prompt_tokens - before
    assert computed < 2 * len(prompt) + 8 * 32


def test_a_score_does_not_depend_on_what_is_cached_or_runs_beside(engine) -> None:
    prompt, one = engine.encode("Alone: " + TEXT), [11, 12, 13]
    [alone] = engine.score(prompt, [one])
    engine.submit("A neighbour", SamplingParams(max_tokens=30, ignore_eos=True), request_id="next")
    again = engine.score(prompt, [one, [14, 15]])
    assert again[0] == alone
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    assert sum(len(delta.token_ids) for delta in deltas if delta.request_id == "next") == 30


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_is_pooled_from_the_hidden_states(engine, pooling) -> None:
    texts = [TEXT, "The sea", TEXT]
    vectors = engine.embed(texts, pooling=pooling, normalize=False)
    for text, vector in zip(texts, vectors, strict=True):
        hidden = reference_hidden(engine, engine.encode(text))
        expected = hidden.mean(axis=0) if pooling == "mean" else hidden[-1]
        np.testing.assert_allclose(vector, expected, atol=2e-4)
    lengths = np.linalg.norm(engine.embed(texts, pooling=pooling), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
def test_of_no_texts_there_are_no_vectors_of_that_size(engine, normalize) -> None:
    vectors = engine.embed([], normalize=normalize)
    [size] = engine.embed(["The sea"])[0].shape
    assert vectors.shape == (0, size)
    assert vectors.dtype == np.float32


def test_what_cannot_be_read_is_refused_by_name(engine) -> None:
    with pytest.raises(RequestError, match="pooling must be 'mean' or 'last', not 'max'"):
        engine.embed(["The sea"], pooling="max")
    with pytest.raises(RequestError, match="a continuation is empty"):
        engine.score("The sea", ["x", ""])
    with pytest.raises(RequestError, match="the context holds"):
        engine.embed([[5] * 5000])
    assert not engine.has_work


def test_a_vector_counts_every_position_once_however_often_it_was_computed(engine) -> None:
    tokens = engine.encode(TEXT * 2)[:80]
    expected = reference_hidden(engine, tokens).mean(axis=0)
    reader = PromptVector(len(tokens), "mean")
    engine.submit_reader(tokens, reader, max_cached=0)
    engine.step()
    engine.step()  # two chunks of 32
    [sequence] = engine.scheduler.sequences.values()
    assert sequence.computed == 64
    engine.scheduler.preempt(sequence.seq_id)
    engine.submit(list(range(100, 116)), SamplingParams(max_tokens=1, priority=1))  # goes first
    starts = []
    while engine.has_work:
        starts.append(sequence.computed)
        engine.step()

    assert any(start % 32 for start in starts), starts  # other chunks than before
    np.testing.assert_allclose(reader.vector(), expected, atol=2e-5)
