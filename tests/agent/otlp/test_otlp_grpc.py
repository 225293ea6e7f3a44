"""Sending by OTLP over gRPC: statuses, waits, partial success, certificates and metadata."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from array import array
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from support.certificates import self_signed
from support.clock import START, ManualClock
from support.otlp_grpc_server import GrpcAnswer, otlp_grpc_server
from support.reading import ORIGIN

from railscope import extras
from railscope.catalog import EVENTS, agent as catalog, entities
from railscope.exposition import EVERYTHING
from railscope.frame import Entity, Event, Frame, Schema
from railscope_agent.config import OtlpSettings
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.otlp.otlp_exporter import GrpcTransport, OtlpExporter
from railscope_agent.otlp.otlp_sender import OtlpResult, OtlpSender, RetryLaterError
from railscope_agent.otlp.otlp_target import LOGS, METRICS, otlp_targets
from railscope_agent.sampling.shipping_stats import OtlpStats

CODES = grpc.StatusCode
REPEATED = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
"""Of the table in the specification of the protocol."""


def transport(port: int, **settings: str | float) -> GrpcTransport:
    """Connection for metrics to a port."""
    chosen = {"endpoint": f"http://127.0.0.1:{port}", "protocol": "grpc", **settings}
    return GrpcTransport(otlp_targets(OtlpSettings(**chosen), {})[METRICS])  # type: ignore[arg-type]


async def result_of(answer: GrpcAnswer, **settings: float) -> OtlpResult | RetryLaterError:
    """Send an empty request; return the result, or the error of a request to be repeated."""
    async with otlp_grpc_server() as server:
        server.script.append(answer)
        connection = transport(server.port, **settings)
        try:
            return await connection.send(b"")
        except RetryLaterError as error:
            return error
        finally:
            await connection.close()


@pytest.mark.parametrize("code", [code for code in CODES if code is not CODES.OK])
async def test_statuses_are_repeated_as_the_specification_states(code: grpc.StatusCode) -> None:
    result = await result_of(GrpcAnswer(code, "bad\npoint"))
    assert isinstance(result, RetryLaterError) == (code.name in REPEATED)
    if isinstance(result, OtlpResult):
        assert result.problem == f"gRPC status {code.name} bad\\npoint"


@pytest.mark.parametrize(
    ("code", "requested", "waited"),
    [
        (CODES.RESOURCE_EXHAUSTED, 7.5, 7.5),
        (CODES.RESOURCE_EXHAUSTED, 0, 0),
        (CODES.UNAVAILABLE, 3, 3),
        (CODES.UNAVAILABLE, 1e6, 300),
        (CODES.UNAVAILABLE, -4, 0),
    ],
)
async def test_the_receiver_may_request_a_wait(
    code: grpc.StatusCode, requested: float, waited: float
) -> None:
    result = await result_of(GrpcAnswer(code, wait_seconds=requested))
    assert isinstance(result, RetryLaterError)
    assert result.seconds == waited


async def test_a_wait_that_cannot_be_decoded_is_none() -> None:
    result = await result_of(GrpcAnswer(CODES.RESOURCE_EXHAUSTED, raw_details=b"\xff\xff"))
    assert isinstance(result, OtlpResult)
    assert result.problem == "gRPC status RESOURCE_EXHAUSTED"


async def test_a_partial_success_is_final() -> None:
    response = metrics_service_pb2.ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 3
    response.partial_success.error_message = "too old"
    answer = GrpcAnswer(body=response.SerializeToString())
    assert await result_of(answer) == OtlpResult("", 3, "too old")
    undecodable = await result_of(GrpcAnswer(body=b"\xff"))
    assert undecodable == OtlpResult(message="the response cannot be decoded")


async def test_a_receiver_that_does_not_answer_is_not_awaited_forever() -> None:
    result = await result_of(GrpcAnswer(is_silent=True), timeout_seconds=0.2)
    assert isinstance(result, RetryLaterError)
    assert str(result) == "no response within 0.2 s"


async def test_a_receiver_that_is_away_is_reached_when_it_is_back() -> None:
    async with otlp_grpc_server() as server:
        port = server.port
    connection = transport(port)
    with pytest.raises(RetryLaterError, match="gRPC status UNAVAILABLE"):
        await connection.send(b"")
    target = otlp_targets(OtlpSettings(endpoint=f"http://127.0.0.1:{port}", protocol="grpc"), {})
    stats = OtlpStats()
    sender = OtlpSender(target[METRICS], connection, stats, LiveClock(), 1 << 20)
    sender.add(b"", 1)
    sender.add(b"", 1)
    async with otlp_grpc_server(port=port) as server:
        task = asyncio.create_task(sender.run())
        await server.received(2)  # the second one is sent after the response to the first one
        task.cancel()
        await asyncio.wait({task})
    assert stats.sent >= 1


async def test_a_connection_is_verified_and_presents_a_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path / "server")
    client, client_key = self_signed(tmp_path / "client")
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        client.read_bytes(),
        require_client_auth=True,
    )
    files = {"certificate_file": str(client), "key_file": str(client_key)}
    async with otlp_grpc_server(credentials) as server:
        url = f"https://127.0.0.1:{server.port}"
        trusting = transport(server.port, endpoint=url, ca_file=str(certificate), **files)
        assert await trusting.send(b"") == OtlpResult()
        await trusting.close()
        for other in ({"ca_file": str(client), **files}, files):
            connection = transport(server.port, endpoint=url, **other)
            with pytest.raises(RetryLaterError, match=r"fix: set otlp\.ca_file"):
                await connection.send(b"")
            await connection.close()


async def test_an_exporter_sends_metrics_and_events_with_metadata(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("X-Scope=t%20u\n")
    schema = Schema("agent", ((catalog.AGENT_MEMORY, Entity(entities.NODE)),))
    xid = EVENTS["xid"]
    event = Event(xid, Entity(entities.XID, ("0000:01:00.0", "79")), START.wall_ns, START.boot_ns)
    frame = Frame(ORIGIN, schema, 1, START, array("q", [42]), events=(event,))
    async with otlp_grpc_server() as server:
        settings = OtlpSettings(
            endpoint=f"http://127.0.0.1:{server.port}", protocol="grpc", headers_file=str(headers)
        )
        stats = {METRICS: OtlpStats(), LOGS: OtlpStats()}
        exporter = OtlpExporter(
            settings,
            otlp_targets(settings, {}),
            {"host.name": "n1"},
            lambda: [frame],
            ManualClock(),
            stats,
            EVERYTHING,
        )
        assert await exporter.probe() == {METRICS: "", LOGS: ""}
        task = asyncio.create_task(exporter.run())
        await asyncio.sleep(0)
        exporter.record_events(frame)
        task.cancel()  # the end exports what waits
        await asyncio.wait({task})
    assert (stats[METRICS].sent, stats[LOGS].sent, server.records) == (1, 1, 1)
    assert [point.as_int for point in server.metrics.points.values()] == [42]
    assert {sent["x-scope"] for sent in server.metadata} == {"t u"}
    assert all(str(sent["user-agent"]).startswith("railscope-agent/") for sent in server.metadata)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_only_an_export_over_grpc_needs_its_extra(protocol: str, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['grpc'] = None  # as without the extra\n"
        "from railscope_agent.config import AgentSettings, OtlpSettings\n"
        "from railscope_agent.host.live_host import LiveHost\n"
        "from railscope_agent.service import Agent\n"
        f"otlp = OtlpSettings(endpoint='http://127.0.0.1:9', protocol={protocol!r})\n"
        "settings = AgentSettings(node='n1', otlp=otlp)\n"
        f"Agent(settings, LiveHost({str(tmp_path)!r}), environment={{}}).make_exporter()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (f"fix: {extras.install_command('otlp-grpc')}" in done.stderr) == (protocol == "grpc")
    assert bool(done.returncode) == (protocol == "grpc")
