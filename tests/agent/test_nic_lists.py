"""The statistics list of a NIC changes while the NIC runs."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import pytest
from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings
from support.sampling import run_sampler

from railscope.frame import Frame
from railscope.reading import Absent, Reading
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import OK, PARTIAL
from railscope_agent.sources.nic_counters import NicSource

BYTES, PFC = "railscope_nic_receive_bytes_total", "railscope_nic_receive_pfc_pause_frames_total"
DISCARDS = "railscope_nic_receive_discarded_packets_total"


def set_statistics(host: FakeHost, statistics: Mapping[str, int], interface: str = "eth0") -> None:
    """Set the statistics that the driver of a NIC returns."""
    place = f"/sys/devices/pci0000:3a/0000:3b:00.{interface[-1]}"
    host.files |= {f"/sys/class/net/{interface}/mtu": "9000", f"{place}/vendor": "0x15b3"}
    host.links[f"/sys/class/net/{interface}/device"] = place
    host.calls[f"ethtool.driver({interface})"] = {
        "driver": "mlx5_core", "version": "", "firmware": "28.39", "bus": "",
    }  # fmt: skip
    host.calls[f"ethtool.statistics({interface})"] = {
        "names": list(statistics),
        "values": list(statistics.values()),
    }


def values_of(frame: Frame) -> dict[tuple[str, tuple[str, ...]], Reading]:
    return readings(frame)


async def test_a_vanished_statistic_is_an_error_and_leaves_after_ten_minutes() -> None:
    """At first a removed statistic cannot be distinguished from an incomplete answer."""
    host = FakeHost()
    set_statistics(host, {"rx_discards_phy": 1, "rx_prio3_pause": 2, "rx_bytes_phy": 3})
    async with run_sampler(host, [NicSource()]) as run:
        set_statistics(host, {"rx_discards_phy": 10, "rx_bytes_phy": 30})
        await run.step()
        assert values_of(run.frames[-1]) == {
            (DISCARDS, ("eth0",)): 10,
            (BYTES, ("eth0",)): 30,
            (PFC, ("eth0", "3")): Absent.GONE,
        }
        assert run.sampler.statuses["nic"].state == PARTIAL
        await run.step(5)
        assert values_of(run.frames[-1])[PFC, ("eth0", "3")] is Absent.ERROR
        assert run.sampler.statuses["nic"].state == PARTIAL
        for _ in range(12):
            await run.step(60)
        assert values_of(run.frames[-1]) == {(DISCARDS, ("eth0",)): 10, (BYTES, ("eth0",)): 30}
        assert run.sampler.statuses["nic"].state == OK


async def test_a_new_statistic_gets_its_column_with_the_next_read() -> None:
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 3})
    async with run_sampler(host, [NicSource()]) as run:
        set_statistics(host, {"rx_prio3_pause": 7, "rx_bytes_phy": 4})
        await run.step()
        assert values_of(run.frames[-1]) == {(BYTES, ("eth0",)): 4}
        await run.step()
        assert values_of(run.frames[-1]) == {(BYTES, ("eth0",)): 4, (PFC, ("eth0", "3")): 7}


def test_values_are_never_reported_under_the_name_of_another_statistic() -> None:
    """Same length, other order: the most dangerous change of all."""
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 1, "rx_discards_phy": 2})
    reader = SourceReader(NicSource(), host, ORIGIN)
    reader.run()
    set_statistics(host, {"rx_discards_phy": 20, "rx_bytes_phy": 10})
    frame = reader.run().frame
    assert frame is not None
    assert values_of(frame) == {(BYTES, ("eth0",)): 10, (DISCARDS, ("eth0",)): 20}


@pytest.mark.parametrize("moved", [False, True])
def test_statistics_have_64_bits(moved: bool) -> None:  # noqa: FBT001 - the case
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 2**64 - 3, "rx_discards_phy": 2})
    reader = SourceReader(NicSource(), host, ORIGIN)
    reader.run()
    large = {"rx_bytes_phy": 2**64 - 2, "rx_discards_phy": 2**63}
    set_statistics(host, dict(reversed(large.items())) if moved else large)
    frame = reader.run().frame
    assert frame is not None
    assert values_of(frame) == {(BYTES, ("eth0",)): 2**64 - 2, (DISCARDS, ("eth0",)): 2**63}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EAGAIN, Absent.ERROR),
        (errno.ENODEV, Absent.GONE),
        (errno.EPERM, Absent.DENIED),
    ],
)
def test_a_failing_nic_affects_no_other(number: int, reason: Absent) -> None:
    host = FakeHost()
    for interface in ("eth0", "eth1"):
        set_statistics(host, {"rx_bytes_phy": 1}, interface)
    reader = SourceReader(NicSource(), host, ORIGIN)
    reader.run()
    host.calls["ethtool.statistics(eth0)"] = OSError(number, "trouble")
    frame = reader.run().frame
    assert frame is not None
    assert values_of(frame) == {(BYTES, ("eth0",)): reason, (BYTES, ("eth1",)): 1}


@pytest.mark.parametrize(
    ("number", "verdict", "remedy"),
    [
        (errno.EOPNOTSUPP, ProbeVerdict.ABSENT, ""),
        (errno.EPERM, ProbeVerdict.DENIED, "SIOCETHTOOL"),
        (errno.EIO, ProbeVerdict.BROKEN, ""),
    ],
)
def test_a_nic_that_cannot_be_queried_is_a_finding(
    number: int, verdict: ProbeVerdict, remedy: str
) -> None:
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 1})
    host.calls["ethtool.driver(eth0)"] = OSError(number, "trouble")
    (finding,) = read_once(NicSource(), host).findings
    assert finding.verdict is verdict
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EIO, Absent.ERROR),
        (errno.ENODEV, Absent.GONE),
        (errno.ETIMEDOUT, Absent.TIMEOUT),
        (errno.EPERM, Absent.DENIED),
    ],
)
async def test_a_nic_that_fails_from_the_start_is_absent_with_the_reason(
    number: int, reason: Absent
) -> None:
    host = FakeHost()
    for interface in ("eth0", "eth1"):
        set_statistics(host, {"rx_bytes_phy": 1, "rx_prio3_pause": 2}, interface)
    well = host.calls["ethtool.statistics(eth0)"]
    host.calls["ethtool.statistics(eth0)"] = OSError(number, "trouble")
    async with run_sampler(host, [NicSource()]) as run:
        found = values_of(run.frames[-1])
        assert (found[BYTES, ("eth0",)], found[BYTES, ("eth1",)]) == (reason, 1)
        assert run.sampler.statuses["nic"].state == PARTIAL
        host.calls["ethtool.statistics(eth0)"] = well
        for _ in range(2):
            await run.step()
        found = values_of(run.frames[-1])
        assert (found[BYTES, ("eth0",)], found[PFC, ("eth0", "3")]) == (1, 2)
        assert run.sampler.statuses["nic"].state == OK


@pytest.mark.parametrize("is_linked", [True, False])
async def test_a_driver_that_cannot_be_queried_is_the_one_of_the_device(*, is_linked: bool) -> None:
    """Without any driver no statistic has a meaning."""
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 1})
    host.calls["ethtool.driver(eth0)"] = OSError(errno.EIO, "trouble")
    if is_linked:
        place = host.links["/sys/class/net/eth0/device"]
        host.links[f"{place}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
        host.files["/sys/bus/pci/drivers/mlx5_core/module"] = ""
    async with run_sampler(host, [NicSource()]) as run:
        await run.step()
        found = values_of(run.frames[-1])[BYTES, ("eth0",)]
        assert found == (1 if is_linked else Absent.ERROR)


def test_entries_that_are_not_interfaces_are_not_reported_as_broken() -> None:
    """/sys/class/net holds the file bonding_masters, and interfaces come and go."""
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 1})
    host.files["/sys/class/net/bonding_masters"] = "bond0"
    host.calls["ethtool.driver(bonding_masters)"] = OSError(errno.ENODEV, "No such device")
    verdicts = {finding.title: finding.verdict for finding in read_once(NicSource(), host).findings}
    assert ProbeVerdict.BROKEN not in verdicts.values()
    assert verdicts["statistics of eth0"] is ProbeVerdict.SUPPORTED


def test_a_nic_has_its_rdma_device() -> None:
    host = FakeHost()
    set_statistics(host, {"rx_bytes_phy": 1})
    host.links["/sys/class/infiniband/mlx5_3/device"] = host.links["/sys/class/net/eth0/device"]
    frame = read_once(NicSource(), host).frame
    assert frame is not None
    (nic,) = frame.schema.entities
    assert dict(nic.facts) == {
        "driver": "mlx5_core", "firmware": "28.39", "pci_address": "0000:3b:00.0",
        "rdma_device": "mlx5_3",
    }  # fmt: skip
