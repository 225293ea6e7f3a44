"""Recordings of real hardware through `railscope diagnose`: what it reports, and what it cannot (bench/README.md)."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path

import pytest
from support.command_line import run
from support.port_traffic import SERVERS, CapturedPort, ports, traffic_capture
from support.shared import capture_path

from railscope.capture import Capture, CaptureMetadata, CaptureMoment

SECOND_NS = 1_000_000_000
START_NS = 1_760_000_000 * SECOND_NS
STEP_MS = 10_000


def metadata(node: str, seconds: int) -> CaptureMetadata:
    return CaptureMetadata(
        node=node,
        boot_id="11111111-2222-3333-4444-555555555555",
        started_wall_ns=START_NS,
        started_boot_ns=0,
        duration_ns=seconds * SECOND_NS,
        origin="recordings of real hardware",
    )


def diagnose(directory: Path) -> list[dict[str, object]]:
    outcome = run("diagnose", "--captures", str(directory), "--format", "json")
    assert outcome.exit_code == 0, outcome.output
    return [json.loads(line) for line in outcome.stdout.splitlines()]


# Ports of a production cluster --------------------------------------------------------------------


def every_ten_seconds(port: CapturedPort) -> CapturedPort:
    """Return a port with the sums of its rows in steps of ten seconds."""
    sums: dict[int, tuple[int, ...]] = defaultdict(lambda: (0, 0, 0, 0))
    for at_ms, row in port.rows.items():
        step = -(-at_ms // STEP_MS) * STEP_MS
        sums[step] = tuple(a + b for a, b in zip(sums[step], row, strict=True))
    port.rows = dict(sums)
    return port


@pytest.mark.thorough
def test_an_hour_of_a_production_cluster_has_no_incident(tmp_path: Path) -> None:
    """Two busy servers, one idle one, bursts up to the line rate, and a gap of the recording of four minutes."""
    for server in SERVERS:
        nics = [every_ten_seconds(port) for port in ports(server)]
        traffic_capture(server, nics).write(tmp_path / server)
    assert diagnose(tmp_path) == []


# Injected faults of RDMA --------------------------------------------------------------------------

ROOT = "/sys/class/infiniband/mlx5_0"
LINK_COUNTERS = {
    "port_rcv_errors",
    "local_link_integrity_errors",
    "link_error_recovery",
    "link_downed",
}


def rdma_moment(second: int, counters: dict[str, str], statistics: dict[str, int]) -> CaptureMoment:
    """Return a moment of a node with one NIC."""
    moment = CaptureMoment(second * SECOND_NS)
    for name, value in counters.items():
        directory = "counters" if name in LINK_COUNTERS else "hw_counters"
        moment.files[f"{ROOT}/ports/1/{directory}/{name}"] = value
    if statistics:
        moment.calls["ethtool.statistics(eth0)"] = {
            "names": list(statistics),
            "values": list(statistics.values()),
        }
    if second == 0:
        moment.names |= {
            "/sys/class/net": ["eth0"],
            "/sys/class/infiniband": ["mlx5_0"],
            f"{ROOT}/ports": ["1"],
            f"{ROOT}/ports/1/hw_counters": [n for n in counters if n not in LINK_COUNTERS],
            f"{ROOT}/ports/1/counters": [n for n in counters if n in LINK_COUNTERS],
        }
        for path in (ROOT, "/sys/class/net/eth0"):
            moment.links[f"{path}/device"] = "/sys/devices/pci0000:00/0000:01:00.0"
        moment.files[f"{ROOT}/ports/1/state"] = "4: ACTIVE"
        moment.files[f"{ROOT}/ports/1/rate"] = "100 Gb/sec (4X EDR)"
        moment.calls["ethtool.driver(eth0)"] = {
            "driver": "mlx5_core", "version": "", "firmware": "", "bus": "0000:01:00.0",
        }  # fmt: skip
    return moment


@pytest.mark.parametrize(
    "file",
    [
        "RETRY_EXC_LINK_DOWN.csv",
        pytest.param("ethtool_RETRY_EXC_QP_ERR.csv", marks=pytest.mark.thorough),
    ],
)
def test_injected_errors_of_single_connections_raise_nothing(file: str, tmp_path: Path) -> None:
    """Each trial breaks one idle connection: a handful of packets, no pause, and the links stay up."""
    lines = capture_path(f"ethtool/rdma-fault/{file}").read_text().splitlines()
    sides: dict[str, list[list[dict[str, str]]]] = defaultdict(lambda: [[]])
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        trials = sides[row["side"]]
        if any(row["counter"] == earlier["counter"] for earlier in trials[-1]):
            trials.append([])
        trials[-1].append(row)
    for side, trials in sides.items():
        moments = []
        for number, trial in enumerate(trials):
            for step in range(12):
                values = {r["counter"]: r["before" if step < 6 else "after"] for r in trial}
                second = 120 * number + 10 * step
                if file.startswith("ethtool"):
                    statistics = {name: int(value) for name, value in values.items()}
                    moments.append(rdma_moment(second, {}, statistics))
                else:
                    moments.append(rdma_moment(second, values, {}))
        Capture(metadata(side, 120 * len(trials)), tuple(moments)).write(tmp_path / side)
    assert diagnose(tmp_path) == []


@pytest.mark.thorough
def test_timeouts_of_a_broken_connection_raise_nothing(tmp_path: Path) -> None:
    """Five trials with some ten retransmissions each: the connection ends after four seconds."""
    lines = capture_path("ethtool/rdma-fault/timeline_20260517_230941.csv").read_text().splitlines()
    changes: dict[int, dict[str, str]] = defaultdict(dict)
    first: dict[str, str] = {}
    for row in csv.reader(line for line in lines if not line.startswith("#")):
        trial, name, offset_us, old, new, _ = row
        if name.islower():
            first.setdefault(name, old)
            changes[60 + 60 * int(trial) + int(offset_us) // 1_000_000][name] = new
    seconds, values = 420, dict(first)
    moments = []
    for second in range(seconds):
        values |= changes[second]
        moments.append(rdma_moment(second, values, {}))
    Capture(metadata("client", seconds), tuple(moments)).write(tmp_path / "client")
    assert diagnose(tmp_path) == []


# Kernel logs --------------------------------------------------------------------------------------

LOGS: dict[str, set[str]] = {
    "dmesg_dmesg.decode.iso.log.0": set(),
    "dmesg_dmesg-time-format-iso.log": {"ecc_uncorrectable"},
    "nccl_dmesg.decode.iso.log": set(),
    "kmsg_kmsg.1.log": set(),
    "kmsg_kmsg.2.peermem.log": set(),
    "dmesg_journalctl-time-format-short-iso-2.log": set(),
    "azure-1dev_6flap_syslog": set(),
    "query_log_tail_fabric-manager.0.log": set(),
}
"""Classes of the incidents of each log."""


def log_capture(node: str, lines: list[str]) -> Capture:
    moments = [CaptureMoment(second * SECOND_NS) for second in range(0, 300, 10)]
    moments[12].log.extend(lines)
    return Capture(metadata(node, 300), tuple(moments))


def test_kernel_logs_of_real_nodes(tmp_path: Path) -> None:
    for name in LOGS:
        lines = capture_path(f"kernel-log/{name}").read_text(errors="replace").splitlines()
        log_capture(name, lines).write(tmp_path / name)
    found: dict[str, set[str]] = {name: set() for name in LOGS}
    for incident in diagnose(tmp_path):
        cause = incident["cause"]
        assert isinstance(cause, dict)
        assert cause["kind"] == "gpu"
        if not incident["explained_by"]:
            found[cause["node"]].add(str(incident["class"]))
    assert found == LOGS


@pytest.mark.thorough
def test_quoted_xids_have_the_classes_of_their_errors(tmp_path: Path) -> None:
    table = capture_path("kernel-log/xid-sxid-lines.tsv").read_text().splitlines()
    head, *rows = (line.split("\t") for line in table)
    by_code: dict[str, list[str]] = defaultdict(list)
    for row in (dict(zip(head, each, strict=True)) for each in rows):
        if row["kind"] == "Xid" and row["class"] == "quoted":
            by_code[row["code"]].append(row["line"])
    for code, lines in by_code.items():
        log_capture(f"xid-{code}", lines).write(tmp_path / code)
    # Errors of programs, and errors of NVLink 5 that are not fatal: no fault of hardware.
    assert {"13", "32", "145"} <= set(by_code)
    found = set()
    for incident in diagnose(tmp_path):
        cause = incident["cause"]
        assert isinstance(cause, dict)
        found.add((cause["node"], incident["class"]))
    assert found == {
        ("xid-79", "gpu_lost"),
        ("xid-94", "ecc_uncorrectable"),
        ("xid-149", "nvlink_errors"),
        ("xid-154", "xid_event"),
    }
