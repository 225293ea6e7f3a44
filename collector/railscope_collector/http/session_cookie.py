"""Cookie of a console session: its name and value by the connection of a request."""

from __future__ import annotations

from aiohttp import web

from railscope.listen_address import is_loopback

# Browsers accept the prefix __Host- only with Secure, Path=/ and no Domain (RFC 6265bis, 4.1.3.2): no other host can
# set it.
SECURE_COOKIE, LOOPBACK_COOKIE = "__Host-railscope", "railscope"
_FORWARDED = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP")


def choose_name(request: web.Request) -> str:
    """Return the name of the session's cookie; empty if the connection may not have one.

    Plain HTTP is accepted from a browser on this machine only: not from a proxy here, and not for another name.
    """
    if request.secure:
        return SECURE_COOKIE
    is_local = is_loopback(request.remote or "") and is_loopback(request.url.host or "")
    is_forwarded = any(name in request.headers for name in _FORWARDED)
    return LOOPBACK_COOKIE if is_local and not is_forwarded else ""


def find_value(request: web.Request) -> str:
    """Return the value of the session's cookie; empty if there is none."""
    return request.cookies.get(choose_name(request), "")
