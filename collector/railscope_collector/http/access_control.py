"""Access control of every route: authorization, responses to denied requests.

401  no credential, or no valid one               429  too many of those from one address
403  a credential without the required role       404, 405  only for authenticated requests

The application is built from the tables of routes only, so there is no route without roles. A session of the web
console is accepted for GET routes. A browser gets denials as pages, and is sent to the sign-in without a credential.

Only failed authentications are limited: a request with a valid credential is served even from an
address with many failures. The stored state is bounded; the address with the oldest last failure is
dropped first.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from ipaddress import ip_address
from typing import TypeAlias
from urllib.parse import quote

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_urldispatcher import AbstractRoute

from railscope import log_output, service, wire
from railscope.server_connections import host_of
from railscope_collector.access import access_trail, authentication, credentials as access
from railscope_collector.audit.collector_records import DeniedRequest

INGEST_PATH = "/v1/frames"


class TenantScope(StrEnum):
    """Part of a route's content that a tenant may read."""

    NOTHING = "nothing"
    SAME = "same as other roles"
    """Content that belongs to no tenant."""
    OWN_DATA = "own data only"
    """The handler omits the content of other tenants."""
    NAMED = "own path only"
    """The path names a tenant; access to any other is denied, even if that tenant does not exist."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    name: str
    """Name of the handler."""
    path: str
    roles: frozenset[access.Role]
    """Permitted roles, in addition to tenants with access."""
    tenants: TenantScope = TenantScope.NOTHING
    method: str = "GET"
    open: bool = False
    """True if unauthenticated requests are served."""

    def admits(self, role: access.Role) -> bool:
        """True if a role may use the route."""
        return (
            self.tenants is not TenantScope.NOTHING
            if role is access.Role.TENANT
            else role in self.roles
        )

    @property
    def methods(self) -> tuple[str, ...]:
        """Served methods: a GET route also serves HEAD."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


_NOT_A_TENANT = frozenset(set(access.Role) - {access.Role.TENANT, access.Role.COLLECTOR})
_RUNNING = frozenset({access.Role.OPERATOR, access.Role.AUDITOR})
_BILLING = frozenset({access.Role.FINANCE, access.Role.AUDITOR})
_AUDIT = frozenset({access.Role.AUDITOR})
_NODE = frozenset({access.Role.NODE})


def _open(name: str, path: str) -> Route:
    return Route(name, path, _NOT_A_TENANT, TenantScope.SAME, open=True)


ROUTES: Collection[Route] = (
    _open("healthy", "/-/healthy"),
    _open("ready", "/-/ready"),
    Route("frames", INGEST_PATH, _NODE, method="POST"),
    Route("copies", wire.COPIES_PATH, _NODE, method="POST"),
    Route("records", "/v1/records", frozenset({access.Role.COLLECTOR})),
    Route("metrics", "/metrics", _RUNNING, TenantScope.OWN_DATA),
    Route("cluster", "/api/v1/cluster", _RUNNING),
    Route("rails", "/api/v1/rails", _RUNNING),
    Route("nodes", "/api/v1/nodes", _RUNNING),
    Route("node", "/api/v1/nodes/{node}", _RUNNING),
    Route("gpus", "/api/v1/gpus", _RUNNING, TenantScope.OWN_DATA),
    Route("switches", "/api/v1/switches", _RUNNING),
    Route("switch", "/api/v1/switches/{switch}", _RUNNING),
    Route("links", "/api/v1/links", _RUNNING),
    Route("inventory", "/api/v1/inventory", _RUNNING),
    Route("events", "/api/v1/events", _RUNNING),
    Route("incidents", "/api/v1/incidents", _RUNNING, TenantScope.OWN_DATA),
    Route("incident", "/api/v1/incidents/{incident}", _RUNNING, TenantScope.OWN_DATA),
    Route("jobs", "/api/v1/jobs", _RUNNING, TenantScope.OWN_DATA),
    Route("job", "/api/v1/jobs/{tenant}/{source}/{workload}", _RUNNING, TenantScope.NAMED),
    Route("tenants", "/api/v1/tenants", _RUNNING | _BILLING, TenantScope.OWN_DATA),
    Route("account", "/api/v1/account", _RUNNING | _BILLING, TenantScope.OWN_DATA),
    Route("statements", "/api/v1/statements", _BILLING, TenantScope.OWN_DATA),
    Route("statement", "/api/v1/statements/{tenant}/{period}", _BILLING, TenantScope.NAMED),
    Route("export", "/api/v1/exports/{period}", _BILLING, TenantScope.OWN_DATA),
    Route("audit", "/api/v1/audit", _AUDIT, TenantScope.OWN_DATA),
    Route("audit_entry", "/api/v1/audit/entries/{index}", _AUDIT, TenantScope.OWN_DATA),
    Route("audit_checkpoint", "/api/v1/audit/checkpoint", _NOT_A_TENANT, TenantScope.SAME),
    Route("audit_consistency", "/api/v1/audit/consistency", _NOT_A_TENANT, TenantScope.SAME),
    Route("witness_checkpoint", "/v1/checkpoint", _NODE),
    Route("witness_key", "/v1/checkpoint/key", _NODE),
    Route("witness_consistency", "/v1/checkpoint/consistency", _NODE),
    Route("witness_cosignature", "/v1/checkpoint/cosignature", _NODE, method="POST"),
)


