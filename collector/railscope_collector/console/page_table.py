"""Table of the pages of the web console: titles, and what else is not a property of the resource that a page shows.

A page has the path, the roles and the query of the resource of its name. Others follow from no single resource.
With `Accept: application/json` it returns the document that it shows.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.timestamps import MILLISECOND_NS
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.console import curves
from railscope_collector.http import audit_api, incidents_api, list_query
from railscope_collector.http.list_query import NoQuery, PartQuery, SearchText
from railscope_collector.http.resource_server import Document, ResourceRequest
from railscope_collector.http.resources import RESOURCES_BY_NAME
from railscope_collector.http.route_table import (
    AUDIT,
    BILLING,
    READING_ROLES,
    RUNNING,
    Route,
    TenantScope,
    open_route,
)

PAGE_ROWS = 100
"""Rows of a page; the API returns more on request."""
TimeText = Annotated[str, msgspec.Meta(max_length=40)]


class AuditQuery(msgspec.Struct, frozen=True):
    """Query of the records of the audit log; without a start, the newest ones."""

    start: audit_api.EntryIndex | None = None
    tenant: SearchText = ""


class IncidentsPageQuery(incidents_api.IncidentsQuery, frozen=True):
    """Query of the page of incidents: by default the open ones."""

    state: tuple[incidents_api.IncidentState, ...] = ("open",)


class SearchQuery(msgspec.Struct, frozen=True):
    """Query of a search."""

    q: SearchText = ""


class HistoryQuery(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Query of a page with curves: the period."""

    from_: TimeText = ""
    to: TimeText = ""
    width: Annotated[int, msgspec.Meta(ge=100, le=1000)] = curves.PICTURE_WIDTH
    """Pixels of the curves in JSON."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page; its template is `NAME.html`."""

    name: str
    path: str
    title: str
    """With the parts of the path in braces."""
    roles: frozenset[Role]
    tenants: TenantScope = TenantScope.NOTHING
    query: type[msgspec.Struct] = NoQuery
    is_live: bool = True
    """True if the script of the page refreshes it."""
    in_menu: bool = True
    reads_storage: bool = False
    """True if its content is read from disk or database, which may take long."""
    is_local: bool = False
    """True for data of one collector; all others follow from the frames of nodes, which the active one of a group has."""

    @property
    def route(self) -> Route:
        """The route of the page."""
        return Route(f"page_{self.name}", self.path, self.roles, self.tenants)

    def admits(self, role: Role) -> bool:
        """True if a role may read the page."""
        return self.route.admits(role)


def _of(name: str, title: str, **changes: Any) -> Page:
    """Return the page of a resource."""
    of = RESOURCES_BY_NAME[name]
    page = Page(name, f"/{of.path}", title, of.roles, of.tenants, of.query, is_local=of.is_local)
    return replace(page, **changes)


