"""OTLP over HTTP: one POST for each request, with status, Retry-After and partial success of the response."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from railscope import __version__, http_responses
from railscope.untrusted_text import printable
from railscope_agent.otlp import otlp_sender
from railscope_agent.otlp.otlp_target import OtlpTarget
from railscope_agent.shipping.http_client import HttpClient, HttpResponse

# The specification of OTLP recommends this limit for clients.
MAX_RESPONSE_BYTES = 4 << 20
_PROTOBUF = "application/x-protobuf"
# The retryable statuses of the OTLP specification; all others are final.
_REPEATED = {
    HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT,
}  # fmt: skip


class HttpTransport:
    """Connection to the receiver of one signal."""

    def __init__(self, target: OtlpTarget, wall_seconds: Callable[[], float]) -> None:
        """Create the client; it connects with the first request."""
        files = target.tls_files
        tls = None
        if files:
            tls = ssl.create_default_context(cafile=files.ca_file or None)
            if files.certificate_file:
                tls.load_cert_chain(files.certificate_file, files.key_file or None)
        self._wall_seconds, self._timeout_seconds = wall_seconds, target.timeout_seconds
        self._http = HttpClient(target.url, tls, target.timeout_seconds, MAX_RESPONSE_BYTES)
        parts = urlsplit(target.url)
        # The query is kept: some receivers have their key in it.
        self._target = parts._replace(
            scheme="", netloc="", path=parts.path or "/", fragment=""
        ).geturl()
        self._headers = {
            "Content-Type": _PROTOBUF,
            "User-Agent": f"railscope-agent/{__version__}",
            **({"Content-Encoding": "gzip"} if target.is_compressed else {}),
            **target.headers,
        }

    async def send(self, body: bytes) -> otlp_sender.OtlpResult:
        """Return the result of a request. Raises RetryLaterError without a final one."""
        response = await self._post(body)
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            if response.headers.get("content-type", "").startswith(_PROTOBUF):
                return otlp_sender.decode_success(response.body)
            # Some receivers answer with an empty body or JSON: the status alone means success.
            return otlp_sender.OtlpResult()
        problem = f"status {response.status} {_error_message(response)}".strip()
        if response.status in _REPEATED:
            retry_after = response.headers.get("retry-after", "")
            wait = http_responses.retry_after_seconds(retry_after, self._wall_seconds())
            raise otlp_sender.RetryLaterError(problem, wait)
        return otlp_sender.OtlpResult(problem=problem)

    async def close(self) -> None:
        """Close the connection."""
        await self._http.close()

    async def _post(self, body: bytes) -> HttpResponse:
        try:
            return await self._http.post(body, self._headers, self._target)
        except ssl.SSLCertVerificationError as error:
            problem = f"untrusted certificate: {error.verify_message}; fix: set otlp.ca_file"
            raise otlp_sender.RetryLaterError(problem) from error
        except TimeoutError as error:
            problem = f"no response within {self._timeout_seconds:g} s"
            raise otlp_sender.RetryLaterError(problem) from error
        except OSError as error:
            problem = error.strerror or str(error) or type(error).__name__
            raise otlp_sender.RetryLaterError(problem) from error


def _error_message(response: HttpResponse) -> str:
    """Return the message of an error: that of a google.rpc.Status, or the text of the body."""
    if response.headers.get("content-type", "").startswith(_PROTOBUF):
        with suppress(DecodeError):
            return otlp_sender.status_message(response.body)
    return printable(" ".join(response.body[:1000].decode(errors="replace").split()))
