"""Access control of every route: authentication, authorization, and the responses to denied requests.

401  no credential, or no valid one               429  too many of those from one address
403  a credential without the required role       404, 405  only for authenticated requests
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, TypeAlias
from urllib.parse import quote

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_urldispatcher import AbstractRoute

from collector.access.credential import ANYONE, Credential, Role
from collector.access.credentials import Credentials, Key
from collector.audit.trail import Denial
from collector.http.authentication import EXPIRED, NOTHING, Outcome, authenticate
from collector.http.routes import ROUTES, Route
from collector.http.throttle import SECONDS_PER_FAILURE, Throttle
from collector.log_limit import LogLimit
from railscope.connections import source_of

log = structlog.get_logger(__name__)

ROLE, CROSS_TENANT = "role", "another tenant"
_PRIVATE = {"Cache-Control": "no-store", "Vary": "Authorization"}
_CHALLENGES = {NOTHING: 'Bearer realm="railscope"'}
_BAD = 'Bearer realm="railscope", error="invalid_token"'
_SCOPE = 'Bearer realm="railscope", error="insufficient_scope"'
_KEPT_IN_A_PATH = "/%:@!$&'()*+,;=~-._"


class Witness(Protocol):
    """Receiver of access events. Its methods do not block."""

    def denied(self, denial: Denial) -> None:
        """A request was denied."""

    def used(self, credential: Credential, key: Key, address: str) -> None:
        """A credential was accepted."""

    def expired(self, credential: Credential, key: Key, address: str) -> None:
        """An expired credential was presented."""

    def crossed(self, credential: Credential, path: str, address: str) -> None:
        """A tenant requested the data of another."""


Answer: TypeAlias = Callable[[web.Request, Credential], Awaitable[web.StreamResponse]]
"""Handler of an authorized request; an open route is called with `ANYONE`."""
Handlers: TypeAlias = Mapping[str, Answer]
"""Handlers by route name."""


@dataclass(slots=True)
class Gate:
    """Authorizes requests; `credentials` is called for each request."""

    credentials: Callable[[], Credentials]
    witness: Witness
    open_reading: bool = False
    """True if an unauthenticated request has the rights of an operator."""
    wall_ns: Callable[[], int] = time.time_ns
    refused: Callable[[Route | None, str], None] = lambda _route, _reason: None
    """Called with the route and the reason of each denied request."""
    declared: dict[AbstractRoute, tuple[Route, Answer]] = field(default_factory=dict)
    """Declared routes. Other routes of the application are not served."""
    lines: LogLimit = field(default_factory=LogLimit)
    _throttle: Throttle = field(default_factory=Throttle)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request, or deny it with a reason."""
        route, answer = self.declared.get(request.match_info.route, (None, None))
        if route and answer and route.open:
            return await answer(request, ANYONE)
        admitted = self._admitted(request, route)
        if isinstance(admitted, web.Response):
            return admitted
        try:
            # Without a handler, aiohttp responds with 404 or 405.
            response = await (answer(request, admitted) if answer else handler(request))
        except web.HTTPException as answer:
            answer.headers.update(_PRIVATE)
            raise
        response.headers.update(_PRIVATE)
        return response

    def _admitted(self, request: web.Request, route: Route | None) -> Credential | web.Response:
        """Return the credential of an authorized request, or the response that denies it."""
        found = self._outcome(request)
        credential = found.credential
        if credential is None:
            return self._unknown(request, route, found)
        if found.key:
            self.witness.used(credential, found.key, request.remote or "")
        if route is None:
            return credential
        if not route.admits(credential.role):
            if credential is ANYONE:
                return self._unknown(request, route, Outcome(None, NOTHING))
            text = f"not for a credential of role {credential.role}"
            return self._forbidden(request, route, found, (ROLE, text))
        if credential.role is Role.TENANT and not _own(request, credential.tenant):
            self.witness.crossed(credential, _path(request), request.remote or "")
            text = "a tenant's credential is for that tenant only"
            return self._forbidden(request, route, found, (CROSS_TENANT, text))
        return credential

    def _outcome(self, request: web.Request) -> Outcome:
        authorization = request.headers.getall("Authorization", [])
        found = authenticate(
            self.credentials(), authorization, _certificate(request), self.wall_ns()
        )
        if self.open_reading and found.reason == NOTHING:
            return Outcome(ANYONE)
        return found

    def _unknown(self, request: web.Request, route: Route | None, found: Outcome) -> web.Response:
        address = request.remote or ""
        label = found.holder.label if found.holder else ""
        self.witness.denied(Denial(address, _path(request), found.reason, label, found.shown))
        if found.holder and found.key and found.reason == EXPIRED:
            self.witness.expired(found.holder, found.key, address)
        self.refused(route, "token")
        if self._throttle.fails(address, time.monotonic()):
            headers = {"Retry-After": f"{SECONDS_PER_FAILURE:.0f}", **_PRIVATE}
            return json_answer(
                {"error": "too many wrong credentials from this address"},
                HTTPStatus.TOO_MANY_REQUESTS,
                headers,
            )
        repeated = self.lines.due(source_of(address), found.reason)
        if repeated is not None:
            log.warning("request_denied", sender=address, path=_path(request), reason=found.reason,
                        repeated=repeated)  # fmt: skip
        text = "no credential that is valid here: show a token as bearer token, or a certificate"
        headers = {"WWW-Authenticate": _CHALLENGES.get(found.reason, _BAD), **_PRIVATE}
        return json_answer({"error": text}, HTTPStatus.UNAUTHORIZED, headers)

    def _forbidden(
        self, request: web.Request, route: Route, found: Outcome, why: tuple[str, str]
    ) -> web.Response:
        reason, text = why
        label = found.credential.label if found.credential else ""
        address = request.remote or ""
        self.witness.denied(Denial(address, _path(request), reason, label, found.shown))
        self.refused(route, reason)
        headers = {"WWW-Authenticate": _SCOPE, **_PRIVATE}
        return json_answer({"error": text}, HTTPStatus.FORBIDDEN, headers)


