"""Every name of a GPU and of a NIC, wherever the HTTP API mentions one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from makers import START_BOOT_NS, START_WALL_NS, FrameSender
from running_collector import run_collector, settings_in

from railscope.catalog import METRICS, gpu, kernel, nic, rdma
from railscope.catalog.entities import (
    GPU,
    GPU_CLOCK,
    LINK_CHANGE,
    NIC,
    NIC_PRIORITY,
    RDMA_PORT,
    XID,
)
from railscope.frame import Entity, Event, Schema

FIRST = {"kind": "gpu", "index": "3", "uuid": "GPU-a", "pci_address": "0000:1b:00.0"}
NIC_NAMES = {"kind": "nic", "interface": "ens1np0", "device": "mlx5_0", "rail": "2",
        "pci_address": "0000:18:00.0"}  # fmt: skip
PORT = {"kind": "nic", "interface": "ens1np0", "device": "mlx5_0", "port": "1", "rail": "2",
        "pci_address": ""}  # fmt: skip
ENTITY = Entity(GPU, ("GPU-a",), {"index": "3", "pci_address": "0000:1b:00.0", "rail": "2"})
OF_GPU = Schema(
    "gpu",
    (
        (gpu.GPU_POWER, ENTITY),
        (METRICS["railscope_gpu_clock_hertz"], ENTITY.child(GPU_CLOCK, "sm")),
    ),
)
NIC_ENTITY = Entity(
    NIC, ("ens1np0",), {"rdma_device": "mlx5_0", "rail": "2", "pci_address": "0000:18:00.0"}
)
OF_NIC = Schema("nic", ((nic.PFC_RECEIVED, NIC_ENTITY.child(NIC_PRIORITY, "3")),), (NIC_ENTITY,))
PORT_ENTITY = Entity(RDMA_PORT, ("mlx5_0", "1"), {"interface": "ens1np0", "rail": "2"})
OF_PORT = Schema("rdma", ((rdma.RDMA_UP, PORT_ENTITY),))


def happened(event_class: Any, entity: Entity) -> Event:
    return Event(event_class, entity, START_WALL_NS, START_BOOT_NS)


async def test_readings_and_events_name_their_device_in_every_way(tmp_path: Path):
    sender = FrameSender()
    frames = [
        frame
        for schema in (OF_GPU, OF_NIC, OF_PORT)
        for frame in sender.frames(schema, [[1] * len(schema.columns)], at=0)
    ]
    events = (
        happened(kernel.XID_EVENT, Entity(XID, ("0000:1b:00.0", "79"))),
        happened(kernel.LINK_EVENT, Entity(LINK_CHANGE, ("ens1np0", "down"))),
        happened(kernel.XID_EVENT, Entity(XID, ("0000:ff:00.0", "31"))),
    )
    frames[0] = replace(frames[0], events=events)
    async with run_collector(settings_in(tmp_path)) as running:
        assert (await running.post(sender.body(frames, schemas=True), at=2))[0] == 200
        streams = (await running.json("/api/v1/nodes/n1"))["streams"]
        found = {name: [r.get("device") for r in streams[name]["readings"]] for name in streams}
        assert found == {"gpu": [FIRST, FIRST], "nic": [NIC_NAMES], "rdma": [PORT]}
        reported = (await running.json("/api/v1/events"))["events"]
        assert [event["device"] for event in reported] == [FIRST, NIC_NAMES, None]
