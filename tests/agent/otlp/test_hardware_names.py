"""Names of the conventions for hardware: as the official package has them, with the values of the metrics endpoint."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import hw_attributes, network_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics
from opentelemetry.semconv.attributes import error_attributes
from support.cases import capture_of
from support.clock import NS
from support.metric_samples import Sample, exported_samples
from support.otlp_decoding import DecodedMetrics
from support.reading import ORIGIN

from railscope import otlp_points
from railscope.catalog import entities, gpu_health, host as links, rdma
from railscope.catalog.declare import MetricKind
from railscope.exposition import EVERYTHING, TextFormat
from railscope.frame import Entity, Frame, NodeTimestamp, Schema
from railscope.reading import Absent
from railscope_agent.config import AgentSettings, MetricsSettings
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.otlp import hardware_names
from railscope_agent.otlp.metric_messages import MetricMessages
from railscope_agent.service import Agent

WALL_NS = 1_790_000_000 * NS
GPUS = tuple(Entity(entities.GPU, (f"GPU-{number}",)) for number in range(3))


class RecordingMeter:
    """Records which instrument the functions of the official package create."""

    def __init__(self) -> None:
        self.created: tuple[str, str, str] = "", "", ""

    def __getattr__(self, function: str) -> Any:
        def create(name: str, unit: str, **_: object) -> None:
            kind = function.removeprefix("create_").removeprefix("observable_")
            self.created = name, kind.replace("_", "").replace("updowncounter", "updown"), unit

        return create


def official(name: str) -> tuple[str, str, str]:
    """Return name, instrument and unit of a metric in the official package."""
    meter = RecordingMeter()
    create = getattr(hw_metrics, f"create_{name.replace('.', '_')}")
    create(meter, *([None] * (create.__code__.co_argcount - 1)))
    return meter.created


def instrument(hardware: otlp_points.HardwareMetric) -> str:
    if hardware.is_updowncounter:
        return "updown"
    return "counter" if hardware.kind is MetricKind.COUNTER else "gauge"


NAMES = [name for names in hardware_names.NAMES.values() for name in names]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.hardware.name)
def test_names_instruments_and_units_are_those_of_the_conventions(
    name: hardware_names.HardwareName,
) -> None:
    hardware = name.hardware
    assert official(hardware.name) == (hardware.name, instrument(hardware), hardware.unit.ucum)


def values_of(module: Any, prefix: str) -> set[str]:
    return {getattr(module, name) for name in dir(module) if name.startswith(prefix)}


KNOWN = (
    values_of(hw_attributes, "HW_")
    | values_of(network_attributes, "NETWORK_IO")
    | {error_attributes.ERROR_TYPE}
)


def decoded(messages: MetricMessages, *frames: Frame) -> DecodedMetrics:
    found = DecodedMetrics()
    for body, _ in messages.build(frames, WALL_NS):
        found.add(body)
    return found


async def exported(case: str, names: str) -> tuple[DecodedMetrics, dict[Sample, float]]:
    """Return the export of a capture, and the samples of the metrics endpoint."""
    capture = capture_of(case)
    clock = RecordedClock(capture.about)
    settings = AgentSettings(metrics=MetricsSettings(detail="full"), read_timeout_seconds=60)
    node = Agent(settings, RecordedHost(capture, clock, lambda: clock.offset_ns), "n1")
    await node.once()
    page = exported_samples(node.endpoint.text(TextFormat.PROMETHEUS))
    messages = MetricMessages({}, WALL_NS, EVERYTHING, names)
    return decoded(messages, *node.endpoint.fresh_frames()), page


def is_hardware(sample: Sample) -> bool:
    return sample[0].startswith("hw_")


GPU_NAMES = {
    "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.io", "hw.energy", "hw.power",
    "hw.temperature", "hw.errors", "hw.status",
}  # fmt: skip
NIC_NAMES = {"hw.network.io", "hw.network.packets"}


@pytest.mark.parametrize(
    ("case", "names"), [("hgx-b200", GPU_NAMES), ("hgx-h100-roce-incast", NIC_NAMES)]
)
async def test_both_names_have_the_series_of_the_page_and_those_of_the_conventions(
    case: str, names: set[str]
) -> None:
    export, page = await exported(case, "both")
    assert {key: value for key, value in export.samples.items() if not is_hardware(key)} == page
    for _, labels in filter(is_hardware, export.samples):
        attributes = dict(labels)
        assert attributes["hw.id"]
        assert attributes.keys() <= KNOWN
    assert {name for name in export.messages if name.startswith("hw.")} == names


@pytest.mark.parametrize(
    ("name", "own", "attributes"),
    [
        ("hw_energy_joules_total", "railscope_gpu_energy_joules_total", {"hw.type": "gpu"}),
        ("hw_gpu_memory_usage_bytes", "railscope_gpu_memory_used_bytes", {}),
        ("hw_temperature_celsius", "railscope_gpu_temperature_celsius", {"hw.sensor_location": "gpu"}),
        ("hw_gpu_io_bytes_total", "railscope_gpu_pcie_received_bytes_total", {"network.io.direction": "receive"}),
    ],
)  # fmt: skip
async def test_values_are_those_of_the_page(
    name: str, own: str, attributes: dict[str, str]
) -> None:
    export, page = await exported("hgx-b200", "hardware")
    expected = {
        (name, frozenset({("hw.id", dict(labels)["gpu"]), *attributes.items()})): value
        for (each, labels), value in page.items()
        if each == own
    }
    assert expected
    assert expected.items() <= export.samples.items()


async def test_hardware_names_replace_the_others_only_where_they_have_every_series() -> None:
    export, page = await exported("hgx-b200", "hardware")
    own = {name for name, _ in export.samples}
    replaced = {name for name, _ in page} - own
    assert {"railscope_gpu_power_watts", "railscope_gpu_energy_joules_total"} <= replaced
    assert replaced <= hardware_names.NAMES.keys()
    assert "railscope_gpu_ecc_errors_total" in own, "aggregate counts have no name"
    assert "railscope_gpu_health_reason_active" not in replaced


def frame(columns: list[tuple[Any, Entity]], readings: list[int | Absent], second: int) -> Frame:
    reasons = bytes(r.value if isinstance(r, Absent) else 0 for r in readings)
    values = array("q", (0 if isinstance(r, Absent) else r for r in readings))
    at = NodeTimestamp(WALL_NS + second * NS, second * NS)
    schema = Schema("made_up", tuple(columns))
    return Frame(ORIGIN, schema, second, at, values, reasons if any(reasons) else b"")


def test_a_status_has_each_state_and_an_unknown_gpu_has_none() -> None:
    messages = MetricMessages({}, WALL_NS, EVERYTHING, "hardware")
    columns = [(gpu_health.GPU_HEALTH, gpu) for gpu in GPUS]

    def states(export: DecodedMetrics) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for (_, labels), value in export.samples.items():
            attributes = dict(labels)
            found.setdefault(attributes["hw.id"], [])
            found[attributes["hw.id"]] += [attributes["hw.state"]] * bool(value)
        return found

    export = decoded(messages, frame(columns, [0, 1, 3], 1))
    assert states(export) == {"GPU-1": ["ok"], "GPU-2": ["failed"]}
    assert len(export.samples) == 8
    for body, _ in messages.build([frame(columns, [2, Absent.TIMEOUT, 1], 2)], WALL_NS):
        export.add(body)
    assert states(export) == {"GPU-0": ["degraded"], "GPU-2": ["ok"]}
    assert len(export.ended) == 4


def test_an_interface_without_a_pci_address_has_no_hardware_name() -> None:
    nic = Entity(entities.NIC, ("eth0",), {"pci_address": "0000:03:00.0"})
    columns = [(links.LINK_UP, nic), (links.LINK_UP, Entity(entities.NIC, ("bond0",)))]
    messages = MetricMessages({}, WALL_NS, EVERYTHING, "hardware")
    export = decoded(messages, frame(columns, [1, 0], 1))
    attributes = frozenset({("hw.id", "0000:03:00.0"), ("hw.name", "eth0")})
    assert export.samples.pop(("hw_network_up", attributes)) == 1
    own = [name for name, _ in export.samples if name != "railscope_nic_info"]
    assert own == ["railscope_network_link_up"] * 2
    message = export.messages["hw.network.up"]
    assert (message.sum.is_monotonic, message.sum.aggregation_temporality) == (False, 2)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"link_layer": "InfiniBand", "interface": "ib0"}, "ib0"),
        ({"link_layer": "InfiniBand"}, "mlx5_0/1"),
        ({"link_layer": "Ethernet"}, "mlx5_0/1"),
        ({"link_layer": "Ethernet", "interface": "eth0"}, ""),
    ],
)
def test_the_link_of_an_rdma_port_is_up_by_the_carrier_of_its_interface_or_by_its_own_state(
    facts: dict[str, str], name: str
) -> None:
    port = Entity(entities.RDMA_PORT, ("mlx5_0", "1"), facts | {"pci_address": "0000:03:00.0"})
    messages = MetricMessages({}, WALL_NS, EVERYTHING, "hardware")
    export = decoded(messages, frame([(rdma.RDMA_UP, port)], [1], 1))
    found = [labels for each, labels in export.samples if each == "hw_network_up"]
    assert found == [frozenset({("hw.id", "0000:03:00.0"), ("hw.name", name)})] * bool(name)
