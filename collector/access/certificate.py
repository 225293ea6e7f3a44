"""Client certificates and the credentials that they stand for.

TLS has verified the chain up to `tls.client_ca_file` before this module is called. A certificate may name
its holder by exactly one URI among its subject's alternative names:

    railscope:node/gpu-001    railscope:operator/grafana    railscope:tenant/vision/board

Names are percent-encoded. Entries of the tokens file take precedence over the content of a certificate.
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
    """Relevant content of a certificate."""

    fingerprint: str
    """Digest of its DER encoding."""
    common_name: str = ""
    """Common name of the subject; empty if there is none, or more than one."""
    named: Credential | None = None
    """Credential named by the certificate; None for no URI, several URIs or an invalid one."""
    until_ns: int = 0
    """Credential named by the certificate; None for no URI, several URIs or an invalid one."""


@lru_cache(_MAX_KEPT)
def read(der: bytes) -> Certificate:
    """Read a certificate from its DER encoding. An unreadable one stands for no credential."""
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
    """Return the credential that a URI names, if the URI is in canonical form; else None."""
    role, *names = (unquote(part) for part in uri.removeprefix(SCHEME).split("/"))
    if role not in set(Role) or not all(map(is_name, names)):
        return None
    of_tenant = role == Role.TENANT
    if len(names) != (2 if of_tenant else 1):
        return None
    credential = Credential(names[-1], Role(role), names[0] if of_tenant else "")
    return credential if SCHEME + credential.label == uri else None
