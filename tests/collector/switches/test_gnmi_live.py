"""Polls of a SONiC switch over real gRPC with the official messages, and answers that no switch should give."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from support import sonic_switch as sonic
from support.certificates import self_signed

from railscope.reading import Absent, Reading
from railscope.settings import SettingsError
from railscope_collector.config import SwitchesSettings
from railscope_collector.switches import gnmi_messages, gnmi_reader, switch_settings
from railscope_collector.switches.switch_polling import SwitchPolling
from railscope_collector.switches.switch_reading import SwitchReadError, SwitchReading

ROOT = Path(__file__).parents[3]
VENDORED = ROOT / "collector/railscope_collector/switches/vendor"


def configured(file: Path, timeout_seconds: float = 2.0) -> switch_settings.ConfiguredSwitch:
    settings = SwitchesSettings(file=str(file), timeout_seconds=timeout_seconds)
    (switch,) = switch_settings.read_switches(settings)
    return switch


def values(reading: SwitchReading) -> dict[tuple[str, ...], Reading]:
    """Values by metric and entity, without the name of the switch."""
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


async def read(switch: switch_settings.ConfiguredSwitch) -> SwitchReading:
    return await gnmi_reader.GnmiReader(switch, time.monotonic).read()


async def read_plaintext(
    switch: sonic.SonicSwitch, directory: Path, **more: float
) -> SwitchReading:
    return await read(configured(switch.write_switches(directory, plaintext=True), **more))


def facts(reading: SwitchReading, stream: str) -> list[dict[str, str]]:
    found = {entity.key: dict(entity.facts) for (_, entity), _ in reading.streams[stream]}
    return list(found.values())


async def test_ports_priorities_queues_watermarks_and_neighbours_are_those_of_the_tables(
    tmp_path: Path,
):
    async with sonic.sonic_switch() as switch:
        reading = await read_plaintext(switch, tmp_path)
    found = values(reading)
    expected: dict[tuple[str, ...], Reading] = {
        ("ports",): 2,
        ("port_up", "Ethernet0"): 1,
        ("port_up", "Ethernet4"): 0,
        ("port_enabled", "Ethernet4"): 1,
        ("port_speed_bytes_per_second", "Ethernet4"): 400_000,
        ("port_receive_bytes_total", "Ethernet4"): 10**18 + 2,
        ("port_transmit_bytes_total", "Ethernet0"): (1 << 64) - 2,
        ("port_receive_packets_total", "Ethernet0"): 789,
        ("port_transmit_packets_total", "Ethernet4"): 1222,
        ("port_receive_errors_total", "Ethernet4"): (1 << 32) + 2,
        ("port_receive_discarded_packets_total", "Ethernet4"): 302,
        ("port_all_priorities_transmit_pfc_pause_frames_total", "Ethernet0"): 16_028,
        ("port_receive_pfc_pause_frames_total", "Ethernet4", "3"): 2003,
        ("port_transmit_pfc_pause_frames_total", "Ethernet4", "3"): 4003,
        ("port_receive_pfc_pauses_ended_total", "Ethernet0", "7"): 507,
        ("port_receive_pfc_pause_estimated_seconds_total", "Ethernet0", "3"): 3_000_003,
        ("queue_transmit_packets_total", "Ethernet4", "3"): 20_030,
        ("queue_ecn_marked_packets_total", "Ethernet4", "3"): 20_034,
        ("queue_wred_dropped_packets_total", "Ethernet4", "3"): 20_036,
        ("queue_occupancy_bytes", "Ethernet4", "3"): 20_038,
        ("queue_watermark_bytes", "Ethernet4", "3"): 20_039,
        ("queue_pfc_watchdog_storm", "Ethernet0", "4"): 1,
        ("queue_pfc_watchdog_storm", "Ethernet0", "3"): 0,
        ("queue_pfc_watchdog_storm", "Ethernet0", "0"): Absent.UNSUPPORTED,
        ("queue_pfc_watchdog_detected_storms_total", "Ethernet0", "4"): 4,
        ("queue_pfc_watchdog_dropped_packets_total", "Ethernet0", "4"): 34,
        ("priority_group_shared_watermark_bytes", "Ethernet4", "3"): 5003,
        ("priority_group_headroom_watermark_bytes", "Ethernet4", "3"): 603,
        ("priority_group_headroom_bytes", "Ethernet0", "4"): 160_000,
        ("priority_group_headroom_bytes", "Ethernet4", "3"): 160_000,
        ("priority_group_headroom_bytes", "Ethernet4", "4"): Absent.UNSUPPORTED,
        ("priority_group_headroom_bytes", "Ethernet0", "0"): Absent.UNSUPPORTED,
        ("pool_watermark_bytes", "ingress_lossless_pool"): 3000,
        ("pool_headroom_watermark_bytes", "ingress_lossless_pool"): 432_640,
        ("neighbour_known", "Ethernet0"): 1,
        ("neighbour_known", "Ethernet4"): 0,
        ("uptime_seconds",): Absent.UNSUPPORTED,
    }
    assert {key: found[key] for key in expected} == expected
    assert not any(value is Absent.ERROR for value in found.values())
    assert not any(len(key) > 2 and key[2] == "8" for key in found), "queues of multicast"
    assert facts(reading, "switch") == [
        {
            "system_name": "leaf-07",
            "description": "SONiC Software Version: SONiC.202505",
            "chassis": "02:aa:00:00:00:07",
            "missing_tables": "",
        }
    ]
    assert facts(reading, "switch_neighbours")[0] == {
        "system_name": "gpu-0001",
        "chassis": "02:bb:00:00:00:01",
        "neighbour_port": "02:bb:00:00:00:02",
        "port_description": "eth0",
    }
    assert facts(reading, "switch_ports")[1]["alias"] == "etp2"


async def test_what_a_switch_does_not_have_is_unsupported_and_named(tmp_path: Path):
    async with sonic.sonic_switch() as switch:
        for path in (sonic.GROUPS, sonic.POOLS, sonic.PROFILES, sonic.NEIGHBOURS):
            del switch.tables[path]
        for row in (*switch.tables[sonic.QUEUES].values(), *switch.tables[sonic.PORTS].values()):
            for name in [n for n in row if "WRED" in n or n.startswith(("PFC_WD", "EST_"))]:
                del row[name]
        reading = await read_plaintext(switch, tmp_path)
    found = values(reading)
    for key in (
        ("queue_ecn_marked_packets_total", "Ethernet0", "3"),
        ("queue_pfc_watchdog_storm", "Ethernet0", "3"),
        ("port_receive_pfc_pause_estimated_seconds_total", "Ethernet0", "3"),
        ("priority_group_headroom_bytes", "Ethernet0", "3"),
        ("priority_group_headroom_watermark_bytes", "Ethernet0", "3"),
        ("neighbour_known", "Ethernet0"),
    ):
        assert found[key] is Absent.UNSUPPORTED
    assert found["queue_transmit_packets_total", "Ethernet0", "3"] == 10_030
    assert facts(reading, "switch")[0]["missing_tables"] == (
        "estimated pause time, WRED_ECN_QUEUE, PFC watchdog, watermarks of priority groups, "
        "watermarks of buffer pools, LLDP_ENTRY_TABLE"
    )


async def test_each_group_is_read_in_its_period_and_the_switch_has_the_same_facts(tmp_path: Path):
    now = [1000.0]
    async with sonic.sonic_switch() as switch:
        del switch.tables[sonic.NEIGHBOURS]
        file = switch.write_switches(tmp_path, plaintext=True)
        reader = gnmi_reader.GnmiReader(configured(file), lambda: now[0])
        seen = []
        for seconds in (0, 5, 5, 50):
            now[0] += seconds
            switch.requests.clear()
            reading = await reader.read()
            seen.append((set(switch.requests), facts(reading, "switch")))
    always = {sonic.PORTS, sonic.STATES}
    pools = {sonic.POOLS, ("COUNTERS_DB", "PERIODIC_WATERMARKS", sonic.POOL_OID)}
    profiles = {sonic.PROFILE_NAMES, sonic.PROFILES}
    neighbours = {sonic.NEIGHBOURS, sonic.CHASSIS}
    everything = {*always, sonic.QUEUES, sonic.GROUPS, *pools, *profiles, *neighbours}
    assert [requests for requests, _ in seen] == [
        everything,
        always,
        {*always, sonic.QUEUES},
        everything,
    ]
    assert len({str(known) for _, known in seen}) == 1


async def test_a_group_that_fails_concerns_itself_only(tmp_path: Path):
    async with sonic.sonic_switch() as switch:
        switch.silent.add(sonic.QUEUES)
        switch.failures[sonic.GROUPS] = grpc.StatusCode.INTERNAL
        switch.raw[sonic.NEIGHBOURS] = sonic.encode_answer("APPL_DB", b"[1]")
        found = values(await read_plaintext(switch, tmp_path, timeout_seconds=0.05))
    assert found["queue_transmit_packets_total", "Ethernet0", "0"] is Absent.TIMEOUT
    assert found["priority_group_headroom_watermark_bytes", "Ethernet0", "3"] is Absent.ERROR
    assert found["neighbour_known", "Ethernet0"] is Absent.ERROR
    assert found["port_receive_bytes_total", "Ethernet0"] == 10**18 + 1


HUGE = b'{"Ethernet0": {' + b",".join(b'"f%d":"1"' % n for n in range(400_001)) + b"}}"


@pytest.mark.parametrize(
    ("raw", "reason", "problem"),
    [
        (b"\xff\xff\xff", "error", "malformed answer"),
        (b"", "error", "expected one update"),
        (sonic.encode_answer("STATE_DB", b"{}"), "error", "answer of target 'STATE_DB'"),
        (
            sonic.encode_answer("COUNTERS_DB", b"1", "bytes_val"),
            "error",
            "expected a value in JSON",
        ),
        (sonic.encode_answer("COUNTERS_DB", b"{"), "error", "invalid JSON"),
        (sonic.encode_answer("COUNTERS_DB", b'{"a":{"\xff":1}}'), "error", "invalid JSON"),
        (
            sonic.encode_answer("COUNTERS_DB", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
            "error",
            "invalid JSON",
        ),
        (sonic.encode_answer("COUNTERS_DB", HUGE), "limit", "too many values"),
        (sonic.encode_answer("COUNTERS_DB", b" " * (9 << 20)), "limit", "RESOURCE_EXHAUSTED"),
        (sonic.encode_answer("COUNTERS_DB", b"{}"), "error", "no ports"),
    ],
    ids=[
        "no-message",
        "empty",
        "other-target",
        "bytes",
        "cut",
        "no-text",
        "deep",
        "many-values",
        "large",
        "no-ports",
    ],
)
async def test_hostile_answers_end_in_a_reason(
    tmp_path: Path, raw: bytes, reason: str, problem: str
):
    async with sonic.sonic_switch() as switch:
        switch.raw[sonic.PORTS] = raw
        with pytest.raises(SwitchReadError, match=problem) as failed:
            await read_plaintext(switch, tmp_path)
    assert failed.value.reason == reason
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "credential not accepted"),
        (grpc.StatusCode.NOT_FOUND, "expected a switch with SONiC"),
        (grpc.StatusCode.UNIMPLEMENTED, "expected a switch with SONiC"),
        (grpc.StatusCode.INTERNAL, "gRPC status INTERNAL a status of the test"),
    ],
)
async def test_statuses_of_the_switch_are_named(
    tmp_path: Path, code: grpc.StatusCode, problem: str
):
    async with sonic.sonic_switch() as switch:
        switch.failures[sonic.PORTS] = code
        with pytest.raises(SwitchReadError, match=problem):
            await read_plaintext(switch, tmp_path)


async def test_nothing_that_listens_is_an_error(tmp_path: Path):
    async with sonic.sonic_switch() as switch:
        file = switch.write_switches(tmp_path, plaintext=True)
    with pytest.raises(SwitchReadError, match="UNAVAILABLE"):
        await read(configured(file, 0.1))


async def test_tls_with_a_pinned_authority_a_client_certificate_and_a_password(tmp_path: Path):
    certificate, key = self_signed(tmp_path / "switch")
    own, own_key = self_signed(tmp_path / "own")
    pair = (key.read_bytes(), certificate.read_bytes())
    credentials = grpc.ssl_server_credentials(
        [pair], root_certificates=own.read_bytes(), require_client_auth=True
    )
    (tmp_path / "user.toml").write_text('user = "watcher"\npassword = "secret-text"\n')
    async with sonic.sonic_switch(credentials) as switch:
        own_files = {"certificate_file": str(own), "key_file": str(own_key)}
        trusted = {"ca_file": str(certificate), "credential_file": str(tmp_path / "user.toml")}
        found = await read(configured(switch.write_switches(tmp_path, **own_files, **trusted)))
        assert values(found)["ports",] == 2
        assert {"username": "watcher", "password": "secret-text"}.items() <= switch.metadata[
            0
        ].items()
        untrusted = {"ca_file": str(own)}
        with pytest.raises(SwitchReadError, match=r"untrusted certificate.*set ca_file"):
            await read(configured(switch.write_switches(tmp_path, **own_files, **untrusted)))
        with pytest.raises(SwitchReadError):
            await read(configured(switch.write_switches(tmp_path, **trusted)))
        with pytest.raises(SwitchReadError):
            await read(configured(switch.write_switches(tmp_path, plaintext=True)))


async def test_check_reads_each_switch_and_names_those_that_fail(tmp_path: Path):
    async with sonic.sonic_switch() as switch:
        file = str(switch.write_switches(tmp_path, plaintext=True))
        settings = SwitchesSettings(file=file, timeout_seconds=0.1)
        polling = SwitchPolling.from_settings(settings, time.time_ns, lambda: True)
        assert (
            await polling.probe()
            == "leaf-07: sonic (SONiC Software Version: SONiC.202505), 2 ports, 1 with a neighbour"
        )
        switch.failures[sonic.PORTS] = grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(SettingsError, match="leaf-07: credential not accepted"):
            await polling.probe()


def test_vendored_definition_is_the_listed_one_and_is_named_in_the_notice() -> None:
    listed = dict(
        line.split("  ")[::-1] for line in (VENDORED / "SHA256SUMS").read_text().splitlines()
    )
    found = {file.name: sha256(file.read_bytes()).hexdigest() for file in VENDORED.iterdir()}
    del found["SHA256SUMS"]
    assert found == listed
    notice = (ROOT / "NOTICE").read_text()
    assert all(name in notice for name in listed)
    assert "Apache License" in (VENDORED / "gnmi.LICENSE").read_text()
    assert gnmi_messages.VERSION.encode() in (VENDORED / "gnmi.binpb").read_bytes()
    assert f"gNMI {gnmi_messages.VERSION}," in notice
