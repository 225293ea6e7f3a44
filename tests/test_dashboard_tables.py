"""The tables of dashboards: their order, and the names of devices in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.dashboards import TABLES
from support.each import of_each
from support.promtool import QueryCase, evaluate

from railscope_dashboards.promql import labels_in, metric_named, metrics_in
from railscope_dashboards.query import build_query, joins_for, with_device_names

EACH_TABLE = of_each((param.values[0] for param in TABLES), lambda panel: str(panel["title"]))


@EACH_TABLE
def test_a_table_shows_its_worst_rows_first(panel: dict[str, Any]):
    """By columns of values, from the end at which their colours mean a problem."""
    by = panel["options"]["sortBy"]
    assert by
    steps = {step["id"]: step["options"] for step in panel["transformations"]}
    if "groupingToMatrix" in steps:
        titles = {steps["calculateField"]["alias"]}
        reducer = steps["calculateField"]["reduce"]["reducer"]
        assert reducer == ("max" if by[0]["desc"] else "min")
    else:
        names = steps["organize"]["renameByName"]
        titles = {title for name, title in names.items() if name.startswith("Value")}
    assert {one["displayName"] for one in by} <= titles
    for one in by:
        for override in panel["fieldConfig"]["overrides"]:
            if override["matcher"] in (
                {"id": "byName", "options": one["displayName"]},
                {"id": "byType", "options": "number"},
            ):
                check_direction(override["properties"], descending=one["desc"])


def check_direction(properties: list[dict[str, Any]], *, descending: bool) -> None:
    """A table begins at the end whose colour is red or orange."""
    for one in properties:
        if one["id"] == "thresholds" and len(one["value"]["steps"]) > 1:
            first, *_, last = (step["color"] for step in one["value"]["steps"])
            assert (last if descending else first) in {"red", "orange"}
            assert first != "green" or descending


GPU_NAMES = {"index", "gpu", "pci_address"}
NIC_NAMES = {"interface", "device", "rail"}


def missing_names(keys: set[str], about: frozenset[str]) -> set[str]:
    """Names that a table lacks whose keys are these, and whose values are of such entities."""
    keys = {"device" if key == "rdma_device" else key for key in keys}
    missing = set()
    if keys & GPU_NAMES:
        missing |= GPU_NAMES - keys
    if keys & {"interface", "device"} or ({"node", "rail"} <= keys and "gpu" not in keys):
        missing |= NIC_NAMES - keys
    if "pci_address" in keys and about & {"pcie", "pcie_error", "pcie_aer"}:
        missing |= NIC_NAMES - keys
    return missing


@EACH_TABLE
def test_a_table_has_all_names_of_gpus_and_nics(panel: dict[str, Any]):
    """A tenant sees only the names that its own metrics have; the rows of a grid are nodes.

    The device of an incident is a GPU, a NIC, or neither; its title names it.
    """
    steps = {step["id"]: step["options"] for step in panel["transformations"]}
    if all('tenant="$tenant"' in target["expr"] for target in panel["targets"]):
        return
    if "groupingToMatrix" in steps:
        assert steps["groupingToMatrix"]["rowField"] == "node"
        return
    keys = {name for name in steps["organize"]["renameByName"] if not name.startswith("Value")}
    if "title" in keys:
        assert "device" not in keys or {"rail", "gpu", "pci_address"} <= keys
        return
    shown = (metric_named(n) for t in panel["targets"] for n in metrics_in(t["expr"]))
    about = frozenset(metric.about.name for metric in shown if metric)
    assert missing_names(keys, about) == set()
    assert keys <= frozenset().union(*(labels_in(target["expr"]) for target in panel["targets"]))


def named(keys: str, *, series: str) -> str:
    """Query for the values of a metric, as in a table with these key labels."""
    ways = joins_for(dict.fromkeys(keys.split(), ""))
    values = build_query(f"max by ({', '.join(keys.split())}) ({series})")
    return with_device_names(values, *ways).expression


GPU_OF_N1 = 'railscope_gpu_info{node="n1", gpu="GPU-1", index="4", pci_address="0:3b"}'
NIC_OF_N1 = 'railscope_nic_info{node="n1", interface="eth3", rdma_device="mlx5_3", rail="3", pci_address="0:5e"}'
PORT_OF_N1 = 'railscope_rdma_port_info{node="n1", device="mlx5_3", port="1", interface="eth3", rail="3", pci_address="0:5e"}'
PATH = "railscope_pcie_path_limit_bytes_per_second"


ROWS = [
    (
        "node gpu", 'railscope_gpu_power_watts{node="n1", gpu="GPU-1"}', [GPU_OF_N1],
        '{node="n1", gpu="GPU-1", index="4", pci_address="0:3b"}',
    ),
    (
        "node pci_address xid", 'railscope_gpu_xid_errors_total{node="n1", pci_address="0:3b", xid="48"}',
        [GPU_OF_N1], '{node="n1", pci_address="0:3b", xid="48", gpu="GPU-1", index="4"}',
    ),
    (  # two scrapes of the same names, and another name of the same device
        "node gpu", 'railscope_gpu_power_watts{node="n1", gpu="GPU-1"}',
        [GPU_OF_N1, GPU_OF_N1.replace("{", '{instance="b", ')],
        '{node="n1", gpu="GPU-1", index="4", pci_address="0:3b"}',
    ),
    (
        "node interface", 'railscope_network_link_up{node="n1", interface="eth3"}', [NIC_OF_N1],
        '{node="n1", interface="eth3", rdma_device="mlx5_3", rail="3"}',
    ),
    (
        "node device port", 'railscope_rdma_port_up{node="n1", device="mlx5_3", port="1"}',
        [PORT_OF_N1],
        '{node="n1", device="mlx5_3", port="1", interface="eth3", rail="3"}',
    ),
    (
        "node pci_address", f'{PATH}{{node="n1", pci_address="0:3b"}}', [GPU_OF_N1],
        '{node="n1", pci_address="0:3b", gpu="GPU-1", index="4"}',
    ),
    (  # a virtual function at the same address
        "node pci_address", f'{PATH}{{node="n1", pci_address="0:5e"}}',
        ['railscope_nic_info{node="n1", interface="eth0v1", pci_address="0:5e"}', NIC_OF_N1, PORT_OF_N1],
        '{node="n1", pci_address="0:5e", interface="eth3", rdma_device="mlx5_3", rail="3"}',
    ),
    (  # InfiniBand without an interface
        "node pci_address", f'{PATH}{{node="n1", pci_address="0:5e"}}',
        [PORT_OF_N1.replace('interface="eth3", ', "")],
        '{node="n1", pci_address="0:5e", rdma_device="mlx5_3", rail="3"}',
    ),
]  # fmt: skip


def test_a_row_has_the_names_of_its_device(tmp_path: Path):
    """The row of a node without these names has its own keys alone."""
    cases = []
    for keys, series, infos, shown in ROWS:
        name, labels = series.split("{")
        elsewhere = "{" + labels.replace('"n1"', '"n2"')
        values = {series: "7x9", name + elsewhere: "8x9"} | dict.fromkeys(infos, "1x9")
        expected = [(named(keys, series=name), {shown: 7, elsewhere: 8})]
        cases.append(QueryCase(values, expected, minutes=5))
    evaluate(tmp_path, *cases)
