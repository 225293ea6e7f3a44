"""Order of several collectors for a node, and the link to each.

The order is by rendezvous hashing, unless it is as listed: each node has its own order, all collectors are first
for equal shares of the nodes, and if one is removed, only its nodes get another one.
"""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

import msgspec

from railscope import settings
from railscope_agent import config
from railscope_agent.shipping import collector_link

_DEFAULT_PORTS = {"http": 80, "https": 443}


def collector_links(link: config.CollectorLink, node: str) -> list[config.CollectorLink]:
    """Return the link to each collector, in the order for a node. Raises CollectorLinkError."""
    credentials = ("token", "token_file", "certificate_file", "key_file")
    if not link.all_urls and (named := [name for name in credentials if getattr(link, name)]):
        message = (
            f"collector.{named[0]} is set without collector.url: expected both or neither;"
            ' fix: collector.url = "https://HOST:9470"'
        )
        raise collector_link.CollectorLinkError(message)
    if link.all_urls and link.send_to > len(link.all_urls):
        message = (
            f"invalid collector.send_to {link.send_to}: expected at most the number of collectors, "
            f"{len(link.all_urls)}; fix: list another one in collector.urls, or set collector.send_to = 1"
        )
        raise collector_link.CollectorLinkError(message)
    if not link.urls:
        return [link] * bool(link.url)
    if link.url:
        message = (
            "collector.url and collector.urls are both set: expected one of them; "
            "fix: move the URL to collector.urls, and remove collector.url"
        )
        raise collector_link.CollectorLinkError(message)
    url_by_server: dict[tuple[str, str, int, str], str] = {}
    for number, url in enumerate(link.urls, 1):
        server = _server_of(number, url)
        if server in url_by_server:
            message = f"invalid collector.urls: {url!r} is the same as {url_by_server[server]!r}: expected no duplicates"
            raise collector_link.CollectorLinkError(message)
        url_by_server[server] = url
    key = node
    if link.order == "pod":
        if not link.pod:
            message = (
                'collector.pod is not set: expected the name of this node\'s pod for collector.order = "pod"; '
                'fix: set collector.pod, or collector.order = "rendezvous"'
            )
            raise collector_link.CollectorLinkError(message)
        key = link.pod
    urls = link.urls if link.order == "listed" else rendezvous_order(key, link.urls)
    # A collector that hangs must not delay the use of another one by a longer timeout.
    timeout_seconds = min(link.timeout_seconds, link.failover_seconds)
    return [
        msgspec.structs.replace(link, url=url, urls=[], timeout_seconds=timeout_seconds)
        for url in urls
    ]


def rendezvous_order(key: str, urls: list[str]) -> list[str]:
    """Return URLs in the order for a key: the one with the highest hash of both is the first."""

    def rank(url: str) -> bytes:
        # The URL without its final slash, so that both spellings result in one order. SHA-256, as `hash`
        # differs by process.
        return hashlib.sha256(f"{key}\n{url.rstrip('/')}".encode()).digest()

    return sorted(urls, key=rank, reverse=True)


def _server_of(number: int, url: str) -> tuple[str, str, int, str]:
    """Return what distinguishes a collector from others. Raises CollectorLinkError, which quotes no credential."""
    try:
        settings.check_http_url("collector.urls", url)
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except settings.SettingsError as error:
        raise collector_link.CollectorLinkError(str(error)) from error
    except ValueError as error:
        message = f"invalid collector.urls: URL {number}: {error}: expected http://HOST:PORT or https://HOST:PORT"
        raise collector_link.CollectorLinkError(message) from error
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")
