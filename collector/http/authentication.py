"""Authentication of requests: from headers and certificate to a credential, or to a reason for denial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collector.access import certificate
from collector.access.credential import Credential
from collector.access.credentials import Credentials, Entry, Key, digest

_SCHEME = "bearer "

NOTHING, UNKNOWN_TOKEN, UNKNOWN_CERTIFICATE = (
    "no credential",
    "unknown token",
    "unknown certificate",
)
EXPIRED, REVOKED = "expired", "revoked"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Credential and key of a request; or the reason why it has none."""

    credential: Credential | None
    reason: str = ""
    key: Key | None = None
    holder: Credential | None = None
    """Former holder of a key that is expired or revoked."""

    @property
    def shown(self) -> str:
        """`token`, `certificate`, or nothing."""
        if self.key:
            return self.key.kind
        return "token" if self.reason == UNKNOWN_TOKEN else ""


_NOBODY = Outcome(None, NOTHING)


def authenticate(
    credentials: Credentials, authorization: Sequence[str], der: bytes, now_ns: int
) -> Outcome:
    """Authenticate a request by its Authorization headers and certificate (empty for none).

    A request with a token is judged by the token only: a certificate does not compensate for an invalid
    token.
    """
    if authorization:
        return _by_token(credentials, authorization, now_ns)
    return _by_certificate(credentials, der, now_ns) if der else _NOBODY


def _by_token(credentials: Credentials, authorization: Sequence[str], now_ns: int) -> Outcome:
    shown = authorization[0]
    if len(authorization) > 1 or shown[: len(_SCHEME)].lower() != _SCHEME:
        return Outcome(None, UNKNOWN_TOKEN)
    key = Key("token", digest(shown[len(_SCHEME) :]))
    entry = credentials.entries.get(key)
    return _judged(entry, key, now_ns) if entry else Outcome(None, UNKNOWN_TOKEN)


def _by_certificate(credentials: Credentials, der: bytes, now_ns: int) -> Outcome:
    shown = certificate.read(der)
    key = Key("certificate", shown.fingerprint)
    entry = credentials.entries.get(key)
    if entry is None and shown.named:
        entry = Entry(shown.named)
    if entry is None and shown.common_name:
        entry = credentials.entries.get(Key("common_name", shown.common_name))
    if shown.fingerprint in credentials.revoked:
        return Outcome(None, REVOKED, key, entry.credential if entry else None)
    if entry is None:
        return Outcome(None, UNKNOWN_CERTIFICATE, key)
    if now_ns >= shown.until_ns:
        return Outcome(None, EXPIRED, key, entry.credential)
    return _judged(entry, key, now_ns)


def _judged(entry: Entry, key: Key, now_ns: int) -> Outcome:
    if entry.expired(now_ns):
        return Outcome(None, EXPIRED, key, entry.credential)
    return Outcome(entry.credential, "", key)
