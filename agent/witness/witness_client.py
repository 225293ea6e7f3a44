"""HTTP client for the collector's audit log."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from agent.config import CollectorLink
from agent.shipping.collector_client import tls_of, token_of
from agent.shipping.http_client import Answer, HttpClient

PATH = "/v1/checkpoint"
SHOW_HEADER = "railscope-show"
NOTHING_SIGNED = b"nothing has been signed"


class AwayError(Exception):
    """The collector does not respond, or with an unexpected response; the message has details."""


class DisagreesError(Exception):
    """The collector reports that its log never had the checkpoint sent to it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Newest checkpoint of the log; empty if nothing is signed."""

    note: str
    show: bool
    """True if the collector requests the stored checkpoint."""


class CustodyClient:
    """Client of one collector. Raises LinkError if the link cannot work."""

    def __init__(self, link: CollectorLink) -> None:
        self.url = link.url.rstrip("/")
        self._base = HttpClient(self.url + PATH, tls_of(link), link.timeout_seconds)
        token = token_of(link)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._path = self._base.target

    async def close(self) -> None:
        """Close the connection."""
        await self._base.close()

    async def newest(self) -> Offer:
        """Fetch the newest checkpoint. Raises AwayError."""
        answer = await self._get("")
        show = SHOW_HEADER in answer.headers
        if answer.status == HTTPStatus.NOT_FOUND and answer.body.startswith(NOTHING_SIGNED):
            return Offer("", show)
        return Offer(self._text(answer), show)

    async def key(self) -> str:
        """Fetch the public key of the log. Raises AwayError."""
        return self._text(await self._get("/key"))

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """Fetch the consistency proof between the logs of `old` and `new` records. Raises AwayError.

        An invalid proof is returned as an empty list, which proves nothing.
        """
        text = self._text(await self._get(f"/consistency?from={old}&to={new}"))
        try:
            return [base64.b64decode(line, validate=True) for line in text.splitlines()]
        except (binascii.Error, ValueError):
            return []

    async def show(self, note: str, key: str) -> None:
        """Send the stored, cosigned checkpoint, or that there is none. Raises AwayError, DisagreesError."""
        body = msgspec.json.encode({"note": note, "key": key})
        try:
            target = f"{self._path}/cosignature"
            answer = await self._base.post(body, self._headers, target)
        except OSError as error:
            raise self._away(error) from error
        if answer.status == HTTPStatus.CONFLICT:
            raise DisagreesError(answer.body[:500].decode(errors="replace"))
        self._text(answer)

    async def _get(self, more: str) -> Answer:
        try:
            return await self._base.get(self._headers, self._path + more)
        except OSError as error:
            raise self._away(error) from error

    def _away(self, error: OSError) -> AwayError:
        return AwayError(f"{self.url}: {error.strerror or error or 'no answer in time'}")

    def _text(self, answer: Answer) -> str:
        if answer.status != HTTPStatus.OK:
            said = answer.body[:200].decode(errors="replace").strip()
            message = f"{self.url}{PATH}: answered {answer.status} ({said})"
            raise AwayError(message)
        try:
            return answer.body.decode()
        except UnicodeDecodeError as error:
            message = f"{self.url}{PATH}: answered with what is no text"
            raise AwayError(message) from error
