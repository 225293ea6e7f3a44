"""Seller and payers, as TOML: data of an export that invoices do not contain.

    provider = "Machine Hall"          # provides, publishes and bills
    service = "GPU Cluster"            # ServiceName; this is the default

    [region]                           # location of the GPUs; optional
    id = "hall-1"
    name = "Machine hall 1"

    [tenant.language]                  # one table for every tenant that is billed
    account = "research"               # BillingAccountId: the group that pays
    account_name = "Research"
    name = "Language models"           # SubAccountName; default: the tenant's id
    type = "Account"                   # or Namespace: type of the tenant
    tags = { CostCenter = "4711" }

A further key is publisher: the producer of the service, if it is not the provider. The provider
issues the invoices: FOCUS requires a BilledCost of 0 for charges that are paid to a third party.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from collector.billing.focus import Account, Region, Seller
from railscope.toml_text import TomlError, parse_toml

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class SellerFileError(ValueError):
    """A file without valid seller or payers; the message contains file and key."""


class _Region(msgspec.Struct, forbid_unknown_fields=True):
    id: _Name
    name: _Name


class _Tenant(msgspec.Struct, forbid_unknown_fields=True):
    account: _Name
    account_name: _Name | None = None
    name: _Name | None = None
    type: Literal["Account", "Namespace"] = "Account"
    tags: dict[_Name, str] = {}


class _Seller(msgspec.Struct, forbid_unknown_fields=True):
    provider: _Name
    publisher: str = ""
    service: _Name = "GPU Cluster"
    region: _Region | None = None
    tenant: dict[_Name, _Tenant] = {}


def read(file: Path) -> Seller:
    """Read the seller from a file. Raises SellerFileError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{file}: {error}"
        raise SellerFileError(message) from error
    return parse(text, str(file))


def parse(text: str, file: str) -> Seller:
    """The seller in a file's text; `file` is its name, for messages. Raises SellerFileError."""
    try:
        found = msgspec.convert(parse_toml(text), _Seller, strict=True)
    except TomlError as error:
        message = f"{file}: is no TOML: {error}"
        raise SellerFileError(message) from error
    except msgspec.ValidationError as error:
        message = f"{file}: {error}"
        raise SellerFileError(message) from error
    return Seller(
        provider=found.provider,
        invoice_issuer=found.provider,
        accounts={tenant: _account(one) for tenant, one in found.tenant.items()},
        publisher=found.publisher,
        service=found.service,
        region=Region(found.region.id, found.region.name) if found.region else None,
    )


def _account(one: _Tenant) -> Account:
    return Account(one.account, one.account_name, one.type, one.name, one.tags)
