"""Pages of `railscope top`: a view, the documents that it needs, its head line and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from railscope import api
from railscope.client import (
    agent_reading,
    cluster_reading as cluster,
    cluster_tables,
    gpu_tables,
    status,
    tables,
)
from railscope.client.connection import ReadClient

MAX_ROWS = 500
"""Rows of a page; the next part has the others, and a filter finds them."""
Subject: TypeAlias = tuple[str, ...]
FACT_COLUMNS = (tables.TableColumn("fact", "", is_key=True), tables.TableColumn("value", ""))


@dataclass(frozen=True, slots=True)
class TopView:
    """A view: its name, the row that it is about (empty for the whole cluster), and its filters."""

    name: str
    subject: Subject = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    offset: int = 0
    """Rows before those that are shown."""

    @property
    def title(self) -> str:
        """Name, subject and filters."""
        subject = f" of {'/'.join(filter(None, self.subject))}" if self.subject else ""
        return "  ".join([self.name + subject, *tables.format_filters(self.filters)])


@dataclass(frozen=True, slots=True)
class TopPage:
    """A view as it was read: its head, and its table."""

    view: TopView
    head: str
    table: tables.ClientTable
    count: int
    """Rows without the bound."""
    age_seconds: float | None
    """Age of the data when it was received."""
    incidents: Sequence[tables.Row] = ()
    """Open incidents, which the first view shows above its rows."""
    permitted: TopView | None = None
    """View that the credentials permit in place of this one: a tenant has jobs, and no nodes."""


CLUSTER_VIEWS: Mapping[str, str] = {
    "n": "nodes",
    "g": "gpus",
    "r": "rails",
    "j": "jobs",
    "t": "tenants",
    "i": "incidents",
    "e": "events",
}
AGENT_VIEWS: Mapping[str, str] = {"g": "gpus", "s": "sources"}
_HEAD = ("nodes", "incidents", "cluster", "inventory")
_DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "rails": ("rails",),
    "jobs": ("jobs",),
    "tenants": ("tenants", "jobs"),
    "events": ("events",),
}
_ROW_NAMES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("node",),
    "gpus": ("node", "gpu"),
    "rails": ("rail",),
    "jobs": ("tenant", "source", "workload"),
    "tenants": ("tenant",),
    "incidents": ("id",),
    "events": ("node",),
    "sources": ("source",),
}
"""Keys of the values that name a row."""


def row_subject(view: TopView, row: tables.Row) -> Subject:
    """Return the name of a row; it is the subject of the view that the row opens."""
    values = (row.get(key) for key in _ROW_NAMES.get(view.name, ("fact",)))
    return tuple("" if value is None else str(value) for value in values)


def opened_view(view: TopView, row: tables.Row) -> TopView | None:
    """Return the view that a row opens: tenant, job, node or rail, GPU; None if there is none."""
    subject = row_subject(view, row)
    match view.name:
        case "tenants":
            return TopView("jobs", filters={"tenant": subject[0]})
        case "jobs":
            return TopView("nodes", subject)
        case "nodes" | "events":
            return TopView("gpus", subject[:1])
        case "gpus" | "incidents":
            return TopView(view.name.removesuffix("s"), subject)
        case "rails":
            return TopView("gpus", filters={"rail": subject[0]})
    return None


@dataclass
class ClusterPages:
    """Reads pages of a collector."""

    reader: cluster.ClusterReader
    views: Mapping[str, str] = field(default_factory=lambda: CLUSTER_VIEWS)

    def first(self) -> TopView:
        """Return the view to begin with."""
        return TopView("nodes")

    def read(self, view: TopView) -> TopPage:
        """Read a view. Raises ClientError."""
        reading = self._read(view)
        # The first reading has shown that the reader is a tenant, whose view has other documents.
        if reading.is_denied("nodes") and "jobs" not in (*reading.documents, *reading.errors):
            reading = self._read(view)
        age = reading.age_seconds("nodes" if "nodes" in reading.documents else "incidents")
        head = _cluster_head(reading)
        if view.name == "gpus" and not view.subject:  # the collector selects and sorts them
            return _fleet_gpu_page(view, head, reading, age)
        page = _page(view, head, self._table(view, reading), age)
        if (view.name, view.subject) == ("jobs" if reading.is_tenant else "nodes", ()):
            page = replace(page, incidents=cluster_tables.incident_table(reading).rows)
        is_first = view == self.first() and reading.is_tenant
        return replace(page, permitted=TopView("jobs")) if is_first else page

    def _read(self, view: TopView) -> cluster.ClusterReading:
        """Read what a view and its head show; a tenant has jobs in place of nodes."""
        is_tenant = "nodes" in self.reader.not_served
        names = (*_HEAD, *_DOCUMENTS.get(view.name, ()), *(("jobs",) if is_tenant else ()))
        return self.reader.read(
            dict.fromkeys(names), **_further_requests(view, is_tenant=is_tenant)
        )

    def _table(self, view: TopView, reading: cluster.ClusterReading) -> tables.ClientTable:
        match view.name:
            case "gpus" | "gpu":
                return self._gpus(view, reading)
            case "incident":
                return incident_facts(reading)
            case "nodes" if view.subject:
                return _nodes_of_job(reading)
        return _TABLES[view.name](reading)

    def _gpus(self, view: TopView, reading: cluster.ClusterReading) -> tables.ClientTable:
        is_tenant = reading.is_denied("nodes")  # which reads the list of its own GPUs
        make = gpu_tables.fleet_gpu_table if is_tenant else gpu_tables.node_gpu_table
        return _gpu_facts(view, make(reading)) if view.name == "gpu" else make(reading)


def _further_requests(view: TopView, *, is_tenant: bool) -> dict[str, cluster.DocumentRequest]:
    """Return the request of a view that its subject, filters or part determine."""
    match view.name:
        case "gpus" if not view.subject:
            part = {"limit": str(MAX_ROWS), "offset": str(view.offset)}
            selected = {key: value for key, value in view.filters.items() if key}
            found = "gpus", cluster.gpus_request(part | selected)
        case "gpus" | "gpu" if is_tenant:
            names = zip(("node", "gpu"), view.subject, strict=False)
            found = "gpus", cluster.gpus_request(dict(names))
        case "gpus" | "gpu":
            found = "node", cluster.node_request(view.subject[0])
        case "nodes" if view.subject:
            found = "job", cluster.job_request(*view.subject)
        case "incident":
            found = "incident", cluster.incident_request(view.subject[0])
        case _:
            return {}
    return dict([found])


def _nodes_of_job(reading: cluster.ClusterReading) -> tables.ClientTable:
    table, job = cluster_tables.node_table(reading), reading.document("job")
    if job is None:
        return replace(table, rows=(), absence=reading.absence("job"))
    if reading.is_denied("nodes"):  # a tenant reads the GPUs of its job only
        rows = [
            {"node": place.node, "index": place.index, "gpu": place.gpu} for place in job.places
        ]
        columns = (cluster_tables.NODE_COLUMNS[0], *gpu_tables.GPU_COLUMNS)
        absences = dict.fromkeys((column.key for column in columns), table.absence)
        return tables.ClientTable("gpus", columns, rows, reasons=absences)
    nodes = {place.node for place in job.places}
    return replace(table, rows=[row for row in table.rows if row["node"] in nodes])


@dataclass
class AgentPages:
    """Reads pages of an agent."""

    reader: agent_reading.AgentReader
    views: Mapping[str, str] = field(default_factory=lambda: AGENT_VIEWS)

    def first(self) -> TopView:
        """Return the view to begin with."""
        return TopView("gpus")

    def read(self, view: TopView) -> TopPage:
        """Read a view. Raises ClientError."""
        reading = self.reader.read()
        report = status.agent_report("", reading)
        counts = report.gpus or {}
        gpus = status.counts_text(counts, omitted=counts)
        head = f"{report.status.name}  GPUs: {gpus or 'none'}"
        table = reading.source_table() if view.name == "sources" else reading.gpu_table()
        if view.name == "gpu":
            table = _gpu_facts(view, table)
        return _page(view, head, table, reading.age_seconds)


def create_pages(client: ReadClient) -> ClusterPages | AgentPages:
    """Return the reader of pages for the server of a client."""
    return (
        AgentPages(agent_reading.AgentReader(client))
        if client.address.is_agent
        else ClusterPages(cluster.ClusterReader(client))
    )


def _page(view: TopView, head: str, table: tables.ClientTable, age: float | None) -> TopPage:
    filtered = table.filtered(view.filters)
    rows = filtered.rows[view.offset : view.offset + MAX_ROWS]
    return TopPage(view, head, replace(filtered, rows=rows), len(filtered.rows), age)


def _fleet_gpu_page(
    view: TopView, head: str, reading: cluster.ClusterReading, age: float | None
) -> TopPage:
    """Return a part of the GPUs; the collector selects by all filters but words in any column."""
    document: api.GpuList | None = reading.document("gpus")
    table, count = gpu_tables.fleet_gpu_table(reading), document.found if document else 0
    if words := view.filters.get(tables.ANY_TEXT):
        read, table = len(table.rows), table.filtered({tables.ANY_TEXT: words})
        notes = (f"{words!r} in {read} of {count} GPUs",) if read < count else ()
        table = replace(table, notes=(*table.notes, *notes))
        count = count if read < count else len(table.rows)
    return TopPage(view, head, table, count, age)


def filter_keys(view: TopView, table: tables.ClientTable) -> list[str]:
    """Return the keys that a filter of a view may have."""
    if view.name == "gpus" and "state" in {column.key for column in table.columns}:
        return ["state", "rail", "node", "gpu", "tenant", "workload"]
    return sorted(
        {*(column.key for column in table.columns), *(key for row in table.rows[:1] for key in row)}
    )


def _cluster_head(reading: cluster.ClusterReading) -> str:
    """Return nodes by state, GPUs claimed and idle, incidents, and what the view does not cover."""
    report = status.cluster_report("", reading)
    parts = [report.status.name]
    if report.nodes is not None:
        parts.append(
            "nodes: "
            + ", ".join(
                f"{count} {state}"
                for state, count in report.nodes.items()
                if count or state == "healthy"
            )
        )
    if report.gpus is not None:
        use = {key: count for key, count in report.gpus.items() if key != "total"}
        parts.append(f"GPUs: {status.counts_text(use or report.gpus)}")
    if report.incidents is not None:
        parts.append(f"incidents: {sum(report.incidents.values())}")
    if report.nodes and (covered := _coverage(report.nodes)):
        parts.append(covered)
    if unknown := sorted(set(report.absent) - {"jobs"}):
        parts.append(f"unknown: {', '.join(unknown)}")
    return "  ".join(parts)


def _coverage(nodes: Mapping[str, int]) -> str:
    total = sum(nodes.values())
    fresh = total - nodes.get("unknown", 0)
    return f"partial: {fresh} of {total} nodes" if fresh < total else ""


def incident_facts(reading: cluster.ClusterReading) -> tables.ClientTable:
    """Return an incident with its evidence, as facts."""
    incident: api.IncidentDocument | None = reading.document("incident")
    if incident is None:
        return tables.ClientTable("incident", FACT_COLUMNS, absence=reading.absence("incident"))
    row = cluster_tables.incident_row(reading, incident)
    facts: dict[str, Any] = {
        key: row[key] for key in ("title", "text", "action", "severity", "state", "onset", "ended")
    }
    facts |= {key: tables.show_time(facts[key]) for key in ("onset", "ended") if facts[key]}
    facts |= {key: ", ".join(row[key]) for key in ("nodes", "jobs")}
    facts |= {
        "affected": row["affected"],
        "lost GPU-hours": "not known"
        if row["lost_gpu_seconds"] is None
        else tables.show_gpu_hours(row["lost_gpu_seconds"]),
    }
    facts["explained by"] = row["explained_by"]
    for number, each in enumerate(incident.evidence, start=1):
        # A collector of 0.3.0 sends no text.
        facts[f"evidence {number}"] = each.text or f"{each.device}: {each.signal} {each.value}"
    return _facts_table("incident", facts)


def _gpu_facts(view: TopView, table: tables.ClientTable) -> tables.ClientTable:
    """Return the GPU of a view with all of its columns, and its sizes, as facts."""
    row = next((row for row in table.rows if row["gpu"] == view.subject[1]), None)
    if row is None:
        absence = table.absence or "the GPU is not reported any more"
        return tables.ClientTable("gpu", FACT_COLUMNS, absence=absence)
    facts = {column.head: table.cell(column, row) for column in (*table.columns, _MEMORY_SIZE)}
    reasons = {"value": "not reported, or not known to the collector"}
    return replace(_facts_table("gpu", facts), reasons=reasons)


_MEMORY_SIZE = tables.number("memory_size_bytes", "MEMORY SIZE GB", tables.show_gigabytes)


def _facts_table(name: str, facts: Mapping[str, Any]) -> tables.ClientTable:
    rows = [
        {"fact": fact, "value": None if value == tables.DASH else value}
        for fact, value in facts.items()
    ]
    return tables.ClientTable(name, FACT_COLUMNS, rows)


_TABLES: Mapping[str, Callable[[cluster.ClusterReading], tables.ClientTable]] = {
    "nodes": cluster_tables.node_table,
    "jobs": cluster_tables.job_table,
    "tenants": cluster_tables.tenant_table,
    "incidents": cluster_tables.incident_table,
    "rails": cluster_tables.rail_table,
    "events": cluster_tables.event_table,
}


def absence_reasons(table: tables.ClientTable, row: tables.Row) -> Iterator[str]:
    """Yield the reasons for the dashes of a row, where they are known."""
    heads: dict[str, list[str]] = {}
    for column in table.columns:
        reason = table.reasons.get(column.key)
        if reason and table.cell(column, row) == tables.DASH:
            heads.setdefault(reason, []).append(column.head)
    for reason, names in heads.items():
        yield f"{', '.join(names)}: {tables.show_text(reason)}"


def plain_page(page: TopPage, width: int) -> str:
    """Return a page as text, for output that is not a terminal."""
    age = "unknown" if page.age_seconds is None else tables.show_age(page.age_seconds)
    more = (
        [f"{page.count - len(page.table.rows)} more rows"]
        if page.count > len(page.table.rows)
        else []
    )
    return "\n".join(
        [
            *tables.wrap(f"{page.head}  data: {age}", width, "  "),
            "",
            *(
                [*cluster_tables.incident_lines(page.incidents, width), ""]
                if page.incidents
                else ()
            ),
            page.table.as_text(width),
            *more,
        ]
    )