MAX_FAILURES = 30
SECONDS_PER_FAILURE = 2.0
"""Interval after which the bucket permits one more failure."""
MAX_ADDRESSES = 4096


@dataclass(slots=True)
class FailureThrottle:
    """A leaky bucket for each address: number of failures and the time of the last update."""

    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def count_failure(self, address: str, now_seconds: float) -> bool:
        """Count a failure; return True if there have been too many. The clock is monotonic."""
        host = host_of(address)
        level, since = self._levels.pop(host, (0.0, now_seconds))
        level = max(0.0, level - (now_seconds - since) / SECONDS_PER_FAILURE)
        full = level + 1 > MAX_FAILURES
        self._levels[host] = (level if full else level + 1, now_seconds)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)
        return full


log = structlog.get_logger(__name__)

WRONG_ROLE, CROSS_TENANT = "role", "another tenant"
TOO_MANY_FAILURES = "too many invalid credentials from this address"
_PRIVATE = {"Cache-Control": "no-store", "Vary": "Authorization, Cookie, Accept, Accept-Encoding"}
_CHALLENGES = {authentication.NO_CREDENTIAL: 'Bearer realm="railscope"'}
_BAD = 'Bearer realm="railscope", error="invalid_token"'
_SCOPE = 'Bearer realm="railscope", error="insufficient_scope"'
_TAG_DIGITS = 20
_UNQUOTED_IN_PATHS = "/%:@!$&'()*+,;=~-._"


RouteHandler: TypeAlias = Callable[[web.Request, access.Credential], Awaitable[web.StreamResponse]]
"""Handler of an authorized request; an open route is called with `ANYONE`."""
RouteHandlers: TypeAlias = Mapping[str, RouteHandler]
"""Handlers by route name."""
BrowserPage: TypeAlias = Callable[
    [web.Request, HTTPStatus, str, access.Credential | None], web.Response | None
]


