"""API of switches: the list, a switch with its ports, and links."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from makers import FrameSender
from running_collector import RunningCollector, run_collector, settings_in
from support import snmpd
from support.waiting import wait_until

from railscope.catalog import cabling, entities, nic
from railscope.frame import Entity, Schema
from railscope.timestamps import HOUR_NS
from railscope_collector.access.credentials import digest_token
from railscope_collector.config import IngestLimits, SwitchesSettings
from railscope_collector.switches import switch_view

ADDRESS = "02:bb:00:00:00:01"
"""MAC address of each NIC, as its switch port receives it."""


def poll_on_request(one: RunningCollector) -> None:
    """Let the first poll of the collector itself begin after a minute, long after the test."""
    one.collector.switches.polling.random_share = lambda: 1.0


async def report_nic(
    one: RunningCollector, switch: str, port: str, node: str = "n1", at: int = 0
) -> None:
    """Send frames of a node whose NIC eth0 receives LLDP of a switch port and has counters."""
    of_nic = Entity(entities.NIC, ("eth0",), {"rail": "3"})
    facts = {"switch": switch, "switch_port": port}
    neighbour = Entity(entities.NIC_NEIGHBOUR, ("eth0",), facts)
    addresses = Entity(entities.NIC_ADDRESS, ("eth0",), {"mac_address": ADDRESS})
    known = Schema("neighbour", ((cabling.NEIGHBOUR_KNOWN, of_nic),), (neighbour, addresses))
    priority = Entity(entities.NIC_PRIORITY, ("eth0", "3"))
    columns = ((nic.PFC_RECEIVED, priority), (nic.SENT, of_nic))
    counters = Schema("nic", tuple(columns[i] for i in Schema.ordered(columns)))
    sender = FrameSender(node, f"run-{at}")
    values = {nic.PFC_RECEIVED: 1013, nic.SENT: 10**18 + 1}
    row = [values[metric] for metric, _ in counters.columns]
    frames = [*sender.frames(known, [[1]], at=at), *sender.frames(counters, [row], at=at)]
    status, _ = await one.post(sender.body(frames, schemas=True), node=node)
    assert status == 200


async def polled(one: RunningCollector) -> None:
    polling = one.collector.switches.polling
    await polling.poll(polling.polled["leaf-07"])
    await one.collector.reader.wait_until_applied()
    assert polling.polled["leaf-07"].problem == ""


def settings(tmp_path: Path, agent: snmpd.SwitchAgent, cabling_rows: str = "") -> Any:
    rows = tmp_path / "cabling.csv"
    rows.write_text("switch,port,node,interface\n" + cabling_rows)
    switches = SwitchesSettings(
        file=str(agent.write_switches(tables="sonic", period_seconds=60.0)), cabling_file=str(rows)
    )
    return settings_in(tmp_path, limits=IngestLimits(), switches=switches)


async def test_switches_with_ports_and_links(tmp_path: Path, agent: snmpd.SwitchAgent):
    async with run_collector(settings(tmp_path, agent), poll_on_request) as one:
        await polled(one)
        await report_nic(one, "leaf-07", "Ethernet0")
        (row,) = (await one.json("/api/v1/switches"))["switches"]
        assert (row["switch"], row["ports"], row["system_name"]) == ("leaf-07", 2, "leaf-07")
        assert row["missing_tables"] == "IEEE8021-PFC-MIB"
        switch = await one.json("/api/v1/switches/leaf-07")
        port, other = switch["ports"]
        assert (port["port"], port["alias"]) == ("Ethernet0", "TO-SERVER-1")
        assert port["neighbour"]["system_name"] == "gpu-0001"
        assert "link" not in other
        link = port["link"]
        assert (link["node"], link["interface"], link["rail"]) == ("n1", "eth0", "3")
        listed = await one.json("/api/v1/links")
        assert listed["links"] == [
            {"switch": "leaf-07", "port": "Ethernet0", "node": "n1", "interface": "eth0", "rail": "3", "evidence": ["host_lldp", "switch_lldp"]}
        ]  # fmt: skip
        status, _ = await one.get("/api/v1/switches/leaf-99")
        assert status == 404


async def test_nic_that_receives_no_lldp_is_linked_by_the_mac_address_that_the_switch_receives(
    tmp_path: Path, agent: snmpd.SwitchAgent
):
    async with run_collector(settings(tmp_path, agent), poll_on_request) as one:
        await polled(one)
        await report_nic(one, "", "", node="n1")
        (link,) = (await one.json("/api/v1/links"))["links"]
        assert (link["node"], link["interface"], link["port"]) == ("n1", "eth0", "Ethernet0")
        assert link["evidence"] == ["switch_lldp"]
        await report_nic(one, "", "", node="n2")
        listed = await one.json("/api/v1/links")
        assert listed["links"] == []
        (fault,) = listed["cabling_faults"]
        assert fault["kind"] == "duplicate_address"
        assert [fault[end]["node"] for end in ("found", "stated")] == ["n1", "n2"]


async def test_nic_on_a_leaf_of_another_rail_is_a_fault(tmp_path: Path):
    with_tokens, tokens = settings_in(tmp_path), tmp_path / "tokens.toml"
    tokens.write_text(
        tokens.read_text().replace("n3 =", f'n4 = "{digest_token("token-n4")}"\nn3 =')
    )

    def compare_often(one: RunningCollector) -> None:
        one.collector.switches.compare_seconds = 0.01

    async with run_collector(with_tokens, compare_often) as one:
        assert "railscope_cabling_faults{" not in (await one.get("/metrics"))[1]
        usual = (("3", "leaf-3"), ("4", "leaf-4"))
        cables = {"n1": usual, "n2": usual, "n3": usual, "n4": (("3", "leaf-4"),)}
        for node, of_node in cables.items():
            nics = [Entity(entities.NIC, (f"eth{rail}",), {"rail": rail}) for rail, _ in of_node]
            neighbours = [
                Entity(entities.NIC_NEIGHBOUR, each.key, {"switch": leaf, "switch_port": node})
                for each, (_, leaf) in zip(nics, of_node, strict=True)
            ]
            columns = tuple((cabling.NEIGHBOUR_KNOWN, each) for each in nics)
            schema, sender = Schema("neighbour", columns, tuple(neighbours)), FrameSender(node)
            body = sender.body(sender.frames(schema, [[1] * len(nics)], at=0), schemas=True)
            assert (await one.post(body, node=node))[0] == 200
        (fault,) = (await one.json("/api/v1/links"))["cabling_faults"]
        found, none = {"node": "n4", "interface": "eth3"}, {"node": "", "interface": ""}
        assert fault == {
            "kind": "wrong_rail", "switch": "leaf-4", "port": "n4", "found": found, "stated": none,
            "expected_leaves": ["leaf-3"],
        }  # fmt: skip
        _, text = await one.get("/metrics")
        assert 'railscope_cabling_faults{kind="wrong_rail"} 1\n' in text
        assert 'railscope_cabling_faults{kind="ends_differ"} 0\n' in text
        cabling_log = one.collector.switches.cabling_log
        await wait_until(lambda: cabling_log.faults, "the cables are compared")
        assert [fault.kind for fault in cabling_log.faults] == ["wrong_rail"]


async def test_node_that_has_not_reported_for_an_hour_has_no_link(
    tmp_path: Path, agent: snmpd.SwitchAgent
):
    """Another node may have its place: both would be a fault."""
    async with run_collector(settings(tmp_path, agent), poll_on_request) as one:
        await polled(one)
        await report_nic(one, "leaf-07", "Ethernet0")
        core = one.collector.core
        for hours, expected in ((0, ["n1"]), (1.1, [])):
            now_ns = time.time_ns() + round(hours * HOUR_NS)
            ends = switch_view.LinkEnds(core, wall_ns=lambda now_ns=now_ns: now_ns)
            assert [link.nic[0] for link in ends.take()().links.values()] == expected


async def test_cabling_file_that_contradicts_lldp_is_a_fault(
    tmp_path: Path, agent: snmpd.SwitchAgent
):
    rows = "leaf-07,Ethernet4,n1,eth0\nleaf-07,Ethernet0,n2,eth0\n"
    async with run_collector(settings(tmp_path, agent, rows), poll_on_request) as one:
        await polled(one)
        await report_nic(one, "leaf-07", "Ethernet0")
        faults = (await one.json("/api/v1/links"))["cabling_faults"]
        n1, n2, none = (
            {"node": node, "interface": interface}
            for node, interface in (("n1", "eth0"), ("n2", "eth0"), ("", ""))
        )
        assert faults == [
            {"kind": "file_differs", "switch": "leaf-07", "port": "Ethernet0", "found": n1, "stated": n2},
            {"kind": "file_differs", "switch": "leaf-07", "port": "Ethernet4", "found": none, "stated": n1},
        ]  # fmt: skip
        switch = await one.json("/api/v1/switches/leaf-07")
        assert switch["cabling_faults"] == faults


LINK = 'railscope_switch_link_info{{switch="leaf-07",port="{port}",node="n1",interface="eth0",rail="3"}} 1\n'


async def test_link_has_an_info_metric_while_its_switch_is_read(
    tmp_path: Path, agent: snmpd.SwitchAgent
):
    async with run_collector(settings(tmp_path, agent), poll_on_request) as one:
        await report_nic(one, "leaf-07", "Ethernet0")
        assert "railscope_switch_link_info{" not in (await one.get("/metrics"))[1]
        await polled(one)
        _, text = await one.get("/metrics")
        assert LINK.format(port="Ethernet0") in text
        assert text.count("railscope_switch_link_info{") == 1
        await report_nic(one, "leaf-07", "Ethernet4", at=1)
        _, text = await one.get("/metrics")
        assert LINK.format(port="Ethernet4") in text, "the cable was moved"
        assert LINK.format(port="Ethernet0") not in text
        one.collector.switches.polling.polled["leaf-07"].problem = "no answer"
        assert "railscope_switch_link_info{" not in (await one.get("/metrics"))[1]
