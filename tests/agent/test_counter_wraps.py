"""Wraps at 2^32 up to the metrics endpoint: through sources, probes and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.clock import ManualClock
from support.machine import NO_DEVICE, FakeHost
from support.nics import set_statistics
from support.reading import ORIGIN, readings
from support.sampling import families

from railscope.reading import Absent, Reading
from railscope_agent.config import AgentSettings
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import Agent
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.rdma import RdmaSource
from railscope_agent.sources.source_bases import CounterStateFile

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
END = 2**32
WRITES = "railscope_rdma_write_requests_total"
READS = "railscope_rdma_read_requests_total"
MARKED = "railscope_rdma_ecn_marked_packets_total"
OTHER = "railscope_rdma_vendor_total"


def show(host: FakeHost, **files: object) -> None:
    host.files |= {
        f"{PORT}/hw_counters/{name}": content if isinstance(content, Exception) else str(content)
        for name, content in files.items()
    }


def value(
    reader: SourceReader, name: str = WRITES, key: tuple[str, ...] = ("mlx5_0", "1")
) -> Reading:
    return readings(reader.run().frame)[name, key]


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost(ManualClock())
    show(host, rx_write_requests=END - 10, rx_read_requests=7, local_ack_timeout_err=3)
    return host


def remembering(host: FakeHost, path: Path, boot_id: str = "boot-1") -> SourceReader:
    source = RdmaSource()
    source.remember(CounterStateFile(path, boot_id))
    return SourceReader(source, host, ORIGIN)


def test_a_wrap_is_not_a_reset_on_the_endpoint(host: FakeHost) -> None:
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    assert value(reader) == END - 10
    show(host, rx_write_requests=20)
    assert value(reader) == END + 20


def test_a_wrap_outlives_the_next_probe_and_a_missing_reading(host: FakeHost) -> None:
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader)
    show(host, rx_write_requests=20)
    value(reader)
    show(host, rx_write_requests=PermissionError(13, ""), never_seen=4)
    assert value(reader) is Absent.DENIED
    host.clock.advance(61)
    show(host, rx_write_requests=30)
    assert value(reader) == END + 30


def test_a_counter_that_has_no_metric_wraps_as_well(host: FakeHost) -> None:
    key = ("mlx5_0", "1", "brand_new")
    show(host, brand_new=END - 1)
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader)
    show(host, brand_new=1)
    assert value(reader, OTHER, key) == END + 1


def test_counters_of_64_bits_pass_the_end_by_themselves(host: FakeHost) -> None:
    show(host, np_ecn_marked_roce_packets=END - 1)
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader)
    show(host, np_ecn_marked_roce_packets=END + 1)
    assert value(reader, MARKED) == END + 1
    show(host, np_ecn_marked_roce_packets=5)
    assert value(reader, MARKED) == 5, "a reset"


def test_port_counters_of_32_bits_stick_and_do_not_wrap(host: FakeHost) -> None:
    host.files[f"{PORT}/counters/port_xmit_wait"] = str(END - 10)
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader)
    host.files[f"{PORT}/counters/port_xmit_wait"] = "5"
    assert value(reader, "railscope_rdma_transmit_wait_ticks_total") == 5


def test_other_drivers_count_in_64_bits() -> None:
    host = FakeHost()
    directory = "/sys/class/infiniband/bnxt_re0/ports/1/hw_counters"
    host.files[f"{directory}/rx_write_req"] = str(END - 10)
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader, key=("bnxt_re0", "1"))
    host.files[f"{directory}/rx_write_req"] = "20"
    assert value(reader, key=("bnxt_re0", "1")) == 20, "a reset"


def test_a_driver_that_was_loaded_again_begins_at_zero(host: FakeHost) -> None:
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader)
    show(host, rx_write_requests=20)
    value(reader)
    show(host, rx_write_requests=25, rx_read_requests=0, local_ack_timeout_err=0)
    assert value(reader) == 25


def test_a_nic_that_was_gone_begins_at_zero(host: FakeHost) -> None:
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    value(reader)
    show(host, rx_write_requests=20)
    value(reader)
    files = ("rx_write_requests", "rx_read_requests", "local_ack_timeout_err")
    show(host, **dict.fromkeys(files, NO_DEVICE))
    assert value(reader) is Absent.GONE
    show(host, rx_write_requests=30, rx_read_requests=8, local_ack_timeout_err=3)
    assert value(reader) == 30


def test_a_restart_of_the_agent_lets_no_counter_fall(host: FakeHost, tmp_path: Path) -> None:
    path = tmp_path / "wraps.json"
    first = remembering(host, path)
    value(first)
    assert not path.exists(), "nothing wrapped, nothing to keep"
    show(host, rx_write_requests=20)
    assert value(first) == END + 20
    show(host, rx_write_requests=30)
    second = remembering(host, path)
    assert value(second) == END + 30


def test_a_reset_while_the_agent_was_away_is_seen(host: FakeHost, tmp_path: Path) -> None:
    first = remembering(host, tmp_path / "wraps.json")
    value(first)
    show(host, rx_write_requests=20)
    value(first)
    show(host, rx_write_requests=500, rx_read_requests=2, local_ack_timeout_err=0)
    assert value(remembering(host, tmp_path / "wraps.json")) == 500
    assert value(remembering(host, tmp_path / "wraps.json")) == 500, "and kept"


def test_the_wraps_of_another_boot_are_forgotten(host: FakeHost, tmp_path: Path) -> None:
    first = remembering(host, tmp_path / "wraps.json")
    value(first)
    show(host, rx_write_requests=20)
    value(first)
    show(host, rx_write_requests=30)
    assert value(remembering(host, tmp_path / "wraps.json", "boot-2")) == 30


def test_the_last_values_of_a_set_that_wrapped_are_kept_now_and_then(
    host: FakeHost, tmp_path: Path
) -> None:
    path = tmp_path / "wraps.json"
    reader = remembering(host, path)
    value(reader)
    show(host, rx_write_requests=20)
    value(reader)
    kept = path.read_bytes()
    show(host, rx_write_requests=2**31)
    value(reader)
    assert path.read_bytes() == kept, "not at each reading"
    host.clock.advance(61)
    value(reader)
    assert path.read_bytes() != kept
    show(host, rx_write_requests=2**31 - 5)
    assert value(remembering(host, path)) == 2**31 - 5, "a reset shows by the value kept last"


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot_id": "boot-1", "sets": 5}', b"\xff"])
def test_a_damaged_file_is_reported_and_does_no_harm(
    host: FakeHost, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "wraps.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        assert value(remembering(host, path)) == END - 10
    assert [entry["event"] for entry in logs] == ["counter_wraps_read_failed"]


def test_without_a_state_directory_nothing_is_kept(host: FakeHost, tmp_path: Path) -> None:
    reader = remembering(host, tmp_path / "none" / "wraps.json")
    value(reader)
    show(host, rx_write_requests=20)
    assert value(reader) == END + 20
    assert list(tmp_path.iterdir()) == []


# NICs --------------------------------------------------------------------------------------------

BUFFER = "railscope_nic_receive_out_of_buffer_packets_total"


def put_statistics(host: FakeHost, driver: str = "mlx5_core", **statistics: int) -> None:
    set_statistics(host, driver, statistics)


@pytest.mark.parametrize("moved", [False, True])
def test_a_nic_queue_counter_wraps(moved: bool) -> None:  # noqa: FBT001 - the case
    """Also when its list changes at the same time."""
    host = FakeHost()
    put_statistics(host, rx_out_of_buffer=END - 10, rx_vport_unicast_bytes=100)
    reader = SourceReader(NicSource(), host, ORIGIN)
    value(reader, BUFFER, ("eth0",))
    if moved:
        put_statistics(host, rx_vport_unicast_bytes=200, rx_out_of_buffer=20)
    else:
        put_statistics(host, rx_out_of_buffer=20, rx_vport_unicast_bytes=200)
    assert value(reader, BUFFER, ("eth0",)) == END + 20


def test_a_function_whose_traffic_restarts_was_reset() -> None:
    host = FakeHost()
    put_statistics(host, rx_out_of_buffer=END - 10, rx_vport_unicast_bytes=100)
    reader = SourceReader(NicSource(), host, ORIGIN)
    value(reader, BUFFER, ("eth0",))
    put_statistics(host, rx_out_of_buffer=20, rx_vport_unicast_bytes=5)
    assert value(reader, BUFFER, ("eth0",)) == 20


def test_the_same_metric_of_another_driver_has_64_bits() -> None:
    host = FakeHost()
    put_statistics(host, "bnxt_en", rx_total_ring_discards=END - 10)
    reader = SourceReader(NicSource(), host, ORIGIN)
    value(reader, BUFFER, ("eth0",))
    put_statistics(host, "bnxt_en", rx_total_ring_discards=20)
    assert value(reader, BUFFER, ("eth0",)) == 20


def test_counter_wraps_of_a_nic_survive_a_restart(tmp_path: Path) -> None:
    host = FakeHost()

    def restarted() -> SourceReader:
        source = NicSource()
        source.remember(CounterStateFile(tmp_path / "wraps.json", "boot-1"))
        return SourceReader(source, host, ORIGIN)

    first = restarted()
    for number in (END - 10, 20):
        put_statistics(host, rx_out_of_buffer=number)
        value(first, BUFFER, ("eth0",))
    put_statistics(host, rx_out_of_buffer=30)
    assert value(restarted(), BUFFER, ("eth0",)) == END + 30


# The agent as a whole -----------------------------------------------------------------------------


async def read_by_an_agent(host: FakeHost, state: Path, *shown: int) -> list[Reading]:
    """Return the counter readings of one agent run, at its start and one second after each change."""
    agent = Agent(AgentSettings(listen="127.0.0.1:0", state_directory=str(state)), host, "node-1")
    task = asyncio.create_task(agent.run())
    counts = []
    try:
        await host.clock.asleep(families(agent.sampler.sources))
        counts.append(readings(agent.sampler.statuses["rdma"].frame)[WRITES, ("mlx5_0", "1")])
        for number in shown:
            show(host, rx_write_requests=number)
            host.clock.advance(1)
            await host.clock.asleep(families(agent.sampler.sources))
            counts.append(readings(agent.sampler.statuses["rdma"].frame)[WRITES, ("mlx5_0", "1")])
    finally:
        task.cancel()
        await asyncio.wait({task})
    return counts


async def test_an_agent_takes_up_the_wraps_of_the_one_before(
    host: FakeHost, tmp_path: Path
) -> None:
    assert await read_by_an_agent(host, tmp_path, 20) == [END - 10, END + 20]
    assert await read_by_an_agent(host, tmp_path, 25) == [END + 20, END + 25]
