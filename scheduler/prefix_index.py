"""Finds blocks, and recurrent states at some block boundaries, by the tokens they stand for.

    root (model, salt) -> block 0 -> block 1 -> block 2        a node per full, computed block
                                     ^ checkpoint: the state after block 1

1. A node's hash covers its tokens and its parent's hash; a hit compares tokens and parent as well.
2. A node lives as long as its block is kept; a checkpoint lives no longer than its node.
3. Whoever holds a node's block holds its parent's, and releases children first. So the least
   recently used cached block never has a child, and evicting it cuts no chain.
"""

from collections.abc import Sequence as Seq

from .pools import BlockPool, StateSlots


def chain_hash(parent: int, tokens: tuple[int, ...]) -> int:
    """Return the hash of a block whose chain so far has the hash ``parent``."""
    return hash((parent, tokens))


class Node:
    """One block of a chain."""

    __slots__ = (
        "block",
        "checkpoint",
        "depth",
        "key",
        "num_children",
        "parent",
        "rolling",
        "tokens",
    )

    def __init__(
        self, key: int, parent: "Node | None", tokens: tuple[int, ...], block: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.depth: int = 0 if parent is None else parent.depth + 1  # blocks down to this one
        self.num_children = 0
        self.checkpoint: int | None = None  # the slot with the state after this block
        self.rolling = False  # a decoding sequence moves its checkpoint on; nobody else used it


class PrefixIndex:
    """Nodes by hash. Its blocks and slots are kept in the pools, not held."""

    def __init__(
        self, blocks: BlockPool, slots: StateSlots, block_size: int, model_identity: str
    ) -> None:
        self._blocks = blocks
        self._slots = slots
        self._block_size = block_size
        self._model_identity = model_identity
        self._roots: dict[str, Node] = {}
        self._salts: dict[int, str] = {}  # of the roots, by hash
        self.nodes: dict[int, Node] = {}
        self.by_block: dict[int, Node] = {}
        self.by_slot: dict[int, Node] = {}

    def root(self, salt: str) -> Node:
        """Where all chains with one salt begin."""
        root = self._roots.get(salt)
        if root is None:
            root = Node(hash((self._model_identity, salt)), None, (), 0)
            self._roots[salt] = root
            self._salts[root.key] = salt
        return root

    def extend_keys(self, keys: list[int], salt: str, tokens: Seq[int], count: int) -> None:
        """Append to ``keys`` until it has the hashes of the first ``count`` blocks."""
        size = self._block_size
        key = keys[-1] if keys else hash((self._model_identity, salt))
        for index in range(len(keys), count):
            key = chain_hash(key, tuple(tokens[index * size : (index + 1) * size]))
            keys.append(key)

    def find(self, salt: str, keys: Seq[int], tokens: Seq[int], count: int) -> list[Node]:
        """Return the longest known chain, of at most ``count`` blocks."""
        found: list[Node] = []
        parent, size = self._roots.get(salt), self._block_size
        if parent is None:
            return found
        for index in range(count):
            node = self.nodes.get(keys[index])
            if node is None or node.parent is not parent:
                break
            if node.tokens != tuple(tokens[index * size : (index + 1) * size]):
                break
            found.append(node)
            parent = node
        return found

    def insert(self, parent: Node, key: int, tokens: tuple[int, ...], block: int) -> Node | None:
        """Add a held block to a chain; return its node, or the one that is there already.

        None if another chain has the same hash.
        """
        node = self.nodes.get(key)
        if node is not None:
            return node if node.parent is parent and node.tokens == tokens else None
        node = Node(key, parent, tokens, block)
        parent.num_children += 1
        self.nodes[key] = self.by_block[block] = node
        self._blocks.keep(block)
        return node

    def attach(self, node: Node, slot: int, *, rolling: bool) -> None:
        """Keep a held slot, whose state stands at the end of the node's block."""
        node.checkpoint, node.rolling = slot, rolling
        self.by_slot[slot] = node
        self._slots.keep(slot)

    def detach(self, node: Node) -> None:
        """Forget a node's checkpoint, if it has one."""
        if node.checkpoint is not None:
            del self.by_slot[node.checkpoint]
            self._slots.forget(node.checkpoint)
            node.checkpoint, node.rolling = None, False

    def evict_block(self) -> bool:
        """Free the least recently used cached block; False if there is none."""
        block = self._blocks.oldest_cached()
        if block is None:
            return False
        self._remove(self.by_block[block])
        return True

    def evict_checkpoint(self) -> bool:
        """Free the least recently used cached checkpoint; False if there is none."""
        slot = self._slots.oldest_cached()
        if slot is None:
            return False
        self.detach(self.by_slot[slot])
        return True

    def clear(self) -> None:
        """Forget everything that nobody holds."""
        while self.evict_block():
            pass

    def _remove(self, node: Node) -> None:
        self.detach(node)
        del self.nodes[node.key], self.by_block[node.block]
        parent = node.parent
        assert parent is not None
        parent.num_children -= 1
        if parent.parent is None and parent.num_children == 0:
            self._roots.pop(self._salts.pop(parent.key), None)
        self._blocks.forget(node.block)
