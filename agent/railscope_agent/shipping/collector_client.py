"""Client of one collector: sends envelopes."""

from __future__ import annotations

import ssl
from typing import Self
from urllib.parse import urlsplit

from railscope import convert_errors, wire
from railscope.http_responses import RESPONSE_MARK_HEADER, is_marked
from railscope_agent.config import CollectorLink
from railscope_agent.shipping.collector_link import (
    CollectorLinkError,
    create_tls_context,
    read_token,
    url_without_credentials,
)
from railscope_agent.shipping.delivery_result import (
    ChangeReason,
    DeliveryResult,
    EnvelopeDecision,
    interpret_answer,
)
from railscope_agent.shipping.http_client import HttpClient

INGEST_PATH = "/v1/frames"


class CollectorClient:
    """Posts bodies to one collector. Raises CollectorLinkError if the link cannot work."""

    def __init__(self, link: CollectorLink) -> None:
        with convert_errors(
            ValueError, CollectorLinkError, f"invalid collector.url {link.url!r}: "
        ):
            # The URL is in log lines and messages, so it must not contain a password.
            self.url = url_without_credentials(link.url) + INGEST_PATH
        self._headers = {"Content-Type": wire.CONTENT_TYPE}
        self._token = read_token(link)
        if self._token:
            self._headers["Authorization"] = f"Bearer {self._token}"
        if not link.url.startswith(("http://", "https://")):
            message = f"invalid collector.url {link.url!r}: expected http:// or https://"
            raise CollectorLinkError(message)
        try:
            self._http = HttpClient(self.url, create_tls_context(link), link.timeout_seconds)
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

    async def post(self, body: bytes, sent: wire.SentAt, receipt: str = "") -> DeliveryResult:
        """Try once; `sent` lets the collector compute the age of the frames by the node's own clocks.

        `receipt` is that of the collector that received the body first, if it is sent again.
        """
        url = self.url
        headers = {wire.RECEIPT_HEADER: receipt} if receipt else {}
        try:
            answer = await self._http.post(
                body, {**self._headers, **sent.to_headers(), **headers}, urlsplit(url).path
            )
        except ssl.SSLCertVerificationError as error:
            problem = (
                f"untrusted certificate of the collector at {url}: "
                f"{error.verify_message}; fix: set collector.ca_file"
            )
        # A subclass of OSError, and the only failure that can mean a collector that hangs.
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
            # The mark covers status, request and response: no other server can remove envelopes from the
            # spool.
            mark = answer.headers.get(RESPONSE_MARK_HEADER.lower(), "")
            marked = is_marked(mark, self._token, answer.status, body, answer.body)
            return interpret_answer(url, answer, marked=marked)
        return DeliveryResult(EnvelopeDecision.LATER, problem)
