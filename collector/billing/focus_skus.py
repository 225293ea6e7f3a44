"""FOCUS identifiers of a charge: SKU, meter, price and resource.

A SKU is one metered quantity: the time of a GPU model, the time of one MIG profile of it, the
energy of that model. The prices of a SKU differ by tariff and by version of the price book. A price
id does not contain the tenant: it is the same for all payers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from collector.billing.charges import Charge, Kind, Unit

_METERS = {
    Unit.GPU_HOURS: "GPU Time",
    Unit.INSTANCE_HOURS: "MIG Instance Time",
    Unit.KILOWATT_HOURS: "Energy",
}
_MIG_UUID = "MIG-"  # prefix of the driver's ids of MIG instances


def sku_id(charge: Charge) -> str | None:
    """The SKU; None for a charge without one (FOCUS requires null for taxes)."""
    if not charge.sku or charge.kind is Kind.TAX:
        return None
    if charge.unit is None or charge.unit is Unit.GPU_HOURS:
        return charge.sku
    if charge.unit is Unit.INSTANCE_HOURS:
        return f"{charge.sku}/{charge.mig_profile}"
    return f"{charge.sku}/{charge.kind.value}"


def meter(charge: Charge) -> str | None:
    """Name of the metered quantity: the same for all charges of a SKU."""
    return _METERS.get(charge.unit, charge.unit.label) if charge.unit else None


def price_id(charge: Charge) -> str | None:
    """The price: SKU, tariff, and the version of the price book that introduced it.

    A minimum is billed at the price of the time that it tops up.
    """
    if charge.unit is None:
        return None
    kind = Kind.USAGE if charge.kind is Kind.MINIMUM_TOPUP else charge.kind
    parts = (charge.sku, charge.mig_profile, kind.value, f"v{charge.price_version}")
    return "/".join(part for part in parts if part)


def price_details(charge: Charge) -> str | None:
    """Properties of one pricing unit: GPUs in a GPU-hour, the profile of an instance-hour."""
    if charge.unit is Unit.GPU_HOURS:
        return key_values({"GpuCount": 1})
    if charge.unit is Unit.INSTANCE_HOURS:
        return key_values({"x_MigProfile": charge.mig_profile})
    return None


def resource_id(charge: Charge) -> str | None:
    """The UUID of the GPU or of the MIG instance; without one, the GPU's with the MIG profile.

    So no id denotes a whole GPU in one row and an instance in another.
    """
    if charge.mig_profile and not charge.resource.startswith(_MIG_UUID):
        return f"{charge.resource}/{charge.mig_profile}" if charge.resource else None
    return charge.resource or None


def resource_type(charge: Charge) -> str | None:
    """Type of the resource."""
    if not charge.resource:
        return None
    shared = charge.mig_profile or charge.resource.startswith(_MIG_UUID)
    return "MIG instance" if shared else "GPU"


def key_values(found: Mapping[str, str | int]) -> str | None:
    """FOCUS KeyValueFormat: one flat JSON object with sorted keys; None if empty."""
    if not found:
        return None
    return json.dumps(dict(found), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
