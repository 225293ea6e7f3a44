"""The tokens file, with the credential of each token and certificate: its format, its edits, and its changes while the collector runs.

The file contains SHA-256 digests, and no tokens:

    [nodes]                                  the name is that of the node
    gpu-001 = "sha256:..."
    gpu-002 = { token = "sha256:...", max_authority = 2 }
    [operators]
    prometheus = ["sha256:...", { token = "sha256:...", until = 2027-01-01T00:00:00Z }]
    grafana = { certificate = "sha256:..." }
    [finance]
    billing = { common_name = "billing.example.com" }
    [auditors]
    [tenants.vision]
    dashboard = "sha256:..."
    [revoked]
    certificates = ["sha256:..."]

`max_authority` (1 process, 2 node plugin, 3 scheduler: the default) limits the authority of the claims
that a node reports with that token. A certificate is listed by the digest of its DER encoding or by
the common name of its subject. A certificate that is not listed may still name its holder
(`client_certificates`); entries of the tokens file take precedence over the content of a certificate.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import structlog

from railscope import (
    convert_errors,
    durable_files,
    service,
    settings,
    timestamps,
    untrusted_text,
)
from railscope_collector.access.credentials import (
    DIGEST_PREFIX,
    MAX_AUTHORITY,
    Credential,
    CredentialEntry,
    CredentialKey,
    Credentials,
    Role,
    is_name,
)

_WATCH_SECONDS = 1.0
_DIGEST = re.compile(DIGEST_PREFIX + "[0-9a-f]{64}")
_SECTIONS = {
    "nodes": Role.NODE,
    "operators": Role.OPERATOR,
    "finance": Role.FINANCE,
    "auditors": Role.AUDITOR,
}
_TENANTS, _REVOKED = "tenants", "revoked"
_MAX_AUTHORITY = "max_authority"
_SECTION_NAMES = (*_SECTIONS, _TENANTS, _REVOKED)
_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)

log = structlog.get_logger(__name__)


def section_name(credential: Credential) -> str:
    """Return the section of the tokens file that holds a credential."""
    if credential.role is Role.TENANT:
        return f"{_TENANTS}.{quote_key(credential.tenant)}"
    return next(name for name, role in _SECTIONS.items() if role is credential.role)


def quote_key(name: str) -> str:
    """Return a name as a key of the file."""
    return json.dumps(name, ensure_ascii=False)


def format_entry(name: str, entries: Mapping[CredentialKey, CredentialEntry]) -> str:
    """Return the line of a name in the tokens file, with all of its keys."""
    text = ", ".join(_format_key(key, entry) for key, entry in entries.items())
    return f"{quote_key(name)} = " + (text if len(entries) == 1 else f"[{text}]")


def _format_key(key: CredentialKey, entry: CredentialEntry) -> str:
    options = {key.kind: json.dumps(key.value, ensure_ascii=False)}
    if entry.until_ns is not None:
        options["until"] = timestamps.format_timestamp(entry.until_ns)
    if entry.credential.max_authority != MAX_AUTHORITY:
        options[_MAX_AUTHORITY] = str(entry.credential.max_authority)
    if options.keys() == {"token"}:
        return options["token"]
    return f"{{ {', '.join(f'{option} = {text}' for option, text in options.items())} }}"


class TokensFileError(ValueError):
    """Invalid content of the file; the message names the position."""


def load_credentials(path: Path) -> Credentials:
    """Load credentials from a file. Raises SettingsError with the problem and the fix."""
    try:
        return parse_credentials(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = "`railscope collector token --nodes FILE --output DIRECTORY`"
        message = f"missing tokens_file {path}; fix: create it with {fix}"
        raise settings.SettingsError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read tokens_file {path}: {error}"
        raise settings.SettingsError(message) from error
    except TokensFileError as error:
        message = f"invalid tokens_file {path}: {error}"
        raise settings.SettingsError(message) from error


def parse_credentials(text: str) -> Credentials:
    """Parse credentials from the text of a file. Raises TokensFileError."""
    with convert_errors(untrusted_text.TomlError, TokensFileError, "invalid TOML: "):
        content = untrusted_text.parse_toml(text)
    unknown = set(content) - set(_SECTION_NAMES)
    if unknown:
        message = f"unknown section {min(unknown)!r}: expected one of {', '.join(_SECTION_NAMES)}"
        raise TokensFileError(message)
    entries: dict[CredentialKey, CredentialEntry] = {}
    for key, entry in _parse_entries(content):
        holder = entries.setdefault(key, entry).credential
        # One token for two holders: it would not be known which of them used it.
        if holder.label != entry.credential.label:
            message = (
                f"duplicate {key.kind}: {holder.label} and {entry.credential.label} have the"
                " same one"
            )
            raise TokensFileError(message)
        if entries[key] != entry:
            message = f"duplicate {key.kind} of {holder.label}: expected one end and one authority"
            raise TokensFileError(message)
    return Credentials(entries, _parse_revoked(_read_section(content, _REVOKED, _REVOKED)))


def _parse_entries(
    content: Mapping[str, object],
) -> Iterator[tuple[CredentialKey, CredentialEntry]]:
    for section, role in _SECTIONS.items():
        for name, value in _read_section(content, section, section).items():
            yield from _parse_entry(Credential(name, role), value, f"[{section}] {name}")
    for tenant in _read_section(content, _TENANTS, _TENANTS):
        section_name = f"{_TENANTS}.{tenant}"
        _check_name(tenant, f"[{section_name}]")
        for name, value in _read_section(
            _read_section(content, _TENANTS, _TENANTS), tenant, section_name
        ).items():
            yield from _parse_entry(
                Credential(name, Role.TENANT, tenant), value, f"[{section_name}] {name}"
            )


def _read_section(
    content: Mapping[str, object], key: str, section_name: str
) -> Mapping[str, object]:
    section = content.get(key, {})
    if not isinstance(section, dict):
        message = f"invalid [{section_name}]: expected a section"
        raise TokensFileError(message)
    return section


def _parse_entry(
    credential: Credential, value: object, location: str
) -> Iterator[tuple[CredentialKey, CredentialEntry]]:
    _check_name(credential.name, location)
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            holder = replace(
                credential, max_authority=_parse_max_authority(item, credential.role, location)
            )
            yield (
                _parse_key(item, location),
                CredentialEntry(holder, _parse_until_ns(item.get("until"), location)),
            )
        else:
            yield CredentialKey("token", _parse_digest(item, location)), CredentialEntry(credential)


def _check_name(name: str, location: str) -> None:
    if not is_name(name):
        message = f"{location}: invalid name {name!r}: expected printable text in Unicode NFC"
        raise TokensFileError(message)


def _parse_key(table: Mapping[str, object], location: str) -> CredentialKey:
    kinds = [kind for kind in ("token", "certificate", "common_name") if kind in table]
    if len(kinds) != 1 or set(table) - {kinds[0], "until", _MAX_AUTHORITY}:
        message = (
            f"{location}: expected one of token, certificate and common_name, with `until` and"
            f" `{_MAX_AUTHORITY}` as the only other keys"
        )
        raise TokensFileError(message)
    value = table[kinds[0]]
    if kinds[0] != "common_name":
        return CredentialKey(kinds[0], _parse_digest(value, location))
    if not isinstance(value, str) or not is_name(value):
        message = f"{location}: invalid common_name: expected printable text in Unicode NFC"
        raise TokensFileError(message)
    return CredentialKey(kinds[0], value)


def _parse_max_authority(table: Mapping[str, object], role: Role, location: str) -> int:
    value = table.get(_MAX_AUTHORITY, MAX_AUTHORITY)
    if _MAX_AUTHORITY in table and role is not Role.NODE:
        message = f"{location}: unexpected {_MAX_AUTHORITY}: expected in section [nodes] only"
        raise TokensFileError(message)
    # In Python True is an integer, 1.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_AUTHORITY:
        message = f"{location}: invalid {_MAX_AUTHORITY} {value!r}: expected 1 to {MAX_AUTHORITY}"
        raise TokensFileError(message)
    return value


def _parse_digest(value: object, location: str) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        message = f"{location}: invalid digest: expected {DIGEST_PREFIX}<64 hex digits>"
        raise TokensFileError(message)
    return value


def _parse_until_ns(value: object, location: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        message = f"{location}: invalid until: expected a time with an offset, such as 2027-01-01T00:00:00Z"
        raise TokensFileError(message)
    return timestamps.from_datetime(value)


def _parse_revoked(section: Mapping[str, object]) -> frozenset[str]:
    listed = section.get("certificates", [])
    if set(section) - {"certificates"} or not isinstance(listed, list):
        message = f"invalid [{_REVOKED}]: expected certificates = [...] as its only key"
        raise TokensFileError(message)
    return frozenset(_parse_digest(digest, f"[{_REVOKED}] certificates") for digest in listed)


@dataclass(slots=True)
class TokensFileEdit:
    """An edit of a tokens file as text, so that comments stay."""

    path: Path
    text: str
    credentials: Credentials
    """Credentials before the edit."""

    @classmethod
    def begin(cls, path: Path) -> TokensFileEdit:
        """Read the file; one that does not exist yet is empty. Raises TokensFileError, OSError."""
        # The target of a symbolic link: replacing the link itself would detach it from the file.
        path = path.resolve()
        if not path.parent.is_dir():
            message = f"tokens file: {path}: expected an existing directory; fix: create {path.parent}, or pass --tokens-file"
            raise TokensFileError(message)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return cls(path, text, parse_credentials(text))

    def change(self, section: str, lines: str, removed: Collection[str] = ()) -> None:
        """Add lines first in their section, and remove those of some nodes. Raises TokensFileError."""
        if not lines and not removed:
            return
        self.text = _edited(self.text, section, lines, removed)
        added = parse_credentials(f"[{section}]\n{lines}").entries
        remaining = {
            key: entry
            for key, entry in self.credentials.entries.items()
            if entry.credential.role is not Role.NODE or entry.credential.name not in removed
        }
        message = f"the section [{section}] cannot be changed: expected [{section}] on a line of its own, and one line per name"
        with convert_errors(TokensFileError, TokensFileError, f"{message}: "):
            found = parse_credentials(self.text)
        if found != Credentials({**remaining, **added}, self.credentials.revoked):
            raise TokensFileError(message)

    def write(self) -> None:
        """Replace the file atomically and durably; one that exists keeps its mode and its owner."""
        with durable_files.partial_file(self.path, self.text.encode()) as partial:
            if self.path.exists():
                status = self.path.stat()
                # The collector may read the file as another user: a new file would belong to the user of this command.
                os.chown(partial, status.st_uid, status.st_gid)
                partial.chmod(status.st_mode & 0o7777)
            partial.rename(self.path)
        durable_files.sync_directory(self.path.parent)


def _edited(text: str, section: str, lines: str, removed: Collection[str]) -> str:
    """Return a text with further lines, first in their section, and without those of some names."""
    names = "|".join({re.escape(section), re.escape(section.replace('"', ""))})
    header = re.search(rf"^[ \t]*\[[ \t]*(?:{names})[ \t]*\][ \t]*(?:#.*)?$", text, re.MULTILINE)
    if header is None:
        separator = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{separator}[{section}]\n{lines}"
    start = header.end() + 1
    following = _HEADER.search(text, start)
    end = following.start() if following else len(text)
    forms = [form for name in removed for form in (name, quote_key(name), f"'{name}'")]
    entry = re.compile(rf"^[ \t]*(?:{'|'.join(map(re.escape, forms))})[ \t]*=.*\n?", re.MULTILINE)
    others = entry.sub("", text[start:end]) if forms else text[start:end]
    return f"{text[: header.end()]}\n{lines}{others}{text[end:]}"


@dataclass(slots=True)
class TokensFile:
    """Credentials in force: the last that could be read. Raises SettingsError at the start."""

    path: Path
    on_change: list[Callable[[Credentials], None]] = field(default_factory=list)
    credentials: Credentials = field(init=False)
    is_valid: bool = True
    """True if the current content of the file could be read."""
    _read_digest: bytes = b""
    _parsed_digest: bytes = b""

    def __post_init__(self) -> None:
        self.credentials = load_credentials(self.path)

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

    def read(self) -> Credentials | None:
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
            credentials = parse_credentials(content.decode())
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
