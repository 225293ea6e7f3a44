"""HTTP client of the audit log of one collector: checkpoints, proofs, and the submission of the stored checkpoint."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from railscope.audit import log_checkpoint
from railscope_agent import config
from railscope_agent.shipping import collector_link, http_client
from railscope_agent.witness import WitnessError

CHECKPOINT_PATH = "/v1/checkpoint"
PRESENT_HEADER = "railscope-show"


class AuditLogUnavailableError(WitnessError):
    """The collector does not respond, or with an unexpected response; the message has details."""


class ReportedConflictError(WitnessError):
    """The collector reports that its log never had the checkpoint sent to it."""


@dataclass(frozen=True, slots=True)
class CheckpointOffer:
    """Newest checkpoint of the log; empty if nothing is signed."""

    note: str
    must_submit: bool
    """True if the collector requests the stored checkpoint."""


class AuditLogClient:
    """Client of one collector. Raises CollectorLinkError if the link cannot work."""

    def __init__(self, link: config.CollectorLink) -> None:
        self.url = collector_link.url_without_credentials(link.url)
        self._base = http_client.HttpClient(
            self.url + CHECKPOINT_PATH,
            collector_link.create_tls_context(link),
            link.timeout_seconds,
        )
        token = collector_link.read_token(link)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._path = self._base.target

    async def close(self) -> None:
        """Close the connection."""
        await self._base.close()

    async def newest(self) -> CheckpointOffer:
        """Fetch the newest checkpoint. Raises AuditLogUnavailableError."""
        answer = await self._get("")
        show = PRESENT_HEADER in answer.headers
        # The text distinguishes a log without a checkpoint from a proxy's 404: only the first can be a
        # rollback.
        if answer.status == HTTPStatus.NOT_FOUND and answer.body.startswith(
            log_checkpoint.NOTHING_SIGNED.encode()
        ):
            return CheckpointOffer("", show)
        return CheckpointOffer(self._text(answer), show)

    async def key(self) -> str:
        """Fetch the public key of the log. Raises AuditLogUnavailableError."""
        return self._text(await self._get("/key"))

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """Fetch the consistency proof between the logs of `old` and `new` records. Raises AuditLogUnavailableError.

        An invalid proof is returned as an empty list, which proves nothing.
        """
        text = self._text(await self._get(f"/consistency?from={old}&to={new}"))
        try:
            return [base64.b64decode(line, validate=True) for line in text.splitlines()]
        except (binascii.Error, ValueError):
            # An unreadable proof must lead to a conflict, not to another attempt: a forked log could send
            # nothing else.
            return []

    async def submit(self, note: str, key: str) -> None:
        """Send the stored, cosigned checkpoint, or that there is none. Raises AuditLogUnavailableError, ReportedConflictError."""
        body = msgspec.json.encode({"note": note, "key": key})
        try:
            target = f"{self._path}/cosignature"
            answer = await self._base.post(body, self._headers, target)
        except OSError as error:
            raise self._unavailable(error) from error
        if answer.status == HTTPStatus.CONFLICT:
            raise ReportedConflictError(answer.body[:500].decode(errors="replace"))
        self._text(answer)

    async def _get(self, suffix: str) -> http_client.HttpResponse:
        try:
            return await self._base.get(self._headers, self._path + suffix)
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> AuditLogUnavailableError:
        return AuditLogUnavailableError(
            f"cannot read the audit log of {self.url}: {error.strerror or error or 'timeout'}"
        )

    def _text(self, answer: http_client.HttpResponse) -> str:
        if answer.status != HTTPStatus.OK:
            detail = answer.body[:200].decode(errors="replace").strip()
            message = (
                f"request to {self.url}{CHECKPOINT_PATH} failed: status {answer.status} ({detail})"
            )
            raise AuditLogUnavailableError(message)
        try:
            return answer.body.decode()
        except UnicodeDecodeError as error:
            message = f"invalid response from {self.url}{CHECKPOINT_PATH}: expected UTF-8"
            raise AuditLogUnavailableError(message) from error
