"""Routes of the web console: pages, static files, sign-in, and errors as pages for browsers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import msgspec
from aiohttp import web

from railscope.service import run_in_thread
from railscope_collector.access import authentication, credentials as access
from railscope_collector.console import (
    audit_pages,
    billing_pages,
    device_pages,
    fleet_pages,
    history_pages,
    incident_pages,
    page_rendering,
    page_shell,
    page_table,
    search_page,
    tenant_pages,
)
from railscope_collector.console.page_cache import PageCache, RenderedContent
from railscope_collector.http import (
    ResourceError,
    access_control,
    audit_api,
    billing_api,
    failure_throttle,
    json_compression,
    json_responses,
    read_api,
    resource_server,
    resources,
    route_table,
    session_cookie,
    switches_api,
)
from railscope_collector.http.resources import RESOURCES_BY_NAME, CollectorApis

MAX_FORM_BYTES = 8192
# The path of a static file contains the digest of its content.
_STATIC_HEADERS = {
    **page_shell.SECURITY_HEADERS,
    "Cache-Control": "public, max-age=31536000, immutable",
}
PLAIN_HTTP = (
    "signing in needs TLS: over plain HTTP it is possible on the collector's own machine only; fix: set"
    " tls.certificate_file and tls.key_file, or forward a port: ssh -L 9470:localhost:9470 COLLECTOR,"
    " and open http://localhost:9470"
)
NOT_SAME_ORIGIN = (
    "the form was sent by another site; fix: open the sign-in page and send it from there"
)
NO_PAGES = "credentials of nodes have no pages; fix: use a token of an operator, auditor, finance or tenant"


@dataclass(slots=True)
class Console:
    """Handlers of the console. `models` makes the content of each page."""

    authorizer: access_control.RequestAuthorizer
    shell: page_shell.PageShell
    models: page_table.PageModels
    resources: resource_server.ResourceServer[CollectorApis]
    wall_ns: Callable[[], int]
    grafana_url: str = ""
    """Base URL of Grafana; empty for none."""
    _cache: PageCache[RenderedContent] = field(default_factory=PageCache)
    _sign_ins: failure_throttle.FailureThrottle = field(
        default_factory=failure_throttle.FailureThrottle
    )
    """Limits the sign-ins of one credential, each of which is a record."""

    def __post_init__(self) -> None:
        """Raise ValueError for a page without a model."""
        names = page_table.PAGES_BY_NAME.keys()
        if names != self.models.keys():
            message = f"pages without a model, or models without a page: {sorted(names ^ self.models.keys())}"
            raise ValueError(message)

    @classmethod
    def from_api(
        cls,
        authorizer: access_control.RequestAuthorizer,
        api: read_api.ViewApi,
        billing: billing_api.BillingApi,
        audit: audit_api.AuditApi,
        audit_health: Callable[[], audit_pages.AuditHealth],
    ) -> Console:
        """Return the console of a collector: its pages show what its API returns. Raises SettingsError."""
        history = history_pages.HistoryPages.from_api(api, billing.read_pool)
        statements = billing_pages.BillingPages(billing)
        apis = CollectorApis(api, billing, audit, switches_api.SwitchesApi(api))
        return cls(
            authorizer,
            page_shell.PageShell.of(authorizer.sessions, authorizer.trial),
            {
                **page_models(apis),
                **history.models(),
                **tenant_pages.TenantPages(api, statements).models(),
                **statements.models(),
                **audit_pages.AuditPages(audit, audit_health).models(),
            },
            resource_server.ResourceServer(resources.RESOURCES, apis, api.changes),
            api.wall_ns,
            grafana_url=page_table.check_grafana_url(api.console.grafana_url),
        )

    @property
    def routes(self) -> tuple[route_table.Route, ...]:
        """The routes of the collector, with those of the console."""
        of_resources = (each.route for each in self.resources.resources)
        return (*route_table.MACHINE_ROUTES, *of_resources, *page_table.CONSOLE_ROUTES)

    def handlers(self) -> route_table.RouteHandlers:
        """Return the handlers of resources and pages by route name."""
        return {
            "static": self._static,
            "sign_in_form": self._sign_in_form,
            "sign_in": self._sign_in,
            "sign_out": self._sign_out,
            "old_page": self._old_page,
            **self.resources.handlers(),
            **{page.route.name: partial(self._page, page) for page in page_table.PAGES},
        }

    # Pages ----------------------------------------------------------------------------------------

    async def _page(
        self, page: page_table.Page, request: web.Request, credential: access.Credential
    ) -> web.StreamResponse:
        accepted = request.headers.get("Accept", "")
        is_json = "application/json" in accepted and "text/html" not in accepted
        try:
            asked = self._parse_request(page, request, credential)
            content = await self._content(asked, "json" if is_json else "html")
        except ResourceError as error:
            if is_json:
                headers = {**page_shell.SECURITY_HEADERS, **error.headers}
                return json_responses.json_error(error.status, error.text, headers)
            return self.shell.message(request, error.status, error.text, credential)
        if is_json:
            return _respond(request, content, "application/json")
        if "fragment" in request.query:
            return _respond(request, content)
        shell = self.shell.values(request, credential, asked.title, is_live=page.is_live)
        shell["dashboard"] = asked.dashboard()
        shell["content"] = content.body

        def render() -> RenderedContent:
            return RenderedContent.from_body(page_rendering.render("shell.html", **shell))

        return _respond(request, await run_in_thread(render))

    def _parse_request(
        self, page: page_table.Page, request: web.Request, credential: access.Credential
    ) -> page_table.PageRequest:
        query = page_table.parse_query(page, request.query.items())
        # A page that is not refreshed shows exact times: relative ones would change with each request.
        now_ns = self.wall_ns() if page.is_live else 0
        return page_table.PageRequest(
            credential,
            dict(request.match_info),
            query,
            page=page,
            grafana_url=self.grafana_url,
            now_ns=now_ns,
        )

    async def _content(self, asked: page_table.PageRequest, form: str) -> RenderedContent:
        """Return the content of a page in a form, from the cache while the data is the same."""
        parts, query = tuple(asked.parts.items()), msgspec.json.encode(asked.query)
        key = (asked.page.name, form, parts, query, asked.scope, self._version())
        return await self._cache.get(
            key, lambda: self._make(asked, form), reads_storage=asked.page.reads_storage
        )

    def _version(self) -> Hashable:
        """Return the identity of the current data: a page is made again when it changes."""
        views = self.resources.apis.views
        return views.views().timestamp_ns, views.incidents().timestamp_ns

    async def _make(self, asked: page_table.PageRequest, form: str) -> RenderedContent:
        made = await self.models[asked.page.name](asked)
        content = made if isinstance(made, page_table.PageContent) else page_table.PageContent(made)
        model = content.resource

        def render() -> RenderedContent:
            if form == "json":
                return RenderedContent.from_body(msgspec.json.encode(model).decode())
            text = page_rendering.render(
                f"{asked.page.name}.html", model=model, request=asked, **content.shown
            )
            return RenderedContent.from_body(text)

        return await run_in_thread(render)

    async def _old_page(self, request: web.Request, _: access.Credential) -> web.Response:
        """Redirect from the path of a page below /api/v1 to the page."""
        target = page_table.local_target(str(request.rel_url).removeprefix(page_table.OLD_PREFIX))
        if not target:
            raise web.HTTPNotFound
        text = f"moved to {target}: send Accept: application/json"
        headers = {**page_shell.SECURITY_HEADERS, "Location": target}
        return json_responses.json_error(HTTPStatus.MOVED_PERMANENTLY, text, headers)

    async def _static(self, request: web.Request, _: access.Credential) -> web.Response:
        found = page_rendering.STATIC_FILES.get(request.path)
        if found is None:
            return web.Response(
                status=404, text="unknown file\n", headers=page_shell.PRIVATE_HEADERS
            )
        return web.Response(
            body=found.content,
            content_type=found.content_type,
            charset="utf-8",
            headers=_STATIC_HEADERS,
        )

    # Sign-in --------------------------------------------------------------------------------------

    async def _sign_in_form(self, request: web.Request, _: access.Credential) -> web.Response:
        return self._form(request, HTTPStatus.OK)

    def _form(self, request: web.Request, status: HTTPStatus, problem: str = "") -> web.Response:
        is_possible = bool(session_cookie.choose_name(request))
        content = page_rendering.render(
            "sign_in.html",
            target=page_table.local_target(request.query.get("next", "")),
            problem=problem or ("" if is_possible else PLAIN_HTTP),
            is_possible=is_possible,
            is_open=self.authorizer.allow_anonymous_read,
        )
        shell = self.shell.values(request, None, "Sign in")
        body = page_rendering.render("shell.html", **shell, content=content)
        return web.Response(
            status=status, text=body, content_type="text/html", headers=page_shell.PRIVATE_HEADERS
        )

    async def _sign_in(self, request: web.Request, _: access.Credential) -> web.Response:
        authorizer, cookie = self.authorizer, session_cookie.choose_name(request)
        rejected = authentication.AuthenticationResult(None, "sign-in from another site")
        if not _is_same_origin(request):
            authorizer.record_failure(request, None, rejected)
            return self._form(request, HTTPStatus.FORBIDDEN, NOT_SAME_ORIGIN)
        if not cookie:
            rejected = authentication.AuthenticationResult(None, "sign-in without TLS")
            authorizer.record_failure(request, None, rejected)
            return self._form(request, HTTPStatus.FORBIDDEN, PLAIN_HTTP)
        form = await _read_form(request)
        result = authentication.authenticate_token(
            authorizer.credentials(), form.get("token", "").strip(), authorizer.wall_ns()
        )
        if result.credential and result.credential.role is access.Role.NODE:
            reason = access_control.WRONG_ROLE
            result = authentication.AuthenticationResult(
                None, reason, result.key, result.credential
            )
        credential, key = result.credential, result.key
        if credential is None or key is None:
            if authorizer.record_failure(request, None, result):
                text = access_control.TOO_MANY_FAILURES
                return self._form(request, HTTPStatus.TOO_MANY_REQUESTS, text)
            texts = {
                access_control.WRONG_ROLE: NO_PAGES,
                authentication.EXPIRED: "the token has expired",
            }
            problem = texts.get(
                result.reason, "unknown token: expected one that the tokens file lists"
            )
            return self._form(request, HTTPStatus.FORBIDDEN, problem)
        if self._sign_ins.count_failure(credential.label, authorizer.sessions.monotonic()):
            text = "too many sign-ins with this credential"
            return self._form(request, HTTPStatus.TOO_MANY_REQUESTS, text)
        authorizer.trail.record_session(credential, key, request.remote or "", "sign_in")
        # A browser has one session: the former one would stay open until it expires.
        authorizer.sessions.close(session_cookie.find_value(request))
        target = page_table.local_target(form.get("next", "")) or page_table.first_path(credential)
        response = page_shell.redirect(target)
        response.set_cookie(
            cookie,
            authorizer.sessions.open(key),
            secure=request.secure,
            httponly=True,
            samesite="Strict",
            path="/",
        )
        return response

    async def _sign_out(self, request: web.Request, _: access.Credential) -> web.Response:
        if not _is_same_origin(request):
            text = NOT_SAME_ORIGIN
            return self.shell.message(request, HTTPStatus.FORBIDDEN, text, None)
        authorizer, cookie = self.authorizer, session_cookie.choose_name(request)
        key = authorizer.sessions.close(session_cookie.find_value(request))
        entry = authorizer.credentials().entries.get(key) if key else None
        if key and entry:
            address = request.remote or ""
            authorizer.trail.record_session(entry.credential, key, address, "sign_out")
        response = page_shell.redirect(page_table.SIGN_IN)
        if cookie:
            response.del_cookie(
                cookie, path="/", secure=request.secure, httponly=True, samesite="Strict"
            )
        return response


def page_models(apis: CollectorApis) -> page_table.PageModels:
    """Return the models of the pages about the cluster, and the documents of resources, by name of the page."""
    api, names = apis.views, page_table.PAGES_BY_NAME.keys() & RESOURCES_BY_NAME.keys()
    return {
        **{name: partial(RESOURCES_BY_NAME[name].document, apis) for name in names},
        **fleet_pages.FleetPages(api).models(),
        **device_pages.DevicePages(api).models(),
        **incident_pages.IncidentPages(api).models(),
        **search_page.SearchPage(api).models(),
    }


def _respond(
    request: web.Request, content: RenderedContent, content_type: str = "text/html"
) -> web.Response:
    """Return a content, or 304 if the client has it."""
    headers = {**page_shell.PRIVATE_HEADERS, "ETag": content.tag}
    if content.tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    body = content.encoded
    if content.compressed and json_compression.accepts_gzip(request):
        body, headers["Content-Encoding"] = content.compressed, "gzip"
    return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)


def _is_same_origin(request: web.Request) -> bool:
    """True if a form was sent by a page of this server, or by no browser."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        return site == "same-origin"
    return origin is None or urlsplit(origin).netloc == request.host


async def _read_form(request: web.Request) -> dict[str, str]:
    """Return the fields of a form; none if it is too large or invalid."""
    # One byte more than the bound, which shows that there is more.
    body = await request.content.read(MAX_FORM_BYTES + 1)
    while 0 < len(body) <= MAX_FORM_BYTES and (more := await request.content.read(MAX_FORM_BYTES)):
        body += more
    try:
        fields = parse_qsl(body[: MAX_FORM_BYTES + 1].decode(), max_num_fields=8)
    except ValueError:
        return {}
    return dict(fields) if len(body) <= MAX_FORM_BYTES else {}
