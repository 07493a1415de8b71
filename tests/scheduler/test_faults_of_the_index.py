"""Prefixes that are found where they are not, or are not where they are."""

# ruff: noqa: E501 - the replaced source keeps its own line lengths
import pytest
from fault import Fault, is_caught

FAULTS = [
    Fault(
        "the hash leaves out the last token",
        "prefix_index",
        "hash((parent, tokens))",
        "hash((parent, tokens[:-1]))",
        "test_prefix_index::test_blocks_that_differ_in_their_last_token_are_both_kept",
    ),
    Fault(
        "the hash leaves out the chain",
        "prefix_index",
        "hash((parent, tokens))",
        "hash(tokens)",
        "test_prefix_index::test_the_hash_covers_every_token_of_the_block_and_the_whole_chain",
    ),
    Fault(
        "tenants share a root",
        "prefix_index",
        "        root = self._roots.get(salt)\n",
        '        salt = ""\n        root = self._roots.get(salt)\n',
        "test_prefix_index::test_salts_and_models_never_meet",
    ),
    Fault(
        "the model is not part of the hash",
        "prefix_index",
        "Node(hash((self._model_identity, salt)), None",
        "Node(hash(salt), None",
        "test_prefix_index::test_salts_and_models_never_meet",
    ),
    Fault(
        "a hit goes by the hash alone",
        "prefix_index",
        "            if node.tokens != tuple(tokens[index * size : (index + 1) * size]):\n                break\n",
        "",
        "test_prefix_hits::test_tokens_are_compared_when_hashes_collide",
    ),
    Fault(
        "a hash outlives its block",
        "prefix_index",
        "        del self.nodes[node.key], self.by_block[node.block]\n",
        "        del self.by_block[node.block]\n",
    ),
    Fault(
        "a checkpoint outlives its block",
        "prefix_index",
        "        self.detach(node)\n        del self.nodes",
        "        del self.nodes",
    ),
    Fault(
        "a held block is evicted",
        "prefix_index",
        "        block = self._blocks.oldest_cached()\n",
        "        block = next(iter(self.by_block), None)\n",
    ),
    Fault(
        "a chain is evicted from its beginning",
        "block_table",
        "            tail.reverse()\n",
        "",
    ),
    Fault(
        "a block is indexed before it is computed",
        "committing",
        "min(sequence.computed, len(tokens)) // size",
        "len(tokens) // size",
    ),
    Fault(
        "rejected or cut off tokens are indexed",
        "committing",
        "min(sequence.computed, len(tokens)) // size",
        "sequence.computed // size",
        "test_committing::test_what_a_stop_string_cut_off_is_not_indexed",
    ),
    Fault(
        "a hit leaves no token to compute",
        "prefix_sharing",
        "(len(sequence.tokens) - 1) // ledger",
        "len(sequence.tokens) // ledger",
    ),
    Fault(
        "a hit is counted as free memory as well",
        "admission",
        "num_blocks -= sum(1 for node in match.hit if ledger.blocks.holders[node.block])",
        "num_blocks -= len(match.hit)",
        "test_prefix_hits::test_what_a_hit_takes_out_of_the_cache_is_not_counted_as_available",
    ),
    Fault(
        "a hit does not hold its blocks",
        "admission",
        "    ledger.blocks.share(blocks)\n",
        "",
    ),
    Fault(
        "a request that needs every position reads the cache",
        "prefix_sharing",
        "len(sequence.blocks) or not sequence.request.read_cache:\n        return Match()",
        "len(sequence.blocks):\n        return Match()",
        "test_prefix_hits::test_a_request_that_needs_every_position_fills_the_cache_without_reading_it",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_caught(fault) -> None:
    assert is_caught(fault), f"nothing notices that {fault.name}"