def application(
    gate: Gate, handlers: Handlers, max_body_bytes: int, routes: Collection[Route] = ROUTES
) -> web.Application:
    """Return an application with the routes of a table. Raises ValueError if handlers do not match it."""
    names = {route.name for route in routes}
    if names != set(handlers):
        message = f"routes and handlers differ: {sorted(names ^ set(handlers))}"
        raise ValueError(message)
    made = web.Application(client_max_size=max_body_bytes, middlewares=[gate.admit])
    for route in routes:
        path = route.path.replace("}", ":[^/]+}")  # aiohttp's pattern excludes braces
        for method in route.methods:
            added = made.router.add_route(method, path, _closed)
            gate.declared[added] = route, handlers[route.name]
    return made


async def _closed(_: web.Request) -> web.StreamResponse:
    """Default handler of a route: only the gate calls the declared one."""
    raise web.HTTPNotFound


def json_answer(
    content: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON response. JSON has no NaN and no infinity: msgspec writes null for them."""
    return web.Response(
        status=status, body=msgspec.json.encode(content), content_type="application/json",
        headers=headers,
    )  # fmt: skip


def _own(request: web.Request, tenant: str) -> bool:
    """True if neither the path nor the query names another tenant."""
    named = [request.match_info["tenant"]] if "tenant" in request.match_info else []
    return all(name == tenant for name in (*named, *request.query.getall("tenant", [])))


def _path(request: web.Request) -> str:
    """Return the path as received, percent-encoded, including characters that should have been encoded."""
    raw = request.rel_url.raw_path.encode(errors="surrogateescape")
    return quote(raw, safe=_KEPT_IN_A_PATH)


def _certificate(request: web.Request) -> bytes:
    """Return the client's certificate as DER; empty if there is none."""
    transport = request.transport
    shown = transport.get_extra_info("ssl_object") if transport else None
    return shown.getpeercert(binary_form=True) or b"" if shown else b""
