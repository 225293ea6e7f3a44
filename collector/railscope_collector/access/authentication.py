"""Authentication of requests by token, certificate, or session of the web console.

A session holds the key of a token, and no rights: each request with its cookie is authenticated by that key in the
current tokens file. So a session ends with its token, by expiry or by revocation. Of the cookie's value only a
digest is stored. The table is bounded in total and for each key; the session that was idle longest is dropped first.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from railscope_collector.access import client_certificates, credentials as access

_SCHEME = "bearer "

NO_CREDENTIAL, UNKNOWN_TOKEN, UNKNOWN_CERTIFICATE = (
    "no credential",
    "unknown token",
    "unknown certificate",
)
EXPIRED, REVOKED = "expired", "revoked"


@dataclass(frozen=True, slots=True)
class AuthenticationResult:
    """Credential and key of a request; or the reason why it has none."""

    credential: access.Credential | None
    reason: str = ""
    key: access.CredentialKey | None = None
    holder: access.Credential | None = None
    """Former holder of a key that is expired or revoked."""

    @property
    def credential_kind(self) -> str:
        """`token`, `certificate`, or nothing."""
        if self.key:
            return self.key.kind
        return "token" if self.reason == UNKNOWN_TOKEN else ""


NOT_PRESENTED = AuthenticationResult(None, NO_CREDENTIAL)


def authenticate(
    credentials: access.Credentials,
    authorization: Sequence[str],
    der: bytes,
    now_ns: int,
    session: access.CredentialKey | None = None,
) -> AuthenticationResult:
    """Authenticate a request by its Authorization headers, session and certificate (None or empty for none).

    A request with a token is judged by the token only: a certificate does not compensate for an invalid
    token. A session whose token has ended counts as none.
    """
    if authorization:
        return _by_token(credentials, authorization, now_ns)
    if session and (entry := credentials.entries.get(session)) and not entry.is_expired(now_ns):
        return AuthenticationResult(entry.credential, "", session)
    return _by_certificate(credentials, der, now_ns) if der else NOT_PRESENTED


def authenticate_token(
    credentials: access.Credentials, token: str, now_ns: int
) -> AuthenticationResult:
    """Authenticate the holder of a token."""
    return _by_token(credentials, (_SCHEME + token,), now_ns)


def bearer_token(authorization: Sequence[str]) -> str:
    """Return the token of the only Authorization header; empty if there is another header, or none with a token."""
    header = authorization[0]
    is_bearer = len(authorization) == 1 and header[: len(_SCHEME)].lower() == _SCHEME
    return header[len(_SCHEME) :] if is_bearer else ""


def _by_token(
    credentials: access.Credentials, authorization: Sequence[str], now_ns: int
) -> AuthenticationResult:
    key = access.CredentialKey("token", access.digest_token(bearer_token(authorization)))
    entry = credentials.entries.get(key)
    if entry is None:
        return AuthenticationResult(None, UNKNOWN_TOKEN)
    return _result_of_entry(entry, key, now_ns)


def _by_certificate(
    credentials: access.Credentials, der: bytes, now_ns: int
) -> AuthenticationResult:
    certificate = client_certificates.read_certificate(der)
    key = access.CredentialKey("certificate", certificate.fingerprint)
    entry = credentials.entries.get(key)
    if entry is None and certificate.named:
        entry = access.CredentialEntry(certificate.named)
    if entry is None and certificate.common_name:
        entry = credentials.entries.get(
            access.CredentialKey("common_name", certificate.common_name)
        )
    # After the holder is known, for the audit log, and before anything is granted.
    if certificate.fingerprint in credentials.revoked:
        return AuthenticationResult(None, REVOKED, key, entry.credential if entry else None)
    if entry is None:
        return AuthenticationResult(None, UNKNOWN_CERTIFICATE, key)
    # TLS verified it when the connection began, which may be days ago.
    if now_ns >= certificate.until_ns:
        return AuthenticationResult(None, EXPIRED, key, entry.credential)
    return _result_of_entry(entry, key, now_ns)


def _result_of_entry(
    entry: access.CredentialEntry, key: access.CredentialKey, now_ns: int
) -> AuthenticationResult:
    if entry.is_expired(now_ns):
        return AuthenticationResult(None, EXPIRED, key, entry.credential)
    return AuthenticationResult(entry.credential, "", key)


SESSION_IDLE_SECONDS, SESSION_SECONDS = 3_600.0, 12 * 3_600.0
"""Longest time between two requests of a session, and its longest lifetime."""
MAX_SESSIONS, MAX_SESSIONS_PER_KEY = 1024, 16


@dataclass(slots=True)
class BrowserSession:
    """Key of a signed-in credential; times are of a monotonic clock."""

    key: access.CredentialKey
    since_seconds: float
    used_seconds: float


@dataclass(slots=True)
class BrowserSessions:
    """Sessions of the web console, in memory: a restart ends them."""

    monotonic: Callable[[], float] = time.monotonic
    _sessions: OrderedDict[bytes, BrowserSession] = field(default_factory=OrderedDict)
    """By the digest of the cookie's value; the one used last is at the end."""

    def open(self, key: access.CredentialKey) -> str:
        """Begin a session; return the value of its cookie."""
        # One token must not end the sessions of others by opening many.
        same_key = [name for name, each in self._sessions.items() if each.key == key]
        for name in same_key[: max(len(same_key) + 1 - MAX_SESSIONS_PER_KEY, 0)]:
            del self._sessions[name]
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        value, now_seconds = secrets.token_urlsafe(32), self.monotonic()
        self._sessions[_digest(value)] = BrowserSession(key, now_seconds, now_seconds)
        return value

    def find(self, value: str) -> access.CredentialKey | None:
        """Return the key of a session that has not ended, and count this as its use."""
        name, now_seconds = _digest(value), self.monotonic()
        session = self._sessions.get(name)
        if session is None:
            return None
        is_idle = now_seconds - session.used_seconds >= SESSION_IDLE_SECONDS
        if is_idle or now_seconds - session.since_seconds >= SESSION_SECONDS:
            del self._sessions[name]
            return None
        session.used_seconds = now_seconds
        self._sessions.move_to_end(name)
        return session.key

    def close(self, value: str) -> access.CredentialKey | None:
        """End a session; return its key, or None if there is no such session."""
        session = self._sessions.pop(_digest(value), None)
        return session.key if session else None

    def __len__(self) -> int:
        """Return the number of stored sessions."""
        return len(self._sessions)


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest()
