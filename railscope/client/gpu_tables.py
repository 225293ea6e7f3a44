"""GPUs of a node, each with the NIC of its rail, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from railscope import api, figures, timestamps
from railscope.catalog import METRICS
from railscope.client import tables

HEALTH, HEALTH_REASON = "railscope_gpu_health", "railscope_gpu_health_reason_active"
HEALTH_STATES = METRICS[HEALTH].states
LINK_UP = "railscope_network_link_up"
RECEIVED, SENT = "railscope_nic_receive_bytes_total", "railscope_nic_transmit_bytes_total"
_CLAIMED = "railscope_gpu_claimed_ratio"
_GPU_VALUES = {
    "utilization_ratio": "railscope_gpu_utilization_ratio",
    "power_watts": "railscope_gpu_power_watts",
    "temperature_celsius": "railscope_gpu_temperature_celsius",
    "memory_used_bytes": "railscope_gpu_memory_used_bytes",
    "memory_size_bytes": "railscope_gpu_memory_size_bytes",
    "claimed_ratio": _CLAIMED,
    "unclaimed_processes": "railscope_gpu_unclaimed_processes",
}
_NIC_VALUES = {"speed_bytes_per_second": "railscope_network_link_speed_bytes_per_second"}
GPU_COLUMNS = (
    tables.TableColumn("index", "GPU", is_key=True),
    tables.TableColumn("health", "HEALTH"),
    tables.number("utilization_ratio", "BUSY", figures.percent),
    tables.number("power_watts", "POWER", tables.show_watts),
    tables.number("temperature_celsius", "TEMP", lambda value: f"{value:.0f} C"),
    tables.TableColumn("holder", "HOLDER", tables.show_list),
    tables.number("rail", "RAIL"),
    tables.TableColumn("nic_state", "NIC"),
    tables.number("receive_bytes_per_second", "IN Gb/s", tables.show_gigabits),
    tables.number("transmit_bytes_per_second", "OUT Gb/s", tables.show_gigabits),
    tables.number("memory_used_bytes", "MEMORY GB", tables.show_gigabytes, wide=True),
    tables.number("unclaimed_processes", "UNCLAIMED", wide=True),
    tables.TableColumn("link", "LINK", is_wide=True),
    tables.TableColumn("reason", "REASON", is_wide=True),
    tables.TableColumn("pci_address", "PCI", is_wide=True),
    tables.TableColumn("gpu", "UUID", is_wide=True),
)
RATES = ("receive_bytes_per_second", "transmit_bytes_per_second")
ABSENCES = {
    "holder": "no claim holds the GPU, or the agent does not expose it",
    "nic_state": "no NIC is on the rail of the GPU",
    "rail": "the rail of the GPU is not known",
    "link": "the agent does not report the link",
    "receive_bytes_per_second": "a rate needs two readings",
    "transmit_bytes_per_second": "a rate needs two readings",
}
"""Reasons for absent values, by column; those of readings come with the readings."""
_WORST_FIRST = ("failed", "degraded", "unknown", "healthy")

_SAME_READ_NS = 500_000_000
"""Difference of times of the same read: the age of a source has the resolution of the request."""


@dataclass
class DeviceReadings:
    """Readings of the devices of a node: values by metric and device, or the reasons for their absence."""

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    absences: dict[tuple[str, str], str] = field(default_factory=dict)
    gpus: dict[str, api.Gpu] = field(default_factory=dict)
    nics: dict[str, str] = field(default_factory=dict)
    """NIC by rail."""
    health_reasons: dict[str, list[str]] = field(default_factory=dict)
    counted_ns: int = 0
    """Time of the counters of the NICs."""
    node: str = ""


def of_document(document: api.NodeDetail) -> DeviceReadings:
    """Return the readings of a collector's document."""
    found = DeviceReadings(node=document.node, gpus={gpu.gpu: gpu for gpu in document.gpus})
    for name, stream in document.streams.items():
        if name == "nic":
            found.counted_ns = stream.timestamp_ns
        for reading in stream.readings:
            _add_reading(found, reading)
    return found


