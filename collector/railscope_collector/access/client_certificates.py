"""Client certificates, and the credential that one may name.

TLS has verified the chain up to `tls.client_ca_file` before this module is called. A certificate
may name its holder by exactly one URI among its subject's alternative names:

    railscope:node/gpu-001    railscope:operator/grafana    railscope:tenant/vision/dashboard

Names are percent-encoded. Sources: RFC 5280, 4.2.1.6 (uniformResourceIdentifier); RFC 3986, 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import NameOID

from railscope import timestamps
from railscope_collector.access.credentials import Credential, Role, digest_bytes, is_name

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


# A node sends its certificate with each connection; parsing costs more than the rest of the check.
@lru_cache(_MAX_CACHED)
def read_certificate(der: bytes) -> ClientCertificate:
    """Read a certificate from its DER encoding. An unreadable one stands for no credential."""
    fingerprint = digest_bytes(der)
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        # With several names it would depend on the order which one counts.
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
    # Compared with the canonical form: other spellings of one name would be other names in logs and lists.
    return credential if SCHEME + credential.label == uri else None
