"""The output of a batch job: a file that only one job writes, one record a line.

- A record is appended by one write as soon as it exists, so that killing the process at any moment
  leaves whole records and at most one torn last line, which the next job cuts off.
- ``fsync`` runs at most once a second and at the end: a killed process loses nothing, a machine
  that loses power loses at most the answers of its last second.
- An advisory lock (flock) is held on the file itself: no lock file stays behind.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from .batch_record import ID_PREFIX

SYNC_SECONDS = 1.0
RECORD_START = b'{"id": "' + ID_PREFIX.encode()  # how every record begins, so how a torn one does


class BatchFileError(Exception):
    """An output that this job must not or cannot write."""


class Output(Protocol):
    """Where records go."""

    def append(self, record: dict[str, Any]) -> None:
        """Write one record; it is out of this process when this returns."""

    def close(self) -> None:
        """Let go of it."""


def encode_record(record: dict[str, Any]) -> bytes:
    """Return one line. Half a surrogate pair (a custom_id may hold one) is escaped."""
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode() + b"\n"


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; a pipe or a full disk may take less than it is given at once."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class BatchPipe:
    """Output to a pipe or a device: nothing to lock, repair or continue."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def append(self, record: dict[str, Any]) -> None:
        """Write one record; BrokenPipeError when nobody reads any more."""
        write_all(self._descriptor, encode_record(record))

    def close(self) -> None:
        """Leave the descriptor open: it was not opened here."""


class BatchFile:
    """A regular file, open and locked. ``size`` is where its last whole record ends."""

    def __init__(self, path: Path):
        """Open or create ``path`` and lock it; raise BatchFileError if another job has it."""
        self.path = path
        self.size = 0
        self.torn_bytes = 0  # of a torn last line, until ``repair``
        self._descriptor = _open_locked(path)
        self._synced_at = time.monotonic()

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (line number, record) for what is there; raise BatchFileError at what is not ours.

        Nothing is changed. When it ends, ``size`` and ``torn_bytes`` are known.
        """
        self.size = self.torn_bytes = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as reader:
            reader.seek(0)
            for number, line in enumerate(reader, start=1):
                if not line.endswith(b"\n"):
                    if not _may_begin_a_record(line):
                        raise self._not_ours(number)
                    self.torn_bytes = len(line)
                    return
                yield number, self._parse(number, line)
                self.size += len(line)

    def repair(self) -> int:
        """Cut off a torn last line; return how many bytes it had. Only after ``records``."""
        torn = self.torn_bytes
        if torn:
            os.ftruncate(self._descriptor, self.size)
            self.torn_bytes = 0
        return torn

    def append(self, record: dict[str, Any]) -> None:
        """Append one record; on OSError (a full disk) the file ends after the one before."""
        line = encode_record(record)
        try:
            write_all(self._descriptor, line)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(line)
        if time.monotonic() - self._synced_at >= SYNC_SECONDS:
            self._sync()

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> int:
        """Drop the records that are not ``wanted``, in one step; return how many were dropped.

        The others are copied to a new file that takes this one's place, already locked.
        """
        path = self.path.resolve()  # a link stays a link
        beside = path.with_name(path.name + ".rewrite")
        replacement = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        fcntl.flock(replacement, fcntl.LOCK_EX | fcntl.LOCK_NB)
        dropped = kept_bytes = 0
        for _number, record in self.records():
            if wanted(record):
                line = encode_record(record)
                write_all(replacement, line)
                kept_bytes += len(line)
            else:
                dropped += 1
        os.fsync(replacement)
        os.fchmod(replacement, os.fstat(self._descriptor).st_mode & 0o7777)
        os.replace(beside, path)
        os.close(self._descriptor)
        self._descriptor = replacement
        self.size, self.torn_bytes = kept_bytes, 0
        return dropped

    def close(self) -> None:
        """Sync and let go of the file."""
        self._sync()
        os.close(self._descriptor)

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_at = time.monotonic()

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            raise self._not_ours(number) from None
        if isinstance(record, dict) and "custom_id" in record:
            identity = record.get("id")
            if isinstance(identity, str) and identity.startswith(ID_PREFIX):
                return record
        raise self._not_ours(number)

    def _not_ours(self, number: int) -> BatchFileError:
        message = f"line {number} of {self.path} is no record of a batch job; nothing was changed"
        return BatchFileError(f"{message}: name another --output, or move the file away")


def _may_begin_a_record(torn: bytes) -> bool:
    """Whether a line without an end can be what is left of a record (or zeros: a lost page)."""
    start = torn[: len(RECORD_START)]
    return RECORD_START.startswith(start) or not torn.strip(b"\0")


def _open_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            message = f"another job is writing {path}; wait for it, or name another --output"
            raise BatchFileError(message) from None
        except OSError as error:
            os.close(descriptor)
            raise BatchFileError(f"cannot lock {path}: {error.strerror}") from error
        os.close(descriptor)  # it was replaced between opening and locking: the new one counts


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