def _add_reading(found: DeviceReadings, reading: api.Reading) -> None:
    if not reading.entity:
        return
    device, key = str(reading.entity[0]), (reading.metric, str(reading.entity[0]))
    if rail := reading.device.get("rail"):
        found.nics.setdefault(rail, reading.device.get("interface") or device)
    if reading.device.get("kind") == "gpu" and device not in found.gpus:
        index, address = (reading.device.get(name, "") for name in ("index", "pci_address"))
        found.gpus[device] = api.Gpu(device, index, address)
    if reading.metric == HEALTH_REASON:
        if reading.value and len(reading.entity) > 1:
            found.health_reasons.setdefault(device, []).append(str(reading.entity[1]))
    elif reading.value is not None:
        found.values[key] = reading.value
    elif reading.absent:
        found.absences[key] = reading.absent


def gpu_rows(found: DeviceReadings, before: DeviceReadings | None = None) -> list[tables.Row]:
    """Return a row for each GPU, worst first. Rates need the readings `before` these."""
    rows = [_gpu_row(found, before, gpu) for gpu in found.gpus.values()]
    return sorted(
        rows, key=lambda row: (_WORST_FIRST.index(row["health"]), _index_order(row["index"]))
    )


@dataclass
class GpuRates:
    """The last two different readings of a node: a reading that is received again has the rate that it had."""

    _newest: DeviceReadings = field(default_factory=DeviceReadings)
    _before: DeviceReadings | None = None

    def rows(self, devices: DeviceReadings) -> list[tables.Row]:
        """Return a row for each GPU, worst first, with rates if there are two readings."""
        distance_ns = abs(devices.counted_ns - self._newest.counted_ns)
        if devices.node != self._newest.node or distance_ns > _SAME_READ_NS:
            self._before, self._newest = self._newest, devices
        return gpu_rows(devices, self._before)


def _gpu_row(found: DeviceReadings, before: DeviceReadings | None, gpu: api.Gpu) -> tables.Row:
    health = HEALTH_STATES.get(int(found.values.get((HEALTH, gpu.gpu), 0)), "unknown")
    nic = found.nics.get(str(gpu.rail)) if gpu.rail is not None else None
    link = found.values.get((LINK_UP, nic)) if nic else None
    row: dict[str, Any] = {
        "node": found.node,
        "gpu": gpu.gpu,
        "index": gpu.index,
        "pci_address": gpu.pci_address,
        "health": health,
        "reason": ", ".join(found.health_reasons.get(gpu.gpu, ()))
        or found.absences.get((HEALTH, gpu.gpu), ""),
        "rail": gpu.rail,
        "nic": nic,
        "nic_state": f"{nic} down" if link == 0 else nic,
        "link": None if link is None else "up" if link else "down",
        "holder": [f"{holder.tenant}/{holder.workload}" for holder in gpu.holders],
    }
    row |= {key: found.values.get((metric, gpu.gpu)) for key, metric in _GPU_VALUES.items()}
    row |= {
        key: found.values.get((metric, nic)) if nic else None for key, metric in _NIC_VALUES.items()
    }
    if not row["holder"] and row["claimed_ratio"]:
        row["holder"] = [f"claimed {100 * row['claimed_ratio']:.0f} %"]  # an agent exposes no names
    row["receive_bytes_per_second"] = _rate(found, before, (RECEIVED, nic))
    row["transmit_bytes_per_second"] = _rate(found, before, (SENT, nic))
    return row


def _rate(
    found: DeviceReadings, before: DeviceReadings | None, key: tuple[str, str | None]
) -> float | None:
    """Return the rate of a counter; None without two readings at different times, and at a reset."""
    if before is None or key[1] is None or before.node != found.node:
        return None
    counter = key[0], key[1]
    new, old = found.values.get(counter), before.values.get(counter)
    seconds = (found.counted_ns - before.counted_ns) / timestamps.SECOND_NS
    if new is None or old is None or seconds <= 0 or new < old:
        return None
    return (new - old) / seconds


def _index_order(index: str) -> tuple[int, str]:
    return (int(index), "") if index.isdecimal() and len(index) < 9 else (1 << 30, index)  # noqa: PLR2004 - digits of an index


def gpu_table(rows: Iterable[tables.Row], *, with_rates: bool = True) -> tables.ClientTable:
    """Return a table of such rows, without the rates if they were read only once."""
    columns = [column for column in GPU_COLUMNS if with_rates or column.key not in RATES]
    return tables.ClientTable("gpus", tuple(columns), list(rows), reasons=ABSENCES)
