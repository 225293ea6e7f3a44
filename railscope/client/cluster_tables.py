"""Tables of a cluster: nodes, jobs, incidents, tenants and events, worst or newest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from railscope import api, figures, timestamps
from railscope.api import inventory, tenants
from railscope.catalog.collector import NODE_STATES
from railscope.catalog.event_titles import title_of
from railscope.client import tables
from railscope.client.cluster_reading import NO_STATE, ClusterReading, decided_state
from railscope.incident_victims import affected_text

NOT_REPORTED = "the collector does not report it; fix: upgrade it"
NEVER_REPORTED = "in the inventory, but never reported"
NODE_COLUMNS = (
    tables.TableColumn("node", "NODE", is_key=True),
    tables.TableColumn("state", "STATE"),
    tables.number("age_seconds", "AGE", tables.show_age),
    tables.number("gpus", "GPUS"),
    tables.TableColumn("reason", "REASON", is_sentence=True),
    tables.number("clock_offset_seconds", "CLOCK", lambda value: f"{value:+.3f} s", wide=True),
    tables.number("sources", "SOURCES", wide=True),
    tables.TableColumn("agent_version", "AGENT", is_wide=True),
)
PAUSE_KEYS = ("max_paused_ratio", "max_pausing_ratio")
PAUSE_WARNING, PAUSE_CRITICAL = 0.05, 0.5
"""Limits of the alert RailscopePfcPauseShare."""
RAIL_COLUMNS = (
    tables.TableColumn("rail", "RAIL", is_key=True),
    tables.number("failed", "FAILED"),
    tables.number("unknown", "UNKNOWN"),
    tables.number("degraded", "DEGRADED"),
    tables.number("healthy", "HEALTHY"),
    tables.number(PAUSE_KEYS[0], "PAUSED", figures.percent),
    tables.number(PAUSE_KEYS[1], "PAUSING", figures.percent),
    tables.number("mean_utilization_ratio", "BUSY", figures.percent),
    tables.number("receive_bytes_per_second", "IN Gb/s", tables.show_gigabits),
    tables.number("transmit_bytes_per_second", "OUT Gb/s", tables.show_gigabits),
    tables.number("max_temperature_celsius", "HOTTEST", lambda value: f"{value:.0f} C"),
    tables.number("power_watts", "POWER", tables.show_watts, wide=True),
    tables.number("ports_up", "PORTS UP", wide=True),
)
JOB_COLUMNS = (
    tables.TableColumn("tenant", "TENANT"),
    tables.TableColumn("workload", "JOB", is_key=True),
    tables.TableColumn("state", "STATE"),
    tables.number("gpus", "GPUS"),
    tables.number("nodes", "NODES", wide=True),
    tables.number("runtime_seconds", "RUNTIME", tables.show_age),
    tables.number("utilization_ratio", "BUSY", figures.percent),
    tables.number("step_seconds", "STEP", figures.duration),
    tables.TableColumn("reason", "REASON", is_sentence=True),
    tables.TableColumn("straggler", "SLOWEST GPU", is_wide=True),
    tables.number("power_watts", "POWER", tables.show_watts, wide=True),
    tables.TableColumn("source", "SOURCE", is_wide=True),
    tables.TableColumn("start", "START", tables.show_time, is_wide=True),
)
INCIDENT_COLUMNS = (
    tables.TableColumn("severity", "SEVERITY"),
    tables.number("age_seconds", "SINCE", tables.show_age),
    tables.TableColumn("title", "INCIDENT"),
    tables.number("victims", "VICTIMS"),
    tables.TableColumn("action", "ACTION"),
    tables.TableColumn("state", "STATE", is_wide=True),
    tables.TableColumn("onset", "ONSET", tables.show_time, is_wide=True),
    tables.TableColumn("jobs", "JOBS", tables.show_list, is_wide=True),
    tables.TableColumn("explained_by", "EXPLAINED BY", is_wide=True),
    tables.TableColumn("id", "ID", is_wide=True),
)
TENANT_COLUMNS = (
    tables.TableColumn("tenant", "TENANT", is_key=True),
    tables.number("gpus", "GPUS"),
    tables.number("jobs", "JOBS"),
    tables.number("held_gpu_seconds", "GPU-HOURS", tables.show_gpu_hours),
    tables.number("utilization_ratio", "BUSY", figures.percent),
    tables.number("power_watts", "POWER", tables.show_watts),
    tables.number("incidents", "INCIDENTS"),
)
EVENT_COLUMNS = (
    tables.number("time", "TIME", tables.show_short_time),
    tables.TableColumn("node", "NODE", is_key=True),
    tables.TableColumn("event", "EVENT", title_of),
    tables.TableColumn("device", "DEVICE"),
    tables.TableColumn("text", "TEXT"),
)


def node_table(reading: ClusterReading) -> tables.ClientTable:
    """Return the nodes, worst first."""
    document: api.NodeList | None = reading.document("nodes")
    if document is None or not document.timestamp_ns:
        return tables.ClientTable("nodes", NODE_COLUMNS, absence=reading.absence("nodes"))
    stale = reading.absence("nodes")
    rows = [_node_row(facts, stale) for facts in document.rows]
    reported = {facts.node for facts in document.rows}
    expected: inventory.Inventory | None = reading.document("inventory")
    rows += [
        {"node": node.node, "state": "unknown", "reason": NEVER_REPORTED, "is_reporting": False}
        for node in (expected.nodes if expected and expected.nodes else ())
        if node.state == "missing" and node.node not in reported
    ]
    rows.sort(key=lambda row: (NODE_STATES.index(row["state"]), row["node"]))
    notes = (f"nodes: {stale}",) if stale else ()
    reasons = {
        "age_seconds": "the node has never reported",
        "clock_offset_seconds": "no frame has been received",
    }
    return tables.ClientTable("nodes", NODE_COLUMNS, rows, notes=notes, reasons=reasons)


def _node_row(facts: api.Node, stale: str) -> tables.Row:
    state, reason = decided_state("nodes", facts.state, facts.reason, stale)
    return {
        "node": facts.node,
        "state": state,
        "reason": reason,
        "is_reporting": bool(facts.reporting),
        "age_seconds": facts.age_seconds,
        "gpus": facts.gpus,
        "clock_offset_seconds": facts.clock_offset_seconds,
        "sources": len(facts.streams),
        "agent_version": facts.agent_version,
        "incidents": facts.incidents,
    }


def rail_table(reading: ClusterReading) -> tables.ClientTable:
    """Return the rails, those with most failed cells first, then those that pause most."""
    document: api.RailList | None = reading.document("rails")
    absence = reading.absence("rails")
    if document and document.rows and not document.rails:
        absence = NO_STATE.format("rails")
    if document is None or absence:
        return tables.ClientTable("rails", RAIL_COLUMNS, absence=absence)
    rows: list[tables.Row] = msgspec.to_builtins(document.rails)
    reasons = {column.key: "no fresh reading of the rail" for column in RAIL_COLUMNS}
    return tables.ClientTable("rails", RAIL_COLUMNS, sorted(rows, key=_rail_order), reasons=reasons)


def _rail_order(row: tables.Row) -> tuple[float, ...]:
    failed, *others = (-row.get(state, 0) for state in NODE_STATES[:-1])
    pause = max(row[key] or 0.0 for key in PAUSE_KEYS)
    return failed, -round(pause, 2) if pause >= PAUSE_WARNING else 0.0, *others


def job_table(reading: ClusterReading) -> tables.ClientTable:
    """Return the running jobs, worst first."""
    document: api.JobList | None = reading.document("jobs")
    if document is None or not document.timestamp_ns:
        return tables.ClientTable("jobs", JOB_COLUMNS, absence=reading.absence("jobs"))
    stale = reading.absence("jobs")
    rows = [_job_row(reading, job, stale) for job in document.rows]
    order = ("failed", "degraded", "unknown", "healthy")
    rows.sort(key=lambda row: (order.index(row["state"]), row["tenant"], row["workload"]))
    notes = [f"jobs: {stale}"] if stale else []
    notes += [f"{document.suppressed} more jobs are not listed"] if document.suppressed else []
    reasons = {
        "utilization_ratio": "no GPU of the job reports it now",
        "step_seconds": "the traffic of the job shows no steps",
        "straggler": "no GPU of the job is behind the others",
    }
    return tables.ClientTable("jobs", JOB_COLUMNS, rows, notes=tuple(notes), reasons=reasons)


def _job_row(reading: ClusterReading, job: api.Job, stale: str) -> tables.Row:
    state, reason = decided_state("jobs", job.state, job.reason, stale)
    values = {row.metric: row.value for row in job.rollups if not row.labels}
    slowest = min(
        (entry for entry in job.stragglers if entry.deviation_ratio is not None),
        key=lambda entry: entry.deviation_ratio or 0.0,
        default=None,
    )
    return {
        "tenant": job.tenant,
        "source": job.source,
        "workload": job.workload,
        "state": state,
        "reason": reason,
        "gpus": job.gpus,
        "nodes": job.nodes,
        "stale_gpus": job.stale_gpus,
        "start": timestamps.format_timestamp(job.start_ns),
        "runtime_seconds": max(0.0, (reading.sent_ns - job.start_ns) / timestamps.SECOND_NS),
        "utilization_ratio": values.get("railscope_job_mean_gpu_utilization_ratio"),
        "power_watts": values.get("railscope_job_sum_gpu_power_watts"),
        "step_seconds": job.step.period_seconds if job.step else None,
        "straggler": f"{slowest.node} GPU {slowest.index} {slowest.measure} {100 * (slowest.deviation_ratio or 0):.0f} %"
        if slowest
        else None,
        "incidents": job.incidents,
    }


def incident_table(reading: ClusterReading, *, closed: bool = False) -> tables.ClientTable:
    """Return the open incidents, worst first; with `closed` also the ended ones, newest first."""
    document: api.IncidentList | None = reading.document("incidents")
    if document is None:
        return tables.ClientTable(
            "incidents", INCIDENT_COLUMNS, absence=reading.absence("incidents")
        )
    listed = [
        *reading.open_incidents,
        *(row for row in document.rows if closed and row.ended is not None),
    ]
    notes = [f"incidents: {stale}"] if (stale := reading.absence("incidents")) else []
    notes += (
        [f"{document.suppressed} older incidents are not listed"] if document.suppressed else []
    )
    rows = [incident_row(reading, incident) for incident in listed]
    return tables.ClientTable("incidents", INCIDENT_COLUMNS, rows, notes=tuple(notes))


def incident_row(reading: ClusterReading, incident: api.IncidentDocument) -> tables.Row:
    """Return the row of an incident."""
    return {
        "id": incident.id,
        "severity": incident.severity,
        "class": incident.incident_class,
        "title": incident.title,
        "text": incident.text,
        "state": "open" if incident.ended is None else "closed",
        "onset": incident.onset,
        "ended": incident.ended,
        "age_seconds": _age_seconds(reading, incident.onset),
        "evidence_age_seconds": _age_seconds(reading, incident.last_evidence),
        "victims": incident.victim_count,
        "affected": affected_text(incident),
        "nodes": sorted(_nodes_of(incident)),
        "jobs": [f"{job.tenant}/{job.workload}" for job in incident.jobs],
        "tenant": sorted({job.tenant for job in incident.jobs}),
        # Collectors of 0.3.0 send the second one alone, with 0 for a loss that is not known.
        "lost_gpu_seconds": incident.lost_gpu_seconds or None
        if incident.lost_gpu_time_seconds is None
        else incident.lost_gpu_time_seconds,
        "action": incident.action,
        "names": [name for key in _CAUSE_NAMES if (name := getattr(incident.cause, key, ""))],
        "explained_by": incident.explained_by,
    }


def _age_seconds(reading: ClusterReading, timestamp: str | None) -> float | None:
    try:
        past_ns = None if timestamp is None else timestamps.parse_timestamp(timestamp)
    except timestamps.TimestampError:
        return None
    return None if past_ns is None else (reading.sent_ns - past_ns) / timestamps.SECOND_NS


_RECENT_SECONDS = 30.0
"""Age of the evidence of a fault that lasts, by the windows of its class and the refresh of the views."""


def _nodes_of(incident: api.IncidentDocument) -> set[str]:
    """Return the nodes of the cause and of the victims."""
    named = set[str]()
    for entity in (incident.cause, *incident.victims):
        named |= {getattr(entity, "node", ""), *getattr(entity, "nodes", ())}
    return named - {""}


_CAUSE_NAMES = ("name", "uuid", "device", "pci_address", "switch", "switch_port")
"""Names of a cause beside those of its title; `name` is of a kind that only a newer collector has."""


def incident_lines(rows: Sequence[tables.Row], width: int) -> Iterator[str]:
    """Yield incidents in full: severity, age and title, then names of the cause, victims, jobs and action."""
    for row in rows:
        age = "" if row["age_seconds"] is None else tables.show_age(row["age_seconds"])
        ended = "  ended" if row["state"] == "closed" else ""
        yield from tables.wrap(
            f"{row['severity']:8}  {age:>6}{ended}  {row['title']}  {row['id']}", width, " " * 18
        )
        facts = [", ".join(row["names"])] if row["names"] else []
        facts += [f"{row['affected']} affected"] if row["affected"] else []
        facts += [f"jobs: {', '.join(row['jobs'])}"] if row["jobs"] else []
        facts += [f"an effect of incident {row['explained_by']}"] if row["explained_by"] else []
        facts += [row["action"]] if row["action"] else []
        if row["state"] == "open" and (row["evidence_age_seconds"] or 0.0) > _RECENT_SECONDS:
            facts += [f"last evidence {tables.show_age(row['evidence_age_seconds'])} ago"]
        yield from tables.wrap(" " * 18 + "; ".join(facts), width, " " * 18) if facts else ()


def tenant_table(reading: ClusterReading) -> tables.ClientTable:
    """Return the tenants with their GPUs and GPU time."""
    view: tenants.TenantList | None = reading.document("tenants")
    jobs: api.JobList | None = reading.document("jobs")
    if view is None or not view.timestamp_ns:
        return tables.ClientTable("tenants", TENANT_COLUMNS, absence=reading.absence("tenants"))
    listed = {row.tenant: row for row in view.tenants}
    values: dict[str, dict[str, float | None]] = {}
    for row in view.rows:
        if set(row.labels) == {"tenant"}:
            values.setdefault(row.labels["tenant"], {})[row.metric] = row.value
    names = sorted({*listed, *values, *(job.tenant for job in (jobs.rows if jobs else ()))})
    rows = [_tenant_row(reading, name, listed.get(name), values.get(name, {})) for name in names]
    notes = (f"tenants: {stale}",) if (stale := reading.absence("tenants")) else ()
    # Collectors of 0.3.0 send the roll-ups only.
    is_older = bool(view.rows) and not view.tenants
    reasons = {
        "gpus": NOT_REPORTED if is_older else "the claims of GPUs cannot be determined",
        "jobs": reading.absence("jobs"),
        "held_gpu_seconds": NOT_REPORTED if is_older else "the account has not been computed yet",
        "utilization_ratio": "no GPU of the tenant reports it now",
        "power_watts": "no GPU of the tenant reports it now",
        "incidents": reading.absence("incidents"),
    }
    return tables.ClientTable("tenants", TENANT_COLUMNS, rows, notes=notes, reasons=reasons)


def _tenant_row(
    reading: ClusterReading,
    name: str,
    tenant: tenants.Tenant | None,
    values: Mapping[str, float | None],
) -> tables.Row:
    jobs: api.JobList | None = None if reading.absence("jobs") else reading.document("jobs")
    held_hours = tenant.held_gpu_hours if tenant else None
    touching = sum(
        any(job.tenant == name for job in entry.jobs) for entry in reading.open_incidents
    )
    return {
        "tenant": name,
        "gpus": tenant.gpus if tenant else None,
        "jobs": sum(job.tenant == name for job in jobs.rows) if jobs else None,
        "held_gpu_seconds": None if held_hours is None else round(held_hours * 3600, 9),
        "utilization_ratio": values.get("railscope_tenant_mean_gpu_utilization_ratio"),
        "power_watts": values.get("railscope_tenant_sum_gpu_power_watts"),
        "incidents": None if reading.absence("incidents") else touching,
    }


def event_table(reading: ClusterReading) -> tables.ClientTable:
    """Return the events, newest first."""
    document: api.EventList | None = reading.document("events")
    if document is None:
        return tables.ClientTable("events", EVENT_COLUMNS, absence=reading.absence("events"))
    rows = [
        {
            "time": timestamps.format_timestamp(event.wall_ns),
            "node": event.node,
            "event": event.name,
            "device": event.devices or device_name(event.device),
            "text": event.text or ", ".join(_facts(event.facts)),  # facts: of an older collector
        }
        for event in sorted(document.events, key=lambda event: -event.wall_ns)
    ]
    return tables.ClientTable("events", EVENT_COLUMNS, rows)


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if value is not None and value != "":
            yield str(value) if name == "message" else f"{name}={value}"


def device_name(device: Mapping[str, str] | None) -> str | None:
    """Return the shortest unique name of a device of a node."""
    if not device:
        return None
    if device.get("kind") == "gpu":
        return f"GPU {device.get('index') or device.get('uuid', '')}"
    return device.get("interface") or device.get("device") or device.get("pci_address")
