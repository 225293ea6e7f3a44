"""Pages of `railscope top`: a view, the documents that it needs, its head line and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from railscope.client import answers, cluster_tables, node_reading, status, tables
from railscope.client.cluster_reading import ClusterReader, ClusterReading
from railscope.client.connection import ClientError, ReadClient

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
        subject = f" of {'/'.join(self.subject)}" if self.subject else ""
        filters = (f"{key}={value}" for key, value in self.filters.items())
        return "  ".join([self.name + subject, *filters])


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
    "tenants": ("tenants", "account", "jobs"),
    "events": ("events",),
    "incident": (),
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
    return tuple(str(row.get(key) or "") for key in _ROW_NAMES.get(view.name, ("fact",)))


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

    reader: ClusterReader
    views: Mapping[str, str] = field(default_factory=lambda: CLUSTER_VIEWS)
    _rates: node_reading.GpuRates = field(default_factory=node_reading.GpuRates)

    def first(self) -> TopView:
        """Return the view to begin with."""
        return TopView("nodes")

    def read(self, view: TopView) -> TopPage:
        """Read a view. Raises ClientError."""
        names = dict.fromkeys((*_HEAD, *_DOCUMENTS.get(view.name, ())))
        reading = self.reader.read(tuple(names))
        if (
            reading.is_denied("nodes") and "jobs" not in names
        ):  # a tenant has jobs in place of nodes
            reading = self.reader.read((*names, "jobs"))
        if not self.reader.is_wanted():
            return TopPage(view, "", tables.ClientTable(view.name, ()), 0, None)
        age = (
            reading.age_seconds("nodes")
            if "nodes" in reading.documents
            else reading.age_seconds("incidents")
        )
        head = _cluster_head(reading)
        if view.name == "gpus" and not view.subject:
            return self._fleet_gpus(view, head, age)
        page = _page(view, head, self._table(view, reading), age)
        is_first = view == self.first() and reading.is_tenant
        return replace(page, permitted=TopView("jobs")) if is_first else page

    def _table(self, view: TopView, reading: ClusterReading) -> tables.ClientTable:
        match view.name:
            case "gpus" | "gpu":
                return self._gpus(view, reading)
            case "rails":
                gpus = self.reader.read_gpus({"limit": "1"})
                return cluster_tables.rail_table(reading, gpus)
            case "incident":
                return _incident_facts(view, reading)
            case "nodes" if view.subject:
                return self._nodes_of_job(view, reading)
        return _TABLES[view.name](reading)

    def _fleet_gpus(self, view: TopView, head: str, age: float | None) -> TopPage:
        """Return a part of all GPUs; the collector selects and sorts them."""
        query = {"limit": str(MAX_ROWS), "offset": str(view.offset), **view.filters}
        try:
            answer = self.reader.read_gpus(query)
        except ClientError as error:
            if error.status is None:
                raise
            columns = cluster_tables.FLEET_GPU_COLUMNS
            table = tables.ClientTable("gpus", columns, absence=error.message)
            return TopPage(view, head, table, 0, age)
        return TopPage(view, head, cluster_tables.fleet_gpu_table(answer), answer.found, age)

    def _nodes_of_job(self, view: TopView, reading: ClusterReading) -> tables.ClientTable:
        tenant, source, workload = view.subject
        places = self.reader.read_job(tenant, source, workload).places
        table = cluster_tables.node_table(reading)
        nodes = {place.node for place in places}
        if table.absence:  # a tenant reads the GPUs of its job only
            rows = [
                {"node": place.node, "index": place.index, "gpu": place.gpu, "health": None}
                for place in places
            ]
            absences = dict.fromkeys(
                (column.key for column in node_reading.GPU_COLUMNS), table.absence
            )
            return replace(
                node_reading.gpu_table(rows),
                columns=(cluster_tables.NODE_COLUMNS[0], *node_reading.GPU_COLUMNS),
                reasons=absences,
            )
        return replace(table, rows=[row for row in table.rows if row["node"] in nodes])

    def _gpus(self, view: TopView, reading: ClusterReading) -> tables.ClientTable:
        node = view.subject[0]
        if reading.is_denied("nodes"):  # a tenant reads the list of its own GPUs
            query = {"node": node} | ({"gpu": view.subject[1]} if view.name == "gpu" else {})
            table = cluster_tables.fleet_gpu_table(self.reader.read_gpus(query))
            return _row_facts(table) if view.name == "gpu" else table
        document = self.reader.read_node(node)
        rows = self._rates.rows(node_reading.of_document(document))
        return (
            _gpu_facts(view, rows)
            if view.name == "gpu"
            else _named_node(node_reading.gpu_table(rows), node, document)
        )


def _named_node(
    table: tables.ClientTable, node: str, document: answers.NodeAnswer
) -> tables.ClientTable:
    """Note the node and the age of its GPUs: a stale node still has its last readings."""
    ages = [stream.age_seconds for name, stream in document.streams.items() if name == "gpu"]
    age = next((tables.show_age(seconds) for seconds in ages if seconds is not None), "unknown")
    return replace(table, notes=(f"{node}: GPUs read {age} ago",))


@dataclass
class AgentPages:
    """Reads pages of an agent."""

    reader: node_reading.AgentReader
    views: Mapping[str, str] = field(default_factory=lambda: AGENT_VIEWS)

    def first(self) -> TopView:
        """Return the view to begin with."""
        return TopView("gpus")

    def read(self, view: TopView) -> TopPage:
        """Read a view. Raises ClientError."""
        reading = self.reader.read()
        report = status.agent_report("", reading)
        gpus = ", ".join(
            f"{tables.show_number(count)} {state}"
            for state, count in (report.gpus or {}).items()
            if count
        )
        head = f"{report.status.name}  GPUs: {gpus or 'none'}"
        table = node_reading.gpu_table(reading.gpu_rows)
        if view.name == "gpu":
            table = _gpu_facts(view, reading.gpu_rows)
        elif view.name == "sources":
            table = reading.source_table()
        return _page(view, head, table, reading.age_seconds)


def create_pages(client: ReadClient) -> ClusterPages | AgentPages:
    """Return the reader of pages for the server of a client."""
    return (
        AgentPages(node_reading.AgentReader(client))
        if client.address.is_agent
        else ClusterPages(ClusterReader(client))
    )


def _page(view: TopView, head: str, table: tables.ClientTable, age: float | None) -> TopPage:
    filtered = table.filtered(view.filters)
    rows = filtered.rows[view.offset : view.offset + MAX_ROWS]
    return TopPage(view, head, replace(filtered, rows=rows), len(filtered.rows), age)


def _cluster_head(reading: ClusterReading) -> str:
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
        counts = (
            f"{tables.show_number(report.gpus[key])} {key}"
            for key in ("claimed", "idle")
            if key in report.gpus
        )
        parts.append(
            "GPUs: " + (", ".join(counts) or f"{tables.show_number(report.gpus['total'])}")
        )
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


def _incident_facts(view: TopView, reading: ClusterReading) -> tables.ClientTable:
    document: answers.IncidentsAnswer | None = reading.document("incidents")
    table = cluster_tables.incident_table(reading, closed=True)
    row = next((row for row in table.rows if row["id"] == view.subject[0]), None)
    if row is None or document is None:
        return replace(
            table, rows=(), absence=table.absence or "the incident is not listed any more"
        )
    incident = next(entry for entry in document.rows if entry.id == row["id"])
    facts: dict[str, Any] = {
        key: row[key] for key in ("title", "text", "action", "severity", "state", "onset", "ended")
    }
    facts |= {key: ", ".join(row[key]) for key in ("nodes", "jobs")}
    facts |= {
        "victims": row["victims"],
        "lost GPU-hours": tables.show_gpu_hours(row["lost_gpu_seconds"]),
    }
    facts["explained by"] = row["explained_by"]
    for evidence in incident.evidence:
        name = f"{evidence.get('signal')} {evidence.get('device')}"
        facts[name] = (
            f"{evidence.get('value')} ({evidence.get('comparison')} {evidence.get('threshold')})"
        )
    return _facts_table("incident", facts)


def _gpu_facts(view: TopView, rows: list[tables.Row]) -> tables.ClientTable:
    row = next((row for row in rows if row["gpu"] == view.subject[1]), None)
    if row is None:
        return tables.ClientTable("gpu", FACT_COLUMNS, absence="the GPU is not reported any more")
    table = node_reading.gpu_table([row])
    texts: dict[str, str | None] = {
        column.head: table.cell(column, row) for column in node_reading.GPU_COLUMNS
    }
    texts["LINK Gb/s"] = (
        tables.show_gigabits(row["speed_bytes_per_second"])
        if row["speed_bytes_per_second"]
        else None
    )
    texts["MEMORY SIZE GB"] = (
        tables.show_gigabytes(row["memory_size_bytes"]) if row["memory_size_bytes"] else None
    )
    return replace(
        _facts_table("gpu", texts), reasons={"value": "not reported, or not known to the collector"}
    )


def _row_facts(table: tables.ClientTable) -> tables.ClientTable:
    """Return the first row of a table as facts."""
    facts = {
        column.head: table.cell(column, row) for row in table.rows[:1] for column in table.columns
    }
    return (
        _facts_table("gpu", facts)
        if facts
        else replace(table, absence="the GPU is not reported any more")
    )


def _facts_table(name: str, facts: Mapping[str, Any]) -> tables.ClientTable:
    rows = [
        {"fact": fact, "value": None if value == tables.DASH else value}
        for fact, value in facts.items()
    ]
    return tables.ClientTable(name, FACT_COLUMNS, rows)


_TABLES: Mapping[str, Callable[[ClusterReading], tables.ClientTable]] = {
    "nodes": cluster_tables.node_table,
    "jobs": cluster_tables.job_table,
    "tenants": cluster_tables.tenant_table,
    "incidents": cluster_tables.incident_table,
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
            page.table.as_text(width),
            *more,
        ]
    )
