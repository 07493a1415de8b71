"""Which worker gets a request: the one that probably holds its prefix, else the least loaded.

The canonical prompt is a string of bytes. Its leading 64, 256, 1,024 ... bytes are hashed; each
hash remembers which workers last ran a prompt that began so. A worker that is full is passed
over, so a hot prefix spreads to a second one, which then holds it too.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

PREFIX_BYTES = tuple(64 * 4**power for power in range(8))  # 64 bytes to 1 MiB


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could take a request, and how loaded it is."""

    name: Hashable
    load: int  # requests it has
    capacity: int  # requests it wants at most
    free_blocks: int = 0
    free_rows: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it wants another request."""
        return self.load < self.capacity


def prefix_hashes(canonical: bytes, salt: bytes = b"") -> list[bytes]:
    """Return hashes of the leading bytes, the longest first. Short prompts have none."""
    hashes = []
    digest = hashlib.blake2b(salt, digest_size=12, key=b"octavo prefix")
    done = 0
    for length in PREFIX_BYTES:
        if length > len(canonical):
            break
        digest.update(canonical[done:length])
        done = length
        hashes.append(digest.copy().digest())
    hashes.reverse()
    return hashes


class PrefixRouter:
    """Remembers where prefixes ran; bounded, the least recently used is forgotten."""

    def __init__(self, max_prefixes: int = 65_536, max_holders: int = 4) -> None:
        self._holders: OrderedDict[bytes, list[Hashable]] = OrderedDict()
        self._max_prefixes = max_prefixes
        self._max_holders = max_holders

    def choose(
        self, hashes: Sequence[bytes], candidates: Sequence[Candidate]
    ) -> tuple[Candidate | None, bool]:
        """Return the worker for a prompt with these hashes, and whether it holds the prefix.

        None if no candidate has room.
        """
        able = {candidate.name: candidate for candidate in candidates if candidate.has_room}
        if not able:
            return None, False
        for prefix in hashes:
            holders = [able[name] for name in self._holders.get(prefix, ()) if name in able]
            if holders:
                return min(holders, key=_pressure), True
        return min(able.values(), key=_pressure), False

    def remember(self, hashes: Sequence[bytes], name: Hashable) -> None:
        """Note that a prompt with these hashes ran on worker ``name``."""
        for prefix in hashes:
            holders = self._holders.setdefault(prefix, [])
            if name in holders:
                holders.remove(name)
            holders.insert(0, name)
            del holders[self._max_holders :]
            self._holders.move_to_end(prefix)
        while len(self._holders) > self._max_prefixes:
            self._holders.popitem(last=False)

    def forget(self, name: Hashable) -> None:
        """Worker ``name`` is gone, and its blocks with it."""
        for prefix in [key for key, holders in self._holders.items() if name in holders]:
            self._holders[prefix].remove(name)
            if not self._holders[prefix]:
                del self._holders[prefix]

    def __len__(self) -> int:
        return len(self._holders)


def _pressure(candidate: Candidate) -> tuple[float, int, int]:
    share = candidate.load / max(candidate.capacity, 1)
    return (share, -candidate.free_rows, -candidate.free_blocks)
