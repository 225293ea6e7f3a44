"""The dashboard of PCIe links, transceivers and cables."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.dashboard_parts import DashboardVariable, assemble, settings_marks
from dashboards.query import COUNT, EVENTS_PER_SECOND, SHARE, Query, ask, grown, with_rail

UID = "railscope-links"
QUESTION = "Is every PCIe link as wide and fast as expected, and does every cable carry light?"
NODES = '{node=~"$node"}'
ON_RAIL = '{node=~"$node", rail!=""}'
NODE_CARD = {"node": "Node", "interface": "Interface"}
NODE_DEVICE = {"node": "Node", "pci_address": "PCI address"}
CHOICES = (DashboardVariable("node", "Node", "railscope_node_info", several=True),)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return assemble(
        "PCIe and optics",
        UID,
        QUESTION,
        SECTIONS,
        choices=CHOICES,
        marks=(settings_marks(NODES),),
        tags=("pcie", "optics"),
    )


def _events(counter: str, by: str, where: str = NODES) -> Query:
    legend = ", ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return ask(
        f"topk(10, sum by ({by}) (rate({counter}{where}[$__rate_interval])))",
        EVENTS_PER_SECOND,
        legend,
    )


def _paths(state: str) -> Query:
    return ask(f'sum(railscope_pcie_path_state{{node=~"$node", state="{state}"}})')


def _summary() -> Iterator[panels.Panel]:
    yield panels.number(
        101,
        "Paths degraded",
        "Devices with a path to the CPU below its capacity.",
        _paths("degraded"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        102,
        "Paths lost",
        "Devices that left the bus.",
        _paths("lost"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(103, "Paths saving power", "Slow while idle.", _paths("power_saving"))
    errors = 'railscope_pcie_device_errors_total{node=~"$node", severity!="correctable"}'
    yield panels.number(
        104,
        "PCIe errors, one hour",
        "Uncorrected errors.",
        grown(errors),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        105,
        "Transceivers read",
        "Transceivers with readings.",
        ask(f"sum(railscope_nic_transceiver_readable{NODES})"),
    )
    yield panels.number(
        106,
        "Hottest transceiver",
        "Of all NICs.",
        ask(f"max(railscope_nic_transceiver_temperature_celsius{NODES})"),
        ((None, "green"), (70, "orange"), (75, "red")),
    )
    yield panels.number(
        107,
        "Least light received",
        "Of all lanes of all optical transceivers.",
        ask(f"min(railscope_nic_transceiver_receive_power_watts{NODES})"),
    )
    yield panels.number(
        108,
        "Uncorrected blocks",
        "That FEC could not correct, per second.",
        ask(
            "sum(rate(railscope_nic_receive_fec_uncorrectable_blocks_total"
            f"{NODES}[$__rate_interval]))",
            EVENTS_PER_SECOND,
        ),
        panels.ANY_IS_BAD,
    )


def _pcie() -> Iterator[panels.Panel]:
    lost, degraded = (
        f'(max by (node, pci_address) (railscope_pcie_path_state{{node=~"$node", state="{state}"}})'
        " == 1)"
        for state in ("lost", "degraded")
    )
    yield panels.rows(
        201,
        "Degraded paths",
        "With their capacity.",
        NODE_DEVICE,
        panels.Column(
            "Is",
            ask(f"{lost} * 2 or {degraded}", COUNT),
            panels.NONE_IS_GOOD,
            {1: "degraded", 2: "lost"},
            "highest",
        ),
    )
    share = (
        "max by (node, pci_address) (railscope_pcie_path_bandwidth_bytes_per_second{0}) / "
        "max by (node, pci_address) (railscope_pcie_path_limit_bytes_per_second{0})"
    )
    yield panels.rows(
        202,
        "Narrowest paths",
        "The ten worst of the degraded ones.",
        NODE_DEVICE,
        panels.Column(
            "Share of what it could",
            ask(f"bottomk(10, {share.replace('{0}', NODES)} < 1)", "percentunit"),
            worst="lowest",
        ),
    )
    yield panels.bars(
        203,
        "Errors by severity",
        "As the devices report them (AER).",
        ask(
            f"sum by (severity) (railscope:node_pcie_device_errors:rate5m{NODES})",
            EVENTS_PER_SECOND,
            "{{severity}}",
        ),
    )
    yield panels.lines(
        204,
        "Replays of GPUs",
        "Packets repeated because of a bad signal, by node.",
        _events("railscope_gpu_pcie_replays_total", "node"),
        steps=panels.ANY_IS_BAD,
    )
    yield panels.lines(
        205,
        "Signal errors of NICs",
        "Corrected; they indicate a bad contact.",
        _events("railscope_nic_pcie_receive_signal_errors_total", "node"),
    )
    yield panels.grid(
        206,
        "Write stall, node by rail",
        "Share of time in which a NIC waited for memory, and pauses the switch.",
        "node",
        "rail",
        ask(
            "max by (node, rail) ("
            + with_rail(f"railscope_nic_pcie_write_stall_ratio{NODES}", ON_RAIL)
            + ")"
        ),
        steps=panels.STALL,
    )
    yield panels.rows(
        207,
        "GPU links",
        "The narrowest link of each node's GPUs, from the driver.",
        {"node": "Node"},
        panels.Column(
            "Generation",
            ask(f"min by (node) (railscope_gpu_pcie_link_generation{NODES})"),
            worst="lowest",
        ),
        panels.Column(
            "Lanes",
            ask(f"min by (node) (railscope_gpu_pcie_link_width_lanes{NODES})"),
            worst="lowest",
        ),
    )


def _optics() -> Iterator[panels.Panel]:
    facts = NODE_CARD | {
        "vendor": "Vendor",
        "part_number": "Part",
        "serial": "Serial",
        "media": "Media",
        "length_metres": "Length (m)",
    }
    by = ", ".join(facts)
    blocks = (
        "sum by (node, interface) (rate(railscope_nic_receive_fec_uncorrectable_blocks_total"
        f"{NODES}[$__rate_interval])) and on (node, interface) railscope_nic_transceiver_info{NODES}"
    )
    yield panels.rows(
        301,
        "Transceivers and cables",
        "Installed transceivers and cables.",
        facts,
        panels.Column(
            "Present", ask(f"max by ({by}) (railscope_nic_transceiver_info{NODES})", COUNT)
        ),
        panels.Column(
            "Uncorrected blocks", ask(blocks, EVENTS_PER_SECOND), panels.ANY_IS_BAD, worst="highest"
        ),
        span=24,
    )
    low = 'railscope_nic_transceiver_receive_power_threshold_watts{node=~"$node", threshold="low_alarm"}'
    light = f"min by (node, interface) (railscope_nic_transceiver_receive_power_watts{NODES})"
    yield panels.rows(
        302,
        "Light against the alarm of the transceiver",
        "The worst lane, as a multiple of its alarm threshold.",
        NODE_CARD,
        panels.Column(
            "Times the limit",
            ask(f"bottomk(20, {light} / max by (node, interface) ({low}))", COUNT),
            ((None, "red"), (1, "orange"), (2, "green")),
            worst="lowest",
        ),
        span=8,
    )
    yield panels.lines(
        303,
        "Light received",
        "The weakest lane of each node.",
        ask(
            f"bottomk(10, min by (node) (railscope_nic_transceiver_receive_power_watts{NODES}))",
            legend="{{node}}",
        ),
    )
    yield panels.lines(
        304,
        "Transceiver temperature",
        "The hottest transceiver of each node.",
        ask(
            f"topk(10, max by (node) (railscope_nic_transceiver_temperature_celsius{NODES}))",
            legend="{{node}}",
        ),
    )


def _line() -> Iterator[panels.Panel]:
    yield panels.lines(
        401,
        "Blocks that FEC corrected",
        "Some are normal; growth is not.",
        _events("railscope_nic_receive_fec_corrected_blocks_total", "node"),
    )
    yield panels.lines(
        402,
        "Symbol errors after FEC",
        "None is normal.",
        _events("railscope_nic_receive_uncorrected_symbol_errors_total", "node"),
        steps=panels.ANY_IS_BAD,
    )
    yield panels.bars(
        403,
        "Links that went down",
        "Of NICs, by node.",
        _events("railscope_nic_link_downs_total", "node"),
    )
    speed = f"max by (node, interface) (railscope_network_link_speed_bytes_per_second{NODES})"
    expected = (
        f"max by (node, interface) (railscope_nic_setting_expected_speed_bytes_per_second{NODES})"
    )
    share = f"({speed} < {expected}) / {expected}"
    yield panels.rows(
        404,
        "Below the expected speed",
        "NICs with a link below the expected speed.",
        NODE_CARD,
        panels.Column("Speed", ask(f"{speed} < {expected}")),
        panels.Column("Of the expected", ask(share, SHARE), panels.ALL_IS_GOOD, worst="lowest"),
    )
    settings = f"count by (pfc, trust, mtu, fec) (railscope_nic_settings_info{ON_CARD})"
    yield panels.rows(
        405,
        "Settings of NICs on rails",
        "All should be equal: one row. The rarest settings come first.",
        {"pfc": "PFC", "trust": "Trust", "mtu": "MTU", "fec": "FEC"},
        panels.Column("Cards", ask(settings, COUNT), worst="lowest"),
    )


ON_CARD = '{node=~"$node", pfc!=""}'
SECTIONS = (
    ("", _summary),
    ("Which PCIe path is narrow, slow or faulty?", _pcie),
    ("Do transceivers receive light and stay cool?", _optics),
    ("Is the line itself sound?", _line),
)
