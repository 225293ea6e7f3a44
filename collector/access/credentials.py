"""The tokens file: the credential of each token and certificate.

It contains SHA-256 digests, and no tokens:

    [nodes]                                  the name is that of the node
    gpu-001 = "sha256:..."
    gpu-002 = { token = "sha256:...", max_rank = 2 }
    [operators]
    prometheus = ["sha256:...", { token = "sha256:...", until = 2027-01-01T00:00:00Z }]
    grafana = { certificate = "sha256:..." }
    [finance]
    billing = { common_name = "billing.example.com" }
    [auditors]
    [tenants.vision]
    board = "sha256:..."
    [revoked]
    certificates = ["sha256:..."]

`max_rank` (1 process, 2 node plugin, 3 scheduler: the default) limits the authority of the claims that a
node reports with that token. A certificate is listed by the digest of its DER encoding or by the common
name of its subject. A certificate that is not listed may still name its holder: see
`collector.access.certificate`.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from collector.access.credential import MAX_RANK, Credential, Role, is_name
from railscope.settings import SettingsError
from railscope.toml_text import TomlError, parse_toml

PREFIX = "sha256:"
_TOKEN_BYTES = 32
_DIGEST = re.compile(PREFIX + "[0-9a-f]{64}")
_SECTIONS = {
    "nodes": Role.NODE,
    "operators": Role.OPERATOR,
    "finance": Role.FINANCE,
    "auditors": Role.AUDITOR,
}
_TENANTS, _REVOKED = "tenants", "revoked"
_MAX_RANK = "max_rank"
_KNOWN = (*_SECTIONS, _TENANTS, _REVOKED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def digest(token: str) -> str:
    """Return the digest of a token as stored in the tokens file."""
    return digest_of(token.encode(errors="surrogateescape"))


def digest_of(content: bytes) -> str:
    """Return the digest of bytes, such as a certificate, in the same form."""
    return PREFIX + hashlib.sha256(content).hexdigest()


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def section(credential: Credential) -> str:
    """Return the section of the tokens file that holds a credential."""
    if credential.role is Role.TENANT:
        return f"{_TENANTS}.{quoted(credential.tenant)}"
    return next(name for name, role in _SECTIONS.items() if role is credential.role)


def quoted(name: str) -> str:
    """Return a name as a key of the file."""
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Key:
    """Proof of a credential: a token's digest, a certificate's, or a certificate's common name."""

    kind: str
    """`token`, `certificate` or `common_name`: the term that the file uses."""
    value: str

    @property
    def short(self) -> str:
        """Shortened value that identifies the key in records and logs."""
        shown = self.value.removeprefix(PREFIX)[:16] if self.kind != "common_name" else self.value
        return f"{self.kind} {shown}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Credential of a key, and its expiry."""

    credential: Credential
    until_ns: int | None = None
    """Nanoseconds since the epoch; None if it does not expire."""

    def expired(self, now_ns: int) -> bool:
        """True if the entry has expired."""
        return self.until_ns is not None and now_ns >= self.until_ns


@dataclass(frozen=True, slots=True)
class Credentials:
    """All entries by key. The timing of a digest lookup reveals nothing about the token."""

    entries: Mapping[Key, Entry] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    """Digests of certificates that are still valid and stand for no credential any more."""


class EntryError(ValueError):
    """Invalid content of the file; the message names the position."""


