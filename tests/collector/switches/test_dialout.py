"""gRPC dial-out of H3C: messages as values, over real gRPC with certificates, and hostile switches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from hypothesis import given, strategies as st
from running_collector import RunningCollector, run_collector, settings_in
from support import certificates
from support.shared import capture_path

from railscope.frame import NodeTimestamp
from railscope.otlp_metrics import OtlpRejectedError
from railscope.otlp_receiving import MAX_WAITING
from railscope.reading import Absent
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_collector.config import (
    CollectorSettings,
    DialoutReceiverSettings,
    IngestLimits,
    SwitchesSettings,
)
from railscope_collector.switches import comware_dialout, dialout_grpc
from railscope_collector.switches.comware_dialout import (
    DialoutMessage,
    TextParts,
    decode_rows,
)
from railscope_collector.switches.cumulus_metrics import PointResult
from railscope_collector.switches.dialout_receiver import DialoutReceiver
from railscope_collector.switches.switch_frames import SwitchFrames
from railscope_collector.switches.switch_pushes import PushedValues, SwitchPushes

TABLE = '[leaf-01]\naddress = "127.0.0.1"\nprotocol = "dialout"\nperiod_seconds = 30\n'
LEAF, SPLIT = "FourHundredGigE1/0/1", "TwoHundredGigE1/0/2:1"
METHOD = "/grpc_dialout.GRPCDialout/Dialout"
START_NS = 1_764_329_400 * SECOND_NS


def recorded() -> list[bytes]:
    """Messages of the capture, in the form of the wire."""
    lines = capture_path("switch/comware/dialout-messages-derived.jsonl").read_text().splitlines()
    of = dialout_grpc.message_class("DialoutMsg")
    return [json_format.Parse(line, of()).SerializeToString() for line in lines]


def packed(path: str, text: str, **more: Any) -> bytes:
    given = {"deviceMsg": {"deviceName": "leaf-01"}, "sensorPath": path, "jsonData": text} | more
    of = dialout_grpc.message_class("DialoutMsg")
    return bytes(json_format.ParseDict(given, of()).SerializeToString())


def counters(octets: int, at_seconds: int = 0, port: str = LEAF) -> str:
    row = {"IfIndex": 1, "Name": port, "InOctets": octets}
    stamp = str((START_NS + at_seconds * SECOND_NS) // 10**6)
    found = {"Ifmgr": {"Statistics": {"Interface": [row]}}, "Timestamp": stamp}
    return json.dumps({"Notification": found})


def decoded(path: str, text: str) -> PushedValues:
    return decode_rows("leaf-01", DialoutMessage(path, text, "leaf-01"), text, 0)


# Messages as values ------------------------------------------------------------------------------


def test_messages_are_the_values_of_their_tables():
    pushes = SwitchPushes("leaf-01", SwitchFrames("leaf-01", "run", has_narrow_counters=False))
    parts, known, rounds = TextParts(), dict[tuple[str, ...], Any](), []
    for at, body in enumerate(recorded()):
        now = NodeTimestamp(START_NS + at * SECOND_NS, at * SECOND_NS)
        message = dialout_grpc.unpack_message(body)
        text = parts.join(message)
        if text is None:
            continue
        push = pushes.accept(decode_rows("leaf-01", message, text, now.boot_ns), now)
        pushes.keep(push, now)
        assert not push.has_other_name
        known |= {
            (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
            for part in push.reading.streams.values()
            for (metric, entity), value in part
            if value is not Absent.NOT_DUE
        }
        rounds.append(dict(known))
    sent, marked = (
        ("port_transmit_pfc_pause_frames_total", LEAF, "3"),
        "port_ecn_marked_packets_total",
    )
    expected = {
        ("port_up", LEAF): 1,
        ("port_up", "FourHundredGigE1/0/3"): 0,
        ("port_speed_bytes_per_second", LEAF): 400_000,
        ("port_speed_bytes_per_second", SPLIT): 200_000,
        ("port_receive_bytes_total", LEAF): 9_102_400_000_000_000,
        ("port_receive_packets_total", LEAF): 6_001_600_000_000,
        ("port_transmit_discarded_packets_total", LEAF): 1_500,
        sent: 820_800,
        ("port_receive_pfc_pause_frames_total", SPLIT, "3"): 5_000_750_000,
        ("queue_pfc_watchdog_detected_storms_total", LEAF, "3"): 2,
        ("queue_pfc_watchdog_restored_storms_total", LEAF, "3"): 1,
        (marked, LEAF): 149_000,
        ("port_wred_dropped_packets_total", LEAF): 1_000,
        ("port_transmit_pfc_pause_frames_per_second", LEAF, "3"): 830,
        ("port_receive_pfc_pause_frames_per_second", SPLIT, "3"): 12_500,
        ("port_receive_no_buffer_dropped_packets_total", LEAF): 7,
        ("queue_dropped_packets_total", LEAF, "3"): 1_500,
        ("queue_dropped_bytes_total", LEAF, "3"): 2_250_000,
        ("queue_occupancy_bytes", LEAF, "3"): 1_331_200,
        ("priority_group_headroom_occupancy_bytes", LEAF, "3"): 122_880,
        ("port_receive_fec_corrected_frames_total", LEAF): 993_210,
        ("port_receive_fec_uncorrectable_frames_total", SPLIT): 3,
        ("port_receive_pause_frames_total", SPLIT): 0,
        ("transceiver_temperature_celsius", LEAF): 52_000,
        ("transceiver_temperature_celsius", "FourHundredGigE1/0/3"): Absent.UNSUPPORTED,
        ("transceiver_receive_power_watts", LEAF, "1"): 831_764,
        ("transceiver_receive_power_watts", LEAF, "4"): Absent.UNSUPPORTED,
    }
    assert {key: known[key] for key in expected} == expected
    first = next(each[sent] for each in rounds if sent in each)
    assert known[sent] - first == 49_800
    first = next(each[marked, LEAF] for each in rounds if (marked, LEAF) in each)
    assert known[marked, LEAF] - first == 61_000
    assert set(pushes.unmapped) == {"qstat/queuestat", "buffermonitor/portquedropevent"}
    assert pushes.results[PointResult.INVALID] == 0


def test_each_sensor_path_has_a_stream_of_its_own():
    streams = [table.stream for table in comware_dialout.TABLES.values()]
    assert len(set(streams)) == len(streams), "a message would make the others of its stream absent"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "7", "{}", '{"Notification": []}', counters(1).replace("Statistics", "Other"),
        counters(1).replace('"Timestamp"', '"Other"'), counters(1).replace('"17', '"-17'), "[" * 100_000,
        "[" + "{}," * 30_000 + "{}]", "[" + "0," * 500_000 + "0]",
    ]
)  # fmt: skip
def test_malformed_texts_are_an_error(text):
    with pytest.raises(OtlpRejectedError):
        decoded("ifmgr/statistics", text)


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("ifmgr/statistics", {"Name": "p", "InOctets": -1}), ("ifmgr/statistics", {"Name": "p", "InOctets": 1 << 64}),
        ("ifmgr/statistics", {"Name": "p", "InOctets": 1.5}), ("ifmgr/statistics", {"Name": "p", "InOctets": True}),
        ("ifmgr/statistics", {"Name": "", "InOctets": 1}), ("ifmgr/statistics", {"Name": 7, "InOctets": 1}),
        ("ifmgr/statistics", {"Name": "x" * 65, "InOctets": 1}), ("ifmgr/statistics", {"InOctets": 1}),
        ("device/transceiverschannels", {"Name": "p", "ChannelIndex": 9, "ChannelCurRXPower": -85}),
        ("device/transceiverschannels", {"Name": "p", "ChannelCurRXPower": -85}),
        ("buffermonitor/pfcspeeds", {"IfName": "p", "PfcInPps": "[1,2]"}),
        ("buffermonitor/pfcspeeds", {"IfName": "p", "PfcInPps": "x"}),
        ("buffermonitor/pfcspeeds", {"IfName": "p", "PfcInPps": {}}),
        ("buffermonitor/pfcspeeds", {"IfName": "p", "PfcInPps": {"Slice0": "[0,0,0,0,0,0,0,0]", "Slice1": "[]"}}),
    ]
)  # fmt: skip
def test_invalid_values_are_counted_and_not_stored(path, row):
    module, _, table = path.partition("/")
    text = json.dumps({"Notification": {module: {table: {"Row": row}}, "Timestamp": "5"}})
    found = decoded(path, text)
    assert not found.columns
    assert found.results[PointResult.INVALID] > 0


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["Name", "IfName", "PfcSend", "Slice0"]), inner),
    max_leaves=12,
), st.sampled_from(sorted(comware_dialout.TABLES)))  # fmt: skip
def test_any_rows_are_values_or_an_error(rows, path):
    module, _, table = path.partition("/")
    text = json.dumps({"notification": {module: {table: {"Row": rows}}}, "Timestamp": 5})
    try:
        found = decoded(path, text)
    except OtlpRejectedError:
        return
    assert all(isinstance(each.value, int | Absent) for each in found.columns)


def test_parts_are_joined_in_their_order_and_bounded():
    def part(number: int, of: int, text: str, path: str = "a/b") -> DialoutMessage:
        return DialoutMessage(path, text, "", number, of)

    parts = TextParts()
    assert parts.join(part(1, 3, "a")) is None
    assert parts.join(DialoutMessage("c/d", "whole")) == "whole"
    assert parts.join(part(2, 3, "b", "A/B")) is None
    assert parts.join(part(3, 3, "c")) == "abc"
    assert parts.join(part(1, 2, "lost")) is None
    assert parts.join(part(1, 2, "d")) is None
    assert parts.join(part(2, 2, "e")) == "de"
    for number, of in ((0, 2), (3, 2), (1, 0), (1, comware_dialout.MAX_PARTS + 1)):
        with pytest.raises(OtlpRejectedError, match="invalid part"):
            parts.join(part(number, of, "x"))
    for path in range(100):
        assert parts.join(part(1, 2, "x", f"{path}")) is None
    assert parts.join(part(2, 2, "y", "0")) is None, "dropped"
    assert parts.join(part(2, 2, "y", "99")) == "xy"
    half = "x" * (comware_dialout.MAX_TEXT_BYTES // 2 + 1)
    assert parts.join(part(1, 2, half)) is None
    with pytest.raises(OtlpRejectedError, match="too many bytes"):
        parts.join(part(2, 2, half))


# Over gRPC ---------------------------------------------------------------------------------------


def settings_with(directory: Path, table: str = TABLE, **more: Any) -> CollectorSettings:
    file = directory / "switches.toml"
    file.write_text(table)
    return settings_in(
        directory,
        limits=IngestLimits(),
        switches=SwitchesSettings(file=str(file)),
        dialout_receiver=DialoutReceiverSettings(**{"listen": "127.0.0.1:0"} | more),
    )


@asynccontextmanager
async def receiving(
    directory: Path, table: str = TABLE, **more: Any
) -> AsyncIterator[tuple[RunningCollector, DialoutReceiver]]:
    async with run_collector(settings_with(directory, table, **more)) as one:
        receiver = one.collector.switches.dialout
        await receiver.is_listening.wait()
        yield one, receiver


async def send(
    receiver: DialoutReceiver,
    messages: Sequence[bytes],
    method: str = METHOD,
    credentials: grpc.ChannelCredentials | None = None,
) -> str:
    """Return the response to a call, as a switch makes it."""
    address = f"127.0.0.1:{receiver.port}"
    channel = (
        grpc.aio.secure_channel(address, credentials)
        if credentials
        else grpc.aio.insecure_channel(address)
    )
    async with channel:
        call: Any = channel.stream_unary(method)
        body = await call(iter(messages), timeout=30)
    return str(dialout_grpc.message_class("DialoutResponse").FromString(body).response)


async def rejection(
    receiver: DialoutReceiver, messages: Sequence[bytes], **more: Any
) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await send(receiver, messages, **more)
    code = failed.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code


@pytest.mark.parametrize("service", dialout_grpc.SERVICES)
async def test_messages_are_in_frame_log_metrics_and_api(tmp_path, service):
    async with receiving(tmp_path) as (one, receiver):
        assert await send(receiver, recorded(), f"/{service}/Dialout") == "ok"
        _, text = await one.get("/metrics")
        port = f'switch="leaf-01",port="{LEAF}"'
        for series in (
            f'railscope_switch_port_transmit_pfc_pause_frames_total{{{port},priority="3"}} 820800\n',
            f"railscope_switch_port_ecn_marked_packets_total{{{port}}} 149000\n",
            f'railscope_switch_queue_pfc_watchdog_detected_storms_total{{{port},queue="3"}} 2\n',
            'railscope_switch_up{switch="leaf-01"} 1\n',
            'railscope_collector_dialout_messages_total{result="not_stored"} 2\n',
            'railscope_collector_dialout_messages_total{result="incomplete"} 2\n',
            'railscope_collector_dialout_messages_total{result="format"} 0\n',
        ):
            assert series in text
        switch = await one.json("/api/v1/switches/leaf-01")
        assert {each["port"] for each in switch["ports"]} >= {LEAF, SPLIT}


async def test_unknown_address_is_rejected(tmp_path):
    async with receiving(tmp_path, TABLE.replace("127.0.0.1", "192.0.2.8")) as (_, receiver):
        assert await rejection(receiver, recorded()) is grpc.StatusCode.PERMISSION_DENIED
        assert receiver.messages == {"unknown_sender": 1}


async def test_malformed_messages_and_those_above_the_rate_leave_the_call(tmp_path):
    async with receiving(tmp_path, messages_per_second=0.5) as (one, receiver):
        receiver.monotonic = lambda: 0.0
        good = packed("ifmgr/statistics", counters(7))
        bodies = [b"\xff\xff", packed("ifmgr/statistics", "x"), good]
        assert await send(receiver, [*bodies, *bodies]) == "ok"
        assert receiver.messages == {"format": 4, "stored": 1, "rate": 1}, "5 in ten seconds"
        _, text = await one.get("/metrics")
        assert "railscope_switch_port_receive_bytes_total{" in text


async def test_message_of_50_megabytes_is_refused_and_other_calls_continue(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        large = packed("ifmgr/statistics", "x" * (50 << 20))
        assert await rejection(receiver, [large]) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await send(receiver, [packed("ifmgr/statistics", counters(7))]) == "ok"
        _, text = await one.get("/metrics")
        assert (
            f'railscope_switch_port_receive_bytes_total{{switch="leaf-01",port="{LEAF}"}} 7\n'
            in text
        )


async def test_calls_of_one_switch_are_bounded(tmp_path):
    async def silent() -> AsyncIterator[bytes]:
        await asyncio.get_running_loop().create_future()
        yield b""

    async with receiving(tmp_path) as (_, receiver):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
            call: Any = channel.stream_unary(METHOD)
            calls = {asyncio.ensure_future(call(silent()).code()) for _ in range(MAX_WAITING + 2)}
            async with asyncio.timeout(30):
                while receiver.messages["busy"] < 2:
                    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                    calls -= done
                    assert {each.result() for each in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        await asyncio.wait(calls)


async def test_what_cannot_be_stored_is_counted(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        one.collector.core.is_draining = True
        await send(receiver, [packed("ifmgr/statistics", counters(7))])
        assert receiver.messages == {"storage": 1}


async def test_switch_is_identified_by_its_certificate_from_any_address(tmp_path):
    certificate, key = certificates.self_signed(tmp_path / "tls")
    authority = certificates.ClientAuthority(tmp_path / "clients")
    tls = {
        "certificate_file": str(certificate),
        "key_file": str(key),
        "client_ca_file": str(authority.file),
    }
    table = TABLE.replace("127.0.0.1", "192.0.2.8") + 'server_name = "leaf-01.example"\n'
    table += (
        '[leaf-02]\naddress = "127.0.0.1"\nprotocol = "dialout"\nserver_name = "leaf-02.example"\n'
    )
    body = packed("ifmgr/statistics", counters(7))
    async with receiving(tmp_path, table, **tls) as (one, receiver):

        def credentials(name: str) -> grpc.ChannelCredentials:
            made = authority.client(name)
            return grpc.ssl_channel_credentials(
                certificate.read_bytes(), made.key_file.read_bytes(), made.file.read_bytes()
            )

        assert await send(receiver, [body], credentials=credentials("leaf-01.example")) == "ok"
        _, text = await one.get("/metrics")
        assert 'railscope_switch_port_receive_bytes_total{switch="leaf-01"' in text
        other = await rejection(receiver, [body], credentials=credentials("other.example"))
        assert other is grpc.StatusCode.PERMISSION_DENIED, "the address alone is not enough"
        anonymous = grpc.ssl_channel_credentials(certificate.read_bytes())
        assert (
            await rejection(receiver, [body], credentials=anonymous) is grpc.StatusCode.UNAVAILABLE
        )


@pytest.mark.parametrize(
    ("table", "more", "problem"),
    [
        (TABLE, {"listen": ""}, "expected dialout_receiver.listen"),
        (TABLE + 'server_name = "leaf-01"\n', {}, "expected dialout_receiver.client_ca_file"),
        (TABLE + 'ca_file = "/x"\n', {}, "ca_file: expected none with protocol = 'dialout'"),
        (TABLE + 'dialect = "sonic"\n', {}, "expected auto, comware with protocol = 'dialout'"),
        (TABLE, {"certificate_file": "/nowhere.pem"}, "nowhere.pem"),
        (TABLE, {"client_ca_file": "/nowhere.pem"}, "nowhere.pem"),
        (TABLE.replace("127.0.0.1", "leaf-01"), {}, "expected the IP address"),
    ],
)
def test_settings_that_cannot_work_are_an_error(tmp_path, table, more, problem):
    settings = settings_with(tmp_path, table, **more)
    with pytest.raises(SettingsError, match=problem):
        DialoutReceiver.from_settings(settings, lambda: 0, lambda: True)


@pytest.mark.parametrize(
    ("path", "shown"),
    [("x" * 128, "x" * 128), ("x" * 129, "(invalid)"), ("a\nb", "(invalid)")],
)
def test_an_unknown_path_is_named_if_it_is_short_and_printable(path: str, shown: str):
    message = comware_dialout.DialoutMessage(path, "{}")
    values = comware_dialout.decode_rows("leaf-09", message, "{}", 0)
    assert values.unmapped == {shown: 1}
