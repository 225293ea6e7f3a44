"""Result of a delivery to the collector, from its response.

A response means one of: acknowledged as durable; shapes or names required first; rejected permanently
(sending the same again will not help); or retry later, with a problem and a remedy. The first
three decide about frames, and are accepted only with the mark of the collector. So is the node of the credential in a
denial: with it, the delivery finds envelopes of a former name of this node, which are rejected permanently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from http import HTTPStatus
from typing import Annotated, NamedTuple

import msgspec

from railscope import wire
from railscope.http_responses import DECISIONS
from railscope.untrusted_text import DECODING_ERRORS
from railscope_agent.shipping.http_client import HttpResponse

_REJECTING_STATUSES = {400, 413, 422}
"""The meanings of all statuses are in docs/architecture.md, "The wire protocol"."""
_DENIALS = {401, 403}
_OTHER_MAGIC = f"starts with {wire.FORMER_MAGIC!r}"
"""In the answer of a collector that supports version 1 of the wire format only."""
_MAX_POSITION = (1 << 63) - 1
_RECEIPT = rf"^[0-9A-Za-z_=-]{{0,{wire.MAX_RECEIPT_CHARACTERS}}}\Z"


class EvidenceReceipt(msgspec.Struct, frozen=True):
    """Acknowledgement of a collector with a shared database.

    `log` identifies its frame log, `position` this acknowledgement. The database has the evidence of all
    acknowledgements up to `stored`. A collector that lost its disk responds with a new log.
    """

    log: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    position: Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
    stored: Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
    receipt: Annotated[str, msgspec.Meta(pattern=_RECEIPT)] = ""
    """Signed receipt for another collector, if the envelope must be sent again; empty for a repetition."""


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


class EnvelopeDecision(Enum):
    """Decision about an envelope after one attempt."""

    ACKNOWLEDGED = "acknowledged"
    WANTS_NAMES = "wants_names"
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
    """It drains, or another one of its group is active."""


class RequestedParts(NamedTuple):
    """Hashes that a collector requests: of shapes, of lists of names, and of schemas of frames of an agent up to 0.3.0."""

    shapes: tuple[bytes, ...] = ()
    names: tuple[bytes, ...] = ()
    schemas: tuple[bytes, ...] = ()


_NOTHING = RequestedParts()


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Result of one attempt."""

    verdict: EnvelopeDecision
    problem: str = ""
    change_reason: ChangeReason = ChangeReason.FAILURES
    """Reason to use another collector after a failure."""
    requested: RequestedParts = _NOTHING
    retry_after_seconds: float | None = None
    receipt: EvidenceReceipt | None = None
    """Receipt of a collector with a shared database, which stores evidence later."""
    credential_node: str = ""
    """Node of the credential, if the collector has denied an envelope because it is that of another node."""


class _CollectorReply(msgspec.Struct):
    error: str = ""
    unknown_shapes: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()
    unknown_schemas: tuple[str, ...] = ()
    accepted_frames: int | None = None
    draining: bool = False
    credential_node: str = ""


def interpret_answer(url: str, answer: HttpResponse, *, marked: bool) -> DeliveryResult:
    """Return the result of a delivery; `marked` is true if the response has the mark of the collector."""
    status = answer.status
    try:
        reply = msgspec.json.decode(answer.body, type=_CollectorReply)
    except DECODING_ERRORS:
        # A proxy's page in HTML: without a reply in JSON, no status counts as a decision.
        reply = None
    detail = reply.error if reply else ""
    # A proxy, or any other server at this address, must not remove frames from the spool.
    if status in DECISIONS and not marked:
        problem = (
            f"unexpected response from {url}: status {status} without the mark of a "
            "collector: expected a collector with this node's token; fix: check "
            "collector.url, and update the collector before its agents"
        )
        return DeliveryResult(EnvelopeDecision.LATER, problem)
    if status == HTTPStatus.OK and reply and reply.accepted_frames is not None:
        try:
            receipt = _read_receipt(answer.body)
        except ValueError as error:
            problem = (
                f"invalid acknowledgement from {url}: {error}: expected log, position and stored; "
                "fix: update the older of agent and collector"
            )
            # The collector has the frames, but without the receipt the agent cannot know when their evidence
            # is stored.
            return DeliveryResult(EnvelopeDecision.LATER, problem)
        return DeliveryResult(EnvelopeDecision.ACKNOWLEDGED, receipt=receipt)
    if (
        status == HTTPStatus.CONFLICT
        and reply is not None
        and any(requested := _requested_parts(reply))
    ):
        problem = f"repeated request from {url} for shapes or names that were sent"
        return DeliveryResult(EnvelopeDecision.WANTS_NAMES, problem, requested=requested)
    # A collector up to 0.3.0 rejects the envelope before it reads its version: frames wait for its update.
    if reply is not None and status == HTTPStatus.BAD_REQUEST and _OTHER_MAGIC in detail:
        status = HTTPStatus.UPGRADE_REQUIRED
    if reply is not None and status in _REJECTING_STATUSES:
        return DeliveryResult(
            EnvelopeDecision.REJECTED, f"envelope rejected by {url}: status {status}: {detail}"
        )
    advice = _ADVICE.get(status, "fix: check that collector.url is the base URL of a collector")
    problem = (
        f"request to {url} failed: status {status}{f' ({detail})' if detail else ''}: {advice}"
    )
    reason = ChangeReason.DENIED if status in _DENIALS else ChangeReason.FAILURES
    if reply is not None and reply.draining:
        reason = ChangeReason.DRAINING
    return DeliveryResult(
        EnvelopeDecision.LATER,
        problem,
        reason,
        retry_after_seconds=_retry_after(answer.headers),
        # The access control responds with this status too, and so may a proxy.
        credential_node=reply.credential_node
        if reply and marked and status == HTTPStatus.FORBIDDEN
        else "",
    )


def _read_receipt(body: bytes) -> EvidenceReceipt | None:
    """Return the receipt in a response; None if it has none. Raises ValueError for an invalid one."""
    # No field at all is a collector without a shared database; some of them are a malformed receipt.
    if not msgspec.json.decode(body, type=dict[str, object]).keys() & _RECEIPT_FIELDS:
        return None
    receipt = msgspec.json.decode(body, type=EvidenceReceipt)
    if receipt.stored > receipt.position:
        message = f"stored {receipt.stored} is after position {receipt.position}"
        raise ValueError(message)
    return receipt


def _requested_parts(reply: _CollectorReply) -> RequestedParts:
    """Return what a reply requests; nothing if it contains an invalid hash."""
    unknown = reply.unknown_shapes, reply.unknown_names, reply.unknown_schemas
    try:
        return RequestedParts(*(tuple(map(bytes.fromhex, each)) for each in unknown))
    except ValueError:
        # Not a valid request: the envelope is sent again later instead of being rejected as incomplete.
        return _NOTHING


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    # The form with a date is not sent by collectors; the agent's own pauses apply then.
    return float(value) if value.isdecimal() else None
