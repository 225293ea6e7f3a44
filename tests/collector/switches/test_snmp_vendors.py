"""Switches of several manufacturers by SNMP: walks of real devices and constructed ones, served by a real snmpd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import snmp_objects, snmpd
from support.shared import capture_path

from railscope.catalog import declare, switches as catalog
from railscope.reading import Absent
from railscope_collector.config import SwitchesSettings
from railscope_collector.switches import switch_settings
from railscope_collector.switches.snmp_columns import find_vendor
from railscope_collector.switches.snmp_reader import SnmpReader
from railscope_collector.switches.snmp_values import as_signed
from railscope_collector.switches.switch_facts import as_stored
from railscope_collector.switches.switch_reading import (
    NEIGHBOURS,
    PORTS,
    SWITCH,
    SwitchReading,
)

COMWARE, OPENCONFIG = "switch/comware", "switch/openconfig"
LOSSLESS = f"{COMWARE}/comware7-lossless-derived"
LEAF, SPLIT = "FourHundredGigE1/0/1", "TwoHundredGigE1/0/2:1"


def recorded(capture: str) -> snmp_objects.SwitchObjects:
    return snmp_objects.SwitchObjects.from_records(capture_path(f"{capture}.snmprec").read_text())


@contextmanager
def reader(
    directory: Path, objects: snmp_objects.SwitchObjects, *, version: int = 2
) -> Iterator[tuple[SnmpReader, snmpd.SwitchAgent]]:
    with snmpd.running(directory / "snmpd", objects) as agent:
        settings = SwitchesSettings(file=str(agent.write_switches()), timeout_seconds=1.0)
        (switch,) = switch_settings.read_switches(settings)
        if version == 3:
            credential = switch_settings.SnmpCredential(
                user=snmpd.USER,
                authentication="sha256",
                authentication_password=snmpd.PASSWORD,
                privacy="aes128",
                privacy_password=snmpd.PRIVACY_PASSWORD,
            )
            switch = msgspec.structs.replace(switch, credential=credential)
        yield SnmpReader(switch, time.monotonic), agent


async def read(directory: Path, capture: str) -> SwitchReading:
    with reader(directory, recorded(capture)) as (one, _):
        return await one.read()


def values(reading: SwitchReading) -> dict[tuple[str, ...], Any]:
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


def facts(reading: SwitchReading, stream: str) -> dict[str, dict[str, str]]:
    return {entity.key[-1]: entity.facts for (_, entity), _ in reading.streams[stream]}


# H3C Comware -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
async def test_comware_has_rates_queues_buffers_and_optics(tmp_path: Path, version: int):
    with reader(tmp_path, recorded(f"{LOSSLESS}-t0"), version=version) as (one, _):
        found = await one.read()
    assert (one.vendor, found.dialect) == ("comware", "comware")
    got = values(found)
    expected = {
        ("ports",): 5,
        ("port_speed_bytes_per_second", LEAF): 400_000,
        ("port_up", "FourHundredGigE1/0/3"): 0,
        ("port_receive_bytes_total", LEAF): 9_100_000_000_000_000,
        ("port_receive_errors_total", SPLIT): 4_294_967_200,
        ("port_receive_fcs_errors_total", LEAF): 0,
        ("port_transmit_pause_frames_total", LEAF): 0,
        ("port_transmit_pfc_pause_frames_per_second", LEAF, "3"): 830,
        ("port_receive_pfc_pause_frames_per_second", LEAF, "3"): 0,
        ("queue_transmit_packets_total", LEAF, "3"): 5_990_000_000_000,
        ("queue_dropped_packets_total", LEAF, "3"): 1_200,
        ("queue_dropped_bytes_total", LEAF, "3"): 1_800_000,
        ("queue_wred_dropped_packets_total", LEAF, "3"): 800,
        ("queue_occupancy_bytes", LEAF, "3"): 615_000,
        ("queue_buffer_used_ratio", LEAF, "3"): 26,
        ("queue_buffer_peak_ratio", LEAF, "3"): 41,
        ("priority_group_buffer_used_ratio", LEAF, "3"): 15,
        ("priority_group_headroom_used_ratio", LEAF, "3"): 30,
        ("priority_group_headroom_peak_ratio", LEAF, "3"): 55,
        ("transceiver_temperature_celsius", LEAF): 52_000,
        ("transceiver_supply_volts", LEAF): 3_290_000,
        ("transceiver_bias_amperes", LEAF, "2"): 64_520,
        ("transceiver_receive_power_watts", LEAF, "1"): 831_764,
        ("transceiver_transmit_power_watts", LEAF, "1"): 1_288_250,
        ("transceiver_receive_power_watts", LEAF, "4"): Absent.UNSUPPORTED,
        ("transceiver_receive_power_watts", SPLIT, "0"): 822_243,
        ("transceiver_temperature_celsius", "FourHundredGigE1/0/3"): Absent.UNSUPPORTED,
        # A rate is no count
        ("port_transmit_pfc_pause_frames_total", LEAF, "3"): Absent.UNSUPPORTED,
        # The walk has unicast packets only: they are not all packets
        ("port_receive_packets_total", LEAF): Absent.UNSUPPORTED,
    }
    assert {key: got[key] for key in expected} == expected
    assert ("transceiver_receive_power_watts", LEAF, "0") not in got, "it has lanes"
    (switch,) = facts(found, SWITCH).values()
    assert switch["missing_tables"] == "IEEE8021-PFC-MIB, PFC by priority"
    assert "Release 9999P01 H3C S9825-64D Copyright" in switch["description"]


async def test_comware_neighbours_are_at_the_port_that_their_local_port_names(tmp_path: Path):
    found = await read(tmp_path, f"{LOSSLESS}-t0")
    known = facts(found, NEIGHBOURS)
    assert {port: each.get("system_name", "") for port, each in known.items()} == {
        LEAF: "spine-01",
        SPLIT: "gpu-node-01",
        "TwoHundredGigE1/0/2:2": "gpu-node-02",
        "FourHundredGigE1/0/3": "",
        "M-GigabitEthernet0/0/0": "",
    }
    assert known[SPLIT]["neighbour_port"] == "02:00:00:00:01:01"
    assert known["TwoHundredGigE1/0/2:2"]["neighbour_port"] == "ens2np0"
    aliases = {port: each["alias"] for port, each in facts(found, PORTS).items()}
    assert [port for port, alias in aliases.items() if alias] == [SPLIT], "no default texts"


async def test_ports_of_all_members_of_an_irf_chassis_are_of_one_switch(tmp_path: Path):
    found = await read(tmp_path, f"{COMWARE}/comware7-hp5700-irf-cut")
    ports = facts(found, PORTS)
    assert {name.partition("/")[0].rpartition("Ethernet")[2] for name in ports} == {
        "0",
        "2",
        "8",
        "9",
    }
    assert len(ports) == 11, "no aggregation, VLAN or NULL0"
    assert len({each["mac_address"] for each in ports.values()}) == 2
    assert ports["Ten-GigabitEthernet9/0/1"]["alias"] == ""
    assert ports["Ten-GigabitEthernet9/0/10"]["alias"] == "to-neighbour-01"
    got = values(found)
    assert got["port_receive_errors_total", "Ten-GigabitEthernet8/0/9"] == 19
    assert got["port_receive_bytes_total", "Ten-GigabitEthernet9/0/10"] == 3_631_158_395_478
    lit, dark = "Ten-GigabitEthernet9/0/10", "Ten-GigabitEthernet8/0/29"
    assert got["transceiver_receive_power_watts", lit, "0"] == 98_855, "-10.05 dBm"
    assert got["transceiver_bias_amperes", lit, "0"] == 9_990
    assert got["transceiver_receive_power_watts", dark, "0"] is Absent.UNSUPPORTED
    assert got["port_up", dark] == 1
    (switch,) = facts(found, SWITCH).values()
    assert switch["missing_tables"] == (
        "IEEE8021-PFC-MIB, PFC by priority, queues, frame errors and pauses, PFC rate by priority, "
        "WRED drops and depth of queues, buffers of queues, buffers of priority groups, LLDP-MIB"
    )


async def test_queues_are_numbered_from_0_or_1_as_their_rows_show_and_else_an_error(
    tmp_path: Path,
):
    for first in (0, 1):
        objects = snmp_objects.SwitchObjects()
        objects.add_comware(2, first)
        (tmp_path / str(first)).mkdir()
        with reader(tmp_path / str(first), objects) as (one, _):
            got = values(await one.read())
        packets = [got["queue_transmit_packets_total", "Ethernet4", str(n)] for n in range(8)]
        assert packets == [2000 + 10 * n + 1 for n in range(1, 9)]
    for oid in [oid for oid in objects.objects if oid.startswith(snmp_objects.HH3C)]:
        if oid.endswith(".8"):
            del objects.objects[oid]
    with reader(tmp_path, objects) as (one, _):
        got = values(await one.read())
    assert got["queue_transmit_packets_total", "Ethernet4", "3"] is Absent.ERROR


# Times of reads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("object_id", "vendor"),
    [
        ("1.3.6.1.4.1.25506.11.1.172", "comware"), (".1.3.6.1.4.1.25506", "comware"), ("1.3.6.1.4.1.9.12.3", "cisco"),
        ("1.3.6.1.4.1.8072.3.2.10", "sonic"), ("1.3.6.1.4.1.33049.1.1", "onyx"), ("1.3.6.1.4.1.30065.1", "standard"),
        ("1.3.6.1.4.1.255060.1", "standard"), ("25506", "comware"), ("", "standard"), (None, "standard"), (7, "standard"),
    ]
)  # fmt: skip
def test_manufacturer_follows_from_the_enterprise_in_sysobjectid(object_id, vendor):
    assert find_vendor(object_id) == vendor


@pytest.mark.parametrize(
    ("hundredths", "nanowatts"),
    [
        (0, 1_000_000), (-85, 822_243), (-3600, 251), (-4000, 100), (-9999, 0), (112, 1_294_196), (3000, 10**9),
        (3001, Absent.ERROR), (-10_001, Absent.ERROR), (2_147_483_647, Absent.UNSUPPORTED), (-2_147_483_648, Absent.ERROR),
        (1 << 70, Absent.ERROR), (b"-85", Absent.ERROR), (True, Absent.ERROR), (None, Absent.UNSUPPORTED),
    ]
)  # fmt: skip
def test_optical_power_in_dbm_is_a_number_of_nanowatts_or_a_reason(hundredths, nanowatts):
    power = as_signed(hundredths)
    assert as_stored(catalog.TRANSCEIVER_RECEIVE_POWER, power, declare.CENTI) == nanowatts


# Other manufacturers -----------------------------------------------------------------------------


async def test_arista_neighbours_have_ids_of_several_subtypes(tmp_path: Path):
    found = await read(tmp_path, f"{OPENCONFIG}/snmp-arista-7050tx-cut")
    known = facts(found, NEIGHBOURS)
    assert {name: each["neighbour_port"] for name, each in known.items() if each} == {
        "Ethernet1": "02:00:00:00:00:01",
        "Ethernet3": "02:00:00:00:00:02",
        "Ethernet5": "02:00:00:00:00:03",
        "Ethernet6": "02:00:00:00:00:04",
        "Ethernet47": "\\A switch-a Et47\\",
        "Ethernet48": "Te1/3",
    }
    assert "Port-Channel1" not in known
    assert facts(found, PORTS)["Management1"]["index"] == "999001"


async def test_junos_neighbours_have_a_number_as_port_and_its_name_as_description(tmp_path: Path):
    found = await read(tmp_path, f"{OPENCONFIG}/snmp-junos-qfx5100-lldp-cut")
    known = facts(found, NEIGHBOURS)
    assert {name: (each["neighbour_port"], each["port_description"]) for name, each in known.items()} == {
        "xe-0/0/0": ("2150", "ifa"),
        "xe-0/0/1": ("2447", "ifb"),
    }  # fmt: skip


async def test_logical_units_of_junos_are_no_ports(tmp_path: Path):
    found = await read(tmp_path, f"{OPENCONFIG}/snmp-junos-qfx5130-cut")
    got = values(found)
    assert set(facts(found, PORTS)) == {
        "re0:mgmt-0", "et-0/0/0", "et-0/0/1", "et-0/0/32", "et-0/0/33",
    }  # fmt: skip
    assert got["port_speed_bytes_per_second", "et-0/0/0"] == 400_000
    assert got["port_up", "et-0/0/0"] == 0


async def test_nxos_has_large_indexes_and_no_uptime_here(tmp_path: Path):
    found = await read(tmp_path, f"{OPENCONFIG}/snmp-nxos-n9k-cut")
    got = values(found)
    assert facts(found, PORTS)["Ethernet1/1"]["index"] == "436207616"
    assert got["port_receive_bytes_total", "Ethernet1/53"] == 11_975_662_305
    assert got["uptime_seconds",] is Absent.UNSUPPORTED
    assert found.uptime_ns is None
    (switch,) = facts(found, SWITCH).values()
    assert switch["missing_tables"] == "IEEE8021-PFC-MIB, PFC by priority, queues, LLDP-MIB"
