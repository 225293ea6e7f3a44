"""gRPC dial-out of H3C: messages as values, over real gRPC with certificates, and hostile switches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from running_collector import RunningCollector, run_collector, settings_in
from support.shared import capture_path

from railscope_collector.config import (
    CollectorSettings,
    DialoutReceiverSettings,
    IngestLimits,
    SwitchesSettings,
)
from railscope_collector.switches import dialout_grpc
from railscope_collector.switches.dialout_receiver import DialoutReceiver

TABLE = '[leaf-01]\naddress = "127.0.0.1"\nprotocol = "dialout"\nperiod_seconds = 30\n'
LEAF, SPLIT = "FourHundredGigE1/0/1", "TwoHundredGigE1/0/2:1"
METHOD = "/grpc_dialout.GRPCDialout/Dialout"


def recorded() -> list[bytes]:
    """Messages of the capture, in the form of the wire."""
    lines = capture_path("switch/comware/dialout-messages-derived.jsonl").read_text().splitlines()
    of = dialout_grpc.message_class("DialoutMsg")
    return [json_format.Parse(line, of()).SerializeToString() for line in lines]


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
