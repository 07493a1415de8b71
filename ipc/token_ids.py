"""Token ids as the wire carries them: raw little-endian unsigned 32-bit integers."""

import array
import sys
from collections.abc import Iterable

_SWAP = sys.byteorder == "big"
_CODE = "I" if array.array("I").itemsize == 4 else "L"


def pack_ids(ids: Iterable[int]) -> bytes:
    """Return four bytes an id. Raises ValueError for what is not an id below 2**32."""
    try:
        if type(ids) is tuple and len(ids) == 1:  # what a round usually gains
            return int.to_bytes(ids[0], 4, "little")
        packed = array.array(_CODE, ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers from 0 to 2**32 - 1 ({error})") from None
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """Return the ids in ``packed``, whose length is a multiple of four."""
    ids = array.array(_CODE)
    ids.frombytes(packed)
    if _SWAP:
        ids.byteswap()
    return tuple(ids)