READERS = RUNNING | BILLING
_STORED: Mapping[str, Any] = {"is_live": False, "reads_storage": True}
_DETAIL: Mapping[str, Any] = {"is_live": False, "reads_storage": True, "in_menu": False}
_LOCAL: Mapping[str, Any] = {**_DETAIL, "is_local": True}
_own, _named = TenantScope.OWN_DATA, TenantScope.NAMED
PAGES: Collection[Page] = (
    Page("overview", "/", "Overview", RUNNING, _own, PartQuery),
    _of("incidents", "Incidents", query=IncidentsPageQuery),
    _of("incident", "Incident {incident}", in_menu=False),
    _of("nodes", "Nodes"),
    _of("node", "Node {node}", query=PartQuery, in_menu=False),
    _of("gpus", "GPUs"),
    _of("rails", "Rails"),
    Page("rail", "/rails/{rail}", "Rail {rail}", RUNNING, query=PartQuery, in_menu=False),
    _of("switches", "Switches"),
    _of("switch", "Switch {switch}", **_DETAIL),
    _of("switch_port", "Port {port} of {switch}", **_DETAIL),
    _of("jobs", "Jobs"),
    _of("job", "Job {workload} of {tenant}", query=PartQuery, in_menu=False),
    _of("tenants", "Tenants"),
    Page("tenant", "/tenants/{tenant}", "Tenant {tenant}", READERS, _named, PartQuery, in_menu=False, reads_storage=True),
    _of("statements", "Statements", **_STORED),
    _of("statement", "Statement of {tenant} for {period}", query=NoQuery, **_DETAIL),
    Page("billing", "/billing", "Billing", BILLING, query=PartQuery, is_local=True, **_STORED),
    Page("billing_period", "/billing/{period}", "Billing of {period}", BILLING, query=PartQuery, **_LOCAL),
    Page("reconciliation", "/billing/{period}/reconciliation", "Reconciliation of {period}", BILLING, **_LOCAL),
    _of("audit", "Audit log", query=AuditQuery, **_STORED),
    Page("audit_record", "/audit/{index}", "Audit record {index}", AUDIT, _own, **_LOCAL),
    Page("railscope", "/railscope", "Self-monitoring", RUNNING, is_local=True),
    Page("node_history", "/nodes/{node}/history", "History of node {node}", RUNNING, query=HistoryQuery, **_DETAIL),
    Page("gpu", "/nodes/{node}/gpus/{index}", "GPU {index} of {node}", RUNNING, query=HistoryQuery, **_DETAIL),
    Page("rail_history", "/rails/{rail}/history", "History of rail {rail}", RUNNING, query=HistoryQuery, **_DETAIL),
    Page("job_history", "/jobs/{tenant}/{source}/{workload}/history", "History of job {workload} of {tenant}", RUNNING, _named, HistoryQuery, **_DETAIL),
    Page("runbook", "/runbooks/{runbook}", "Runbook {runbook}", READERS, TenantScope.SAME, **_LOCAL),
    Page("search", "/search", "Search", READERS, _own, SearchQuery, is_live=False, in_menu=False),
    Page("api", "/api", "API", READERS, TenantScope.SAME, is_live=False, in_menu=False, is_local=True),
)  # fmt: skip

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
OLD_PREFIX = "/api/v1/pages"
"""Pages were also below this path, as JSON."""

CONSOLE_ROUTES: Collection[Route] = (
    *(page.route for page in PAGES),
    Route("old_page", f"{OLD_PREFIX}/{{path:.*}}", READING_ROLES, TenantScope.SAME),
    open_route("static", "/static/{digest}/{name}"),
    open_route("sign_in_form", SIGN_IN),
    open_route("sign_in", SIGN_IN, "POST"),
    open_route("sign_out", SIGN_OUT, "POST"),
)


