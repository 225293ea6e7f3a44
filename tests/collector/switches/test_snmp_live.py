"""Polls of a switch that a real snmpd serves, from the datagram to the frame log and the metrics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from running_collector import RunningCollector, logged_envelopes, run_collector, settings_in
from support import snmp_objects, snmpd

from railscope.catalog.collector import EVIDENCE_WAITING, NODES
from railscope.reading import Absent
from railscope_collector.config import IngestLimits, SwitchesSettings
from railscope_collector.switches import switch_settings
from railscope_collector.switches.snmp_reader import MAX_EMPTY_POLLS, SnmpReader
from railscope_collector.switches.switch_reading import PORTS, SwitchReadError, SwitchReading


def configured(agent: snmpd.SwitchAgent, **more: str) -> switch_settings.ConfiguredSwitch:
    settings = SwitchesSettings(file=str(agent.write_switches(**more)), timeout_seconds=1.0)
    (switch,) = switch_settings.read_switches(settings)
    return switch


def values(reading: SwitchReading) -> dict[tuple[str, ...], Any]:
    """Values by metric and entity, without the name of the switch."""
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


async def read(switch: switch_settings.ConfiguredSwitch) -> SwitchReading:
    return await SnmpReader(switch, time.monotonic).read()


async def test_ports_priorities_queues_and_neighbours_are_those_of_the_tables(
    agent: snmpd.SwitchAgent,
):
    reading = await read(configured(agent, tables="sonic"))
    found = values(reading)
    assert found["ports",] == 2, "the VLAN is no port"
    assert found["port_up", "Ethernet4"] == 1
    assert found["port_speed_bytes_per_second", "Ethernet4"] == 400_000
    assert found["port_receive_bytes_total", "Ethernet4"] == 10**18 + 2, "exact beyond 2^53"
    assert found["port_transmit_bytes_total", "Ethernet4"] == (1 << 64) - 2
    assert found["port_receive_packets_total", "Ethernet0"] == 789
    assert found["port_receive_errors_total", "Ethernet0"] == 141
    assert found["port_transmit_discarded_packets_total", "Ethernet4"] == 192
    assert found["port_transmit_pfc_pause_frames_total", "Ethernet4", "3"] == 1023
    assert found["port_receive_pfc_pause_frames_total", "Ethernet4", "3"] == 2047
    assert found["queue_dropped_packets_total", "Ethernet4", "3"] == 2045
    assert found["neighbour_known", "Ethernet0"] == 1
    assert found["neighbour_known", "Ethernet4"] == 0
    (neighbour,) = {
        entity.facts["neighbour_port"]
        for (metric, entity), _ in reading.streams["switch_neighbours"]
        if entity.facts
    }
    assert neighbour == "02:bb:00:00:00:01"
    (switch,) = {entity for (_, entity), _ in reading.streams["switch"]}
    assert switch.facts["system_name"] == "leaf-07"
    assert switch.facts["chassis"] == "02:aa:00:00:00:07"
    assert switch.facts["missing_tables"] == "IEEE8021-PFC-MIB"


async def test_what_a_switch_does_not_have_is_unsupported_and_named(agent: snmpd.SwitchAgent):
    for oid in [oid for oid in agent.objects.objects if oid.startswith(("1.0.8802", "1.3.6.1.4"))]:
        del agent.objects.objects[oid]
    agent.write()
    reading = await read(configured(agent))
    found = values(reading)
    assert found["port_transmit_pfc_pause_frames_total", "Ethernet4", "3"] is Absent.UNSUPPORTED
    assert (
        found["port_all_priorities_receive_pfc_pause_frames_total", "Ethernet0"]
        is Absent.UNSUPPORTED
    )
    assert found["queue_dropped_packets_total", "Ethernet0", "7"] is Absent.UNSUPPORTED
    assert found["neighbour_known", "Ethernet0"] is Absent.UNSUPPORTED
    (switch,) = {entity for (_, entity), _ in reading.streams["switch"]}
    assert switch.facts["missing_tables"] == "IEEE8021-PFC-MIB, PFC by priority, queues, LLDP-MIB"


async def test_long_texts_of_many_ports_are_read_in_several_responses(agent: snmpd.SwitchAgent):
    names = {index: f"TO-SERVER-{index}-".ljust(255, "x") for index in range(11, 60)}
    for index, text in names.items():
        agent.objects.add_port(index, f"Ethernet{index}")
        agent.objects.add(f"{snmp_objects.IFX}.18.{index}", "string", text)
    agent.write()
    reading = await read(configured(agent))
    facts = {entity.key[1]: entity.facts for (_, entity), _ in reading.streams[PORTS]}
    assert {f"Ethernet{index}": text for index, text in names.items()}.items() <= {
        name: of["alias"] for name, of in facts.items()
    }.items()


async def test_table_that_is_empty_for_once_is_an_error_and_unsupported_if_it_remains_empty(
    agent: snmpd.SwitchAgent,
):
    reader = SnmpReader(configured(agent, tables="sonic"), time.monotonic)
    sent = "port_transmit_pfc_pause_frames_total", "Ethernet0", "3"
    assert values(await reader.read())[sent] == 1013
    objects = dict(agent.objects.objects)
    for oid in [oid for oid in objects if oid.startswith(snmp_objects.CISCO_PFC)]:
        del agent.objects.objects[oid]
    agent.write()
    later = [values(await reader.read())[sent] for _ in range(MAX_EMPTY_POLLS + 1)]
    assert later == [*[Absent.ERROR] * MAX_EMPTY_POLLS, Absent.UNSUPPORTED]
    agent.objects.objects = objects
    agent.write()
    assert values(await reader.read())[sent] == 1013


async def test_version_3_with_authentication_and_privacy(agent: snmpd.SwitchAgent):
    credential = switch_settings.SnmpCredential(
        user=snmpd.USER,
        authentication="sha256",
        authentication_password=snmpd.PASSWORD,
        privacy="aes128",
        privacy_password=snmpd.PRIVACY_PASSWORD,
    )
    switch = msgspec.structs.replace(configured(agent), credential=credential)
    assert values(await read(switch))["ports",] == 2
    wrong = msgspec.structs.replace(credential, authentication_password="another-password")  # noqa: S106
    with pytest.raises(SwitchReadError):
        await read(msgspec.structs.replace(switch, credential=wrong, timeout_seconds=0.2))


async def test_wrong_community_is_a_timeout_with_a_remedy(agent: snmpd.SwitchAgent):
    credential = switch_settings.SnmpCredential(community="another")
    switch = msgspec.structs.replace(configured(agent), credential=credential, timeout_seconds=0.2)
    with pytest.raises(SwitchReadError, match="accepts the credential") as failed:
        await read(switch)
    assert failed.value.reason == "timeout"


async def test_polled_switch_is_in_frame_log_and_metrics_and_not_among_the_nodes(
    tmp_path: Path, agent: snmpd.SwitchAgent
):
    file = str(agent.write_switches(tables="sonic", period_seconds=60.0))
    settings = settings_in(tmp_path, limits=IngestLimits(), switches=SwitchesSettings(file=file))
    async with run_collector(settings, poll_on_request) as one:
        polling = one.collector.switches.polling
        polled = polling.polled["leaf-07"]
        await polling.poll(polled)
        assert polled.problem == ""
        assert logged_envelopes(tmp_path) == 1
        agent.objects.add("1.3.6.1.2.1.2.2.1.14.1", "counter", 150)
        agent.write()
        await polling.poll(polled)
        assert logged_envelopes(tmp_path) == 2
        fleet = one.collector.core.fleet
        assert set(fleet.switches) == {"switch/leaf-07"}
        assert not fleet.nodes
        _, text = await one.get("/metrics")
        assert 'railscope_switch_up{switch="leaf-07"} 1\n' in text
        port = 'switch="leaf-07",port="Ethernet4"'
        name = "railscope_switch_port_transmit_bytes_total"
        assert f"{name}{{{port}}} {(1 << 64) - 2}\n" in text, "exact in all 64 bits"
        assert (
            f'railscope_switch_port_transmit_pfc_pause_frames_total{{{port},priority="3"}} 1023\n'
            in text
        )
        assert f'railscope_switch_port_info{{{port},index="2",alias="TO-SERVER-2"' in text
        assert "all_priorities_receive_pfc_pause_frames_total{" not in text, "unsupported, not zero"
        views = await one.collector.refresher.refresh()
        assert not views.node.cells
        assert [cell.value for cell in views.cluster.cells if cell.metric is NODES] == [0]
        assert f"{EVIDENCE_WAITING.name} 0\n" in text, "no usage evidence"
    async with run_collector(
        msgspec.structs.replace(settings, switches=SwitchesSettings())
    ) as again:
        assert set(again.collector.core.fleet.switches) == {"switch/leaf-07"}, "read from the log"


def poll_on_request(one: RunningCollector) -> None:
    """Let the first poll of the collector itself begin after a minute, long after the test."""
    one.collector.switches.polling.random_share = lambda: 1.0
