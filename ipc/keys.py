"""CURVE keys: making them, loading them, and the list of those that may connect.

A pair is two files in ZeroMQ's certificate format: NAME.key (public) and NAME.key_secret (only
its owner can read it). Whoever has its public file in the broker's directory of allowed keys may
connect, and is the tenant NAME.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORM = """\
#   ****  An Octavo key: {kind}. ****
{warning}
metadata
curve
    public-key = "{public}"
{secret}"""


class KeyFileError(ValueError):
    """A key that cannot be made or read; the message names the file."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public and a secret key, in Z85."""

    public: bytes
    secret: bytes


def new_key(name: str, directory: Path) -> tuple[Path, Path]:
    """Make a key pair; return the public and the secret file. Existing files are never replaced."""
    if not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{name!r} is no name for a key: use up to 64 letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )
    public, secret = zmq.curve_keypair()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    public_file, secret_file = directory / f"{name}.key", directory / f"{name}.key_secret"
    if public_file.exists():
        raise KeyFileError(f"{public_file} exists already; choose another name or remove it")
    secret_text = f'    secret-key = "{secret.decode()}"\n'
    _write(
        secret_file,
        _FORM.format(
            kind="SECRET", warning="#   Keep it.", public=public.decode(), secret=secret_text
        ),
        0o600,
    )
    return write_public(public, public_file), secret_file


def write_public(public: bytes, path: Path) -> Path:
    """Write a public key file; return its path."""
    text = _FORM.format(kind="public", warning="#   Give it.", public=public.decode(), secret="")
    _write(path, text, 0o644)
    return path


def _write(path: Path, text: str, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise KeyFileError(f"{path} exists already; choose another name or remove it") from None
    with os.fdopen(handle, "w") as file:
        file.write(text)


def load_pair(path: Path) -> KeyPair:
    """Read a secret key file."""
    public, secret = _load(path)
    if secret is None:
        raise KeyFileError(f"{path} has no secret key: use the file NAME.key_secret")
    return KeyPair(public, secret)


def load_public(path: Path) -> bytes:
    """Read the public key from a public or a secret key file."""
    return _load(path)[0]


def _load(path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise KeyFileError(f"{path} is no key file") from None
    if len(public) != 40:
        raise KeyFileError(f"{path} is no key file")
    return public, secret


@dataclass(slots=True)
class AllowList:
    """The public keys in one directory, and their names. Read again when the directory changes.

    ``extra`` are keys that are allowed besides.
    """

    directory: Path
    extra: Mapping[bytes, str] = field(default_factory=dict)
    _names: dict[bytes, str] = field(default_factory=dict)
    _version: tuple[int, ...] = ()

    def name_of(self, public: bytes) -> str | None:
        """Return the name under which a public key (Z85) is filed, or None."""
        self._refresh()
        return self._names.get(public) or self.extra.get(public)

    def names(self) -> list[str]:
        """Return all names."""
        self._refresh()
        return sorted(self._names.values())

    def _refresh(self) -> None:
        try:
            files = sorted(self.directory.glob("*.key"))
            version = tuple(number for file in files for number in _version_of(file))
        except OSError as error:
            raise KeyFileError(f"{self.directory} cannot be read: {error}") from None
        if version == self._version and self._names:
            return
        self._version = version
        self._names = {}
        for file in files:
            try:
                self._names[load_public(file)] = file.name.removesuffix(".key")
            except KeyFileError:
                continue  # a half-written or foreign file must not lock the others out


def _version_of(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_ino


@dataclass(frozen=True, slots=True)
class BrokerKeys:
    """What a broker with CURVE needs."""

    own: KeyPair
    clients: AllowList
    workers: AllowList