CLUSTER_ROUTES = [
    *(each.name for each in RESOURCES_BY_NAME.values() if not each.is_local),
    *(each.route.name for each in PAGES if not each.is_local),
]
"""Names of the routes about nodes: of a group of collectors, the active one answers them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(ResourceRequest):
    """Request of one page."""

    page: Page
    grafana_url: str = ""
    """Base URL of Grafana; empty for none."""
    now_ns: int = 0
    """Time that ages on the page are relative to; 0 for exact times in their place."""

    def dashboard(self, from_ns: int | None = None, to_ns: int | None = None) -> str:
        """Return the URL of the dashboard on the subject of the page, of the last hour or of a period; empty for none."""
        uid, variables = _DASHBOARDS.get(self.page.name, ("", ()))
        if not (self.grafana_url and uid):
            return ""
        times = (
            f"from={_milliseconds(from_ns, 'now-1h')}",
            f"to={_milliseconds(to_ns, 'now')}",
        )
        chosen = (f"var-{name}={quote(self.parts[name], safe='')}" for name in variables)
        return f"{self.grafana_url}/d/{uid}?{'&'.join((*times, *chosen))}"

    def link(self, **changed: object) -> str:
        """Return the path of this page with some values of its query changed, from the first row on."""
        fields = msgspec.structs.fields(self.query)
        kept = {
            each.encode_name: getattr(self.query, each.name)
            for each in fields
            if each.name not in {"limit", "offset"}
            and getattr(self.query, each.name) != each.default
        }
        return page_path(self.page.name, *self.parts.values(), **kept | changed)

    @property
    def scope(self) -> tuple[Role, str]:
        """Distinction of readers: those of one scope see the same."""
        return self.credential.role, self.credential.tenant

    @property
    def title(self) -> str:
        """Title of the page with the parts of the path."""
        return self.page.title.format(**self.parts)

    def allows(self, page: str) -> bool:
        """True if there is another page that the reader may read, so that a link leads there."""
        return page in PAGES_BY_NAME and PAGES_BY_NAME[page].admits(self.credential.role)


_DASHBOARDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "overview": ("railscope-cluster", ()),
    "nodes": ("railscope-health", ()),
    "node": ("railscope-node", ("node",)),
    "gpus": ("railscope-health", ()),
    "node_history": ("railscope-node", ("node",)),
    "gpu": ("railscope-node", ("node",)),
    "rails": ("railscope-rails", ()),
    "rail": ("railscope-rails", ("rail",)),
    "switches": ("railscope-switches", ()),
    "switch": ("railscope-switches", ("switch",)),
    "switch_port": ("railscope-switches", ("switch",)),
    "incidents": ("railscope-incidents", ()),
    "incident": ("railscope-incidents", ()),
    "jobs": ("railscope-jobs", ()),
    "job": ("railscope-jobs", ("tenant", "workload")),
    "tenant": ("railscope-tenant", ("tenant",)),
    "railscope": ("railscope-self-monitoring", ()),
}
"""Dashboard on the subject of a page, and its variables that the parts of the path set."""


def _milliseconds(timestamp_ns: int | None, default: str) -> str:
    return default if timestamp_ns is None else str(timestamp_ns // MILLISECOND_NS)


def check_grafana_url(url: str) -> str:
    """Return the base URL of Grafana without a slash at its end. Raises SettingsError."""
    found = urlsplit(url)
    if url and (found.scheme not in {"http", "https"} or not found.hostname or found.query):
        message = (
            f"invalid console.grafana_url {url!r}: expected http://HOST/PATH or https://HOST/PATH"
        )
        raise SettingsError(message)
    return url.rstrip("/")


class PageContent(NamedTuple):
    """Content of a page: a resource, which is the page as JSON, and what the template shows beside it."""

    resource: Document
    shown: Mapping[str, object] = {}


PageModel: TypeAlias = Callable[[PageRequest], Awaitable[Document | PageContent]]
"""Returns the content of a page; raises ResourceError."""
PageModels: TypeAlias = Mapping[str, PageModel]
"""By name of the page."""


def in_thread(make: Callable[[PageRequest], msgspec.Struct | PageContent]) -> PageModel:
    """Return the model of a page that a blocking function makes."""
    return lambda request: run_in_thread(make, request)


PAGES_BY_NAME: Mapping[str, Page] = {page.name: page for page in PAGES}


def parse_query(page: Page, values: Iterable[tuple[str, str]]) -> msgspec.Struct:
    """Parse the query of a page; unknown names, as in links of Grafana, are ignored. Raises ResourceError."""
    known = {each.encode_name for each in msgspec.structs.fields(page.query)}
    query = list_query.parse_query(page.query, (each for each in values if each[0] in known))
    limit = getattr(query, "limit", None)
    return query if limit is None else msgspec.structs.replace(query, limit=min(limit, PAGE_ROWS))


def page_path(name: str, /, *parts: str, **query: object) -> str:
    """Return the path of a page, with the parts of its path and its query quoted."""
    texts = iter(parts)
    path = re.sub(r"\{\w+\}", lambda _: quote(next(texts), safe=""), PAGES_BY_NAME[name].path)
    chosen = [
        f"{key}={quote(str(each), safe='')}"
        for key, value in query.items()
        for each in (value if isinstance(value, tuple) else (value,))
        if each not in (None, "")
    ]
    return path + "?" * bool(chosen) + "&".join(chosen)


_PATTERNS = [re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(page.path))) for page in PAGES]


def local_target(text: str) -> str:
    """Return a text if it is the path of a page, with its query; otherwise nothing."""
    try:
        found = urlsplit(text)
    except ValueError:
        return ""
    is_local = not found.scheme and not found.netloc and text.isascii() and text.isprintable()
    is_page = any(pattern.fullmatch(found.path) for pattern in _PATTERNS)
    return text if is_local and is_page and "\\" not in text else ""


_FIRST_PAGES = {Role.FINANCE: "billing", Role.AUDITOR: "audit"}


def first_path(reader: Credential) -> str:
    """Return the path of the first page of a reader: the page after the sign-in, and the target of the brand."""
    if reader.role is Role.TENANT:
        return page_path("tenant", reader.tenant)
    return page_path(_FIRST_PAGES.get(reader.role, "overview"))


def menu(role: Role) -> Iterator[Page]:
    """Yield the pages of a role's menu."""
    return (page for page in PAGES if page.in_menu and page.admits(role))
