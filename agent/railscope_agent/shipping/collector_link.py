"""Settings of the links to collectors, checked: their URLs, the token of the node and TLS."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import msgspec

from railscope import convert_errors
from railscope.settings import SettingsError, check_http_url, read_named_file
from railscope_agent.config import CollectorLink
from railscope_agent.shipping import ShippingError

_DEFAULT_PORTS = {"http": 80, "https": 443}


class CollectorLinkError(ShippingError, ValueError):
    """The configuration of the link to the collector is invalid; the message names the fix."""


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
    # Headers of HTTP cannot carry anything else: each request would fail.
    if not (token.isascii() and token.isprintable()):
        message = f"invalid {place}: expected printable ASCII characters"
        raise CollectorLinkError(message)
    return token


def create_tls_context(link: CollectorLink) -> ssl.SSLContext | None:
    """Return the TLS context for the collector; None for plain HTTP. Raises CollectorLinkError."""
    if not link.url.startswith("https://"):
        # Without TLS the certificate would not be used: the agent would be unauthenticated without a message.
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


def collector_links(link: CollectorLink) -> list[CollectorLink]:
    """Return the link to each collector, as listed. Raises CollectorLinkError."""
    credentials = ("token", "token_file", "certificate_file", "key_file")
    if not link.all_urls and (named := [name for name in credentials if getattr(link, name)]):
        message = (
            f"collector.{named[0]} is set without collector.url: expected both or neither;"
            ' fix: collector.url = "https://HOST:9470"'
        )
        raise CollectorLinkError(message)
    if not link.urls:
        return [link] * bool(link.url)
    if link.url:
        message = (
            "collector.url and collector.urls are both set: expected one of them; "
            "fix: move the URL to collector.urls, and remove collector.url"
        )
        raise CollectorLinkError(message)
    url_by_server: dict[tuple[str, str, int, str], str] = {}
    for number, url in enumerate(link.urls, 1):
        server = _server_of(number, url)
        if server in url_by_server:
            message = f"invalid collector.urls: {url!r} is the same as {url_by_server[server]!r}: expected no duplicates"
            raise CollectorLinkError(message)
        url_by_server[server] = url
    # A collector that hangs must not delay the use of another one by a longer timeout.
    timeout_seconds = min(link.timeout_seconds, link.failover_seconds)
    return [
        msgspec.structs.replace(link, url=url, urls=[], timeout_seconds=timeout_seconds)
        for url in link.urls
    ]


def _server_of(number: int, url: str) -> tuple[str, str, int, str]:
    """Return what distinguishes a collector from others. Raises CollectorLinkError, which quotes no credential."""
    try:
        check_http_url("collector.urls", url)
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except SettingsError as error:
        raise CollectorLinkError(str(error)) from error
    except ValueError as error:
        message = f"invalid collector.urls: URL {number}: {error}: expected http://HOST:PORT or https://HOST:PORT"
        raise CollectorLinkError(message) from error
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")
