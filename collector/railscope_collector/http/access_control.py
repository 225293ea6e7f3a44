"""Access control of every route: authorization, responses to denied requests.

401  no credential, or no valid one               429  too many of those from one address
403  a credential without the required role       404, 405  only for authenticated requests

The application is built from the tables of routes only, so there is no route without roles. A session of the web
console is accepted for GET routes. A browser gets denials as pages, and is sent to the sign-in without a credential.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import quote

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_urldispatcher import AbstractRoute

from railscope import log_output
from railscope.server_connections import host_of
from railscope_collector.access import (
    access_trail,
    authentication,
    credentials as access,
    trial_access,
)
from railscope_collector.audit.audit_trail import DeniedRequest
from railscope_collector.http import session_cookie
from railscope_collector.http.failure_throttle import SECONDS_PER_FAILURE, FailureThrottle
from railscope_collector.http.json_responses import json_error
from railscope_collector.http.route_table import Route, RouteHandler, RouteHandlers

log = structlog.get_logger(__name__)

WRONG_ROLE, CROSS_TENANT = "role", "another tenant"
TOO_MANY_FAILURES = "too many invalid credentials from this address"
# No shared cache may serve the answer of one credential to another.
_PRIVATE = {"Cache-Control": "no-store", "Vary": "Authorization, Cookie, Accept, Accept-Encoding"}
_CHALLENGES = {authentication.NO_CREDENTIAL: 'Bearer realm="railscope"'}
_BAD = 'Bearer realm="railscope", error="invalid_token"'
_SCOPE = 'Bearer realm="railscope", error="insufficient_scope"'
_UNQUOTED_IN_PATHS = "/%:@!$&'()*+,;=~-._"
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
    trial: trial_access.TrialAccess | None = None
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
        # Open routes before authentication: probes have no credential, and must cost no digest.
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
            if page is None and request.path.startswith("/api/"):
                page = _error_document(error, text)
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
        # Before the handler, and without a look-up: an answer must not reveal which tenants exist.
        if credential.role is access.Role.TENANT and not _is_own_data(request, credential.tenant):
            self.trail.record_cross_tenant_request(credential, _path(request), request.remote or "")
            text = "access denied: a tenant's credential is limited to that tenant"
            return self._forbidden(request, route, result, (CROSS_TENANT, text))
        return credential

    def _authenticate(
        self, request: web.Request, route: Route | None
    ) -> authentication.AuthenticationResult:
        authorization = request.headers.getall("Authorization", [])
        # Only reads: a cookie is sent with requests that another site makes, so it must not authorize a change.
        is_read = route is None or route.method == "GET"
        result = authentication.authenticate(
            self.credentials(),
            authorization,
            _certificate(request),
            self.wall_ns(),
            self.sessions.find(session_cookie.find_value(request)) if is_read else None,
        )
        if self.trial and result.reason == authentication.UNKNOWN_TOKEN:
            return self.trial.authenticate(authorization, self.credentials())
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
        # Counted and not logged above the limit: a scanner must not fill the system log.
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
        text = trial_access.PROBLEMS.get(
            result.reason,
            "invalid or missing credential: expected a bearer token or a client certificate",
        )
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
        page = self.browser_page(request, HTTPStatus.FORBIDDEN, text, result.credential)
        if page and page.status == HTTPStatus.SEE_OTHER:
            return page  # to the first page of its role: nothing is denied
        label = result.credential.label if result.credential else ""
        address = request.remote or ""
        self.trail.record_denial(
            DeniedRequest(address, _path(request), reason, label, result.credential_kind)
        )
        self.on_denial(route, reason)
        if page:
            return page
        headers = {"WWW-Authenticate": _SCOPE, **_PRIVATE}
        return json_error(HTTPStatus.FORBIDDEN, text, headers)


def make_application(
    authorizer: RequestAuthorizer,
    handlers: RouteHandlers,
    max_body_bytes: int,
    routes: Collection[Route],
) -> web.Application:
    """Return an application with the routes of a table. Raises ValueError if handlers do not match it."""
    names = {route.name for route in routes}
    # A route that is forgotten in the table would be served without roles.
    if names != set(handlers):
        message = (
            "routes without a handler, or handlers without a route: "
            f"{sorted(names ^ set(handlers))}"
        )
        raise ValueError(message)
    application = web.Application(client_max_size=max_body_bytes, middlewares=[authorizer.admit])
    for route in routes:
        path = re.sub(r"\{(\w+)\}", r"{\1:[^/]+}", route.path)  # aiohttp's pattern excludes braces
        for method in route.methods:
            added = application.router.add_route(method, path, _unauthorized_handler)
            authorizer.declared_routes[added] = route, handlers[route.name]
    return application


def _error_document(error: web.HTTPException, text: str) -> web.Response:
    """Return an error of the API as JSON; of an unknown path without the path, which may name what a tenant must not see."""
    if text == f"{error.status}: {error.reason}":  # as aiohttp states it
        text = f"{error.reason}: expected a path and method of the API such as GET /api/v1/nodes"
    kept = ("Allow", "Retry-After")
    headers = {name: error.headers[name] for name in kept if name in error.headers}
    return json_error(HTTPStatus(error.status), text, headers)


async def _unauthorized_handler(_: web.Request) -> web.StreamResponse:
    """Default handler of a route: only the authorizer calls the declared one."""
    raise web.HTTPNotFound


def _is_own_data(request: web.Request, tenant: str) -> bool:
    """True if neither the path nor the query names another tenant."""
    named = [request.match_info["tenant"]] if "tenant" in request.match_info else []
    return all(name == tenant for name in (*named, *request.query.getall("tenant", [])))


def _path(request: web.Request) -> str:
    """Return the path as received, percent-encoded, including characters that should have been encoded."""
    raw = request.rel_url.raw_path.encode(errors="surrogateescape")
    return quote(raw, safe=_UNQUOTED_IN_PATHS)


def _certificate(request: web.Request) -> bytes:
    """Return the client's certificate as DER; empty if there is none."""
    transport = request.transport
    shown = transport.get_extra_info("ssl_object") if transport else None
    return shown.getpeercert(binary_form=True) or b"" if shown else b""
