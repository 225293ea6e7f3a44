"""Contents of the EEPROMs of simulated transceivers and cables, decoded.

Rails have optics with four lanes, storage has passive copper, which has no measurements. Measurements are
those of CMIS 5.2 and SFF-8636.
"""

from __future__ import annotations

from dataclasses import dataclass

from railscope.capture import Json, Moment
from simulator.fabric import Cable
from simulator.model import NodeModel
from simulator.nic_models import LANES
from simulator.spec import NodeSpec

_THRESHOLDS = {
    "temperature_high_alarm_millicelsius": 80_000,
    "temperature_high_warning_millicelsius": 75_000,
    "receive_power_low_alarm_nanowatts": 128_800,
    "receive_power_low_warning_nanowatts": 257_000,
    "receive_power_high_alarm_nanowatts": 3_548_100,
    "transmit_power_low_alarm_nanowatts": 257_000,
}
"""Alarms at -8.9, 5.5 and -5.9 dBm, and a warning at -5.9 dBm, the minimum of a receiver."""


@dataclass(frozen=True, slots=True)
class _Module:
    """A kind of transceiver, by its EEPROM contents."""

    type: str
    vendor: str
    part_number: str
    revision: str
    media: str = "optical single-mode"
    length_metres: int = 0


_OPTICS = {
    "mlx5_core": _Module("OSFP", "NVIDIA", "MMS4X00-NS400", "A3"),
    "bnxt_en": _Module("QSFP-DD", "FINISAR CORP.", "FTCD4523E2PCM", "A"),
    "ice": _Module("QSFP28", "Intel Corp", "SPTSBP3CLCCO", "01"),
}
_COPPER = {
    "mlx5_core": _Module("QSFP56", "NVIDIA", "MCP1650-V002E26", "A4", "passive copper", 2),
    "bnxt_en": _Module("QSFP56", "Amphenol", "NDAAFJ-0003", "B", "passive copper", 2),
    "ice": _Module("QSFP28", "Amphenol", "NDAAFF-0002", "C", "passive copper", 2),
}


def show(model: NodeModel, into: Moment) -> None:
    """Add the transceivers of all ports to a `Moment`."""
    for cable in model.present_cables:
        into.calls[f"netlink.module({cable.port.interface})"] = _module(model.spec, cable)


def _module(spec: NodeSpec, cable: Cable) -> dict[str, Json]:
    optical = cable.port.rail is not None
    kind = (_OPTICS if optical else _COPPER)[cable.port.nic.driver]
    serial = spec.stream(f"module {cable.port.rdma_device}").randrange(10**9)
    found: dict[str, Json] = {
        "type": kind.type,
        "vendor": kind.vendor,
        "part_number": kind.part_number,
        "revision": kind.revision,
        "serial": f"MT{serial:09d}",
        "media": kind.media,
    }
    if not optical:
        return found | {"length_metres": kind.length_metres}
    optics = cable.optics
    return found | {
        "temperature_millicelsius": optics.millicelsius,
        "voltage_microvolts": optics.microvolts,
        "lanes": [
            {
                "receive_power_nanowatts": optics.receive_nanowatts(lane),
                "transmit_power_nanowatts": optics.transmit_nanowatts(lane),
                "bias_microamperes": optics.bias_microamperes(lane),
            }
            for lane in range(LANES)
        ],
        "thresholds": _THRESHOLDS,
    }
