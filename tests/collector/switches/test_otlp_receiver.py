"""The OTLP receiver over real HTTP: the official exporter, other senders, and hostile ones."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from running_collector import RunningCollector, logged_envelopes, run_collector, settings_in
from support import cumulus_pushes as cumulus
from support.cumulus_pushes import priority

from railscope.catalog import switches as catalog
from railscope.otlp_metrics import PROTOBUF
from railscope.settings import SettingsError
from railscope.untrusted_text import parse_toml
from railscope_collector.config import (
    CollectorSettings,
    IngestLimits,
    OtlpReceiverSettings,
    SwitchesSettings,
)
from railscope_collector.service import Collector
from railscope_collector.switches import otlp_receiver

ROOT = Path(__file__).parents[3]
TABLE = '[leaf-08]\naddress = "127.0.0.1"\nprotocol = "otlp"\nperiod_seconds = 5\n'


def settings_with(directory: Path, table: str = TABLE, **more: Any) -> CollectorSettings:
    file = directory / "switches.toml"
    file.write_text(table)
    given = {"listen": "127.0.0.1:0"} | more
    return settings_in(
        directory,
        limits=IngestLimits(),
        switches=SwitchesSettings(file=str(file)),
        otlp_receiver=OtlpReceiverSettings(**given),
    )


@asynccontextmanager
async def receiving(
    directory: Path, **more: Any
) -> AsyncIterator[tuple[RunningCollector, otlp_receiver.OtlpReceiver]]:
    async with run_collector(settings_with(directory, **more)) as one:
        receiver = one.collector.switches.receiver
        await receiver.is_listening.wait()
        yield one, receiver


async def post(
    receiver: otlp_receiver.OtlpReceiver,
    body: bytes,
    media_type: str = PROTOBUF,
    sender: str = "127.0.0.1",
    path: str = "/v1/metrics",
    **headers: str,
) -> tuple[int, bytes, dict[str, str]]:
    connector = aiohttp.TCPConnector(local_addr=(sender, 0))
    given = {"Content-Type": media_type} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    url = f"http://127.0.0.1:{receiver.port}{path}"
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, data=io.BytesIO(body), headers=given) as response,
    ):
        return response.status, await response.read(), dict(response.headers)


def value(count: float = 42, **more: Any) -> list[cumulus.Pushed]:
    return [priority("sp_rx_pause", count, timestamp_ns=time.time_ns(), **more)]


SERIES = 'railscope_switch_port_receive_pfc_pause_frames_total{switch="leaf-08",port="swp1",priority="3"}'


async def test_pushed_metrics_are_in_frame_log_and_metrics(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        status, body, headers = await post(receiver, cumulus.body(value()))
        assert (status, headers["Content-Type"], body) == (200, PROTOBUF, b"")
        assert logged_envelopes(tmp_path) == 1
        packed = gzip.compress(cumulus.body(value(43)))
        assert (await post(receiver, packed, Content_Encoding="gzip"))[0] == 200
        await one.collector.reader.wait_until_applied()
        _, text = await one.get("/metrics")
        assert f"{SERIES} 43\n" in text
        assert 'railscope_switch_up{switch="leaf-08"} 1\n' in text
        assert 'railscope_switch_clock_is_off{switch="leaf-08"} 0\n' in text
        assert 'railscope_switch_pushed_points_total{switch="leaf-08",result="stored"} 2\n' in text
        assert 'railscope_collector_otlp_requests_total{result="stored"} 2\n' in text
        assert set(one.collector.core.fleet.switches) == {"switch/leaf-08"}
        assert not one.collector.core.fleet.nodes


def test_the_page_configures_a_translator_that_the_receiver_knows_by_its_address(tmp_path):
    text = (ROOT / "docs/switches.md").read_text()
    page = text[text.index("## NVIDIA Cumulus") : text.index("## Facts")]
    blocks = dict(re.findall(r"```\w+\n# (\S+)[^\n]*\n(.*?)```", page, re.DOTALL))
    receiving = parse_toml(blocks["/etc/railscope/collector.toml"])["otlp_receiver"]
    settings = settings_with(tmp_path, blocks["/etc/railscope/switches.toml"], **receiving)
    known = otlp_receiver.OtlpReceiver.from_settings(settings, time.time_ns, lambda: True)
    (address,) = known.switches
    translator = yaml.safe_load(blocks["/etc/otelcol/config.yaml"])
    source = translator["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    target = translator["exporters"]["otlphttp"]
    assert source == f"{address}:4317"
    assert "destination {} port {}".format(*source.split(":")) in page
    assert target["endpoint"] == f"http://{receiving['listen']}"
    assert not target["sending_queue"]["enabled"]
    assert not target["retry_on_failure"]["enabled"]
    pipeline = {"receivers": ["otlp"], "exporters": ["otlphttp"]}
    assert translator["service"]["pipelines"] == {"metrics": pipeline}


async def test_pushed_neighbours_are_those_of_the_ports(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        neighbour = cumulus.neighbour("swp1", system_name="gpu-0001", port_id="02:aa:00:00:00:01")
        pushed = [
            each._replace(timestamp_ns=time.time_ns())
            for each in (neighbour, cumulus.Pushed("oper_state", 1))
        ]
        await post(receiver, cumulus.body(pushed))
        await one.collector.reader.wait_until_applied()
        (port,) = (await one.json("/api/v1/switches/leaf-08"))["ports"]
        assert port["neighbour"]["system_name"] == "gpu-0001"
        assert port["neighbour"]["neighbour_port"] == "02:aa:00:00:00:01"
        _, text = await one.get("/metrics")
        assert 'railscope_switch_neighbour_known{switch="leaf-08",port="swp1"} 1\n' in text


async def test_unknown_sender_is_rejected_before_its_body_is_read(tmp_path):
    async with receiving(tmp_path) as (_, receiver):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", receiver.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"unknown sender 127.0.0.2" in answer
        assert receiver.requests == {"unknown_sender": 1}
        assert logged_envelopes(tmp_path) == 0


@pytest.mark.parametrize(
    ("body", "headers", "status", "result"),
    [
        (b"garbage", {}, 400, "format"),
        (cumulus.body(value())[:-3], {}, 400, "format"),
        (b"{}", {"media_type": "text/plain"}, 415, "media_type"),
        (b"{}", {"media_type": "application/json"}, 415, "media_type"),
        (b"garbage", {"Content_Encoding": "gzip"}, 400, "format"),
        (b"", {"Content_Encoding": "br"}, 415, "media_type"),
        (lambda: gzip.compress(bytes(64 << 20)), {"Content_Encoding": "gzip"}, 413, "size"),
        (bytes(5 << 20), {}, 413, "size"),
        (b"", {"path": "/v1/logs"}, 404, "path"),
    ],
    ids=[
        "garbage",
        "truncated",
        "plain text",
        "JSON",
        "no gzip",
        "another encoding",
        "zip bomb",
        "too long",
        "path",
    ],
)
async def test_hostile_bodies_are_rejected_and_the_next_request_is_accepted(
    tmp_path, body, headers, status, result
):
    """Every worker collects the cases, and one of them compresses the large body."""
    content = body() if callable(body) else body
    async with receiving(tmp_path) as (_, receiver):
        found, problem, _ = await post(receiver, content, **headers)
        assert found == status
        assert result != "media_type" or b": expected " in problem
        assert receiver.requests == {result: 1}
        assert (await post(receiver, cumulus.body(value())))[0] == 200


async def test_switch_that_stops_pushing_is_down_and_its_readings_are_absent(tmp_path):
    async with receiving(tmp_path) as (one, receiver):
        _, text = await one.get("/metrics")
        assert "railscope_switch_up" not in text, "it may still begin"
        for result in catalog.OTLP_REQUEST_RESULTS:
            assert f'railscope_collector_otlp_requests_total{{result="{result}"}} 0\n' in text
        await post(receiver, cumulus.body(value()))
        now_ns = time.time_ns() + 16_000_000_000
        receiver.wall_ns = lambda: now_ns
        _, text = await one.get("/metrics")
        assert 'railscope_switch_up{switch="leaf-08"} 0\n' in text
        assert SERIES not in text


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TABLE.replace("127.0.0.1", "leaf-08.example"), "expected the IP address"),
        (
            TABLE + 'credential_file = "x"\n',
            "credential_file: expected with protocol = 'snmp' or 'gnmi' only",
        ),
        (TABLE + 'tables = "sonic"\n', "tables: expected with protocol = 'snmp' only"),
        (
            TABLE + TABLE.replace("08", "09").replace("127.0.0.1", "::ffff:127.0.0.1"),
            r"also that of \[leaf-08\]",
        ),
    ],
)
def test_invalid_switches_are_errors(tmp_path, table, problem):
    with pytest.raises(SettingsError, match=problem):
        Collector(settings_with(tmp_path, table))
