"""Read-only HTTP client of a collector or an agent.

A server is untrusted: responses are bounded in size and time, also after decompression, redirects are
not followed, and texts of the server are made printable before they are displayed.
"""

from __future__ import annotations

import http.client
import os
import ssl
import stat
import time
import urllib.parse
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import msgspec

from railscope import RailscopeError, __version__, http_responses, timestamps, untrusted_text

MAX_BODY_BYTES = 64 << 20
"""Bound of a response, also decompressed; the nodes of 10,000 servers are 5 MB."""
TIMEOUT_SECONDS = 10.0
MAX_TOKEN_BYTES = 4096
_MAX_SHOWN = 200
_PORTS = {"http": 80, "https": 443}
_Answer = TypeVar("_Answer")


class ClientError(RailscopeError, OSError):
    """A request failed, or its options are invalid; the message states what, and how to fix it.

    `status` is that of the response, if there is one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server, and the files of the credentials for it; empty for none."""

    url: str
    is_agent: bool = False
    """True for an agent, which has only the status and the GPUs of its node."""
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def program(self) -> str:
        """Program that is expected at the address."""
        return "agent" if self.is_agent else "collector"


@dataclass(slots=True)
class ReadClient:
    """Client of one server, with a connection for each request."""

    address: ServerAddress
    _token: str = ""
    _tls: ssl.SSLContext | None = None
    _url: urllib.parse.SplitResult = field(init=False)

    def __post_init__(self) -> None:
        """Check the address, and read the credentials. Raises ClientError."""
        untrusted_text.complete_types()
        self._url = parse_url(self.address.url)
        self._token = read_token(self.address.token_file) if self.address.token_file else ""
        self._tls = _tls_context(self.address)

    def get_as(
        self, shape: type[_Answer], path: str, query: Sequence[tuple[str, str]] = ()
    ) -> tuple[_Answer, int]:
        """Read JSON of a type, and the time at which the server sent it. Raises ClientError."""
        try:
            with closing(self._connect()) as connection:
                response, body = self._exchange(connection, self._target(path, query))
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(path, error) from error
        if response.status != HTTPStatus.OK:
            raise self._rejection(path, response.status, body)
        try:
            return msgspec.json.decode(body, type=shape), _sent_ns(response.headers.get("Date", ""))
        except untrusted_text.DECODING_ERRORS as error:
            message = (
                f"reading {self.address.url}{path} failed: invalid JSON: {_shown(str(error))}: expected the"
                f" answer of a {self.address.program} of version {__version__}; fix: check the URL and the version"
            )
            raise ClientError(message) from error

    def _target(self, path: str, query: Sequence[tuple[str, str]]) -> str:
        target = self._url.path.rstrip("/") + path
        return f"{target}?{urllib.parse.urlencode(query)}" if query else target

    def _exchange(
        self, connection: http.client.HTTPConnection, target: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Return a response and its body. Raises OSError, HTTPException."""
        http_responses.bound_responses(connection, MAX_BODY_BYTES, self.address.timeout_seconds)
        headers = {"Accept": "application/json, text/plain", "Accept-Encoding": "gzip"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        body = response.read()
        is_compressed = response.headers.get("Content-Encoding") == "gzip" and body
        return response, _decompress(body) if is_compressed else body

    def _connect(self) -> http.client.HTTPConnection:
        host, seconds = self._url.hostname or "", self.address.timeout_seconds
        port = self._url.port or _PORTS[self._url.scheme]
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=seconds)

    def _failure(self, path: str, error: Exception) -> ClientError:
        """Return the error of a request without a usable response."""
        program, option = self.address.program, f"--{self.address.program}"
        text = _shown(getattr(error, "strerror", None) or str(error))
        cause, fix = text or type(error).__name__, "check the URL"
        if isinstance(error, ssl.SSLCertVerificationError):
            cause = f"the certificate is not trusted: {_shown(error.verify_message)}"
            fix = "name the CA of the server with --ca-file, or correct the host name in the URL"
        elif isinstance(error, ssl.SSLError):
            cause = f"TLS failed: {_shown(error.reason or str(error))}"
            fix = f"check that {option} begins with https:// only if the server uses TLS, and the client certificate"
        elif isinstance(error, ConnectionRefusedError):
            cause = "connection refused"
            fix = f"check that the {program} runs, and that {option} is its address"
        elif isinstance(error, TimeoutError):
            cause = f"no complete answer within {self.address.timeout_seconds:g} s"
            fix = "check the network, or increase --timeout-seconds"
        elif isinstance(error, ConnectionError | http.client.HTTPException):
            cause = f"no HTTP answer ({type(error).__name__})"
            fix = (
                f"check that {option} is the address of the {program}, with https:// if it uses TLS"
            )
        return ClientError(f"reading {self.address.url}{path} failed: {cause}; fix: {fix}")

    def _rejection(self, path: str, status: int, body: bytes) -> ClientError:
        """Return the error of a response with another status than 200."""
        text = f": {reason}" if (reason := _error_text(body)) else ""
        fix = _FIXES.get(status, "")
        if not self.address.is_agent and any(part in body for part in _TEXTS_OF_AGENTS):
            text, fix = ": the server is an agent", f"--agent {self.address.url}"
        elif self.address.is_agent and status == HTTPStatus.NOT_FOUND:
            fix = f"check that the URL is the base URL of an agent of version {__version__}"
        elif status == HTTPStatus.UNAUTHORIZED and not self.address.token_file:
            fix = "name a file that contains a token with --token-file, or use a client certificate"
        request = f"reading {self.address.url}{path} failed"
        message = f"{request}: status {status}{text}" + (f"; fix: {fix}" if fix else "")
        return ClientError(message, status)


_TEXTS_OF_AGENTS = (b"/metrics/dcgm", b"metrics_token")
"""Parts of the texts with which an agent rejects requests for an unknown path, or without its token."""
_FIXES: Mapping[int, str] = {
    301: "enter the URL that the server redirects to",
    302: "enter the URL that the server redirects to",
    307: "enter the URL that the server redirects to",
    308: "enter the URL that the server redirects to",
    401: "check the token of --token-file; it may have expired or been revoked",
    403: "use a token whose role permits this",
    404: "check that the URL is the base URL of a collector, or --agent for an agent, and that the name exists",
    429: "wait a minute; this address has sent too many invalid credentials",
    502: "check the proxy of the URL, and that the server behind it runs",
    503: "wait until the server is ready; /-/ready states the reason",
    504: "check the proxy of the URL, and that the server behind it runs",
}  # fmt: skip


def parse_url(url: str) -> urllib.parse.SplitResult:
    """Split a base URL. Raises ClientError for one that is not http:// or https:// with a host."""
    expected = "expected http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = bool(parts.scheme in _PORTS and parts.hostname and parts.port != 0)
    except ValueError:  # a port that is not a number, or brackets without an address
        is_valid = False
    if not (is_valid and url.isascii() and url.isprintable() and " " not in url):
        message = f"invalid URL {untrusted_text.quote_text(url)}: {expected}"
        raise ClientError(message)
    if parts.username is not None or parts.query or parts.fragment:
        message = f"invalid URL for {parts.hostname}: {expected} without user, query and fragment; fix: use --token-file"
        raise ClientError(message)
    return parts


def read_token(file: str) -> str:
    """Return the token in a file that other users cannot read. Raises ClientError."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            # Of the opened file: the path may name another one a moment later.
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            token = opened.read(MAX_TOKEN_BYTES + 1).strip().decode("ascii", "replace")
    except OSError as error:
        fix = "name the file with the token that the operator of the collector made with `railscope collector token`"
        message = f"cannot read --token-file {file}: {error.strerror}; fix: {fix}"
        raise ClientError(message) from error
    if mode & stat.S_IROTH:
        message = (
            f"invalid --token-file {file}: mode {mode:04o}: expected a file that other users cannot read;"
            f" fix: chmod 600 {file}"
        )
        raise ClientError(message)
    if not token or len(token) > MAX_TOKEN_BYTES or not (token.isascii() and token.isprintable()):
        message = f"invalid --token-file {file}: expected one token of printable ASCII characters"
        raise ClientError(message)
    return token


def _tls_context(address: ServerAddress) -> ssl.SSLContext | None:
    if parse_url(address.url).scheme != "https":
        if address.ca_file or address.certificate_file:
            message = f"invalid URL {untrusted_text.quote_text(address.url)} with --ca-file or --certificate-file: expected https://"
            raise ClientError(message)
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca_file or None)
    except OSError as error:
        message = f"cannot use --ca-file {address.ca_file}: {error.strerror or error}"
        raise ClientError(message) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if address.certificate_file:
        try:
            context.load_cert_chain(address.certificate_file, address.key_file or None)
        except OSError as error:
            files = f"--certificate-file {address.certificate_file} or --key-file {address.key_file or '(none)'}"
            message = f"cannot use {files}: {error.strerror or error}"
            raise ClientError(message) from error
    return context


def _decompress(body: bytes) -> bytes:
    """Decompress gzip data up to the bound. Raises OSError."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        # One byte more than the bound, which shows that there is more.
        plain = stream.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        message = f"damaged gzip data: {error}"
        raise OSError(message) from error
    if len(plain) > MAX_BODY_BYTES or not stream.eof:
        message = f"gzip data incomplete or too large: expected at most {MAX_BODY_BYTES} bytes"
        raise OSError(message)
    return plain


def _sent_ns(date: str) -> int:
    """Return the time of the server's clock; that of this host without a valid `Date`."""
    try:
        return timestamps.from_datetime(parsedate_to_datetime(date))
    except (ValueError, TypeError, OverflowError, timestamps.TimestampError):
        return time.time_ns()


def _error_text(body: bytes) -> str:
    """Return the reason that a server states for an error, as `{"error": ...}` or as plain text."""
    try:
        content = msgspec.json.decode(body, type=dict[str, object])
        return _shown(str(content.get("error", "")))
    except untrusted_text.DECODING_ERRORS:
        text = body[: 4 * _MAX_SHOWN].decode(errors="replace").strip()
        # A page of HTML, perhaps of a proxy, states no reason in a few words.
        return "" if text.startswith("<") else _shown(text)


def _shown(text: str) -> str:
    text = untrusted_text.printable(text)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
