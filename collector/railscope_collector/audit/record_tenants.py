"""Tenant of an audit record.

A record belongs to a tenant if it names that tenant and no other:

    data.tenant, or any key of `data` that ends in `_tenant`     the tenants that it names
    actor `credential` with the label `tenant/...`               the tenant of the credential
    any key of `data` that begins with `other`                   another, unspecified party
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from railscope.audit.record import AuditRecord, decode_audit_record

_TENANT_ROLE = "tenant"
"""Beginning of the labels of credentials of tenants: `railscope_collector.access.credentials` is a layer above."""
_UNNAMED_PARTY = "\0"
"""Placeholder for a party that is not named as a tenant."""


def tenant_of(raw: bytes) -> str:
    """Return the tenant of an encoded record. Raises RecordError."""
    # Most records belong to no tenant, and need no decoding.
    return sole_tenant(decode_audit_record(raw)) if b"tenant" in raw else ""


def sole_tenant(record: AuditRecord) -> str:
    """Return the tenant of a record: the only one that it names. Empty for none, or several."""
    named = set(_named_tenants(record))
    return named.pop() if len(named) == 1 and _UNNAMED_PARTY not in named else ""


def _named_tenants(record: AuditRecord) -> Iterator[str]:
    actor = record.actor.id.split("/")
    if record.actor.kind == "credential" and actor[0] == _TENANT_ROLE and len(actor) > 1:
        yield unquote(actor[1])
    yield from _tenants_in(record.data)


def _tenants_in(data: object) -> Iterator[str]:
    """Yield the texts under keys for tenants, at any depth."""
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key.startswith("other"):
            yield _UNNAMED_PARTY
        if key in {"tenant", "tenants"} or key.endswith(("_tenant", "_tenants")):
            yield from _texts_in(value)
        else:
            yield from _tenants_in(value)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts_in(item)
