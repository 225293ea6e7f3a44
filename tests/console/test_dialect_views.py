"""Views of one simulated leaf that is read in each dialect: equal numbers, or the reason for their absence."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from console_site import TOKENS, browser, console
from makers import FrameSender
from running_collector import RunningCollector
from support import switch_readings
from support.switch_dialects import DIALECTS, PolledSwitch

from railscope.catalog import cabling, entities, nic
from railscope.frame import Entity, Schema
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import Role
from railscope_collector.config import IngestLimits, SwitchesSettings
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.cluster_switches import ClusterSwitches
from railscope_simulator.cluster.scenario import (
    ClusterScenario,
    JobPlan,
    PlannedClusterFault,
    SimulatedClusterSize,
)
from railscope_simulator.spec import TimeSpan
from railscope_simulator.switch_ports import SimulatedSwitch, SwitchPortCounters

PORT, SONIC_PORT = "Ethernet1/2", "Ethernet4"
LACKING: dict[str, set[str]] = {
    "sonic": {"peak_share"},
    "openconfig": {"depth", "peak_share"},
    "comware": {"pauses_to_nic", "pauses_to_switch", "marks", "watermark"},
    "snmp": {"pauses_to_nic", "pauses_to_switch", "marks", "depth", "watermark", "peak_share", "dropped"},
    "dialout": {"watermark", "peak_share"},
}  # fmt: skip
"""Quantities that a dialect does not have: all others are equal."""


def leaf_of(dialect: str) -> str:
    return f"leaf-{dialect}"


class Rail:
    """A leaf in each dialect, at whose ports the same NIC receives too slowly."""

    def __init__(self) -> None:
        size = SimulatedClusterSize(pods=1, nodes_per_pod=3)
        fault = PlannedClusterFault("slow_receiver", 1.0, strength=0.8, nodes=[1], indices=[3])
        job = JobPlan("train", [0, 1, 2], checkpoint_period_seconds=0)
        self.model = ClusterModel(ClusterScenario(90, cluster=size, jobs=[job], faults=[fault]))
        self.fabric = ClusterSwitches(self.model)
        ports = self.fabric.switches["leaf-4"].ports
        self.leaves = {
            dialect: PolledSwitch(
                SimulatedSwitch(leaf_of(dialect), f"9c:05:91:00:01:0{n}", ports), dialect
            )
            for n, dialect in enumerate(DIALECTS)
        }

    @property
    def counters(self) -> SwitchPortCounters:
        return self.fabric.switches["leaf-4"].ports[SONIC_PORT].counters

    def advance(self, seconds: int) -> None:
        while self.model.offset_ns < seconds * SECOND_NS:
            span = TimeSpan(self.model.offset_ns, self.model.offset_ns + SECOND_NS)
            self.model.advance(span.end_ns)
            self.fabric.count(span)

    def nic_row(self) -> dict[Any, int]:
        """Return what a NIC counts: the same as its port."""
        counters = self.counters
        return {
            nic.PFC_SENT: counters.pauses_received,
            nic.PFC_RECEIVED: counters.pauses_sent,
            nic.RECEIVED: sum(queue.bytes for queue in counters.queues),
        }


async def report_nics(running: RunningCollector, rows: list[dict[Any, int]]) -> None:
    """Send frames of a node with a NIC at each leaf, a minute apart."""
    nics = {name: Entity(entities.NIC, (f"eth-{name}",), {"rail": "3"}) for name in DIALECTS}
    neighbours = tuple(
        Entity(entities.NIC_NEIGHBOUR, each.key, {"switch": leaf_of(name), "switch_port": PORT})
        for name, each in nics.items()
    )
    known = Schema(
        "neighbour", tuple((cabling.NEIGHBOUR_KNOWN, each) for each in nics.values()), neighbours
    )
    columns = [
        (
            metric,
            each if metric is nic.RECEIVED else Entity(entities.NIC_PRIORITY, (*each.key, "3")),
        )
        for each in nics.values()
        for metric in rows[0]
    ]
    counters = Schema("nic", tuple(columns[i] for i in Schema.ordered(columns)))
    sender = FrameSender("n1", "run-2")
    frames = [*sender.frames(known, [[1] * len(nics)], at=0)]
    for at, row in zip((0, 60), rows, strict=True):
        values = [row[metric] for metric, _ in counters.columns]
        frames += sender.frames(counters, [values], at=at)
    headers = {"Authorization": f"Bearer {TOKENS[Role.NODE]}"}
    body = sender.body(frames, schemas=True)
    status, reply = await running.post(body, node="n1", at=60, headers=headers)
    assert status == 200, reply


def quantities(page: dict[str, Any]) -> dict[str, Any]:
    rows = {(row["quantity"], row["priority"]): row["switch"] for row in page["compared"]}
    queue = page["queues"][3]
    return {
        "speed": page["port"]["speed"],
        "bytes_to_nic": rows["Bytes to the NIC", ""],
        "pauses_to_nic": rows["Pause frames to the NIC", "3"],
        "pauses_to_switch": rows["Pause frames to the switch", "3"],
        "marks": page["port"]["marks"],
        "depth": queue["depth"],
        "watermark": queue["watermark"],
        "dropped": queue["dropped"],
        "peak_share": queue["peak_share"],
    }


async def test_a_leaf_has_the_same_views_in_each_dialect(tmp_path: Path) -> None:
    rail, rows = Rail(), []
    cabling_file = tmp_path / "cabling.csv"
    cabling_file.write_text("switch,port,node,interface\n")
    switches = SwitchesSettings(cabling_file=str(cabling_file))
    async with (
        console(
            tmp_path,
            lambda running: switch_readings.configure(running, *map(leaf_of, DIALECTS)),
            limits=IngestLimits(),
            switches=switches,
        ) as running,
        browser(running.url) as reader,
    ):
        for until, seconds_ago in ((20, 60), (80, 0)):
            rail.advance(until)
            rows.append(rail.nic_row())
            for dialect, leaf in rail.leaves.items():
                leaf.seconds = until
                found = await leaf.reader.read()
                await switch_readings.poll(running, leaf_of(dialect), found, seconds_ago)
        await report_nics(running, rows)
        await reader.sign_in(TOKENS[Role.OPERATOR])
        pages = {}
        for dialect in DIALECTS:
            port = SONIC_PORT if dialect == "sonic" else PORT
            path = f"/switches/{leaf_of(dialect)}/ports/{quote(port, safe='')}"
            answer = await reader.get("/api/v1/pages" + path, Accept="application/json")
            pages[dialect] = msgspec.json.decode(answer.text)
    sent, received = (rows[1][each] - rows[0][each] for each in (nic.PFC_SENT, nic.PFC_RECEIVED))
    assert sent > 100_000
    counters = rail.counters
    expected = {
        "speed": 50_000_000_000,
        "bytes_to_nic": rows[1][nic.RECEIVED] - rows[0][nic.RECEIVED],
        "pauses_to_nic": received,
        "pauses_to_switch": sent,
        "depth": counters.lossless.occupancy_bytes,
        "watermark": counters.lossless.watermark_bytes,
        "dropped": 0,
        "peak_share": 0.5,
    }
    for dialect, page in pages.items():
        assert page["port"]["state"] == "up"
        link = page["port"]["link"]
        assert (link["node"], link["interface"], link["rail"]) == ("n1", f"eth-{dialect}", "3")
        found = quantities(page)
        expected.setdefault("marks", found["marks"]["value"])
        for name, value in expected.items():
            is_lacking = name in LACKING[dialect]
            shown = {
                "value": None if is_lacking else value,
                "absent": "unsupported" if is_lacking else "",
            }
            assert found[name] == shown, (dialect, name)
        at_nic = {
            row["quantity"]: row["nic"]["value"]
            for row in page["compared"]
            if row["quantity"].startswith("Pause frames") and row["priority"] == "3"
        }
        assert at_nic == {"Pause frames to the NIC": received, "Pause frames to the switch": sent}
