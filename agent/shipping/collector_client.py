"""Requests to the collector, and the evaluation of its responses.

A response means one of: acknowledged as durable; schemas required first; rejected permanently (sending the
same again will not help); or retry later, with a problem and a remedy. The first three decide about frames,
and are accepted only with the mark of the collector.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Self

import msgspec

from agent.config import CollectorLink
from agent.shipping.http_client import Answer as HttpAnswer
from agent.shipping.http_client import HttpClient
from railscope.answer_mark import ANSWER_HEADER, DECISIONS, is_marked
from railscope.wire import CONTENT_TYPE, VERSION, SentAt

INGEST_PATH = "/v1/frames"


class Verdict(Enum):
    """Decision about an envelope after one attempt."""

    ACKNOWLEDGED = "acknowledged"
    WANTS_SCHEMAS = "wants_schemas"
    REFUSED = "refused"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one attempt."""

    verdict: Verdict
    problem: str = ""
    schemas: tuple[bytes, ...] = ()
    retry_after_seconds: float | None = None


class _Reply(msgspec.Struct):
    error: str = ""
    unknown_schemas: tuple[str, ...] = ()
    accepted_frames: int | None = None


class LinkError(ValueError):
    """The configuration of the link to the collector is invalid; the message names the fix."""


class CollectorClient:
    """Posts bodies to one collector. Raises LinkError if the link cannot work."""

    def __init__(self, link: CollectorLink) -> None:
        self.url = link.url.rstrip("/") + INGEST_PATH
        self._headers = {"Content-Type": CONTENT_TYPE}
        self._token = token_of(link)
        if self._token:
            self._headers["Authorization"] = f"Bearer {self._token}"
        if not link.url.startswith(("http://", "https://")):
            message = f"collector.url {link.url!r} must start with http:// or https://"
            raise LinkError(message)
        tls = tls_of(link)
        try:
            self._http = HttpClient(self.url, tls, link.timeout_seconds)
        except ValueError as error:
            message = f"collector.url {link.url!r} cannot be used: {error}"
            raise LinkError(message) from error

    async def __aenter__(self) -> Self:
        """Return itself; the connection is opened with the first request."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._http.close()

    async def post(self, body: bytes, sent: SentAt) -> Answer:
        """Try once; `sent` lets the collector compute the age of the frames by the node's own clocks."""
        try:
            answer = await self._http.post(body, self._headers | sent.to_headers())
        except ssl.SSLCertVerificationError as error:
            problem = (
                f"{self.url}: the collector's certificate is not trusted ({error.verify_message});"
                " set collector.ca_file"
            )
        except TimeoutError:
            problem = f"{self.url}: no answer within collector.timeout_seconds"
        except ConnectionRefusedError:
            problem = f"{self.url}: connection refused: is the collector running, on this port?"
        except OSError as error:
            problem = f"{self.url}: {error.strerror or error}"
        else:
            mark = answer.headers.get(ANSWER_HEADER.lower(), "")
            marked = is_marked(mark, self._token, answer.status, body, answer.body)
            return _judge(self.url, answer, marked=marked)
        return Answer(Verdict.LATER, problem)


def _judge(url: str, answer: HttpAnswer, *, marked: bool) -> Answer:
    status = answer.status
    try:
        reply = msgspec.json.decode(answer.body, type=_Reply)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        reply = None
    said = reply.error if reply else ""
    if status in DECISIONS and not marked:
        problem = (
            f"unexpected answer from {url}: status {status} without the mark of a collector:"
            " expected a collector that knows this node's token; fix: check collector.url, and"
            " update the collector before its agents"
        )
        return Answer(Verdict.LATER, problem)
    if status == HTTPStatus.OK and reply is not None and reply.accepted_frames is not None:
        return Answer(Verdict.ACKNOWLEDGED)
    if status == HTTPStatus.CONFLICT and reply is not None and (wanted := _wanted(reply)):
        problem = f"{url}: keeps asking for schemas that it was sent"
        return Answer(Verdict.WANTS_SCHEMAS, problem, wanted)
    if reply is not None and status in _REFUSALS:
        return Answer(Verdict.REFUSED, f"{url}: refused with {status}: {said}")
    advice = _ADVICE.get(status, "is this really the collector?")
    problem = f"{url}: answered {status}{f' ({said})' if said else ''}: {advice}"
    return Answer(Verdict.LATER, problem, retry_after_seconds=_retry_after(answer.headers))


def _wanted(reply: _Reply) -> tuple[bytes, ...]:
    """Return the schemas that a reply requests; none if it contains an invalid hash."""
    try:
        return tuple(bytes.fromhex(digest) for digest in reply.unknown_schemas)
    except ValueError:
        return ()


_REFUSALS = {400, 413, 422}
_ADVICE = {
    401: "the token is wrong or missing: check collector.token_file against the collector's tokens",
    403: "the token belongs to another node: check node and collector.token_file",
    404: "there is no ingest at this address: check collector.url, it is the base of the collector",
    405: "there is no ingest at this address: check collector.url, it is the base of the collector",
    426: f"the collector speaks another version than {VERSION}: update the older of the two",
    429: "the collector is busy",
    503: "the collector cannot store frames now",
}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def token_of(link: CollectorLink) -> str:
    """Return the token of this node; empty if there is none. Raises LinkError."""
    token, place = link.token.strip(), "collector.token"
    if link.token_file:
        place = f"collector.token_file {link.token_file}"
        try:
            token = Path(link.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"{place} cannot be read: {error}"
            raise LinkError(message) from error
    if not (token.isascii() and token.isprintable()):
        message = f"{place} holds characters that no token has"
        raise LinkError(message)
    return token


def tls_of(link: CollectorLink) -> ssl.SSLContext | None:
    """Return the TLS context for the collector; None for plain HTTP. Raises LinkError."""
    if not link.url.startswith("https://"):
        if link.certificate_file:
            message = f"collector.certificate_file needs an https:// URL, not {link.url!r}"
            raise LinkError(message)
        return None
    try:
        context = ssl.create_default_context(cafile=link.ca_file or None)
    except OSError as error:
        message = f"collector.ca_file {link.ca_file} cannot be used: {error}"
        raise LinkError(message) from error
    if link.certificate_file:
        try:
            context.load_cert_chain(link.certificate_file, link.key_file or None)
        except OSError as error:
            message = (
                f"collector.certificate_file {link.certificate_file} or collector.key_file"
                f" {link.key_file} cannot be used: {error}"
            )
            raise LinkError(message) from error
    return context
