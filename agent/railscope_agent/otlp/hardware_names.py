"""Names of the OpenTelemetry conventions for hardware (`hw.*`), for metrics that mean the same.

The conventions are in development and may change: they are exported on request. They have no names for pauses, ECN, NVLink,
rails, Xids, reasons of throttling, tenants and claims, which keep their own names, and neither has this table.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from opentelemetry.proto.metrics.v1 import metrics_pb2

from railscope import otlp_points
from railscope.catalog import declare, gpu, gpu_health, host, nic, rdma
from railscope.catalog.declare import MetricKind, MetricUnit
from railscope.frame import Entity
from railscope.otlp_points import HardwareMetric, Labels, SeriesKey

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions."""
STATES = {"healthy": "ok", "degraded": "degraded", "failed": "failed"}
"""State of the convention by the verdict on a GPU; an unknown GPU has none."""
ALL_STATES = (*STATES.values(), "predicted_failure")
_LIMITS = {"shutdown": "high.critical", "slowdown": "high.degraded"}
_LIFETIME = "volatile"
_INFINIBAND = "InfiniBand"
"""Link layer of ports whose interfaces, of IP over InfiniBand, have a state of their own."""
AttributesOf = Callable[[Entity], Labels | None]
"""Returns the attributes of a point; None for an entity without a point."""


class HardwareName(NamedTuple):
    """Name of a metric in the conventions, and the attributes of its points."""

    metric: declare.Metric
    hardware: HardwareMetric
    attributes_of: AttributesOf


def _gpu_attributes(more: Labels, entity: Entity) -> Labels:
    return (("hw.id", entity.key[0]), *more)


def _error_attributes(entity: Entity) -> Labels | None:
    uuid, error, lifetime = entity.key
    attributes = ("hw.id", uuid), ("hw.type", "gpu"), ("error.type", error)
    return attributes if lifetime == _LIFETIME else None


def _limit_attributes(entity: Entity) -> Labels | None:
    uuid, threshold = entity.key
    limit = _LIMITS.get(threshold)
    attributes = ("hw.id", uuid), ("hw.sensor_location", "gpu"), ("hw.limit_type", limit or "")
    return attributes if limit else None


def _nic_attributes(more: Labels, entity: Entity) -> Labels | None:
    address = entity.facts.get("pci_address", "")
    attributes = ("hw.id", address), ("hw.name", entity.key[0]), *more
    return attributes if address else None


def _port_attributes(entity: Entity) -> Labels | None:
    """Return the attributes of an RDMA port without an interface that has a carrier: its own state is that of the link."""
    facts = entity.facts
    has_carrier = facts.get("interface") and facts.get("link_layer") != _INFINIBAND
    device, port = entity.key
    address, name = facts.get("pci_address", ""), facts.get("interface") or f"{device}/{port}"
    return (("hw.id", address), ("hw.name", name)) if address and not has_carrier else None


def _name(
    metric: declare.Metric,
    name: str,
    help_: str,
    attributes_of: AttributesOf,
    unit: MetricUnit | None = None,
) -> HardwareName:
    """Return a counter or a gauge, as the metric is; with `unit` an up-down counter."""
    hardware = HardwareMetric(
        name, metric.kind, help_, metric.resets, unit or metric.unit, unit is not None
    )
    return HardwareName(metric, hardware, attributes_of)


