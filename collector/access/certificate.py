"""Client certificates: whom one stands for.

TLS has checked the chain up to `tls.client_ca_file` before anything is asked here. A certificate
may name its holder itself, by exactly one URI among its subject's alternative names:

    railscope:node/gpu-001    railscope:operator/grafana    railscope:tenant/vision/board

Names are percent-encoded. What the tokens file lists goes before what a certificate says.
Sources: RFC 5280, 4.2.1.6 (uniformResourceIdentifier); RFC 3986, 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import NameOID

from collector.access.credential import Credential, Role, is_name
from collector.access.credentials import digest_of

SCHEME = "railscope:"
_MAX_KEPT = 1024
_UNREADABLE = (
    ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, x509.InvalidVersion,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Certificate:
    """What counts of a certificate."""

    fingerprint: str
    """Digest of its DER encoding."""
    common_name: str = ""
    """Of the subject; empty where there is none, or more than one."""
    named: Credential | None = None
    """Whom it names itself; None where it names no one, or more than one, or nothing we know."""
    until_ns: int = 0
    """When it ends. TLS looks once, a connection may stay longer."""


@lru_cache(_MAX_KEPT)
def read(der: bytes) -> Certificate:
    """A certificate as TLS hands it over. One that cannot be read stands for nobody."""
    fingerprint = digest_of(der)
    try:
        found = x509.load_der_x509_certificate(der)
        names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        common_name = str(names[0].value) if len(names) == 1 else ""
        until_ns = round(found.not_valid_after_utc.timestamp()) * 10**9
        return Certificate(fingerprint, common_name, _named(_uris(found)), until_ns)
    except _UNREADABLE:
        return Certificate(fingerprint)


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.UniformResourceIdentifier)


def _named(uris: list[str]) -> Credential | None:
    ours = [uri for uri in uris if uri.lower().startswith(SCHEME)]
    return credential_in(ours[0]) if len(ours) == 1 else None


def credential_in(uri: str) -> Credential | None:
    """Whom a URI names, where it is spelled the one way in which it may be."""
    role, *names = (unquote(part) for part in uri.removeprefix(SCHEME).split("/"))
    if role not in set(Role) or not all(map(is_name, names)):
        return None
    of_tenant = role == Role.TENANT
    if len(names) != (2 if of_tenant else 1):
        return None
    credential = Credential(names[-1], Role(role), names[0] if of_tenant else "")
    return credential if SCHEME + credential.label == uri else None
