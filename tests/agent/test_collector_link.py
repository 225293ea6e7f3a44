"""The link to the collector: addresses, tokens, certificates, and the messages for invalid ones."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from support.certificates import ClientAuthority, self_signed, server_context
from support.clock import START
from support.collector import ScriptedCollector
from support.reading import ORIGIN
from support.shipping import link_to

from railscope.wire import SentAt, envelope, pack
from railscope_agent.config import CollectorLink
from railscope_agent.shipping.collector_client import CollectorClient
from railscope_agent.shipping.collector_link import CollectorLinkError
from railscope_agent.shipping.delivery_result import DeliveryResult, EnvelopeDecision

GREETING = pack(envelope(ORIGIN, (), (), agent_version="1"))
PATIENCE_SECONDS = 60


async def greet(link: CollectorLink, boot_id: str = "boot-1") -> DeliveryResult:
    """Post an envelope without frames, as `agent check` does."""
    async with asyncio.timeout(PATIENCE_SECONDS), CollectorClient(link) as client:
        return await client.post(GREETING, SentAt.from_timestamp(START, boot_id))


def https(collector: ScriptedCollector, **changes: object) -> CollectorLink:
    return link_to(collector, url=f"https://127.0.0.1:{collector.port}", **changes)


@pytest.mark.parametrize(
    "url", ["https://", "http://:80", "http://collector:99999", "http://collector:x", "http://[::1"]
)
def test_an_impossible_host_or_port_is_rejected_at_once(url: str) -> None:
    with pytest.raises(CollectorLinkError, match=r"invalid collector\.url .*: "):
        CollectorClient(CollectorLink(url=url))


async def test_a_token_from_a_file_goes_before_one_in_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    async with ScriptedCollector().serving() as collector:
        answer = await greet(link_to(collector, token_file=str(file)))
        assert answer.verdict is EnvelopeDecision.ACKNOWLEDGED
        assert collector.requests[0].headers["Authorization"] == "Bearer from-the-file"


@pytest.mark.parametrize("token", ["se\ncret", "gehe\u0131m", "a\0b"])
def test_a_token_no_header_can_carry_is_rejected_at_once(token: str) -> None:
    with pytest.raises(CollectorLinkError, match=r"invalid collector\.token: expected printable"):
        CollectorClient(CollectorLink(url="http://collector", token=token))


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for content in (None, b"\xff\xfe"):
        file = tmp_path / "token"
        if content:
            file.write_bytes(content)
        with pytest.raises(CollectorLinkError, match=rf"cannot read collector\.token_file {file}"):
            CollectorClient(CollectorLink(url="http://collector", token_file=str(file)))


async def test_an_endless_answer_is_cut_off() -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answer = await greet(CollectorLink(url=f"http://127.0.0.1:{port}"))
    assert "too long" in answer.problem


async def test_an_untrusted_certificate_names_the_setting(tmp_path: Path) -> None:
    tls = server_context(*self_signed(tmp_path))
    async with ScriptedCollector().serving(tls=tls) as collector:
        answer = await greet(https(collector))
        assert answer.verdict is EnvelopeDecision.LATER
        assert "self-signed certificate" in answer.problem
        assert answer.problem.endswith("set collector.ca_file")
        assert collector.requests == []


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_of_certificates_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)
    with pytest.raises(CollectorLinkError, match=rf"cannot use collector\.ca_file {file}"):
        CollectorClient(CollectorLink(url="https://collector", ca_file=str(file)))


async def test_a_certificate_of_the_node_is_shown_to_the_collector(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path / "server")
    authority = ClientAuthority(tmp_path / "authority")
    client = authority.client("n1", "railscope:node/n1")
    tls = server_context(certificate, key)
    tls.load_verify_locations(authority.file)
    tls.verify_mode = ssl.CERT_REQUIRED
    shown = {"certificate_file": str(client.file), "key_file": str(client.key_file)}
    async with ScriptedCollector().serving(tls=tls) as collector:
        link = https(collector, ca_file=str(certificate), token="", **shown)
        assert (await greet(link)).verdict is EnvelopeDecision.ACKNOWLEDGED
        assert "Authorization" not in collector.requests[0].headers
        without = await greet(https(collector, ca_file=str(certificate)))
        assert without.verdict is EnvelopeDecision.LATER
        assert len(collector.requests) == 1


def test_a_certificate_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    client = ClientAuthority(tmp_path).client("n1")
    for certificate, key in (
        (tmp_path / "none", client.key_file),
        (client.file, tmp_path / "none"),
    ):
        shown = {"certificate_file": str(certificate), "key_file": str(key)}
        with pytest.raises(
            CollectorLinkError, match=rf"cannot use collector\.certificate_file {certificate} or "
        ):
            CollectorClient(CollectorLink(url="https://collector", **shown))
    plain = CollectorLink(url="http://collector", certificate_file=str(client.file))
    with pytest.raises(
        CollectorLinkError, match=r"with collector.certificate_file: expected an https:// URL"
    ):
        CollectorClient(plain)
