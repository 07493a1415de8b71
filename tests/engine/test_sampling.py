"""Every parameter against an independent computation in numpy, in mixed batches."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.logits
from engine.draw import Draw, DrawSource, History, Settings
from engine.errors import RequestError
from engine.logits import processed_logits
from engine.noise import NoiseKey, RoundNoise, gumbel
from engine.sampling import pick
from engine.sampling_params import SamplingParams

VOCAB = 97
EOS = 96


def make_draw(params: SamplingParams, prompt: list[int], generated: list[int], **more) -> Draw:
    vocab_size = more.pop("vocab_size", VOCAB)
    seed, sample_index = more.pop("seed", 0), more.pop("sample_index", 0)
    num_drafts = more.pop("num_drafts", 0)
    committed = generated[: len(generated) - num_drafts]
    source = DrawSource(
        Settings.of(params, vocab_size, (EOS, *params.stop_token_ids)),
        seed,
        sample_index,
        prompt,
        committed,
    )
    return source.draw(generated[len(committed) :], **more)


def reference(params, prompt, generated, logits, mask=None, *, slack=0.0) -> np.ndarray:
    """One row in float64, token by token, from the definitions. Returns processed logits.

    ``slack`` widens what min_p and top_p keep (or narrows it, if negative) by that share.
    """
    x = logits.astype(np.float64)
    allowed = range(VOCAB) if params.allowed_tokens is None else params.allowed_tokens
    for token in range(len(x)):
        masked = mask is not None and not mask[token]
        if token not in allowed or token in (params.banned_tokens or ()) or masked:
            x[token] = -np.inf
        if len(generated) < params.min_tokens and token in (EOS, *params.stop_token_ids):
            x[token] = -np.inf
        x[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in prompt or token in generated:
            penalty = params.repetition_penalty or 1.0
            x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        count = Counter(generated)[token]
        x[token] -= params.frequency_penalty * count
        x[token] -= params.presence_penalty if count else 0.0
    return cut(params, x / params.temperature, slack) if params.temperature else x


def cut(params: SamplingParams, x: np.ndarray, slack: float) -> np.ndarray:
    """What min_p, top_k and top_p leave of one row, in float64."""
    if params.min_p:
        probabilities = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        x[probabilities < params.min_p * probabilities.max() * (1 - slack)] = -np.inf
    if params.top_k:
        x[x < np.sort(x)[::-1][min(params.top_k, len(x)) - 1]] = -np.inf
    if params.top_p is not None and params.top_p < 1:
        probabilities = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        least = probabilities[order][before < params.top_p * (1 + slack)].min()
        x[probabilities < least] = -np.inf
    return x


some_token = st.integers(0, VOCAB - 1)
biases = st.integers(-800, 800).map(
    lambda n: n / 8
)  # a smaller one would part equals in 64 bits alone
texts = st.lists(some_token, max_size=12)


@st.composite
def parameters(draw) -> SamplingParams:
    def maybe(strategy):
        return draw(st.none() | strategy)

    allowed = maybe(st.lists(some_token, min_size=5, max_size=40, unique=True))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5])),
        top_p=maybe(st.floats(0.05, 1.0)),
        top_k=maybe(st.integers(0, 120)),
        min_p=maybe(st.floats(0.0, 0.5)),
        repetition_penalty=maybe(st.floats(0.5, 2.0)),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 1.5, -0.3])),
        logit_bias=maybe(st.dictionaries(some_token, biases, max_size=4)),
        allowed_tokens=allowed,
        banned_tokens=[
            t for t in maybe(st.lists(some_token, max_size=4)) or () if t not in (allowed or ())[:3]
        ],
        min_tokens=draw(st.integers(0, 8)),
        stop_token_ids=draw(st.lists(st.integers(90, 95), max_size=2)) if allowed is None else (),
        logprobs=maybe(st.integers(0, 5)),
        logprobs_mode=draw(st.sampled_from(["raw", "processed"])),
    )


@st.composite
def batches(draw):
    rows = draw(st.lists(st.tuples(parameters(), texts, texts), min_size=1, max_size=6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = (random.normal(size=(len(rows), VOCAB)) * 4).astype(np.float32)
    if draw(st.booleans()):
        logits = np.round(logits / 2)  # many equal values, as half precision has
    draws, masks = [], []
    for index, (params, prompt, generated) in enumerate(rows):
        mask = random.random(VOCAB) < 0.8 if random.random() < 0.3 else None
        if mask is not None:
            mask[list((params.allowed_tokens or range(VOCAB))[:3])] = True
        masks.append(mask)
        num_drafts = int(random.integers(0, len(generated) + 1))
        draws.append(
            make_draw(params, prompt, generated, mask=mask, seed=index, num_drafts=num_drafts)
        )
    return rows, draws, masks, logits


@settings(max_examples=150, deadline=None)
@given(batches())
def test_processed_logits_equal_the_definitions_in_mixed_batches(batch) -> None:
    rows, draws, masks, logits = batch
    processed = np.array(processed_logits(draws, mx.array(logits)))
    for (params, prompt, generated), mask, row, result in zip(
        rows, masks, logits, processed, strict=True
    ):
        wide, narrow = (
            reference(params, prompt, generated, row, mask, slack=slack) for slack in (1e-5, -1e-5)
        )
        assert np.isfinite(result[np.isfinite(narrow)]).all()
        kept = np.isfinite(result)
        np.testing.assert_allclose(result[kept], wide[kept], rtol=1e-5, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(batches())
def test_picks_are_the_argmax_with_noise_and_logprobs_are_log_softmaxes(batch) -> None:
    rows, draws, _, logits = batch
    picks = pick(draws, mx.array(logits))
    entries = picks.logprobs()
    assert picks.impossible() == []
    processed = np.array(processed_logits(draws, mx.array(logits))).astype(np.float64)
    for i, (params, _, _) in enumerate(rows):
        noisy = processed[i]
        if params.temperature:
            noisy = noisy + np.array(gumbel([draws[i].key], VOCAB))[0]
        assert picks.token_ids()[i] == noisy.argmax()
        if params.logprobs is None:
            assert entries[i] is None
            continue
        x = processed[i] if params.logprobs_mode == "processed" else logits[i].astype(np.float64)
        x = x - x.max()
        logprobs = x - np.log(np.exp(x).sum())
        assert entries[i].token_id == picks.token_ids()[i]
        assert entries[i].logprob == pytest.approx(logprobs[entries[i].token_id], abs=1e-4)
        best = [t for t in np.argsort(-x, kind="stable")[: params.logprobs] if x[t] > -np.inf]
        assert [token for token, _ in entries[i].top] == best
        assert [value for _, value in entries[i].top] == pytest.approx(logprobs[best], abs=1e-4)


@settings(max_examples=100, deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(batch, random) -> None:
    _, draws, _, logits = batch
    order = [random.randrange(len(draws)) for _ in range(random.randrange(1, 9))]
    mixed = pick([draws[i] for i in order], mx.array(logits[order]))
    mixed_processed = np.array(processed_logits([draws[i] for i in order], mx.array(logits[order])))
    for place, i in enumerate(order):
        alone = pick([draws[i]], mx.array(logits[i : i + 1]))
        assert mixed.token_ids()[place] == alone.token_ids()[0]
        assert mixed.logprobs()[place] == alone.logprobs()[0]
        processed = np.array(processed_logits([draws[i]], mx.array(logits[i : i + 1])))
        assert np.array_equal(mixed_processed[place], processed[0])


def test_a_large_vocabulary_is_cut_the_same_with_and_without_a_full_sort(monkeypatch) -> None:
    random = np.random.default_rng(3)
    logits = mx.array(
        (random.normal(size=(6, 5000)) * [[1], [2], [3], [5], [0.1], [4]]).astype(np.float32)
    )
    tops = [0.3, 0.9, 0.99, 0.5, 0.95, 1.0]
    rows = [SamplingParams(temperature=1.0, top_p=top_p, min_p=0.001) for top_p in tops]
    draws = [make_draw(params, [], [], vocab_size=5000) for params in rows]
    narrow = np.array(processed_logits(draws, logits))
    alone = [
        np.array(processed_logits([draw], logits[i : i + 1]))[0] for i, draw in enumerate(draws)
    ]
    monkeypatch.setattr(engine.logits, "_NARROW", 5000)
    assert np.array_equal(narrow, np.array(processed_logits(draws, logits)))
    assert np.array_equal(narrow, np.stack(alone))
    kept = np.isfinite(narrow).sum(axis=-1)
    assert kept[4] > 1024 > kept[3]


def test_a_cut_that_sees_the_whole_vocabulary_is_right_beside_one_of_another_kind() -> None:
    logits = np.random.default_rng(3).normal(size=(1, VOCAB)).astype(np.float32)
    draws = [
        make_draw(SamplingParams(temperature=1.0, **params), [], [])
        for params in (
            {"top_p": 0.9},
            {"top_k": 70, "top_p": 0.9999},
            {"top_k": 80},
            {"min_p": 0.1},
        )
    ]
    alone = [np.array(processed_logits([draw], mx.array(logits)))[0] for draw in draws]
    assert [int(np.isfinite(row).sum()) for row in alone[1:3]] == [70, 80]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        mixed = processed_logits([draws[i] for i in order], mx.array(np.tile(logits, (4, 1))))
        assert np.array_equal(np.array(mixed), np.stack([alone[i] for i in order]))


def test_values_equal_to_the_kth_stay_together_and_all_count_for_top_p() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 7], logits[0, 60:] = 1.0, -20.0
    draw = make_draw(SamplingParams(temperature=1.0, top_k=2, top_p=0.5), [], [])
    assert np.isfinite(np.array(processed_logits([draw], mx.array(logits)))).sum() == 60


def test_plain_greedy_rows_are_one_argmax_and_nothing_else(monkeypatch) -> None:
    def never(*args):
        raise AssertionError("processed although no row asks for it")

    monkeypatch.setattr("engine.sampling.processed_logits", never)
    logits = mx.array(np.random.default_rng(0).normal(size=(3, VOCAB)).astype(np.float32))
    for params in (SamplingParams(), SamplingParams(temperature=1e-6, top_p=0.5, top_k=3)):
        picks = pick([make_draw(params, [1], [2])] * 3, logits)
        assert picks.token_ids() == np.array(logits).argmax(axis=-1).tolist()
        assert len(picks.arrays) == 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_ties_go_to_the_lowest_id(dtype) -> None:
    logits = mx.zeros((2, VOCAB), dtype=dtype)
    params = SamplingParams(logprobs=40, banned_tokens=(0,))
    picks = pick([make_draw(params, [], []), make_draw(SamplingParams(), [], [])], logits)
    assert picks.token_ids() == [1, 0]
    assert [token for token, _ in picks.logprobs()[0].top] == list(range(40))


def test_penalties_and_min_tokens_count_drafts_before_a_position_and_no_others() -> None:
    params = SamplingParams(frequency_penalty=1.0, repetition_penalty=2.0, min_tokens=4)
    source = DrawSource(Settings.of(params, VOCAB, (EOS,)), 0, 0, [1, 1], [2, 3])
    logits = np.full((3, VOCAB), 1.0, np.float32)
    draws = [source.draw((2, 5)[:ahead]) for ahead in range(3)]
    processed = np.array(processed_logits(draws, mx.array(logits)))
    assert processed[:, [1, 2, 3, 5]].tolist() == [
        [0.5, -0.5, -0.5, 1.0],
        [0.5, -1.5, -0.5, 1.0],
        [0.5, -1.5, -0.5, -0.5],
    ]
    assert np.isinf(processed[:, EOS]).tolist() == [True, True, False]
    assert [draw.key.position for draw in draws] == [4, 5, 6]

    source.commit((2, 6))  # the draft 5 was rejected
    again = np.array(processed_logits([source.draw()], mx.array(logits[:1])))
    assert again[0, [2, 5, 6]].tolist() == [-1.5, 1.0, -0.5]


def test_no_logit_is_written_twice_for_its_order_would_be_the_devices(monkeypatch) -> None:
    written = []
    at = engine.logits._at

    def writing(x, where, *rest):
        written.append([tuple(pair) for pair in np.stack(where, axis=1).tolist()])
        return at(x, where, *rest)

    monkeypatch.setattr(engine.logits, "_at", writing)
    params = SamplingParams(
        logit_bias={3: 50.0, 4: 1.0}, stop_token_ids=(3,), min_tokens=2, repetition_penalty=1.5
    )
    draws = [make_draw(params, [3, 3, 5], []), make_draw(params, [5, 5], [4, 3, 4])]
    x = processed_logits(draws, mx.zeros((2, 8)))

    assert len(written) == 2
    for pairs in written:
        assert len(set(pairs)) == len(pairs)
    assert x[0, 3].item() == -np.inf
    assert x[1, 3].item() > 1


def test_a_history_told_in_pieces_counts_what_one_told_at_once_counts() -> None:
    pieces, whole = History([1, 2, 2]), History([1, 2, 2])
    for part in ([2], [], [7, 7, 1], [9]):
        pieces.extend(part)
    whole.extend([2, 7, 7, 1, 9])
    copied = whole.copy()
    copied.extend([1, 50])
    for history in (pieces, whole):
        ids, counts = history.counted((9, 4))
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
            1: 1,
            2: 1,
            7: 2,
            9: 2,
            4: 1,
        }


def test_drafts_that_are_still_on_the_device_need_only_their_number() -> None:
    free = DrawSource(Settings.of(SamplingParams(temperature=1.0), VOCAB), 7, 1, [1, 2], [3])
    assert free.draw(num_ahead=2).key == NoiseKey(7, 1, 5)
    params = SamplingParams(presence_penalty=1.0)
    bound = DrawSource(Settings.of(params, VOCAB), 7, 1, [1, 2], [3])
    with pytest.raises(ValueError, match="penalties need the drafts"):
        bound.draw(num_ahead=2)


def test_samples_of_one_request_differ_and_a_fork_goes_on_from_where_it_was() -> None:
    params = SamplingParams(temperature=1.0, frequency_penalty=0.5)
    source = DrawSource(Settings.of(params, VOCAB), 3, 0, [1, 2], [3, 3])
    fork = source.fork(1)
    source.commit([9])
    same = DrawSource(source.settings, 3, 1, [1, 2], [3, 3])
    assert fork.draw().key == same.draw().key == NoiseKey(3, 1, 4)
    logits = mx.zeros((1, VOCAB))
    picked = [pick([one.draw()], logits).token_ids() for one in (fork, same, source)]
    assert picked[0] == picked[1] != picked[2]


def test_a_drafter_with_a_smaller_vocabulary_reads_the_same_noise() -> None:
    params = SamplingParams(
        temperature=1.0, top_k=90, logit_bias={95: 5.0}, banned_tokens=(1,), min_tokens=3
    )
    draws = [make_draw(params, [1], [2], seed=seed) for seed in range(40)]
    logits = np.random.default_rng(1).normal(size=(40, VOCAB)).astype(np.float32)
    logits[:, 60:] = -30
    noise = RoundNoise(VOCAB)
    drafted = pick(draws, mx.array(logits[:, :80]), noise, logprobs=False)
    verified = pick(draws, mx.array(logits), noise)
    assert drafted.token_ids() == verified.token_ids()


def test_a_draw_with_every_token_masked_is_named_and_disturbs_nobody() -> None:
    logits = mx.array(np.random.default_rng(1).normal(size=(3, VOCAB)).astype(np.float32))
    draws = [
        make_draw(SamplingParams(temperature=1.0, top_p=0.5, top_k=5, min_p=0.1), [], [], mask=mask)
        for mask in (np.zeros(VOCAB, bool), np.ones(VOCAB, bool), None)
    ]
    picks = pick(draws, logits)
    assert picks.impossible() == [0]
    assert picks.token_ids()[1:] == pick(draws[1:], logits[1:]).token_ids()


def test_settings_that_leave_nothing_to_say_are_refused() -> None:
    params = SamplingParams(allowed_tokens=(EOS,), min_tokens=2)
    with pytest.raises(RequestError, match="leave only tokens that end the request"):
        Settings.of(params, VOCAB, (EOS,))
    with pytest.raises(RequestError, match="stop_token_ids is 97"):
        Settings.of(SamplingParams(stop_token_ids=(97,)), VOCAB)


def test_as_many_draws_as_rows_are_needed() -> None:
    with pytest.raises(ValueError, match="1 draws for 2 rows"):
        pick([make_draw(SamplingParams(), [], [])], mx.zeros((2, VOCAB)))
    assert pick([], mx.zeros((0, VOCAB))).token_ids() == []
