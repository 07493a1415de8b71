"""Chains of blocks: found by hash, compared by tokens, evicted from their ends."""

from scheduler import prefix_index
from scheduler.pools import BlockPool, StateSlots
from scheduler.prefix_index import Node, PrefixIndex, chain_hash


def make_index(size: int = 2, model: str = "model") -> PrefixIndex:
    return PrefixIndex(BlockPool(12), StateSlots(6), size, model)


def store(index: PrefixIndex, tokens: list[int], salt: str = "") -> list[Node]:
    """Index the full blocks of some tokens and release them."""
    size = index._block_size
    keys: list[int] = []
    index.extend_keys(keys, salt, tokens, len(tokens) // size)
    nodes: list[Node] = []
    held = []
    for at, key in enumerate(keys):
        parent = nodes[-1] if nodes else index.root(salt)
        [block] = index._blocks.take(1)
        node = index.insert(parent, key, tuple(tokens[at * size : (at + 1) * size]), block)
        assert node is not None
        if node.block != block:
            index._blocks.release([block])
            index._blocks.share([node.block])
        nodes.append(node)
        held.append(node.block)
    index._blocks.release(reversed(held))
    return nodes


def found(index: PrefixIndex, tokens: list[int], salt: str = "") -> list[int]:
    count = len(tokens) // index._block_size
    keys: list[int] = []
    index.extend_keys(keys, salt, tokens, count)
    return [node.block for node in index.find(salt, keys, tokens, count)]


def test_a_chain_is_found_as_far_as_it_goes() -> None:
    index = make_index()
    store(index, [1, 2, 3, 4])

    assert found(index, [1, 2, 3, 4, 5, 6]) == [1, 2]
    assert found(index, [1, 2, 9, 9]) == [1]
    assert found(index, [3, 4]) == []


def test_the_hash_covers_every_token_of_the_block_and_the_whole_chain() -> None:
    base = chain_hash(7, (1, 2, 3))

    assert chain_hash(7, (1, 2, 4)) != base  # the last token too
    assert chain_hash(7, (0, 2, 3)) != base
    assert chain_hash(8, (1, 2, 3)) != base


def test_blocks_that_differ_in_their_last_token_are_both_kept() -> None:
    index = make_index()
    store(index, [1, 2])
    store(index, [1, 3])

    assert found(index, [1, 2]) == [1]
    assert found(index, [1, 3]) == [2]


def test_tokens_are_compared_where_hashes_collide(monkeypatch) -> None:
    monkeypatch.setattr(prefix_index, "chain_hash", lambda parent, tokens: 5)
    index = make_index()
    store(index, [1, 2])

    assert found(index, [1, 2]) == [1]
    assert found(index, [3, 4]) == []
    keys: list[int] = []
    index.extend_keys(keys, "", [3, 4], 1)
    [block] = index._blocks.take(1)
    assert index.insert(index.root(""), keys[0], (3, 4), block) is None


def test_salts_and_models_never_meet() -> None:
    index = make_index()
    store(index, [1, 2], salt="tenant")

    assert found(index, [1, 2]) == []
    assert found(index, [1, 2], salt="tenant") == [1]
    assert make_index(model="other").root("").key != index.root("").key


def test_the_end_of_the_longest_unused_chain_is_evicted_first() -> None:
    index = make_index()
    store(index, [1, 2, 3, 4])  # blocks 1, 2
    store(index, [1, 2, 5, 6])  # blocks 1, 4

    evicted = []
    while index._blocks.num_cached:
        before = set(index._blocks.cached_ids)
        index.evict_block()
        evicted += before - set(index._blocks.cached_ids)
    assert evicted[0] == 2
    assert evicted[-1] == 1
    assert not index.nodes
    assert not index._roots
    assert not index.evict_block()


def test_a_hash_is_dropped_when_its_block_is_reused() -> None:
    index = make_index()
    store(index, [1, 2])
    index.evict_block()

    assert found(index, [1, 2]) == []
    assert index._blocks.num_free == 11


def test_a_held_block_is_not_evicted() -> None:
    index = make_index()
    [node] = store(index, [1, 2])
    index._blocks.share([node.block])

    assert not index.evict_block()
    assert found(index, [1, 2]) == [1]


def test_a_checkpoint_goes_with_its_block() -> None:
    index = make_index()
    [node] = store(index, [1, 2])
    [slot] = index._slots.take(1)
    index.attach(node, slot, rolling=False)
    index._slots.release([slot])
    assert index._slots.num_cached == 1

    index.evict_block()

    assert index._slots.num_cached == 0
    assert index._slots.num_free == 5
    assert not index.by_slot


def test_a_checkpoint_may_go_before_its_block() -> None:
    index = make_index()
    [node] = store(index, [1, 2])
    [slot] = index._slots.take(1)
    index.attach(node, slot, rolling=False)
    index._slots.release([slot])

    assert index.evict_checkpoint()
    assert node.checkpoint is None
    assert found(index, [1, 2]) == [1]
    assert not index.evict_checkpoint()
