"""What a folder of safetensors holds, told by its headers alone: no weight is read."""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelError

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
PATTERN = "model*.safetensors"  # the files that mlx-lm loads
SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Name, type and shape of one stored tensor, and the file that holds it."""

    name: str
    dtype: str  # as safetensors spells it: "BF16", "F32", "U32", ...
    shape: tuple[int, ...]
    file: Path


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``; ModelError names the file where there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file.parent} has no {file.name}: not a whole model folder") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds a JSON {type(content).__name__}; it must be an object")
    return content


def read_tensor_headers(folder: Path) -> dict[str, TensorHeader]:
    """Return the header of every tensor in ``folder``'s ``model*.safetensors``, by name.

    Raises ModelError naming the file if a shard is missing, cut short or not safetensors.
    """
    files = sorted(folder.glob(PATTERN))
    listed = _shards_listed(folder)
    _refuse_missing(folder, files, listed)
    if not files:
        others = sorted(file.name for file in folder.glob("*.bin"))
        found = f" (it has {others[0]}, which is not loaded)" if others else ""
        raise ModelError(f"{folder} holds no {PATTERN} file with weights{found}")
    headers: dict[str, TensorHeader] = {}
    for file in files:
        headers.update(read_file_header(file))
    stale = sorted(name for name in listed if name not in headers)
    if stale:
        logger.warning(
            "%s lists %d tensors that no file holds: %s", folder / INDEX, len(stale), some(stale)
        )
    return headers


def read_file_header(file: Path) -> dict[str, TensorHeader]:
    """Return the headers of one safetensors file after checking that the file is whole."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if size < 8:
            raise ModelError(f"{file} holds {size} bytes: an interrupted download; fetch it again")
        if start == b"version ":
            raise ModelError(f"{file} is a Git LFS pointer, not weights; run `git lfs pull`")
        length = int.from_bytes(start, "little")
        if 8 + length > size:
            raise ModelError(
                f"{file} holds {size} bytes where its header alone claims {8 + length}: "
                "cut short, or not safetensors; fetch it again"
            )
        try:
            content = json.loads(stream.read(length))
            content.pop("__metadata__", None)
            headers = {
                name: TensorHeader(name, entry["dtype"], tuple(entry["shape"]), file)
                for name, entry in content.items()
            }
            end = max((entry["data_offsets"][1] for entry in content.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{file} has no safetensors header: {error!r}") from error
    if 8 + length + end > size:
        raise ModelError(
            f"{file} is cut short: its header claims {8 + length + end} bytes, "
            f"it holds {size}; fetch it again"
        )
    return headers


def some(names: list[str], count: int = 4) -> str:
    """Return the first ``count`` of ``names`` in words, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def _shards_listed(folder: Path) -> Mapping[str, str]:
    """Return the index's map from tensor to file name; empty if the folder has no index."""
    if not (folder / INDEX).exists():
        return {}
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{folder / INDEX} lacks the field weight_map")
    return weight_map


def _refuse_missing(folder: Path, files: list[Path], listed: Mapping[str, str]) -> None:
    missing = {name for name in listed.values() if not (folder / name).exists()}
    if not listed:  # without an index the names still tell how many shards there are
        for match in filter(None, (SHARD.fullmatch(file.name) for file in files)):
            stem, count = match["stem"], int(match["count"])
            names = (f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count))
            missing |= {name for name in names if not (folder / name).exists()}
    if missing:
        partial = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.incomplete"))
        reason = f"; half-downloaded: {some(partial)}" if partial else ""
        raise ModelError(
            f"{folder} lacks {some(sorted(missing))} of its weight files{reason}; "
            "download the model again"
        )
