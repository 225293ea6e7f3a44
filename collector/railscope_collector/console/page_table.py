"""Table of the pages of the web console: paths, roles, titles, templates and queries.

Each page is two routes of the collector's application: HTML at its path, and its JSON twin at the same path below
`/api/v1/pages`. Both have the same roles, and are made from the same model.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.timestamps import MILLISECOND_NS
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.console import PageProblemError, curves
from railscope_collector.http import gpus_api, list_query, read_api
from railscope_collector.http.list_query import PartQuery, SearchText
from railscope_collector.http.route_table import ROUTES, Route, TenantScope

TWIN_PREFIX = "/api/v1/pages"
PAGE_ROWS = 100
"""Rows of a page; the API returns more on request."""
RecordIndex = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
TimeText = Annotated[str, msgspec.Meta(max_length=40)]


class EmptyQuery(msgspec.Struct, frozen=True):
    """Query of a page without parameters."""


class StatementsQuery(PartQuery, frozen=True):
    """Query of the list of statements."""

    tenant: SearchText = ""
    sort: Literal["", "tenant", "issued_ns", "void"] = ""


class AuditQuery(msgspec.Struct, frozen=True):
    """Query of the records of the audit log; without a start, the newest ones."""

    start: RecordIndex | None = None
    tenant: SearchText = ""


class IncidentsQuery(PartQuery, frozen=True):
    """Query of the list of incidents."""

    state: Literal["open", "closed", "all"] = "open"
    severity: Literal["", "critical", "warning", "info"] = ""
    sort: Literal["", "onset", "victim_count", "lost_gpu_time_seconds", "title"] = ""


class SearchQuery(msgspec.Struct, frozen=True):
    """Query of a search."""

    q: SearchText = ""


class RailsQuery(msgspec.Struct, frozen=True):
    """Query of the list of rails."""

    sort: Literal[
        "", "failed", "degraded", "mean_utilization_ratio", "power_watts", "max_temperature_celsius", "max_pausing_ratio"
    ] = ""  # fmt: skip


class SwitchesQuery(PartQuery, frozen=True):
    """Query of the list of switches."""

    sort: Literal["", "switch", "age_seconds", "ports", "ports_up", "faults"] = ""


class TenantsQuery(PartQuery, frozen=True):
    """Query of the list of tenants."""

    sort: Literal["", "tenant", "held_gpu_hours"] = ""


class JobsQuery(PartQuery, frozen=True):
    """Query of the list of jobs."""

    name: SearchText = ""
    """Part of the tenant and the name."""
    sort: Literal["", "workload", "tenant", "start_ns", "gpus", "nodes", "stale_gpus"] = ""


class HistoryQuery(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Query of a page with curves: the period."""

    from_: TimeText = ""
    to: TimeText = ""
    width: Annotated[int, msgspec.Meta(ge=100, le=1000)] = curves.PICTURE_WIDTH
    """Pixels of the curves in the JSON twin."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page; its template is `NAME.html`, and its model has the same name."""

    name: str
    path: str
    title: str
    """With the parts of the path in braces."""
    roles: frozenset[Role]
    tenants: TenantScope = TenantScope.NOTHING
    query: type[msgspec.Struct] = EmptyQuery
    is_live: bool = True
    """True if the script of the page refreshes it."""
    in_menu: bool = True
    reads_storage: bool = False
    """True if its content is read from disk or database, which may take long."""

    def routes(self) -> tuple[Route, Route]:
        """Return the route of the page and that of its JSON twin."""
        return (
            Route(f"page_{self.name}", self.path, self.roles, self.tenants),
            Route(f"page_{self.name}_json", TWIN_PREFIX + self.path, self.roles, self.tenants),
        )

    def admits(self, role: Role) -> bool:
        """True if a role may read the page."""
        return self.routes()[0].admits(role)


RUNNING = frozenset({Role.OPERATOR, Role.AUDITOR})
READERS = frozenset({Role.OPERATOR, Role.AUDITOR, Role.FINANCE})

BILLING = frozenset({Role.AUDITOR, Role.FINANCE})
AUDIT = frozenset({Role.AUDITOR})

