"""Credentials: roles, the tokens file, client certificates, and the scope of a tenant.

The tokens file has the credential of each token and certificate. It contains SHA-256 digests, and
no tokens:

    [nodes]                                  the name is that of the node
    gpu-001 = "sha256:..."
    gpu-002 = { token = "sha256:...", max_authority = 2 }
    [operators]
    prometheus = ["sha256:...", { token = "sha256:...", until = 2027-01-01T00:00:00Z }]
    grafana = { certificate = "sha256:..." }
    [finance]
    billing = { common_name = "billing.example.com" }
    [auditors]
    [collectors]
    [tenants.vision]
    dashboard = "sha256:..."
    [revoked]
    certificates = ["sha256:..."]

`max_authority` (1 process, 2 node plugin, 3 scheduler: the default) limits the authority of the claims
that a node reports with that token. A certificate is listed by the digest of its DER encoding or by
the common name of its subject. A certificate that is not listed may still name its holder, as
described below.

TLS has verified the chain up to `tls.client_ca_file` before this module is called. A certificate
may name its holder by exactly one URI among its subject's alternative names:

    railscope:node/gpu-001    railscope:operator/grafana    railscope:tenant/vision/dashboard

Names are percent-encoded. Entries of the tokens file take precedence over the content of a
certificate. Sources: RFC 5280, 4.2.1.6 (uniformResourceIdentifier); RFC 3986, 2.1.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.x509.oid import NameOID

from railscope import claim_terms, convert_errors, settings, timestamps, untrusted_text
from railscope_collector.fleet.view_cells import ViewCell

MAX_AUTHORITY = int(claim_terms.MAX_NODE_AUTHORITY)
"""Highest authority of a claim that arrives over the network: that of a scheduler on the node.

Higher ones (an imported job list, an administrator) are configured at the collector only.
"""


class Role(StrEnum):
    """Role of a credential."""

    NODE = "node"
    """An agent: it reports for its node."""
    OPERATOR = "operator"
    """Runs the cluster: views, nodes, events, metrics."""
    FINANCE = "finance"
    """Bills: account, statements, exports."""
    AUDITOR = "auditor"
    """Reads everything, the audit log included, and changes nothing."""
    TENANT = "tenant"
    """Reads its own use, statements and audit entries."""
    COLLECTOR = "collector"
    """Another collector with the same database: it reads the records of all nodes."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Holder and rights of a token or a certificate."""

    name: str
    """Name of the holder; for a node's credential, the name of the node."""
    role: Role
    tenant: str = ""
    """The only tenant that it may read data of, for the role of a tenant."""
    max_authority: int = MAX_AUTHORITY
    """Highest authority of the claims that a node reports with it."""

    @property
    def label(self) -> str:
        """`role/name`, for a tenant `tenant/tenant/name`, percent-encoded; unique."""
        parts = (self.role, *([self.tenant] if self.role is Role.TENANT else []), self.name)
        return "/".join(quote(part, safe="") for part in parts)


def is_name(text: str) -> bool:
    """True if a text is valid as the name of a holder or tenant: it is recorded and compared."""
    return text.isprintable() and bool(text.strip()) and unicodedata.is_normalized("NFC", text)


ANYONE = Credential("", Role.OPERATOR)
"""Credential of an unauthenticated request, if reading is open to all."""


DIGEST_PREFIX = "sha256:"
_TOKEN_BYTES = 32
_DIGEST = re.compile(DIGEST_PREFIX + "[0-9a-f]{64}")
_SECTIONS = {
    "nodes": Role.NODE,
    "operators": Role.OPERATOR,
    "finance": Role.FINANCE,
    "auditors": Role.AUDITOR,
    "collectors": Role.COLLECTOR,
}
_TENANTS, _REVOKED = "tenants", "revoked"
_MAX_AUTHORITY = "max_authority"
_OLD_MAX_AUTHORITY = "max_rank"
"""Name of `max_authority` in the tokens files of 0.2.0."""
_SECTION_NAMES = (*_SECTIONS, _TENANTS, _REVOKED)


def digest_token(token: str) -> str:
    """Return the digest of a token as stored in the tokens file."""
    return digest_bytes(token.encode(errors="surrogateescape"))


def digest_bytes(content: bytes) -> str:
    """Return the digest of bytes, such as a certificate, in the same form."""
    return DIGEST_PREFIX + hashlib.sha256(content).hexdigest()


