"""Settings of the link to a collector, checked: its URL, the token of the node and TLS."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from railscope import convert_errors
from railscope.settings import SettingsError, read_named_file
from railscope_agent.config import CollectorLink
from railscope_agent.shipping import ShippingError


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