@dataclass(slots=True)
class RequestAuthorizer:
    """Authorizes requests; `credentials` is called for each request."""

    credentials: Callable[[], access.Credentials]
    trail: access_trail.AccessTrail
    allow_anonymous_read: bool = False
    """True if an unauthenticated request has the rights of an operator."""
    wall_ns: Callable[[], int] = time.time_ns
    on_denial: Callable[[Route | None, str], None] = lambda _route, _reason: None
    """Called with the route and the reason of each denied request."""
    declared_routes: dict[AbstractRoute, tuple[Route, RouteHandler]] = field(default_factory=dict)
    """Declared routes. Other routes of the application are not served."""
    log_limit: log_output.LogRateLimit = field(default_factory=log_output.LogRateLimit)
    sessions: authentication.BrowserSessions = field(default_factory=authentication.BrowserSessions)
    browser_page: BrowserPage = lambda _request, _status, _text, _credential: None
    """Returns the page for a browser of an answer without content; None for other clients."""
    _throttle: FailureThrottle = field(default_factory=FailureThrottle)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request, or deny it with a reason."""
        route, answer = self.declared_routes.get(request.match_info.route, (None, None))
        if route and answer and route.open:
            return await answer(request, access.ANYONE)
        admitted = self._authorize(request, route)
        if isinstance(admitted, web.Response):
            return admitted
        try:
            # Without a handler, aiohttp responds with 404 or 405.
            response = await (answer(request, admitted) if answer else handler(request))
        except web.HTTPException as error:
            status, text = HTTPStatus(error.status), (error.text or error.reason).strip()
            page = self.browser_page(request, status, text, admitted)
            if page is None:
                error.headers.update(_PRIVATE)
                raise
            response = page
        response.headers.update(_PRIVATE)
        return response

    def _authorize(
        self, request: web.Request, route: Route | None
    ) -> access.Credential | web.Response:
        """Return the credential of an authorized request, or the response that denies it."""
        result = self._authenticate(request, route)
        credential = result.credential
        if credential is None:
            return self._unauthorized(request, route, result)
        if result.key:
            self.trail.record_use(credential, result.key, request.remote or "")
        if route is None:
            return credential
        if not route.admits(credential.role):
            if credential is access.ANYONE:
                return self._unauthorized(request, route, authentication.NOT_PRESENTED)
            text = f"access denied: not for credentials of role {credential.role}"
            return self._forbidden(request, route, result, (WRONG_ROLE, text))
        if credential.role is access.Role.TENANT and not _is_own_data(request, credential.tenant):
            self.trail.record_cross_tenant_request(credential, _path(request), request.remote or "")
            text = "access denied: a tenant's credential is limited to that tenant"
            return self._forbidden(request, route, result, (CROSS_TENANT, text))
        return credential

    def _authenticate(
        self, request: web.Request, route: Route | None
    ) -> authentication.AuthenticationResult:
        authorization = request.headers.getall("Authorization", [])
        is_read = route is None or route.method == "GET"
        result = authentication.authenticate(
            self.credentials(),
            authorization,
            _certificate(request),
            self.wall_ns(),
            self.sessions.find(session_cookie(request)) if is_read else None,
        )
        if self.allow_anonymous_read and result.reason == authentication.NO_CREDENTIAL:
            return authentication.AuthenticationResult(access.ANYONE)
        return result

    def record_failure(
        self, request: web.Request, route: Route | None, result: authentication.AuthenticationResult
    ) -> bool:
        """Record and count a failed authentication; return True if its address has had too many."""
        address = request.remote or ""
        label = result.holder.label if result.holder else ""
        self.trail.record_denial(
            DeniedRequest(address, _path(request), result.reason, label, result.credential_kind)
        )
        if result.holder and result.key and result.reason == authentication.EXPIRED:
            self.trail.record_expired_use(result.holder, result.key, address)
        self.on_denial(route, "token")
        if self._throttle.count_failure(address, time.monotonic()):
            return True
        repetitions = self.log_limit.count_repetitions(host_of(address), result.reason)
        if repetitions is not None:
            log.warning(
                "request_denied",
                sender=address,
                path=_path(request),
                reason=result.reason,
                repetitions=repetitions,
            )
        return False

    def _unauthorized(
        self, request: web.Request, route: Route | None, result: authentication.AuthenticationResult
    ) -> web.Response:
        text = "invalid or missing credential: expected a bearer token or a client certificate"
        if result is authentication.NOT_PRESENTED:
            # A browser that has not signed in yet counts as no failed authentication.
            page = self.browser_page(request, HTTPStatus.UNAUTHORIZED, text, None)
            if page:
                return page
        if self.record_failure(request, route, result):
            headers = {"Retry-After": f"{SECONDS_PER_FAILURE:.0f}", **_PRIVATE}
            return json_error(HTTPStatus.TOO_MANY_REQUESTS, TOO_MANY_FAILURES, headers)
        headers = {"WWW-Authenticate": _CHALLENGES.get(result.reason, _BAD), **_PRIVATE}
        return json_error(HTTPStatus.UNAUTHORIZED, text, headers)

    def _forbidden(
        self,
        request: web.Request,
        route: Route,
        result: authentication.AuthenticationResult,
        denial: tuple[str, str],
    ) -> web.Response:
        reason, text = denial
        label = result.credential.label if result.credential else ""
        address = request.remote or ""
        self.trail.record_denial(
            DeniedRequest(address, _path(request), reason, label, result.credential_kind)
        )
        self.on_denial(route, reason)
        page = self.browser_page(request, HTTPStatus.FORBIDDEN, text, result.credential)
        if page:
            return page
        headers = {"WWW-Authenticate": _SCOPE, **_PRIVATE}
        return json_error(HTTPStatus.FORBIDDEN, text, headers)


def make_application(
    authorizer: RequestAuthorizer,
    handlers: RouteHandlers,
    max_body_bytes: int,
    routes: Collection[Route] = ROUTES,
) -> web.Application:
    """Return an application with the routes of a table. Raises ValueError if handlers do not match it."""
    names = {route.name for route in routes}
    if names != set(handlers):
        message = (
            "routes without a handler, or handlers without a route: "
            f"{sorted(names ^ set(handlers))}"
        )
        raise ValueError(message)
    application = web.Application(client_max_size=max_body_bytes, middlewares=[authorizer.admit])
    for route in routes:
        path = route.path.replace("}", ":[^/]+}")  # aiohttp's pattern excludes braces
        for method in route.methods:
            added = application.router.add_route(method, path, _unauthorized_handler)
            authorizer.declared_routes[added] = route, handlers[route.name]
    return application


async def _unauthorized_handler(_: web.Request) -> web.StreamResponse:
    """Default handler of a route: only the authorizer calls the declared one."""
    raise web.HTTPNotFound


def json_response(
    content: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON response. JSON has no NaN and no infinity: msgspec writes null for them."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(content),
        content_type="application/json",
        headers=headers,
    )


async def tagged_response(
    request: web.Request, make: Callable[[], dict[str, object]], *version: object
) -> web.Response:
    """Return a JSON document that is made in a thread; status 304 without a body if the client has it.

    The version is that of everything that the document contains; without one, the content except its time is compared.
    """

    def encode() -> tuple[bytes, str]:
        content = make()
        text = b"" if version else msgspec.json.encode(content | {"timestamp_ns": 0})
        return msgspec.json.encode(content), hashlib.sha256(text).hexdigest()

    body, digest = b"", hashlib.sha256(repr(version).encode(errors="replace")).hexdigest()
    if not version:
        body, digest = await service.run_in_thread(encode)
    headers = {"ETag": f'W/"{digest[:_TAG_DIGITS]}"'}  # weak, as responses may be compressed
    if headers["ETag"] in request.headers.get("If-None-Match", ""):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    if version:
        body, _ = await service.run_in_thread(encode)
    return web.Response(body=body, content_type="application/json", headers=headers)


def json_error(
    status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a JSON response of an error."""
    return json_response({"error": text}, status, headers)


