"""The tokens file while the collector runs, and the changes from one state of it to the next.

The state that was last recorded in the audit log is stored in a file, so that a change made while
the collector was down is recorded at its next start.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
import structlog

from railscope import durable_files, service, timestamps
from railscope_collector.access import credentials as credential_types, tokens_format

_WATCH_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class TokensFile:
    """Credentials in force: the last that could be read. Raises SettingsError at the start."""

    path: Path
    on_change: list[Callable[[credential_types.Credentials], None]] = field(default_factory=list)
    credentials: credential_types.Credentials = field(init=False)
    is_valid: bool = True
    """True if the current content of the file could be read."""
    _read_digest: bytes = b""
    _parsed_digest: bytes = b""

    def __post_init__(self) -> None:
        self.credentials = tokens_format.load_credentials(self.path)

    async def watch(self) -> None:
        """Read the file after each change, until cancelled."""
        while True:
            credentials = await service.run_in_thread(self.read)
            if credentials is not None and credentials != self.credentials:
                self.credentials = credentials
                log.info("tokens_loaded", file=str(self.path), entries=len(credentials.entries))
                for listener in self.on_change:
                    listener(credentials)
            await asyncio.sleep(_WATCH_SECONDS)

    def read(self) -> credential_types.Credentials | None:
        """Return the content of the file if it has changed and can be read. Blocking.

        A change takes effect when two consecutive reads agree: a file that is being written is empty at
        first, which must not revoke any credential.
        """
        try:
            content = self.path.read_bytes()
            digest = hashlib.sha256(content).digest()
            changing, self._read_digest = digest != self._read_digest, digest
            if changing or digest == self._parsed_digest:
                return None
            self._parsed_digest = digest
            credentials = tokens_format.parse_credentials(content.decode())
        except (OSError, ValueError) as error:
            # Logged once for a file that cannot be read, and for each new invalid content.
            if self.is_valid or not isinstance(error, OSError):
                log.error(
                    "tokens_rejected",
                    file=str(self.path),
                    problem=str(error),
                    advice="the last valid credentials remain in use",
                )
            self.is_valid = False
            if isinstance(error, OSError):
                # The same content counts as new once the file can be read again.
                self._parsed_digest = b""
            return None
        self.is_valid = True
        return credentials


_MAX_NAMED = 20
"""Maximum number of keys listed in one record."""


@dataclass(frozen=True, slots=True)
class CredentialChange:
    """Keys added to or removed from one holder."""

    type: str
    """Type of the audit record: identity.enrol_approve, rotate or revoke."""
    holder: credential_types.Credential | None
    """None for the revocation of a certificate that the file does not list."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class _StoredEntry(msgspec.Struct, frozen=True):
    """An entry as stored in the file."""

    kind: str
    value: str
    role: credential_types.Role
    name: str
    tenant: str
    until_ns: int | None
    max_authority: int = msgspec.field(default=credential_types.MAX_AUTHORITY, name="max_rank")


class _StoredCredentials(msgspec.Struct, frozen=True):
    entries: list[_StoredEntry] = []
    revoked: list[str] = []


@dataclass(slots=True)
class RecordedCredentials:
    """Credentials that are recorded in the audit log. Blocking; raises OSError."""

    path: Path
    credentials: credential_types.Credentials = field(default_factory=credential_types.Credentials)

    def read(self) -> None:
        """Read the stored state. Raises MsgspecError if the file is damaged."""
        if not self.path.exists():
            return
        state = msgspec.json.decode(self.path.read_bytes(), type=_StoredCredentials)
        entries: dict[credential_types.CredentialKey, credential_types.CredentialEntry] = {}
        for stored in state.entries:
            credential = credential_types.Credential(
                stored.name, stored.role, stored.tenant, stored.max_authority
            )
            entries[credential_types.CredentialKey(stored.kind, stored.value)] = (
                credential_types.CredentialEntry(credential, stored.until_ns)
            )
        self.credentials = credential_types.Credentials(entries, frozenset(state.revoked))

    def store(self, credentials: credential_types.Credentials) -> None:
        """Store these credentials as recorded; durable on return."""
        entries = [
            _StoredEntry(**asdict(key), **asdict(entry.credential), until_ns=entry.until_ns)
            for key, entry in credentials.entries.items()
        ]
        state = _StoredCredentials(entries, sorted(credentials.revoked))
        durable_files.write_durably(self.path, msgspec.json.encode(state))
        self.credentials = credentials


def find_changes(
    old: credential_types.Credentials, new: credential_types.Credentials
) -> list[CredentialChange]:
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


def _certificate_keys(digests: frozenset[str]) -> list[credential_types.CredentialKey]:
    return [credential_types.CredentialKey("certificate", digest) for digest in sorted(digests)]


def _keys_by_holder(
    entries: Mapping[credential_types.CredentialKey, credential_types.CredentialEntry],
) -> dict[credential_types.Credential, dict[credential_types.CredentialKey, str]]:
    keys: dict[credential_types.Credential, dict[credential_types.CredentialKey, str]] = {}
    for key, entry in entries.items():
        credential = entry.credential
        until = "" if entry.until_ns is None else f" until {entry.until_ns // timestamps.SECOND_NS}"
        limit = (
            f" max_rank {credential.max_authority}"
            if credential.max_authority != credential_types.MAX_AUTHORITY
            else ""
        )
        # The limit is part of the text: a changed limit is a rotation of the holder's keys, and no other holder.
        holder = replace(credential, max_authority=credential_types.MAX_AUTHORITY)
        keys.setdefault(holder, {})[key] = f"{key.short}{until}{limit}"
    return keys


def _shorten_list(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) <= _MAX_NAMED:
        return texts
    return (*texts[:_MAX_NAMED], f"and {len(texts) - _MAX_NAMED} more")
