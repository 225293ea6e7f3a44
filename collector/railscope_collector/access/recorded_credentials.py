"""Credentials as recorded in the audit log, and the changes from one state of the tokens file to the next.

The state that was last recorded in the audit log is stored in a file, so that a change made while
the collector was down is recorded at its next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from railscope import durable_files, timestamps
from railscope_collector.access.credentials import (
    MAX_AUTHORITY,
    Credential,
    CredentialEntry,
    CredentialKey,
    Credentials,
    Role,
)

_MAX_NAMED = 20
"""Maximum number of keys listed in one record."""


@dataclass(frozen=True, slots=True)
class CredentialChange:
    """Keys added to or removed from one holder."""

    type: str
    """Type of the audit record: identity.enrol_approve, rotate or revoke."""
    holder: Credential | None
    """None for the revocation of a certificate that the file does not list."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class _StoredEntry(msgspec.Struct, frozen=True):
    """An entry as stored in the file."""

    kind: str
    value: str
    role: Role
    name: str
    tenant: str
    until_ns: int | None
    max_authority: int = msgspec.field(default=MAX_AUTHORITY, name="max_rank")


class _StoredCredentials(msgspec.Struct, frozen=True):
    entries: list[_StoredEntry] = []
    revoked: list[str] = []


@dataclass(slots=True)
class RecordedCredentials:
    """Credentials that are recorded in the audit log. Blocking; raises OSError."""

    path: Path
    credentials: Credentials = field(default_factory=Credentials)

    def read(self) -> None:
        """Read the stored state. Raises MsgspecError if the file is damaged."""
        if not self.path.exists():
            return
        state = msgspec.json.decode(self.path.read_bytes(), type=_StoredCredentials)
        entries: dict[CredentialKey, CredentialEntry] = {}
        for stored in state.entries:
            credential = Credential(stored.name, stored.role, stored.tenant, stored.max_authority)
            entries[CredentialKey(stored.kind, stored.value)] = CredentialEntry(
                credential, stored.until_ns
            )
        self.credentials = Credentials(entries, frozenset(state.revoked))

    def store(self, credentials: Credentials) -> None:
        """Store these credentials as recorded; durable on return."""
        entries = [
            _StoredEntry(**asdict(key), **asdict(entry.credential), until_ns=entry.until_ns)
            for key, entry in credentials.entries.items()
        ]
        state = _StoredCredentials(entries, sorted(credentials.revoked))
        durable_files.write_durably(self.path, msgspec.json.encode(state))
        self.credentials = credentials


def find_changes(old: Credentials, new: Credentials) -> list[CredentialChange]:
    """Return the changes to record, by holder."""
    old_keys, new_keys = _keys_by_holder(old.entries), _keys_by_holder(new.entries)
    changes = []
    for holder in dict.fromkeys((*old_keys, *new_keys)):
        had, has = old_keys.get(holder, {}), new_keys.get(holder, {})
        if had == has:
            continue
        kind = "enrol_approve" if not had else "rotate" if has else "revoke"
        added = tuple(text for key, text in has.items() if had.get(key) != text)
        removed = tuple(text for key, text in had.items() if has.get(key) != text)
        changes.append(
            CredentialChange(
                f"identity.{kind}", holder, _shorten_list(added), _shorten_list(removed)
            )
        )
    for key in _certificate_keys(new.revoked - old.revoked):
        changes += [CredentialChange("identity.revoke", None, removed=(key.short,))]
    for key in _certificate_keys(old.revoked - new.revoked):
        changes += [CredentialChange("identity.enrol_approve", None, added=(key.short,))]
    return changes


def _certificate_keys(digests: frozenset[str]) -> list[CredentialKey]:
    return [CredentialKey("certificate", digest) for digest in sorted(digests)]


def _keys_by_holder(
    entries: Mapping[CredentialKey, CredentialEntry],
) -> dict[Credential, dict[CredentialKey, str]]:
    keys: dict[Credential, dict[CredentialKey, str]] = {}
    for key, entry in entries.items():
        credential = entry.credential
        until = "" if entry.until_ns is None else f" until {entry.until_ns // timestamps.SECOND_NS}"
        limit = (
            f" max_rank {credential.max_authority}"
            if credential.max_authority != MAX_AUTHORITY
            else ""
        )
        # The limit is part of the text: a changed limit is a rotation of the holder's keys, and no other holder.
        holder = replace(credential, max_authority=MAX_AUTHORITY)
        keys.setdefault(holder, {})[key] = f"{key.short}{until}{limit}"
    return keys


def _shorten_list(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) <= _MAX_NAMED:
        return texts
    return (*texts[:_MAX_NAMED], f"and {len(texts) - _MAX_NAMED} more")
