"""The dashboard of PCIe links, transceivers and cables."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query

ON_RAIL = '{node=~"$node", rail!=""}'
WITH_SETTINGS = '{node=~"$node", pfc!=""}'
NODE_NIC = {"node": "Node", "interface": "Interface"}
NODE_DEVICE = {"node": "Node", "pci_address": "PCI address"}


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return dashboard_parts.assemble(
        "PCIe and optics",
        "railscope-links",
        "Is every PCIe link as wide and fast as expected, and does every cable carry light?",
        SECTIONS,
        console="/nodes",
        choices=(
            dashboard_parts.DashboardVariable(
                "node", "Node", "railscope_node_info", allows_several=True
            ),
        ),
        marks=(dashboard_parts.settings_marks(query.NODES),),
        tags=("pcie", "optics"),
    )


def _paths(state: str) -> query.Query:
    return query.in_state("railscope_pcie_path_state", query.NODES, f'state="{state}"')


def _transceivers(aggregation: str, name: str) -> query.Query:
    return query.build_query(f"{aggregation}(railscope_nic_transceiver_{name}{query.NODES})")


def _summary() -> Iterator[panels.Panel]:
    errors = 'railscope_pcie_all_devices_errors_total{node=~"$node", severity!="correctable"}'
    blocks = (
        f"rate(railscope_nic_receive_fec_uncorrectable_blocks_total{query.NODES}[$__rate_interval])"
    )
    hot: panels.Steps = ((None, "green"), (70, "orange"), (75, "red"))
    yield from (
        panels.number(101, "Paths degraded", "Devices with a path to the CPU below its capacity.", _paths("degraded"), panels.NONE_IS_GOOD),
        panels.number(102, "Paths lost", "Devices that left the bus.", _paths("lost"), panels.NONE_IS_GOOD),
        panels.number(103, "Paths saving power", "Slow while idle.", _paths("power_saving")),
        panels.number(104, "PCIe errors, one hour", "Uncorrected errors.", query.count_increase(errors), panels.NONE_IS_GOOD),
        panels.number(105, "Transceivers read", "Transceivers with readings.", _transceivers("sum", "readable")),
        panels.number(106, "Hottest transceiver", "Highest transceiver temperature of all NICs.", _transceivers("max", "temperature_celsius"), hot),
        panels.number(107, "Least light received", "Lowest receive power of any lane of an optical transceiver.", _transceivers("min", "receive_power_watts")),
        panels.number(108, "Uncorrected blocks", "That FEC could not correct, per second.", query.build_query(f"sum({blocks})", query.EVENTS_PER_SECOND), panels.ANY_IS_BAD),
    )  # fmt: skip


def _pcie() -> Iterator[panels.Panel]:
    lost, degraded = (
        f'(max by (node, pci_address) (railscope_pcie_path_state{{node=~"$node", state="{state}"}})'
        " == 1)"
        for state in ("lost", "degraded")
    )
    state = query.build_query(f"{lost} * 2 or {degraded}", query.COUNT)
    states = {1: "degraded", 2: "lost"}
    bandwidth, limit = (
        f"max by (node, pci_address) (railscope_pcie_path_{name}_bytes_per_second{query.NODES})"
        for name in ("bandwidth", "limit")
    )
    narrowest = query.build_query(f"bottomk(10, {bandwidth} / {limit} < 1)", "percentunit")
    rate = f"rate(railscope_pcie_all_devices_errors_total{query.NODES}[$__rate_interval])"
    errors = f"sum by (severity) ({rate})"
    stall = query.with_rail(f"railscope_nic_pcie_write_stall_ratio{query.NODES}", ON_RAIL)
    generation, lanes = (
        query.build_query(f"min by (node) (railscope_gpu_pcie_link_{name}{query.NODES})")
        for name in ("generation", "width_lanes")
    )
    yield from (
        panels.rows(201, "Degraded paths", "With their capacity.", NODE_DEVICE, panels.Column("State", state, panels.NONE_IS_GOOD, states, "highest")),
        panels.rows(202, "Narrowest paths", "The ten worst of the degraded ones.", NODE_DEVICE, panels.Column("Share of capacity", narrowest, worst="lowest")),
        panels.bars(203, "Errors by severity", "Errors that the devices report (AER), by severity.", query.build_query(errors, query.EVENTS_PER_SECOND, "{{severity}}")),
        panels.lines(204, "Replays of GPUs", "Packets repeated because of a bad signal, by node.", query.highest_rates("gpu_pcie_replays"), steps=panels.ANY_IS_BAD),
        panels.lines(205, "Signal errors of NICs", "Corrected; they indicate a bad contact.", query.highest_rates("nic_pcie_receive_signal_errors")),
        panels.grid(206, "Write stall, node by rail", "Share of time in which a NIC waited for memory, and pauses the switch.", "rail", query.build_query(f"max by (node, rail) ({stall})"), panels.STALL),
        panels.rows(207, "GPU links", "The narrowest link of each node's GPUs, from the driver.", {"node": "Node"},
                    panels.Column("Generation", generation, worst="lowest"), panels.Column("Lanes", lanes, worst="lowest")),
    )  # fmt: skip


def _optics() -> Iterator[panels.Panel]:
    facts = NODE_NIC | {
        "vendor": "Vendor",
        "part_number": "Part",
        "serial": "Serial",
        "media": "Media",
        "length_metres": "Length (m)",
    }
    by = ", ".join(facts)
    present = query.build_query(
        f"max by ({by}) (railscope_nic_transceiver_info{query.NODES})", query.COUNT
    )
    blocks = (
        "sum by (node, interface) (rate(railscope_nic_receive_fec_uncorrectable_blocks_total"
        f"{query.NODES}[$__rate_interval])) and on (node, interface) railscope_nic_transceiver_info{query.NODES}"
    )
    uncorrected = query.build_query(blocks, query.EVENTS_PER_SECOND)
    yield panels.rows(
        301,
        "Transceivers and cables",
        "Installed transceivers and cables.",
        facts,
        panels.Column("Present", present),
        panels.Column("Uncorrected blocks", uncorrected, panels.ANY_IS_BAD, worst="highest"),
        span=24,
    )
    low = 'railscope_nic_transceiver_receive_power_threshold_watts{node=~"$node", threshold="low_alarm"}'
    power = f"railscope_nic_transceiver_receive_power_watts{query.NODES}"
    multiple = f"min by (node, interface) ({power}) / max by (node, interface) ({low})"
    yield panels.rows(
        302,
        "Light against the alarm of the transceiver",
        "The worst lane, as a multiple of its alarm threshold.",
        NODE_NIC,
        panels.Column(
            "Times the limit",
            query.build_query(f"bottomk(20, {multiple})", query.COUNT),
            ((None, "red"), (1, "orange"), (2, "green")),
            worst="lowest",
        ),
        span=8,
    )
    light = f"bottomk(10, min by (node) ({power}))"
    heat = f"topk(10, max by (node) (railscope_nic_transceiver_temperature_celsius{query.NODES}))"
    yield from (
        panels.lines(303, "Light received", "The weakest lane of each node.", query.build_query(light, legend="{{node}}")),
        panels.lines(304, "Transceiver temperature", "The hottest transceiver of each node.", query.build_query(heat, legend="{{node}}")),
    )  # fmt: skip


def _line() -> Iterator[panels.Panel]:
    yield from (
        panels.lines(401, "Blocks that FEC corrected", "Some are normal; growth is not.", query.highest_rates("nic_receive_fec_corrected_blocks")),
        panels.lines(402, "Symbol errors after FEC", "None is normal.", query.highest_rates("nic_receive_uncorrected_symbol_errors"), steps=panels.ANY_IS_BAD),
        panels.bars(403, "Links that went down", "Links of NICs that went down, by node.", query.highest_rates("nic_link_downs")),
    )  # fmt: skip
    speed, expected = (
        f"max by (node, interface) (railscope_{name}_speed_bytes_per_second{query.NODES})"
        for name in ("network_link", "nic_setting_expected")
    )
    share = query.build_query(f"({speed} < {expected}) / {expected}", query.SHARE)
    yield panels.rows(
        404,
        "Below the expected speed",
        "NICs with a link below the expected speed.",
        NODE_NIC,
        panels.Column("Speed", query.build_query(f"{speed} < {expected}")),
        panels.Column("Share of expected", share, panels.ALL_IS_GOOD, worst="lowest"),
    )
    settings = f"count by (pfc, trust, mtu, fec) (railscope_nic_settings_info{WITH_SETTINGS})"
    yield panels.rows(
        405,
        "Settings of NICs on rails",
        "All should be equal: one row. The rarest settings come first.",
        {"pfc": "PFC", "trust": "Trust", "mtu": "MTU", "fec": "FEC"},
        panels.Column("NICs", query.build_query(settings, query.COUNT), worst="lowest"),
    )


SECTIONS = (
    ("", _summary),
    ("Which PCIe path is narrow, slow or faulty?", _pcie),
    ("Do transceivers receive light and stay cool?", _optics),
    ("Is the transmission error-free?", _line),
)