def _names() -> Iterator[HardwareName]:
    def of_gpu(*more: tuple[str, str]) -> AttributesOf:
        return partial(_gpu_attributes, more)

    def of_nic(*more: tuple[str, str]) -> AttributesOf:
        return partial(_nic_attributes, more)

    size, rate, ratio = MetricUnit.BYTES, MetricUnit.BYTES_PER_SECOND, MetricUnit.RATIO
    is_gpu, location = ("hw.type", "gpu"), "hw.sensor_location"
    received, sent = (("network.io.direction", each) for each in ("receive", "transmit"))
    load, heat = "Fraction of time spent in a specific task.", "Temperature in degrees Celsius."
    moved = "Received and transmitted bytes by the GPU, over PCIe."
    traffic, packets = (
        f"Received and transmitted network traffic in {each}." for each in ("bytes", "packets")
    )
    yield _name(gpu.GPU_UTILIZATION, "hw.gpu.utilization", load, of_gpu(("hw.gpu.task", "general")))
    yield _name(gpu.GPU_MEMORY_USED, "hw.gpu.memory.usage", "GPU memory used.", of_gpu(), size)
    yield _name(
        gpu.GPU_MEMORY_TOTAL, "hw.gpu.memory.limit", "Size of the GPU memory.", of_gpu(), size
    )
    yield _name(gpu_health.GPU_PCIE_RECEIVED, "hw.gpu.io", moved, of_gpu(received))
    yield _name(gpu_health.GPU_PCIE_TRANSMITTED, "hw.gpu.io", moved, of_gpu(sent))
    yield _name(gpu.GPU_ENERGY, "hw.energy", "Energy consumed by the component.", of_gpu(is_gpu))
    yield _name(gpu.GPU_POWER, "hw.power", "Power consumed by the component.", of_gpu(is_gpu))
    yield _name(gpu.GPU_TEMPERATURE, "hw.temperature", heat, of_gpu((location, "gpu")))
    yield _name(gpu.GPU_MEMORY_TEMPERATURE, "hw.temperature", heat, of_gpu((location, "memory")))
    limit = "Temperature limit in degrees Celsius."
    yield _name(gpu.GPU_TEMPERATURE_THRESHOLD, "hw.temperature.limit", limit, _limit_attributes)
    errors = "Number of errors encountered by the component."
    yield _name(gpu_health.GPU_ECC_ERRORS, "hw.errors", errors, _error_attributes)
    yield _name(nic.RECEIVED, "hw.network.io", traffic, of_nic(received))
    yield _name(nic.SENT, "hw.network.io", traffic, of_nic(sent))
    yield _name(nic.RECEIVED_PACKETS, "hw.network.packets", packets, of_nic(received))
    yield _name(nic.SENT_PACKETS, "hw.network.packets", packets, of_nic(sent))
    yield _name(host.LINK_SPEED, "hw.network.bandwidth.limit", "Link speed.", of_nic(), rate)
    link_up = "Link status: 1 (up) or 0 (down)."
    yield _name(host.LINK_UP, "hw.network.up", link_up, of_nic(), ratio)
    yield _name(rdma.RDMA_UP, "hw.network.up", link_up, _port_attributes, ratio)
    status = "Operational status: 1 (true) or 0 (false) for each of the possible states."
    for state in ALL_STATES:
        attributes = of_gpu(is_gpu, ("hw.state", state))
        yield _name(gpu_health.GPU_HEALTH, "hw.status", status, attributes, ratio)


NAMES: dict[str, list[HardwareName]] = {}
for _each in _names():
    NAMES.setdefault(_each.metric.name, []).append(_each)


class HardwarePoints(otlp_points.NumberMetric):
    """Points of a metric under a name of the conventions; entities without attributes have none."""

    def __init__(
        self,
        name: HardwareName,
        first: int,
        entities: Sequence[Entity],
        starts: otlp_points.CounterStarts,
    ) -> None:
        super().__init__(name.metric, first, entities, starts)
        self._scope = metrics_pb2.ScopeMetrics()
        self._container = otlp_points.add_metric(self._scope, name.hardware)
        found = [name.attributes_of(entity) for entity in entities]
        self._columns = [SeriesKey(name.hardware, attributes or ()) for attributes in found]
        self.is_complete = all(attributes is not None for attributes in found)
        """True if every entity has attributes."""

    def _present(self, values: array[int], codes: bytes) -> list[int]:
        positions = super()._present(values, codes)
        return [position for position in positions if self._columns[position].labels]


class StatusPoints(HardwarePoints):
    """Points of one state of `hw.status`: 1 for GPUs in it, 0 for others, none for unknown ones."""

    has_fixed_labels = False

    def _present(self, values: array[int], codes: bytes) -> list[int]:
        positions = super()._present(values, codes)
        return [each for each in positions if self.metric.states.get(values[each]) in STATES]

    def _set_changed(self, values: array[int], before: array[int], read_ns: int) -> None:  # noqa: ARG002 - of the parent
        for point, position in zip(self._points, self._positions, strict=True):
            self._set_point(point, values, position)
            point.time_unix_nano = read_ns

    def _set_point(self, point: Any, values: array[int], position: int) -> None:
        state = STATES[self.metric.states[values[position]]]
        point.as_int = int(("hw.state", state) in self._columns[position].labels)


def hardware_points(
    metric: declare.Metric,
    first: int,
    entities: Sequence[Entity],
    starts: otlp_points.CounterStarts,
) -> list[HardwarePoints]:
    """Return the points of a metric under its names of the conventions; none if it has no name."""
    points = StatusPoints if metric.kind is MetricKind.STATE else HardwarePoints
    return [points(name, first, entities, starts) for name in NAMES.get(metric.name, ())]
