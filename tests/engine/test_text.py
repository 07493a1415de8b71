"""Streamed text equals the text as a whole, and ends where a naive search says."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import load
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import engine.demo
from engine.detokenizer import ByteDecoder, Detokenizer
from engine.text import Fed, TextStream

MODEL = Path(engine.demo.__file__).parent / "hybrid"


class ByteVocabulary:
    """A detokenizer of tokens that are the given strings of bytes."""

    def __init__(self, table: list[bytes]) -> None:
        self.table = table

    def start(self) -> ByteDecoder:
        return ByteDecoder(self.table)


@pytest.fixture(scope="module")
def tokenizer():
    return load(MODEL)


@pytest.fixture(scope="module")
def detokenizer(tokenizer):
    return Detokenizer(tokenizer)


def sentencepiece_like(*, strip: bool) -> PreTrainedTokenizerFast:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581a", "b", "\u2581\u2581c", "日", "</b>", "<0x>", "é\u2581"]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, "<unk>"))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def word_pieces() -> PreTrainedTokenizerFast:
    pieces = ["[UNK]", "[SEP]", "the", "##re", "hall", "##o", "日", ",", "'", "s"]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, sep_token="[SEP]", unk_token="[UNK]")


def whole_text(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pieces_of(detokenizer, ids: list[int]) -> list[str]:
    decoder = detokenizer.start()
    return [*(decoder.feed(token) for token in ids), decoder.finish()]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_pieces_of_random_ids_join_to_what_the_tokenizer_decodes(
    tokenizer, detokenizer, data
) -> None:
    byte_tokens = st.integers(90, 260)
    ids = data.draw(st.lists(byte_tokens | st.integers(0, 8191), max_size=30))
    assert "".join(pieces_of(detokenizer, ids)) == whole_text(tokenizer, ids)


@pytest.mark.parametrize(
    "make",
    [lambda: sentencepiece_like(strip=True), lambda: sentencepiece_like(strip=False), word_pieces],
)
def test_other_kinds_of_vocabulary_join_too(make) -> None:
    tokenizer = make()
    detokenizer = Detokenizer(tokenizer)
    generator = random.Random(0)
    for _ in range(500):
        ids = []
        for _ in range(generator.randrange(8)):
            if generator.random() < 0.5 and len(tokenizer) > 200:
                ids += [3 + byte for byte in generator.choice("é日😀a").encode()]
            ids.append(generator.randrange(len(tokenizer)))
        assert "".join(pieces_of(detokenizer, ids)) == whole_text(tokenizer, ids)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_no_piece_of_a_real_text_holds_half_a_character(tokenizer, detokenizer, text) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(detokenizer, ids)
    assert "".join(pieces) == whole_text(tokenizer, ids)
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_special_tokens_are_not_shown_and_ids_beyond_the_vocabulary_have_no_text(
    detokenizer,
) -> None:
    assert "".join(pieces_of(detokenizer, [8191, 7475, 8190, 9999])) == "Hello"


def naive(table, ids, stop, include_stop, min_tokens) -> tuple[str, int, str]:
    """Decode every prefix of the ids anew; the first that contains a stop string ends it."""

    def decoded(count: int, *, final: bool = False) -> str:
        whole = ByteDecoder(table)
        text = "".join(whole.feed(token) for token in ids[:count])
        return text + (whole.finish() if final else "")

    texts = [decoded(count) for count in range(len(ids) + 1)] + [decoded(len(ids), final=True)]
    for index, (before, text) in enumerate(itertools.pairwise(texts), start=1):
        count = min(index, len(ids))
        if count < min_tokens:
            continue
        for end in range(len(before) + 1, len(text) + 1):
            starts = [end - len(one) for one in stop if text[:end].endswith(one)]
            if starts:
                return text[: end if include_stop else min(starts)], count, "stop"
    return texts[-1], len(ids), "length"


alphabet = st.text("ab\nß日", max_size=4)
vocabularies = st.lists(
    alphabet.map(str.encode) | st.binary(min_size=1, max_size=2) | st.just("日".encode()[:2]),
    min_size=1,
    max_size=8,
)


@settings(max_examples=400, deadline=None)
@given(st.data(), vocabularies, st.lists(alphabet.filter(bool), max_size=1), st.booleans())
def test_a_stream_ends_where_a_naive_search_of_the_whole_text_ends(
    data, table, stop, include_stop
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=16))
    text = b"".join(table[token] for token in ids).decode(errors="replace")
    for _ in range(data.draw(st.integers(0, 3))):  # stop strings that do occur
        start = data.draw(st.integers(0, max(0, len(text) - 1)))
        stop += [part for part in [text[start : start + data.draw(st.integers(1, 9))]] if part]
    min_tokens = data.draw(st.integers(0, 6))
    stream = TextStream(
        ByteVocabulary(table), stop, include_stop=include_stop, min_tokens=min_tokens
    )
    text, kept, finish = "", 0, None
    expected = naive(table, ids, stop, include_stop, min_tokens)
    while finish is None:
        size = data.draw(st.integers(1, len(ids) - kept))
        last = kept + size == len(ids)
        fed = stream.feed(ids[kept : kept + size], "length" if last else None)
        text, kept, finish = text + fed.text, kept + fed.num_kept, fed.finish
        assert expected[0].startswith(text)
    assert (text, kept, finish) == expected


WORDS = ByteVocabulary([b"Hello ", b"wor", b"ld. E", b"ND of", b"\xe6\x97", b"\xa5", b"E"])


def test_a_stop_string_that_begins_in_one_token_and_ends_in_another_ends_text_and_ids() -> None:
    stream = TextStream(WORDS, ["END"])
    assert stream.feed([0, 1]) == Fed("Hello wor", 2, None)
    assert stream.feed([2]) == Fed("ld. ", 1, None)
    assert stream.feed([3, 0, 0]) == Fed("", 1, "stop")
    with pytest.raises(ValueError, match="has ended"):
        stream.feed([1])


def test_a_stop_string_inside_one_run_of_tokens_is_kept_if_asked() -> None:
    stream = TextStream(WORDS, ["END", "zzz"], include_stop=True)
    assert stream.feed([0, 1, 2, 3, 0, 1], "length") == Fed("Hello world. END", 4, "stop")


def test_held_text_is_released_when_it_became_no_stop_string_or_at_the_end() -> None:
    stream = TextStream(WORDS, ["END"])
    assert stream.feed([2]) == Fed("ld. ", 1, None)
    assert stream.feed([0]) == Fed("EHello ", 1, None)
    assert stream.feed([6]) == Fed("", 1, None)
    assert stream.feed([], "cancelled") == Fed("E", 0, "cancelled")


def test_half_a_character_waits_and_is_marked_at_the_end() -> None:
    stream = TextStream(WORDS)
    assert stream.feed([4]) == Fed("", 1, None)
    assert stream.feed([5, 4]) == Fed("日", 2, None)
    assert stream.feed([4], "length") == Fed("\ufffd\ufffd", 1, "length")


def test_the_text_of_an_id_that_ends_is_left_out_unless_asked_for() -> None:
    assert TextStream(WORDS).feed([0, 1], "stop") == Fed("Hello ", 2, "stop")
    assert TextStream(WORDS, include_stop=True).feed([0, 1], "stop") == Fed("Hello wor", 2, "stop")
    assert TextStream(WORDS).feed([0, 1], "length") == Fed("Hello wor", 2, "length")


@pytest.mark.parametrize("num_generated", range(6))
def test_tokens_of_an_earlier_run_count_towards_min_tokens(num_generated) -> None:
    stream = TextStream(WORDS, ["wor"], min_tokens=4)
    stream.feed([0] * num_generated)
    finish = stream.feed([1]).finish
    assert finish == ("stop" if num_generated >= 3 else None)
