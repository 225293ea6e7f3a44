"""A copied /sys of three RDMA devices: every counter file is exported with its value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.metric_samples import Sample, sample, samples
from support.shared import capture_path

from railscope.catalog import METRICS
from railscope.catalog.rdma import ACTIVE_STATES, COUNTER_FILES, PORT_STATES
from railscope.reading import Absent, parse_integer
from railscope_agent.commands import agent

ROOT = "sysfs/procfs/tree"
NO_COUNTERS = {"lifespan"}
BYTES_PER_STEP = {"mlx5_0": 4, "mlx4_0": 4, "hfi1_0": 8}  # 32-bit units; flits for Omni-Path
VENDOR = METRICS["railscope_rdma_vendor_total"]

pytestmark = pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")


@pytest.fixture(scope="module")
def page() -> dict[Sample, float]:
    """Output of `agent once` for the tree."""
    arguments = ["once", "--detail", "full", "--root", str(capture_path(ROOT))]
    # Copied files answer at once; on a loaded machine the threads that read them may not run for a second.
    patient = {"RAILSCOPE_AGENT_READ_TIMEOUT_SECONDS": "60"}
    outcome = CliRunner().invoke(agent, arguments, env=patient)
    assert outcome.exit_code == 0, outcome.output
    return samples(outcome.output)


def ports() -> list[Path]:
    return sorted(capture_path(ROOT).glob("sys/class/infiniband/*/ports/*"))


def counter_files() -> list[Path]:
    found = [file for port in ports() for file in port.glob("*counters/*")]
    return [file for file in found if file.name not in NO_COUNTERS]


def labels(port: Path) -> dict[str, str]:
    return {"device": port.parents[1].name, "port": port.name}


def expected(file: Path) -> tuple[Sample, float | None]:
    """Return the sample expected from the content of a counter file; None for no value."""
    about = labels(file.parents[1])
    metric = COUNTER_FILES.get(file.name)
    name = (
        sample(metric.name, **about) if metric else sample(VENDOR.name, **about, counter=file.name)
    )
    text = file.read_text().strip()
    if not text.isdecimal():
        return name, None
    data = re.fullmatch(r"port_(xmit|rcv)_data(_64)?", file.name)
    factor = BYTES_PER_STEP[about["device"]] if data else 1
    return name, float(int(text) * factor)


def test_the_tree_contains_the_tested_files() -> None:
    names = {file.name for file in counter_files()}
    assert len(counter_files()) > 90
    assert {"port_xmit_data", "symbol_error", "roce_slow_restart_cnps", "out_of_buffer"} <= names


def test_every_counter_file_comes_out_with_its_value(page: dict[Sample, float]) -> None:
    for file in counter_files():
        name, value = expected(file)
        metric = COUNTER_FILES.get(file.name, VENDOR)
        shown = None if metric.sparse and value == 0 else value
        assert page.get(name) == shown, file


def test_no_two_files_share_a_sample() -> None:
    names = [expected(file)[0] for file in counter_files()]
    assert len(set(names)) == len(names)


def test_nothing_is_counted_that_has_no_file(page: dict[Sample, float]) -> None:
    files = {expected(file)[0] for file in counter_files()}
    counters = {s for s in page if s[0].startswith("railscope_rdma_") and s[0].endswith("_total")}
    assert counters <= files
    assert not any("lifespan" in dict(label).values() for _, label in page)


def test_absent_counters_are_counted_by_reason(page: dict[Sample, float]) -> None:
    contents = [parse_integer(file.read_bytes()) for file in counter_files()]
    for reason in Absent:
        counted = sample("railscope_source_absent_readings", source="rdma", reason=reason.label)
        assert page.get(counted, 0) == contents.count(reason)


def test_state_and_rate_of_every_port(page: dict[Sample, float]) -> None:
    for port in ports():
        about = labels(port)
        state = int((port / "state").read_text().split(":")[0])
        shown = sample("railscope_rdma_port_state", **about, state=PORT_STATES[state])
        assert page[shown] == 1
        assert page[sample("railscope_rdma_port_up", **about)] == float(state in ACTIVE_STATES)
        gigabits = float((port / "rate").read_text().split()[0])
        rate = sample("railscope_rdma_port_rate_bytes_per_second", **about)
        assert page[rate] == gigabits * 1e9 / 8


def test_nics_report_their_identity(page: dict[Sample, float]) -> None:
    found = {
        dict(label)["device"]: dict(label)
        for name, label in page
        if name == "railscope_rdma_port_info"
    }
    for device in sorted(capture_path(ROOT).glob("sys/class/infiniband/*")):
        assert found[device.name]["firmware"] == (device / "fw_ver").read_text().strip()
        assert found[device.name]["board"] == (device / "board_id").read_text().strip()


def test_the_interface_of_the_tree(page: dict[Sample, float]) -> None:
    directory = capture_path(ROOT) / "sys/class/net/eth0"
    for file, name, scale in (
        ("carrier", "railscope_network_link_up", 1),
        ("carrier_changes", "railscope_network_link_changes_total", 1),
        ("speed", "railscope_network_link_speed_bytes_per_second", 125_000),
    ):
        expected_value = float(int((directory / file).read_text()) * scale)
        assert page[sample(name, interface="eth0")] == expected_value