def generate_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def section_name(credential: Credential) -> str:
    """Return the section of the tokens file that holds a credential."""
    if credential.role is Role.TENANT:
        return f"{_TENANTS}.{quote_key(credential.tenant)}"
    return next(name for name, role in _SECTIONS.items() if role is credential.role)


def quote_key(name: str) -> str:
    """Return a name as a key of the file."""
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class CredentialKey:
    """Proof of a credential: a token's digest, a certificate's, or a certificate's common name."""

    kind: str
    """`token`, `certificate` or `common_name`: the term that the file uses."""
    value: str

    @property
    def short(self) -> str:
        """Shortened value that identifies the key in records and logs."""
        is_digest = self.kind != "common_name"
        shown = self.value.removeprefix(DIGEST_PREFIX)[:16] if is_digest else self.value
        return f"{self.kind} {shown}"


@dataclass(frozen=True, slots=True)
class CredentialEntry:
    """Credential of a key, and its expiry."""

    credential: Credential
    until_ns: int | None = None
    """Nanoseconds since the epoch; None if it does not expire."""

    def is_expired(self, now_ns: int) -> bool:
        """True if the entry has expired."""
        return self.until_ns is not None and now_ns >= self.until_ns


@dataclass(frozen=True, slots=True)
class Credentials:
    """All entries by key. The timing of a digest lookup reveals nothing about the token."""

    entries: Mapping[CredentialKey, CredentialEntry] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    """Digests of certificates that are revoked before they expire."""


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
            if _OLD_MAX_AUTHORITY in item and _MAX_AUTHORITY not in item:
                item[_MAX_AUTHORITY] = item.pop(_OLD_MAX_AUTHORITY)
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


SCHEME = "railscope:"
_MAX_CACHED = 1024
_UNREADABLE = (
    ValueError,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.InvalidVersion,
)


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """Relevant content of a certificate."""

    fingerprint: str
    """Digest of its DER encoding."""
    common_name: str = ""
    """Common name of the subject; empty if there is none, or more than one."""
    named: Credential | None = None
    """Credential named by the certificate; None for no URI, several URIs or an invalid one."""
    until_ns: int = 0
    """End of its validity, in nanoseconds since the epoch; 0 if it cannot be read."""


@lru_cache(_MAX_CACHED)
def read_certificate(der: bytes) -> ClientCertificate:
    """Read a certificate from its DER encoding. An unreadable one stands for no credential."""
    fingerprint = digest_bytes(der)
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        common_name = str(names[0].value) if len(names) == 1 else ""
        until_ns = timestamps.from_datetime(certificate.not_valid_after_utc)
        return ClientCertificate(
            fingerprint, common_name, _named_credential(_uris(certificate)), until_ns
        )
    except _UNREADABLE:
        return ClientCertificate(fingerprint)


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.UniformResourceIdentifier)


def _named_credential(uris: list[str]) -> Credential | None:
    railscope_uris = [uri for uri in uris if uri.lower().startswith(SCHEME)]
    return credential_of_uri(railscope_uris[0]) if len(railscope_uris) == 1 else None


def credential_of_uri(uri: str) -> Credential | None:
    """Return the credential that a URI names, if the URI is in canonical form; else None."""
    role, *names = (unquote(part) for part in uri.removeprefix(SCHEME).split("/"))
    if role not in set(Role) or not all(map(is_name, names)):
        return None
    of_tenant = role == Role.TENANT
    if len(names) != (2 if of_tenant else 1):
        return None
    credential = Credential(names[-1], Role(role), names[0] if of_tenant else "")
    return credential if SCHEME + credential.label == uri else None


_TENANT_METRICS = ("railscope_tenant_", "railscope_job_")


def tenant_cells(cells: Iterable[ViewCell], tenant: str) -> Iterator[ViewCell]:
    """Yield the cells of the tenant and its jobs: none of rails, the cluster, the collector or others."""
    for cell in cells:
        if cell.metric.name.startswith(_TENANT_METRICS):
            labels = zip(cell.metric.about.labels, cell.labels, strict=False)
            if dict(labels).get("tenant") == tenant:
                yield cell


def tenant_account(account: dict[str, Any], tenant: str) -> dict[str, Any]:
    """Return the tenant's part of an account, without the size of the cluster and its free capacity."""
    tenants = account["tenants"]
    own_totals = {tenant: tenants[tenant]} if tenant in tenants else {}
    return {"until_ns": account["until_ns"], "tenants": own_totals}