def selected_tenant(request: web.Request, credential: access.Credential) -> str | None:
    """Return the tenant of the requested rows; None for all. A tenant can only request its own."""
    is_tenant = credential.role is access.Role.TENANT
    return credential.tenant if is_tenant else request.query.get("tenant")


def _is_own_data(request: web.Request, tenant: str) -> bool:
    """True if neither the path nor the query names another tenant."""
    named = [request.match_info["tenant"]] if "tenant" in request.match_info else []
    return all(name == tenant for name in (*named, *request.query.getall("tenant", [])))


def _path(request: web.Request) -> str:
    """Return the path as received, percent-encoded, including characters that should have been encoded."""
    raw = request.rel_url.raw_path.encode(errors="surrogateescape")
    return quote(raw, safe=_UNQUOTED_IN_PATHS)


SECURE_COOKIE, LOOPBACK_COOKIE = "__Host-railscope", "railscope"
_FORWARDED = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP")


def cookie_name(request: web.Request) -> str:
    """Return the name of the session's cookie; empty if the connection may not have one.

    Plain HTTP is accepted from a browser on this machine only: not from a proxy here, and not for another name.
    """
    if request.secure:
        return SECURE_COOKIE
    is_local = _is_loopback(request.remote or "") and _is_loopback(request.url.host or "")
    is_forwarded = any(name in request.headers for name in _FORWARDED)
    return LOOPBACK_COOKIE if is_local and not is_forwarded else ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def session_cookie(request: web.Request) -> str:
    """Return the value of the session's cookie; empty if there is none."""
    return request.cookies.get(cookie_name(request), "")


def _certificate(request: web.Request) -> bytes:
    """Return the client's certificate as DER; empty if there is none."""
    transport = request.transport
    shown = transport.get_extra_info("ssl_object") if transport else None
    return shown.getpeercert(binary_form=True) or b"" if shown else b""
