"""The seller file: seller and payers, the data of an export of invoices that invoices do not contain.

TOML:

    provider = "Example Data Center"   # provides, publishes and bills
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

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from railscope import convert_errors
from railscope.settings import SettingsError, read_named_file
from railscope.untrusted_text import TomlError, parse_toml
from railscope_collector.files.watched_file import FileError

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class PayerAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Payer of a tenant's invoices: group, type of tenant (Namespace, Account), and tags."""

    group: _Name = msgspec.field(name="account")
    group_name: _Name | None = msgspec.field(default=None, name="account_name")
    tenant_type: Literal["Account", "Namespace"] = msgspec.field(default="Account", name="type")
    tenant_name: _Name | None = msgspec.field(default=None, name="name")
    tags: dict[_Name, str] = {}


class GpuRegion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Location of the GPUs."""

    id: _Name
    name: _Name


class Seller(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Issuer of invoices: provider, service, and the account that pays for each tenant."""

    provider: _Name
    accounts: dict[_Name, PayerAccount] = msgspec.field(default_factory=dict, name="tenant")
    publisher: str = ""
    service: _Name = "GPU Cluster"
    region: GpuRegion | None = None


def find_seller(file: str, tenants: Iterable[str]) -> Seller:
    """Return the seller in a file; without a file, each of the tenants pays for itself.

    Raises SettingsError.
    """
    if not file:
        return Seller("GPU cluster", {name: PayerAccount(name) for name in tenants})
    with convert_errors(FileError, SettingsError, f"invalid seller_file {file}: "):
        return parse_seller(read_named_file("seller_file", file))


def parse_seller(text: str) -> Seller:
    """Parse the seller from the text of a file. Raises FileError."""
    try:
        return msgspec.convert(parse_toml(text), Seller, strict=True)
    except TomlError as error:
        message = f"invalid TOML: {error}"
        raise FileError(message) from error
    except msgspec.ValidationError as error:
        raise FileError(str(error)) from error