def load(path: Path) -> Credentials:
    """Load credentials from a file. Raises SettingsError with the problem and the fix."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = (
            f"tokens_file {path} does not exist: make one with `railscope collector token NODE`"
        )
        raise SettingsError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"tokens_file {path} cannot be read: {error}"
        raise SettingsError(message) from error
    except EntryError as error:
        message = f"tokens_file {path}: {error}"
        raise SettingsError(message) from error


def parse(text: str) -> Credentials:
    """Parse credentials from the text of a file. Raises EntryError."""
    try:
        content = parse_toml(text)
    except TomlError as error:
        message = f"no TOML: {error}"
        raise EntryError(message) from error
    unknown = set(content) - set(_KNOWN)
    if unknown:
        message = f"unknown section {min(unknown)!r}; known are {', '.join(_KNOWN)}"
        raise EntryError(message)
    entries: dict[Key, Entry] = {}
    for key, entry in _entries(content):
        holder = entries.setdefault(key, entry).credential
        if holder.label != entry.credential.label:
            message = f"{holder.label} and {entry.credential.label} share a {key.kind}"
            raise EntryError(message)
        if entries[key] != entry:
            message = f"{holder.label} has a {key.kind} twice, with two ends or two ranks"
            raise EntryError(message)
    return Credentials(entries, _revoked(_section(content, _REVOKED, _REVOKED)))


def _entries(content: Mapping[str, object]) -> Iterator[tuple[Key, Entry]]:
    for section, role in _SECTIONS.items():
        for name, value in _section(content, section, section).items():
            yield from _of_one(Credential(name, role), value, f"[{section}] {name}")
    for tenant in _section(content, _TENANTS, _TENANTS):
        where = f"{_TENANTS}.{tenant}"
        _check_name(tenant, f"[{where}]")
        for name, value in _section(_section(content, _TENANTS, _TENANTS), tenant, where).items():
            yield from _of_one(Credential(name, Role.TENANT, tenant), value, f"[{where}] {name}")


def _section(content: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    section = content.get(key, {})
    if not isinstance(section, dict):
        message = f"[{where}] must be a section"
        raise EntryError(message)
    return section


def _of_one(credential: Credential, value: object, where: str) -> Iterator[tuple[Key, Entry]]:
    _check_name(credential.name, where)
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            holder = replace(credential, max_rank=_max_rank(one, credential.role, where))
            yield _key(one, where), Entry(holder, _until_ns(one.get("until"), where))
        else:
            yield Key("token", _checked(one, where)), Entry(credential)


def _check_name(name: str, where: str) -> None:
    if not is_name(name):
        message = f"{where}: {name!r} is no name: write printable text in Unicode's NFC"
        raise EntryError(message)


def _key(table: Mapping[str, object], where: str) -> Key:
    kinds = [kind for kind in ("token", "certificate", "common_name") if kind in table]
    if len(kinds) != 1 or set(table) - {kinds[0], "until", _MAX_RANK}:
        message = (
            f"{where} must name a token, a certificate or a common_name;"
            f" `until` and `{_MAX_RANK}` may follow"
        )
        raise EntryError(message)
    value = table[kinds[0]]
    if kinds[0] != "common_name":
        return Key(kinds[0], _checked(value, where))
    if not isinstance(value, str) or not is_name(value):
        message = f"{where}: the common_name must be printable text in Unicode's NFC"
        raise EntryError(message)
    return Key(kinds[0], value)


def _max_rank(table: Mapping[str, object], role: Role, where: str) -> int:
    value = table.get(_MAX_RANK, MAX_RANK)
    if _MAX_RANK in table and role is not Role.NODE:
        message = f"{where}: {_MAX_RANK} is not allowed here: expected in section [nodes] only"
        raise EntryError(message)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        message = f"{where}: invalid {_MAX_RANK} {value!r}: expected 1 to {MAX_RANK}"
        raise EntryError(message)
    return value


def _checked(value: object, where: str) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        message = f"{where} must be {PREFIX}<64 hex digits>"
        raise EntryError(message)
    return value


def _until_ns(value: object, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        message = f"{where}: until must be a time with an offset, such as 2027-01-01T00:00:00Z"
        raise EntryError(message)
    elapsed = value - _EPOCH
    return ((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds) * 1000


def _revoked(section: Mapping[str, object]) -> frozenset[str]:
    listed = section.get("certificates", [])
    if set(section) - {"certificates"} or not isinstance(listed, list):
        message = f"[{_REVOKED}] holds certificates = [...] and nothing else"
        raise EntryError(message)
    return frozenset(_checked(one, f"[{_REVOKED}] certificates") for one in listed)
