"""Requests to the collector, and the evaluation of its responses.

A response means one of: acknowledged as durable; schemas required first; rejected permanently
(sending the same again will not help); or retry later, with a problem and a remedy. The first
three decide about frames, and are accepted only with the mark of the collector.

`HttpClient` is a small HTTP client for one server: h11 for the protocol, asyncio for the
connection. One connection is kept open and reused, with one request at a time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

import h11
import msgspec

from railscope import convert_errors, wire
from railscope.http_responses import DECISIONS, MAX_HEAD_BYTES, RESPONSE_MARK_HEADER, is_marked
from railscope.settings import SettingsError, read_named_file
from railscope.untrusted_text import DECODING_ERRORS
from railscope_agent.config import CollectorLink
from railscope_agent.shipping import ShippingError
from railscope_agent.shipping.collector_logs import EvidenceReceipt

MAX_ANSWER_BYTES = 1 << 20
READ_BYTES = 64 << 10
_PORTS = {"http": 80, "https": 443}


class HttpError(ShippingError, OSError):
    """The response is not HTTP, or ended too early."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status, headers (names in lower case) and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Client of one server, at the path of its URL or another. Raises ValueError for an invalid URL."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        timeout_seconds: float,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            message = f"invalid URL {url!r}: expected http:// or https://"
            raise ValueError(message)
        self._host = parts.hostname
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = tls if parts.scheme == "https" else None
        self.target = parts.path or "/"
        self._authority = parts.netloc.rpartition("@")[2]
        self._timeout_seconds = timeout_seconds
        self._max_answer_bytes = max_answer_bytes
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._state = h11.Connection(h11.CLIENT)

    async def post(self, body: bytes, headers: Mapping[str, str], target: str = "") -> HttpResponse:
        """Send a POST request. Raises OSError (TLS errors included), HttpError or TimeoutError."""
        headers = {"Content-Length": str(len(body)), **headers}
        return await self._request(("POST", target or self.target), body, headers)

    async def get(self, headers: Mapping[str, str], target: str = "") -> HttpResponse:
        """Send a GET request. Raises as `post` does."""
        return await self._request(("GET", target or self.target), b"", headers)

    async def _request(
        self, request_line: tuple[str, str], body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        async with asyncio.timeout(self._timeout_seconds):
            is_reused = self._writer is not None
            try:
                return await self._request_once(request_line, body, headers)
            except (ConnectionError, HttpError):
                # The server may have closed the idle connection just before it was used.
                await self.close()
                if not is_reused:
                    raise
                return await self._request_once(request_line, body, headers)
            finally:
                if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
                    await self.close()
                else:
                    self._state.start_next_cycle()

    async def _request_once(
        self, request_line: tuple[str, str], body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        method, target = request_line
        reader, writer = await self._open()
        fields = {"Host": self._authority, **headers}
        head = h11.Request(method=method, target=target, headers=list(fields.items()))
        pieces = [
            self._state.send(head),
            self._state.send(h11.Data(body)),
            self._state.send(h11.EndOfMessage()),
        ]
        writer.write(b"".join(piece for piece in pieces if piece))
        await writer.drain()
        with convert_errors(h11.RemoteProtocolError, HttpError):
            return await self._answer(reader)

    async def _answer(self, reader: asyncio.StreamReader) -> HttpResponse:
        head: h11.Response | None = None
        body = bytearray()
        received = 0
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                piece = await reader.read(READ_BYTES)
                received += len(piece)
                self._check_length(received - MAX_HEAD_BYTES)
                self._state.receive_data(piece)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                self._check_length(len(body))
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers}
                return HttpResponse(head.status_code, headers, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                message = "the server closed the connection without a response"
                raise HttpError(message)

    def _check_length(self, length: int) -> None:
        """Raise HttpError for a response that is too long."""
        if length > self._max_answer_bytes:
            message = f"response too long: expected at most {self._max_answer_bytes} bytes"
            raise HttpError(message)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            self._state = h11.Connection(h11.CLIENT)
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls
            )
        return self._reader, self._writer

    async def close(self) -> None:
        """Abort the connection, if there is one, without flushing unsent data."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is None:
            return
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except OSError:
            return  # the connection was broken already


INGEST_PATH = "/v1/frames"
READY_PATH = "/-/ready"


class EnvelopeDecision(Enum):
    """Decision about an envelope after one attempt."""

    ACKNOWLEDGED = "acknowledged"
    WANTS_SCHEMAS = "wants_schemas"
    REJECTED = "rejected"
    LATER = "later"


class ChangeReason(StrEnum):
    """Reason to use another collector, if there are several."""

    FAILURES = "failures"
    UNACKNOWLEDGED = "unacknowledged"
    """No response in time."""
    DENIED = "denied"
    """Failures of which the last one is a status of 401 or 403."""
    DRAINING = "draining"
    RETURN = "return"
    """The first collector of the order has been ready again for long enough."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Result of one attempt."""

    verdict: EnvelopeDecision
    problem: str = ""
    change_reason: ChangeReason = ChangeReason.FAILURES
    """Reason to use another collector after a failure."""
    schemas: tuple[bytes, ...] = ()
    retry_after_seconds: float | None = None
    receipt: EvidenceReceipt | None = None
    """Receipt of a collector with a shared database, which stores evidence later."""


class _CollectorReply(msgspec.Struct):
    error: str = ""
    unknown_schemas: tuple[str, ...] = ()
    accepted_frames: int | None = None
    copied_frames: int | None = None
    draining: bool = False


class CollectorLinkError(ShippingError, ValueError):
    """The configuration of the link to the collector is invalid; the message names the fix."""


class CollectorClient:
    """Posts bodies to one collector. Raises CollectorLinkError if the link cannot work."""

    def __init__(self, link: CollectorLink) -> None:
        with convert_errors(
            ValueError, CollectorLinkError, f"invalid collector.url {link.url!r}: "
        ):
            self._base_url = url_without_credentials(link.url)
        self.url = self._base_url + INGEST_PATH
        self._headers = {"Content-Type": wire.CONTENT_TYPE}
        self._token = read_token(link)
        if self._token:
            self._headers["Authorization"] = f"Bearer {self._token}"
        if not link.url.startswith(("http://", "https://")):
            message = f"invalid collector.url {link.url!r}: expected http:// or https://"
            raise CollectorLinkError(message)
        self._tls, self._timeout_seconds = create_tls_context(link), link.timeout_seconds
        try:
            self._http = HttpClient(self.url, self._tls, self._timeout_seconds)
        except ValueError as error:
            message = f"invalid collector.url {link.url!r}: expected http://HOST:PORT or https://HOST:PORT: {error}"
            raise CollectorLinkError(message) from error

    async def __aenter__(self) -> Self:
        """Return itself; the connection is opened with the first request."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next request opens another one."""
        await self._http.close()

    async def is_ready(self) -> bool:
        """True if the collector reports that it is ready; queried on a connection of its own."""
        http = HttpClient(self._base_url + READY_PATH, self._tls, self._timeout_seconds)
        try:
            return (await http.get({})).status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            await http.close()

    async def post(self, body: bytes, sent: wire.SentAt, receipt: str = "") -> DeliveryResult:
        """Try once; `sent` lets the collector compute the age of the frames by the node's own clocks.

        `receipt` is that of the collector that received the body first, if it is sent again.
        """
        headers = {wire.RECEIPT_HEADER: receipt} if receipt else {}
        return await self._post(INGEST_PATH, body, sent, headers)

    async def post_copy(
        self, body: bytes, sent: wire.SentAt, *, is_failing: bool
    ) -> DeliveryResult:
        """Send a live copy once; `is_failing` is true if the primary collector does not acknowledge."""
        headers = {wire.PRIMARY_HEADER: wire.PRIMARY_FAILING} if is_failing else {}
        return await self._post(wire.COPIES_PATH, body, sent, headers)

    async def _post(
        self, path: str, body: bytes, sent: wire.SentAt, headers: Mapping[str, str]
    ) -> DeliveryResult:
        url = self._base_url + path
        try:
            answer = await self._http.post(
                body, {**self._headers, **sent.to_headers(), **headers}, urlsplit(url).path
            )
        except ssl.SSLCertVerificationError as error:
            problem = (
                f"untrusted certificate of the collector at {url}: "
                f"{error.verify_message}; fix: set collector.ca_file"
            )
        except TimeoutError:
            problem = f"no response from {url}: expected one within collector.timeout_seconds"
            return DeliveryResult(EnvelopeDecision.LATER, problem, ChangeReason.UNACKNOWLEDGED)
        except ConnectionRefusedError:
            problem = (
                f"cannot connect to {url}: connection refused; fix: start the collector, or "
                "correct the port of collector.url"
            )
        except OSError as error:
            problem = f"cannot send to {url}: {error.strerror or error}"
        else:
            mark = answer.headers.get(RESPONSE_MARK_HEADER.lower(), "")
            marked = is_marked(mark, self._token, answer.status, body, answer.body)
            return _interpret_answer(url, answer, marked=marked, is_copy=path == wire.COPIES_PATH)
        return DeliveryResult(EnvelopeDecision.LATER, problem)


def _interpret_answer(
    url: str, answer: HttpResponse, *, marked: bool, is_copy: bool
) -> DeliveryResult:
    status = answer.status
    try:
        reply = msgspec.json.decode(answer.body, type=_CollectorReply)
    except DECODING_ERRORS:
        reply = None
    detail = reply.error if reply else ""
    if status in DECISIONS and not marked:
        problem = (
            f"unexpected response from {url}: status {status} without the mark of a "
            "collector: expected a collector with this node's token; fix: check "
            "collector.url, and update the collector before its agents"
        )
        return DeliveryResult(EnvelopeDecision.LATER, problem)
    accepted = reply and (reply.copied_frames if is_copy else reply.accepted_frames)
    if status == HTTPStatus.OK and accepted is not None:
        try:
            receipt = _read_receipt(answer.body)
        except ValueError as error:
            problem = (
                f"invalid acknowledgement from {url}: {error}: expected log, position and stored; "
                "fix: update the older of agent and collector"
            )
            return DeliveryResult(EnvelopeDecision.LATER, problem)
        return DeliveryResult(EnvelopeDecision.ACKNOWLEDGED, receipt=receipt)
    if (
        status == HTTPStatus.CONFLICT
        and reply is not None
        and (requested := _requested_schemas(reply))
    ):
        problem = f"repeated request from {url} for schemas that were sent"
        return DeliveryResult(EnvelopeDecision.WANTS_SCHEMAS, problem, schemas=requested)
    if reply is not None and status in _REJECTING_STATUSES:
        return DeliveryResult(
            EnvelopeDecision.REJECTED, f"envelope rejected by {url}: status {status}: {detail}"
        )
    advice = _ADVICE.get(status, "fix: check that collector.url is the base URL of a collector")
    if is_copy and status == HTTPStatus.NOT_FOUND:
        advice = "no live copies; fix: update the collector, or set collector.send_to = 1"
    problem = (
        f"request to {url} failed: status {status}{f' ({detail})' if detail else ''}: {advice}"
    )
    reason = ChangeReason.DENIED if status in _DENIALS else ChangeReason.FAILURES
    if reply is not None and reply.draining:
        reason = ChangeReason.DRAINING
    return DeliveryResult(
        EnvelopeDecision.LATER, problem, reason, retry_after_seconds=_retry_after(answer.headers)
    )


def _read_receipt(body: bytes) -> EvidenceReceipt | None:
    """Return the receipt in a response; None if it has none. Raises ValueError for an invalid one."""
    if not msgspec.json.decode(body, type=dict[str, object]).keys() & _RECEIPT_FIELDS:
        return None
    receipt = msgspec.json.decode(body, type=EvidenceReceipt)
    if receipt.stored > receipt.position:
        message = f"stored {receipt.stored} is after position {receipt.position}"
        raise ValueError(message)
    return receipt


def _requested_schemas(reply: _CollectorReply) -> tuple[bytes, ...]:
    """Return the schemas that a reply requests; none if it contains an invalid hash."""
    try:
        return tuple(bytes.fromhex(digest) for digest in reply.unknown_schemas)
    except ValueError:
        return ()


_REJECTING_STATUSES = {400, 413, 422}
_DENIALS = {401, 403}
_RECEIPT_FIELDS = {field.name for field in msgspec.structs.fields(EvidenceReceipt)}
_ADVICE = {
    401: (
        "missing or wrong token; fix: compare collector.token_file with the collector's tokens file"
    ),
    403: "the token belongs to another node; fix: check node and collector.token_file",
    404: "unknown path; fix: check that collector.url is the base URL of a collector",
    405: "unknown path; fix: check that collector.url is the base URL of a collector",
    426: (
        f"unsupported protocol version {wire.VERSION}; fix: update the older of agent and collector"
    ),
    429: "the collector is busy",
    503: "the collector cannot store frames now",
}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def url_without_credentials(url: str) -> str:
    """Return a URL without user, password and final slash. Raises ValueError."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def read_token(link: CollectorLink) -> str:
    """Return the token of this node; empty if there is none. Raises CollectorLinkError."""
    token, place = link.token.strip(), "collector.token"
    if link.token_file:
        place = f"collector.token_file {link.token_file}"
        with convert_errors(SettingsError, CollectorLinkError):
            token = read_named_file("collector.token_file", link.token_file)
    if not (token.isascii() and token.isprintable()):
        message = f"invalid {place}: expected printable ASCII characters"
        raise CollectorLinkError(message)
    return token


def create_tls_context(link: CollectorLink) -> ssl.SSLContext | None:
    """Return the TLS context for the collector; None for plain HTTP. Raises CollectorLinkError."""
    if not link.url.startswith("https://"):
        if link.certificate_file:
            message = (
                f"invalid collector.url {link.url!r} with collector.certificate_file: "
                "expected an https:// URL"
            )
            raise CollectorLinkError(message)
        return None
    try:
        context = ssl.create_default_context(cafile=link.ca_file or None)
    except OSError as error:
        message = f"cannot use collector.ca_file {link.ca_file}: {error}"
        raise CollectorLinkError(message) from error
    if link.certificate_file:
        try:
            context.load_cert_chain(link.certificate_file, link.key_file or None)
        except OSError as error:
            message = (
                f"cannot use collector.certificate_file {link.certificate_file} or "
                f"collector.key_file {link.key_file}: {error}"
            )
            raise CollectorLinkError(message) from error
    return context
