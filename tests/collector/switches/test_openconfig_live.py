"""Polls of a switch with OpenConfig over real gRPC: subscriptions, their faults, and the choice of the dialect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from running_collector import run_collector, settings_in
from structlog.testing import capture_logs
from support import gnmi_captures as captures, openconfig_switch as server, sonic_switch

from railscope.reading import Absent, Reading
from railscope_collector.config import IngestLimits, SwitchesSettings
from railscope_collector.switches import (
    gnmi_messages,
    gnmi_reader,
    openconfig_tables as tables,
    switch_reading as base,
    switch_settings,
)

SYNC = gnmi_messages.encode("SubscribeResponse", sync_response=True)


def configured(file: Path, timeout_seconds: float = 2.0) -> switch_settings.ConfiguredSwitch:
    settings = SwitchesSettings(file=str(file), timeout_seconds=timeout_seconds)
    (switch,) = switch_settings.read_switches(settings)
    return switch


async def read(
    switch: server.OpenConfigSwitch | sonic_switch.SonicSwitch,
    directory: Path,
    timeout_seconds: float = 2.0,
    **more: object,
) -> base.SwitchReading:
    file = switch.write_switches(directory, **({"plaintext": True} | more))
    return await gnmi_reader.GnmiReader(configured(file, timeout_seconds), time.monotonic).read()


def values(reading: base.SwitchReading) -> dict[tuple[str, ...], Reading]:
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


@pytest.mark.parametrize("encoding", ["PROTO", "JSON_IETF", "JSON"])
async def test_each_encoding_gives_the_same_values(tmp_path: Path, encoding: str):
    async with server.openconfig_switch() as switch:
        switch.encodings = [encoding]
        reading = await read(switch, tmp_path)
    assert {each.encoding for each in switch.decoded} == {
        number for number, name in gnmi_messages.enumeration("Encoding").items() if name == encoding
    }
    expected: dict[tuple[str, ...], Reading] = {
        ("ports",): 2,
        ("port_up", "Ethernet2/1"): 1,
        ("port_speed_bytes_per_second", "Ethernet2/1"): 400_000,
        ("port_receive_bytes_total", "Ethernet2/1"): 10**18 + 2,
        ("port_transmit_pfc_pause_frames_total", "Ethernet2/1", "3"): 2000,
        ("queue_ecn_marked_packets_total", "Ethernet2/1", "3"): 20,
        ("neighbour_known", "Ethernet1/1"): 1,
        ("port_receive_pause_frames_total", "Ethernet1/1"): Absent.UNSUPPORTED,
    }
    found = values(reading)
    assert {key: found[key] for key in expected} == expected
    assert reading.dialect == "openconfig"


async def test_request_is_once_with_the_models_of_the_switch_and_their_origin(tmp_path: Path):
    async with server.openconfig_switch() as switch:
        switch.models = ["openconfig-interfaces", "openconfig-qos", "other"]
        reading = await read(switch, tmp_path)
    assert switch.requests == [server.PORTS, server.QUEUES]
    for request in switch.decoded:
        assert request.mode == request.Mode.Value("ONCE")
        assert [each.path.origin for each in request.subscription] == ["openconfig"]
    ((_, entity), _), *_ = reading.streams[base.SWITCH]
    assert entity.facts["missing_tables"] == (
        "Ethernet counters, FEC, PFC, PFC watchdog, system, optics, LLDP"
    )


async def test_switch_without_once_is_read_by_the_first_pass_of_samples(tmp_path: Path):
    async with server.openconfig_switch() as switch:
        switch.has_once, switch.remains_open = False, True
        file = switch.write_switches(tmp_path, plaintext=True)
        reader = gnmi_reader.GnmiReader(configured(file), time.monotonic)
        assert values(await reader.read())["port_receive_bytes_total", "Ethernet1/1"] == 10**18 + 1
        assert switch.requests[:2] == [server.PORTS, server.PORTS]
        assert switch.requests.count(server.QUEUES) == 1
        switch.requests.clear()
        await reader.read()
        assert switch.requests.count(server.PORTS) == 1
    sampled = switch.decoded[-1]
    assert sampled.mode == sampled.Mode.Value("STREAM")
    (mode,) = {each.mode for each in sampled.subscription}
    assert gnmi_messages.enumeration("SubscriptionMode")[mode] == "SAMPLE"


# The dialect -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "dialect", "problem"),
    [
        (["sonic-db", "openconfig-interfaces"], "auto", "expected a switch with SONiC"),
        ([], "auto", "expected a switch with SONiC"),
        (server.MODELS, "sonic", "expected a switch with SONiC"),
        (["ietf-interfaces"], "auto", "no model of ports in Capabilities"),
        (["sonic-db"], "openconfig", "no model of ports in Capabilities"),
    ],
)
async def test_models_decide_the_dialect(
    tmp_path: Path, models: Sequence[str], dialect: str, problem: str
):
    async with server.openconfig_switch() as switch:
        switch.models = models
        with pytest.raises(base.SwitchReadError, match=problem):
            await read(switch, tmp_path, dialect=dialect)


async def test_sr_linux_is_read_by_its_native_models(tmp_path: Path):
    """The capture answers the first request, the others are empty: the path of an answer decides."""
    state = captures.until_sync(captures.capture_messages("nokia-srl-native-derived"))
    async with server.openconfig_switch() as switch:
        switch.models = [group.model for group in tables.SRL_GROUPS]
        switch.encodings = ["JSON_IETF"]
        switch.messages = {group.paths[0]: [SYNC] for group in tables.SRL_GROUPS}
        switch.messages[tables.SRL_PORTS.paths[0]] = state
        found = values(await read(switch, tmp_path))
    assert found["port_transmit_pfc_pause_frames_total", "ethernet-1/1", "3"] == 771_000
    assert found["queue_ecn_marked_packets_total", "ethernet-1/1", "3"] == 88_000
    assert found["transceiver_receive_power_watts", "ethernet-1/1", "1"] == 831_764
    assert found["neighbour_known", "ethernet-1/1"] == 1


# Faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "problem", "reason"),
    [
        ([], "stream of ports closed before sync_response", "error"),
        ([gnmi_messages.encode("SubscribeResponse", update={})], "closed before sync_response", "error"),
        ([gnmi_messages.encode("SubscribeResponse", sync_response=False)], "closed before", "error"),
        ([SYNC], "no Ethernet ports", "error"),
        ([b"\xff\xff\xff"], "malformed answer", "error"),
        ([b"\x0a\xff\xff", SYNC], "malformed answer", "error"),
        ([gnmi_messages.encode("SubscribeResponse", error={"message": "no\nspace"}), SYNC], r"an error: 'no\\nspace'", "error"),
        ([b"\x0a" + b" " * (9 << 20)], "RESOURCE_EXHAUSTED", "limit"),
    ],
    ids=["closed-at-once", "closed-early", "no-sync", "empty", "no-message", "no-notification", "error", "large-message"],
)  # fmt: skip
async def test_hostile_answers_end_in_a_reason(
    tmp_path: Path, messages: Sequence[bytes], problem: str, reason: str
):
    async with server.openconfig_switch() as switch:
        switch.messages[server.PORTS] = messages
        with pytest.raises(base.SwitchReadError, match=problem) as failed:
            await read(switch, tmp_path, timeout_seconds=20.0, period_seconds=3600)
    assert failed.value.reason == reason
    assert len(str(failed.value)) < 500


async def test_switch_that_does_not_end_the_call_is_read_at_once(tmp_path: Path):
    async with server.openconfig_switch() as switch:
        switch.remains_open = True
        async with asyncio.timeout(5):
            assert values(await read(switch, tmp_path))["ports",] == 2


@pytest.mark.parametrize(
    ("code", "reading"),
    [
        (grpc.StatusCode.NOT_FOUND, Absent.UNSUPPORTED),
        (grpc.StatusCode.INVALID_ARGUMENT, Absent.UNSUPPORTED),
        (grpc.StatusCode.INTERNAL, Absent.ERROR),
    ],
)
async def test_failure_of_a_group_concerns_it_alone(
    tmp_path: Path, code: grpc.StatusCode, reading: Absent
):
    async with server.openconfig_switch() as switch:
        switch.failures["lldp/interfaces/interface/neighbors/neighbor/state"] = code
        switch.failures["interfaces/interface/ethernet/pfc"] = code
        found = values(await read(switch, tmp_path))
    assert found["neighbour_known", "Ethernet1/1"] is reading
    assert found["port_transmit_pfc_pause_frames_total", "Ethernet1/1", "3"] is reading
    assert found["port_receive_bytes_total", "Ethernet1/1"] == 10**18 + 1


@pytest.mark.parametrize(
    ("place", "code", "problem"),
    [
        (server.PORTS, grpc.StatusCode.NOT_FOUND, "gRPC status NOT_FOUND a status of the test"),
        ("Capabilities", grpc.StatusCode.UNAUTHENTICATED, "credential not accepted"),
        (server.PORTS, grpc.StatusCode.UNAVAILABLE, "gRPC status UNAVAILABLE"),
    ],
)
async def test_failures_of_what_is_essential_are_named(
    tmp_path: Path, place: str, code: grpc.StatusCode, problem: str
):
    async with server.openconfig_switch() as switch:
        switch.failures[place] = code
        with pytest.raises(base.SwitchReadError, match=problem):
            await read(switch, tmp_path)


async def test_polled_switch_is_in_metrics_and_its_dialect_in_the_log(tmp_path: Path):
    async with server.openconfig_switch() as switch:
        file = str(switch.write_switches(tmp_path, plaintext=True, period_seconds=5.0))
        settings = settings_in(
            tmp_path, limits=IngestLimits(), switches=SwitchesSettings(file=file)
        )
        async with run_collector(settings) as one:
            await asyncio.sleep(0)
            polling = one.collector.switches.polling
            polled = polling.polled["leaf-07"]
            with capture_logs() as logs:
                await polling.poll(polled)
                await polling.poll(polled)
            assert polled.problem == ""
            _, text = await one.get("/metrics")
            switch.failures[server.PORTS] = grpc.StatusCode.UNAVAILABLE
            await polling.poll(polled)
            assert "UNAVAILABLE" in polling.problems()["leaf-07"]
            assert polled.consecutive_failures == 1
    found = [each for each in logs if each["event"] == "switch_dialect_found"]
    assert [(each["switch"], each["dialect"]) for each in found] == [("leaf-07", "openconfig")]
    port = 'switch="leaf-07",port="Ethernet2/1"'
    for line in (
        'railscope_switch_up{switch="leaf-07"} 1',
        f"railscope_switch_port_receive_bytes_total{{{port}}} {10**18 + 2}",
        f'railscope_switch_port_transmit_pfc_pause_frames_total{{{port},priority="3"}} 2000',
        f'railscope_switch_queue_ecn_marked_packets_total{{{port},queue="3"}} 20',
    ):
        assert f"{line}\n" in text
