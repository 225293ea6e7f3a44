"""Changes of credentials from one state of the tokens file to the next.

The state that was last recorded in the audit log is stored in a file, so that a change made while the
collector was down is recorded at its next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from collector.access.credential import MAX_RANK, Credential, Role
from collector.access.credentials import Credentials, Entry, Key
from railscope.durable_files import write_durably

_MAX_NAMED = 20
"""Maximum number of keys listed in one record."""


@dataclass(frozen=True, slots=True)
class Change:
    """Keys added to or removed from one holder."""

    type: str
    """Type of the audit record: identity.enrol_approve, rotate or revoke."""
    holder: Credential | None
    """None for the revocation of a certificate that the file does not list."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    """An entry as stored in the file."""

    kind: str
    value: str
    role: Role
    name: str
    tenant: str
    until_ns: int | None
    max_rank: int = MAX_RANK


class _State(msgspec.Struct, frozen=True):
    entries: list[_Kept] = []
    revoked: list[str] = []


@dataclass(slots=True)
class Told:
    """Credentials that are recorded in the audit log. Blocking; raises OSError."""

    path: Path
    credentials: Credentials = field(default_factory=Credentials)

    def read(self) -> None:
        """Read the stored state. Raises MsgspecError if the file is damaged."""
        if not self.path.exists():
            return
        state = msgspec.json.decode(self.path.read_bytes(), type=_State)
        entries = {
            Key(kept.kind, kept.value): Entry(
                Credential(kept.name, kept.role, kept.tenant, kept.max_rank), kept.until_ns
            )
            for kept in state.entries
        }
        self.credentials = Credentials(entries, frozenset(state.revoked))

    def keep(self, credentials: Credentials) -> None:
        """Store these credentials as recorded; durable on return."""
        entries = [
            _Kept(key.kind, key.value, who.role, who.name, who.tenant, entry.until_ns, who.max_rank)
            for key, entry in credentials.entries.items()
            for who in (entry.credential,)
        ]
        state = _State(entries, sorted(credentials.revoked))
        write_durably(self.path, msgspec.json.encode(state))
        self.credentials = credentials


def changes(old: Credentials, new: Credentials) -> list[Change]:
    """Return the changes to record, by holder."""
    before, after = _by_holder(old.entries), _by_holder(new.entries)
    found = []
    for holder in dict.fromkeys((*before, *after)):
        had, has = before.get(holder, {}), after.get(holder, {})
        if had == has:
            continue
        kind = "enrol_approve" if not had else "rotate" if has else "revoke"
        added = tuple(text for key, text in has.items() if had.get(key) != text)
        removed = tuple(text for key, text in had.items() if has.get(key) != text)
        found.append(Change(f"identity.{kind}", holder, _few(added), _few(removed)))
    for key in _certificates(new.revoked - old.revoked):
        found += [Change("identity.revoke", None, removed=(key.short,))]
    for key in _certificates(old.revoked - new.revoked):
        found += [Change("identity.enrol_approve", None, added=(key.short,))]
    return found


def _certificates(digests: frozenset[str]) -> list[Key]:
    return [Key("certificate", digest) for digest in sorted(digests)]


def _by_holder(entries: Mapping[Key, Entry]) -> dict[Credential, dict[Key, str]]:
    found: dict[Credential, dict[Key, str]] = {}
    for key, entry in entries.items():
        who = entry.credential
        text = (
            key.short if entry.until_ns is None else f"{key.short} until {entry.until_ns // 10**9}"
        )
        text += f" max_rank {who.max_rank}" if who.max_rank != MAX_RANK else ""
        found.setdefault(replace(who, max_rank=MAX_RANK), {})[key] = text
    return found


def _few(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) <= _MAX_NAMED:
        return texts
    return (*texts[:_MAX_NAMED], f"and {len(texts) - _MAX_NAMED} more")
