"""Prompt lookup drafts what followed the same words before, and forgets sequences that ended."""

from hypothesis import given
from hypothesis import strategies as st

from engine.drafting.lookup_drafter import LookupDrafter
from engine.drafting.ngram_search import LONGEST, MOST_COMPARED, MOST_IDS, SHORTEST, NgramSearch
from scheduler.round import Row


def look(tokens: list[int], most: int) -> tuple[tuple[int, ...], int]:
    search = NgramSearch()
    search.extend(tokens)
    return search.look(most)


def continuation(tokens: list[int], most: int) -> tuple[int, ...]:
    return look(tokens, most)[0]


def num_same(tokens: list[int]) -> int:
    return look(tokens, 1)[1]


def test_the_longest_suffix_decides_and_of_equals_the_newest() -> None:
    assert continuation([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2) == (9, 2)  # 1 2 3 beats the newer 2 3
    assert continuation([2, 3, 9, 2, 3, 8, 7, 2, 3], 3) == (8, 7, 2)
    assert continuation([1, 2, 3, 4, 9, 2, 3, 4, 8, 1, 2, 3, 4], 1) == (9,)  # 1 2 3 4 beats 2 3 4


def test_a_repetition_goes_on_with_itself() -> None:
    assert continuation([5, 1, 2, 1, 2], 5) == (1, 2, 1, 2, 1)


def test_nothing_is_drafted_where_nothing_was_said_twice() -> None:
    assert continuation([1, 2, 3, 4, 5], 4) == ()
    assert continuation([7], 4) == ()


def test_evidence_is_how_many_words_before_the_place_are_the_same() -> None:
    assert num_same([1, 2, 3, 9, 2, 3, 8, 1, 2, 3]) == 3
    assert num_same([7, 2, 3, 9, 8, 2, 3]) == 2
    assert num_same([*range(30), 99, *range(30)]) == MOST_COMPARED
    assert num_same([1, 1, 1, 1, 1, 1]) == 5  # as many as there are before it
    assert num_same([1, 2, 3]) == 0


IDS = st.sampled_from([0, 1, 255, 256, 65536, 0xD800, 0xDC00, MOST_IDS - 1])
"""Whose bytes are alike; some are no characters that a text may have."""


@given(
    st.lists(st.integers(0, 1) | st.integers(0, 3) | IDS, min_size=1, max_size=60),
    st.integers(1, 5),
    st.lists(st.integers(1, 60)),
)
def test_a_search_that_grows_finds_what_is_said_by_definition(
    tokens: list[int], most: int, lengths: list[int]
) -> None:
    search = NgramSearch()
    for length in sorted(lengths):
        search.extend(tokens[:length])
        assert search.look(most) == by_definition(tokens[:length], most)
    search.extend(tokens)
    assert search.look(most) == by_definition(tokens, most)


def by_definition(tokens: list[int], most: int) -> tuple[tuple[int, ...], int]:
    for size in range(LONGEST, SHORTEST - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if size < len(tokens) and tokens[start : start + size] == tokens[-size:]:
                place, said = start + size, list(tokens)
                for step in range(most):
                    said.append(said[place + step])
                same = [
                    count
                    for count in range(1, min(MOST_COMPARED, place) + 1)
                    if tokens[place - count : place] == tokens[-count:]
                ]
                return tuple(said[len(tokens) :]), max(same)
    return (), 0


def test_an_ended_sequence_leaves_nothing_and_others_draft_by_their_own_words() -> None:
    spoken = {1: [1, 2, 3, 1, 2], 2: [4, 5, 6]}
    drafter = LookupDrafter()
    drafter.attach(spoken.__getitem__)
    rows = [Row(seq_id, (0,), 0, (1,), num_drafts=2) for seq_id in spoken]

    assert drafter.propose(rows, None) == {1: (3, 1)}  # type: ignore[arg-type]  # nothing to choose
    assert (drafter.evidence(1), drafter.evidence(2)) == (2, 0)
    drafter.forget(1)
    drafter.forget(2)
    assert not drafter._searches
