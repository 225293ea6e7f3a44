"""Credentials: their roles, the keys that prove them, and all entries by key."""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote

from railscope import claim_terms

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

    @property
    def title(self) -> str:
        """Holder for people, such as `ada, vision (tenant)`; a name that repeats the role is left out."""
        names = [name for name in (self.name, self.tenant) if name and name != self.role]
        return f"{', '.join(names)} ({self.role})" if names else str(self.role)


def is_name(text: str) -> bool:
    """True if a text is valid as the name of a holder or tenant: it is recorded and compared."""
    return text.isprintable() and bool(text.strip()) and unicodedata.is_normalized("NFC", text)


ANYONE = Credential("", Role.OPERATOR)
"""Credential of an unauthenticated request, if reading is open to all."""


DIGEST_PREFIX = "sha256:"
_TOKEN_BYTES = 32


def digest_token(token: str) -> str:
    """Return the digest of a token as stored in the tokens file."""
    return digest_bytes(token.encode(errors="surrogateescape"))


def digest_bytes(content: bytes) -> str:
    """Return the digest of bytes, such as a certificate, in the same form."""
    return DIGEST_PREFIX + hashlib.sha256(content).hexdigest()


def generate_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


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
