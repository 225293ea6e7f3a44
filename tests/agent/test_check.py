"""`agent check`: supported, denied, absent and broken sources, remedies, and the exit status."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner
from support import pci_bus
from support.clock import START
from support.collector import ScriptedCollector
from support.gpus import add_gpus
from support.machine import DENIED, FakeHost
from support.metering import MIB, FakeMeter
from support.pci_bus import CONNECTX7, ETHERNET, MELLANOX, add_device
from support.rdma_nics import INFINIBAND, add_nic
from support.shared import capture_path
from support.shipping import link_to
from support.tree import make_tree

from railscope_agent.commands import agent
from railscope_agent.commands.check import check, read_twice
from railscope_agent.config import AgentSettings, BudgetSettings
from railscope_agent.host import NvmlError
from railscope_agent.service import Agent

BOOT_US = START.boot_ns // 1000
COUNT = "nvml.nvmlDeviceGetCount()"
COUNTER = f"{INFINIBAND}/mlx5_0/ports/1/counters/port_xmit_packets"


def healthy_host() -> FakeHost:
    """Return a host with two GPUs, an RDMA device and a NIC, all healthy."""
    host = FakeHost()
    add_gpus(host, 2)
    add_nic(host)
    host.files["/sys/class/net/eth0/carrier"] = "1"
    host.files["/sys/devices/pci0000:3a/0000:3b:00.0/vendor"] = "0x15b3"
    host.links["/sys/class/net/eth0/device"] = "/sys/devices/pci0000:3a/0000:3b:00.0"
    host.calls["ethtool.driver(eth0)"] = {
        "driver": "mlx5_core", "version": "", "firmware": "28.39", "bus": "",
    }  # fmt: skip
    host.calls["ethtool.statistics(eth0)"] = {"names": ["rx_bytes_phy"], "values": [1]}
    host.calls["lldp.neighbours()"] = {"eth0": {"chassis": "leaf", "port": "1", "ttl_seconds": 120}}
    return host


async def run_check(host: FakeHost, **settings: object) -> tuple[bool, list[str]]:
    """Return the result of the check and its lines."""
    lines: list[str] = []
    agent = Agent(AgentSettings(**settings), host, "node-1")  # type: ignore[arg-type]  # as in a file
    return await check(agent, lines.append), lines


def line(lines: list[str], start: str) -> str:
    """Return the only line that starts with a text, with its remedy if it has one."""
    (place,) = [number for number, text in enumerate(lines) if text.startswith(start)]
    following = lines[place + 1 : place + 2]
    return " ".join([lines[place], *[f for f in following if f.lstrip().startswith("->")]])


async def test_nics_in_other_network_namespaces_are_counted() -> None:
    host = healthy_host()
    address = add_device(host, "pci0000:60/0000:61:00.0", ETHERNET, (MELLANOX, CONNECTX7))
    well, lines = await run_check(host)
    assert well
    assert f"1 NIC has no interface in this network namespace: {address}" in line(
        lines, "absent  network namespace"
    )


async def test_a_healthy_server() -> None:
    well, lines = await run_check(healthy_host())
    assert well, lines
    assert lines[0].startswith("Railscope agent ")
    assert lines[0].endswith(" on node node-1")
    assert "2 of 2 GPUs, driver 590.48.01" in line(lines, "ok      GPUs")
    assert "1 device, 1 port, 1 counter file" in line(lines, "ok      RDMA devices")
    assert "driver mlx5_core, 1 typed" in line(lines, "ok      statistics of eth0")
    assert "no frames are shipped" in line(lines, "absent  collector")
    assert not any(text.startswith(("DENIED", "BROKEN")) for text in lines)


async def test_control_characters_of_hardware_add_no_line_and_no_escape_sequence() -> None:
    host = healthy_host()
    host.calls["ethtool.driver(eth0)"]["driver"] = "\x1b[2J\nok      fake: line\u202e"
    _, lines = await run_check(host)
    assert "".join(lines).isprintable()
    assert r"driver \x1b[2J\nok      fake: line\u202e" in line(lines, "absent  statistics of eth0")


async def test_an_empty_server_lacks_things_and_is_well() -> None:
    well, lines = await run_check(FakeHost())
    assert well, lines
    assert "NVIDIA driver library libnvidia-ml.so.1 is not installed" in line(lines, "absent  GPUs")
    assert "contains no device" in line(lines, "absent  RDMA devices")
    assert "contains no GPU, NIC or drive" in line(lines, "absent  PCIe devices")
    assert "/proc does not exist" in line(lines, "absent  host")


async def test_a_denied_source_is_reported_with_its_remedy() -> None:
    host = healthy_host()
    host.calls[COUNT] = NvmlError(4, "Insufficient Permissions")
    host.calls["ethtool.driver(eth0)"] = DENIED
    host.files[COUNTER] = DENIED
    host.log.closed = DENIED
    well, lines = await run_check(host)
    assert not well
    assert "-> run the agent as root, or grant it access to /dev/nvidia*" in line(
        lines, "DENIED  NVML:"
    )
    assert "-> allow the agent the ioctl SIOCETHTOOL" in line(lines, "DENIED  statistics of eth0")
    assert "or with CAP_SYSLOG" in line(lines, "DENIED  kernel log")
    assert "railscope_rdma_transmit_packets_total" in line(lines, "DENIED  rdma")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(9, "-> load the nvidia kernel module"), (18, "-> the driver was updated without a reload")],
)
async def test_a_driver_that_does_not_work_is_broken(code: int, remedy: str) -> None:
    host = healthy_host()
    host.calls[COUNT] = NvmlError(code, "NVML message")
    well, lines = await run_check(host)
    assert not well
    report = line(lines, "BROKEN  NVML:")
    assert f"NVML error {code}: NVML message" in report
    assert remedy in report


async def test_each_unhealthy_gpu_is_reported_with_reason_and_remedy() -> None:
    host = healthy_host()
    host.calls["nvml.nvmlDeviceGetRemappedRows(1)"] = [0, 1, 1, 0]
    host.log.waiting.append(f"4,1,{BOOT_US},-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=python3")
    well, lines = await run_check(host)
    assert not well
    assert line(lines, "ok      health of GPUs").endswith(
        "2 GPUs by 36 rules: 1 degraded, 1 failed"
    )
    assert line(lines, "BROKEN  GPU GPU-0") == (
        "BROKEN  GPU GPU-0 (index 0, 0000:01:00.0): failed: xid_fatal (Xid 79 GPU_HAS_FALLEN_OFF_THE_BUS: The GPU cannot"
        " be reached over PCIe.); actions: drain, reboot (NVIDIA: RESTART_BM)"
    )
    assert line(lines, "BROKEN  GPU GPU-1") == (
        "BROKEN  GPU GPU-1 (index 1, 0000:02:00.0): degraded: row_remap_pending (a row of memory is pending replacement;"
        " running jobs are not affected); actions: reset_gpu (NVIDIA: RESET_GPU)"
    )


async def test_an_unknown_gpu_is_reported_and_its_sources_decide_the_result() -> None:
    host = healthy_host()
    host.calls["nvml.nvmlDeviceGetMaxPcieLinkWidth(0)"] = NvmlError(999, "unknown")
    _, lines = await run_check(host)
    report = "unknown: cannot be judged: pcie_width (error)"
    assert (
        line(lines, "absent  GPU GPU-0") == f"absent  GPU GPU-0 (index 0, 0000:01:00.0): {report}"
    )
    assert "1 unknown, 1 healthy" in line(lines, "ok      health of GPUs")
    assert not any(text.startswith(("absent  GPU GPU-1", "BROKEN  GPU GPU-")) for text in lines)


async def test_nonsense_in_a_counter_file_is_broken() -> None:
    host = healthy_host()
    host.files[COUNTER] = "garbage"
    well, lines = await run_check(host)
    assert not well
    assert "1 reading error: railscope_rdma_transmit_packets_total" in line(lines, "BROKEN  rdma")


HW_COUNTERS = f"{INFINIBAND}/mlx5_0/ports/1/hw_counters"


async def run_check_twice(host: FakeHost, later: dict[str, str]) -> tuple[bool, list[str]]:
    """Check with two reads, with other contents of files at the second one."""
    lines: list[str] = []
    node_agent = Agent(AgentSettings(), host, "node-1")
    checking = asyncio.ensure_future(
        check(node_agent, lines.append, partial(read_twice, seconds=10))
    )
    await host.clock.asleep(1)
    host.files |= later
    host.clock.advance(10)
    return await checking, lines


@pytest.mark.parametrize("trial", range(3))
async def test_totals_of_a_real_server_after_faults_are_not_faults_of_now(trial: int) -> None:
    """ConnectX-5 with 12821 acknowledgement timeouts and 16730 adaptive retransmissions since boot."""
    trials = capture_path("ethtool/rdma-fault/RETRY_EXC_LINK_DOWN.csv").read_text().split("# ")
    rows = [row.split(",") for row in trials[trial + 1].splitlines() if row.startswith("client,")]
    host = healthy_host()
    host.files |= {f"{HW_COUNTERS}/{name}": before for _, name, before, *_ in rows}
    later = {f"{HW_COUNTERS}/{name}": after for _, name, _, after, _ in rows}
    assert host.files[f"{HW_COUNTERS}/local_ack_timeout_err"] == "12821"
    well, lines = await run_check_twice(host, later)
    assert well, lines
    assert "1 NIC by 32 rules: 1 healthy" in line(lines, "ok      health of NICs")


async def test_counters_that_increase_between_two_reads_are_faults() -> None:
    host = healthy_host()
    timeouts = f"{HW_COUNTERS}/local_ack_timeout_err"
    host.files[timeouts] = "12821"
    well, lines = await run_check_twice(host, {timeouts: "12921"})
    assert not well
    assert line(lines, "BROKEN  NIC mlx5_0/1") == (
        "BROKEN  NIC mlx5_0/1: degraded: transport_retry (10 acknowledgement timeouts per second); actions: inspect"
        "          -> check links and drops on the paths of the NIC"
    )


@pytest.mark.parametrize(
    ("driver", "others_driver", "is_broken"),
    [("", "mlx5_core", True), ("vfio-pci", "mlx5_core", False), ("", "", False)],
)
async def test_a_nic_that_no_driver_owns_is_broken(
    driver: str, others_driver: str, *, is_broken: bool
) -> None:
    host = FakeHost()
    for number in range(4):
        path = f"pci0000:0{number}/0000:0{number}:01.0/0000:{number}1:00.0"
        pci_bus.add_nic(host, path, f"mlx5_{number}" if number else "")
        if name := others_driver if number else driver:
            host.links[f"/sys/devices/{path}/driver"] = f"/sys/bus/pci/drivers/{name}"
            host.files[f"/sys/bus/pci/drivers/{name}/bind"] = ""
    well, lines = await run_check(host)
    found = [text for text in lines if text.startswith("BROKEN  NIC 0000:01:00.0")]
    detail = "no driver owns it, but 3 NICs of its model (15b3:1021) are in use"
    assert found == [f"BROKEN  NIC 0000:01:00.0: {detail}"] * is_broken
    assert not (well and is_broken)


async def run_check_with(
    meter: FakeMeter, host: FakeHost, budget: BudgetSettings
) -> tuple[bool, list[str]]:
    """Check with costs given by the test."""
    lines: list[str] = []
    agent = Agent(AgentSettings(budget=budget), host, "node-1", meter=meter)
    return await check(agent, lines.append), lines


def costly_host(meter: FakeMeter, milliseconds: float) -> FakeHost:
    """Return a healthy host whose RDMA device is expensive to read."""
    host = healthy_host()
    packets = host.files[COUNTER]

    def count() -> str:
        meter.spend(milliseconds)
        return str(packets)

    host.files[COUNTER] = count
    return host


async def test_a_budget_that_needs_longer_periods_is_reported_without_a_fault() -> None:
    meter = FakeMeter(80 * MIB)
    well, lines = await run_check_with(
        meter, costly_host(meter, 30), BudgetSettings(cpu_ratio=0.01, memory_bytes=64 << 20)
    )
    assert well
    assert "lengthened to every 4 s (processor time)" in line(lines, "ok      cost of rdma")
    report = line(lines, "ok      processor budget")
    assert "3 % of a core" in report
    assert "periods are lengthened until reads fit the budget" in report
    assert "-> increase periods in [period_seconds], or increase budget.cpu_ratio" in report
    assert "80 MiB resident, budget 64 MiB: exceeded" in line(lines, "absent  memory budget")


async def test_a_collector_that_takes_this_node() -> None:
    async with ScriptedCollector().serving() as collector:
        well, lines = await run_check(healthy_host(), collector=link_to(collector))
        assert well
        assert "accepts frames of this node" in line(lines, "ok      collector")
        assert collector.taken == [], "a greeting carries no frames"


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "compare collector.token_file"),
        (403, "check node and collector.token_file"),
        (404, "check that collector.url"),
        (426, "update the older of agent and collector"),
        (400, ": status 400: because"),
    ],
)
async def test_a_collector_that_does_not(status: int, advice: str) -> None:
    async with ScriptedCollector().serving() as collector:
        collector.script.append(web.json_response({"error": "because"}, status=status))
        well, lines = await run_check(healthy_host(), collector=link_to(collector))
    assert not well
    assert advice in line(lines, "BROKEN  collector")


async def test_a_collector_that_is_not_there() -> None:
    absent = ScriptedCollector()
    async with absent.serving():
        link = link_to(absent)
    well, lines = await run_check(healthy_host(), collector=link)
    assert not well
    assert "connection refused" in line(lines, "BROKEN  collector")


def exit_code(*arguments: str | Path) -> tuple[int, str]:
    outcome = CliRunner().invoke(agent, ["check", "--seconds", "0", *map(str, arguments)])
    return outcome.exit_code, outcome.output


def test_a_tree_in_order_leaves_with_0(tmp_path: Path) -> None:
    code, output = exit_code("--root", make_tree(tmp_path))
    assert code == 0, output
    assert "ok      RDMA devices: 2 devices" in output


def test_a_tree_with_something_broken_leaves_with_1(tmp_path: Path) -> None:
    (make_tree(tmp_path) / COUNTER[1:]).write_text("garbage")
    code, output = exit_code("--root", tmp_path)
    assert code == 1
    assert "BROKEN  rdma: 1 reading error" in output


@pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")
def test_a_tree_of_a_real_machine_is_read_without_complaint() -> None:
    code, output = exit_code("--root", capture_path("sysfs/procfs/tree"))
    assert code == 0, output
    assert "3 devices, 4 ports, 96 counter files" in output
