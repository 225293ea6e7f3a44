"""The dashboard of incidents: faults that the collector diagnosed, their causes, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query

SEVERITIES = {1: "info", 2: "warning", 3: "critical"}
BY_SEVERITY: panels.Steps = ((None, "blue"), (2, "orange"), (3, "red"))
RUNNING = "0 * max(railscope_diagnosis_age_seconds)"
"""Expression that is 0 while the diagnosis runs."""
ONSET = "railscope_incident_onset_timestamp_seconds"
CAUSE = {
    "title": "Incident",
    "class": "Class",
    "node": "Node",
    "device": "Device",
    "rail": "Rail",
    "gpu": "UUID",
    "pci_address": "PCI address",
}


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    question = "Which faults are open, what causes them, and what do they cost?"
    return dashboard_parts.assemble(
        "Incidents",
        "railscope-incidents",
        question,
        SECTIONS,
        console="/incidents",
        tags=("health",),
    )


def _of_incidents(expression: str) -> str:
    """Return the series of an expression of each incident, with its title and all names of its cause."""
    # A larger cause has its parts there as well, which are of other kinds.
    names = "max by (incident, kind, gpu, pci_address) (railscope_incident_cause)"
    named = (
        f"({expression}) * on (incident, kind) group_left (gpu, pci_address) {names} "
        f"or ({expression}) unless on (incident, kind) railscope_incident_cause"
    )
    return f"max by ({', '.join(CAUSE)}) ({_titled(named)})"


def _titled(expression: str) -> str:
    return f"({expression}) * on (incident) group_left (title) {query.INCIDENT_TITLES}"


def _open(selector: str = "") -> query.Query:
    """Count open incidents: 0 while the diagnosis runs and finds none."""
    return query.build_query(f"sum(railscope_incidents{selector}) or {RUNNING}", query.COUNT)


def _summary() -> Iterator[panels.Panel]:
    lost = "railscope_tenant_incident_lost_gpu_seconds_total"
    now, before = f"sum({lost})", f"(sum({lost} offset 1d) or vector(0))"
    opened = "sum(railscope_incidents_opened_total)"
    day = f"{opened} - ({opened.replace(')', ' offset 1d)')} or vector(0))"
    failures = (
        "sum(railscope_diagnosis_failures_total) + sum(railscope_diagnosis_dropped_envelopes_total)"
    )
    yield from (
        panels.number(101, "Open", "Incidents that no other one explains.", _open()),
        panels.number(102, "Critical", "Devices or nodes that are lost, or stop others.", _open('{severity="critical"}'), panels.NONE_IS_GOOD),
        panels.number(103, "Warnings", "Jobs lose time, or a device will fail.", _open('{severity="warning"}'), panels.NONE_IS_GOOD),
        panels.number(104, "Advice", "Advice, and causes that no host shows.", _open('{severity="info"}')),
        panels.number(105, "Opened within a day", "Those that others explain included.", query.build_query(day, query.COUNT)),
        panels.number(106, "GPU time lost within a day", "Estimated, of all tenants.", query.build_query(f"{now} - {before} or {RUNNING}", "s")),
        panels.number(107, "Last evaluation", "Time since the end of the last evaluated slot.", query.build_query("max(railscope_diagnosis_age_seconds)"), panels.OLD),
        panels.number(108, "Not diagnosed", "Envelopes and evaluations that failed, and dropped envelopes.", query.build_query(failures, query.COUNT), panels.NONE_IS_GOOD),
    )  # fmt: skip


def _causes() -> Iterator[panels.Panel]:
    by = "max by (incident, class, kind, node, device, rail)"
    severity = " or ".join(
        f'{by} ({ONSET}{{severity="{name}"}} > bool 0) * {value}'
        for value, name in reversed(SEVERITIES.items())
    )
    age = f"time() - {by} ({ONSET})"
    jobs = f"count by (tenant, source, workload, title) ({_titled('railscope_job_incident')})"
    classes = "sum by (class) (railscope_incidents)"
    opened = "sum by (class) (railscope_incidents_opened_total"
    new = f"{opened}) - ({opened} offset $__rate_interval) or 0 * {opened}))"
    yield from (
        panels.rows(201, "Open incidents", "Device: interface, index of the GPU, switch, server or job.", CAUSE,
                    panels.Column("Severity", query.build_query(_of_incidents(severity), query.COUNT), BY_SEVERITY, SEVERITIES, "highest"),
                    panels.Column("Open for", query.build_query(_of_incidents(age), "s"), worst="highest"), span=24),
        panels.rows(202, "Affected jobs", "Open incidents that affect the job.",
                    {"tenant": "Tenant", "source": "Source", "workload": "Job", "title": "Incident"},
                    panels.Column("Incidents", query.build_query(jobs, query.COUNT), worst="highest")),
        panels.layers(203, "Open by class", "Incidents that no other one explains.", query.build_query(classes, query.COUNT, "{{class}}"), span=12),
        panels.bars(204, "Opened", "By class, those that others explain included.", query.build_query(f"{new} > 0", query.COUNT, "{{class}}"), span=24),
    )  # fmt: skip


def _lost(by: str) -> query.Query:
    lost = "rate(railscope_tenant_incident_lost_gpu_seconds_total[$__rate_interval])"
    return query.build_query(f"sum by ({by}) ({lost})", query.COUNT, f"{{{{{by}}}}}")


def _costs() -> Iterator[panels.Panel]:
    total = "sum by (tenant, class) (railscope_tenant_incident_lost_gpu_seconds_total)"
    about = "GPU-seconds lost per second, estimated."
    yield from (
        panels.layers(301, "GPUs lost by class", about, _lost("class")),
        panels.layers(302, "GPUs lost by tenant", about, _lost("tenant")),
        panels.rows(303, "GPU time lost so far", "Since the first start of the collector.", {"tenant": "Tenant", "class": "Class"},
                    panels.Column("GPU time", query.build_query(total, "s"), worst="highest"), span=8),
    )  # fmt: skip


def _diagnosis() -> Iterator[panels.Panel]:
    rates = {
        name: query.build_query(
            f"sum(rate(railscope_{metric}_total[$__rate_interval]))", query.EVENTS_PER_SECOND
        ).with_name(name)
        for name, metric in (
            ("failed", "diagnosis_failures"),
            ("dropped", "diagnosis_dropped_envelopes"),
            ("findings ignored", "diagnosis_ignored_findings"),
            ("webhook failed", "incident_webhook_failures"),
        )
    }
    yield from (
        panels.lines(401, "Age of the last evaluation", "Time since the end of the last evaluated slot.", query.build_query("max(railscope_diagnosis_age_seconds)"), steps=panels.OLD),
        panels.lines(402, "Duration of an evaluation", "Every 10 seconds, reading of frames included.", query.build_query("max(railscope_diagnosis_evaluation_seconds)")),
        panels.lines(403, "Failures", "Of the diagnosis and of its webhook.", *rates.values(), steps=panels.ANY_IS_BAD),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("What is the cause, since when, and which jobs does it affect?", _causes),
    ("What do incidents cost?", _costs),
    ("Is the diagnosis up to date?", _diagnosis),
)