_detail = partial(Page, is_live=False, in_menu=False, reads_storage=True)
PAGES: Collection[Page] = (
    Page("overview", "/", "Overview", RUNNING, TenantScope.OWN_DATA, PartQuery),
    Page("incidents", "/incidents", "Incidents", RUNNING, TenantScope.OWN_DATA, IncidentsQuery),
    Page(
        "incident",
        "/incidents/{incident}",
        "Incident {incident}",
        RUNNING,
        TenantScope.OWN_DATA,
        in_menu=False,
    ),
    Page("nodes", "/nodes", "Nodes", RUNNING, query=read_api.NodesQuery),
    Page("node", "/nodes/{node}", "Node {node}", RUNNING, query=PartQuery, in_menu=False),
    Page("gpus", "/gpus", "GPUs", RUNNING, TenantScope.OWN_DATA, gpus_api.GpusQuery),
    Page("rails", "/rails", "Rails", RUNNING, query=RailsQuery),
    Page("rail", "/rails/{rail}", "Rail {rail}", RUNNING, query=PartQuery, in_menu=False),
    Page("switches", "/switches", "Switches", RUNNING, query=SwitchesQuery),
    _detail("switch", "/switches/{switch}", "Switch {switch}", RUNNING, query=PartQuery),
    _detail("switch_port", "/switches/{switch}/ports/{port}", "Port {port} of {switch}", RUNNING),
    Page("jobs", "/jobs", "Jobs", RUNNING, TenantScope.OWN_DATA, JobsQuery),
    Page(
        "job",
        "/jobs/{tenant}/{source}/{workload}",
        "Job {workload} of {tenant}",
        RUNNING,
        TenantScope.NAMED,
        PartQuery,
        in_menu=False,
    ),
    Page("tenants", "/tenants", "Tenants", READERS, TenantScope.OWN_DATA, TenantsQuery),
    Page(
        "tenant",
        "/tenants/{tenant}",
        "Tenant {tenant}",
        READERS,
        TenantScope.NAMED,
        PartQuery,
        in_menu=False,
        reads_storage=True,
    ),
    Page(
        "statements",
        "/statements",
        "Statements",
        BILLING,
        TenantScope.OWN_DATA,
        StatementsQuery,
        is_live=False,
        reads_storage=True,
    ),
    _detail(
        "statement",
        "/statements/{tenant}/{period}",
        "Statement of {tenant} for {period}",
        BILLING,
        TenantScope.NAMED,
    ),
    Page(
        "billing",
        "/billing",
        "Billing",
        BILLING,
        query=PartQuery,
        is_live=False,
        reads_storage=True,
    ),
    _detail("billing_period", "/billing/{period}", "Billing of {period}", BILLING, query=PartQuery),
    _detail(
        "reconciliation", "/billing/{period}/reconciliation", "Reconciliation of {period}", BILLING
    ),
    Page(
        "audit",
        "/audit",
        "Audit log",
        AUDIT,
        TenantScope.OWN_DATA,
        AuditQuery,
        is_live=False,
        reads_storage=True,
    ),
    _detail("audit_record", "/audit/{index}", "Audit record {index}", AUDIT, TenantScope.OWN_DATA),
    Page("railscope", "/railscope", "Self-monitoring", RUNNING),
    *(
        _detail(
            name,
            path,
            title,
            RUNNING,
            TenantScope.NAMED if name == "job_history" else TenantScope.NOTHING,
            HistoryQuery,
        )
        for name, path, title in (
            ("node_history", "/nodes/{node}/history", "History of node {node}"),
            ("gpu", "/nodes/{node}/gpus/{index}", "GPU {index} of {node}"),
            ("rail_history", "/rails/{rail}/history", "History of rail {rail}"),
            (
                "job_history",
                "/jobs/{tenant}/{source}/{workload}/history",
                "History of job {workload} of {tenant}",
            ),
        )
    ),
    _detail("runbook", "/runbooks/{runbook}", "Runbook {runbook}", READERS, TenantScope.SAME),
    Page(
        "search",
        "/search",
        "Search",
        READERS,
        TenantScope.OWN_DATA,
        SearchQuery,
        is_live=False,
        in_menu=False,
    ),
    Page("api", "/api", "API", READERS, TenantScope.SAME, is_live=False, in_menu=False),
)

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
_ANYONE = frozenset(Role) - {Role.TENANT}


