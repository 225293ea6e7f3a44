"""Devices that appear and disappear while the agent runs."""

from __future__ import annotations

from support.machine import NO_DEVICE, FakeHost
from support.rdma_nics import INFINIBAND, add_nic, remove_nic
from support.reading import ORIGIN, readings
from support.sampling import run_sampler

from railscope.catalog.entities import RDMA_PORT
from railscope.catalog.rdma import RDMA_UP
from railscope.frame import Entity, Frame
from railscope.reading import Absent
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.source import SourceWithoutResources
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import FAILED, OK, PARTIAL, UNSUPPORTED
from railscope_agent.sources.rdma import RdmaSource


def devices(frame: Frame) -> set[str]:
    return {key[0] for _, key in readings(frame)}


async def test_a_nic_that_appears_gets_columns_with_the_next_probe() -> None:
    host = FakeHost()
    add_nic(host, "mlx5_0")
    async with run_sampler(host, [RdmaSource()]) as run:
        add_nic(host, "mlx5_1")
        await run.step()
        assert devices(run.frames[-1]) == {"mlx5_0"}
        await run.step(60)
        assert devices(run.frames[-1]) == {"mlx5_0", "mlx5_1"}
        assert run.frames[0].schema is run.frames[1].schema is not run.frames[2].schema
        assert [frame.sequence for frame in run.frames] == [1, 2, 3]


async def test_a_nic_that_vanishes_is_gone_first_and_then_no_column() -> None:
    host = FakeHost()
    add_nic(host, "mlx5_0")
    add_nic(host, "mlx5_1")
    async with run_sampler(host, [RdmaSource()]) as run:
        remove_nic(host, "mlx5_1")
        await run.step()
        found = readings(run.frames[-1])
        assert {r for (_, key), r in found.items() if key[0] == "mlx5_1"} == {Absent.GONE}
        assert Absent.GONE not in {r for (_, key), r in found.items() if key[0] == "mlx5_0"}
        assert run.sampler.statuses["rdma"].state == PARTIAL
        await run.step(5)
        assert devices(run.frames[-1]) == {"mlx5_0"}
        assert run.sampler.statuses["rdma"].state == OK


async def test_the_last_nic_leaves_an_unsupported_source_and_may_come_back() -> None:
    host = FakeHost()
    add_nic(host, "mlx5_0")
    async with run_sampler(host, [RdmaSource()]) as run:
        remove_nic(host, "mlx5_0")
        await run.step()
        assert run.sampler.statuses["rdma"].state == FAILED
        await run.step(5)
        status = run.sampler.statuses["rdma"]
        assert (status.state, status.frame) == (UNSUPPORTED, None)
        add_nic(host, "mlx5_0")
        await run.step(60)
        assert run.sampler.statuses["rdma"].state == OK
        sequences = [frame.sequence for frame in run.frames]
        assert sequences == sorted(set(sequences))


async def test_new_firmware_is_a_new_schema() -> None:
    host = FakeHost()
    add_nic(host, "mlx5_0")
    async with run_sampler(host, [RdmaSource()]) as run:
        host.files[f"{INFINIBAND}/mlx5_0/fw_ver"] = "28.41.1000"
        await run.step(60)
        before, after = (frame.schema for frame in run.frames)
        assert before != after
        assert {entity.facts["firmware"] for entity in after.entities if entity.facts} == {
            "28.41.1000"
        }


async def test_a_probe_that_finds_nothing_new_keeps_the_schema() -> None:
    """A schema is sent once: an unnecessary one would cost every node of a cluster."""
    host = FakeHost()
    add_nic(host, "mlx5_0")
    async with run_sampler(host, [RdmaSource()]) as run:
        for _ in range(5):
            await run.step(60)
        assert len({id(frame.schema) for frame in run.frames}) == 1


async def test_a_nic_in_reset_comes_back_without_a_new_schema() -> None:
    host = FakeHost()
    add_nic(host, "mlx5_0")
    counter = f"{INFINIBAND}/mlx5_0/ports/1/counters/port_xmit_packets"
    async with run_sampler(host, [RdmaSource()]) as run:
        host.files[counter] = NO_DEVICE
        await run.step()
        await run.step(5)
        host.files[counter] = "0"
        await run.step()
        seen = [
            readings(f)["railscope_rdma_transmit_packets_total", ("mlx5_0", "1")]
            for f in run.frames
        ]
        assert seen == [100, Absent.GONE, Absent.GONE, 0]
        assert len({id(frame.schema) for frame in run.frames}) == 1


class FaultySource(SourceWithoutResources):
    """A source with a bug."""

    name = "faulty"
    family = "faulty"
    period_seconds = 1.0

    def __init__(self) -> None:
        self.wrong = True

    def probe(self, host: Host) -> ProbeResult:
        del host
        return ProbeResult(((RDMA_UP, Entity(RDMA_PORT, ("mlx5_9", "1"))),))

    def read(self, host: Host, into: RowBuilder) -> None:
        if self.wrong:
            raise KeyError(host.boot_id)
        into.put(0, 1)


async def test_a_mistake_in_one_source_ends_no_other() -> None:
    host, faulty = FakeHost(), FaultySource()
    add_nic(host, "mlx5_0")
    async with run_sampler(host, [faulty, RdmaSource()]) as run:
        await run.step()
        status = run.sampler.statuses["faulty"]
        assert (status.state, status.problem) == (FAILED, "fault in the source: KeyError: 'boot-1'")
        assert len(run.of("rdma")) == 2
        faulty.wrong = False
        await run.step()
        assert status.state == OK


def test_facts_name_the_device_of_a_port() -> None:
    host = FakeHost()
    add_nic(host, "mlx5_0")
    place = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"
    host.links[f"{INFINIBAND}/mlx5_0/device"] = place
    host.links["/sys/bus/pci/devices/0000:3b:00.0"] = place
    host.links[f"{place}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
    host.files["/sys/bus/pci/drivers/mlx5_core/bind"] = ""
    host.files["/sys/class/net/ens1f0np0/mtu"] = "9000"
    host.links["/sys/class/net/ens1f0np0/device"] = place
    frame = SourceReader(RdmaSource(), host, ORIGIN).run().frame
    assert frame is not None
    (facts,) = {tuple(entity.facts.items()) for entity in frame.schema.entities}
    assert dict(facts) == {
        "driver": "mlx5_core", "pci_address": "0000:3b:00.0", "firmware": "28.39.1002",
        "interface": "ens1f0np0",
    }  # fmt: skip
