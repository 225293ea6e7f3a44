"""The dashboard of PCIe links, transceivers and cables."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.dashboard_parts import DashboardVariable, assemble, settings_marks
from dashboards.panels import (
    ALL_IS_GOOD,
    ANY_IS_BAD,
    NONE_IS_GOOD,
    STALL,
    Column,
    Panel,
    bars,
    grid,
    lines,
    number,
    rows,
)
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


def _summary() -> Iterator[Panel]:
    yield number(
        101,
        "Paths degraded",
        "Devices with a path to the CPU below its capacity.",
        _paths("degraded"),
        NONE_IS_GOOD,
    )
    yield number(
        102,
        "Paths lost",
        "Devices that left the bus.",
        _paths("lost"),
        NONE_IS_GOOD,
    )
    yield number(103, "Paths saving power", "Slow while idle.", _paths("power_saving"))
    errors = 'railscope_pcie_device_errors_total{node=~"$node", severity!="correctable"}'
    yield number(
        104,
        "PCIe errors, one hour",
        "Uncorrected errors.",
        grown(errors),
        NONE_IS_GOOD,
    )
    yield number(
        105,
        "Transceivers read",
        "Transceivers with readings.",
        ask(f"sum(railscope_nic_transceiver_readable{NODES})"),
    )
    yield number(
        106,
        "Hottest transceiver",
        "Of all NICs.",
        ask(f"max(railscope_nic_transceiver_temperature_celsius{NODES})"),
        ((None, "green"), (70, "orange"), (75, "red")),
    )
    yield number(
        107,
        "Least light received",
        "Of all lanes of all optical transceivers.",
        ask(f"min(railscope_nic_transceiver_receive_power_watts{NODES})"),
    )
    yield number(
        108,
        "Uncorrected blocks",
        "That FEC could not correct, per second.",
        ask(
            "sum(rate(railscope_nic_receive_fec_uncorrectable_blocks_total"
            f"{NODES}[$__rate_interval]))",
            EVENTS_PER_SECOND,
        ),
        ANY_IS_BAD,
    )


def _pcie() -> Iterator[Panel]:
    lost, degraded = (
        f'(max by (node, pci_address) (railscope_pcie_path_state{{node=~"$node", state="{state}"}})'
        " == 1)"
        for state in ("lost", "degraded")
    )
    yield rows(
        201,
        "Degraded paths",
        "With their capacity.",
        NODE_DEVICE,
        Column(
            "Is",
            ask(f"{lost} * 2 or {degraded}", COUNT),
            NONE_IS_GOOD,
            {1: "degraded", 2: "lost"},
            "highest",
        ),
    )
    share = (
        "max by (node, pci_address) (railscope_pcie_path_bandwidth_bytes_per_second{0}) / "
        "max by (node, pci_address) (railscope_pcie_path_limit_bytes_per_second{0})"
    )
    yield rows(
        202,
        "Narrowest paths",
        "The ten worst of the degraded ones.",
        NODE_DEVICE,
        Column(
            "Share of what it could",
            ask(f"bottomk(10, {share.replace('{0}', NODES)} < 1)", "percentunit"),
            worst="lowest",
        ),
    )
    yield bars(
        203,
        "Errors by severity",
        "As the devices report them (AER).",
        ask(
            f"sum by (severity) (railscope:node_pcie_device_errors:rate5m{NODES})",
            EVENTS_PER_SECOND,
            "{{severity}}",
        ),
    )
    yield lines(
        204,
        "Replays of GPUs",
        "Packets repeated because of a bad signal, by node.",
        _events("railscope_gpu_pcie_replays_total", "node"),
        steps=ANY_IS_BAD,
    )
    yield lines(
        205,
        "Signal errors of NICs",
        "Corrected; they indicate a bad contact.",
        _events("railscope_nic_pcie_receive_signal_errors_total", "node"),
    )
    yield grid(
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
        steps=STALL,
    )
    yield rows(
        207,
        "GPU links",
        "The narrowest link of each node's GPUs, from the driver.",
        {"node": "Node"},
        Column(
            "Generation",
            ask(f"min by (node) (railscope_gpu_pcie_link_generation{NODES})"),
            worst="lowest",
        ),
        Column(
            "Lanes",
            ask(f"min by (node) (railscope_gpu_pcie_link_width_lanes{NODES})"),
            worst="lowest",
        ),
    )


def _optics() -> Iterator[Panel]:
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
    yield rows(
        301,
        "Transceivers and cables",
        "Installed transceivers and cables.",
        facts,
        Column("Present", ask(f"max by ({by}) (railscope_nic_transceiver_info{NODES})", COUNT)),
        Column("Uncorrected blocks", ask(blocks, EVENTS_PER_SECOND), ANY_IS_BAD, worst="highest"),
        span=24,
    )
    low = 'railscope_nic_transceiver_receive_power_threshold_watts{node=~"$node", threshold="low_alarm"}'
    light = f"min by (node, interface) (railscope_nic_transceiver_receive_power_watts{NODES})"
    yield rows(
        302,
        "Light against the alarm of the transceiver",
        "The worst lane, as a multiple of its alarm threshold.",
        NODE_CARD,
        Column(
            "Times the limit",
            ask(f"bottomk(20, {light} / max by (node, interface) ({low}))", COUNT),
            ((None, "red"), (1, "orange"), (2, "green")),
            worst="lowest",
        ),
        span=8,
    )
    yield lines(
        303,
        "Light received",
        "The weakest lane of each node.",
        ask(
            f"bottomk(10, min by (node) (railscope_nic_transceiver_receive_power_watts{NODES}))",
            legend="{{node}}",
        ),
    )
    yield lines(
        304,
        "Transceiver temperature",
        "The hottest transceiver of each node.",
        ask(
            f"topk(10, max by (node) (railscope_nic_transceiver_temperature_celsius{NODES}))",
            legend="{{node}}",
        ),
    )


def _line() -> Iterator[Panel]:
    yield lines(
        401,
        "Blocks that FEC corrected",
        "Some are normal; growth is not.",
        _events("railscope_nic_receive_fec_corrected_blocks_total", "node"),
    )
    yield lines(
        402,
        "Symbol errors after FEC",
        "None is normal.",
        _events("railscope_nic_receive_uncorrected_symbol_errors_total", "node"),
        steps=ANY_IS_BAD,
    )
    yield bars(
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
    yield rows(
        404,
        "Below the expected speed",
        "NICs with a link below the expected speed.",
        NODE_CARD,
        Column("Speed", ask(f"{speed} < {expected}")),
        Column("Of the expected", ask(share, SHARE), ALL_IS_GOOD, worst="lowest"),
    )
    settings = f"count by (pfc, trust, mtu, fec) (railscope_nic_settings_info{ON_CARD})"
    yield rows(
        405,
        "Settings of NICs on rails",
        "All should be equal: one row. The rarest settings come first.",
        {"pfc": "PFC", "trust": "Trust", "mtu": "MTU", "fec": "FEC"},
        Column("Cards", ask(settings, COUNT), worst="lowest"),
    )


ON_CARD = '{node=~"$node", pfc!=""}'
SECTIONS = (
    ("", _summary),
    ("Which PCIe path is narrow, slow or faulty?", _pcie),
    ("Do transceivers receive light and stay cool?", _optics),
    ("Is the line itself sound?", _line),
)