def _open(name: str, path: str, method: str = "GET") -> Route:
    return Route(name, path, _ANYONE, TenantScope.SAME, method, open=True)


CONSOLE_ROUTES: Collection[Route] = (
    *(route for page in PAGES for route in page.routes()),
    _open("static", "/static/{digest}/{name}"),
    _open("sign_in_form", SIGN_IN),
    _open("sign_in", SIGN_IN, "POST"),
    _open("sign_out", SIGN_OUT, "POST"),
)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Request of one page: the parts of its path, its query, and the credential of the reader."""

    page: Page
    credential: Credential
    parts: Mapping[str, str] = field(default_factory=dict)
    query: Any = field(default_factory=EmptyQuery)
    """An instance of the page's type of query."""
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

    @property
    def part(self) -> slice:
        """The part of the list of the page."""
        return slice(self.query.offset, self.query.offset + self.query.limit)

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
    def tenant(self) -> str | None:
        """The tenant whose data is shown; None for all."""
        return self.credential.tenant if self.credential.role is Role.TENANT else None

    @property
    def scope(self) -> tuple[Role, str]:
        """Distinction of readers: those of one scope see the same."""
        return self.credential.role, self.credential.tenant

    @property
    def title(self) -> str:
        """Title of the page with the parts of the path."""
        return self.page.title.format(**self.parts)

    def may_read(self, route: str) -> bool:
        """True if the reader may use a route of the API, so that its content is shown on a page."""
        return _API_ROUTES[route].admits(self.credential.role)

    def allows(self, page: str) -> bool:
        """True if there is another page that the reader may read, so that a link leads there."""
        return page in PAGES_BY_NAME and PAGES_BY_NAME[page].admits(self.credential.role)


_API_ROUTES = {route.name: route for route in ROUTES}
_DASHBOARDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "overview": ("railscope-cluster", ()),
    "nodes": ("railscope-health", ()),
    "node": ("railscope-node", ("node",)),
    "gpus": ("railscope-health", ()),
    "node_history": ("railscope-node", ("node",)),
    "gpu": ("railscope-pair", ("node",)),
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
    "billing": ("railscope-billing", ()),
    "audit": ("railscope-audit", ()),
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

    resource: msgspec.Struct
    shown: Mapping[str, object] = {}


PageModel: TypeAlias = Callable[[PageRequest], Awaitable[msgspec.Struct | PageContent]]
"""Returns the content of a page; raises PageProblemError."""
PageModels: TypeAlias = Mapping[str, PageModel]
"""By name of the page."""


def in_thread(make: Callable[[PageRequest], msgspec.Struct | PageContent]) -> PageModel:
    """Return the model of a page that a blocking function makes."""
    return lambda request: run_in_thread(make, request)


PAGES_BY_NAME: Mapping[str, Page] = {page.name: page for page in PAGES}


def parse_query(page: Page, values: Mapping[str, str]) -> msgspec.Struct:
    """Parse the query of a page; unknown names are ignored. Raises PageProblemError."""
    known = {each.encode_name for each in msgspec.structs.fields(page.query)}
    try:
        named = {name: text for name, text in values.items() if name in known}
        query = list_query.parse_query(page.query, named)
    except list_query.QueryError as error:
        raise PageProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    limit = getattr(query, "limit", None)
    return query if limit is None else msgspec.structs.replace(query, limit=min(limit, PAGE_ROWS))


def page_path(name: str, /, *parts: str, **query: object) -> str:
    """Return the path of a page, with the parts of its path and its query quoted."""
    texts = iter(parts)
    path = re.sub(r"\{\w+\}", lambda _: quote(next(texts), safe=""), PAGES_BY_NAME[name].path)
    chosen = {key: value for key, value in query.items() if value not in (None, "")}
    return (
        path
        + "?" * bool(chosen)
        + "&".join(f"{k}={quote(str(v), safe='')}" for k, v in chosen.items())
    )


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
